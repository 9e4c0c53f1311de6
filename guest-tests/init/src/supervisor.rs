//! The order of things: load, wait, run, sum up.
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cmdline::{Options, Selection};
use crate::device::node;
use crate::job::{self, Ended};
use crate::module::Module;
use crate::report::{self, Verdict};
use crate::scenario::{self, Body, Scenario};
use crate::{boot, ftrace, pci};

/// What a run has come to so far.
#[derive(Default)]
struct Tally {
    pass: u32,
    fail: u32,
    hang: u32,
    not_offered: u32,
    /// Something outside the scenarios went wrong: load, readiness, command line.
    broken: bool,
}

impl Tally {
    fn count(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Pass => self.pass += 1,
            Verdict::Fail(_) => self.fail += 1,
            Verdict::Hang(_) => self.hang += 1,
            Verdict::NotOffered(_) => self.not_offered += 1,
        }
    }

    const fn good(&self) -> bool {
        self.fail == 0 && self.hang == 0 && !self.broken
    }

    fn print(&self) {
        report::line(format_args!(
            "summary {} pass {} fail {} hang {} not-offered {} uptime {:.2} s",
            if self.good() { "PASS" } else { "FAIL" },
            self.pass,
            self.fail,
            self.hang,
            self.not_offered,
            boot::uptime()
        ));
    }
}

/// The whole life of the guest; does not return.
pub fn guest() -> ! {
    boot::mount_all();
    report::to_kernel_log();
    boot::announce();
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let (options, understood) = match Options::parse(&line) {
        Ok(options) => (options, true),
        Err(error) => {
            report::line(format_args!("NOT READY ({error:#})"));
            (Options::default(), false)
        }
    };
    let mut tally = Tally {
        broken: !understood,
        ..Tally::default()
    };
    if understood {
        let mut run = Run::new(&options);
        run.all(&mut tally);
    }
    tally.print();
    if options.shell {
        boot::shell();
    }
    if options.poweroff {
        boot::power_off();
    }
    boot::stay()
}

/// Scenarios on a machine that is already set up, by name.
pub fn here(arguments: &[String]) -> ExitCode {
    let mut names = Vec::new();
    let mut device = 0;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--device" {
            let Some(Ok(index)) = words.next().map(|n| n.parse()) else {
                eprintln!("--device takes the N of /dev/neuronN");
                return ExitCode::from(2);
            };
            device = index;
        } else {
            names.push(word.clone());
        }
    }
    let scenarios = if names.is_empty() {
        Selection::AllBut(vec!["reload".into()])
    } else {
        Selection::Only(names)
    };
    let options = Options {
        module: None,
        devices: device + 1,
        scenarios,
        ..Options::default()
    };
    let mut tally = Tally::default();
    let mut run = Run::new(&options);
    run.first_device = device;
    run.scenarios(&mut tally);
    tally.print();
    if tally.good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

struct Run<'o> {
    options: &'o Options,
    first_device: u32,
    /// Devices whose driver holds a process that cannot be killed.
    stuck: Vec<u32>,
}

impl<'o> Run<'o> {
    const fn new(options: &'o Options) -> Self {
        Self {
            options,
            first_device: 0,
            stuck: Vec::new(),
        }
    }

    fn all(&mut self, tally: &mut Tally) {
        let begin = Instant::now();
        let ftrace = self.options.ftrace;
        if ftrace {
            ftrace::prepare();
        }
        let loaded = self.load();
        if ftrace && loaded {
            ftrace::start();
        }
        if loaded && self.ready(begin) {
            self.scenarios(tally);
        } else {
            tally.broken = true;
        }
        if ftrace {
            ftrace::finish();
        }
    }

    /// Loads the module, if one is asked for, and says so.
    fn load(&self) -> bool {
        let Some(file) = &self.options.module else {
            return true;
        };
        let ended = task(
            &["load", file, &self.options.module_args],
            self.options.ready_timeout,
        );
        if ended.verdict != Verdict::Pass {
            report::line(format_args!(
                "module {file}: {} in {} ms",
                ended.verdict,
                ended.took.as_millis()
            ));
            report::line("NOT READY (the module did not load)");
            return false;
        }
        let version = Module::find(file)
            .ok()
            .and_then(|m| m.version)
            .unwrap_or_else(|| "unknown".into());
        report::line(format_args!(
            "module {file}: LOADED version {version} in {} ms",
            ended.took.as_millis()
        ));
        true
    }

    fn ready(&self, begin: Instant) -> bool {
        let left = self
            .options
            .ready_timeout
            .saturating_sub(begin.elapsed())
            .max(Duration::from_secs(1));
        let ended = task(&["ready", &self.options.devices.to_string()], left);
        if let Verdict::Fail(reason) | Verdict::Hang(reason) | Verdict::NotOffered(reason) =
            ended.verdict
        {
            report::line(format_args!("NOT READY ({reason})"));
            return false;
        }
        report::line(format_args!(
            "READY devices {} uptime {:.2} s",
            self.options.devices,
            boot::uptime()
        ));
        true
    }

    fn scenarios(&mut self, tally: &mut Tally) {
        for name in unknown_names(&self.options.scenarios) {
            report::line(format_args!(
                "scenario {name} device all: FAIL (no such scenario: {}) in 0 ms",
                known_names()
            ));
            tally.fail += 1;
        }
        for scenario in selected(&self.options.scenarios) {
            match scenario.body {
                Body::Open(_) | Body::Closed(_) => {
                    for index in self.first_device..self.options.devices {
                        self.scenario(scenario, index, &index.to_string(), tally);
                    }
                }
                Body::All(_) => self.scenario(scenario, self.first_device, "all", tally),
                Body::Reload => self.reload(scenario, tally),
            }
        }
    }

    fn scenario(&mut self, scenario: &Scenario, index: u32, label: &str, tally: &mut Tally) {
        let blocked = self.stuck.contains(&index) || (label == "all" && !self.stuck.is_empty());
        let ended = if blocked {
            let why = "not run: an earlier scenario's process is stuck in the driver";
            Ended {
                verdict: Verdict::Fail(why.into()),
                stuck: false,
                took: Duration::ZERO,
            }
        } else {
            let words = [
                "scenario",
                scenario.name,
                &index.to_string(),
                &self.options.devices.to_string(),
                &self.options.seed.to_string(),
            ];
            task(
                &words,
                scenario.limit.unwrap_or_default().max(self.options.timeout),
            )
        };
        if ended.stuck {
            self.stuck.push(index);
        }
        conclude(scenario.name, label, &ended.verdict, ended.took, tally);
    }

    /// The module goes, takes its nodes with it, comes back, and the device is ready and copies again.
    fn reload(&mut self, scenario: &Scenario, tally: &mut Tally) {
        let begin = Instant::now();
        let verdict =
            self.reload_verdict(scenario.limit.unwrap_or_default().max(self.options.timeout));
        conclude(scenario.name, "all", &verdict, begin.elapsed(), tally);
    }

    fn reload_verdict(&self, limit: Duration) -> Verdict {
        let Some(file) = &self.options.module else {
            return Verdict::NotOffered("no module was loaded by us".into());
        };
        if !self.stuck.is_empty() {
            return Verdict::Fail("not run: a process is stuck in the driver".into());
        }
        for round in 0..2 {
            let ended = task(&["unload", file], limit);
            if ended.verdict != Verdict::Pass {
                return in_step(ended.verdict, "unload");
            }
            if let Some(left) = (0..self.options.devices).map(node).find(|n| n.exists()) {
                return Verdict::Fail(format!(
                    "{} is still there after the module is gone",
                    left.display()
                ));
            }
            if Module::find(file).is_ok_and(|m| m.is_loaded()) {
                return Verdict::Fail("the kernel still lists the module".into());
            }
            if let Some(bound) = pci::functions().into_iter().find(|f| f.driver.is_some()) {
                return Verdict::Fail(format!("still bound: {bound}"));
            }
            let ended = task(&["load", file, &self.options.module_args], limit);
            if ended.verdict != Verdict::Pass {
                return in_step(ended.verdict, "load again");
            }
            let ended = task(&["ready", &self.options.devices.to_string()], limit);
            if ended.verdict != Verdict::Pass {
                return in_step(ended.verdict, "ready again");
            }
            for index in 0..self.options.devices {
                let words = [
                    "scenario",
                    "device_copy",
                    &index.to_string(),
                    &self.options.devices.to_string(),
                    &format!("{}", 1000 + round),
                ];
                let ended = task(&words, limit);
                if ended.verdict != Verdict::Pass {
                    return in_step(
                        ended.verdict,
                        &format!("copies of device {index} after reload {round}"),
                    );
                }
            }
        }
        Verdict::Pass
    }
}

fn task(words: &[&str], limit: Duration) -> Ended {
    job::run(
        &words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(),
        limit,
    )
}

fn in_step(verdict: Verdict, step: &str) -> Verdict {
    match verdict {
        Verdict::Pass => Verdict::Pass,
        Verdict::Fail(reason) => Verdict::Fail(format!("{step}: {reason}")),
        Verdict::Hang(reason) => Verdict::Hang(format!("{step}: {reason}")),
        Verdict::NotOffered(reason) => Verdict::NotOffered(format!("{step}: {reason}")),
    }
}

fn conclude(name: &str, device: &str, verdict: &Verdict, took: Duration, tally: &mut Tally) {
    tally.count(verdict);
    report::line(format_args!(
        "scenario {name} device {device}: {verdict} in {} ms",
        took.as_millis()
    ));
}

fn selected(selection: &Selection) -> Vec<&'static Scenario> {
    match selection {
        Selection::AllBut(out) => scenario::ALL
            .iter()
            .filter(|s| !out.iter().any(|n| n == s.name))
            .collect(),
        Selection::Only(names) => names.iter().filter_map(|n| scenario::find(n)).collect(),
    }
}

fn unknown_names(selection: &Selection) -> Vec<&str> {
    let (Selection::AllBut(names) | Selection::Only(names)) = selection;
    names
        .iter()
        .map(String::as_str)
        .filter(|n| scenario::find(n).is_none())
        .collect()
}

fn known_names() -> String {
    scenario::ALL
        .iter()
        .map(|s| s.name)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_plain() {
        for (nth, one) in scenario::ALL.iter().enumerate() {
            assert!(
                one.name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{}",
                one.name
            );
            assert!(
                scenario::ALL[..nth]
                    .iter()
                    .all(|other| other.name != one.name),
                "{}",
                one.name
            );
        }
    }

    #[test]
    fn a_name_nobody_knows_is_a_failure() {
        let selection = Selection::Only(vec!["info".into(), "infos".into()]);
        assert_eq!(unknown_names(&selection), ["infos"]);
        assert_eq!(selected(&selection).len(), 1);
    }

    #[test]
    fn one_hang_spoils_the_summary() {
        let mut tally = Tally::default();
        tally.count(&Verdict::Pass);
        tally.count(&Verdict::NotOffered(String::new()));
        assert!(tally.good());
        tally.count(&Verdict::Hang(String::new()));
        assert!(!tally.good());
    }
}

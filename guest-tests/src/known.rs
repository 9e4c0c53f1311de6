//! Defects that a driver is known to have: a scenario that meets one is run in a boot of its own, and must fail by the very
//! line of the kernel's log that its entry gives. The rest is run without it and must pass.
//!
//! An entry is an excuse only while its evidence is seen: a defect that does not show any more fails the run, and so does
//! whatever else goes wrong in that boot.
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use glob::Pattern;
use serde::Deserialize;

use crate::guest_line::{GuestLine, Verdict};
use crate::lane::{self, Lane};
use crate::outcome::{Failure, Finding};
use crate::progress::Progress;
use crate::report::{Report, ScenarioResult};

/// Such a file is written by hand.
const MAX_FILE: u64 = 1 << 20;

/// The file: `[[defect]]` tables.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defect: Vec<Entry>,
}

/// One defect, as it is written down.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Driver versions that have it, as a pattern: `2.19.*`.
    drivers: String,
    /// Scenarios that it ends.
    scenarios: Vec<String>,
    /// The line of the kernel's log that it prints, as a pattern, without the time stamp.
    log: String,
    /// Why, with file and line of the driver.
    cause: String,
}

/// A scenario of a run that a known defect ends.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its name.
    pub scenario: String,
    /// For people.
    pub cause: String,
    log: Pattern,
    file: PathBuf,
}

impl Known {
    /// Reads a file of defects. `scenarios` are all that `init` knows.
    ///
    /// # Errors
    /// Not such a file, or an entry that can match nothing: an excuse nobody looks at any more.
    pub fn read(file: &Path, scenarios: &[String]) -> Result<Vec<(Entry, PathBuf)>> {
        let size = std::fs::metadata(file)
            .with_context(|| format!("--known {}: cannot be read", file.display()))?
            .len();
        if size > MAX_FILE {
            bail!(
                "--known {}: {size} bytes, that is no file of known defects",
                file.display()
            );
        }
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("--known {}: cannot be read", file.display()))?;
        let entries = parse(&text, scenarios)
            .with_context(|| format!("--known {}", file.display()))?
            .into_iter()
            .map(|entry| (entry, file.to_path_buf()));
        Ok(entries.collect())
    }

    /// Those that concern a driver and the scenarios of a run.
    pub fn of(
        entries: Vec<(Entry, PathBuf)>,
        version: Option<&str>,
        asked: &[String],
    ) -> Vec<Self> {
        let Some(version) = version else {
            return Vec::new();
        };
        entries
            .into_iter()
            .filter(|(entry, _)| Pattern::new(&entry.drivers).is_ok_and(|p| p.matches(version)))
            .flat_map(|(entry, file)| {
                // A pattern that is none was refused when the file was read.
                let log = Pattern::new(&format!("*{}*", entry.log)).unwrap_or_default();
                let met = entry.scenarios.into_iter().filter(|s| asked.contains(s));
                met.map(move |scenario| Self {
                    scenario,
                    cause: entry.cause.clone(),
                    log: log.clone(),
                    file: file.clone(),
                })
                .collect::<Vec<_>>()
            })
            .collect()
    }

    /// What a boot with this scenario alone comes to: its result, and everything that the defect does not explain.
    fn judge(&self, report: &Report) -> (Option<ScenarioResult>, Vec<Finding>) {
        let own = format!("scenario {} on device ", self.scenario);
        let seen = report.findings.iter().any(|f| self.log.matches(&f.text));
        let rest = report
            .findings
            .iter()
            .filter(|f| !(self.log.matches(&f.text) || seen && f.text.starts_with(&own)))
            .cloned()
            .collect();
        if seen {
            let known = ScenarioResult {
                name: self.scenario.clone(),
                device: "all".to_owned(),
                verdict: Verdict::KnownDefect,
                reason: self.cause.clone(),
                millis: report.elapsed.as_secs_f64() * 1000.0,
            };
            return (Some(known), rest);
        }
        let mut rest: Vec<Finding> = rest;
        // Most telling first: another fault is not a defect that has gone.
        if rest.is_empty() {
            rest.push(Finding::new(
                Failure::Scenario,
                format!(
                    "known defect not seen any more: {} ran without {:?} in the kernel's log; remove its entry from {}",
                    self.scenario,
                    self.log.as_str().trim_matches('*'),
                    self.file.display()
                ),
            ));
        }
        (None, rest)
    }
}

fn parse(text: &str, scenarios: &[String]) -> Result<Vec<Entry>> {
    let file: File = toml::from_str(text)?;
    for (number, entry) in (1..).zip(&file.defect) {
        let what = format!("defect {number}");
        for (field, pattern) in [("drivers", &entry.drivers), ("log", &entry.log)] {
            Pattern::new(pattern)
                .with_context(|| format!("{what}: {field} {pattern:?} is not a pattern"))?;
            ensure!(
                pattern.chars().any(|c| c.is_ascii_alphanumeric()),
                "{what}: {field} {pattern:?} matches everything"
            );
        }
        ensure!(
            !entry.cause.trim().is_empty(),
            "{what}: cause is empty; say what the driver does wrong, and where"
        );
        ensure!(!entry.scenarios.is_empty(), "{what}: no scenarios");
        if let Some(name) = entry.scenarios.iter().find(|s| !scenarios.contains(s)) {
            bail!(
                "{what}: unknown scenario {name:?}; known: {}",
                scenarios.join(", ")
            );
        }
    }
    Ok(file.defect)
}

/// The scenarios of a run without those that known defects end; `None`: nothing is left.
fn without(wanted: &str, known: &[Known], all: &[String]) -> Option<String> {
    let out = |name: &str| known.iter().any(|k| k.scenario == name);
    if wanted.split(',').any(|w| w.trim() == "all") {
        let minus = known.iter().map(|k| format!(",-{}", k.scenario));
        return Some(format!("{wanted}{}", minus.collect::<String>()));
    }
    let rest: Vec<String> = crate::coverage::asked(wanted, all)
        .into_iter()
        .filter(|name| !out(name))
        .collect();
    (!rest.is_empty()).then(|| rest.join(","))
}

/// Runs a lane with known defects: the rest of its scenarios, then each of them by itself.
pub(crate) fn run(
    lane: &Lane,
    progress: &mut Progress,
    on_line: &mut dyn FnMut(&GuestLine),
) -> Result<Report> {
    let mut rest = lane.clone();
    rest.known = Vec::new();
    let mut whole = match without(&lane.scenarios, &lane.known, &crate::coverage::known()) {
        Some(scenarios) => {
            rest.scenarios = scenarios;
            lane::boot(&rest, progress, on_line)?
        }
        None => Report::default(),
    };
    for known in &lane.known {
        progress.step(format!("a boot of its own for {}", known.scenario));
        let mut alone = rest.clone();
        alone.scenarios.clone_from(&known.scenario);
        // Reports of the first boot stay as they are.
        alone.report = lane
            .report
            .as_ref()
            .map(|dir| dir.join(format!("known-{}", known.scenario)));
        if let Some(dir) = &alone.report {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("{} cannot be made", dir.display()))?;
        }
        let report = lane::boot(&alone, progress, on_line)?;
        add(&mut whole, report, known);
    }
    Ok(whole)
}

/// Adds the boot of a known defect to the rest. The evidence of the first boot that went wrong is kept.
fn add(whole: &mut Report, mut report: Report, known: &Known) {
    let (result, findings) = known.judge(&report);
    // Without the defect it is a result like any other.
    match result {
        Some(known) => whole.scenarios.push(known),
        None => whole.scenarios.append(&mut report.scenarios),
    }
    whole.elapsed += report.elapsed;
    whole.harmless.append(&mut report.harmless);
    whole.suspicions.append(&mut report.suspicions);
    whole.driver_version = whole.driver_version.take().or(report.driver_version.take());
    whole.ready = whole.ready.or(report.ready);
    let evidence = whole.findings.is_empty() && !findings.is_empty();
    if evidence || whole.dir.as_os_str().is_empty() {
        whole.dir = report.dir;
        whole.tails = report.tails;
        whole.dump = report.dump;
        whole.accounts = report.accounts;
    }
    whole.findings.extend(findings);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[[defect]]
drivers = "2.19.*"
scenarios = ["past", "copy"]
log = "kernel BUG at *neuron_mempool.c:781!"
cause = "frees what it never had (neuron_cdev.c:258)"
"#;
    const BUG: &str = "[ 21.6] kernel BUG at /a/b/neuron_mempool.c:781!";

    fn names() -> Vec<String> {
        ["info", "past", "copy"].map(str::to_owned).into()
    }

    fn known(version: &str, asked: &str) -> Vec<Known> {
        let entries = parse(FILE, &names()).unwrap();
        let entries = entries.into_iter().map(|e| (e, "k.toml".into())).collect();
        Known::of(
            entries,
            Some(version),
            &crate::coverage::asked(asked, &names()),
        )
    }

    fn report(findings: &[(Failure, &str)]) -> Report {
        Report {
            findings: findings.iter().map(|(f, t)| Finding::new(*f, *t)).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn an_entry_is_for_its_versions_and_for_scenarios_that_are_run() {
        let of = |version, asked| -> Vec<String> {
            known(version, asked)
                .into_iter()
                .map(|k| k.scenario)
                .collect()
        };
        assert_eq!(of("2.19.64.0", "all"), ["past", "copy"]);
        assert_eq!(of("2.19.64.0", "all,-copy"), ["past"]);
        assert_eq!(of("2.19.64.0", "info"), [""; 0]);
        assert_eq!(of("2.21.37.0", "all"), [""; 0]);
        let left = |asked| without(asked, &known("2.19.64.0", asked), &names());
        assert_eq!(left("all").as_deref(), Some("all,-past,-copy"));
        assert_eq!(left("info,past").as_deref(), Some("info"));
        assert_eq!(left("past"), None);
    }

    #[test]
    fn the_very_line_excuses_the_scenario_and_nothing_else() {
        let known = &known("2.19.64.0", "past")[0];
        let own = (Failure::Scenario, "scenario past on device 0: killed");
        let (result, rest) = known.judge(&report(&[(Failure::Oops, BUG), own]));
        assert_eq!(result.unwrap().verdict, Verdict::KnownDefect);
        assert_eq!(rest, []);
        // Something else beside it.
        let device = (Failure::Device, "nd0: 1 malformed descriptor");
        let (_, rest) = known.judge(&report(&[(Failure::Oops, BUG), own, device]));
        assert_eq!(rest, report(&[device]).findings);
        // Another place of the same file: another defect.
        let other = (Failure::Oops, "kernel BUG at /a/b/neuron_mempool.c:782!");
        let (result, rest) = known.judge(&report(&[other, own]));
        assert_eq!((result, rest), (None, report(&[other, own]).findings));
    }

    #[test]
    fn a_defect_that_is_gone_fails_until_its_entry_is() {
        let known = &known("2.19.64.0", "past")[0];
        let (result, rest) = known.judge(&report(&[]));
        assert_eq!(result, None);
        assert!(rest[0].text.contains("not seen any more") && rest[0].text.contains("k.toml"));
        // Its results and its fault become part of the whole.
        let mut whole = Report::default();
        add(&mut whole, report(&[(Failure::Hang, "hangs")]), known);
        assert_eq!(whole.findings, report(&[(Failure::Hang, "hangs")]).findings);
    }

    #[test]
    fn an_entry_that_excuses_too_much_or_nothing_is_refused() {
        let says = |old: &str, new: &str, why: &str| {
            let text = FILE.replace(old, new);
            assert_ne!(text, FILE);
            let error = format!("{:#}", parse(&text, &names()).unwrap_err());
            assert!(error.contains(why), "{error}");
        };
        says("2.19.*", "*", "matches everything");
        says(
            "kernel BUG at *neuron_mempool.c:781!",
            "*",
            "matches everything",
        );
        says("2.19.*", "2.[19", "not a pattern");
        says("\"past\"", "\"passed\"", "unknown scenario");
        says("\"past\", \"copy\"", "", "no scenarios");
        says("frees what it never had (neuron_cdev.c:258)", " ", "cause");
        says("cause =", "because =", "unknown field");
        assert!(parse("", &names()).unwrap().is_empty());
    }

    #[test]
    fn the_projects_own_file_is_one() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("known-defects.toml");
        let text = std::fs::read_to_string(file).unwrap();
        let past = "ring_past_chunk".to_owned();
        assert_eq!(parse(&text, &[past]).unwrap().len(), 1);
    }
}

//! The QEMU lanes: our own driver and every scenario, on every product, judged by the guest's words *and* by the device's.
//!
//! A lane is a command line of `scripts/guest`, so that a red one can be run alone. Lanes run one at a time, across
//! processes too, since the driver's budgets are real time. `cargo test -p neuron-guest-tests --test lanes -- trn2/qemu`
//! runs those whose name contains the text.
use std::fs::File;
use std::process::Command;
use std::sync::OnceLock;

use clap::Parser;
use libtest_mimic::{Arguments, Failed, Trial};
use neuron_guest_tests::guest_line::Verdict;
use neuron_guest_tests::options::GuestOptions;
use neuron_guest_tests::outcome::{Failure, verdict};
use neuron_guest_tests::progress::Progress;
use neuron_guest_tests::report::{Report, ScenarioResult};
use neuron_guest_tests::{artifacts, coverage, lane, print};
use rustix::fs::{FlockOperation, flock};

/// A lane's name and its options for `scripts/guest`.
struct Case {
    name: &'static str,
    options: &'static str,
    expected: Expected,
}

enum Expected {
    /// Everything passes.
    Pass,
    /// The run fails, and for this reason.
    Fails(Failure),
    /// A scenario fails, and a finding contains this.
    FailsSaying(&'static str),
    /// The device complains, and says this. Whether the guest's scenario had time to fail as well is a race between the two.
    DeviceSays(&'static str),
    /// This scenario fails and all others pass.
    OnlyFails(&'static str),
    /// With one adversary of a few (the server's last option is the seed) a scenario fails, and a finding contains this.
    FailsForASeed(&'static str),
    /// Every scenario passes, and the last device alone complains.
    LastComplains,
    /// There is no run, and the message contains this.
    Refused(&'static str),
}

const fn pass(name: &'static str, options: &'static str) -> Case {
    Case {
        name,
        options,
        expected: Expected::Pass,
    }
}

const CASES: &[Case] = &[
    pass("trn1/qemu/6.1", "--product trn1"),
    pass("inf2/qemu/6.1", "--product inf2"),
    pass("trn2/qemu/6.1", "--product trn2"),
    pass("trn3/qemu/6.1", "--product trn3"),
    pass("trn1/silicon/6.1", "--product trn1 --platform silicon"),
    pass("inf2/silicon/6.1", "--product inf2 --platform silicon"),
    pass("trn2/silicon/6.1", "--product trn2 --platform silicon"),
    pass("trn3/silicon/6.1", "--product trn3 --platform silicon"),
    pass("trn1/qemu/6.12", "--product trn1 --kernel 6.12"),
    pass("trn2/qemu/6.12", "--product trn2 --kernel 6.12"),
    pass(
        "trn2/emulator/6.1",
        "--product trn2 --platform emulator --scenario info,buffer_copy,device_copy",
    ),
    pass("trn2/qemu/6.1/two-devices", "--product trn2 --devices 2"),
    pass(
        "inf2/silicon/6.1/two-devices",
        "--product inf2 --platform silicon --devices 2",
    ),
    pass(
        "trn2/qemu/6.1/mmap-hbm",
        "--product trn2 --scenario info,buffer_copy,device_copy,bandwidth -- --mmap-hbm",
    ),
    pass(
        "trn2/qemu/6.1/msix",
        "--product trn2 --scenario info,buffer_copy,interrupts,zero_copy_many,reload -- --msix",
    ),
    pass(
        "inf2/silicon/6.12/msix",
        "--product inf2 --platform silicon --kernel 6.12 --scenario info,buffer_copy,interrupts,reload -- --msix",
    ),
    // No file behind guest memory: every descriptor, every byte and every marker is a message.
    pass(
        "trn2/qemu/6.1/guest-memory-by-messages",
        "--product trn2 --guest-memory messages --scenario info,buffer_copy,device_copy,memset,async_copy,zero_copy,core_reset,reload",
    ),
    // And a file that is the wrong one: nothing that the device writes arrives, and it says so.
    Case {
        name: "judge/guest-memory-is-private",
        options: "--product trn1 --platform silicon --guest-memory private --scenario info,buffer_copy",
        expected: Expected::DeviceSays("guest memory is private"),
    },
    // Pulled out of its root port and plugged in again, idle and with copies in flight.
    pass(
        "trn2/qemu/6.1/hotplug",
        "--product trn2 --hotplug --scenario info,buffer_copy,hotplug,hotplug_busy,device_copy",
    ),
    // Hardware that does what it is free to do: seed 1 likes all of it.
    pass(
        "trn2/silicon/6.1/adversary",
        "--product trn2 --platform silicon --scenario info,buffer_copy,device_copy,memset,async_copy,zero_copy,zero_copy_batch,core_reset -- --adversary 1",
    ),
    // And a driver that relies on luck.
    Case {
        name: "adversary/no-write-barrier",
        options: "--product trn2 --platform silicon --driver-args no_write_barrier=1 --scenario buffer_copy,async_copy -- --adversary",
        expected: Expected::FailsForASeed("bytes differ"),
    },
    Case {
        name: "adversary/no-strong-order",
        options: "--product trn2 --platform silicon --driver-args no_strong_order=1 --scenario zero_copy,zero_copy_batch,async_copy -- --adversary",
        expected: Expected::FailsForASeed("bytes differ"),
    },
    // The same driver where the hardware does nothing that it need not do: what an in-order model hides.
    pass(
        "trn2/silicon/6.1/no-write-barrier",
        "--product trn2 --platform silicon --driver-args no_write_barrier=1 --scenario buffer_copy,async_copy",
    ),
    // Sixteen at once; then an engine of one of them aborts while the others copy.
    Case {
        name: "trn2/qemu/6.1/sixteen-devices",
        options: "--product trn2 --devices 16 --scenario info,buffer_copy,all_devices,self_abort --timeout 600",
        expected: Expected::LastComplains,
    },
    // Hardware that misbehaves on purpose: what a driver can bear, and what it has to report.
    pass(
        "faults/marker-half-word",
        "--product trn1 --platform silicon --scenario buffer_copy -- --fault marker-half-word",
    ),
    pass(
        "faults/mailbox-drop-once",
        "--product trn1 --platform silicon --scenario mailbox,buffer_copy -- --fault mailbox-drop-once",
    ),
    Case {
        name: "faults/marker-drop-once",
        options: "--product trn1 --platform silicon --scenario buffer_copy -- --fault marker-drop-once",
        expected: Expected::FailsSaying("Connection timed out"),
    },
    Case {
        name: "faults/data-error-once",
        options: "--product trn1 --platform silicon --scenario buffer_copy -- --fault data-error-once",
        expected: Expected::FailsSaying("Connection timed out"),
    },
    // What a fault has left behind, a reset of the device takes away.
    Case {
        name: "faults/recovery-by-reset",
        options: "--product trn1 --platform silicon --virtual-time --scenario buffer_copy,self_recovery,device_copy -- --fault engine-stall",
        expected: Expected::OnlyFails("buffer_copy"),
    },
    // What waits for minutes does so in virtual time.
    pass(
        "trn1/silicon/6.1/virtual-time",
        "--product trn1 --platform silicon --virtual-time --scenario info,buffer_copy,device_copy,core_reset,device_reset",
    ),
    Case {
        name: "faults/reset-never",
        options: "--product trn1 --virtual-time --scenario info -- --fault reset-never",
        expected: Expected::FailsSaying("its reset failed"),
    },
    Case {
        name: "faults/mailbox-silent",
        options: "--product trn1 --virtual-time --scenario buffer_copy,mailbox -- --fault mailbox-silent",
        expected: Expected::FailsSaying("Connection timed out"),
    },
    // A judge is trusted only where it was seen to find something.
    Case {
        name: "judge/virtual-time-under-kvm",
        options: "--scenario info --virtual-time --accel kvm",
        expected: Expected::Refused("--accel tcg or auto"),
    },
    Case {
        name: "judge/fault-that-hangs",
        options: "--product trn1 --scenario info -- --fault marker-drop-once",
        expected: Expected::Refused("--platform silicon"),
    },
    Case {
        name: "judge/bad-fault",
        options: "--product trn1 --scenario info -- --faults guest-tests/tests/bad-faults.toml",
        expected: Expected::Refused("line 3, column 10"),
    },
    Case {
        name: "judge/broken-rule",
        options: "--product trn1 --platform silicon --scenario buffer_copy -- --fault descriptor-corrupt-once --sanitize=fatal",
        expected: Expected::DeviceSays("the driver broke a rule"),
    },
    Case {
        name: "judge/slow-batch",
        options: "--product trn1 --platform silicon --scenario buffer_copy -- --fault marker-late --budget-limit 10",
        expected: Expected::Fails(Failure::Device),
    },
    Case {
        name: "judge/time-limit",
        options: "--product trn2 --timeout 2",
        expected: Expected::Fails(Failure::Hang),
    },
    Case {
        name: "judge/required-pattern",
        options: "--product trn2 --scenario info --require no-guest-prints-this",
        expected: Expected::Fails(Failure::Scenario),
    },
    Case {
        name: "judge/failed-scenario",
        options: "--product trn2 --scenario self_fail",
        expected: Expected::Fails(Failure::Scenario),
    },
    Case {
        name: "judge/crashed-scenario",
        options: "--product trn2 --scenario self_crash",
        expected: Expected::Fails(Failure::Scenario),
    },
    Case {
        name: "judge/hanging-scenario",
        options: "--product trn2 --scenario self_hang --append neuron.timeout=3",
        expected: Expected::Fails(Failure::Hang),
    },
    // A known defect is an excuse only while the kernel's log has its very line.
    pass(
        "known/seen",
        "--product trn2 --scenario info,buffer_copy,self_bug --known guest-tests/tests/known.toml",
    ),
    Case {
        name: "known/another-fault",
        options: "--product trn2 --scenario info,self_bug --known guest-tests/tests/known-other.toml",
        expected: Expected::Fails(Failure::Oops),
    },
    Case {
        name: "known/gone",
        options: "--product trn2 --scenario info --known guest-tests/tests/known-gone.toml",
        expected: Expected::FailsSaying("not seen any more"),
    },
    Case {
        name: "judge/no-module-parameter",
        options: "--product trn2 --scenario info --append neuron.module=/missing.ko",
        expected: Expected::Fails(Failure::Scenario),
    },
    Case {
        name: "judge/server-refuses",
        options: "--product trn2 --scenario info -- --no-such-option",
        expected: Expected::Refused("did not start"),
    },
    Case {
        name: "judge/unknown-scenario",
        options: "--scenario no_such_scenario",
        expected: Expected::Refused("known:"),
    },
];

/// `bandwidth` copies at least this much (64 MiB, twice, in each of five ways), and the device must have counted it.
const BANDWIDTH_BYTES: u64 = 10 * (64 << 20);

/// What the values that the `gate` scenario writes begin with, as a dump shows registers.
const GATED_VALUE: &str = "= 0x6a7e";

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    guest: GuestOptions,
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Files in options are named as for scripts/guest.
    if let Err(error) = std::env::set_current_dir(artifacts::root()) {
        eprintln!("{}: {error}", artifacts::root().display());
        std::process::exit(i32::from(Failure::Setup.code()));
    }
    arguments.test_threads = Some(1);
    let trials = CASES
        .iter()
        .map(|case| Trial::test(case.name, move || run(case)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn run(case: &Case) -> Result<(), Failed> {
    // nextest starts a process for each lane.
    let lock = artifacts::target().join("lanes.lock");
    let lock = File::create(&lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| format!("lock: {e}"))?;
    build()?;
    let command = format!("run it alone: scripts/guest {}", case.options);
    let mut attempt = 1;
    loop {
        match check(case) {
            Err(error) if attempt < ATTEMPTS && host_was_late(case, &error) => {
                eprintln!(
                    "{}: FLAKY, attempt {attempt} of {ATTEMPTS} ran out of the driver's budget:\n{error}",
                    case.name
                );
                attempt += 1;
            }
            result => return result.map_err(|error| Failed::from(format!("{error}\n{command}"))),
        }
    }
}

/// On platform silicon a small copy has 40 or 80 ms of real time (contract §8.4), which a busy host may take from the device's
/// thread. Only such a lane, failed for only this reason, is run again, and says so.
const ATTEMPTS: u32 = 3;

/// What driver and scenarios say of a copy whose budget ran out.
const OUT_OF_BUDGET: [&str; 2] = ["Connection timed out", "DMA completion timeout"];

fn host_was_late(case: &Case, error: &str) -> bool {
    matches!(case.expected, Expected::Pass)
        && case.options.contains("--platform silicon")
        && out_of_budget(error)
}

fn out_of_budget(error: &str) -> bool {
    OUT_OF_BUDGET.iter().any(|text| error.contains(text))
}

/// Beside a guest a seed fails in about every second run: the guest's CPU has a clock of its own.
const SEEDS: std::ops::RangeInclusive<u32> = 1..=12;

fn check(case: &Case) -> Result<(), String> {
    match case.expected {
        Expected::FailsForASeed(words) => {
            for seed in SEEDS {
                let options = format!("{} {seed}", case.options);
                let result = check_one(&options, &Expected::FailsSaying(words));
                // Passing is no verdict yet, nor is a busy host; anything else than the words is.
                match result {
                    Err(error) if error.contains("PASS: ") || out_of_budget(&error) => {}
                    other => return other,
                }
            }
            Err(format!("no seed of {SEEDS:?} made it fail"))
        }
        _ => check_one(case.options, &case.expected),
    }
}

fn check_one(options: &str, expected: &Expected) -> Result<(), String> {
    let words = std::iter::once("lane").chain(options.split_whitespace());
    let options = Options::try_parse_from(words)
        .map_err(|e| e.to_string())?
        .guest;
    let mut progress = Progress::new(true);
    let outcome = options.lane(&mut progress).and_then(|lane| {
        let report = lane::run(&lane, &mut progress, &mut |_| ())?;
        Ok((lane, report))
    });
    match (outcome, expected) {
        (Err(error), Expected::Refused(why)) if format!("{error:#}").contains(why) => Ok(()),
        (Err(error), _) => Err(format!("{error:#}")),
        (Ok((lane, report)), Expected::Refused(why)) => Err(format!(
            "{}\nexpected a refusal with {why:?}",
            print::closing(&lane, &report)
        )),
        (Ok((lane, report)), Expected::Fails(failure)) => match verdict(&report.findings) {
            Some(found) if found == *failure => Ok(()),
            _ => Err(format!(
                "{}\nexpected: {failure}",
                print::closing(&lane, &report)
            )),
        },
        (Ok((lane, report)), Expected::FailsSaying(words)) => {
            let says = report.findings.iter().any(|f| f.text.contains(words));
            if says && verdict(&report.findings) == Some(Failure::Scenario) {
                return Ok(());
            }
            Err(format!(
                "{}\nexpected a failed scenario with {words:?}",
                print::closing(&lane, &report)
            ))
        }
        (Ok((lane, report)), Expected::OnlyFails(name)) => {
            let as_expected =
                |s: &ScenarioResult| (s.verdict == Verdict::Fail) == (s.name == *name);
            let asked = coverage::asked(&options.scenario, &coverage::known());
            if report.scenarios.len() == asked.len() && report.scenarios.iter().all(as_expected) {
                return Ok(());
            }
            Err(format!(
                "{}\nexpected {name} to fail, and nothing else",
                print::closing(&lane, &report)
            ))
        }
        (Ok(_), Expected::FailsForASeed(_)) => Err("no single run".to_owned()),
        (Ok((lane, report)), Expected::DeviceSays(words)) => {
            let mut complaints = report
                .findings
                .iter()
                .filter(|f| f.failure == Failure::Device);
            if complaints.any(|f| f.text.contains(words)) {
                return Ok(());
            }
            Err(format!(
                "{}\nexpected the device to complain of {words:?}",
                print::closing(&lane, &report)
            ))
        }
        (Ok((lane, report)), Expected::LastComplains) => {
            let mut wrong = guest_did_all(&options, &report);
            wrong.extend(only_last_complains(&options, &report));
            if wrong.is_empty() {
                return Ok(());
            }
            Err(format!(
                "{}\n{}",
                print::closing(&lane, &report),
                wrong.join("\n")
            ))
        }
        (Ok((lane, report)), Expected::Pass) => {
            let mut wrong: Vec<String> = report
                .findings
                .iter()
                .map(|f| format!("{}: {}", f.failure, f.text))
                .collect();
            wrong.extend(guest_did_all(&options, &report));
            wrong.extend(device_saw_it(&options, &report));
            if wrong.is_empty() {
                return Ok(());
            }
            Err(format!(
                "{}\n{}",
                print::closing(&lane, &report),
                wrong.join("\n")
            ))
        }
    }
}

/// Every scenario that was asked for has a result on every device, and it is a pass.
fn guest_did_all(options: &GuestOptions, report: &Report) -> Vec<String> {
    let mut wrong = Vec::new();
    let asked = coverage::asked(&options.scenario, &coverage::known());
    wrong.extend(coverage::shortfalls(&asked, options.devices, report));
    // A lane that quietly tests less than yesterday is worse than a red one.
    wrong.extend(coverage::lacking(
        options.devices,
        options.hotplug,
        &options.server_args,
        report,
    ));
    if report.count(Verdict::Pass) == 0 {
        wrong.push("nothing passed".to_owned());
    }
    wrong
}

/// One device has an aborted engine, the one that becomes the last node; the others copied and are content.
fn only_last_complains(options: &GuestOptions, report: &Report) -> Vec<String> {
    let mut wrong: Vec<String> = report
        .findings
        .iter()
        .filter(|f| f.failure != Failure::Device)
        .map(|f| format!("{}: {}", f.failure, f.text))
        .collect();
    let last = options.product.routing_id(options.devices - 1);
    if report.accounts.len() != usize::from(options.devices) {
        wrong.push(format!("{} devices gave an account", report.accounts.len()));
    }
    for account in &report.accounts {
        // The driver's reset of the queue has ended the abort; the count stays.
        let complains = !account.complaints().is_empty();
        if complains != (Some(account.routing_id) == last) {
            wrong.push(format!("nd{}: {account:?}", account.routing_id));
        }
        if !complains && (account.counters.errors > 0 || account.counters.bytes == 0) {
            wrong.push(format!(
                "nd{} suffered with another device, or did nothing: {account:?}",
                account.routing_id
            ));
        }
    }
    wrong
}

/// The device tells the same story.
fn device_saw_it(options: &GuestOptions, report: &Report) -> Vec<String> {
    let mut wrong = Vec::new();
    if report.accounts.len() != usize::from(options.devices) {
        wrong.push(format!(
            "{} devices gave an account, not {}",
            report.accounts.len(),
            options.devices
        ));
    }
    // The gate scenario's values must have ended in the driver; a dump without registers would prove nothing.
    let dump = report.dump.as_deref().unwrap_or_default();
    if !dump.contains("drbp_low") {
        wrong.push("the device's dump shows no registers".to_owned());
    }
    wrong.extend(
        dump.lines()
            .filter(|l| l.contains(GATED_VALUE))
            .map(|l| format!("a gated write reached the device: {l}")),
    );
    let measured = report
        .scenarios
        .iter()
        .any(|s| s.name == "bandwidth" && s.verdict == Verdict::Pass);
    for account in &report.accounts {
        let c = &account.counters;
        let mut must = |holds: bool, what: &str| {
            if !holds {
                wrong.push(format!("nd{}: {what}: {account:?}", account.routing_id));
            }
        };
        must(
            account.connected,
            "QEMU was gone before the account was taken",
        );
        must(
            c.errors == 0 && account.aborted.is_empty(),
            "the device complains",
        );
        must(c.resets > 0, "the driver's reset never reached the device");
        must(
            c.descriptors > 0 && c.doorbells > 0 && c.batches > 0,
            "the guest copied, but not through the device",
        );
        must(c.batches <= c.doorbells, "more batches than doorbells");
        must(
            !measured || c.bytes >= BANDWIDTH_BYTES,
            "fewer bytes than the guest copied",
        );
    }
    wrong
}

/// What is tested is what the sources say, not what was built last week.
fn build() -> Result<(), String> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let made = BUILT.get_or_init(|| {
        let script = artifacts::root().join("scripts/build");
        let output = Command::new(&script)
            .output()
            .map_err(|e| format!("{}: {e}", script.display()))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    });
    made.clone()
}

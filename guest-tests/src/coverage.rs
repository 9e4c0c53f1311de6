//! Did the guest do what it was asked? A run that quietly tests less than yesterday is worse than a red one.
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;

use crate::artifacts;
use crate::guest_line::Verdict;
use crate::outcome::{Failure, Finding, verdict};
use crate::report::Report;

/// Prefix of scenarios that fail on purpose, or only make sense behind one that failed; they are not part of `all`.
const ON_PURPOSE: &str = "self_";

/// The names behind a `--scenario` text, given all that `init` knows.
pub fn asked(text: &str, known: &[String]) -> Vec<String> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    let mut names: Vec<String> = Vec::new();
    for word in &words {
        match *word {
            "" | "none" => {}
            "all" => names.extend(known.iter().filter(|n| !n.starts_with(ON_PURPOSE)).cloned()),
            word if word.starts_with('-') => {}
            word => names.push(word.to_owned()),
        }
    }
    names.retain(|n| !words.iter().any(|w| w.strip_prefix('-') == Some(n)));
    names
}

/// What `init` knows; empty if it does not run.
pub fn known() -> Vec<String> {
    let list = artifacts::init()
        .ok()
        .and_then(|init| Command::new(init).arg("list").output().ok());
    let text = list
        .map(|l| String::from_utf8_lossy(&l.stdout).into_owned())
        .unwrap_or_default();
    text.lines()
        .filter_map(|l| l.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// Scenarios that have not a result on every device, whatever the result is.
pub fn shortfalls(asked: &[String], devices: u8, report: &Report) -> Vec<String> {
    let mut short = Vec::new();
    for name in asked {
        let seen: BTreeSet<&str> = report
            .scenarios
            .iter()
            .filter(|s| s.name == *name)
            .map(|s| s.device.as_str())
            .collect();
        if !seen.contains("all") && seen.len() != usize::from(devices) {
            short.push(format!(
                "scenario {name} has results for {} of {devices} devices",
                seen.len()
            ));
        }
    }
    short
}

/// A run that was asked to test something and in which nothing passed proves nothing, even if nothing failed.
pub fn nothing_passed(report: &Report) -> Option<Finding> {
    (verdict(&report.findings).is_none() && report.count(Verdict::Pass) == 0)
        .then(|| Finding::new(Failure::Scenario, "no scenario passed: nothing was tested"))
}

/// Scenarios that our own driver did not offer although its surroundings allow them: only a driver of others may lack
/// something.
pub fn lacking(
    devices: u8,
    hotplug: bool,
    server_args: &[OsString],
    report: &Report,
) -> Vec<String> {
    let may_lack = |name: &str| match name {
        "all_devices" => devices == 1,
        // Firmware words by sysfs are the real driver's.
        "sysfs" => true,
        "hotplug" | "hotplug_busy" => !hotplug,
        "interrupts" => !server_args.iter().any(|arg| arg == "--msix"),
        _ => false,
    };
    report
        .scenarios
        .iter()
        .filter(|s| s.verdict == Verdict::NotOffered && !may_lack(&s.name))
        .map(|s| format!("our own driver does not offer {}: {}", s.name, s.reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ScenarioResult;

    #[test]
    fn scenario_texts_are_read_as_init_reads_them() {
        let known = ["info", "copy", "self_fail"].map(str::to_owned);
        assert_eq!(asked("all", &known), ["info", "copy"]);
        assert_eq!(asked("all,-copy", &known), ["info"]);
        assert_eq!(asked("copy, self_fail", &known), ["copy", "self_fail"]);
        assert!(asked("none", &known).is_empty());
    }

    #[test]
    fn a_scenario_without_a_result_is_missed() {
        let result = |name: &str, device: &str| ScenarioResult {
            name: name.into(),
            device: device.into(),
            verdict: Verdict::Pass,
            reason: String::new(),
            millis: 1.0,
        };
        let report = Report {
            scenarios: vec![
                result("info", "0"),
                result("info", "1"),
                result("copy", "0"),
                result("sum", "all"),
            ],
            ..Report::default()
        };
        let names = ["info", "copy", "sum", "gone"].map(str::to_owned);
        assert_eq!(
            shortfalls(&names, 2, &report),
            [
                "scenario copy has results for 1 of 2 devices",
                "scenario gone has results for 0 of 2 devices"
            ]
        );
    }

    #[test]
    fn our_own_driver_may_lack_only_what_the_device_was_not_given() {
        let report = Report {
            scenarios: ["info", "all_devices", "interrupts", "hotplug"]
                .map(|name| ScenarioResult {
                    name: name.into(),
                    device: "0".into(),
                    verdict: Verdict::NotOffered,
                    reason: "no".into(),
                    millis: 1.0,
                })
                .into(),
            ..Report::default()
        };
        let missed = |devices, hotplug, args: &[OsString]| {
            let lines = lacking(devices, hotplug, args, &report);
            lines
                .iter()
                .map(|line| line.rsplit_once("offer ").unwrap().1.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(missed(1, false, &[]), ["info: no"]);
        assert_eq!(missed(2, false, &[]), ["info: no", "all_devices: no"]);
        assert_eq!(missed(1, true, &[]), ["info: no", "hotplug: no"]);
        assert_eq!(
            missed(1, false, &["--msix".into()]),
            ["info: no", "interrupts: no"]
        );
    }
}

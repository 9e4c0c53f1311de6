//! What came out of a run.
use std::path::PathBuf;
use std::time::Duration;

use crate::account::Account;
use crate::guest_line::{GuestLine, Verdict};
use crate::outcome::{Failure, Finding};

/// One scenario on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioResult {
    /// Name.
    pub name: String,
    /// Device number or `all`.
    pub device: String,
    /// Result.
    pub verdict: Verdict,
    /// Why, if not passed.
    pub reason: String,
    /// Milliseconds.
    pub millis: f64,
}

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Device number or `all`.
    pub device: String,
    /// Name.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Unit.
    pub unit: String,
}

/// What came out of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// What went wrong.
    pub findings: Vec<Finding>,
    /// Results in the order of their end.
    pub scenarios: Vec<ScenarioResult>,
    /// Measurements.
    pub metrics: Vec<Metric>,
    /// Seconds from the guest kernel's start to READY.
    pub ready: Option<f64>,
    /// Version that the loaded driver states.
    pub driver_version: Option<String>,
    /// The devices' accounts at the end of the scenarios.
    pub accounts: Vec<Account>,
    /// Warnings passed over, with the reason.
    pub harmless: Vec<String>,
    /// What the device's sanitizer suspects.
    pub suspicions: Vec<String>,
    /// `ctl dump` at the end of the scenarios.
    pub dump: Option<String>,
    /// Last lines of guest, QEMU and server.
    pub tails: Vec<(String, Vec<String>)>,
    /// The logs.
    pub dir: PathBuf,
    /// The whole run.
    pub elapsed: Duration,
}

impl Report {
    /// Takes in a line of `init`.
    pub fn take(&mut self, line: GuestLine) {
        let fine = self.findings.is_empty();
        let mut scenario = |text: String| self.findings.push(Finding::new(Failure::Scenario, text));
        match line {
            GuestLine::Module {
                ok: true, version, ..
            } => {
                self.driver_version = version.or(self.driver_version.take());
            }
            GuestLine::Module {
                ok: false, text, ..
            } => scenario(format!("the driver did not load: {text}")),
            GuestLine::Ready { uptime, .. } => self.ready = Some(uptime),
            GuestLine::NotReady(why) => {
                scenario(format!("the devices did not become ready: {why}"));
            }
            GuestLine::Scenario {
                name,
                device,
                verdict,
                reason,
                millis,
            } => {
                match verdict {
                    Verdict::Pass | Verdict::NotOffered | Verdict::KnownDefect => {}
                    Verdict::Fail => {
                        scenario(format!("scenario {name} on device {device}: {reason}"));
                    }
                    Verdict::Hang => {
                        let text = format!("scenario {name} on device {device} hangs: {reason}");
                        self.findings.push(Finding::new(Failure::Hang, text));
                    }
                }
                self.scenarios.push(ScenarioResult {
                    name,
                    device,
                    verdict,
                    reason,
                    millis,
                });
            }
            GuestLine::Metric {
                device,
                name,
                value,
                unit,
            } => {
                self.metrics.push(Metric {
                    device,
                    name,
                    value,
                    unit,
                });
            }
            GuestLine::Summary { pass: false, text } if fine => {
                scenario(format!("the guest's summary: {text}"));
            }
            GuestLine::Unknown(text) => scenario(format!(
                "a line of init that the launcher does not know: {text}"
            )),
            GuestLine::Boot(_)
            | GuestLine::Note(_)
            | GuestLine::Notify { .. }
            | GuestLine::Slot { .. }
            | GuestLine::Device(_)
            | GuestLine::Summary { .. }
            | GuestLine::Poweroff => {}
        }
    }

    /// How many scenario results are of a kind.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.scenarios
            .iter()
            .filter(|s| s.verdict == verdict)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_line::parse;
    use crate::outcome::verdict;

    fn after(lines: &str) -> Report {
        let mut report = Report::default();
        lines
            .lines()
            .filter_map(|l| parse(&format!("@neuron {l}")))
            .for_each(|l| report.take(l));
        report
    }

    #[test]
    fn passes_and_absent_requests_are_no_findings() {
        let report = after(
            "module m: LOADED version 2 in 1 ms\nscenario a device 0: PASS in 1 ms\nscenario b device 0: NOT OFFERED (x) in 1 ms\nsummary PASS pass 1",
        );
        assert_eq!(report.findings, []);
        assert_eq!(
            (
                report.count(Verdict::Pass),
                report.count(Verdict::NotOffered)
            ),
            (1, 1)
        );
        assert_eq!(report.driver_version.as_deref(), Some("2"));
    }

    #[test]
    fn every_way_to_fail_in_the_guest_is_found() {
        let of = |line| verdict(&after(line).findings);
        assert_eq!(
            of("scenario a device 0: FAIL (x) in 1 ms"),
            Some(Failure::Scenario)
        );
        assert_eq!(
            of("scenario a device 0: HANG (x) in 1 ms"),
            Some(Failure::Hang)
        );
        assert_eq!(of("module m: FAIL (ENOEXEC)"), Some(Failure::Scenario));
        assert_eq!(of("NOT READY (no node)"), Some(Failure::Scenario));
        assert_eq!(of("summary FAIL pass 0"), Some(Failure::Scenario));
        assert_eq!(of("garbage"), Some(Failure::Scenario));
    }
}

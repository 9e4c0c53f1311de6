//! Reads the guest's console and says what in it means that something is wrong.
use crate::outcome::{Failure, Finding};

/// Substrings of kernel lines that no run may print, and what they mean. First match wins.
const REJECTED: &[(&str, Failure)] = &[
    ("Kernel panic - not syncing", Failure::Oops),
    ("Oops: ", Failure::Oops),
    ("BUG: unable to handle", Failure::Oops),
    ("BUG: kernel NULL pointer", Failure::Oops),
    ("kernel BUG at", Failure::Oops),
    ("general protection fault", Failure::Oops),
    ("stack segment:", Failure::Oops),
    ("invalid opcode:", Failure::Oops),
    ("KASAN:", Failure::Oops),
    ("watchdog: BUG: soft lockup", Failure::Hang),
    ("blocked for more than", Failure::Hang),
    ("detected stalls on CPUs", Failure::Hang),
    ("self-detected stall on CPU", Failure::Hang),
    ("hard LOCKUP", Failure::Hang),
    ("BUG: ", Failure::Warning),
    ("WARNING: ", Failure::Warning),
    ("UBSAN:", Failure::Warning),
    ("INFO: possible circular locking", Failure::Warning),
    ("refcount_t: ", Failure::Warning),
    // The driver's own words for a marker that did not arrive in its budget (contract §6).
    ("DMA completion timeout", Failure::Scenario),
    ("Out of memory: Killed process", Failure::Scenario),
    // The guest firmware or kernel found no room for a BAR (contract §13.9): V3 works without BAR4, so that a passing
    // run alone proves nothing.
    ("can't assign", Failure::Setup),
    (": failed to assign", Failure::Setup),
    ("no compatible bridge window", Failure::Setup),
    ("disagrees about version of symbol", Failure::Setup),
    ("Invalid module format", Failure::Setup),
    ("Unknown symbol", Failure::Setup),
];

/// Warnings with a known cause outside driver and device, by what their first line must contain.
///
/// 6.12 with the IPE security module warns whenever a driver reads a file by `kernel_read_file_from_path` with an id
/// that IPE does not know; the real driver reads the DMI product name that way (contract §13.5).
const HARMLESS: &[(&[&str], &str)] = &[(
    &["security/ipe/hooks.c", "ipe_kernel_read_file"],
    "IPE does not know the file id",
)];

const CUT: &str = "------------[ cut here ]------------";
const END_TRACE: &str = "---[ end trace ";
/// A trace that never ends must not swallow the rest of the log.
const MAX_TRACE_LINES: usize = 150;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Normal,
    /// Inside a report, up to its end mark.
    Report {
        of: Of,
        lines: usize,
    },
}

/// What a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Its first line has not come yet.
    Unknown,
    /// Its cause is known not to matter.
    Harmless,
    /// Told already.
    Failure(Failure),
}

/// Judges console lines in order.
#[derive(Debug)]
pub struct Judge {
    state: State,
    findings: Vec<Finding>,
    harmless: Vec<String>,
    rejected: Vec<String>,
    required: Vec<(String, bool)>,
}

/// Findings kept; a guest that oopses in a loop adds nothing by the hundredth.
const MAX_FINDINGS: usize = 50;

impl Judge {
    /// A judge with the caller's own patterns (plain substrings) beside the standing ones.
    pub fn new(required: &[String], rejected: &[String]) -> Self {
        Self {
            state: State::Normal,
            findings: Vec::new(),
            harmless: Vec::new(),
            rejected: rejected.to_vec(),
            required: required.iter().map(|r| (r.clone(), false)).collect(),
        }
    }

    /// Looks for the required patterns alone: in lines of `init`, of which the kernel says nothing.
    pub fn look(&mut self, line: &str) {
        for (pattern, seen) in &mut self.required {
            *seen |= line.contains(pattern.as_str());
        }
    }

    /// Looks at one line. Returns what it newly means, if it means trouble.
    pub fn line(&mut self, line: &str) -> Option<Failure> {
        self.look(line);
        if let Some(pattern) = self.rejected.iter().find(|r| line.contains(r.as_str())) {
            let text = format!("rejected pattern {pattern:?}: {line}");
            return Some(self.found(Failure::Scenario, text));
        }
        if line.contains(CUT) {
            self.state = State::Report {
                of: Of::Unknown,
                lines: 0,
            };
            return None;
        }
        let of = self.advance(line);
        let harmless = HARMLESS
            .iter()
            .find(|(all, _)| all.iter().all(|part| line.contains(part)));
        if let (Some((_, why)), true) = (harmless, line.contains("WARNING: ")) {
            self.harmless.push(format!("{why}: {line}"));
            self.state = State::Report {
                of: Of::Harmless,
                lines: 0,
            };
            return None;
        }
        let hit = REJECTED
            .iter()
            .find(|(pattern, _)| line.contains(pattern))
            .map(|(_, failure)| *failure);
        match (hit, of) {
            // Register dumps, code bytes and the call trace belong to a report's first line; an oops inside does not.
            (Some(failure), Some(Of::Harmless)) if failure != Failure::Oops => None,
            (Some(failure), Some(Of::Failure(told))) if failure == told => None,
            (Some(failure), _) => {
                if matches!(failure, Failure::Oops | Failure::Warning) {
                    self.state = State::Report {
                        of: Of::Failure(failure),
                        lines: 0,
                    };
                }
                Some(self.found(failure, line))
            }
            // A trace without a report: dump_stack(), or a report whose first line has a form not listed above.
            (None, None) if line.contains("Call Trace:") => {
                Some(self.found(Failure::Warning, line))
            }
            (None, Some(Of::Unknown)) if line.contains("Call Trace:") => {
                Some(self.found(Failure::Warning, line))
            }
            (None, _) => None,
        }
    }

    /// The report that this line is part of.
    fn advance(&mut self, line: &str) -> Option<Of> {
        let State::Report { of, lines } = self.state else {
            return None;
        };
        let over = line.contains(END_TRACE) || lines >= MAX_TRACE_LINES;
        self.state = if over {
            State::Normal
        } else {
            State::Report {
                of,
                lines: lines + 1,
            }
        };
        Some(of)
    }

    fn found(&mut self, failure: Failure, text: impl Into<String>) -> Failure {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding::new(failure, text));
        }
        failure
    }

    /// A report has begun and its end has not been seen yet: worth waiting for.
    pub fn in_report(&self) -> bool {
        self.state != State::Normal
    }

    /// Warnings that were seen and passed over, with the reason.
    pub fn harmless(&self) -> &[String] {
        &self.harmless
    }

    /// Everything found, with the required patterns that never came.
    pub fn finish(mut self) -> Vec<Finding> {
        for (pattern, seen) in std::mem::take(&mut self.required) {
            if !seen {
                self.findings.push(Finding::new(
                    Failure::Scenario,
                    format!("required pattern {pattern:?} is not in the guest's log"),
                ));
            }
        }
        self.findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(log: &str) -> Vec<Failure> {
        let mut judge = Judge::new(&[], &[]);
        for line in log.lines() {
            judge.line(line);
        }
        judge.finish().into_iter().map(|f| f.failure).collect()
    }

    const IPE: &str = "[    2.1] ------------[ cut here ]------------
[    2.1] WARNING: CPU: 0 PID: 1 at security/ipe/hooks.c:137 ipe_kernel_read_file+0x2f/0x50
[    2.1] Modules linked in: neuron(OE+)
[    2.1] CPU: 0 UID: 0 PID: 1 Comm: init
[    2.1] Call Trace:
[    2.1]  <TASK>
[    2.1]  ? __warn+0x89/0x130
[    2.1] ---[ end trace 0000000000000000 ]---
";

    #[test]
    fn quiet_log_is_clean() {
        assert_eq!(
            judge("Linux version 6.1\nneuron: probe 0\nreboot: Power down"),
            []
        );
    }

    #[test]
    fn ipe_warning_is_told_apart_by_its_cause() {
        assert_eq!(judge(IPE), []);
        assert_eq!(
            judge(&IPE.replace("ipe_kernel_read_file", "some_other_hook")),
            [Failure::Warning]
        );
        // What follows it is judged again.
        assert_eq!(
            judge(&format!(
                "{IPE}BUG: kernel NULL pointer dereference, address: 8"
            )),
            [Failure::Oops]
        );
        assert_eq!(judge(&format!("{IPE}Call Trace:")), [Failure::Warning]);
    }

    #[test]
    fn oops_inside_a_harmless_report_still_counts() {
        let cut = IPE.split("Call Trace").next().unwrap();
        assert_eq!(
            judge(&format!("{cut}BUG: unable to handle page fault")),
            [Failure::Oops]
        );
    }

    #[test]
    fn reports_count_once_and_by_kind() {
        let oops = "BUG: kernel NULL pointer dereference, address: 0\nOops: 0002 [#1] SMP\nRIP: x\nCall Trace:\n y\n---[ end trace 0 ]---";
        assert_eq!(judge(oops), [Failure::Oops]);
        assert_eq!(
            judge(
                "WARNING: CPU: 1 PID: 9 at kernel/x.c:1 f+0x1\nCall Trace:\n---[ end trace 0 ]---"
            ),
            [Failure::Warning]
        );
        assert_eq!(
            judge("watchdog: BUG: soft lockup - CPU#0 stuck for 26s!"),
            [Failure::Hang]
        );
        assert_eq!(judge("Call Trace:"), [Failure::Warning]);
        assert_eq!(
            judge("neuron: DMA completion timeout for eng 1"),
            [Failure::Scenario]
        );
        assert_eq!(
            judge("pci 0000:00:03.0: BAR 4: can't assign; no space"),
            [Failure::Setup]
        );
    }

    #[test]
    fn callers_patterns() {
        let mut judge = Judge::new(&["READY".into(), "never".into()], &["forbidden".into()]);
        assert_eq!(judge.line("it is READY"), None);
        assert_eq!(judge.line("a forbidden word"), Some(Failure::Scenario));
        let findings = judge.finish();
        assert_eq!(findings.len(), 2);
        assert!(findings[1].text.contains("never"));
    }
}

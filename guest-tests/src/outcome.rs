//! How a run ended, and the exit code that says so.
use std::fmt;
use std::process::ExitCode;

/// The reasons a run can fail for, most telling first: when several apply the first names the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Stopped by a signal.
    Interrupted,
    /// Bad input, or something is missing on the host: no verdict about the driver.
    Setup,
    /// The guest kernel oopsed, paniced or hit a BUG.
    Oops,
    /// The guest kernel printed a WARNING or a stray call trace.
    Warning,
    /// The time limit passed, the guest fell silent, or the kernel reported a stall.
    Hang,
    /// A scenario failed or a required line is missing.
    Scenario,
    /// The guest is content, but the device's own account is not.
    Device,
}

impl Failure {
    /// Exit code; documented by [`EXIT_CODES`].
    pub fn code(self) -> u8 {
        match self {
            Self::Scenario => 1,
            Self::Setup => 2,
            Self::Oops => 3,
            Self::Warning => 4,
            Self::Hang => 5,
            Self::Device => 6,
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Setup => "setup error",
            Self::Oops => "kernel oops",
            Self::Warning => "kernel warning",
            Self::Hang => "hang",
            Self::Scenario => "failed scenario",
            Self::Device => "device complaint",
            Self::Interrupted => "interrupted",
        })
    }
}

/// For `--help`.
pub const EXIT_CODES: &str = "\
Exit codes (when several apply, the first of this order is given: 130 2 3 4 5 1 6; all are printed):
    0  every scenario passed and the device has no complaint
    1  a scenario failed, or a required line is missing from the guest's log
    2  setup error: bad option, missing file, driver built for another kernel, QEMU too old, server did not start,
       BARs without room: nothing is said about the driver
    3  kernel oops, panic or BUG in the guest
    4  kernel WARNING or call trace in the guest
    5  hang: time limit, silent guest, or a stall that the kernel reported
    6  device complaint: engines that aborted (bad descriptors, unmapped addresses), or errors that its sanitizer found
  130  stopped by a signal";

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub failure: Failure,
    /// The evidence, one line.
    pub text: String,
}

impl Finding {
    /// A finding.
    pub fn new(failure: Failure, text: impl Into<String>) -> Self {
        Self {
            failure,
            text: text.into(),
        }
    }
}

/// The failure that names the run; `None`: it passed.
pub fn verdict(findings: &[Finding]) -> Option<Failure> {
    findings.iter().map(|f| f.failure).min()
}

/// The exit code for a verdict.
pub fn exit_code(verdict: Option<Failure>) -> ExitCode {
    ExitCode::from(verdict.map_or(0, Failure::code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_documented() {
        let all = [
            Failure::Setup,
            Failure::Oops,
            Failure::Warning,
            Failure::Hang,
            Failure::Scenario,
            Failure::Device,
            Failure::Interrupted,
        ];
        let mut codes: Vec<_> = all.iter().map(|f| f.code()).collect();
        for code in &codes {
            assert!(
                EXIT_CODES
                    .lines()
                    .any(|l| l.trim_start().starts_with(&format!("{code}  "))),
                "{code}"
            );
        }
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all.len());
        assert!(!codes.contains(&0));
    }

    #[test]
    fn the_most_telling_failure_names_the_run() {
        let found = [
            Finding::new(Failure::Device, ""),
            Finding::new(Failure::Oops, ""),
            Finding::new(Failure::Hang, ""),
        ];
        assert_eq!(verdict(&found), Some(Failure::Oops));
        assert_eq!(verdict(&[]), None);
    }
}

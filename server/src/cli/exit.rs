//! Exit codes of every command. Scripts rely on them; `--help` prints them.
use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done; for `serve`: stopped by a signal with every device healthy.
    Ok,
    /// Could not start, or a check failed.
    Failed,
    /// The command line is wrong. clap uses the same number.
    Usage,
    /// `serve`: a device thread died. The others went on until the process was stopped.
    DeviceDied,
    /// `ctl`, `probe`: nobody answers on the socket.
    Unreachable,
    /// `serve --sanitize=fatal`: a device was ended because its driver broke a rule.
    RuleBroken,
    /// `serve`: a batch took more of the driver's budget than `--budget-limit` allows.
    OverBudget,
}

impl Exit {
    /// The number the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::DeviceDied => 3,
            Self::Unreachable => 4,
            Self::RuleBroken => 5,
            Self::OverBudget => 6,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Printed at the end of `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done; serve: stopped by SIGINT or SIGTERM
  1  could not start, a check failed, or an output could not be written (the message names the cause)
  2  the command line is wrong, or a file that it names (--faults)
  3  serve: a device died; the log has its last state
  4  ctl, probe: nobody answers on the socket
  5  serve --sanitize=fatal: a device was ended because its driver broke a rule (the log names it)
  6  serve: stopped as with 0, but a batch was slower than --budget-limit allows";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_code() {
        for exit in [
            Exit::Ok,
            Exit::Failed,
            Exit::Usage,
            Exit::DeviceDied,
            Exit::Unreachable,
            Exit::RuleBroken,
            Exit::OverBudget,
        ] {
            assert!(HELP.contains(&format!("\n  {}  ", exit.code())), "{exit:?}");
        }
    }
}

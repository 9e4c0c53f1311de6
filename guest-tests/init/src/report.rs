//! The lines a launcher reads. Every one starts with `@neuron `, is complete and stands alone.
//!
//! They go through `/dev/kmsg`, so that the kernel prints each as one record, in order with its own
//! messages and never in the middle of one; the console adds the usual `[   12.345678] ` in front.
//! Look for `@neuron ` anywhere in a line. If `/dev/kmsg` cannot be written the line goes to the
//! console itself.
//!
//! ```text
//! @neuron boot kernel K cpus N memory M MiB uptime S s
//! @neuron module FILE: LOADED version V in X ms            | @neuron module FILE: FAIL (reason)
//! @neuron device N: arch A revision R cores C driver V     one per device
//! @neuron READY devices N uptime S s                       | @neuron NOT READY (reason)
//! @neuron scenario NAME device N: PASS in X ms
//! @neuron scenario NAME device N: FAIL (reason) in X ms
//! @neuron scenario NAME device N: HANG (reason) in X ms
//! @neuron scenario NAME device N: NOT OFFERED (reason) in X ms
//! @neuron metric device N NAME VALUE UNIT                  NAME without spaces, VALUE a decimal number
//! @neuron unplug slot N                                    | @neuron plug slot N: asks the launcher to do it
//! @neuron note device N TEXT                               for people
//! @neuron ask notify N BLOCK INDEX QUEUE HEX               for the launcher: `ctl notify` on device N
//! @neuron summary PASS pass N fail N hang N not-offered N uptime S s     | @neuron summary FAIL ...
//! @neuron poweroff
//! ```
//! `device` is `all` where a scenario drives all of them. The summary is FAIL as soon as one scenario
//! failed or hung, the module did not load, the devices were not ready, or nothing ran that was asked
//! for by name.
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Mutex;

/// First word of every line.
pub const PREFIX: &str = "@neuron ";

/// One kernel record holds 1024 bytes with its prefix; longer text is cut by us, visibly.
const LONGEST_LINE: usize = 900;

/// Severity 2 (critical): shown even with `quiet` or `loglevel=3`.
const RECORD_LEVEL: &str = "<2>";

/// Whether and how fast user space may write kernel records.
const RATE_LIMIT: &str = "/proc/sys/kernel/printk_devkmsg";

static SINK: Mutex<Option<Sink>> = Mutex::new(None);

enum Sink {
    Kmsg(File),
    Stdout,
}

/// Sends lines to the kernel log from now on (PID 1).
pub fn to_kernel_log() {
    // The default rate limit of user records would drop lines (10 in 5 s). The newline is part of the
    // value: the kernel refuses "on" without it.
    let _ = std::fs::write(RATE_LIMIT, "on\n");
    let unlimited = std::fs::read_to_string(RATE_LIMIT).is_ok_and(|state| state.trim() == "on");
    if !unlimited {
        // `printk.devkmsg=` on the kernel command line locks it: a line that may be dropped is worth nothing.
        return;
    }
    if let Ok(file) = OpenOptions::new().write(true).open("/dev/kmsg") {
        *lock() = Some(Sink::Kmsg(file));
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Sink>> {
    // A thread that panicked while it held the sink left it usable: a line is one write.
    SINK.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Prints one line; `text` comes without the prefix. Newlines inside become ` | `.
pub fn line(text: impl fmt::Display) {
    let line = one_line(&format!("{PREFIX}{text}"));
    let mut sink = lock();
    let written = match sink.get_or_insert(Sink::Stdout) {
        Sink::Kmsg(file) => file.write_all(format!("{RECORD_LEVEL}{line}\n").as_bytes()),
        Sink::Stdout => Err(std::io::ErrorKind::Unsupported.into()),
    };
    if written.is_err() {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(format!("{line}\n").as_bytes());
        let _ = out.flush();
    }
}

fn one_line(text: &str) -> String {
    let mut line = text
        .trim_end()
        .split('\n')
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join(" | ");
    if line.len() > LONGEST_LINE {
        let mut cut = LONGEST_LINE;
        while !line.is_char_boundary(cut) {
            cut -= 1;
        }
        line.truncate(cut);
        line.push_str(" [cut]");
    }
    line
}

/// Prints a `note` line.
pub fn note(device: impl fmt::Display, text: impl fmt::Display) {
    line(format_args!("note device {device} {text}"));
}

/// Prints a `metric` line.
pub fn metric(device: impl fmt::Display, name: &str, value: f64, unit: &str) {
    line(format_args!(
        "metric device {device} {name} {value:.2} {unit}"
    ));
}

/// How one scenario ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything that was checked held.
    Pass,
    /// Something that was checked did not hold, or the driver refused what it must do.
    Fail(String),
    /// Not finished within its limit.
    Hang(String),
    /// The driver or the guest lacks what the scenario needs.
    NotOffered(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("PASS"),
            Self::Fail(reason) => write!(f, "FAIL ({reason})"),
            Self::Hang(reason) => write!(f, "HANG ({reason})"),
            Self::NotOffered(reason) => write!(f, "NOT OFFERED ({reason})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(one_line("a\nb \n"), "a | b");
    }

    #[test]
    fn a_long_line_is_cut_visibly() {
        let line = one_line(&"é".repeat(2000));
        assert!(line.len() < 1000 && line.ends_with("[cut]"));
    }
}

//! Work that may crash or hang, each piece in its own process with a time limit.
//!
//! The driver ties memory and queues to the process that opened it, and a call that never returns
//! holds a process, not a thread: so a scenario is a child, `init job NAME ...`, and PID 1 only waits.
//! Between them is one pipe of lines: whatever starts with `@neuron ` is passed on, `#` lines are ours.
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::report::{self, Verdict};

/// First argument of a child.
pub const ARGUMENT: &str = "job";
const VERDICT: &str = "#verdict ";
const STAGE: &str = "#stage ";
/// How long a killed child may take to disappear before we call it stuck in the kernel.
const KILL_GRACE: Duration = Duration::from_secs(3);

/// What a job that did not fail has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All checks held.
    Pass,
    /// Something is missing; why.
    NotOffered(String),
}

/// How a job ended, and whether it left a process stuck in the driver.
pub struct Ended {
    /// The result.
    pub verdict: Verdict,
    /// The child could not be killed: what it was using stays in use.
    pub stuck: bool,
    /// Start to end.
    pub took: Duration,
}

/// Runs `init job ARGUMENTS` and waits for it, at most `limit`.
pub fn run(arguments: &[String], limit: Duration) -> Ended {
    let begin = Instant::now();
    let (verdict, stuck) = match spawn(arguments) {
        Ok(child) => supervise(child, begin + limit, limit),
        Err(error) => (
            Verdict::Fail(format!("cannot start a process: {error}")),
            false,
        ),
    };
    Ended {
        verdict,
        stuck,
        took: begin.elapsed(),
    }
}

fn spawn(arguments: &[String]) -> std::io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
}

fn supervise(mut child: Child, deadline: Instant, limit: Duration) -> (Verdict, bool) {
    let lines = lines_of(&mut child);
    let mut verdict = None;
    let mut stage = String::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(text) = line.strip_prefix(VERDICT) {
                    verdict = Some(decode(text));
                } else if let Some(text) = line.strip_prefix(STAGE) {
                    text.clone_into(&mut stage);
                } else if let Some(text) = line.strip_prefix(report::PREFIX) {
                    report::line(text);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let gone = kill(&mut child);
                let at = if stage.is_empty() {
                    String::new()
                } else {
                    format!(", last: {stage}")
                };
                let left = if gone {
                    ""
                } else {
                    "; its process is stuck in the kernel"
                };
                return (
                    Verdict::Hang(format!(
                        "not finished after {} s{at}{left}",
                        limit.as_secs()
                    )),
                    !gone,
                );
            }
        }
    }
    // The pipe is closed: the child is exiting, which includes the driver's close.
    let Some(status) = wait_until(&mut child, deadline.max(Instant::now() + KILL_GRACE)) else {
        let gone = kill(&mut child);
        return (
            Verdict::Hang("finished, but closing the device does not return".into()),
            !gone,
        );
    };
    (
        verdict.unwrap_or_else(|| Verdict::Fail(died(status, &stage))),
        false,
    )
}

fn died(status: ExitStatus, stage: &str) -> String {
    let how = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code} and no verdict"),
        (None, None) => "ended without a verdict".into(),
    };
    if stage.is_empty() {
        how
    } else {
        format!("{how}, last: {stage}")
    }
}

fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, receive) = sync_channel(64);
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
    }
    receive
}

fn kill(child: &mut Child) -> bool {
    let _ = child.kill();
    wait_until(child, Instant::now() + KILL_GRACE).is_some()
}

fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let mut pause = Duration::from_micros(200);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            _ => return None,
        }
    }
}

/// In the child: says what comes next, so that a hang or a crash can be placed.
pub fn stage(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{STAGE}{}", text.to_string().replace('\n', " "));
    let _ = out.flush();
}

/// In the child: runs `body` and tells the parent how it ended. Returns the exit code.
pub fn child(body: impl FnOnce() -> Result<Outcome>) -> i32 {
    static PANIC: Mutex<String> = Mutex::new(String::new());
    let remembered = || {
        PANIC
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    std::panic::set_hook(Box::new(move |info| {
        let mut panic = remembered();
        // The first one is the cause; later ones are threads that met its consequences.
        if panic.is_empty() {
            *panic = info.to_string();
        }
    }));
    let verdict = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(Outcome::Pass)) => Verdict::Pass,
        Ok(Ok(Outcome::NotOffered(reason))) => Verdict::NotOffered(reason),
        Ok(Err(error)) => Verdict::Fail(format!("{error:#}")),
        Err(_) => Verdict::Fail(remembered().clone()),
    };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{VERDICT}{}", encode(&verdict));
    let _ = out.flush();
    i32::from(matches!(verdict, Verdict::Fail(_)))
}

fn encode(verdict: &Verdict) -> String {
    let (tag, reason) = match verdict {
        Verdict::Pass => ("P", ""),
        Verdict::Fail(reason) => ("F", reason.as_str()),
        Verdict::Hang(reason) => ("H", reason.as_str()),
        Verdict::NotOffered(reason) => ("N", reason.as_str()),
    };
    format!("{tag} {}", reason.replace('\n', " | "))
}

fn decode(text: &str) -> Verdict {
    let (tag, reason) = text.split_once(' ').unwrap_or((text, ""));
    match tag {
        "P" => Verdict::Pass,
        "H" => Verdict::Hang(reason.into()),
        "N" => Verdict::NotOffered(reason.into()),
        _ => Verdict::Fail(reason.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_the_pipe() {
        for verdict in [
            Verdict::Pass,
            Verdict::Fail("a b".into()),
            Verdict::Hang("x".into()),
            Verdict::NotOffered("ioctl 124".into()),
        ] {
            assert_eq!(decode(&encode(&verdict)), verdict);
        }
    }

    #[test]
    fn a_child_that_says_nothing_fails() {
        let mut silent = Command::new("/bin/false");
        let child = silent.stdout(Stdio::piped()).spawn().unwrap();
        let limit = Duration::from_secs(5);
        let (verdict, stuck) = supervise(child, Instant::now() + limit, limit);
        assert!(matches!(verdict, Verdict::Fail(_)) && !stuck, "{verdict:?}");
    }

    #[test]
    fn a_child_that_hangs_is_killed_and_named() {
        let mut sleeper = Command::new("/bin/sh");
        let child = sleeper
            .args(["-c", "echo '#stage half way'; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let limit = Duration::from_millis(300);
        let (verdict, stuck) = supervise(child, Instant::now() + limit, limit);
        assert!(
            matches!(&verdict, Verdict::Hang(r) if r.contains("half way")) && !stuck,
            "{verdict:?}"
        );
    }
}

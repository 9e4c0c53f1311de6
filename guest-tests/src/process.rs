//! Children that cannot outlive the launcher.
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

/// A running child. Dropping it kills it and reaps it, whatever the way out; should the launcher itself be killed, the
/// kernel kills the child.
#[derive(Debug)]
pub struct Watched {
    name: String,
    child: Child,
    group: bool,
    status: Option<ExitStatus>,
}

/// Whether a child shares the launcher's process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Its own: a Ctrl-C reaches the launcher only, which then stops its children in order.
    Own,
    /// The launcher's: for the child that reads the terminal.
    Shared,
}

impl Watched {
    /// Starts `command`. The calling thread must live as long as the child is wanted: the kernel ties the death signal
    /// to the thread and not to the process.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(name: impl Into<String>, command: &mut Command, group: Group) -> Result<Self> {
        let name = name.into();
        if group == Group::Own {
            command.process_group(0);
        }
        let parent = rustix::process::getpid();
        // SAFETY: the closure runs between fork and exec and makes two system calls; it allocates nothing and takes no
        // lock.
        unsafe { command.pre_exec(move || die_with(parent)) };
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        Ok(Self {
            name,
            child,
            group: group == Group::Own,
            status: None,
        })
    }

    /// What to call it in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The child, to take its pipes from.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Asks it to end, waits, and kills it after `grace`. `None`: it had to be killed.
    pub fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + grace;
        self.signal(Signal::TERM);
        while Instant::now() < end {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        None
    }

    fn kill(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::KILL);
            self.status = self.child.wait().ok();
        }
    }

    fn signal(&mut self, signal: Signal) {
        if self.ended().is_some() {
            return;
        }
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        let sent = if self.group {
            rustix::process::kill_process_group(pid, signal)
        } else {
            rustix::process::kill_process(pid, signal)
        };
        // Only ESRCH is possible: it ended in between, and `ended` will tell.
        let _ = sent;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.kill();
    }
}

fn die_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the request was made.
    if rustix::process::getppid() == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Watched {
        Watched::spawn("sleeper", Command::new("sleep").arg("60"), Group::Own).unwrap()
    }

    fn alive(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn dropped_child_is_killed_and_reaped() {
        let child = sleeper();
        let pid = child.child.id();
        assert!(alive(pid));
        drop(child);
        assert!(!alive(pid));
    }

    #[test]
    fn stopped_child_gets_the_chance_to_end() {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(
            sleeper().stop(Duration::from_secs(5)).unwrap().signal(),
            Some(15)
        );
        let mut deaf = Command::new("sh");
        deaf.args(["-c", "trap '' TERM; echo; while :; do sleep 1; done"])
            .stdout(std::process::Stdio::piped());
        let mut deaf = Watched::spawn("deaf", &mut deaf, Group::Own).unwrap();
        let mut line = [0];
        std::io::Read::read_exact(&mut deaf.child_mut().stdout.take().unwrap(), &mut line).unwrap();
        let pid = deaf.child.id();
        assert_eq!(deaf.stop(Duration::from_millis(100)), None);
        assert!(!alive(pid));
    }
}

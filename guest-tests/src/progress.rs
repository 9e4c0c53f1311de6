//! Long work says what it is doing.
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often a log without a terminal hears that a step still runs.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Elapsed time and current step, on standard error: rewritten in place on a terminal, now and then a line elsewhere.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    step: String,
    terminal: bool,
    shown: Instant,
    quiet: bool,
}

impl Progress {
    /// Starts the clock. `quiet`: keeps time but prints nothing.
    pub fn new(quiet: bool) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            step: String::new(),
            terminal: std::io::stderr().is_terminal(),
            shown: now,
            quiet,
        }
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Begins a step.
    pub fn step(&mut self, step: impl Into<String>) {
        self.step = step.into();
        self.show();
    }

    /// Names the step without a line of its own in a log.
    pub fn rename(&mut self, step: impl Into<String>) {
        let step = step.into();
        if step != self.step {
            self.step = step;
            if self.terminal {
                self.show();
            }
        }
    }

    /// To be called often; prints when there is something new to say.
    pub fn tick(&mut self) {
        let pause = if self.terminal {
            Duration::from_secs(1)
        } else {
            HEARTBEAT
        };
        if self.shown.elapsed() >= pause {
            self.show();
        }
    }

    /// Takes the rewritten line away so that other output starts in an empty one.
    pub fn clear(&mut self) {
        if self.terminal && !self.quiet {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn show(&mut self) {
        self.shown = Instant::now();
        if self.quiet || self.step.is_empty() {
            return;
        }
        let line = format!("[{:5.1}s] {}", self.elapsed().as_secs_f64(), self.step);
        let mut err = std::io::stderr().lock();
        // Nobody to tell: going on is right.
        let _ = if self.terminal {
            write!(err, "\r\x1b[K{line}")
        } else {
            writeln!(err, "{line}")
        };
        let _ = err.flush();
    }
}

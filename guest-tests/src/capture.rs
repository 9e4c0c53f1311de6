//! Output of the children, line by line, to a log file and to the launcher's loop.
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use anyhow::{Context, Result};

/// Longest line passed on; the rest of a longer one arrives as further lines.
const MAX_LINE: u64 = 4096;
/// A log stops growing here: a guest that prints for ever must not fill the disk.
const MAX_LOG: usize = 64 << 20;

/// Whose output a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The guest's serial console.
    Guest,
    /// QEMU's own messages.
    Qemu,
    /// The descriptor on which the server says that it is ready.
    ServerReady,
    /// What the server prints.
    Server,
}

/// What a reader thread reports.
#[derive(Debug)]
pub enum Message {
    /// A line without its end, and when it arrived.
    Line(Source, String, Instant),
    /// The stream has ended.
    End(Source),
}

/// Reads `from` on its own thread until it ends. The channel is bounded: a flood of output slows its writer and does
/// not fill memory.
///
/// # Errors
/// The log file cannot be made.
pub fn follow(
    from: impl Read + Send + 'static,
    source: Source,
    log: &Path,
    to: SyncSender<Message>,
) -> Result<()> {
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot write the log {}", log.display()))?;
    std::thread::Builder::new()
        .name(format!("{source:?}"))
        .spawn(move || {
            let mut reader = BufReader::new(from);
            let mut line = Vec::new();
            let mut logged = 0;
            loop {
                line.clear();
                match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => break,
                    Ok(n) if logged < MAX_LOG => {
                        logged += n;
                        // A full disk must not stop the run; the lines still reach the loop.
                        let _ = log.write_all(&line);
                    }
                    Ok(_) => {}
                }
                let text = String::from_utf8_lossy(&line)
                    .trim_end_matches(['\n', '\r'])
                    .to_owned();
                if to
                    .send(Message::Line(source, text, Instant::now()))
                    .is_err()
                {
                    return;
                }
            }
            let _ = to.send(Message::End(source));
        })?;
    Ok(())
}

/// The last lines of a stream.
#[derive(Debug)]
pub struct Tail {
    lines: VecDeque<String>,
    keep: usize,
}

impl Tail {
    /// Keeps the last `keep` lines.
    pub fn new(keep: usize) -> Self {
        Self {
            lines: VecDeque::with_capacity(keep),
            keep,
        }
    }

    /// Adds a line.
    pub fn push(&mut self, line: &str) {
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }

    /// The lines, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

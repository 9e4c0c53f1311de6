//! Log lines on their way to stderr, written by a thread of their own.
//!
//! A device thread that waits for a reader of stderr answers no register read, and QEMU gives a device
//! up after 5 s. So lines are queued up to a limit. A full queue makes the sender wait a little, once;
//! then lines are dropped and counted until the reader is back.
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Bytes that may wait.
const LIMIT: usize = 4 << 20;
/// Longest wait of a sender, far below the client's 5 s (qemu client).
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<u8>,
    writing: bool,
    stalled: bool,
    lost: u64,
}

/// The queue. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LineWriter(Arc<(Mutex<Queue>, Condvar)>);

impl LineWriter {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(mut out: impl Write + Send + 'static) -> std::io::Result<Self> {
        let writer = Self::default();
        let queue = writer.clone();
        std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || {
                loop {
                    let batch = queue.take();
                    // Nowhere to report that stderr is gone.
                    let _ = out.write_all(&batch);
                    queue.written();
                }
            })?;
        Ok(writer)
    }

    /// Waits until everything queued is written, but no longer than `patience`.
    pub fn flush(&self, patience: Duration) {
        let (_, changed) = &*self.0;
        let busy = |queue: &mut Queue| queue.writing || !queue.waiting.is_empty();
        drop(changed.wait_timeout_while(self.lock(), patience, busy));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let (_, changed) = &*self.0;
        let full = |queue: &Queue| queue.waiting.len().saturating_add(line.len()) > LIMIT;
        let mut queue = self.lock();
        if full(&queue) && !queue.stalled {
            let deadline = Instant::now() + PATIENCE;
            while full(&queue) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    queue.stalled = true;
                    break;
                }
                queue = changed
                    .wait_timeout(queue, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
        if full(&queue) {
            queue.lost += 1;
        } else {
            queue.waiting.extend_from_slice(line);
            changed.notify_all();
        }
    }

    fn take(&self) -> Vec<u8> {
        let (_, changed) = &*self.0;
        let empty = |queue: &mut Queue| queue.waiting.is_empty() && queue.lost == 0;
        let mut queue = changed
            .wait_while(self.lock(), empty)
            .unwrap_or_else(PoisonError::into_inner);
        let mut batch = std::mem::take(&mut queue.waiting);
        let lost = std::mem::take(&mut queue.lost);
        if lost > 0 {
            let text = format!("{lost} log lines lost: stderr was not read for a while\n");
            batch.extend_from_slice(text.as_bytes());
        }
        queue.stalled = false;
        queue.writing = true;
        changed.notify_all();
        batch
    }

    fn written(&self) {
        self.lock().writing = false;
        self.0.1.notify_all();
    }
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// Accepts whole lines, as `tracing_subscriber` writes them.
#[derive(Debug)]
pub struct Line<'a>(&'a LineWriter);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_reader_that_stalls_costs_one_wait_and_is_told_the_loss() {
        let (mut reader, pipe) = std::io::pipe().unwrap();
        let writer = LineWriter::start(pipe).unwrap();
        let line = vec![b'x'; 1 << 16];
        let start = Instant::now();
        for _ in 0..200 {
            writer.push(&line);
        }
        let took = start.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE * 4, "{took:?}");
        let lost = writer.lock().lost;
        assert!(lost > 50, "{lost}");

        let mut text = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        while !text.ends_with(b"for a while\n") {
            let n = reader.read(&mut buffer).unwrap();
            text.extend_from_slice(&buffer[..n]);
        }
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with(&format!(
            "{lost} log lines lost: stderr was not read for a while\n"
        )));
    }

    #[test]
    fn flush_waits_for_what_was_queued() {
        let (mut reader, pipe) = std::io::pipe().unwrap();
        let writer = LineWriter::start(pipe).unwrap();
        writer.push(b"one\n");
        writer.flush(Duration::from_secs(10));
        assert!(!writer.lock().writing);
        let mut line = [0; 4];
        reader.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"one\n");
    }
}

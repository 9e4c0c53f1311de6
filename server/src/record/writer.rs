//! From the device thread to the file: a bounded buffer and a thread that empties it.
//!
//! Entries must not be lost in the middle, so the device waits for a slow disk, but never long: then the recording ends
//! with a mark instead.
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::entry::{End, Entry};
use super::file::{BLOCK, BlockWriter};
use crate::outputs;

/// Unpacked bytes that may wait for the writer.
pub const MAX_BACKLOG: usize = 32 << 20;
/// What the device waits for the writer at most, between two looks at its socket. The client gives up after 5 s.
pub const MAX_STALL: Duration = Duration::from_millis(500);
/// What may be lost when the process is killed.
const MAX_AGE: Duration = Duration::from_millis(200);

/// A file that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its length.
    pub bytes: u64,
    /// Why it ends there.
    pub end: End,
}

/// What both sides share.
#[derive(Debug, Default)]
struct State {
    /// The block that entries are added to.
    open: Vec<u8>,
    /// Blocks to be written, and their bytes.
    full: VecDeque<Vec<u8>>,
    backlog: usize,
    /// The device waited that long since its last tick.
    stalled: Duration,
    /// No more entries are taken.
    ended: Option<End>,
    /// The writer has gone.
    done: bool,
}

/// The buffer.
#[derive(Debug, Default)]
pub struct Buffer {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry. Returns whether entries are still taken.
    pub fn push(&self, entry: &Entry) -> bool {
        let mut state = self.lock();
        if state.ended.is_some() || state.done {
            return false;
        }
        if let Entry::Tick(_) = entry {
            state.stalled = Duration::ZERO;
        }
        let was_empty = state.open.is_empty();
        entry.encode(&mut state.open);
        if state.open.len() >= BLOCK {
            state = self.wait_for_room(state);
            let block = std::mem::take(&mut state.open);
            state.backlog += block.len();
            state.full.push_back(block);
            self.work.notify_one();
        } else if was_empty {
            self.work.notify_one();
        }
        state.ended.is_none()
    }

    fn wait_for_room<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let start = Instant::now();
        while state.backlog >= MAX_BACKLOG && !state.done {
            let left = MAX_STALL.saturating_sub(state.stalled + start.elapsed());
            if left.is_zero() {
                state.ended = Some(End::Slow);
                break;
            }
            state = self
                .room
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.stalled += start.elapsed();
        state
    }

    /// Takes no more entries; the file will say why.
    pub fn end(&self, end: End) {
        let mut state = self.lock();
        state.ended.get_or_insert(end);
        self.work.notify_one();
    }

    /// Blocks to write, oldest first; none when all is written and the recording has ended.
    fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        loop {
            if let Some(block) = state.full.pop_front() {
                state.backlog -= block.len();
                self.room.notify_one();
                return Some(block);
            }
            if state.ended.is_some() {
                let rest = std::mem::take(&mut state.open);
                return (!rest.is_empty()).then_some(rest);
            }
            if state.open.is_empty() {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (waited, timeout) = self
                .work
                .wait_timeout_while(state, MAX_AGE, |state| {
                    state.full.is_empty() && state.ended.is_none()
                })
                .unwrap_or_else(PoisonError::into_inner);
            state = waited;
            if timeout.timed_out() && !state.open.is_empty() {
                return Some(std::mem::take(&mut state.open));
            }
        }
    }

    /// Writes until the recording ends, and says how that went. `limit` is of the file, bytes.
    ///
    /// # Errors
    /// The file could not be written; how far it is good.
    pub fn write<W: Write>(
        &self,
        mut out: BlockWriter<W>,
        limit: u64,
        device: u8,
        name: &str,
    ) -> Result<Written, String> {
        let mut result = Ok(());
        let mut end = None;
        while let Some(block) = self.next() {
            // Packed it may be a little longer than plain.
            let most = lz4_flex::block::get_maximum_output_size(block.len()) as u64;
            if out.written() + most + 256 > limit {
                end = Some(End::Limit);
                break;
            }
            result = out.block(&block);
            if result.is_err() {
                break;
            }
        }
        let end = {
            let mut state = self.lock();
            state.done = true;
            state.full.clear();
            self.room.notify_all();
            end.or(state.ended).unwrap_or(End::Stopped)
        };
        if result.is_ok() {
            let mut last = Vec::new();
            Entry::End(end).encode(&mut last);
            result = out.block(&last);
        }
        let written = out.written();
        let account = match &result {
            Ok(()) => Ok(Written {
                bytes: written,
                end,
            }),
            Err(error) => Err(format!(
                "good up to {written} bytes, where the file could no longer be written: {error}"
            )),
        };
        if result.is_err() || end == End::Slow {
            outputs::lost();
        }
        match (result, end) {
            (Err(error), _) => tracing::error!(
                device,
                "recording {name} ends here, good up to {written} bytes: it cannot be written: {error}"
            ),
            (Ok(()), End::Stopped | End::Asked) => {
                tracing::info!(device, "recording {name} is complete: {written} bytes");
            }
            (Ok(()), End::Limit) => tracing::warn!(
                device,
                "recording {name} ends at {written} bytes; the device goes on. --record-limit allows more"
            ),
            (Ok(()), End::Slow) => tracing::error!(
                device,
                "recording {name} ends at {written} bytes: the disk is slower than the device; record to a faster one, or with --record-payload none"
            ),
        }
        account
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::function::Firmware;
    use crate::record::file::Reader;
    use crate::record::{Header, Payload};

    fn header() -> Header {
        Header {
            version: String::new(),
            product: "trn2".to_owned(),
            platform: "qemu".to_owned(),
            routing_id: 0,
            serial: 1,
            hbm: 64 << 30,
            firmware: Firmware::default(),
            payload: Payload::Full,
            timing: None,
            msix: false,
            adversary: None,
        }
    }

    /// Takes nothing until it is told to.
    struct Gate {
        out: Arc<Mutex<Vec<u8>>>,
        open: mpsc::Receiver<()>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // An error means that the gate is gone: open for ever.
            let _ = self.open.recv();
            self.out.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    type Started = (
        Arc<Buffer>,
        mpsc::Sender<()>,
        Arc<Mutex<Vec<u8>>>,
        std::thread::JoinHandle<()>,
    );

    fn start(limit: u64) -> Started {
        let (sender, open) = mpsc::channel();
        let out = Arc::<Mutex<Vec<u8>>>::default();
        let gate = Gate {
            out: Arc::clone(&out),
            open,
        };
        sender.send(()).unwrap();
        let writer = BlockWriter::new(gate, &header()).unwrap();
        let buffer = Arc::<Buffer>::default();
        let other = Arc::clone(&buffer);
        let thread = std::thread::spawn(move || drop(other.write(writer, limit, 0, "test")));
        (buffer, sender, out, thread)
    }

    fn entries(file: &[u8]) -> (usize, Option<Entry>) {
        let mut reader = Reader::new(file.to_vec()).unwrap();
        let (mut count, mut last) = (0, None);
        while let Some(entry) = reader.next().unwrap() {
            (count, last) = (count + 1, Some(entry));
        }
        (count, last)
    }

    /// Bytes that do not pack.
    fn noise() -> Entry {
        let mut state = 1_u64;
        let data = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_be_bytes()[0]
        });
        Entry::Write {
            region: 4,
            offset: 0,
            data: data.take(64 << 10).collect(),
        }
    }

    #[test]
    fn a_disk_that_hangs_ends_the_recording_within_the_bound() {
        let (buffer, sender, out, thread) = start(u64::MAX);
        let (noise, begin) = (noise(), Instant::now());
        let mut taken = 0;
        while buffer.push(&noise) {
            taken += 1;
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        assert!(taken * (64 << 10) >= MAX_BACKLOG);
        assert!(!buffer.push(&noise));
        let stalled = buffer.lock().stalled;
        assert!(
            stalled >= MAX_STALL && stalled < MAX_STALL + Duration::from_secs(2),
            "{stalled:?}"
        );
        drop(sender);
        thread.join().unwrap();
        let (count, last) = entries(&out.lock().unwrap());
        assert_eq!(last, Some(Entry::End(End::Slow)));
        assert!(count > taken);
    }

    #[test]
    fn the_limit_holds_and_what_waits_is_written_soon() {
        let (buffer, sender, out, thread) = start(1 << 20);
        drop(sender);
        buffer.push(&Entry::Run);
        let begin = Instant::now();
        while entries(&out.lock().unwrap()).0 == 0 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
        let noise = noise();
        while buffer.push(&noise) {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        thread.join().unwrap();
        let file = out.lock().unwrap();
        assert!(
            file.len() <= 1 << 20 && file.len() > 700 << 10,
            "{}",
            file.len()
        );
        assert_eq!(entries(&file).1, Some(Entry::End(End::Limit)));
    }
}

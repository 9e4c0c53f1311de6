//! What the device thread tells a recording: calls, results, memory and events, in order.
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::Payload;
use super::entry::{Content, End, Entry};
use super::file::BlockWriter;
use super::header::Header;
use super::taint::Taint;
use super::writer::{Buffer, Written};
use crate::memory::{Lost, Place, Purpose, Read, Tap, Unmapped, Write as WriteAccess};
use crate::observe::event::{Event, Observer, Scope};

/// What is remembered between entries.
#[derive(Debug, Default)]
struct Memo {
    /// What the device read last, if the recording has it.
    read: Vec<u8>,
    has_read: bool,
    /// It was left out.
    absent: bool,
    /// Device memory that a replay does not know.
    taint: Taint,
}

impl Memo {
    fn as_read(&self, bytes: &[u8]) -> Option<Content> {
        let same = self.has_read && self.read.get(..bytes.len()) == Some(bytes);
        same.then_some(Content::AsRead { len: bytes.len() })
    }
}

/// A recording under way.
#[derive(Debug)]
pub struct Journal {
    buffer: Arc<Buffer>,
    payload: Payload,
    memo: Mutex<Memo>,
    ended: AtomicBool,
    thread: Mutex<Option<JoinHandle<Result<Written, String>>>>,
}

impl Journal {
    /// Begins a recording into `out`, which a thread of its own writes. `name` is for the log.
    ///
    /// # Errors
    /// The head cannot be written, or there is no thread.
    pub fn start<W: Write + Send + 'static>(
        out: W,
        header: &Header,
        limit: u64,
        name: &str,
    ) -> io::Result<Arc<Self>> {
        let writer = BlockWriter::new(out, header)?;
        let buffer = Arc::<Buffer>::default();
        let (other, name) = (Arc::clone(&buffer), name.to_owned());
        let thread = std::thread::Builder::new().name("record".to_owned());
        let device = header.routing_id;
        let thread = thread.spawn(move || other.write(writer, limit, device, &name))?;
        Ok(Arc::new(Self {
            buffer,
            payload: header.payload,
            memo: Mutex::default(),
            ended: AtomicBool::new(false),
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// What is kept of payload.
    pub const fn payload(&self) -> Payload {
        self.payload
    }

    /// Entries are still taken.
    pub fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// Adds an entry.
    pub fn entry(&self, entry: &Entry) {
        if self.is_open() && !self.buffer.push(entry) {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// The bytes of a read of a region.
    pub fn data(&self, bytes: &[u8]) {
        let memo = self.memo();
        // A replay that lacks what was read from device memory made it up.
        let content = match memo.as_read(bytes) {
            Some(content) if memo.absent => content,
            _ => Content::digest(bytes),
        };
        drop(memo);
        self.entry(&Entry::Data(content));
    }

    /// A call begins: what was read before it is of no use.
    pub fn call(&self, entry: &Entry) {
        let mut memo = self.memo();
        memo.has_read = false;
        memo.absent = false;
        if let Entry::Disconnect = entry {
            memo.taint.clear();
        }
        drop(memo);
        self.entry(entry);
    }

    /// Ends the recording and waits until it is written. Returns how the writing went, the first time.
    pub fn end(&self, end: End) -> Option<Result<Written, String>> {
        self.ended.store(true, Ordering::Relaxed);
        self.buffer.end(end);
        let thread = self.thread.lock();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        // It only fails if the writer panicked, which it has said.
        thread?.join().ok()
    }

    fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.end(End::Stopped);
    }
}

impl Tap for Journal {
    fn present(
        &self,
        guest: u64,
        len: usize,
        found: Result<usize, Unmapped>,
    ) -> Result<usize, Unmapped> {
        let there = *found.as_ref().unwrap_or(&0);
        if there < len {
            let found = there;
            self.entry(&Entry::Present { guest, len, found });
        }
        found
    }

    fn read(
        &self,
        place: Place,
        purpose: Purpose,
        bytes: &mut [u8],
        memory: &mut Read<'_>,
    ) -> Result<(), Lost> {
        let result = memory(bytes);
        if !self.is_open() {
            return result;
        }
        let mut memo = self.memo();
        memo.has_read = matches!(place, Place::Guest(_)) || memo.taint.touches(place, bytes.len());
        memo.absent = false;
        if !memo.has_read {
            return result;
        }
        let leave_out = self.payload == Payload::None && purpose == Purpose::Data;
        let content = match (result, leave_out) {
            (Err(_), _) => Content::Fill {
                byte: 0,
                len: bytes.len(),
            },
            (Ok(()), true) => Content::absent(bytes),
            (Ok(()), false) => Content::whole(bytes),
        };
        memo.absent = matches!(content, Content::Absent { .. });
        memo.read.clear();
        memo.read.extend_from_slice(bytes);
        drop(memo);
        let lost = result.is_err();
        self.entry(&Entry::Loaded {
            place,
            content,
            lost,
        });
        result
    }

    fn write(&self, place: Place, bytes: &[u8], memory: &mut WriteAccess<'_>) -> Result<(), Lost> {
        let result = memory(bytes);
        if !self.is_open() {
            return result;
        }
        let mut memo = self.memo();
        let same = memo.as_read(bytes);
        let unknown = same.is_some() && memo.absent;
        memo.taint.set(place, bytes.len(), unknown);
        drop(memo);
        self.entry(&Entry::Stored {
            place,
            content: same.unwrap_or_else(|| Content::digest(bytes)),
            lost: result.is_err(),
        });
        result
    }
}

/// Shows events to a recording.
#[derive(Debug)]
pub struct Witness(pub Arc<Journal>);

impl Observer for Witness {
    fn event(&mut self, event: &Event) {
        if self.0.is_open() {
            self.0.entry(&of_event(event));
        }
    }
}

/// An event as an entry.
pub fn of_event(event: &Event) -> Entry {
    Entry::Event {
        queue: match event.scope {
            Scope::Device => None,
            Scope::Queue { engine, queue } => Some((engine, queue)),
        },
        text: event.kind.to_string(),
    }
}

//! A recording as the device's surroundings: it serves what the device read then and holds what it does now against what
//! it did.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Divergence;
use super::entry::{End, Entry};
use super::file::{FileError, Reader, Tail};
use super::journal::of_event;
use super::words::Words;
use crate::memory::{Access, Lost, Place, Purpose, Read, Tap, Unmapped, Write};
use crate::observe::event::{Event, Observer};

/// Entries shown before and after a divergence.
const BEFORE: usize = 12;
const AFTER: usize = 6;

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries.
    pub entries: u64,
    /// Calls into the device.
    pub calls: u64,
    /// Events that were compared.
    pub events: u64,
    /// Bytes served that the device read.
    pub read: u64,
    /// Bytes compared that the device wrote to memory.
    pub written: u64,
    /// Replies compared.
    pub replies: u64,
}

/// Where a recording stands.
#[derive(Debug)]
struct State {
    reader: Reader,
    words: Words,
    ahead: Option<Arc<Entry>>,
    before: VecDeque<(u64, Arc<Entry>)>,
    counts: Counts,
    /// What the device read last.
    read: Vec<u8>,
    /// Results, events and bytes written may differ: they are about to be recorded anew.
    lenient: bool,
    error: Option<FileError>,
    divergence: Option<Box<Divergence>>,
    end: Option<End>,
    over: bool,
}

/// The recording, shared by those who ask it.
#[derive(Debug)]
pub struct Script(Mutex<State>);

impl Script {
    pub fn new(reader: Reader, words: Words, lenient: bool) -> Self {
        Self(Mutex::new(State {
            reader,
            words,
            ahead: None,
            before: VecDeque::with_capacity(BEFORE),
            counts: Counts::default(),
            read: Vec::new(),
            lenient,
            error: None,
            divergence: None,
            end: None,
            over: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next entry, which must be a call; `None` at the end.
    pub fn call(&self) -> Option<Arc<Entry>> {
        let mut state = self.lock();
        let entry = state.take()?;
        state.counts.calls += 1;
        state.read.clear();
        Some(entry)
    }

    /// The next entry without taking it.
    pub fn peek(&self) -> Option<Arc<Entry>> {
        self.lock().peek()
    }

    /// Takes the result of a call that is not repeated.
    pub fn skip(&self) {
        self.lock().take();
    }

    /// Compares the result of a call.
    pub fn result(&self, actual: &Entry, bytes: Option<&[u8]>) {
        let mut state = self.lock();
        if state.lenient {
            while state.peek().is_some_and(|entry| !entry.is_input()) {
                state.take();
            }
            return;
        }
        let Some(expected) = state.peek() else { return };
        let same = match (&*expected, bytes) {
            (Entry::Data(content), Some(bytes)) => content.is(bytes, &state.read),
            (expected, _) => expected == actual,
        };
        if same {
            state.take();
            state.counts.replies += 1;
        } else {
            let words = state.words.of(actual);
            state.diverge(words);
        }
    }

    /// Whether to stop: the end, an error or a divergence.
    pub fn is_over(&self) -> bool {
        self.lock().over
    }

    /// How it ended.
    pub fn outcome(&self) -> (Counts, Option<End>, Tail) {
        let state = self.lock();
        (
            state.counts,
            state.end,
            state.reader.tail().unwrap_or(Tail::Whole),
        )
    }

    /// A broken rule of the file, or else the first difference.
    pub fn failure(&self) -> Result<(), super::ReplayError> {
        let mut state = self.lock();
        if let Some(error) = state.error.clone() {
            return Err(super::ReplayError::File(error));
        }
        match state.divergence.take() {
            Some(divergence) => Err(super::ReplayError::Diverged(divergence)),
            None => Ok(()),
        }
    }

    /// The number of the entry taken last.
    pub fn position(&self) -> u64 {
        self.lock().counts.entries
    }
}

impl State {
    fn peek(&mut self) -> Option<Arc<Entry>> {
        if self.over {
            return None;
        }
        if self.ahead.is_none() {
            match self.reader.next() {
                Ok(Some(Entry::End(end))) => {
                    self.end = Some(end);
                    self.over = true;
                }
                Ok(Some(entry)) => self.ahead = Some(Arc::new(entry)),
                Ok(None) => self.over = true,
                Err(error) => {
                    self.error = Some(error);
                    self.over = true;
                }
            }
        }
        self.ahead.clone()
    }

    fn take(&mut self) -> Option<Arc<Entry>> {
        let entry = self.peek()?;
        self.ahead = None;
        if self.before.len() == BEFORE {
            self.before.pop_front();
        }
        self.before
            .push_back((self.counts.entries, Arc::clone(&entry)));
        self.counts.entries += 1;
        Some(entry)
    }

    /// What happened instead of the next entry.
    fn diverge(&mut self, actual: String) {
        if self.divergence.is_some() || self.error.is_some() {
            return;
        }
        let number = self.counts.entries;
        let expected = self.peek().map(|entry| self.words.of(&entry));
        let before: Vec<_> = self
            .before
            .iter()
            .map(|(number, entry)| (*number, self.words.of(entry)))
            .collect();
        let mut after = Vec::new();
        if self.take().is_some() {
            for _ in 0..AFTER {
                let number = self.counts.entries;
                let Some(entry) = self.take() else { break };
                after.push((number, self.words.of(&entry)));
            }
        }
        self.divergence = Some(Box::new(Divergence {
            number,
            expected: expected
                .unwrap_or_else(|| "nothing more: the recording ends here".to_owned()),
            actual,
            before,
            after,
        }));
        self.over = true;
    }

    /// When results are not compared, takes what is only compared.
    fn skip_outputs(&mut self) {
        while self.lenient
            && self
                .peek()
                .is_some_and(|entry| matches!(*entry, Entry::Event { .. } | Entry::Stored { .. }))
        {
            self.take();
        }
    }
}

impl Tap for Script {
    fn present(
        &self,
        guest: u64,
        len: usize,
        found: Result<usize, Unmapped>,
    ) -> Result<usize, Unmapped> {
        let mut state = self.lock();
        state.skip_outputs();
        let Some(entry) = state.peek() else {
            return found;
        };
        match *entry {
            Entry::Present {
                guest: at,
                len: asked,
                found,
            } if (at, asked) == (guest, len) => {
                state.take();
                if found == 0 {
                    Err(Unmapped::Truncated)
                } else {
                    Ok(found.min(len))
                }
            }
            _ => found,
        }
    }

    fn read(
        &self,
        place: Place,
        purpose: Purpose,
        bytes: &mut [u8],
        memory: &mut Read<'_>,
    ) -> Result<(), Lost> {
        let mut state = self.lock();
        state.skip_outputs();
        let entry = state.peek();
        let served = match entry.as_deref() {
            Some(Entry::Loaded {
                place: at,
                content,
                lost,
            }) if *at == place => content.fill_in(bytes).map(|()| *lost),
            _ => None,
        };
        if let Some(lost) = served {
            state.take();
            state.counts.read += bytes.len() as u64;
            state.read.clear();
            state.read.extend_from_slice(bytes);
            return if lost {
                Err(Lost {
                    access: Access::Read,
                })
            } else {
                Ok(())
            };
        }
        if !matches!(place, Place::Guest(_)) {
            // Ours: a replay has it, unless payload was left out.
            state.read.clear();
            return memory(bytes);
        }
        bytes.fill(0);
        if entry.is_some() {
            let what = match purpose {
                Purpose::Control => "to act on them",
                Purpose::Data => "to copy them",
            };
            state.diverge(format!("reads {} bytes at {place}, {what}", bytes.len()));
        }
        Ok(())
    }

    fn write(&self, place: Place, bytes: &[u8], memory: &mut Write<'_>) -> Result<(), Lost> {
        let mut state = self.lock();
        let entry = state.peek();
        let mut lost = false;
        match entry.as_deref() {
            Some(Entry::Stored {
                place: at,
                content,
                lost: gone,
            }) if *at == place && (state.lenient || content.is(bytes, &state.read)) => {
                lost = *gone;
                state.take();
                state.counts.written += bytes.len() as u64;
            }
            Some(_) if !state.lenient => {
                let content = super::entry::Content::digest(bytes);
                let actual = Entry::Stored {
                    place,
                    content,
                    lost: false,
                };
                let words = state.words.of(&actual);
                state.diverge(words);
            }
            _ => {}
        }
        drop(state);
        // Guest memory is not there.
        if !matches!(place, Place::Guest(_)) {
            memory(bytes)?;
        }
        if lost {
            return Err(Lost {
                access: Access::Write,
            });
        }
        Ok(())
    }
}

/// Compares events.
#[derive(Debug)]
pub struct Judge(pub Arc<Script>);

impl Observer for Judge {
    fn event(&mut self, event: &Event) {
        let mut state = self.0.lock();
        if state.lenient {
            return;
        }
        let Some(expected) = state.peek() else { return };
        let actual = of_event(event);
        if *expected == actual {
            state.take();
            state.counts.events += 1;
        } else {
            let words = state.words.of(&actual);
            state.diverge(words);
        }
    }
}

/// A tap in front of another.
#[derive(Debug)]
pub struct Layered {
    pub outer: Arc<dyn Tap>,
    pub inner: Arc<dyn Tap>,
}

impl Tap for Layered {
    fn present(
        &self,
        guest: u64,
        len: usize,
        found: Result<usize, Unmapped>,
    ) -> Result<usize, Unmapped> {
        let found = self.inner.present(guest, len, found);
        self.outer.present(guest, len, found)
    }

    fn read(
        &self,
        place: Place,
        purpose: Purpose,
        bytes: &mut [u8],
        memory: &mut Read<'_>,
    ) -> Result<(), Lost> {
        let mut inner = |bytes: &mut [u8]| self.inner.read(place, purpose, bytes, memory);
        self.outer.read(place, purpose, bytes, &mut inner)
    }

    fn write(&self, place: Place, bytes: &[u8], memory: &mut Write<'_>) -> Result<(), Lost> {
        let mut inner = |bytes: &[u8]| self.inner.write(place, bytes, memory);
        self.outer.write(place, bytes, &mut inner)
    }
}

//! Messages on their way to the client, with the descriptors that go along. No socket.
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

/// Most bytes given to one send call unless a single message is longer. The kernel queues this much as one piece or not
/// at all, so that a client never finds half a header in its receive queue: QEMU takes that for a broken stream (qemu
/// client).
const ATOMIC: usize = 32 << 10;

/// Once this many bytes wait, no further command is read until the client has taken some.
const HIGH_WATER: usize = 256 << 10;

#[derive(Debug)]
struct Mark {
    /// The message is `bytes[start..end]`.
    start: usize,
    end: usize,
    /// Goes with the message's first byte.
    file: Option<Arc<File>>,
}

/// The send side of a connection.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Bytes before this have been sent.
    sent: usize,
    /// The messages not wholly sent.
    marks: VecDeque<Mark>,
}

impl Outbox {
    /// Lets `write` append one message; it returns the file to pass along. Writing nothing is no message.
    pub fn push<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> (R, Option<Arc<File>>)) -> R {
        if self.marks.is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
        let start = self.bytes.len();
        let (result, file) = write(&mut self.bytes);
        let end = self.bytes.len();
        if end > start {
            self.marks.push_back(Mark { start, end, file });
        }
        result
    }

    /// The next bytes to send with one call, and the file to pass with them. Empty: nothing waits.
    pub fn next(&self) -> (&[u8], Option<&Arc<File>>) {
        let Some(first) = self.marks.front() else {
            return (&[], None);
        };
        // A later message with a file starts a call of its own: descriptors go with the first byte of a call.
        let joins = |mark: &&Mark| mark.file.is_none() && mark.end - self.sent <= ATOMIC;
        let end = self
            .marks
            .iter()
            .skip(1)
            .take_while(joins)
            .last()
            .map_or(first.end, |mark| mark.end);
        (&self.bytes[self.sent..end], first.file.as_ref())
    }

    /// Accounts for `len` bytes sent.
    pub fn advance(&mut self, len: usize) {
        self.sent += len;
        while self.marks.front().is_some_and(|mark| mark.end <= self.sent) {
            self.marks.pop_front();
        }
        if let Some(first) = self
            .marks
            .front_mut()
            .filter(|first| first.start < self.sent)
        {
            first.file = None;
        }
        // Moving the rest costs less than letting a client that is always a little behind grow the buffer.
        if self.sent >= HIGH_WATER {
            self.bytes.drain(..self.sent);
            for mark in &mut self.marks {
                mark.start = mark.start.saturating_sub(self.sent);
                mark.end -= self.sent;
            }
            self.sent = 0;
        }
    }

    /// Bytes that wait.
    pub fn pending(&self) -> usize {
        self.marks.back().map_or(0, |last| last.end - self.sent)
    }

    /// Whether the client is so far behind that no further command should be read.
    pub fn is_full(&self) -> bool {
        self.pending() >= HIGH_WATER
    }
}

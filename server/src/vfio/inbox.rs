//! Received bytes and descriptors, cut into messages. No socket: tests and fuzzers fill it by hand.
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use zerocopy::FromBytes;

use super::codec::wire::Header;
use super::codec::{HEADER_SIZE, MAX_FDS, MAX_MESSAGE};

/// Bytes asked of the socket at a time: about 1,800 posted register writes.
const CHUNK: usize = 64 << 10;

/// The descriptors that came with one message.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// In the order sent.
    pub fds: Vec<OwnedFd>,
    /// Some could not be received.
    pub lost: bool,
}

/// What the stream holds next.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// A whole message.
    Message {
        /// Its header; the size has been honoured.
        header: Header,
        /// What follows the header.
        payload: &'a [u8],
        /// What came along.
        descriptors: Descriptors,
    },
    /// The header of a message longer than [`MAX_MESSAGE`]. Its body is skipped as it arrives.
    TooLong(Header),
    /// A header that claims to be shorter than a header: there is no telling where the next message begins.
    Broken(Header),
}

/// Descriptors from one receive call.
#[derive(Debug)]
struct Batch {
    /// Stream position of the last byte of that call. A call never reads past the data that carried descriptors (unix(7)),
    /// so that byte is in the message they belong to, also when earlier messages came with the same call.
    at: u64,
    descriptors: Descriptors,
}

/// The receive side of a connection.
#[derive(Debug)]
pub struct Inbox {
    buffer: Vec<u8>,
    /// Unread bytes are `head..tail`.
    head: usize,
    tail: usize,
    /// Stream position of `head`.
    position: u64,
    /// Bytes before this position belong to a message that was too long.
    skip_until: u64,
    /// Length of the message that `head` is inside of, if known.
    wanted: usize,
    batches: VecDeque<Batch>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            buffer: vec![0; CHUNK],
            head: 0,
            tail: 0,
            position: 0,
            skip_until: 0,
            wanted: 0,
            batches: VecDeque::new(),
        }
    }
}

impl Inbox {
    /// Where to receive the next bytes; never empty once [`Self::next`] has returned `None`.
    pub fn space(&mut self) -> &mut [u8] {
        if self.head == self.tail {
            self.head = 0;
            self.tail = 0;
        }
        // A message in progress is kept whole and contiguous. `wanted` is at most MAX_MESSAGE.
        let short = self.head + self.wanted > self.buffer.len() || self.tail == self.buffer.len();
        if short && self.head > 0 {
            self.buffer.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            self.head = 0;
        }
        if self.wanted > self.buffer.len() {
            self.buffer.resize(self.wanted, 0);
        }
        &mut self.buffer[self.tail..]
    }

    /// Accounts for `len` bytes received into [`Self::space`] and the descriptors that came with them. `lost`: the kernel
    /// dropped some. Descriptors past [`MAX_FDS`] for one message are closed.
    pub fn filled(&mut self, len: usize, fds: impl IntoIterator<Item = OwnedFd>, lost: bool) {
        debug_assert!(len <= self.buffer.len() - self.tail);
        self.tail = (self.tail + len).min(self.buffer.len());
        let end = self.position + widen(self.tail - self.head);
        let mut descriptors = Descriptors {
            fds: Vec::new(),
            lost,
        };
        let held: usize = self
            .batches
            .iter()
            .map(|batch| batch.descriptors.fds.len())
            .sum();
        for fd in fds {
            if held + descriptors.fds.len() < MAX_FDS {
                descriptors.fds.push(fd);
            } else {
                descriptors.lost = true;
            }
        }
        let at = end.saturating_sub(1);
        if (descriptors.lost || !descriptors.fds.is_empty()) && at >= self.skip_until {
            // One mark for a flood of losses: the queue stays as short as the descriptors in it.
            match self.batches.back_mut() {
                Some(newest) if descriptors.fds.is_empty() => {
                    newest.descriptors.lost = true;
                    newest.at = at;
                }
                _ => self.batches.push_back(Batch { at, descriptors }),
            }
        }
    }

    /// The next whole message, if there is one.
    #[expect(
        clippy::should_implement_trait,
        reason = "lends from the buffer, which Iterator cannot"
    )]
    pub fn next(&mut self) -> Option<Incoming<'_>> {
        self.skip();
        let unread = &self.buffer[self.head..self.tail];
        let Ok((header, _)) = Header::read_from_prefix(unread) else {
            self.wanted = HEADER_SIZE;
            return None;
        };
        let size = header.size.get();
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        if len < HEADER_SIZE {
            return Some(Incoming::Broken(header));
        }
        if len > MAX_MESSAGE {
            self.skip_until = self.position + u64::from(size);
            self.skip();
            drop(self.descriptors_before(self.skip_until));
            return Some(Incoming::TooLong(header));
        }
        if unread.len() < len {
            self.wanted = len;
            return None;
        }
        self.wanted = HEADER_SIZE;
        let start = self.head;
        self.head += len;
        self.position += widen(len);
        let descriptors = self.descriptors_before(self.position);
        let payload = &self.buffer[start + HEADER_SIZE..start + len];
        Some(Incoming::Message {
            header,
            payload,
            descriptors,
        })
    }

    /// Whether the stream stands between two messages, as it should when the client leaves.
    pub fn is_between_messages(&self) -> bool {
        self.head == self.tail && self.position >= self.skip_until
    }

    fn skip(&mut self) {
        let left =
            usize::try_from(self.skip_until.saturating_sub(self.position)).unwrap_or(usize::MAX);
        let here = left.min(self.tail - self.head);
        self.head += here;
        self.position += widen(here);
        if here > 0 {
            self.wanted = HEADER_SIZE;
        }
    }

    fn descriptors_before(&mut self, end: u64) -> Descriptors {
        let mut all = Descriptors::default();
        while self.batches.front().is_some_and(|batch| batch.at < end) {
            let Some(batch) = self.batches.pop_front() else {
                break;
            };
            all.lost |= batch.descriptors.lost;
            if all.fds.is_empty() {
                all.fds = batch.descriptors.fds;
            } else {
                all.fds.extend(batch.descriptors.fds);
            }
        }
        all
    }
}

fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

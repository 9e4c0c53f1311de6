//! The legacy mailbox: a request in host memory, a response in host memory (contract §4.1).
//!
//! Host memory may be behind messages, so that each access may suspend.
use neuron_protocol::mailbox::{self, MailboxError, REQUEST_HEADER_SIZE, RequestHeader, Sequence};
use zerocopy::FromBytes;

use super::requests::Answer;
use crate::memory::{Access, Memory, Purpose, Target, Unmapped};
use crate::observe::event::MailboxFault;
use crate::udma::Request as Transfer;

/// A request that was read whole and is well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// To be copied into the response.
    pub sequence: Sequence,
    /// Command number.
    pub command: u8,
    /// What follows the header.
    pub payload: Vec<u8>,
}

/// Why a request stays without an answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Its address or the response's leads nowhere.
    #[error("address {address:#x}: {reason}")]
    Address {
        /// The address, as the device sees it.
        address: u64,
        /// Why.
        reason: Unmapped,
    },
    /// It lies in registers.
    #[error("address {0:#x}: a mailbox buffer cannot lie in registers")]
    Register(u64),
    /// Its bytes are wrong.
    #[error("{0}")]
    Malformed(#[from] MailboxError),
    /// The client could not reach the memory.
    #[error("the client could not reach the buffer")]
    Client,
}

impl Unanswered {
    /// What of it is the driver's doing, for those who judge it.
    pub const fn fault(&self) -> Option<MailboxFault> {
        match self {
            Self::Malformed(error) => Some(MailboxFault::Malformed(*error)),
            Self::Address { address, reason } => Some(MailboxFault::Address {
                address: *address,
                reason: *reason,
            }),
            Self::Register(_) | Self::Client => None,
        }
    }
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Nothing.
    Idle,
    /// Make this access, then [`Mailbox::complete`].
    Transfer(Transfer),
    /// Execute the request, then [`Mailbox::answer`].
    Execute(Request),
}

/// Bytes on their way from or to host memory.
#[derive(Debug)]
struct Cursor {
    address: u64,
    bytes: Vec<u8>,
    done: usize,
}

impl Cursor {
    fn new(address: u64, bytes: Vec<u8>) -> Self {
        Self {
            address,
            bytes,
            done: 0,
        }
    }

    /// Moves on as far as memory in this process goes; gives the access that is needed to go further.
    fn advance(&mut self, memory: &Memory, access: Access) -> Result<Option<Transfer>, Unanswered> {
        while self.done < self.bytes.len() {
            let address = self.address.wrapping_add(self.done as u64);
            let left = &mut self.bytes[self.done..];
            let target = memory.resolve(address, left.len(), access);
            match target.map_err(|reason| Unanswered::Address { address, reason })? {
                Target::Memory(slice) => {
                    let len = slice.len();
                    let moved = match access {
                        Access::Read => memory.read(&slice, Purpose::Control, &mut left[..len]),
                        Access::Write => memory.write(&left[..len], &slice),
                    };
                    moved.map_err(|_| Unanswered::Address {
                        address,
                        reason: Unmapped::Truncated,
                    })?;
                    self.done += len;
                }
                Target::Message { iova, len } => {
                    return Ok(Some(match access {
                        Access::Read => Transfer::ReadGuest { iova, len },
                        Access::Write => Transfer::WriteGuest {
                            iova,
                            data: left[..len].to_vec(),
                        },
                    }));
                }
                Target::Register { .. } => return Err(Unanswered::Register(address)),
            }
        }
        Ok(None)
    }
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// The header of the request.
    Header { cursor: Cursor, response: u64 },
    /// The whole request.
    Whole { cursor: Cursor, response: u64 },
    /// With whoever executes it.
    Executing {
        sequence: Sequence,
        request: (u64, u32),
        response: u64,
    },
    /// What follows the response's header, if anything.
    Payload { cursor: Cursor, header: Cursor },
    /// The header last: its first byte is what the driver polls.
    Answer { cursor: Cursor },
}

/// The mailbox. A new request replaces an unfinished one, as the driver's next try does.
#[derive(Debug, Default)]
pub struct Mailbox {
    state: State,
    /// The access it waits for, by the function's name for it.
    waits_for: Option<u64>,
}

impl Mailbox {
    /// A request was triggered.
    pub fn start(&mut self, request: u64, response: u64) {
        self.state = State::Header {
            cursor: Cursor::new(request, vec![0; REQUEST_HEADER_SIZE]),
            response,
        };
        // The answer to what the request before had asked for is not for this one.
        self.waits_for = None;
    }

    /// Something is under way that need not wait for the client.
    pub const fn can_step(&self) -> bool {
        !matches!(self.state, State::Idle) && self.waits_for.is_none()
    }

    /// The access of the last [`Step::Transfer`] is under way as `id`.
    pub const fn wait_for(&mut self, id: u64) {
        self.waits_for = Some(id);
    }

    /// It waits for this access.
    pub fn awaits(&self, id: u64) -> bool {
        self.waits_for == Some(id)
    }

    /// Goes on until it needs somebody.
    ///
    /// # Errors
    /// The request stays without an answer; the mailbox is idle again.
    pub fn step(&mut self, memory: &Memory) -> Result<Step, Unanswered> {
        loop {
            match std::mem::take(&mut self.state) {
                State::Idle => return Ok(Step::Idle),
                State::Header {
                    mut cursor,
                    response,
                } => {
                    if let Some(transfer) = cursor.advance(memory, Access::Read)? {
                        self.state = State::Header { cursor, response };
                        return Ok(Step::Transfer(transfer));
                    }
                    let header = RequestHeader::read_from_bytes(&cursor.bytes);
                    let size = header.map_or(0, |header| usize::from(header.size.get()));
                    // The size field is 16 bits wide: at most 64 KiB.
                    cursor.bytes.resize(size.max(REQUEST_HEADER_SIZE), 0);
                    self.state = State::Whole { cursor, response };
                }
                State::Whole {
                    mut cursor,
                    response,
                } => {
                    if let Some(transfer) = cursor.advance(memory, Access::Read)? {
                        self.state = State::Whole { cursor, response };
                        return Ok(Step::Transfer(transfer));
                    }
                    let parsed = mailbox::Request::parse(&cursor.bytes)?;
                    let bytes = u32::try_from(cursor.bytes.len()).unwrap_or(u32::MAX);
                    self.state = State::Executing {
                        sequence: parsed.sequence,
                        request: (cursor.address, bytes),
                        response,
                    };
                    return Ok(Step::Execute(Request {
                        sequence: parsed.sequence,
                        command: parsed.command,
                        payload: parsed.payload.to_vec(),
                    }));
                }
                State::Payload { mut cursor, header } => {
                    if let Some(transfer) = cursor.advance(memory, Access::Write)? {
                        self.state = State::Payload { cursor, header };
                        return Ok(Step::Transfer(transfer));
                    }
                    self.state = State::Answer { cursor: header };
                }
                State::Answer { mut cursor } => {
                    if let Some(transfer) = cursor.advance(memory, Access::Write)? {
                        self.state = State::Answer { cursor };
                        return Ok(Step::Transfer(transfer));
                    }
                }
                executing @ State::Executing { .. } => {
                    self.state = executing;
                    return Ok(Step::Idle);
                }
            }
        }
    }

    /// The request that is being executed: its sequence number, address and bytes, and where its response goes.
    pub const fn executing(&self) -> Option<(Sequence, u64, u32, u64)> {
        match self.state {
            State::Executing {
                sequence,
                request: (address, bytes),
                response,
            } => Some((sequence, address, bytes, response)),
            _ => None,
        }
    }

    /// The outcome of the request that is being executed; [`Self::step`] then sends it.
    ///
    /// # Errors
    /// The payload is too large for a response.
    pub fn answer(&mut self, answer: &Answer) -> Result<(), Unanswered> {
        let State::Executing { response, .. } = self.state else {
            return Ok(());
        };
        self.state = State::Idle;
        let payload = &answer.payload;
        let mut bytes = vec![0; payload.len() + mailbox::RESPONSE_HEADER_SIZE];
        mailbox::build_response(&mut bytes, answer.sequence, answer.status, payload)?;
        if let Some(corruption) = answer.corruption {
            corruption.apply(&mut bytes);
        }
        let rest = bytes.split_off(mailbox::RESPONSE_HEADER_SIZE);
        let after = response.wrapping_add(mailbox::RESPONSE_HEADER_SIZE as u64);
        self.state = State::Payload {
            cursor: Cursor::new(after, rest),
            header: Cursor::new(response, bytes),
        };
        Ok(())
    }

    /// The answer to a [`Step::Transfer`]; an empty one to a write. Nothing if it was for a request since replaced.
    ///
    /// # Errors
    /// The client could not reach the memory: the request stays without an answer.
    pub fn complete(
        &mut self,
        id: u64,
        len: usize,
        reply: Option<Vec<u8>>,
    ) -> Result<(), Unanswered> {
        if !self.awaits(id) {
            return Ok(());
        }
        self.waits_for = None;
        let Some(bytes) = reply else {
            self.state = State::Idle;
            return Err(Unanswered::Client);
        };
        match &mut self.state {
            State::Header { cursor, .. } | State::Whole { cursor, .. } => {
                let left = &mut cursor.bytes[cursor.done..];
                let len = bytes.len().min(left.len());
                left[..len].copy_from_slice(&bytes[..len]);
                cursor.done += len;
            }
            State::Payload { cursor, .. } | State::Answer { cursor } => {
                cursor.done = cursor.bytes.len().min(cursor.done + len);
            }
            State::Idle | State::Executing { .. } => {}
        }
        Ok(())
    }
}

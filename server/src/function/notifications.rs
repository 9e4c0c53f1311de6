//! Notification queues: rings in memory that the device writes and software polls (contract §9, facts §5.6).
//!
//! No program runs in this device, so nothing in it posts by itself: what arrives in a ring was asked for from outside.
use std::collections::HashMap;

use neuron_protocol::generation::{Block, Location};
use neuron_protocol::registers::notification::{self, BASE_HIGH, BASE_LOW, SIZE};

use super::NeuronFunction;
use super::messages::Asker;
use crate::memory::{Access, Target, Unmapped};
use crate::policy::{NotificationBlock, Posted};
use crate::vfio::DmaRequest;

/// Which queue.
type Key = (Block, u8, u32);

/// One queue's registers.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    base: u64,
    /// Bytes.
    size: u32,
    /// Where the next entry begins, bytes from the base. Which unit hardware counts in is not public: bytes were chosen.
    head: u32,
}

/// An entry on its way to guest memory that is reached by messages.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Told apart from entries dropped before it, whose replies may still come.
    ticket: u64,
    key: Key,
    head: u32,
    /// Messages without a reply.
    left: usize,
    failed: bool,
}

/// Why an entry was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// There is no such queue.
    #[error(
        "this product has no such queue; a block has {} queues",
        notification::QUEUE_COUNT
    )]
    NoQueue,
    /// Its size is 0.
    #[error("the queue is not running: the driver has not given it a ring")]
    Stopped,
    /// An empty one.
    #[error("an entry has at least one byte")]
    Empty,
    /// More than the ring.
    #[error("the entry has {len} bytes, the ring {size}")]
    TooLong {
        /// Of the entry.
        len: usize,
        /// Of the ring.
        size: u32,
    },
    /// The guest forbids DMA.
    #[error("the guest does not let the device master the bus")]
    BusMaster,
    /// The one before is still on its way.
    #[error("the entry before is still on its way to the guest; try again")]
    Busy,
    /// The ring leads nowhere.
    #[error("ring address {address:#x}: {reason}")]
    Unmapped {
        /// The address, as the device sees it.
        address: u64,
        /// Why.
        reason: Unmapped,
    },
    /// The memory behind the ring is gone; part of the entry may have landed, the head did not move.
    #[error("the client took the memory behind the ring away")]
    Lost,
    /// It lies in registers.
    #[error("ring address {0:#x}: a ring cannot lie in registers")]
    Register(u64),
}

/// The queues of all blocks. Only those that were written take room; the blocks bound their number.
#[derive(Debug, Default)]
pub struct Notifications {
    queues: HashMap<Key, Queue>,
    pending: Option<Pending>,
    tickets: u64,
    /// Entries posted, over resets.
    pub posted: u64,
    /// Entries that could not be posted.
    pub failed: u64,
}

fn locate(at: Location) -> Option<(Key, u32)> {
    let (queue, register) = notification::locate(at.offset)?;
    notification::name(register)?;
    Some(((at.block, at.index, queue), register))
}

/// Low and high word.
fn halves(base: u64) -> [u32; 2] {
    [base, base >> 32].map(|half| u32::try_from(half & 0xffff_ffff).unwrap_or(0))
}

impl Notifications {
    /// Reads a register of a notification block; `None` for one that no queue has.
    pub fn read(&self, at: Location) -> Option<u32> {
        let (key, register) = locate(at)?;
        let queue = self.queues.get(&key).copied().unwrap_or_default();
        let [low, high] = halves(queue.base);
        Some(match register {
            BASE_LOW => low,
            BASE_HIGH => high,
            SIZE => queue.size,
            _ => queue.head,
        })
    }

    /// Writes one. The size, written last, starts the queue at its beginning, or stops it; the head is the device's.
    /// `false` for a register that no queue has.
    pub fn write(&mut self, at: Location, value: u32) -> bool {
        let Some((key, register)) = locate(at) else {
            return false;
        };
        let queue = self.queues.entry(key).or_default();
        let [low, high] = halves(queue.base);
        match register {
            BASE_LOW => queue.base = u64::from(high) << 32 | u64::from(value),
            BASE_HIGH => queue.base = u64::from(value) << 32 | u64::from(low),
            SIZE => {
                queue.size = value;
                queue.head = 0;
                // What is on its way belongs to the ring before.
                if self.pending.is_some_and(|pending| pending.key == key) {
                    self.pending = None;
                }
            }
            _ => {}
        }
        true
    }

    /// Forgets the queues; the totals stay.
    pub fn reset(&mut self) {
        self.queues.clear();
        self.pending = None;
    }

    /// This entry waits for the client.
    pub fn awaits(&self, ticket: u64) -> bool {
        self.pending.is_some_and(|pending| pending.ticket == ticket)
    }

    /// The client answered a message. The head moves when all of the entry has landed.
    pub fn complete(&mut self, ticket: u64, ok: bool) {
        let pending = self.pending.as_mut();
        let Some(pending) = pending.filter(|pending| pending.ticket == ticket) else {
            return;
        };
        pending.failed |= !ok;
        pending.left = pending.left.saturating_sub(1);
        if pending.left > 0 {
            return;
        }
        let Pending {
            key, head, failed, ..
        } = *pending;
        self.pending = None;
        if failed {
            self.failed += 1;
            tracing::warn!("notification lost: the client could not reach its ring");
            return;
        }
        self.posted += 1;
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.head = head;
        }
    }
}

impl NeuronFunction {
    /// Writes an entry into a queue's ring, around its end if need be, and moves the head past it.
    ///
    /// # Errors
    /// Nothing was posted. It is logged and counted.
    pub fn post(
        &mut self,
        block: NotificationBlock,
        index: u8,
        queue: u8,
        bytes: &[u8],
    ) -> Result<Posted, PostError> {
        let result = self.try_post(block, index, queue, bytes);
        if let Err(error) = &result {
            self.notifications.failed += 1;
            tracing::warn!(
                "notification for {} {index} queue {queue} lost: {error}",
                block.name()
            );
        }
        result
    }

    pub(super) fn try_post(
        &mut self,
        block: NotificationBlock,
        index: u8,
        queue: u8,
        bytes: &[u8],
    ) -> Result<Posted, PostError> {
        let block = match block {
            NotificationBlock::Core => Block::CoreNotification,
            NotificationBlock::TopSp => Block::TopSpNotification,
            NotificationBlock::Sdma => Block::SdmaNotification,
        };
        let exists = self.generation.block_base(block, index).is_some()
            && u32::from(queue) < notification::QUEUE_COUNT;
        if !exists {
            return Err(PostError::NoQueue);
        }
        let key = (block, index, u32::from(queue));
        let ring = self.notifications.queues.get(&key).copied();
        let ring = ring
            .filter(|ring| ring.size != 0)
            .ok_or(PostError::Stopped)?;
        let size = usize::try_from(ring.size).unwrap_or(usize::MAX);
        if bytes.is_empty() {
            return Err(PostError::Empty);
        }
        if bytes.len() > size {
            return Err(PostError::TooLong {
                len: bytes.len(),
                size: ring.size,
            });
        }
        if !self.pci.bus_master() {
            return Err(PostError::BusMaster);
        }
        if self.notifications.pending.is_some() {
            return Err(PostError::Busy);
        }
        // All of it is resolved before the first byte is written: an entry lands whole or not at all.
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let at = (ring.head as usize + done) % size;
            let address = ring.base.wrapping_add(at as u64);
            let len = (bytes.len() - done).min(size - at);
            let target = self
                .memory
                .resolve(address, len, Access::Write)
                .map_err(|reason| PostError::Unmapped { address, reason })?;
            if matches!(target, Target::Register { .. }) {
                return Err(PostError::Register(address));
            }
            let len = target.len();
            pieces.push((target, done..done + len));
            done += len;
        }
        let mut messages = Vec::new();
        for (target, range) in pieces {
            match target {
                Target::Memory(slice) => {
                    self.memory
                        .write(&bytes[range], &slice)
                        .map_err(|_| PostError::Lost)?;
                }
                Target::Message { iova, .. } => messages.push((iova, bytes[range].to_vec())),
                // Refused above.
                Target::Register { .. } => {}
            }
        }
        let head = u32::try_from((ring.head as usize + done) % size).unwrap_or(0);
        let posted = Posted {
            offset: ring.head,
            head,
        };
        self.notifications.tickets += 1;
        let ticket = self.notifications.tickets;
        self.notifications.pending = Some(Pending {
            ticket,
            key,
            head,
            left: messages.len(),
            failed: false,
        });
        if messages.is_empty() {
            self.notifications.complete(ticket, true);
        }
        for (iova, data) in messages {
            self.ask(
                Asker::Notification { ticket },
                DmaRequest::Write { iova, data },
            );
        }
        Ok(posted)
    }
}

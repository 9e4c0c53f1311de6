//! One ring as the picture needs it: batches, and the descriptors inside them.
use std::collections::VecDeque;

use neuron_protocol::descriptor::{Barrier, DESCRIPTOR_SIZE, RxDescriptor, TxDescriptor};
use neuron_protocol::registers::Direction;

/// Doorbells that are told apart; more of them count to the last one.
const BATCHES: usize = 1024;
/// Descriptors remembered from the prefetch, which holds fewer.
const FETCHED: usize = 1024;

/// What one doorbell added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number that joins its events.
    pub flow: u64,
    /// Descriptors.
    pub count: u32,
    /// Of them not done.
    pub left: u32,
}

/// A descriptor in the prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Index in the ring.
    pub index: u32,
    /// Bytes not yet moved.
    pub left: u32,
    /// m2s: the end of a packet.
    pub last: bool,
    /// How it is ordered against others.
    pub barrier: Barrier,
}

impl Fetched {
    /// Decodes a descriptor.
    pub fn new(direction: Direction, index: u32, raw: [u8; DESCRIPTOR_SIZE]) -> Self {
        match direction {
            Direction::M2s => {
                let descriptor: TxDescriptor = zerocopy::transmute!(raw);
                let len_ctrl = descriptor.len_ctrl();
                let barrier = if len_ctrl.dmb() {
                    Barrier::Dmb
                } else if descriptor.meta_ctrl().write_barrier() {
                    Barrier::Write
                } else {
                    Barrier::None
                };
                Self {
                    index,
                    left: len_ctrl.byte_length(),
                    last: len_ctrl.last(),
                    barrier,
                }
            }
            Direction::S2m => {
                let descriptor: RxDescriptor = zerocopy::transmute!(raw);
                let len_ctrl = descriptor.len_ctrl();
                let strong = len_ctrl.strong_order();
                Self {
                    index,
                    left: len_ctrl.byte_length(),
                    last: false,
                    barrier: if strong {
                        Barrier::StrongOrder
                    } else {
                        Barrier::None
                    },
                }
            }
        }
    }
}

/// What is drawn as begun and not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// A batch.
    pub batch: bool,
    /// A descriptor inside it: its index.
    pub descriptor: Option<u32>,
    /// The batch is done since then; a marker of the same step may still belong to it.
    pub done_at: Option<u64>,
}

/// One ring.
#[derive(Debug, Default)]
pub struct Ring {
    /// Doorbells with work left, oldest first.
    pub batches: VecDeque<Batch>,
    /// The prefetch.
    pub fetched: VecDeque<Fetched>,
    /// What is drawn.
    pub open: Open,
    /// Flow of the batch that ended last.
    pub last_flow: Option<u64>,
    /// Descriptors rung for and not done.
    pub depth: u64,
}

impl Ring {
    /// A doorbell.
    pub fn ring(&mut self, count: u32, flow: u64) {
        if count == 0 {
            return;
        }
        self.depth += u64::from(count);
        if self.batches.len() < BATCHES {
            self.batches.push_back(Batch {
                flow,
                count,
                left: count,
            });
        } else if let Some(last) = self.batches.back_mut() {
            last.count = last.count.saturating_add(count);
            last.left = last.left.saturating_add(count);
        }
    }

    /// A descriptor came into the prefetch.
    pub fn fetch(&mut self, fetched: Fetched) {
        if self.fetched.len() == FETCHED {
            self.fetched.pop_front();
        }
        self.fetched.push_back(fetched);
    }

    /// The descriptor with this index, now in use; those before it are forgotten.
    pub fn current(&mut self, index: u32) -> Option<&mut Fetched> {
        let at = self
            .fetched
            .iter()
            .position(|fetched| fetched.index == index)?;
        self.fetched.drain(..at);
        self.fetched.front_mut()
    }

    /// The oldest descriptor is done. Returns whether its batch is.
    pub fn retire(&mut self) -> bool {
        self.fetched.pop_front();
        let Some(batch) = self.batches.front_mut() else {
            return false;
        };
        batch.left -= 1;
        self.depth = self.depth.saturating_sub(1);
        if batch.left > 0 {
            return false;
        }
        self.last_flow = self.batches.pop_front().map(|batch| batch.flow);
        true
    }

    /// Bytes of the prefetch that have not landed.
    pub fn in_flight(&self) -> u64 {
        self.fetched
            .iter()
            .map(|fetched| u64::from(fetched.left))
            .sum()
    }

    /// Pending work is dropped; what is drawn stays for the caller to end.
    pub fn clear(&mut self) {
        self.batches.clear();
        self.fetched.clear();
        self.depth = 0;
    }
}

//! One direction of a queue: its registers, its pointers, and the descriptors fetched ahead.
use std::collections::VecDeque;

use neuron_protocol::descriptor::DESCRIPTOR_SIZE;
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::{
    self, Cfg, INDEX_MASK, Pointer, RING_BASE_LOW_MASK, Status,
};
use neuron_protocol::ring::ALIGNMENT;

/// A descriptor as fetched.
pub type RawDescriptor = [u8; DESCRIPTOR_SIZE];

/// Most descriptors held between fetch and use: the prefetch buffer is 128 deep and the driver keeps its threshold
/// below (contract §5.3 step 6).
pub const PREFETCH_DEPTH: u32 = 64;

/// `rlimit.mask` bit that masks the pause a DMB makes (udma §3, facts §3.2).
const RLIMIT_MASK_DMB: u32 = 1 << 2;

/// The hardware's side of a descriptor ring.
#[derive(Debug)]
pub struct Ring {
    direction: Direction,
    /// Enables.
    pub cfg: Cfg,
    base: u64,
    length: u32,
    completion_base: u64,
    comp_cfg: u32,
    rlimit_mask: u32,
    /// Next to fetch.
    pub head: Pointer,
    /// One past the last rung for.
    pub tail: Pointer,
    /// First that is not done. The completion head is the same: there is no completion ring to lag behind it.
    pub current: Pointer,
    /// Rung for and not fetched.
    pub unfetched: u32,
    /// Fetched and not taken.
    pub fetched: VecDeque<RawDescriptor>,
    /// Of these, how many at the front an audit has looked at again.
    pub audited: u32,
    /// Doorbell writes since the queue's reset.
    pub doorbells: u64,
    /// Descriptors done since the queue's reset.
    pub done: u64,
    /// Rung for and not done.
    pub outstanding: u32,
    /// Done, which the heads do not say yet.
    pub unshown: u32,
    /// What the heads say meanwhile.
    shown: Pointer,
    /// An adversary decides when heads move.
    lags: bool,
}

impl Ring {
    /// A ring as after power-on.
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            cfg: Cfg::RESET,
            base: 0,
            length: 0,
            completion_base: 0,
            comp_cfg: 0,
            rlimit_mask: 0b111,
            head: Pointer::RESET,
            tail: Pointer::RESET,
            current: Pointer::RESET,
            unfetched: 0,
            fetched: VecDeque::new(),
            audited: 0,
            doorbells: 0,
            done: 0,
            outstanding: 0,
            unshown: 0,
            shown: Pointer::RESET,
            lags: false,
        }
    }

    /// Ring base as programmed.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Ring length in descriptors.
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Address of a descriptor, as the engine sees it.
    pub fn address_of(&self, index: u32) -> u64 {
        self.base.wrapping_add(u64::from(index) * 16)
    }

    /// Address of the next descriptor to fetch by a pointer that is wrong by `by`.
    pub fn shifted(&self, by: i32) -> u64 {
        let wrong =
            (i64::from(self.head.index) + i64::from(by)).rem_euclid(i64::from(self.length.max(1)));
        self.address_of(u32::try_from(wrong).unwrap_or(0))
    }

    /// What a queue reset does (contract §5.4): pointers to 0 in the first lap, everything rung for dropped.
    /// Returns how many descriptors that were.
    pub fn reset(&mut self) -> u32 {
        let dropped = self.outstanding;
        self.head = Pointer::RESET;
        self.tail = Pointer::RESET;
        self.current = Pointer::RESET;
        self.unfetched = 0;
        self.fetched.clear();
        self.audited = 0;
        self.outstanding = 0;
        self.doorbells = 0;
        self.done = 0;
        self.keep_up();
        dropped
    }

    /// Moves the tail by a doorbell that fits.
    pub fn ring(&mut self, count: u32) {
        self.tail = self.tail.advanced(count, self.length);
        self.unfetched += count;
        self.outstanding += count;
        self.doorbells += 1;
    }

    /// The next stretch to fetch: address and count. Ends at the ring's end.
    pub fn next_fetch(&self) -> Option<(u64, u32)> {
        let count = self
            .unfetched
            .min(PREFETCH_DEPTH)
            .min(self.length.saturating_sub(self.head.index));
        (count > 0).then(|| (self.address_of(self.head.index), count))
    }

    /// Takes fetched descriptors in.
    pub fn accept(&mut self, descriptors: &[RawDescriptor]) {
        self.fetched.extend(descriptors);
        let count = u32::try_from(descriptors.len()).unwrap_or(u32::MAX);
        self.head = self.head.advanced(count, self.length);
        self.unfetched = self.unfetched.saturating_sub(count);
    }

    /// Base and end are on the boundary that prefetch reads by (contract §5.4).
    pub fn is_aligned(&self) -> bool {
        let end = self.address_of(self.length);
        self.base.is_multiple_of(ALIGNMENT) && end.is_multiple_of(ALIGNMENT)
    }

    /// A descriptor is done: its bytes have landed.
    pub fn retire(&mut self) {
        self.current = self.current.advanced(1, self.length);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.done += 1;
        self.unshown += u32::from(self.lags);
    }

    /// From now on heads move when they are [`Self::show`]n.
    pub const fn lag(&mut self) {
        self.lags = true;
        self.unshown = 0;
        self.shown = self.current;
    }

    /// Heads move by themselves.
    pub const fn keep_up(&mut self) {
        self.lags = false;
        self.unshown = 0;
    }

    /// Heads move up to the descriptor before which `done` were done.
    pub fn show(&mut self, done: u64) {
        let shown = self.done - u64::from(self.unshown);
        let count = u32::try_from(done.saturating_sub(shown)).unwrap_or(u32::MAX);
        let count = count.min(self.unshown);
        self.shown = self.shown.advanced(count, self.length);
        self.unshown -= count;
    }

    /// Where software sees that work has got to.
    const fn head_shown(&self) -> Pointer {
        if self.unshown == 0 {
            self.current
        } else {
            self.shown
        }
    }

    /// A DMB holds its queue up: the limiter's pause is not masked (udma §3: 0x74 bit 2).
    pub const fn obeys_dmb(&self) -> bool {
        self.rlimit_mask & RLIMIT_MASK_DMB == 0
    }

    /// Reads a register of the block; `None` where it is plain storage.
    pub fn read(&self, offset: u32) -> Option<u32> {
        Some(match offset {
            queue::CFG => self.cfg.into_bits(),
            queue::STATUS => Status::new()
                .with_used(self.outstanding.saturating_add(self.unshown) & 0x1ff_ffff)
                .with_prefetching(self.unfetched > 0)
                .with_active(self.outstanding + self.unshown > 0)
                .with_full(self.length > 0 && self.outstanding == self.length)
                .into_bits(),
            queue::DRBP_LOW => low(self.base),
            queue::DRBP_HIGH => high(self.base),
            queue::DRL => self.length,
            queue::DRHP => self.head.into_register(),
            queue::DRTP_INC => 0,
            queue::DRTP => self.tail.into_register(),
            queue::DCP | queue::CRHP => self.head_shown().into_register(),
            queue::CRBP_LOW => low(self.completion_base),
            queue::CRBP_HIGH => high(self.completion_base),
            queue::RLIMIT_MASK if self.direction == Direction::M2s => self.rlimit_mask,
            _ if offset == queue::comp_cfg(self.direction) => self.comp_cfg,
            _ if offset == queue::sw_ctrl(self.direction) => 0,
            _ => return None,
        })
    }

    /// Writes a register that has no effect beyond its value; `false` where it is plain storage.
    ///
    /// Doorbell and queue reset are the caller's. Read-only registers ignore the write.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        match offset {
            queue::CFG => self.cfg = Cfg::from_bits(value),
            queue::DRBP_LOW => self.base = join(high(self.base), value & RING_BASE_LOW_MASK),
            queue::DRBP_HIGH => self.base = join(value, low(self.base)),
            queue::DRL => self.length = value & INDEX_MASK,
            queue::CRBP_LOW => {
                self.completion_base = join(high(self.completion_base), value & RING_BASE_LOW_MASK);
            }
            queue::CRBP_HIGH => self.completion_base = join(value, low(self.completion_base)),
            queue::RLIMIT_MASK if self.direction == Direction::M2s => self.rlimit_mask = value,
            _ if offset == queue::comp_cfg(self.direction) => self.comp_cfg = value,
            queue::STATUS | queue::DRHP | queue::DRTP | queue::DCP | queue::CRHP => {}
            _ => return false,
        }
        true
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half is what is wanted"
)]
const fn low(value: u64) -> u32 {
    value as u32
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

const fn join(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

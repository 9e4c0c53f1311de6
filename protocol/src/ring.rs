//! A descriptor ring as the driver sees it: sizes, phase and cursors (seed §1).
//!
//! The device keeps its own pointers; the two sides share nothing but the descriptors and the
//! doorbell. The driver never reads a hardware pointer on the data path, so its two cursors alone
//! decide whether a descriptor may be written (seed §8).

use core::fmt;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use crate::descriptor::DESCRIPTOR_SIZE;

/// Slots the producer always keeps free behind the consumer: one cache line of completion
/// descriptors, `UDMA_MAX_NUM_CDESC_PER_CACHE_LINE` (seed §1, udma §7).
pub const GUARD: u32 = 16;

/// Smallest ring the driver programs, in descriptors (contract §5.4, udma §7).
pub const MIN_SIZE: u32 = 32;

/// Largest ring the driver programs, in descriptors (contract §5.4, udma §7).
pub const MAX_SIZE: u32 = (1 << 24) - 16;

/// First and last byte boundary of a ring, in bytes: prefetch reads whole 256-byte lines
/// (contract §5.4, udma §7).
pub const ALIGNMENT: u64 = 256;

/// Ring sizes are a multiple of this many descriptors, so that the end is aligned as well.
pub const SIZE_STEP: u32 = 16;

/// Nominal depth of a host-to-device ring, `DMA_H2T_DESC_COUNT` (seed §1).
///
/// The allocated depth is [`allocated_count`] of it: 8192.
pub const H2T_DESC_COUNT: u32 = 4096;

/// Data descriptors already staged when the next one closes the batch: 2031.
///
/// Computed from the nominal ring, not the allocated one (seed §1, correction RING-1).
pub const SYNC_THRESHOLD: u32 = H2T_DESC_COUNT / 2 - GUARD - 1;

/// Data descriptors in a full batch: 2032; with its marker a full batch rings 2033.
///
/// The seed says 2031 and the contract (§8.4) says 2032: both are right about different things.
/// The drivers 2.24.7.0 and 2.25.4.0 compare the number of descriptors staged *so far* with
/// [`SYNC_THRESHOLD`] and stage one more when they are equal, so the threshold is 2031 and the
/// batch 2032. The seed's listing (2.27.4.0) counts before it compares, which would give 2031.
/// A device must take either; the write barrier is on the last one in both. Watched at the device:
/// both drivers ring 2033 for a full batch.
pub const FULL_BATCH_DATA: u32 = SYNC_THRESHOLD + 1;

/// Descriptors allocated for a ring of `requested` ones: 64 below 32, else the next power of two
/// that also holds the guard (contract §8.4, facts §3.7). `None` beyond [`MAX_SIZE`].
pub const fn allocated_count(requested: u32) -> Option<u32> {
    if requested < MIN_SIZE {
        return Some(64);
    }
    if requested > MAX_SIZE {
        return None;
    }
    let count = (requested + GUARD).next_power_of_two();
    // 2^24 itself is already too long for the 24-bit length register's limit.
    if count > MAX_SIZE { None } else { Some(count) }
}

/// Why a ring cannot be built or used as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// Outside [`MIN_SIZE`] ..= [`MAX_SIZE`], or not a multiple of [`SIZE_STEP`].
    #[error("a ring of {0} descriptors: must be a multiple of 16 in 32..=16777200")]
    Size(u32),
    /// Cursors wrap by mask; rings of other sizes must be authored whole, without cursors.
    #[error("a ring of {0} descriptors has no wrap-around cursors: not a power of two")]
    NotPowerOfTwo(u32),
    /// Base or end not on a 256-byte boundary, or the end is beyond the address space.
    #[error("ring base {0:#x}: must be 256-byte aligned and end below 2^64")]
    Base(u64),
    /// No slot outside the guard is free.
    #[error(
        "ring full: every slot outside the 16-descriptor guard waits for its completion; ack finished batches first"
    )]
    Full,
    /// More completions acknowledged than descriptors were produced.
    #[error("ack of {count} descriptors, but only {outstanding} are outstanding")]
    AckBeyondProducer {
        /// What was to be acknowledged.
        count: u32,
        /// What the ring had.
        outstanding: u32,
    },
}

/// A ring length the hardware accepts, in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingSize(u32);

impl RingSize {
    /// Checks `descriptors` against the limits of the hardware.
    ///
    /// # Errors
    /// [`RingError::Size`].
    pub const fn new(descriptors: u32) -> Result<Self, RingError> {
        if descriptors < MIN_SIZE
            || descriptors > MAX_SIZE
            || !descriptors.is_multiple_of(SIZE_STEP)
        {
            return Err(RingError::Size(descriptors));
        }
        Ok(Self(descriptors))
    }

    /// Length in descriptors, as `drl` takes it.
    pub const fn descriptors(self) -> u32 {
        self.0
    }

    /// Length in bytes.
    pub const fn bytes(self) -> u64 {
        self.0 as u64 * DESCRIPTOR_SIZE as u64
    }

    /// Checks that a ring of this size may lie at `base`.
    ///
    /// # Errors
    /// [`RingError::Base`].
    pub const fn check_base(self, base: u64) -> Result<(), RingError> {
        if !base.is_multiple_of(ALIGNMENT) || base.checked_add(self.bytes()).is_none() {
            return Err(RingError::Base(base));
        }
        Ok(())
    }
}

/// One descriptor slot handed out to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index in the ring, in descriptors.
    pub index: u32,
    /// Phase the descriptor must carry.
    pub ring_id: RingId,
}

/// The two positions of a ring, shareable between the one producer and any number of completers.
///
/// `next_cdesc_idx` is no index into a completion ring: there is none. It is a counter that only
/// [`ack`](Self::ack) moves (seed §1, QUIRK).
#[derive(Debug)]
pub struct Cursors {
    size_mask: u32,
    next_desc_idx: AtomicU32,
    next_cdesc_idx: AtomicU32,
}

impl Cursors {
    /// Cursors of an empty ring of `size` descriptors, which must be a power of two.
    ///
    /// # Errors
    /// [`RingError::NotPowerOfTwo`].
    pub fn new(size: RingSize) -> Result<Self, RingError> {
        let size = size.descriptors();
        if !size.is_power_of_two() {
            return Err(RingError::NotPowerOfTwo(size));
        }
        Ok(Self {
            size_mask: size - 1,
            next_desc_idx: AtomicU32::new(0),
            next_cdesc_idx: AtomicU32::new(0),
        })
    }

    /// Ring length in descriptors.
    pub const fn size(&self) -> u32 {
        self.size_mask + 1
    }

    /// Slots the producer may fill now; at most `size - 16` (seed §1 `udma_available_get`).
    ///
    /// Exact for the producer, who alone can lower it; a snapshot for everyone else.
    pub fn available(&self) -> u32 {
        let consumer = self.next_cdesc_idx.load(Ordering::Acquire);
        let producer = self.next_desc_idx.load(Ordering::Acquire);
        consumer.wrapping_sub(producer.wrapping_add(GUARD)) & self.size_mask
    }

    /// Descriptors produced and not acknowledged yet.
    pub fn outstanding(&self) -> u32 {
        // The consumer first: a producer position loaded after it is never older than it.
        let consumer = self.next_cdesc_idx.load(Ordering::Acquire);
        self.outstanding_since(consumer)
    }

    /// Index of the next descriptor to be produced.
    pub fn next_desc_idx(&self) -> u32 {
        self.next_desc_idx.load(Ordering::Acquire)
    }

    /// Completion counter, modulo the ring size.
    pub fn next_cdesc_idx(&self) -> u32 {
        self.next_cdesc_idx.load(Ordering::Acquire)
    }

    /// Gives `count` finished descriptors back to the producer (seed §5).
    ///
    /// Lock-free, because completions of several batches are acknowledged from several threads.
    /// The rx ring goes first, then the tx ring: that order is the caller's.
    ///
    /// # Errors
    /// [`RingError::AckBeyondProducer`]; nothing has moved. (The driver has no such check.)
    pub fn ack(&self, count: u32) -> Result<(), RingError> {
        let mut old = self.next_cdesc_idx.load(Ordering::Acquire);
        loop {
            let outstanding = self.outstanding_since(old);
            if count > outstanding {
                // A completer that was overtaken compares an old consumer with a new producer.
                let current = self.next_cdesc_idx.load(Ordering::Acquire);
                if current != old {
                    old = current;
                    continue;
                }
                return Err(RingError::AckBeyondProducer { count, outstanding });
            }
            let new = old.wrapping_add(count) & self.size_mask;
            match self.next_cdesc_idx.compare_exchange_weak(
                old,
                new,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(current) => old = current,
            }
            #[cfg(not(loom))]
            core::hint::spin_loop();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
    }

    fn outstanding_since(&self, consumer: u32) -> u32 {
        let producer = self.next_desc_idx.load(Ordering::Acquire);
        producer.wrapping_sub(consumer) & self.size_mask
    }
}

/// The one writer of a ring: it alone moves `next_desc_idx` and the phase.
#[derive(Debug)]
pub struct Producer<'a> {
    cursors: &'a Cursors,
    ring_id: &'a mut RingId,
}

impl Producer<'_> {
    /// Takes the next slot, in the order of seed §1: the index moves first, then the phase of the
    /// slot just taken is read, and advances for the slot after it if the index came back to 0.
    ///
    /// # Errors
    /// [`RingError::Full`]; nothing has moved.
    pub fn take(&mut self) -> Result<Slot, RingError> {
        if self.cursors.available() == 0 {
            return Err(RingError::Full);
        }
        let index = self.cursors.next_desc_idx.load(Ordering::Relaxed);
        let next = index.wrapping_add(1) & self.cursors.size_mask;
        self.cursors.next_desc_idx.store(next, Ordering::Release);
        let ring_id = *self.ring_id;
        if next == 0 {
            *self.ring_id = ring_id.next();
        }
        Ok(Slot { index, ring_id })
    }
}

/// A ring as its driver keeps it: the cursors and the phase of the next descriptor.
#[derive(Debug)]
pub struct DriverRing {
    cursors: Cursors,
    ring_id: RingId,
}

impl DriverRing {
    /// An empty ring, as after a queue reset: index 0, phase [`RingId::INITIAL`].
    ///
    /// # Errors
    /// [`RingError::NotPowerOfTwo`].
    pub fn new(size: RingSize) -> Result<Self, RingError> {
        Ok(Self {
            cursors: Cursors::new(size)?,
            ring_id: RingId::INITIAL,
        })
    }

    /// Parts the ring into its one producer and the cursors that completers share.
    pub fn split(&mut self) -> (Producer<'_>, &Cursors) {
        (
            Producer {
                cursors: &self.cursors,
                ring_id: &mut self.ring_id,
            },
            &self.cursors,
        )
    }

    /// See [`Producer::take`].
    ///
    /// # Errors
    /// [`RingError::Full`]; nothing has moved.
    pub fn take(&mut self) -> Result<Slot, RingError> {
        self.split().0.take()
    }

    /// The shared positions: sizes, free slots, and [`Cursors::ack`].
    pub fn cursors(&self) -> &Cursors {
        &self.cursors
    }

    /// Phase the next descriptor will carry.
    pub fn ring_id(&self) -> RingId {
        self.ring_id
    }
}

/// The 2-bit phase every descriptor carries in bits 25:24 of its first word.
///
/// It tells a descriptor of this lap from a stale one of the lap before. Both rings of a queue
/// count on their own, and a queue reset brings both sides back to [`RingId::INITIAL`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RingId(u8);

impl RingId {
    /// Bits a ring id has: `DMA_RING_ID_MASK` (seed §1).
    pub const MASK: u8 = 0x3;

    /// Phase of the first lap: 1, so that zeroed memory never looks valid (seed §1, udma §6).
    pub const INITIAL: Self = Self(1);

    /// Takes the low two bits of `bits`; the others are not part of a ring id.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::MASK)
    }

    /// The two bits, 0..=3.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Phase of the following lap: 1, 2, 3, 0, 1, ... (contract §8.3).
    #[must_use]
    pub const fn next(self) -> Self {
        Self::from_bits(self.0 + 1)
    }
}

impl Default for RingId {
    fn default() -> Self {
        Self::INITIAL
    }
}

impl From<RingId> for u32 {
    fn from(id: RingId) -> Self {
        u32::from(id.0)
    }
}

impl fmt::Debug for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingId({})", self.0)
    }
}

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::{model, sync::Arc, thread};

    const SIZE: u32 = 32;

    fn ring_with(outstanding: u32) -> (Arc<Cursors>, RingId) {
        let cursors = Arc::new(Cursors::new(RingSize::new(SIZE).unwrap()).unwrap());
        let mut ring_id = RingId::INITIAL;
        let mut producer = Producer {
            cursors: &cursors,
            ring_id: &mut ring_id,
        };
        for _ in 0..outstanding {
            producer.take().unwrap();
        }
        (cursors, ring_id)
    }

    /// Two completers (the second async context, the zero-copy thread) lose no completion.
    #[test]
    fn loom_concurrent_acks_add_up() {
        model(|| {
            let (cursors, _) = ring_with(7);
            let other = {
                let cursors = Arc::clone(&cursors);
                thread::spawn(move || cursors.ack(4).unwrap())
            };
            cursors.ack(3).unwrap();
            other.join().unwrap();
            assert_eq!(cursors.next_cdesc_idx(), 7);
            assert_eq!(cursors.available(), SIZE - GUARD);
        });
    }

    /// Of two acks that together exceed what is outstanding exactly one is refused.
    #[test]
    fn loom_concurrent_acks_never_pass_the_producer() {
        model(|| {
            let (cursors, _) = ring_with(5);
            let other = {
                let cursors = Arc::clone(&cursors);
                thread::spawn(move || cursors.ack(4).is_ok())
            };
            let mine = cursors.ack(4).is_ok();
            assert!(mine ^ other.join().unwrap());
            assert_eq!(cursors.outstanding(), 1);
        });
    }

    /// A producer beside two completers stays out of the guard and sees every slot come back.
    #[test]
    fn loom_producer_beside_two_completers_keeps_the_guard() {
        model(|| {
            let (cursors, mut ring_id) = ring_with(SIZE - GUARD);
            let completers = [1, 2].map(|count| {
                let cursors = Arc::clone(&cursors);
                thread::spawn(move || cursors.ack(count).unwrap())
            });
            let mut producer = Producer {
                cursors: &cursors,
                ring_id: &mut ring_id,
            };
            let mut taken = 0;
            for _ in 0..2 {
                taken += u32::from(producer.take().is_ok());
                assert!(cursors.outstanding() <= SIZE - GUARD);
            }
            for completer in completers {
                completer.join().unwrap();
            }
            assert_eq!(cursors.available(), 3 - taken);
        });
    }
}

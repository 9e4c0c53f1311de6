//! The per-queue register block (contract §5.2, udma §2).
use bitfield_struct::bitfield;

use super::Direction;
use crate::ring::RingId;

/// Bytes from one queue's block to the next (contract §5.2).
pub const QUEUE_STRIDE: u32 = 0x1000;
/// From the start of the m2s or s2m unit to queue 0 (contract §5.2).
pub const QUEUES: u32 = 0x1000;

/// Enables; [`Cfg`].
pub const CFG: u32 = 0x20;
/// Read-only; [`Status`].
pub const STATUS: u32 = 0x24;
/// Ring base, bits 31:6.
pub const DRBP_LOW: u32 = 0x28;
/// Ring base, bits 63:32.
pub const DRBP_HIGH: u32 = 0x2c;
/// Ring length in descriptors, 24 bits.
pub const DRL: u32 = 0x30;
/// Head: next descriptor to prefetch; [`Pointer`].
pub const DRHP: u32 = 0x34;
/// **The doorbell**: adds its low 24 bits to the tail (seed §3).
pub const DRTP_INC: u32 = 0x38;
/// Tail: one past the last descriptor rung for; [`Pointer`].
pub const DRTP: u32 = 0x3c;
/// Current: first descriptor that is fetched and not done; [`Pointer`].
pub const DCP: u32 = 0x40;
/// Completion ring base, bits 31:6. Always 0 here (seed §1).
pub const CRBP_LOW: u32 = 0x44;
/// Completion ring base, bits 63:32.
pub const CRBP_HIGH: u32 = 0x48;
/// Completion head: advances with each descriptor done, without a completion ring (contract §5.3 step 4); [`Pointer`].
pub const CRHP: u32 = 0x4c;
/// m2s only: rate limiter mask; bit 2 clear lets DMB pause the queue.
pub const RLIMIT_MASK: u32 = 0x74;

/// Completion configuration of a direction; the driver writes 0.
#[must_use]
pub const fn comp_cfg(direction: Direction) -> u32 {
    match direction {
        Direction::M2s => 0xa0,
        Direction::S2m => 0x54,
    }
}

/// Queue reset of a direction; [`SwCtrl`].
#[must_use]
pub const fn sw_ctrl(direction: Direction) -> u32 {
    match direction {
        Direction::M2s => 0xb0,
        Direction::S2m => 0x64,
    }
}

/// The registers that user space may not write, in both directions of every queue (seed §3 `udma_blocked`).
pub const BLOCKED: [u32; 5] = [DRBP_LOW, DRBP_HIGH, CRBP_LOW, CRBP_HIGH, DRTP_INC];

/// Bits of the ring base that exist (udma §2: 31:6 on revision 4).
pub const RING_BASE_LOW_MASK: u32 = 0xffff_ffc0;
/// Bits of a length, an index or a doorbell (udma §2).
pub const INDEX_MASK: u32 = 0x00ff_ffff;

/// [`CFG`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cfg {
    /// m2s: packet length offset.
    pub pkt_len_offset: u16,
    /// Fetch descriptors.
    pub prefetch: bool,
    /// m2s: schedule packets; s2m: accept the stream.
    pub schedule: bool,
    #[bits(14)]
    rest: u16,
}

impl Cfg {
    /// Value after power-on and queue pause (facts §3.2: `[27:24]` = 3).
    pub const RESET: Self = Self::from_bits(0x0300_0000);

    /// Both enables are set.
    #[must_use]
    pub const fn enabled(self) -> bool {
        self.prefetch() && self.schedule()
    }
}

/// [`STATUS`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// Descriptors between head and tail.
    #[bits(25)]
    pub used: u32,
    #[bits(3)]
    reserved: u8,
    /// Prefetch runs.
    pub prefetching: bool,
    /// Scheduler (m2s) or receiver (s2m) active.
    pub active: bool,
    /// m2s: suspended by a DMB.
    pub dmb: bool,
    /// Every slot holds a descriptor that is not fetched: tells full from empty when head equals tail.
    pub full: bool,
}

/// A position in a ring: index 23:0, ring id 31:30 (udma §2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PointerBits {
    /// Descriptor index.
    #[bits(24)]
    pub index: u32,
    #[bits(6)]
    reserved: u8,
    /// Ring id of the lap.
    #[bits(2)]
    pub ring_id: u8,
}

/// A hardware position in a ring of `length` descriptors, with the ring id of its lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Descriptor index, below the ring's length.
    pub index: u32,
    /// Lap.
    pub ring_id: RingId,
}

impl Pointer {
    /// After a queue reset: index 0 of the first lap (udma §2).
    pub const RESET: Self = Self {
        index: 0,
        ring_id: RingId::INITIAL,
    };

    /// Moves on by `count` descriptors; each passage of the end begins a new lap.
    ///
    /// A ring of length 0 has no positions: the pointer stays.
    #[must_use]
    pub const fn advanced(self, count: u32, length: u32) -> Self {
        if length == 0 {
            return self;
        }
        let sum = self.index as u64 + count as u64;
        // Nearly always: no division in the way of each descriptor.
        if sum < length as u64 {
            #[expect(clippy::cast_possible_truncation, reason = "smaller than a u32")]
            let index = sum as u32;
            return Self { index, ..self };
        }
        let laps = sum / length as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a remainder of a u32 divisor, and two bits"
        )]
        let (index, laps) = ((sum % length as u64) as u32, (laps % 4) as u8);
        Self {
            index,
            ring_id: RingId::from_bits(self.ring_id.bits() + laps),
        }
    }

    /// The register's value.
    #[must_use]
    pub const fn into_register(self) -> u32 {
        PointerBits::new()
            .with_index(self.index & INDEX_MASK)
            .with_ring_id(self.ring_id.bits())
            .into_bits()
    }
}

/// [`sw_ctrl`] (udma §2). The positions differ by direction in bits 0 to 4; bit 8 is common.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SwCtrl {
    #[bits(8)]
    partial: u8,
    /// Reset the whole queue of this direction.
    pub reset_queue: bool,
    #[bits(23)]
    rest: u32,
}

/// Name of a register in the block, if it is known.
#[must_use]
pub fn name(direction: Direction, offset: u32) -> Option<&'static str> {
    Some(match offset {
        0x00 => "desc_pref_cfg",
        CFG => "cfg",
        STATUS => "status",
        DRBP_LOW => "drbp_low",
        DRBP_HIGH => "drbp_high",
        DRL => "drl",
        DRHP => "drhp",
        DRTP_INC => "drtp_inc",
        DRTP => "drtp",
        DCP => "dcp",
        CRBP_LOW => "crbp_low",
        CRBP_HIGH => "crbp_high",
        CRHP => "crhp",
        0x50 => "crhp_internal",
        _ if offset == comp_cfg(direction) => "comp_cfg",
        _ if offset == sw_ctrl(direction) => "q_sw_ctrl",
        RLIMIT_MASK if direction == Direction::M2s => "rlimit.mask",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_counts_laps() {
        let at = |count, length| {
            let pointer = Pointer::RESET.advanced(count, length);
            (pointer.index, pointer.ring_id.bits())
        };
        assert_eq!(at(63, 64), (63, 1));
        assert_eq!(at(64, 64), (0, 2));
        assert_eq!(at(192, 64), (0, 0));
        assert_eq!(at(256, 64), (0, 1));
        assert_eq!(at(96 + 5, 96), (5, 2));
        assert_eq!(at(7, 0), (0, 1));
        assert_eq!(at(u32::MAX, 1), (0, 0));
    }

    #[test]
    fn a_reset_pointer_reads_ring_id_1() {
        assert_eq!(Pointer::RESET.into_register(), 0x4000_0000);
    }
}

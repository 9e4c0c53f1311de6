//! A descriptor ring as the driver sees it: sizes, phase and cursors (seed §1).

use core::fmt;

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

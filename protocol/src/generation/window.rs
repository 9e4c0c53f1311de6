//! Entries of the two address tables: the register BAR's decode, and the device-side addresses beside it.

/// What a stretch of the register BAR holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Block {
    /// A DMA engine: m2s, s2m, general and extended blocks; indexed by engine (contract §5.2).
    Udma,
    /// The SDMA wrapper of an engine; indexed by engine (contract §5.3 step 7).
    Sdma,
    /// Notification block of an SDMA wrapper; indexed by engine (contract §9).
    SdmaNotification,
    /// Error trigger ("FIS") block of an engine; indexed by engine (contract §5.1).
    ErrorTrigger,
    /// A core's tile: state buffer, PSUM, events, semaphores; indexed by core (contract §6.1).
    CoreTile,
    /// Notification block of a core; indexed by core (contract §9).
    CoreNotification,
    /// Tensor-engine activity counters of a core; indexed by core (contract §9).
    Activity,
    /// A top-level synchronisation processor's events and semaphores; indexed by processor (contract §6.1).
    TopSp,
    /// Notification block of such a processor; indexed by processor (contract §9).
    TopSpNotification,
    /// The firmware mailbox window (contract §4).
    MiscRam,
    /// The reserved block with the reset doorbell of the qemu platform (contract §7).
    Reset,
}

impl Block {
    /// Short name for register names in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udma => "udma",
            Self::Sdma => "sdma",
            Self::SdmaNotification => "sdma_notific",
            Self::ErrorTrigger => "errtrig",
            Self::CoreTile => "core",
            Self::CoreNotification => "core_notific",
            Self::Activity => "activity",
            Self::TopSp => "topsp",
            Self::TopSpNotification => "topsp_notific",
            Self::MiscRam => "misc_ram",
            Self::Reset => "reset",
        }
    }
}

/// `count` equal blocks at a fixed distance.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Offset of the first one in the register BAR.
    pub base: u32,
    /// Distance between them, bytes.
    pub stride: u32,
    /// How many.
    pub count: u8,
    /// Bytes of each that belong to the block.
    pub size: u32,
    /// What they are.
    pub block: Block,
    /// Index of the first one among all blocks of that kind.
    pub first: u8,
}

/// A decoded register-BAR offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Kind of block.
    pub block: Block,
    /// Which one of its kind.
    pub index: u8,
    /// Offset inside it.
    pub offset: u32,
}

impl Window {
    pub(super) const fn new(
        block: Block,
        first: u8,
        count: u8,
        base: u32,
        stride: u32,
        size: u32,
    ) -> Self {
        Self {
            base,
            stride,
            count,
            size,
            block,
            first,
        }
    }

    /// Blocks of 4 KiB.
    pub(super) const fn pages(block: Block, first: u8, count: u8, base: u32, stride: u32) -> Self {
        Self::new(block, first, count, base, stride, 0x1000)
    }

    pub(super) fn locate(&self, offset: u32) -> Option<Location> {
        let distance = offset.checked_sub(self.base)?;
        let nth = u8::try_from(distance / self.stride)
            .ok()
            .filter(|nth| *nth < self.count)?;
        let offset = distance % self.stride;
        (offset < self.size).then_some(Location {
            block: self.block,
            index: self.first + nth,
            offset,
        })
    }

    pub(super) fn base_of(&self, block: Block, index: u8) -> Option<u32> {
        if self.block != block {
            return None;
        }
        let nth = index
            .checked_sub(self.first)
            .filter(|nth| *nth < self.count)?;
        Some(self.base + self.stride * u32::from(nth))
    }
}

/// A stretch of device-side addresses that is a stretch of the register BAR.
#[derive(Clone, Copy, Debug)]
pub struct SocWindow {
    /// First device-side address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// The register-BAR offset of its first byte.
    pub bar_offset: u32,
}

impl SocWindow {
    pub(super) const fn new(base: u64, size: u64, bar_offset: u32) -> Self {
        Self {
            base,
            size,
            bar_offset,
        }
    }

    pub(super) fn locate(&self, address: u64) -> Option<(u64, u64)> {
        let distance = address
            .checked_sub(self.base)
            .filter(|distance| *distance < self.size)?;
        Some((u64::from(self.bar_offset) + distance, self.size - distance))
    }
}

//! How a batch tells that it is done: a word that its last descriptor copies (seed §2, §4).
//!
//! There is no completion ring and no interrupt. Every batch ends with a descriptor pair that
//! copies the word at +0 of an 8-byte slot to +4 of it; the driver polls +4.

/// The word the driver polls for, `DMA_COMPLETION_MARKER` (seed §2).
pub const MARKER: u32 = 0xabcd_ef01;

/// Bytes the marker descriptor copies (seed §2).
pub const MARKER_SIZE: u32 = 4;

/// Where a slot holds the word to be copied; re-seeded with [`MARKER`] (seed §2).
pub const SOURCE_OFFSET: u64 = 0;

/// Where a slot receives it; cleared to 0 before every batch (seed §2).
pub const POLL_OFFSET: u64 = 4;

/// Bytes of one slot: source word and poll word (contract §8.4).
pub const SLOT_SIZE: u64 = 8;

/// Bytes of the completion buffer of a host-to-device ring: one slot per [`Context`] (facts §4.1).
pub const BUFFER_SIZE: u64 = SLOT_SIZE * Context::COUNT;

/// Which slot of the completion buffer a transfer uses (seed §6, facts §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// A synchronous copy: wait for what was just started.
    Sync,
    /// The first and every other asynchronous copy.
    Async1,
    /// The asynchronous copies in between.
    Async2,
}

impl Context {
    /// Number of contexts.
    pub const COUNT: u64 = 3;

    /// All contexts, in buffer order.
    pub const ALL: [Self; 3] = [Self::Sync, Self::Async1, Self::Async2];

    /// Handle value of the driver and its ioctls: 0, 1, 2 (-1 is "none") (contract §11).
    pub const fn handle(self) -> i32 {
        match self {
            Self::Sync => 0,
            Self::Async1 => 1,
            Self::Async2 => 2,
        }
    }

    /// Offset of this context's slot in the completion buffer, in bytes.
    pub const fn offset(self) -> u64 {
        match self {
            Self::Sync => 0,
            Self::Async1 => SLOT_SIZE,
            Self::Async2 => 2 * SLOT_SIZE,
        }
    }

    /// The slot in the completion buffer at `buffer`. `None` if it passes the end of the address
    /// space.
    pub fn slot(self, buffer: u64) -> Option<MarkerSlot> {
        MarkerSlot::at(buffer.checked_add(self.offset())?)
    }

    /// Context of the asynchronous copy that follows one in `previous`: none, 1, 2, 1, ...
    /// A synchronous copy follows itself (seed §6).
    pub const fn following(previous: Option<Self>) -> Self {
        match previous {
            Some(Self::Sync) => Self::Sync,
            Some(Self::Async1) => Self::Async2,
            None | Some(Self::Async2) => Self::Async1,
        }
    }
}

/// Addresses of the two words of one slot, in the address space of whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerSlot {
    /// Word the marker descriptor reads.
    pub source: u64,
    /// Word it writes and the driver polls.
    pub poll: u64,
}

impl MarkerSlot {
    /// The slot that begins at `address`. `None` if it passes the end of the address space.
    pub fn at(address: u64) -> Option<Self> {
        address.checked_add(SLOT_SIZE)?;
        Some(Self {
            source: address + SOURCE_OFFSET,
            poll: address + POLL_OFFSET,
        })
    }
}

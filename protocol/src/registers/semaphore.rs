//! Events and semaphores of a core's tile or of a `TopSP` (contract §6.1, facts §5.7).
//!
//! 256 one-bit events and 256 signed 32-bit semaphores. A semaphore has four windows of registers: what an access does
//! depends on the window.

/// Events and semaphores of each kind.
pub const COUNT: u32 = 256;
/// Where they start in a core's tile.
pub const CORE_OFFSET: u32 = 0x270_0000;
/// Where they start in a `TopSP`'s window.
pub const TOP_SP_OFFSET: u32 = 0;
/// Bytes of events and semaphores together.
pub const SIZE: u32 = 0x2000;

/// Semaphores, by what an access does.
pub const READ: u32 = 0x1000;
/// Write: the new value.
pub const SET: u32 = 0x1400;
/// Write: added.
pub const INCREMENT: u32 = 0x1800;
/// Write: subtracted.
pub const DECREMENT: u32 = 0x1c00;

/// What an offset in the events-and-semaphores block does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Event: reads and writes its bit.
    Event,
    /// Semaphore: reads its value.
    Read,
    /// Semaphore: replaces its value.
    Set,
    /// Semaphore: adds.
    Increment,
    /// Semaphore: subtracts.
    Decrement,
}

impl Access {
    /// Name in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Read => "semaphore_read",
            Self::Set => "semaphore_set",
            Self::Increment => "semaphore_inc",
            Self::Decrement => "semaphore_dec",
        }
    }
}

/// Splits an offset of the block into what it does and which one.
#[must_use]
pub const fn locate(offset: u32) -> Option<(Access, u32)> {
    let access = match offset {
        0..0x400 => Access::Event,
        READ..SET => Access::Read,
        SET..INCREMENT => Access::Set,
        INCREMENT..DECREMENT => Access::Increment,
        DECREMENT..SIZE => Access::Decrement,
        _ => return None,
    };
    Some((access, offset % 0x400 / 4))
}

//! Registers: offsets, bit fields, names, each with its source.
//!
//! All registers are 32 bits wide, little-endian, and accessed naturally aligned (contract head).
pub mod engine;
pub mod iofic;
pub mod misc_ram;
mod name;
pub mod notification;
pub mod queue;
pub mod semaphore;

pub use name::RegisterName;

/// Bytes in a register.
pub const REGISTER_SIZE: u32 = 4;

/// Direction of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Memory to stream: the tx ring, whose buffers are read.
    M2s,
    /// Stream to memory: the rx ring, whose buffers are written.
    S2m,
}

impl Direction {
    /// Both, in register order.
    pub const BOTH: [Self; 2] = [Self::M2s, Self::S2m];

    /// The name the registers use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::M2s => "m2s",
            Self::S2m => "s2m",
        }
    }
}

impl core::fmt::Display for Direction {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

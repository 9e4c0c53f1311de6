//! Bytes in this process with their place, and who may stand between them and the device.
//!
//! A recorder sees what the device read and wrote; a replay serves what it read then. Without a tap an access costs one
//! branch more.
use std::fmt;
use std::ops::Deref;

use vm_memory::VolatileSlice;

use super::{Lost, Unmapped};

/// Where bytes are, whatever way led there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Guest memory, by guest-physical address.
    Guest(u64),
    /// Device DRAM, by offset in BAR4.
    Hbm(u64),
    /// Plain memory of cores and `TopSP`s, by offset in the file that holds it.
    Tile(u64),
}

impl Place {
    /// The place of the byte `offset` bytes further on.
    #[must_use]
    pub const fn plus(self, offset: u64) -> Self {
        match self {
            Self::Guest(at) => Self::Guest(at.wrapping_add(offset)),
            Self::Hbm(at) => Self::Hbm(at.wrapping_add(offset)),
            Self::Tile(at) => Self::Tile(at.wrapping_add(offset)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guest(at) => write!(f, "guest {at:#x}"),
            Self::Hbm(at) => write!(f, "HBM {at:#x}"),
            Self::Tile(at) => write!(f, "tile {at:#x}"),
        }
    }
}

/// What the device reads bytes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It acts on them: descriptors, requests.
    Control,
    /// It only carries them.
    Data,
}

/// Bytes of one kind in this process, at least one.
#[derive(Debug)]
pub struct Stretch<'a> {
    slice: VolatileSlice<'a>,
    place: Place,
}

impl<'a> Stretch<'a> {
    pub(super) const fn new(slice: VolatileSlice<'a>, place: Place) -> Self {
        Self { slice, place }
    }

    /// Where its first byte is.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// The bytes. Accesses through them pass no tap.
    pub const fn slice(&self) -> &VolatileSlice<'a> {
        &self.slice
    }

    /// Its first `len` bytes, or all of it if it is shorter.
    #[must_use]
    pub fn truncated(self, len: usize) -> Self {
        let len = len.min(self.slice.len());
        Self {
            slice: self.slice.subslice(0, len).unwrap_or(self.slice),
            place: self.place,
        }
    }
}

impl<'a> Deref for Stretch<'a> {
    type Target = VolatileSlice<'a>;

    fn deref(&self) -> &Self::Target {
        &self.slice
    }
}

/// Makes an access to bytes that are read.
pub type Read<'a> = dyn FnMut(&mut [u8]) -> Result<(), Lost> + 'a;
/// Makes an access to bytes that are written.
pub type Write<'a> = dyn FnMut(&[u8]) -> Result<(), Lost> + 'a;

/// Stands between the device and memory: makes each access, or answers for it.
pub trait Tap: Send + Sync + fmt::Debug {
    /// How much of `len` bytes of mapped guest memory is there, as memory has it: less than `len` only after the client
    /// cut its file short.
    ///
    /// # Errors
    /// The first byte is gone.
    fn present(
        &self,
        guest: u64,
        len: usize,
        found: Result<usize, Unmapped>,
    ) -> Result<usize, Unmapped>;

    /// Fills `bytes` from a place.
    ///
    /// # Errors
    /// Part of it is lost.
    fn read(
        &self,
        place: Place,
        purpose: Purpose,
        bytes: &mut [u8],
        memory: &mut Read<'_>,
    ) -> Result<(), Lost>;

    /// Writes `bytes` to a place.
    ///
    /// # Errors
    /// Part of it is lost.
    fn write(&self, place: Place, bytes: &[u8], memory: &mut Write<'_>) -> Result<(), Lost>;
}

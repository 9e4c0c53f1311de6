//! Everything an engine can address: device address -> guest RAM, HBM, a core's tile, or a register.
//!
//! Each lookup is made afresh and checked, because every ring, buffer and mailbox address comes from the guest.
mod copy;
mod guest;
mod hbm;
mod quota;
mod sigbus;
mod sparse;
mod tap;
mod tiles;

use std::sync::Arc;

use neuron_protocol::generation::Generation;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

pub use copy::Lost;
#[cfg(test)]
pub(crate) use copy::write_own;
pub use guest::{Backing, GuestMap, Mapping};
pub use hbm::{Hbm, HbmGeometry};
pub use sparse::Sparse;
pub use tap::{Place, Purpose, Read, Stretch, Tap, Write};
pub use tiles::Tiles;

/// What an engine is about to do at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
}

/// Where an address leads.
#[derive(Debug)]
pub enum Target<'a> {
    /// Bytes in this process: guest RAM with a file behind it, HBM, a tile.
    Memory(Stretch<'a>),
    /// Guest RAM that only the client can reach.
    Message {
        /// First I/O virtual address.
        iova: u64,
        /// Bytes.
        len: usize,
    },
    /// Registers, whose accesses have effects.
    Register {
        /// Offset in the register BAR.
        offset: u64,
        /// Bytes.
        len: usize,
    },
}

impl Target<'_> {
    /// Bytes of the target, at least 1.
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(slice) => slice.len(),
            Self::Message { len, .. } | Self::Register { len, .. } => *len,
        }
    }

    /// Its first `len` bytes, or all of it if it is shorter.
    #[must_use]
    pub fn truncated(self, len: usize) -> Self {
        let len = len.min(self.len());
        match self {
            Self::Memory(stretch) => Self::Memory(stretch.truncated(len)),
            Self::Message { iova, .. } => Self::Message { iova, len },
            Self::Register { offset, .. } => Self::Register { offset, len },
        }
    }

    /// Never: a target has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why an address leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmapped {
    /// Neither host aperture, HBM, tile nor register.
    #[error("no host aperture, HBM, state buffer or register there")]
    Nowhere,
    /// In an HBM stack's window, past its populated bytes.
    #[error("past the {size:#x} populated bytes of HBM stack {stack}")]
    PastStack {
        /// Stack number.
        stack: usize,
        /// Its bytes.
        size: u64,
    },
    /// Host memory that the client never mapped.
    #[error("guest-physical {0:#x} is not mapped")]
    NotMapped(u64),
    /// Host memory that the client mapped for the other direction only.
    #[error("guest-physical {0:#x} is mapped without this permission")]
    Protected(u64),
    /// Host memory that the client mapped and whose file it cut short since, or that the kernel could not provide.
    #[error(
        "the client's memory is gone: the file behind it was truncated after it was mapped (or /dev/shm is full)"
    )]
    Truncated,
}

/// The memory of one device.
#[derive(Debug)]
pub struct Memory {
    generation: &'static Generation,
    /// The guest's RAM, as mapped by the client.
    pub guest: GuestMap,
    /// Device DRAM.
    pub hbm: Hbm,
    /// State buffers and other plain memory of cores and `TopSP`s.
    pub tiles: Tiles,
    tap: Option<Arc<dyn Tap>>,
}

impl Memory {
    /// Reserves the address space of HBM and tiles; pages appear when touched.
    ///
    /// # Errors
    /// The kernel refuses the files or the mappings.
    pub fn new(generation: &'static Generation, hbm: HbmGeometry) -> Result<Self, Errno> {
        Ok(Self {
            generation,
            guest: GuestMap::default(),
            hbm: Hbm::new(hbm)?,
            tiles: Tiles::new(generation)?,
            tap: None,
        })
    }

    /// Has every access go through `tap`.
    pub fn set_tap(&mut self, tap: Arc<dyn Tap>) {
        self.tap = Some(tap);
    }

    /// Has accesses go straight to memory again.
    pub fn clear_tap(&mut self) {
        self.tap = None;
    }

    /// Accesses go through a tap.
    pub const fn is_tapped(&self) -> bool {
        self.tap.is_some()
    }

    /// What the device is.
    pub const fn generation(&self) -> &'static Generation {
        self.generation
    }

    /// Whether an engine's writes there go to the host.
    pub const fn is_host(&self, address: u64) -> bool {
        self.generation.host_address(address).is_some()
    }

    /// Drops every page of device memory.
    pub fn clear_device(&mut self) {
        self.hbm.clear();
        self.tiles.clear();
    }

    /// Resolves a device-side address: the longest stretch of one kind from there, at most `len` bytes, at least one.
    ///
    /// `len` must not be 0.
    ///
    /// # Errors
    /// The first byte leads nowhere.
    pub fn resolve(
        &self,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<Target<'_>, Unmapped> {
        if let Some(guest) = self.generation.host_address(address) {
            return self.resolve_guest(guest, len, access);
        }
        if let Some(found) = self.hbm.at_soc(address, len) {
            return found.map(Target::Memory);
        }
        let (offset, left) = self
            .generation
            .soc_to_bar(address)
            .ok_or(Unmapped::Nowhere)?;
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        Ok(match self.tiles.at(offset, len) {
            Some(slice) => Target::Memory(slice),
            // One register at a time: each access has its effect before the next.
            None => Target::Register {
                offset,
                len: len.min(4 - usize::from(offset.to_le_bytes()[0] & 3)),
            },
        })
    }

    /// Resolves a guest-physical address like [`Self::resolve`].
    ///
    /// # Errors
    /// The first byte is not mapped for this access.
    pub fn resolve_guest(
        &self,
        guest: u64,
        len: usize,
        access: Access,
    ) -> Result<Target<'_>, Unmapped> {
        let (mapping, offset) = self.guest.find(guest).ok_or(Unmapped::NotMapped(guest))?;
        let permitted = match access {
            Access::Read => mapping.protection.read,
            Access::Write => mapping.protection.write,
        };
        if !permitted {
            return Err(Unmapped::Protected(guest));
        }
        let left = usize::try_from(mapping.size - offset).unwrap_or(usize::MAX);
        let len = len.min(left);
        match &mapping.backing {
            Backing::Shared(shared) => {
                let slice = shared.slice(offset, len);
                if let Some(tap) = &self.tap {
                    let found = slice.as_ref().map(VolatileSlice::len).map_err(|gone| *gone);
                    let len = tap.present(guest, len, found)?;
                    return Ok(Target::Memory(
                        Stretch::new(slice?, Place::Guest(guest)).truncated(len),
                    ));
                }
                Ok(Target::Memory(Stretch::new(slice?, Place::Guest(guest))))
            }
            Backing::Message => Ok(Target::Message { iova: guest, len }),
            Backing::OwnHbm { bar_offset } => self
                .hbm
                .at_bar(bar_offset + offset, len)
                .map(Target::Memory)
                .ok_or(Unmapped::NotMapped(guest)),
            Backing::Hole => Err(Unmapped::NotMapped(guest)),
        }
    }

    /// Copies `source` to `destination`, which must be as long; see `copy::copy` for its ordering. Gives the
    /// little-endian word if it copied just one.
    ///
    /// # Errors
    /// Part of either is lost: the destination's content is undefined.
    pub fn copy(
        &self,
        source: &Stretch<'_>,
        destination: &Stretch<'_>,
    ) -> Result<Option<u32>, Lost> {
        if self.tap.is_none() {
            return copy::copy(source, destination);
        }
        // What was read is what is written: the guest may change the source meanwhile.
        let mut bytes = vec![0; source.len()];
        self.read(source, Purpose::Data, &mut bytes)?;
        self.write(&bytes, destination)?;
        Ok(bytes.as_slice().try_into().ok().map(u32::from_le_bytes))
    }

    /// Writes `bytes` to `destination`, which must be as long; ordered like [`Self::copy`].
    ///
    /// # Errors
    /// Part of it is lost.
    pub fn write(&self, bytes: &[u8], destination: &Stretch<'_>) -> Result<(), Lost> {
        let mut access = |bytes: &[u8]| copy::write_bytes(bytes, destination);
        match &self.tap {
            None => access(bytes),
            Some(tap) => tap.write(destination.place(), bytes, &mut access),
        }
    }

    /// Fills `bytes` from `source`, which must be as long.
    ///
    /// # Errors
    /// Part of it is lost: the content of `bytes` is undefined.
    pub fn read(
        &self,
        source: &Stretch<'_>,
        purpose: Purpose,
        bytes: &mut [u8],
    ) -> Result<(), Lost> {
        let mut access = |bytes: &mut [u8]| copy::read_bytes(source, bytes);
        match &self.tap {
            None => access(bytes),
            Some(tap) => tap.read(source.place(), purpose, bytes, &mut access),
        }
    }

    /// Looks at memory for a report: no tap sees it, for the device does not act on it.
    ///
    /// # Errors
    /// Part of it is lost.
    pub fn peek(source: &Stretch<'_>, bytes: &mut [u8]) -> Result<(), Lost> {
        copy::read_bytes(source, bytes)
    }

    /// [`Self::write`] for memory of ours, which is sealed against truncation.
    pub fn write_own(&self, bytes: &[u8], destination: &Stretch<'_>) {
        let written = self.write(bytes, destination);
        debug_assert_eq!(written, Ok(()));
    }

    /// [`Self::read`] for memory of ours, which is sealed against truncation.
    pub fn read_own(&self, source: &Stretch<'_>, bytes: &mut [u8]) {
        let read = self.read(source, Purpose::Data, bytes);
        debug_assert_eq!(read, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::{Platform, V2, V3};

    use super::*;

    fn memory(generation: &'static Generation) -> Memory {
        Memory::new(
            generation,
            HbmGeometry::standard(generation, Platform::Silicon),
        )
        .unwrap()
    }

    #[test]
    fn every_kind_of_address_resolves() {
        let memory = memory(&V3);
        let at = |address, len| memory.resolve(address, len, Access::Write);
        assert!(matches!(at(0x8040_0000_1000, 64), Ok(Target::Memory(slice)) if slice.len() == 64));
        assert!(matches!(at(0x20_0000_0000, 64), Ok(Target::Memory(_))));
        assert!(matches!(
            at(0x20_0000_0000 + 0x8_0270_1800, 64),
            Ok(Target::Register {
                offset: 0xd270_1800,
                len: 4
            })
        ));
        assert_eq!(
            at(0x4000_0000_1000, 4).unwrap_err(),
            Unmapped::NotMapped(0x1000)
        );
        assert_eq!(
            at(24 << 30, 4).unwrap_err(),
            Unmapped::PastStack {
                stack: 0,
                size: 24 << 30
            }
        );
        assert_eq!(at(1 << 60, 4).unwrap_err(), Unmapped::Nowhere);
    }

    #[test]
    fn a_stretch_ends_where_its_kind_ends() {
        let memory = memory(&V2);
        let at = |address, len| {
            memory
                .resolve(address, len, Access::Read)
                .map(|target| target.len())
        };
        assert_eq!(at((16 << 30) - 8, 64), Ok(8));
        assert_eq!(at(0x0fff_c000_0000 + 0x270_0000 - 16, 64), Ok(16));
    }
}

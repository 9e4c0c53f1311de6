//! A memory file that stands for guest RAM: mapped here, handed to the device.
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use neuron_protocol::cycle::HostMemory;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use thiserror::Error;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryError, GuestMemoryMmap};

/// Guest RAM of one range.
#[derive(Debug)]
pub struct GuestRam {
    file: Arc<File>,
    memory: GuestMemoryMmap<()>,
    base: u64,
    size: u64,
}

/// Why there is no guest RAM.
#[derive(Debug, Error)]
pub enum RamError {
    /// No memory file of that size.
    #[error("a memory file of {size} bytes: {source}")]
    File {
        /// Bytes wanted.
        size: u64,
        /// Why.
        source: std::io::Error,
    },
    /// It cannot be mapped.
    #[error("mapping {size} bytes: {reason}")]
    Map {
        /// Bytes wanted.
        size: u64,
        /// Why.
        reason: String,
    },
}

impl GuestRam {
    /// `size` bytes of zeros at guest-physical `base`.
    ///
    /// # Errors
    /// Memory is short.
    pub fn new(base: u64, size: u64) -> Result<Self, RamError> {
        let file = memfd_create("guest-ram", MemfdFlags::CLOEXEC)
            .and_then(|fd| ftruncate(&fd, size).map(|()| File::from(fd)))
            .map_err(|error| RamError::File {
                size,
                source: error.into(),
            })?;
        let file = Arc::new(file);
        let map = |reason: String| RamError::Map { size, reason };
        let length = usize::try_from(size).map_err(|error| map(error.to_string()))?;
        let offset = FileOffset::from_arc(Arc::clone(&file), 0);
        let memory =
            GuestMemoryMmap::from_ranges_with_files([(GuestAddress(base), length, Some(offset))])
                .map_err(|error| map(error.to_string()))?;
        Ok(Self {
            file,
            memory,
            base,
            size,
        })
    }

    /// First guest-physical address.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The mapping.
    pub const fn memory(&self) -> &GuestMemoryMmap<()> {
        &self.memory
    }

    /// Fills `length` bytes at `address` with a pattern that differs by seed and position.
    ///
    /// # Errors
    /// Not all of it is RAM.
    pub fn fill(&mut self, address: u64, length: u64, seed: u64) -> Result<(), GuestMemoryError> {
        blocks(address, 0..length, |address, position, length| {
            self.memory
                .write_slice(&pattern(seed, position, length), address)
        })
    }

    /// Compares `length` bytes at `address` with the pattern: the position of the first wrong byte, if any.
    ///
    /// # Errors
    /// Not all of it is RAM.
    pub fn differs(
        &self,
        address: u64,
        length: u64,
        seed: u64,
    ) -> Result<Option<u64>, GuestMemoryError> {
        self.differs_from(address, 0..length, seed)
    }

    /// The same for a part of a pattern that begins at `address`.
    ///
    /// # Errors
    /// Not all of it is RAM.
    pub fn differs_from(
        &self,
        address: u64,
        part: Range<u64>,
        seed: u64,
    ) -> Result<Option<u64>, GuestMemoryError> {
        let mut wrong = None;
        blocks(address, part, |address, position, length| {
            let mut found = vec![0; length];
            self.memory.read_slice(&mut found, address)?;
            let wanted = pattern(seed, position, length);
            if wrong.is_none() {
                let first = found
                    .iter()
                    .zip(&wanted)
                    .zip(position..)
                    .find(|((found, wanted), _)| found != wanted);
                wrong = first.map(|(_, position)| position);
            }
            Ok(())
        })?;
        Ok(wrong)
    }
}

/// Bytes per block of a fill or comparison.
const BLOCK: usize = 1 << 16;

fn blocks(
    address: u64,
    part: Range<u64>,
    mut each: impl FnMut(GuestAddress, u64, usize) -> Result<(), GuestMemoryError>,
) -> Result<(), GuestMemoryError> {
    let mut position = part.start;
    while position < part.end {
        let block = usize::try_from(part.end - position)
            .unwrap_or(BLOCK)
            .min(BLOCK);
        let start = address
            .checked_add(position)
            .ok_or(GuestMemoryError::GuestAddressOverflow)?;
        each(GuestAddress(start), position, block)?;
        position = position.saturating_add(u64::try_from(block).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Bytes of a `SplitMix64` stream from `position` on, so that a shifted copy never passes.
fn pattern(seed: u64, position: u64, length: usize) -> Vec<u8> {
    let skip = usize::try_from(position % 8).unwrap_or(0);
    let mut bytes = Vec::with_capacity(length + 16);
    let mut index = position / 8;
    while bytes.len() < skip + length {
        let mut word = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
        index += 1;
    }
    bytes.drain(..skip);
    bytes.truncate(length);
    bytes
}

/// The file, whose offset 0 is [`GuestRam::base`].
impl AsFd for GuestRam {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl HostMemory for GuestRam {
    type Error = GuestMemoryError;

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.memory.read_slice(bytes, GuestAddress(address))
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GuestMemoryError> {
        self.memory.write_slice(bytes, GuestAddress(address))
    }

    fn load_word(&mut self, address: u64) -> Result<u32, GuestMemoryError> {
        self.memory
            .load::<u32>(GuestAddress(address), Ordering::Acquire)
            .map(u32::from_le)
    }

    fn store_word(&mut self, address: u64, word: u32) -> Result<(), GuestMemoryError> {
        self.memory
            .store(word.to_le(), GuestAddress(address), Ordering::Release)
    }

    fn publish(&mut self) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_told_from_another_and_from_a_shift() {
        let mut ram = GuestRam::new(0x4000_0000, 1 << 20).unwrap();
        ram.fill(0x4000_0003, 200_001, 7).unwrap();
        assert_eq!(ram.differs(0x4000_0003, 200_001, 7).unwrap(), None);
        assert_eq!(ram.differs(0x4000_0003, 200_001, 8).unwrap(), Some(0));
        assert!(ram.differs(0x4000_000b, 100, 7).unwrap().is_some());
        assert_eq!(
            ram.differs_from(0x4000_0003, 70_003..70_010, 7).unwrap(),
            None
        );
        ram.write(0x4000_0003 + 150_000, &[!0; 2]).unwrap();
        let position = ram.differs(0x4000_0003, 200_001, 7).unwrap().unwrap();
        assert!((150_000..=150_001).contains(&position));
        assert!(ram.fill(0x4000_0000 + (1 << 20) - 1, 2, 0).is_err());
    }
}

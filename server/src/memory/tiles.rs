//! Plain memory inside the register BAR: state buffers, PSUM, and what `TopSP`s hold beside their registers.
use neuron_protocol::generation::{Block, Generation, Location};
use neuron_protocol::registers::semaphore;
use rustix::io::Errno;

use super::{Place, Sparse, Stretch};

/// Bytes of a core's tile in the register BAR (contract §6.1).
const CORE_TILE: u64 = 0x400_0000;
/// Bytes of a `TopSP`'s window in the register BAR (contract §6.1).
const TOP_SP: u64 = 0x40_0000;

/// The tiles of all cores, then the windows of all `TopSP`s.
#[derive(Debug)]
pub struct Tiles {
    generation: &'static Generation,
    memory: Sparse,
}

impl Tiles {
    pub(super) fn new(generation: &'static Generation) -> Result<Self, Errno> {
        let top_sps: u64 = generation
            .windows
            .iter()
            .filter(|window| window.block == Block::TopSp)
            .map(|window| u64::from(window.count))
            .sum();
        let size = u64::from(generation.cores) * CORE_TILE + top_sps * TOP_SP;
        Ok(Self {
            generation,
            memory: Sparse::new("neuron-tiles", size)?,
        })
    }

    /// Up to `len` bytes of plain memory at an offset of the register BAR; `None` where a register stands.
    pub fn at(&self, bar_offset: u64, len: usize) -> Option<Stretch<'_>> {
        let Location {
            block,
            index,
            offset,
        } = self.generation.decode(bar_offset)?;
        let (base, size, registers) = match block {
            Block::CoreTile => (
                u64::from(index) * CORE_TILE,
                CORE_TILE,
                semaphore::CORE_OFFSET,
            ),
            Block::TopSp => {
                let cores = u64::from(self.generation.cores) * CORE_TILE;
                (
                    cores + u64::from(index) * TOP_SP,
                    TOP_SP,
                    semaphore::TOP_SP_OFFSET,
                )
            }
            _ => return None,
        };
        let end = if offset < registers {
            u64::from(registers)
        } else if offset >= registers + semaphore::SIZE {
            size
        } else {
            return None;
        };
        let left = usize::try_from(end - u64::from(offset)).unwrap_or(usize::MAX);
        let at = base + u64::from(offset);
        let slice = self.memory.slice(at, len.min(left))?;
        Some(Stretch::new(slice, Place::Tile(at)))
    }

    pub(super) fn clear(&self) {
        self.memory.clear();
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::V3;

    use super::*;

    #[test]
    fn memory_ends_where_registers_begin() {
        let tiles = Tiles::new(&V3).unwrap();
        let len = |offset| tiles.at(offset, 64).map(|slice| slice.len());
        assert_eq!(len(0xd000_0000), Some(64));
        assert_eq!(len(0xd000_0000 + 0x270_0000 - 4), Some(4));
        assert_eq!(len(0xd000_0000 + 0x270_0000), None);
        assert_eq!(len(0xd000_0000 + 0x270_2000), Some(64));
        assert_eq!(len(0xf000_0000), None);
        assert_eq!(len(0xf000_0000 + 0x3f_fff0), Some(16));
        assert_eq!(len(0x8000_0000), None);
    }
}

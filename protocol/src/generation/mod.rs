//! Generations and products **as data**.
//!
//! Code never asks "is it V3?": it reads the [`Generation`] it was given. A *product* is what a PCI device id names, a
//! *generation* is the silicon architecture that several products share, a *platform* is what the PCI revision id tells
//! the driver it runs on.
use crate::budget::Estimate;

mod product;
mod v2;
mod v3;
mod v4;
mod window;

pub use product::{Platform, Product, UnknownName, VENDOR_ID};
pub use v2::V2;
pub use v3::V3;
pub use v4::V4;
pub use window::{Block, Location, SocWindow, Window};

/// Queues in each direction of an engine (contract §5.2).
pub const QUEUES_PER_ENGINE: u8 = 16;

/// High-bandwidth memory: stacks of DRAM on the device (contract §1.1, §6.1).
#[derive(Debug)]
pub struct Hbm {
    /// Device-side address of each stack.
    pub soc_bases: &'static [u64],
    /// Populated bytes of a stack.
    pub stack_size: u64,
    /// Distance between stacks in BAR4, bytes.
    pub bar_stride: u64,
    /// On [`Platform::Qemu`] the driver takes the stack size and the stride to be BAR4's size divided by the number of
    /// stacks.
    pub sized_by_bar: bool,
}

/// How a device-side address names host memory (contract §6.1): `address & mask == value`, the rest is the
/// guest-physical address.
#[derive(Debug)]
pub struct HostAperture {
    /// Bits that select the aperture.
    pub mask: u64,
    /// What they must be; the driver ORs this into every host address (`pci_host_base`).
    pub value: u64,
    /// Bits of the guest-physical address.
    pub address_mask: u64,
}

/// The reset doorbell of [`Platform::Qemu`] (contract §7): written to start a reset, reads 0 when it is done.
#[derive(Debug)]
pub struct ResetFlag {
    /// Offset in the register BAR.
    pub offset: u32,
    /// The driver also runs the firmware handshake of silicon.
    pub with_firmware: bool,
}

/// One silicon architecture.
#[derive(Debug)]
pub struct Generation {
    /// `V2`, `V3` or `V4`.
    pub name: &'static str,
    /// The driver's architecture number, as its ioctls report it (facts §1.1).
    pub arch: u32,
    /// `NeuronCores` (facts §1.8).
    pub cores: u8,
    /// DMA engines: those of the cores first, then the host-to-device ones (contract §5.1).
    pub engines: u8,
    /// Engines that belong to one core (contract §5.1).
    pub engines_per_core: u8,
    /// First engine of the ones that serve the driver's own copies (contract §5.1).
    pub first_h2t_engine: u8,
    /// Cores that share one such engine, each with the queue of its rank (contract §5.1).
    pub cores_per_h2t_engine: u8,
    /// How many of those engines a reset of cores can name by themselves: bit 32 of its map is the first (`fw_io_initiate_reset`
    /// of 2.30.2.0: top-level DMA groups, 3:0 of the high word).
    pub resettable_h2t_engines: u8,
    /// Names of those engines, in order (contract §5.1).
    pub h2t_names: &'static [&'static str],
    /// Bytes of the register BAR (contract §1.1).
    pub register_bar_size: u64,
    /// The register BAR's decode table: disjoint, the busiest first.
    pub windows: &'static [Window],
    /// Device-side addresses other than host memory and HBM, sorted by base, without overlap.
    pub soc_windows: &'static [SocWindow],
    /// Device DRAM.
    pub hbm: Hbm,
    /// Host memory as engines see it.
    pub host: HostAperture,
    /// The reset doorbell of [`Platform::Qemu`].
    pub reset_flag: ResetFlag,
    /// Where the firmware mailbox window starts in the register BAR (contract §4).
    pub misc_ram: u32,
    /// An rx descriptor's bit 29 asks for a strongly ordered write; before V3 it is a hint (facts §2.5, udma §6).
    pub strong_order: bool,
    /// How fast its driver expects copies to be (contract §8.4).
    pub estimate: Estimate,
}

impl Generation {
    /// Decodes an offset of the register BAR; `None` where no block is known.
    #[must_use]
    pub fn decode(&self, offset: u64) -> Option<Location> {
        let offset = u32::try_from(offset).ok()?;
        self.windows.iter().find_map(|window| window.locate(offset))
    }

    /// Offset in the register BAR of block `index` of a kind, the inverse of [`Self::decode`].
    #[must_use]
    pub fn block_base(&self, block: Block, index: u8) -> Option<u32> {
        self.windows
            .iter()
            .find_map(|window| window.base_of(block, index))
    }

    /// The register-BAR offset that a device-side address names, and the bytes left in its window.
    #[must_use]
    pub fn soc_to_bar(&self, address: u64) -> Option<(u64, u64)> {
        let after = self
            .soc_windows
            .partition_point(|window| window.base <= address);
        self.soc_windows.get(after.checked_sub(1)?)?.locate(address)
    }

    /// The guest-physical address that a device-side address names, if it lies in the host aperture.
    #[must_use]
    pub const fn host_address(&self, address: u64) -> Option<u64> {
        if address & self.host.mask == self.host.value {
            Some(address & self.host.address_mask)
        } else {
            None
        }
    }

    /// The device-side address of a guest-physical one; `None` where the aperture cannot express it.
    #[must_use]
    pub const fn host_to_soc(&self, guest: u64) -> Option<u64> {
        if guest & !self.host.address_mask == 0 {
            Some(guest | self.host.value)
        } else {
            None
        }
    }

    /// Engine and queue of the driver's own copies on behalf of a core (contract §5.1, facts §3.7).
    #[must_use]
    pub const fn h2t_queue(&self, core: u8) -> Option<(u8, u8)> {
        if core >= self.cores {
            return None;
        }
        Some((
            self.first_h2t_engine + core / self.cores_per_h2t_engine,
            core % self.cores_per_h2t_engine,
        ))
    }

    /// The cores that a reset map names, a bit each from 0 up (contract §7).
    pub fn reset_cores(&self, map: u64) -> impl Iterator<Item = u8> {
        (0..self.cores).filter(move |core| map & 1 << core != 0)
    }

    /// Whether a reset map names the whole of an engine, as that of a core (contract §7) or by itself.
    #[must_use]
    pub fn resets_engine(&self, map: u64, engine: u8) -> bool {
        let group = engine.checked_sub(self.first_h2t_engine);
        match group {
            None => self
                .reset_cores(map)
                .any(|core| engine / self.engines_per_core == core),
            Some(group) => group < self.resettable_h2t_engines && map >> 32 & 1 << group != 0,
        }
    }

    /// Whether a reset drops the work of a queue; `None` is the whole device. An engine that cores share loses their queues
    /// alone (contract §7).
    #[must_use]
    pub fn reset_covers(&self, map: Option<u64>, engine: u8, queue: u8) -> bool {
        let Some(map) = map else { return true };
        self.resets_engine(map, engine)
            || self
                .reset_cores(map)
                .any(|core| self.h2t_queue(core) == Some((engine, queue)))
    }

    /// Name of an engine for people: `D2H_0` for those of the driver, else `NC3/5` for core 3's fifth.
    #[must_use]
    pub fn engine_name(&self, engine: u8) -> EngineName<'_> {
        EngineName {
            generation: self,
            engine,
        }
    }
}

/// See [`Generation::engine_name`].
#[derive(Clone, Copy, Debug)]
pub struct EngineName<'a> {
    generation: &'a Generation,
    engine: u8,
}

impl core::fmt::Display for EngineName<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { generation, engine } = *self;
        match engine.checked_sub(generation.first_h2t_engine) {
            Some(rank) => f.write_str(generation.h2t_names.get(usize::from(rank)).unwrap_or(&"?")),
            None => write!(
                f,
                "NC{}/{}",
                engine / generation.engines_per_core,
                engine % generation.engines_per_core
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn tables_are_disjoint() {
        for generation in [&V2, &V3, &V4] {
            let blocks = generation.windows.iter().flat_map(|w| {
                (0..u32::from(w.count)).map(move |n| (w.base + w.stride * n, w.size))
            });
            let mut blocks: std::vec::Vec<_> = blocks.collect();
            blocks.sort_unstable();
            for pair in blocks.windows(2) {
                assert!(
                    pair[0].0 + pair[0].1 <= pair[1].0,
                    "{}: {pair:x?}",
                    generation.name
                );
            }
            for pair in generation.soc_windows.windows(2) {
                assert!(
                    pair[0].base + pair[0].size <= pair[1].base,
                    "{}: {pair:x?}",
                    generation.name
                );
            }
            let (base, size) = blocks[blocks.len() - 1];
            assert!(u64::from(base) + u64::from(size) <= generation.register_bar_size);
        }
    }

    #[test]
    fn every_engine_has_its_blocks_and_decodes_back() {
        for generation in [&V2, &V3, &V4] {
            for engine in 0..generation.engines {
                for block in [Block::Udma, Block::Sdma, Block::SdmaNotification] {
                    let base = generation.block_base(block, engine).unwrap();
                    let found = generation.decode(u64::from(base) + 0x38).unwrap();
                    assert_eq!(
                        (found.block, found.index, found.offset),
                        (block, engine, 0x38)
                    );
                }
            }
            assert_eq!(generation.block_base(Block::Udma, generation.engines), None);
        }
    }

    #[test]
    fn engine_bases_of_contract_5_1() {
        let udma =
            |generation: &Generation, engine| generation.block_base(Block::Udma, engine).unwrap();
        assert_eq!(udma(&V2, 17), 0x3074_0000);
        assert_eq!(udma(&V2, 32), 0x3060_0000);
        assert_eq!(udma(&V2, 33), 0x30d0_0000);
        assert_eq!(udma(&V3, 33), 0x9410_0000);
        assert_eq!(udma(&V3, 127), 0xb5f0_0000);
        assert_eq!(udma(&V4, 131), 0x4690_0000);
        assert_eq!(V3.block_base(Block::Sdma, 128), Some(0x0684_0000));
        assert_eq!(V3.block_base(Block::ErrorTrigger, 32), Some(0x9c40_0000));
        assert_eq!(V2.block_base(Block::CoreNotification, 1), Some(0x30c3_5000));
        assert_eq!(V3.block_base(Block::CoreNotification, 7), Some(0x4658_1000));
    }

    #[test]
    fn h2t_queues_of_contract_5_1() {
        assert_eq!(V2.h2t_queue(1), Some((33, 0)));
        assert_eq!(V2.h2t_queue(2), None);
        assert_eq!(V3.h2t_queue(3), Some((129, 1)));
        assert_eq!(V4.h2t_queue(7), Some((131, 1)));
    }

    #[test]
    fn resets_cover_engines_of_cores_and_their_copy_queue() {
        let covered = |map, place: (u8, u8)| V3.reset_covers(map, place.0, place.1);
        assert!(covered(None, (131, 15)));
        let (first, last) = (V3.engines_per_core * 3, V3.engines_per_core * 4 - 1);
        let cores = |map: u32| Some(u64::from(map));
        for place in [(first, 0), (last, 15), (129, 1)] {
            assert!(covered(cores(1 << 3), place), "{place:?}");
            assert!(!covered(cores(!(1 << 3)), place), "{place:?}");
        }
        // All ones are all cores, and not the queues that belong to none.
        let all = cores(u32::MAX);
        assert!(covered(all, (0, 0)) && !covered(all, (129, 2)));
        // Top-level DMA by itself, where there is such a thing.
        assert!(covered(Some(1 << 33), (129, 2)) && !covered(Some(1 << 33), (130, 2)));
        assert!(!V2.reset_covers(Some(1 << 33), 33, 2));
    }

    #[test]
    fn soc_addresses_reach_registers() {
        let bar = |generation: &Generation, address| {
            generation.soc_to_bar(address).map(|(offset, _)| offset)
        };
        assert_eq!(bar(&V2, 0x0fff_f0fa_0024), Some(0x30fa_0024));
        assert_eq!(
            bar(&V2, 0x0fff_c000_0000 + 0x400_0000 + 0x270_1800),
            Some(0x670_1800)
        );
        assert_eq!(bar(&V3, 0x80_06c8_4024), Some(0x06c8_4024));
        assert_eq!(
            bar(&V3, 0x8070_0000_0000 + 0x8_0270_1804),
            Some(0xd000_0000 + 7 * 0x400_0000 + 0x270_1804)
        );
        assert_eq!(bar(&V3, 0x82_8000_0000 + 0x4000_0000), Some(0xf040_0000));
        assert_eq!(bar(&V3, 0x80_2000_0000), None);
    }

    #[test]
    fn the_host_bit_is_stripped_and_only_the_host_bit() {
        assert_eq!(V2.host_address(0x1000_1234_5678), Some(0x1234_5678));
        assert_eq!(V2.host_address(0x1234_5678), None);
        assert_eq!(V2.host_address(0x3000_0000_0000), None);
        assert_eq!(V3.host_address(0x4000_1234_5678), Some(0x1234_5678));
        assert_eq!(V3.host_address(0xc000_1234_5678), Some(0x1234_5678));
        assert_eq!(V3.host_address(0x10_4000_0000_0000), None);
        assert_eq!(V3.host_to_soc(0x1_2345_6789), Some(0x4001_2345_6789));
        assert_eq!(V2.host_to_soc(1 << 44), None);
    }
}

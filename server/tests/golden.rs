//! The register traffic of the real driver, recorded against a shim, replayed into the device.
#![allow(clippy::cast_possible_truncation, reason = "test code")]
mod rig;

use std::collections::BTreeMap;

use neuron_protocol::generation::{Block, Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::engine::{self, EngineLocation, unit};
use neuron_protocol::registers::{Direction, iofic, queue};
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::udma::Totals;
use neuron_vfio_user::vfio::{DmaMap, PciFunction};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use rig::*;

const TX_RING_AT: u64 = 0x1234_0000;
const RX_RING_AT: u64 = 0x1235_0000;
const MARKER_AT: u64 = 0x77_7000;
const SOURCE_AT: u64 = 0xab_c000;
const HBM_AT: u64 = 0x100_0000;
const COPIED: usize = 0x1_0000 + 100;

/// Each generation: a product, its recording, and an engine of a core and of the kernel's own copies.
const CASES: [(Product, &str, [u8; 2]); 3] = [
    (
        Product::Trn1,
        include_str!("../../protocol/tests/golden/udma-v2.txt"),
        [0, 32],
    ),
    (
        Product::Trn2,
        include_str!("../../protocol/tests/golden/udma-v3.txt"),
        [1, 128],
    ),
    (
        Product::Trn3,
        include_str!("../../protocol/tests/golden/udma-v4.txt"),
        [127, 131],
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    write: bool,
    /// Relative to the engine; the recordings show other blocks at +0x40000 and +0x50000.
    offset: u32,
    value: u32,
}

fn section<'a>(recording: &'a str, from: &str) -> Vec<&'a str> {
    let mut lines = recording.lines().skip_while(|line| !line.starts_with(from));
    assert!(lines.next().is_some(), "no section {from:?}");
    lines.take_while(|line| !line.starts_with('#')).collect()
}

fn accesses(lines: &[&str]) -> Vec<Access> {
    let hex = |text: &str| u32::from_str_radix(text, 16).unwrap();
    let parse = |line: &&str| match line.split(' ').collect::<Vec<_>>()[..] {
        [kind @ ("W" | "R"), offset, value] => Some(Access {
            write: kind == "W",
            offset: hex(offset),
            value: hex(value),
        }),
        _ => None,
    };
    lines.iter().filter_map(parse).collect()
}

fn engine_init(recording: &str) -> Vec<Access> {
    accesses(&section(recording, "# --- engine init"))
}

/// The recording of it keeps only what is not as the first time.
fn second_engine_init(recording: &str) -> Vec<Access> {
    let first = engine_init(recording);
    let changed = accesses(&section(recording, "# --- second engine init"));
    let from = first.iter().position(|a| a.offset == 0x1020).unwrap();
    let to = first.iter().position(|a| a.offset == 0x2_011c).unwrap();
    first[from..=to]
        .iter()
        .map(|access| {
            let instead = |c: &&Access| (c.write, c.offset) == (access.write, access.offset);
            *changed.iter().find(instead).unwrap_or(access)
        })
        .collect()
}

/// What the contract says each register reads, kept apart from the device.
#[derive(Default)]
struct Expected(BTreeMap<u32, u32>);

impl Expected {
    fn write(&mut self, offset: u32, value: u32) {
        let value_of = |at: u32| self.0.get(&at).copied().unwrap_or(0);
        let (at, value) = match engine::locate(offset) {
            // Zeros clear (udma §9); the register itself reads 0.
            Some(EngineLocation::Iofic {
                offset: iofic::MASK_CLEAR,
                ..
            }) => (offset - 8, value_of(offset - 8) & value),
            Some(EngineLocation::Unit {
                offset: unit::CHANGE_STATE,
                ..
            }) => (offset, 0),
            Some(EngineLocation::Queue {
                direction,
                offset: register,
                ..
            }) if register == queue::sw_ctrl(direction) || register == queue::DRTP_INC => {
                (offset, 0)
            }
            _ => (offset, value),
        };
        self.0.insert(at, value);
    }
}

struct Replay {
    rig: Rig,
    engine: u8,
    expected: Expected,
    name: String,
    /// Accesses to a block that this engine does not have.
    skipped: usize,
}

impl Replay {
    fn new(product: Product, platform: Platform, engine: u8) -> Self {
        Self {
            rig: Rig::new(product, platform),
            engine,
            expected: Expected::default(),
            name: format!("{product} {platform} engine {engine}"),
            skipped: 0,
        }
    }

    fn place(&self, offset: u32) -> Option<u32> {
        let (block, offset) = match offset {
            0..0x4_0000 => (Block::Udma, offset),
            0x4_0000..0x5_0000 => (Block::Sdma, offset - 0x4_0000),
            _ => (Block::ErrorTrigger, offset - 0x5_0000),
        };
        let base = self.rig.generation.block_base(block, self.engine)?;
        Some(base + offset)
    }

    fn read(&mut self, offset: u32) -> u32 {
        let at = self.place(offset).unwrap();
        self.rig.read(at)
    }

    /// Makes the accesses; `reads` tells whether reads give what was recorded.
    fn play(&mut self, accesses: &[Access], reads: bool) {
        for access in accesses {
            let Some(at) = self.place(access.offset) else {
                self.skipped += 1;
                continue;
            };
            if access.write {
                self.rig.write(at, access.value);
                self.expected.write(access.offset, access.value);
            } else {
                let value = self.rig.read(at);
                let Access {
                    offset,
                    value: recorded,
                    ..
                } = *access;
                assert!(
                    !reads || value == recorded,
                    "{}: {offset:05x} reads {value:08x}, recorded {recorded:08x}",
                    self.name
                );
            }
        }
    }

    /// Every register written so far reads what it should, and each is one that the device knows.
    fn check(&mut self) {
        for (offset, value) in std::mem::take(&mut self.expected.0) {
            let read = self.read(offset);
            assert_eq!(read, value, "{}: {offset:05x} reads {read:08x}", self.name);
            self.expected.0.insert(offset, value);
        }
        let unmodelled = self.rig.function.report(Detail::Status).unmodelled;
        assert_eq!(unmodelled, [], "{}", self.name);
    }
}

fn every_case(test: impl Fn(&mut Replay, &str)) {
    for (product, recording, engines) in CASES {
        for engine in engines {
            test(
                &mut Replay::new(product, Platform::Silicon, engine),
                recording,
            );
        }
    }
}

#[test]
fn the_recorded_initialisation_reads_back() {
    every_case(|replay, recording| {
        let init = engine_init(recording);
        assert!(init.len() > 100);
        replay.play(&init, true);
        replay.check();
        // The driver gives engines of its own copies no error trigger; V2 has none at all (contract §5.1).
        let expected = if replay.rig.generation.arch > 2 && replay.engine >= 128 {
            4
        } else {
            0
        };
        assert_eq!(replay.skipped, expected, "{}", replay.name);
        replay.play(&accesses(&section(recording, "# --- queue 0 init")), true);
        replay.check();
        replay.play(&accesses(&section(recording, "# --- set_state")), true);
        replay.play(&accesses(&section(recording, "# --- pause")), true);
        replay.check();
        let second = second_engine_init(recording);
        assert!(second.len() > 100);
        replay.play(&second, true);
        replay.play(&accesses(&section(recording, "# --- queue 0 init")), true);
        replay.check();
    });
}

#[test]
fn complement_writes_leave_exactly_the_masks_of_the_driver() {
    every_case(|replay, recording| {
        let groups = [0x3_80c0, 0x3_a000, 0x3_a040, 0x3_a080];
        for group in groups {
            let at = replay.place(group + iofic::MASK).unwrap();
            replay.rig.write(at, u32::MAX);
        }
        // Up to the second half, which reads masks and writes them back with a bit more.
        let init = engine_init(recording);
        let to = init.iter().position(|a| a.offset == 0x2_011c).unwrap();
        replay.play(&init[..=to], false);
        let masks = groups.map(|group| replay.read(group + iofic::MASK));
        assert_eq!(
            masks,
            [0xffff_f8ff, 0xf000_0000, 0x0000_10f8, 0xffff_f000],
            "{}",
            replay.name
        );
        let aborts = groups.map(|group| replay.read(group + iofic::ABORT_MASK));
        assert_eq!(aborts, [0, 0xf000_0000, 0x0000_10f8, 0xffff_f03f]);
    });
}

#[test]
fn the_recorded_copy_copies() {
    every_case(|replay, recording| {
        let rig = &mut replay.rig;
        let rings = rustix::fs::memfd_create("rings", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&rings, 0x2_0000).unwrap();
        let file = FileOffset::new(rings.try_clone().unwrap().into(), 0);
        let memory = MmapRegion::<()>::from_file(file, 0x2_0000).unwrap();
        let map = DmaMap {
            iova: TX_RING_AT,
            size: 0x2_0000,
            protection: RW,
            file: Some((rings, 0)),
        };
        rig.function.dma_map(map).unwrap();

        let copy = section(recording, "# --- one 64K");
        let mut descriptors = 0;
        for line in &copy {
            let Some((slot, bytes)) = line.split_once(' ') else {
                continue;
            };
            let base = match &slot[..1] {
                "T" => TX_RING_AT,
                "R" if slot.len() > 1 => RX_RING_AT,
                _ => continue,
            };
            let index: u64 = slot[2..].parse().unwrap();
            let bytes = u128::from_str_radix(bytes, 16).unwrap().to_be_bytes();
            let at = usize::try_from(base - TX_RING_AT + 16 * index).unwrap();
            memory
                .get_slice(at, 16)
                .unwrap()
                .write_slice(&bytes, 0)
                .unwrap();
            descriptors += 1;
        }
        assert_eq!(descriptors, 10);
        let data = pattern(COPIED, u32::from(replay.engine));
        rig.fill(SOURCE_AT, &data);
        rig.fill(MARKER_AT, &[MARKER.to_le_bytes(), [0; 4]].concat());

        replay.play(&engine_init(recording), true);
        replay.play(&accesses(&section(recording, "# --- queue 0 init")), true);
        replay.play(&accesses(&copy), true);
        replay.rig.run();
        let rig = &mut replay.rig;
        let mut there = vec![0; COPIED];
        rig.function.region_read(4, HBM_AT, &mut there).unwrap();
        assert!(there == data, "{}: wrong bytes in HBM", replay.name);
        assert_eq!(rig.bytes(MARKER_AT + 4, 4), MARKER.to_le_bytes());
        let counters = rig.function.report(Detail::Status).counters;
        let totals = Totals {
            doorbells: counters.doorbells,
            descriptors: counters.descriptors,
            markers: counters.batches,
            bytes: counters.bytes,
            aborts: counters.errors,
            interrupts: counters.interrupts,
        };
        let expected = Totals {
            doorbells: 2,
            descriptors: 10,
            markers: 3,
            bytes: COPIED as u64 + 12,
            aborts: 0,
            interrupts: 1,
        };
        assert_eq!(totals, expected, "{}", replay.name);
        // Both rings stand where the doorbells left them.
        for direction in Direction::BOTH {
            for register in [queue::DRHP, queue::DRTP, queue::CRHP] {
                let at = rig.register(replay.engine, 0, direction, register);
                assert_eq!(rig.read(at), 0x4000_0005, "{}", replay.name);
            }
        }
        replay.check();
    });
}

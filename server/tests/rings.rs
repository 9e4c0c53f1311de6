//! Rings where no driver's allocator would put them: any place, any length, any state of the memory they lie in.
#![allow(clippy::cast_possible_truncation, reason = "test code")]
mod rig;

use neuron_protocol::cycle::QueueLocation;
use neuron_protocol::descriptor::{Barrier, DESCRIPTOR_SIZE, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::registers::engine::{Machine, state, unit};
use neuron_protocol::registers::queue::{
    CFG, CRHP, Cfg, DRBP_HIGH, DRBP_LOW, DRHP, DRL, DRTP, DRTP_INC, Pointer, SwCtrl, sw_ctrl,
};
use neuron_protocol::registers::{Direction, misc_ram};
use neuron_protocol::ring::{ALIGNMENT, MAX_SIZE, RingSize, SIZE_STEP};
use neuron_vfio_user::function::{Config, NeuronFunction};
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::vfio::{DmaMap, DmaRequest, DmaUnmap, PciFunction, Progress};
use proptest::prelude::*;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};
use zerocopy::IntoBytes;

use rig::{RW, pattern};

const ENGINE: u8 = 2;
const QUEUE: u8 = 3;
/// One half of guest memory; the other follows it, in another file.
const HALF: u64 = 0x4_0000;
const BASE: u64 = 0x100_0000;
const MIDDLE: u64 = BASE + HALF;
const SOURCES: u64 = BASE + 0x1000;
const RESULTS: u64 = MIDDLE + 0x2_0000;
const HBM_RINGS: u64 = 0x200_0000;

/// How the two halves are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halves {
    Shared,
    FirstShared,
    SecondShared,
    Messages,
}

/// Where a ring begins: in guest memory, so that it may end in the other half, or in HBM.
#[derive(Clone, Copy, Debug)]
enum Place {
    Guest(u64),
    Hbm(u64),
}

struct Bench {
    function: NeuronFunction,
    halves: [MmapRegion; 2],
    location: QueueLocation,
    rings: [(Place, u64); 2],
    shared: [bool; 2],
    length: u32,
    /// Staged in each direction.
    at: [Pointer; 2],
}

impl Bench {
    fn new(halves: Halves) -> Self {
        let (product, platform) = (Product::Trn2, Platform::Silicon);
        let generation = product.generation();
        let mut function = NeuronFunction::new(Config::new(product, platform)).unwrap();
        let shared = match halves {
            Halves::Shared => [true, true],
            Halves::FirstShared => [true, false],
            Halves::SecondShared => [false, true],
            Halves::Messages => [false, false],
        };
        let mut half = |iova, shared: bool| {
            let fd = rustix::fs::memfd_create("half", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, HALF).unwrap();
            let file = FileOffset::new(fd.try_clone().unwrap().into(), 0);
            let map = DmaMap {
                iova,
                size: HALF,
                protection: RW,
                file: shared.then_some((fd, 0)),
            };
            function.dma_map(map).unwrap();
            MmapRegion::from_file(file, HALF as usize).unwrap()
        };
        let halves = [half(BASE, shared[0]), half(MIDDLE, shared[1])];
        function.region_write(7, 4, &6u16.to_le_bytes()).unwrap();
        Self {
            function,
            halves,
            location: QueueLocation::new(generation, ENGINE, QUEUE).unwrap(),
            rings: [(Place::Hbm(0), 0); 2],
            shared,
            length: 0,
            at: [Pointer::RESET; 2],
        }
    }

    fn guest(&mut self, address: u64, bytes: &mut [u8], write: bool) {
        for (at, byte) in (address..).zip(bytes) {
            let (half, offset) = if at < MIDDLE {
                (0, at - BASE)
            } else {
                (1, at - MIDDLE)
            };
            let slice = self.halves[half].get_slice(offset as usize, 1).unwrap();
            if write {
                slice.copy_from(&[*byte]);
            } else {
                slice.copy_to(std::slice::from_mut(byte));
            }
        }
    }

    fn fill(&mut self, address: u64, bytes: &[u8]) {
        self.guest(address, &mut bytes.to_vec(), true);
    }

    fn bytes(&mut self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.guest(address, &mut bytes, false);
        bytes
    }

    fn host(address: u64) -> u64 {
        Product::Trn2.generation().host_to_soc(address).unwrap()
    }

    fn read(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.function
            .region_read(0, offset.into(), &mut bytes)
            .unwrap();
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.function
            .region_write(0, offset.into(), &value.to_le_bytes())
            .unwrap();
    }

    fn register(&mut self, direction: Direction, register: u32) -> u32 {
        self.read(self.location.register(direction, register))
    }

    fn state(&mut self) -> u32 {
        let engine = self.location.register(Direction::M2s, 0) & !0x3_ffff;
        self.read(engine + unit::STATE)
    }

    /// Programs both rings, as a driver does (contract §5.4).
    fn init(&mut self, tx: Place, rx: Place, length: u32) {
        self.length = length;
        self.at = [Pointer::RESET; 2];
        for (nth, (direction, place)) in Direction::BOTH.into_iter().zip([tx, rx]).enumerate() {
            let base = match place {
                Place::Guest(address) => Self::host(address),
                Place::Hbm(address) => address,
            };
            self.rings[nth] = (place, base);
            let paused = Cfg::RESET;
            let running = paused.with_prefetch(true).with_schedule(true);
            for (register, value) in [
                (CFG, paused.into_bits()),
                (
                    sw_ctrl(direction),
                    SwCtrl::new().with_reset_queue(true).into_bits(),
                ),
                (DRBP_LOW, base as u32),
                (DRBP_HIGH, (base >> 32) as u32),
                (DRL, length),
                (CFG, running.into_bits()),
            ] {
                self.write(self.location.register(direction, register), value);
            }
        }
    }

    fn put(&mut self, nth: usize, descriptor: &[u8]) {
        let offset = u64::from(self.at[nth].index) * DESCRIPTOR_SIZE as u64;
        match self.rings[nth].0 {
            Place::Guest(base) => self.fill(base + offset, descriptor),
            // V3's first stack lies at the same addresses in its BAR.
            Place::Hbm(base) => self
                .function
                .region_write(4, base + offset, descriptor)
                .unwrap(),
        }
        self.at[nth] = self.at[nth].advanced(1, self.length);
    }

    fn stage(&mut self, source: u64, destination: u64, length: u32) {
        let [tx, rx] = self.at.map(|at| at.ring_id);
        let tx = TxDescriptor::copy(Self::host(source), length, tx, Barrier::None).unwrap();
        let rx = RxDescriptor::new(Self::host(destination), length, rx, Barrier::None).unwrap();
        self.put(0, tx.as_bytes());
        self.put(1, rx.as_bytes());
    }

    fn ring(&mut self, count: u32) {
        for direction in [Direction::S2m, Direction::M2s] {
            self.write(self.location.register(direction, DRTP_INC), count);
        }
    }

    /// Works until nothing is left, answering messages as a client would. Returns how many there were.
    fn run(&mut self) -> usize {
        let mut messages = 0;
        for _ in 0..100_000 {
            let progress = self.function.run();
            let before = messages;
            while let Some((id, request)) = self.function.next_dma() {
                messages += 1;
                let (iova, len) = match &request {
                    DmaRequest::Read { iova, len } => (*iova, *len),
                    DmaRequest::Write { iova, data } => (*iova, data.len()),
                };
                for end in [iova, iova + len as u64 - 1] {
                    let shared = self.shared[usize::from(end >= MIDDLE)];
                    assert!(!shared, "a message for shared memory at {end:#x}");
                }
                let reply = match request {
                    DmaRequest::Read { iova, len } => self.bytes(iova, len),
                    DmaRequest::Write { iova, data } => {
                        self.fill(iova, &data);
                        Vec::new()
                    }
                };
                self.function.dma_reply(id, Ok(reply));
            }
            if progress == Progress::Idle && messages == before {
                return messages;
            }
        }
        panic!("the device never becomes idle");
    }

    fn errors(&self) -> u64 {
        self.function.report(Detail::Status).counters.errors
    }
}

fn halves() -> impl Strategy<Value = Halves> {
    prop_oneof![
        Just(Halves::Shared),
        Just(Halves::FirstShared),
        Just(Halves::SecondShared),
        Just(Halves::Messages),
    ]
}

/// A ring of `length` in HBM, or in guest memory with the middle at any 256 bytes of it: base and end
/// must be so aligned.
fn place(length: u32, nth: u64) -> impl Strategy<Value = Place> {
    let bytes = u64::from(length) * DESCRIPTOR_SIZE as u64;
    let reach = bytes / ALIGNMENT;
    prop_oneof![
        1 => Just(Place::Hbm(HBM_RINGS + nth * 0x10_0000)),
        // The two rings are kept apart: the first ends around the middle, the second has the page after it or before.
        4 => (0..=reach).prop_map(move |into| {
            Place::Guest(if nth == 0 { MIDDLE - ALIGNMENT * into } else { MIDDLE - ALIGNMENT * into + 0x8000 })
        }),
        2 => (0..=reach).prop_map(move |into| {
            Place::Guest(if nth == 0 { MIDDLE - ALIGNMENT * into - 0x8000 } else { MIDDLE - ALIGNMENT * into })
        }),
    ]
}

/// Both rings, and never in each other's memory.
fn rings() -> impl Strategy<Value = (u32, Place, Place)> {
    (32 / SIZE_STEP..=304 / SIZE_STEP)
        .prop_map(|steps| steps * SIZE_STEP)
        .prop_flat_map(|length| (Just(length), place(length, 0), place(length, 1)))
        .prop_filter("the rings overlap", |(length, tx, rx)| match (tx, rx) {
            (Place::Guest(tx), Place::Guest(rx)) => {
                tx.abs_diff(*rx) >= u64::from(*length) * DESCRIPTOR_SIZE as u64
            }
            _ => true,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn a_ring_works_in_any_place_at_any_length_over_many_laps(
        halves in halves(),
        (length, tx, rx) in rings(),
        doorbells in proptest::collection::vec(1u32..=300, 4..24),
        batches_per_run in 1usize..4,
    ) {
        let mut bench = Bench::new(halves);
        bench.init(tx, rx, length);
        bench.fill(SOURCES, &pattern(0x1_0000, length));
        let mut total = 0u32;
        let mut open = 0;
        let mut expected = Vec::new();
        for (nth, count) in doorbells.into_iter().enumerate() {
            // Never more than the ring holds.
            let count = count.min(length - open);
            for _ in 0..count {
                let from = u64::from(total) * 37 % 0xff00;
                let to = u64::from(total % length) * 64;
                let size = 1 + total % 64;
                bench.stage(SOURCES + from, RESULTS + to, size);
                expected.push((SOURCES + from, RESULTS + to, size as usize));
                total += 1;
            }
            if count > 0 {
                bench.ring(count);
            }
            open += count;
            if nth.is_multiple_of(batches_per_run) {
                let messages = bench.run();
                prop_assert!(halves != Halves::Messages || messages > 0 || open == 0);
                open = 0;
                for (from, to, size) in expected.drain(..) {
                    prop_assert_eq!(bench.bytes(to, size), bench.bytes(from, size));
                }
            }
        }
        bench.run();
        let pointer = Pointer::RESET.advanced(total, length).into_register();
        for direction in Direction::BOTH {
            for register in [DRHP, DRTP, CRHP] {
                prop_assert_eq!(bench.register(direction, register), pointer);
            }
        }
        prop_assert_eq!(bench.errors(), 0);
        prop_assert_eq!(bench.function.report(Detail::Status).counters.descriptors, u64::from(2 * total));
    }

    /// The descriptors of the last life are still there, some of them never run, with the ring id that this life begins
    /// with too.
    #[test]
    fn descriptors_of_a_former_life_do_not_run(
        halves in halves(),
        (length, tx, rx) in rings(),
        before in 1u32..200,
        rung in 0u32..200,
        after in 1u32..20,
    ) {
        let mut bench = Bench::new(halves);
        bench.init(tx, rx, length);
        bench.fill(SOURCES, &pattern(0x1000, 1));
        let before = before.min(length);
        for n in 0..before {
            bench.stage(SOURCES, RESULTS + u64::from(n) * 64, 64);
        }
        // Some rung for, none run.
        if rung > 0 {
            bench.ring(rung.min(before));
        }
        bench.init(tx, rx, length);
        bench.run();
        prop_assert_eq!(bench.bytes(RESULTS, 64 * 300), vec![0; 64 * 300]);
        // New work reaches as far as it was rung for, not into what lies behind it.
        let after = after.min(length);
        for n in 0..after {
            bench.stage(SOURCES + 64, RESULTS + 0x1_0000 + u64::from(n) * 64, 64);
        }
        bench.ring(after);
        bench.run();
        prop_assert_eq!(bench.bytes(RESULTS, 64 * 300), vec![0; 64 * 300]);
        for n in 0..u64::from(after) {
            prop_assert_eq!(bench.bytes(RESULTS + 0x1_0000 + n * 64, 64), bench.bytes(SOURCES + 64, 64));
        }
        prop_assert_eq!(bench.errors(), 0);
    }

    /// The order of `free` and reset that drivers get wrong: first the memory goes, then the core is reset.
    #[test]
    fn a_ring_freed_before_the_reset_does_no_harm(
        halves in halves(),
        (length, tx, rx) in rings(),
        count in 1u32..=32,
        ran in any::<bool>(),
    ) {
        let mut bench = Bench::new(halves);
        bench.init(tx, rx, length);
        bench.fill(SOURCES, &pattern(0x1000, 1));
        for n in 0..u64::from(count) {
            bench.stage(SOURCES, RESULTS + n * 64, 64);
        }
        if ran {
            bench.ring(count);
            bench.run();
        }
        bench.function.dma_unmap(DmaUnmap::All).unwrap();
        let kept: Vec<_> = bench.halves.iter().map(|half| {
            let mut bytes = vec![0; HALF as usize];
            half.get_slice(0, HALF as usize).unwrap().copy_to(&mut bytes);
            bytes
        }).collect();
        if !ran {
            bench.ring(count);
            prop_assert_eq!(bench.run(), 0, "a message for memory that is gone");
            prop_assert_eq!(bench.state(), state(Machine::Abort, Direction::M2s));
        }
        // Core 0 has engine 2.
        let ram = Product::Trn2.generation().misc_ram;
        for (register, value) in [(misc_ram::RESET_MAP, 1), (misc_ram::RESET, misc_ram::RESET_CORES), (misc_ram::TRIGGER, 1)] {
            bench.write(ram + register, value);
        }
        prop_assert_eq!(bench.read(ram + misc_ram::RESET), 0);
        prop_assert_eq!(bench.run(), 0);
        prop_assert_eq!(bench.state(), 0);
        for (half, kept) in bench.halves.iter().zip(&kept) {
            let mut bytes = vec![0; HALF as usize];
            half.get_slice(0, HALF as usize).unwrap().copy_to(&mut bytes);
            prop_assert!(bytes == *kept, "freed memory was written");
        }
    }
}

#[test]
fn the_longest_ring_takes_its_length_and_no_more() {
    let mut bench = Bench::new(Halves::Shared);
    let (tx, rx) = (Place::Hbm(1 << 30), Place::Hbm(2 << 30));
    bench.init(tx, rx, MAX_SIZE);
    assert_eq!(bench.register(Direction::M2s, DRL), MAX_SIZE);
    bench.fill(SOURCES, &pattern(64, 1));
    bench.stage(SOURCES, RESULTS, 64);
    bench.ring(1);
    bench.run();
    assert_eq!(bench.bytes(RESULTS, 64), pattern(64, 1));
    assert_eq!(bench.errors(), 0);
    // All of it is empty ring: zeros, which are no descriptors of this lap.
    bench.ring(MAX_SIZE);
    bench.run();
    assert_eq!(bench.state(), state(Machine::Abort, Direction::M2s));
    bench.init(tx, rx, MAX_SIZE);
    assert_eq!(bench.state(), 0);
    let doorbell = bench.location.register(Direction::M2s, DRTP_INC);
    bench.write(doorbell, MAX_SIZE);
    assert_eq!(bench.state(), state(Machine::Normal, Direction::M2s));
    bench.write(doorbell, 1);
    assert_eq!(bench.state(), state(Machine::Abort, Direction::M2s));
}

/// What becomes of a queue whose process died: its rings are exchanged for one of the driver's own (contract §8.7).
#[test]
fn a_queue_moved_to_another_ring_forgets_the_first() {
    for halves in [Halves::Shared, Halves::FirstShared, Halves::Messages] {
        let mut bench = Bench::new(halves);
        bench.init(
            Place::Guest(BASE + 0x2_0000),
            Place::Guest(MIDDLE - 0x200),
            96,
        );
        bench.fill(SOURCES, &pattern(64, 1));
        for n in 0..50 {
            bench.stage(SOURCES, RESULTS + n * 64, 64);
        }
        // Only buffers: they are fetched and wait for a source.
        let doorbell = bench.location.register(Direction::S2m, DRTP_INC);
        bench.write(doorbell, 50);
        bench.run();
        bench.init(Place::Guest(BASE + 0x3_0000), Place::Hbm(HBM_RINGS), 32);
        bench.stage(SOURCES, RESULTS + 0x1_0000, 64);
        bench.ring(1);
        bench.run();
        assert_eq!(
            bench.bytes(RESULTS, 50 * 64),
            vec![0; 50 * 64],
            "{halves:?}"
        );
        assert_eq!(
            bench.bytes(RESULTS + 0x1_0000, 64),
            pattern(64, 1),
            "{halves:?}"
        );
        assert_eq!(bench.errors(), 0);
    }
}

/// What a driver may program, and what it must not: 31 and 2^24 are refused by its own check, and by the hardware if it does
/// not make one.
#[test]
fn rings_of_the_limits_work_and_beyond_them_stop_their_engine() {
    for length in [31, MAX_SIZE + 8, MAX_SIZE + 16] {
        assert!(RingSize::new(length).is_err(), "{length}");
        let mut bench = Bench::new(Halves::Shared);
        bench.init(Place::Hbm(1 << 30), Place::Hbm(2 << 30), length);
        // The register is 24 bits wide: 2^24 is no ring at all.
        assert_eq!(bench.register(Direction::M2s, DRL), length & 0xff_ffff);
        let doorbell = bench.location.register(Direction::M2s, DRTP_INC);
        bench.write(doorbell, 1);
        assert_eq!(
            bench.state(),
            state(Machine::Abort, Direction::M2s),
            "{length}"
        );
    }
    // The shortest, over laps enough to see each ring id twice, as full as it can be.
    assert!(RingSize::new(32).is_ok());
    let mut bench = Bench::new(Halves::Shared);
    bench.init(Place::Hbm(1 << 30), Place::Hbm(2 << 30), 32);
    bench.fill(SOURCES, &pattern(64, 1));
    for lap in 0..8 {
        for n in 0..32 {
            bench.stage(SOURCES, RESULTS + (lap * 32 + n) * 64, 64);
        }
        bench.ring(32);
        bench.run();
        assert_eq!(bench.state(), 0, "lap {lap}");
    }
    assert_eq!(bench.bytes(RESULTS, 256 * 64), pattern(64, 1).repeat(256));
    assert_eq!(bench.errors(), 0);
}

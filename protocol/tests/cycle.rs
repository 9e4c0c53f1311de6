//! The whole cycle against a device that runs it.
#![cfg(not(loom))]

mod support;

use neuron_protocol::budget::{PollBudget, Scaling, Wait};
use neuron_protocol::cycle::{
    Batch, CopyQueue, CycleError, Delay, HostMemory, QueuePair, Settings, SoftwarePoll,
    SoftwarePollError, Transfer, init_engine,
};
use neuron_protocol::descriptor::{Barrier, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Block, Generation, Platform, V2, V3, V4};
use neuron_protocol::marker::{Context, MARKER};
use neuron_protocol::registers::Direction;
use neuron_protocol::ring::{RingError, RingSize, allocated_count};
use proptest::prelude::*;
use support::{Fault, Handle, MockDevice};

const TX_RING: u64 = 0x10_0000;
const RX_RING: u64 = 0x20_0000;
const COMPLETION: u64 = 0x30_0000;
/// Where test data lies in host memory and in the device.
const HOST: u64 = 0x4000_0000;
const HBM: u64 = 0x5000_0000;

struct Bench {
    device: MockDevice,
    handle: Handle,
    copies: CopyQueue,
}

fn queue_pair(device: &MockDevice, size: u32) -> QueuePair {
    let generation = device.generation;
    let (engine, queue) = generation.h2t_queue(1).unwrap();
    QueuePair::new(
        device,
        engine,
        queue,
        RingSize::new(size).unwrap(),
        TX_RING,
        RX_RING,
    )
    .unwrap()
}

fn bench_on(generation: &'static Generation, size: u32, settings: Settings) -> Bench {
    let (engine, _) = generation.h2t_queue(1).unwrap();
    let base = generation.block_base(Block::Udma, engine).unwrap();
    let (mut device, handle) = support::device(generation, base);
    init_engine(&mut device, engine).unwrap();
    let queue = queue_pair(&device, size);
    let mut copies = CopyQueue::new(&device, queue, COMPLETION, settings).unwrap();
    copies.init(&mut device).unwrap();
    Bench {
        device,
        handle,
        copies,
    }
}

fn bench() -> Bench {
    bench_on(&V3, 64, Settings::new(&V3, Platform::Silicon))
}

fn small_batches(limit: u32) -> Bench {
    let settings = Settings {
        batch_limit: limit,
        ..Settings::new(&V3, Platform::Silicon)
    };
    bench_on(&V3, 64, settings)
}

/// Bytes that differ at every offset and seed.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(step).take(length).collect()
}

impl Bench {
    fn host(&self, address: u64) -> u64 {
        self.device.host_to_device(address).unwrap()
    }

    fn put_host(&mut self, address: u64, bytes: &[u8]) {
        self.handle.write(address, bytes).unwrap();
    }

    fn get_host(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.handle.0.borrow().cpu.read(address, &mut bytes);
        bytes
    }

    fn get_hbm(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.handle.0.borrow().hbm.read(address, &mut bytes);
        bytes
    }

    fn doorbells(&self) -> Vec<(bool, u32)> {
        self.handle.0.borrow().doorbells()
    }

    fn idle(&self) -> bool {
        let queue = self.copies.queue();
        queue.available() == queue.size().descriptors() - 16
    }

    fn markers(&self) -> Vec<(u32, u32)> {
        let world = self.handle.0.borrow();
        let slot = |n: u64| {
            (
                world.cpu.word(COMPLETION + 8 * n),
                world.cpu.word(COMPLETION + 8 * n + 4),
            )
        };
        (0..3).map(slot).collect()
    }
}

#[test]
fn a_copy_goes_there_and_back_on_every_generation() {
    for generation in [&V2, &V3, &V4] {
        let mut b = bench_on(generation, 64, Settings::new(generation, Platform::Silicon));
        let data = pattern(1, 3 * 0x1_0000 + 77);
        b.put_host(HOST + 3, &data);
        let (source, length) = (b.host(HOST + 3), data.len() as u64);
        b.copies
            .copy(&mut b.device, source, HBM + 5, length)
            .unwrap();
        assert!(b.get_hbm(HBM + 5, data.len()) == data);
        let back = b.host(HOST + 0x100_0001);
        b.copies.copy(&mut b.device, HBM + 5, back, length).unwrap();
        assert!(b.get_host(HOST + 0x100_0001, data.len()) == data);
        // Four data descriptors and the marker; destination ring first.
        assert_eq!(
            b.doorbells(),
            [(true, 5), (false, 5), (true, 5), (false, 5)]
        );
        assert!(b.idle());
        assert_eq!(b.markers(), [(MARKER, 0); 3]);
    }
}

#[test]
fn only_the_last_data_descriptor_of_a_batch_has_the_barrier() {
    let mut b = small_batches(3);
    b.copies
        .copy(&mut b.device, HBM, HBM + 0x100_0000, 5 * 0x1_0000)
        .unwrap();
    let meta = |n: u64| b.handle.0.borrow().cpu.word(TX_RING + 16 * n + 4);
    let barriers: Vec<_> = (0..7).map(|n| meta(n) >> 26 & 1).collect();
    assert_eq!(barriers, [0, 0, 1, 0, 0, 1, 0]);
    let settings = Settings {
        last_barrier: Barrier::StrongOrder,
        ..Settings::new(&V3, Platform::Silicon)
    };
    let mut b = bench_on(&V3, 64, settings);
    b.copies
        .copy(&mut b.device, HBM, HBM + 0x100_0000, 0x2_0000)
        .unwrap();
    let strong = |n: u64| b.handle.0.borrow().cpu.word(RX_RING + 16 * n) >> 29 & 1;
    assert_eq!([strong(0), strong(1), strong(2)], [0, 1, 0]);
}

#[test]
fn a_long_copy_takes_several_batches_and_laps() {
    let mut b = small_batches(5);
    let data = pattern(2, 230 * 0x1_0000 + 1);
    b.put_host(HOST, &data);
    let source = b.host(HOST);
    b.copies
        .copy(&mut b.device, source, HBM, data.len() as u64)
        .unwrap();
    assert!(b.get_hbm(HBM, data.len()) == data);
    let doorbells = b.doorbells();
    assert_eq!(doorbells.len(), 2 * 47);
    assert_eq!(
        doorbells[..4],
        [(true, 6), (false, 6), (true, 6), (false, 6)]
    );
    assert_eq!(doorbells[92..], [(true, 2), (false, 2)]);
    assert!(b.idle());
    // 231 + 47 descriptors in a ring of 64: the fifth lap.
    assert_eq!(b.copies.queue().ring(Direction::M2s).ring_id().bits(), 1);
}

#[test]
fn full_batches_ring_2033() {
    let size = allocated_count(4096).unwrap();
    let mut b = bench_on(&V3, size, Settings::new(&V3, Platform::Silicon));
    b.handle.0.borrow_mut().fault = Fault::CountOnly;
    b.copies
        .copy(&mut b.device, 0, 1 << 30, 2 * 2032 * 0x1_0000 + 1)
        .unwrap();
    let tx: Vec<_> = b
        .doorbells()
        .into_iter()
        .filter(|(s2m, _)| !s2m)
        .map(|(_, n)| n)
        .collect();
    assert_eq!(tx, [2033, 2033, 2]);
    assert!(b.idle());
}

#[test]
fn asynchronous_copies_overlap_and_take_turns() {
    let mut b = small_batches(10);
    b.handle.0.borrow_mut().latency = 50;
    let data = pattern(3, 6 * 0x2_0005);
    b.put_host(HOST, &data);
    let source = b.host(HOST);
    let mut previous = None;
    let mut contexts = Vec::new();
    for n in 0..6 {
        let offset = n * 0x2_0005;
        let pending = b
            .copies
            .start(
                &mut b.device,
                source + offset,
                HBM + offset,
                0x2_0005,
                previous,
            )
            .unwrap();
        contexts.push(pending.context());
        previous = Some(pending);
        // One batch of four is still out: its successor was staged before the wait.
        assert_eq!(
            b.copies
                .queue()
                .ring(Direction::S2m)
                .cursors()
                .outstanding(),
            4
        );
    }
    b.copies.wait(&mut b.device, previous.unwrap()).unwrap();
    assert_eq!(contexts, [Context::Async1, Context::Async2].repeat(3));
    assert!(b.get_hbm(HBM, data.len()) == data);
    assert!(b.idle());
    assert_eq!(b.markers(), [(MARKER, 0); 3]);
    assert_eq!(b.handle.0.borrow().most_in_flight, 2);
}

#[test]
fn an_asynchronous_copy_is_one_batch_at_most() {
    let mut b = small_batches(10);
    let limit = 10 * 0x1_0000;
    let before = b.doorbells();
    let error = b
        .copies
        .start(&mut b.device, 0, HBM, limit + 1, None)
        .unwrap_err();
    assert_eq!(
        error,
        CycleError::TooLargeForAsync {
            length: limit + 1,
            limit
        }
    );
    assert_eq!(b.doorbells(), before);
    assert!(b.idle());
    let pending = b.copies.start(&mut b.device, 0, HBM, limit, None).unwrap();
    b.copies.wait(&mut b.device, pending).unwrap();
}

#[test]
fn a_slot_nobody_waited_for_is_not_used_again() {
    let mut b = bench();
    let first = b.copies.start(&mut b.device, 0, HBM, 4, None).unwrap();
    assert_eq!(
        b.copies.start(&mut b.device, 0, HBM, 4, None),
        Err(CycleError::ContextBusy)
    );
    // The synchronous slot is another one.
    b.copies.copy(&mut b.device, 0, HBM, 4).unwrap();
    b.copies.wait(&mut b.device, first).unwrap();
    b.copies
        .start(&mut b.device, 0, HBM, 4, None)
        .map(drop)
        .unwrap();
}

#[test]
fn a_lost_batch_times_out_after_exactly_its_budget() {
    for (platform, scaling) in [
        (Platform::Silicon, Scaling::SPLIT),
        (
            Platform::Qemu,
            Scaling {
                qemu: 7,
                emulator: 1,
            },
        ),
    ] {
        let settings = Settings {
            scaling,
            ..Settings::new(&V3, platform)
        };
        let mut b = bench_on(&V3, 64, settings);
        b.handle.0.borrow_mut().fault = Fault::Deaf;
        let budget =
            PollBudget::kernel(V3.estimate, platform, scaling, Wait::Synchronous, 3).unwrap();
        let started = b.handle.0.borrow().now;
        let error = b.copies.copy(&mut b.device, 0, HBM, 0x1_0001).unwrap_err();
        assert_eq!(
            error,
            CycleError::Timeout {
                count: 3,
                waited: budget.total(),
                found: 0
            }
        );
        assert_eq!(b.handle.0.borrow().now - started, budget.total());

        // Nothing more until the queue is set up again, which drops what was pending.
        assert_eq!(
            b.copies.copy(&mut b.device, 0, HBM, 4),
            Err(CycleError::NeedsInit)
        );
        b.handle.0.borrow_mut().fault = Fault::None;
        b.copies.init(&mut b.device).unwrap();
        b.put_host(HOST, b"again");
        let source = b.host(HOST);
        b.copies.copy(&mut b.device, source, HBM, 5).unwrap();
        assert_eq!(b.get_hbm(HBM, 5), b"again");
        assert!(b.idle());
    }
}

#[test]
fn a_marker_in_the_last_microsecond_counts() {
    let budget = |b: &Bench| {
        let settings = Settings::new(b.device.generation, Platform::Silicon);
        PollBudget::kernel(
            V3.estimate,
            Platform::Silicon,
            settings.scaling,
            Wait::DeviceToDevice,
            2,
        )
        .unwrap()
    };
    let mut b = bench();
    // The last look is one interval before the end of the budget.
    let last_look = budget(&b).total() - 1;
    b.handle.0.borrow_mut().latency = last_look;
    b.copies
        .copy_within_device(&mut b.device, HBM, HBM + 64, 4)
        .unwrap();
    b.handle.0.borrow_mut().latency = last_look + 1;
    let error = b
        .copies
        .copy_within_device(&mut b.device, HBM, HBM + 64, 4)
        .unwrap_err();
    assert!(
        matches!(error, CycleError::Timeout { count: 2, .. }),
        "{error:?}"
    );
}

#[test]
fn the_caller_can_end_a_wait() {
    let mut b = bench_on(&V2, 64, Settings::new(&V2, Platform::Emulator));
    b.handle.0.borrow_mut().fault = Fault::Deaf;
    b.handle.0.borrow_mut().time_limit = 1000;
    let error = b.copies.copy(&mut b.device, 0, HBM, 4).unwrap_err();
    assert_eq!(
        error,
        CycleError::Stopped {
            count: 2,
            waited: 1000
        }
    );
}

#[test]
fn batches_of_before_an_init_are_stale() {
    let mut b = bench();
    let mut transfer = Transfer::new(0, HBM, 4).unwrap();
    let batch = b
        .copies
        .stage(&mut b.device, Context::Sync, &mut transfer)
        .unwrap();
    b.copies.launch(&mut b.device, &batch).unwrap();
    assert!(b.copies.is_done(&mut b.device, &batch).unwrap());
    b.copies.init(&mut b.device).unwrap();
    assert_eq!(
        b.copies.launch(&mut b.device, &batch),
        Err(CycleError::Stale)
    );
    assert_eq!(
        b.copies.finish(&mut b.device, batch),
        Err(CycleError::Stale)
    );
    assert!(b.idle());
}

#[test]
fn step_by_step_with_the_callers_own_clock() {
    let mut b = bench();
    b.handle.0.borrow_mut().latency = 5;
    let mut transfer = Transfer::new(HBM, HBM + 0x100, 0x100).unwrap();
    let batch: Batch = b
        .copies
        .stage(&mut b.device, Context::Sync, &mut transfer)
        .unwrap();
    assert_eq!(b.doorbells(), []);
    b.copies.launch(&mut b.device, &batch).unwrap();
    assert!(!b.copies.is_done(&mut b.device, &batch).unwrap());
    assert!(b.handle.delay(5).is_continue());
    assert!(b.copies.is_done(&mut b.device, &batch).unwrap());
    assert_eq!(b.markers()[0], (MARKER, MARKER));
    b.copies.finish(&mut b.device, batch).unwrap();
    assert_eq!(b.markers()[0], (MARKER, 0));
    assert!(b.idle());
}

#[test]
fn a_ring_can_be_armed_ahead_of_its_source() {
    let mut b = bench();
    let mut queue = queue_pair(&b.device, 64);
    queue.init(&mut b.device).unwrap();
    b.put_host(HOST, b"0123456789");
    let source = b.host(HOST);
    queue
        .stage(&mut b.device, source, HBM, 10, Barrier::None)
        .unwrap();
    let before = b.doorbells().len();
    queue.trigger(&mut b.device, 0, 1).unwrap();
    assert_eq!(b.doorbells()[before..], [(true, 1)]);
    assert_eq!(b.get_hbm(HBM, 10), [0; 10]);
    // The next launch leaves the destination ring one ahead.
    queue
        .stage(&mut b.device, source, HBM + 10, 10, Barrier::None)
        .unwrap();
    queue.trigger(&mut b.device, 2, 1).unwrap();
    assert_eq!(b.doorbells()[before + 1..], [(true, 1), (false, 2)]);
    assert_eq!(b.get_hbm(HBM, 20), b"01234567890123456789");
    queue.ack(2).unwrap();
}

#[test]
fn a_packet_may_fill_several_buffers() {
    let mut b = bench();
    let mut queue = queue_pair(&b.device, 64);
    queue.init(&mut b.device).unwrap();
    b.put_host(HOST, b"0123456789");
    let source = b.host(HOST);
    queue
        .push_tx(&mut b.device, |id| {
            TxDescriptor::copy(source, 10, id, Barrier::None)
        })
        .unwrap();
    for (at, length) in [(0, 3), (0x100, 5), (0x200, 2)] {
        queue
            .push_rx(&mut b.device, |id| {
                RxDescriptor::new(HBM + at, length, id, Barrier::None)
            })
            .unwrap();
    }
    queue.trigger(&mut b.device, 1, 3).unwrap();
    let parts = [
        b.get_hbm(HBM, 3),
        b.get_hbm(HBM + 0x100, 5),
        b.get_hbm(HBM + 0x200, 2),
    ];
    assert_eq!(parts.concat(), b"0123456789");
    // The rings are acknowledged each by its own count.
    queue.ring(Direction::S2m).cursors().ack(3).unwrap();
    queue.ring(Direction::M2s).cursors().ack(1).unwrap();
    assert_eq!(queue.available(), 48);
}

#[test]
fn impossible_doorbells_and_copies_touch_nothing() {
    let mut b = bench();
    let mut queue = queue_pair(&b.device, 64);
    let accesses = b.handle.0.borrow().log.len();
    let size = 64;
    for (tx, rx, direction, count) in [
        (0, 0, Direction::S2m, 0),
        (1, 0, Direction::S2m, 0),
        (1, 65, Direction::S2m, 65),
        (65, 64, Direction::M2s, 65),
        (u32::MAX, 1, Direction::M2s, u32::MAX),
    ] {
        assert_eq!(
            queue.trigger(&mut b.device, tx, rx),
            Err(CycleError::Doorbell {
                direction,
                count,
                size
            })
        );
    }
    for length in [0, 0x1_0001, u32::MAX] {
        let error = queue.stage(&mut b.device, 0, HBM, length, Barrier::None);
        assert_eq!(error, Err(CycleError::Length(length.into())));
    }
    assert_eq!(
        b.copies.copy(&mut b.device, 0, HBM, 0),
        Err(CycleError::Empty)
    );
    assert!(matches!(
        b.copies.copy(&mut b.device, 1, HBM, u64::MAX),
        Err(CycleError::Range { .. })
    ));
    assert!(matches!(
        b.copies.fill(&mut b.device, 0, u64::MAX, 2),
        Err(CycleError::Range { .. })
    ));
    assert_eq!(b.handle.0.borrow().log.len(), accesses);
    assert_eq!(queue.ring(Direction::M2s).cursors().outstanding(), 0);
    assert!(b.idle());
}

#[test]
fn a_full_ring_refuses_a_pair_before_either_ring_moves() {
    let b = &mut bench();
    let mut queue = queue_pair(&b.device, 64);
    queue.init(&mut b.device).unwrap();
    for _ in 0..48 {
        queue
            .stage(&mut b.device, HBM, HBM, 4, Barrier::None)
            .unwrap();
    }
    let full = Err(CycleError::Ring(RingError::Full));
    assert_eq!(queue.stage(&mut b.device, HBM, HBM, 4, Barrier::None), full);
    for direction in Direction::BOTH {
        assert_eq!(queue.ring(direction).cursors().outstanding(), 48);
    }
    assert_eq!(
        queue.ack(49),
        Err(RingError::AckBeyondProducer {
            count: 49,
            outstanding: 48
        })
    );
}

#[test]
fn half_a_pair_is_never_staged() {
    let b = &mut bench();
    let mut queue = queue_pair(&b.device, 64);
    for _ in 0..48 {
        queue
            .push_tx(&mut b.device, |id| {
                TxDescriptor::copy(HBM, 4, id, Barrier::None)
            })
            .unwrap();
    }
    let full = Err(CycleError::Ring(RingError::Full));
    assert_eq!(queue.stage(&mut b.device, HBM, HBM, 4, Barrier::None), full);
    assert_eq!(queue.ring(Direction::S2m).cursors().outstanding(), 0);
}

#[test]
fn a_batch_without_room_for_its_marker_is_not_staged() {
    let mut b = small_batches(40);
    // 48 slots: 25 for the first batch, 23 left for a second of 23 and its marker.
    let first = b
        .copies
        .start(&mut b.device, HBM, HBM, 24 * 0x1_0000, None)
        .unwrap();
    let mut transfer = Transfer::new(HBM, HBM, 23 * 0x1_0000).unwrap();
    let error = b
        .copies
        .stage(&mut b.device, Context::Async2, &mut transfer);
    assert_eq!(error, Err(CycleError::Ring(RingError::Full)));
    assert_eq!(transfer.remaining(), 23 * 0x1_0000);
    assert_eq!(b.copies.queue().available(), 23);
    b.copies.wait(&mut b.device, first).unwrap();
    b.copies
        .copy(&mut b.device, HBM, HBM, 23 * 0x1_0000)
        .unwrap();
}

#[test]
fn a_marker_left_over_in_the_buffer_completes_nothing() {
    let mut b = bench();
    b.handle.0.borrow_mut().latency = 50;
    b.put_host(
        COMPLETION,
        &[0x55, 0x55, 0x55, 0x55, 0x01, 0xef, 0xcd, 0xab],
    );
    b.put_host(HOST, b"landed");
    let source = b.host(HOST);
    b.copies.copy(&mut b.device, source, HBM, 6).unwrap();
    assert_eq!(b.get_hbm(HBM, 6), b"landed");
}

#[test]
fn bases_and_buffers_are_checked() {
    let (device, _) = support::device(&V2, 0);
    let size = RingSize::new(64).unwrap();
    let pair = |tx, rx| QueuePair::new(&device, 0, 0, size, tx, rx);
    assert!(matches!(
        pair(0x80, 0x1000),
        Err(CycleError::Ring(RingError::Base(0x80)))
    ));
    // 2^44 bytes of host memory are all V2 can address.
    assert!(pair(0x1000, (1 << 44) - 0x400).is_ok());
    assert!(matches!(
        pair(0x1000, (1 << 44) - 0x300),
        Err(CycleError::HostAddress(_))
    ));
    let settings = Settings::new(&V2, Platform::Silicon);
    for bad in [2, (1 << 44) - 20, u64::MAX - 3] {
        let queue = pair(0x1000, 0x2000).unwrap();
        let error = CopyQueue::new(&device, queue, bad, settings).unwrap_err();
        assert_eq!(error, CycleError::Completion(bad));
    }
}

#[test]
fn a_fill_copies_its_own_beginning() {
    for length in [1, 0xffff, 0x1_0000, 0x1_0001, 9 * 0x1_0000 + 17] {
        let mut b = small_batches(4);
        let seed = pattern(4, 0x1_0000);
        b.put_host(HOST, &seed);
        let source = b.host(HOST);
        b.copies
            .fill(
                &mut b.device,
                source,
                HBM + 1,
                u64::try_from(length).unwrap(),
            )
            .unwrap();
        let filled = b.get_hbm(HBM + 1, length + 1);
        assert!(
            filled[..length]
                .chunks(0x1_0000)
                .all(|chunk| *chunk == seed[..chunk.len()])
        );
        assert_eq!(filled[length], 0);
        // One copy of the pattern and its marker, then every source is the filled beginning.
        let chunks = u64::try_from(length.div_ceil(0x1_0000)).unwrap();
        let source = |n: u64| b.handle.0.borrow().cpu.word(TX_RING + 16 * n + 8);
        let sources = (2..1 + chunks + (chunks - 1).div_ceil(4)).map(source);
        let beginning = u32::try_from(HBM + 1).unwrap();
        let data: Vec<_> = sources
            .filter(|source| *source != u32::try_from(COMPLETION).unwrap())
            .collect();
        assert_eq!(data, vec![beginning; usize::try_from(chunks - 1).unwrap()]);
        assert!(b.idle());
    }
}

#[test]
fn the_user_runtimes_poll() {
    let mut b = bench();
    let mut queue = queue_pair(&b.device, 64);
    queue.init(&mut b.device).unwrap();
    b.handle.0.borrow_mut().latency = 95;
    let poll = SoftwarePoll::new(HOST + 0x40).unwrap();
    let budget = PollBudget::software(Platform::Silicon, 1).unwrap();
    for _ in 0..2 {
        poll.arm(&mut b.handle).unwrap();
        let (source, target) = (b.host(poll.slot().source), b.host(poll.slot().poll));
        queue
            .stage(&mut b.device, source, target, 4, Barrier::None)
            .unwrap();
        queue.trigger(&mut b.device, 1, 1).unwrap();
        assert!(!poll.is_done(&mut b.handle).unwrap());
        let started = b.handle.0.borrow().now;
        poll.wait(&mut b.handle.clone(), &mut b.handle, budget)
            .unwrap();
        assert_eq!(b.handle.0.borrow().now - started, 100);
        let world = b.handle.0.borrow();
        assert_eq!(
            (world.cpu.word(HOST + 0x40), world.cpu.word(HOST + 0x44)),
            (MARKER, 0)
        );
    }
    let error = poll
        .wait(&mut b.handle.clone(), &mut b.handle, budget)
        .unwrap_err();
    assert_eq!(
        error,
        SoftwarePollError::Timeout {
            waited: 400,
            found: 0
        }
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any mix of copies moves exactly its bytes and leaves the rings empty.
    #[test]
    fn any_copies_move_exactly_their_bytes(
        copies in prop::collection::vec((0..0x3_0000_u64, 0..0x3_0000_u64, 1..0x4_0000_u64, any::<bool>()), 1..8),
        limit in 1..20_u32,
        latency in 0..60_u64,
    ) {
        let mut b = small_batches(limit);
        b.handle.0.borrow_mut().latency = latency;
        let data = pattern(5, 0x8_0000);
        b.put_host(HOST, &data);
        let mut expected = vec![0; 0x8_0000];
        let base = b.host(HOST);
        for (from, to, length, asynchronous) in copies {
            let range = |at: u64| usize::try_from(at).unwrap()..usize::try_from(at + length).unwrap();
            expected[range(to)].copy_from_slice(&data[range(from)]);
            if asynchronous && length <= u64::from(limit) * 0x1_0000 {
                let pending = b.copies.start(&mut b.device, base + from, HBM + to, length, None).unwrap();
                b.copies.wait(&mut b.device, pending).unwrap();
            } else {
                b.copies.copy(&mut b.device, base + from, HBM + to, length).unwrap();
            }
        }
        prop_assert!(b.get_hbm(HBM, expected.len()) == expected);
        prop_assert!(b.idle());
    }
}

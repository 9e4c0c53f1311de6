//! What this driver half writes, byte for byte, against recordings of the real one.
#![cfg(not(loom))]

mod support;

use neuron_protocol::cycle::{CopyQueue, QueuePair, Settings, Transfer, init_engine};
use neuron_protocol::descriptor::{Barrier, LenCtrl, RxDescriptor};
use neuron_protocol::generation::{Block, Generation, Platform, V2, V3, V4};
use neuron_protocol::marker::Context;
use neuron_protocol::registers::Direction;
use neuron_protocol::ring::{RingId, RingSize};
use support::{Access, Handle, MockDevice};

const TX_RING: u64 = 0x1234_0000;
const RX_RING: u64 = 0x1235_0000;
const COMPLETION: u64 = 0x77_7000;
const SOURCE: u64 = 0xab_c000;
const DESTINATION: u64 = 0x100_0000;

/// The part of a recording between the comment lines that begin with `from` and the next one.
fn section<'a>(recording: &'a str, from: &str) -> Vec<&'a str> {
    let mut lines = recording.lines().skip_while(|line| !line.starts_with(from));
    assert!(
        lines.next().is_some(),
        "the recording has a section {from:?}"
    );
    let lines: Vec<_> = lines.take_while(|line| !line.starts_with('#')).collect();
    assert!(!lines.is_empty());
    lines
}

fn accesses(lines: &[&str]) -> Vec<Access> {
    let hex = |text: &str| u32::from_str_radix(text, 16).unwrap();
    let parse = |line: &&str| match line.split(' ').collect::<Vec<_>>()[..] {
        ["W", offset, value] => Some(Access::Write(hex(offset), hex(value))),
        ["R", offset, _] => Some(Access::Read(hex(offset))),
        _ => None,
    };
    lines.iter().filter_map(parse).collect()
}

fn every_generation(test: impl Fn(&'static Generation, &str, u64)) {
    test(&V2, include_str!("golden/udma-v2.txt"), 1 << 44);
    test(&V3, include_str!("golden/udma-v3.txt"), 1 << 46);
    test(&V4, include_str!("golden/udma-v4.txt"), 1 << 46);
}

fn queue(generation: &'static Generation) -> (MockDevice, Handle, QueuePair) {
    let base = generation.block_base(Block::Udma, 0).unwrap();
    let (device, handle) = support::device(generation, base);
    let size = RingSize::new(64).unwrap();
    let queue = QueuePair::new(&device, 0, 0, size, TX_RING, RX_RING).unwrap();
    (device, handle, queue)
}

/// The accesses so far, relative to the engine, and forgets them.
fn take_log(handle: &Handle) -> Vec<Access> {
    let mut world = handle.0.borrow_mut();
    let base = world.engine_base;
    let relative = |access| match access {
        Access::Read(offset) => Access::Read(offset - base),
        Access::Write(offset, value) => Access::Write(offset - base, value),
    };
    std::mem::take(&mut world.log)
        .into_iter()
        .map(relative)
        .collect()
}

fn ring_line(handle: &Handle, name: &str, base: u64, index: usize) -> String {
    let mut bytes = [0; 16];
    handle
        .0
        .borrow()
        .cpu
        .read(base + 16 * u64::try_from(index).unwrap(), &mut bytes);
    format!("{name}{index} {:032x}", u128::from_be_bytes(bytes))
}

/// `TX0`, `RX0`, `TX1`, ... as the recordings print them.
fn ring_lines(handle: &Handle, pairs: usize) -> Vec<String> {
    let pair = |n| {
        [
            ring_line(handle, "TX", TX_RING, n),
            ring_line(handle, "RX", RX_RING, n),
        ]
    };
    (0..pairs).flat_map(pair).collect()
}

#[test]
fn queue_init_is_the_recorded_one() {
    every_generation(|generation, recording, _| {
        let (mut device, handle, mut queue) = queue(generation);
        queue.init(&mut device).unwrap();
        let expected = accesses(&section(recording, "# --- queue 0 init"));
        assert_eq!(expected.len(), 15);
        assert_eq!(take_log(&handle), expected, "{}", generation.name);
    });
}

#[test]
fn descriptors_and_doorbells_are_the_recorded_ones() {
    every_generation(|generation, recording, host| {
        let (mut device, handle, mut queue) = queue(generation);
        queue.init(&mut device).unwrap();
        // Deaf: the recorded batch is not meant to run.
        handle.0.borrow_mut().fault = support::Fault::Deaf;
        take_log(&handle);

        let source = SOURCE | host;
        let (marker, poll) = (COMPLETION | host, (COMPLETION + 4) | host);
        queue
            .stage(&mut device, source, DESTINATION, 0x1_0000, Barrier::None)
            .unwrap();
        queue
            .stage(
                &mut device,
                source + 0x1_0000,
                DESTINATION + 0x1_0000,
                100,
                Barrier::Write,
            )
            .unwrap();
        queue
            .stage(&mut device, marker, poll, 4, Barrier::None)
            .unwrap();
        queue
            .stage(&mut device, marker, poll, 4, Barrier::StrongOrder)
            .unwrap();
        // The last recorded pair asks for an interrupt, which no driver path does.
        let interrupt = |id: RingId| {
            let len = LenCtrl::new()
                .with_byte_length(4)?
                .with_ring_id(id)
                .with_interrupt(true);
            Some(RxDescriptor::from_words(len, poll))
        };
        queue.push_rx(&mut device, interrupt).unwrap();
        queue
            .push_tx(&mut device, |id| {
                neuron_protocol::descriptor::TxDescriptor::copy(marker, 4, id, Barrier::Dmb)
            })
            .unwrap();
        queue.trigger(&mut device, 5, 5).unwrap();

        let expected = section(recording, "# --- one 64K");
        assert_eq!(
            ring_lines(&handle, 5),
            expected[..10],
            "{}",
            generation.name
        );
        assert_eq!(take_log(&handle), accesses(&expected[10..]));
    });
}

/// The recorded copy again, cut up and marked by the batch code instead of by hand.
#[test]
fn a_batch_is_the_recorded_one() {
    every_generation(|generation, recording, host| {
        let (mut device, handle, queue) = queue(generation);
        let settings = Settings::new(generation, Platform::Silicon);
        let mut copies = CopyQueue::new(&device, queue, COMPLETION, settings).unwrap();
        copies.init(&mut device).unwrap();
        let mut transfer = Transfer::new(SOURCE | host, DESTINATION, 0x1_0064).unwrap();
        let batch = copies
            .stage(&mut device, Context::Sync, &mut transfer)
            .unwrap();
        assert_eq!((batch.count(), transfer.remaining()), (3, 0));
        assert_eq!(
            ring_lines(&handle, 3),
            section(recording, "# --- one 64K")[..6]
        );
        let world = handle.0.borrow();
        assert_eq!(
            (world.cpu.word(COMPLETION), world.cpu.word(COMPLETION + 4)),
            (0xabcd_ef01, 0)
        );
    });
}

#[test]
fn ring_ids_are_the_recorded_ones() {
    every_generation(|generation, recording, _| {
        let (mut device, handle, mut queue) = queue(generation);
        let mut lines = Vec::new();
        for n in 0..=320 {
            queue
                .stage(&mut device, 0, 0x1000, 4, Barrier::None)
                .unwrap();
            let slot = n % 64;
            let phase = |base: u64| handle.0.borrow().cpu.word(base + 16 * slot) >> 24 & 3;
            assert_eq!(phase(TX_RING), phase(RX_RING));
            lines.push(format!("{n}: slot {slot} ring_id {}", phase(TX_RING)));
            queue.ack(1).unwrap();
        }
        let expected = section(recording, "# --- ring-id sequence");
        assert_eq!(expected.len(), 10);
        for line in expected {
            assert!(
                lines.iter().any(|ours| ours == line),
                "{}: {line}",
                generation.name
            );
        }
    });
}

/// `init_engine` leaves things out, but adds nothing, changes no value and keeps the order.
#[test]
fn engine_init_is_a_part_of_the_recorded_one() {
    every_generation(|generation, recording, _| {
        let (mut device, handle, _) = queue(generation);
        init_engine(&mut device, 0).unwrap();
        let recorded = accesses(&section(recording, "# --- engine init"));
        let mut rest = recorded.iter();
        let ours = take_log(&handle);
        assert_eq!(ours.len(), 32 + 6);
        for access in &ours {
            assert!(
                rest.any(|recorded| recorded == access),
                "{}: {access:x?}",
                generation.name
            );
        }
    });
}

#[test]
fn every_queue_has_its_own_registers() {
    every_generation(|generation, _, _| {
        let (device, ..) = queue(generation);
        let size = RingSize::new(64).unwrap();
        let mut seen = std::collections::HashSet::new();
        for engine in 0..generation.engines {
            for number in 0..16 {
                let queue =
                    QueuePair::new(&device, engine, number, size, TX_RING, RX_RING).unwrap();
                for direction in Direction::BOTH {
                    assert!(seen.insert(queue.location().register(direction, 0x38)));
                }
            }
        }
        assert!(QueuePair::new(&device, generation.engines, 0, size, TX_RING, RX_RING).is_err());
        assert!(QueuePair::new(&device, 0, 16, size, TX_RING, RX_RING).is_err());
    });
}

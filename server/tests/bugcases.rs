//! Failures of device servers seen in public, and of this one under attack, that no other test holds.
mod common;
mod rig;

use std::os::fd::{AsFd, OwnedFd};

use common::Served;
use common::raw::RawClient;
use neuron_protocol::cycle::Registers;
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Block, Platform, Product};
use neuron_protocol::mailbox::{Command, Response, Sequence, Status, build_request};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::misc_ram;
use neuron_vfio_user::memory::Unmapped;
use neuron_vfio_user::observe::event::EventKind;
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::udma::{Fault, FaultKind};
use neuron_vfio_user::vfio::{DmaMap, DmaRequest, DmaUnmap, PciFunction};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use rig::*;

const HBM: u64 = 0x100_0000;

fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("client-ram", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

/// Asks firmware for one register; the request at `DATA`, the response to `RESULT`.
fn ask(rig: &mut Rig, sequence: Sequence) {
    let mut request = vec![0; 64];
    let len = build_request(&mut request, sequence, Command::Read, &[0; 8]).unwrap();
    rig.fill(DATA, &request[..len]);
    rig.ask_firmware(DATA, RESULT);
}

/// What the client does with one access.
fn answer(rig: &mut Rig, id: u64, request: DmaRequest) -> Option<u64> {
    let (reply, written) = match request {
        DmaRequest::Read { iova, len } => (rig.bytes(iova, len), None),
        DmaRequest::Write { iova, data } => {
            rig.fill(iova, &data);
            (Vec::new(), Some(iova))
        }
    };
    rig.function.dma_reply(id, Ok(reply));
    written
}

/// The driver may touch registers, and the device runs, while the mailbox waits for the client: it must not ask again.
#[test]
fn the_mailbox_asks_the_client_once() {
    let mut rig = Rig::by_message(Product::Trn1, Platform::Silicon);
    ask(&mut rig, Sequence::FIRST);
    let mut writes = Vec::new();
    loop {
        for _ in 0..5 {
            let _ = rig.function.run();
            rig.read(0);
        }
        let Some((id, request)) = rig.function.next_dma() else {
            break;
        };
        let next = rig.function.next_dma();
        assert!(next.is_none(), "{request:?} is asked for again: {next:?}");
        writes.extend(answer(&mut rig, id, request));
    }
    // What the driver polls comes last.
    assert_eq!(writes, [RESULT + 4, RESULT]);
    let bytes = rig.bytes(RESULT, 64);
    let response = Response::parse(&bytes).unwrap();
    assert_eq!((response.sequence, response.status), (1, Status::Ok));
}

/// A driver that tries again replaces its request: what the client then says to the first try is not of the second.
#[test]
fn a_late_answer_is_not_for_the_next_request() {
    let mut rig = Rig::by_message(Product::Trn1, Platform::Silicon);
    ask(&mut rig, Sequence::FIRST);
    let _ = rig.function.run();
    let (first, _) = rig.function.next_dma().unwrap();
    ask(&mut rig, Sequence::FIRST.next());
    let _ = rig.function.run();
    // Bytes that make no request.
    rig.function.dma_reply(first, Ok(vec![0xff; 8]));
    rig.run();
    let bytes = rig.bytes(RESULT, 64);
    let response = Response::parse(&bytes).unwrap();
    assert_eq!((response.sequence, response.status), (2, Status::Ok));
}

/// A hole in a mapping makes two: without a limit a client grows the map by one with each message.
#[test]
fn holes_cannot_make_mappings_without_end() {
    let mut rig = Rig::by_message(Product::Trn2, Platform::Silicon);
    rig.function
        .dma_map(DmaMap {
            iova: 1 << 40,
            size: 1 << 40,
            protection: RW,
            file: None,
        })
        .unwrap();
    let mut hole = |n: u64| {
        rig.function.dma_unmap(DmaUnmap::Range {
            iova: (1 << 40) + 4096 + n * 8192,
            size: 4096,
        })
    };
    let made = (0..100_000).take_while(|n| hole(*n).is_ok()).count();
    assert_eq!(hole(99_999), Err(Errno::NOSPC));
    assert_eq!(made, 65_535 - 2);
    assert_eq!(rig.function.report(Detail::Dump).maps.len(), 65_535);
    rig.function.dma_unmap(DmaUnmap::All).unwrap();
    assert_eq!(rig.function.report(Detail::Dump).maps.len(), 0);
}

/// A client that takes all the address areas of the process and then cuts its file short.
#[test]
fn truncation_is_survived_with_as_many_mappings_as_there_can_be() {
    let served = Served::start(&["--product", "trn1", "--platform", "silicon"]);
    let mut client = RawClient::connect(&served.socket()).unwrap();
    let file = memfd(1 << 20);
    let held = (0..70_000_u64)
        .take_while(|n| {
            client
                .map_range(n << 20, 16_384, Some(file.as_fd()))
                .is_ok()
        })
        .count();
    assert!(held >= 10_000, "{held}");
    client.write(7, 4, &[6, 0]).unwrap();
    let generation = Product::Trn1.generation();
    let engine = generation.misc_ram;
    rustix::fs::ftruncate(&file, 0).unwrap();
    // Each request makes the device look at the last page of another mapping, and so of each makes two.
    for n in 0..u64::try_from(held).unwrap() {
        let at = generation.host_to_soc((n << 20) + 8192).unwrap();
        for (register, value) in [
            (misc_ram::REQUEST_LOW, at),
            (misc_ram::REQUEST_HIGH, at >> 32),
            (misc_ram::RESPONSE_LOW, 0),
            (misc_ram::RESPONSE_HIGH, 1),
            (misc_ram::TRIGGER, 1),
        ] {
            client
                .write32(
                    engine + register,
                    u32::try_from(value & 0xffff_ffff).unwrap(),
                )
                .unwrap();
        }
        if n % 64 == 0 {
            client.read32(engine + misc_ram::TRIGGER).unwrap();
        }
    }
    client.read32(engine + misc_ram::TRIGGER).unwrap();
}

/// A file shorter than its mapping: an access past its end fails like any other, before its marker.
#[test]
fn dma_past_the_end_of_a_short_file_fails_cleanly() {
    const SHORT: u64 = 0x4000_0000;
    for from_guest in [true, false] {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        rig.with(|rig| {
            rig.function.dma_map(DmaMap {
                iova: SHORT,
                size: 8192,
                protection: RW,
                file: Some((memfd(4096), 0)),
            })
        })
        .unwrap();
        let host = |address| rig.with(|rig| rig.host(address));
        let at = host(SHORT + 6144);
        let (from, to) = if from_guest { (at, HBM) } else { (HBM, at) };
        rig.with(|rig| rig.fill(MARKERS, &MARKER.to_le_bytes()));
        let mut pair = queue(&mut device, 0, 0, 64);
        pair.stage(&mut device, from, to, 64, Barrier::None)
            .unwrap();
        let (marker, done) = (host(MARKERS), host(MARKERS + 4));
        pair.stage(&mut device, marker, done, 4, Barrier::None)
            .unwrap();
        pair.trigger(&mut device, 2, 2).unwrap();
        rig.with(|rig| {
            rig.run();
            assert_eq!(
                rig.bytes(MARKERS + 4, 4),
                [0; 4],
                "a marker after a failure"
            );
            let events = rig.log.take();
            assert!(
                events.iter().any(|event| matches!(
                    event,
                    EventKind::Abort(Fault {
                        kind: FaultKind::Data(Unmapped::NotMapped(address)),
                        ..
                    }) if *address == SHORT + 6144
                )),
                "{events:?}"
            );
        });
    }
}

/// `DEVICE_RESET` with descriptors under way: every register that the driver uses is as at power-on, and nothing runs.
#[test]
fn a_device_reset_in_mid_ring_leaves_power_on_values() {
    fn dump(rig: &mut Rig) -> Vec<Vec<u8>> {
        let generation = rig.generation;
        let windows = (0..generation.engines)
            .map(|engine| {
                (
                    generation.block_base(Block::Udma, engine).unwrap(),
                    0x4_0000,
                )
            })
            .chain([(generation.misc_ram, misc_ram::SIZE)]);
        let mut all: Vec<_> = windows
            .map(|(base, size)| {
                let mut bytes = vec![0; usize::try_from(size).unwrap()];
                rig.function
                    .region_read(0, base.into(), &mut bytes)
                    .unwrap();
                bytes
            })
            .collect();
        let mut config = vec![0; 4096];
        rig.function.region_read(7, 0, &mut config).unwrap();
        all.push(config);
        all
    }
    let mut fresh = Rig::new(Product::Trn2, Platform::Silicon);
    fresh.function.region_write(7, 4, &[0, 0]).unwrap();
    let expected = dump(&mut fresh);

    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 5, 3, 256);
    for n in 0..200 {
        pair.stage(
            &mut device,
            HBM + n * 65_536,
            host(RAM_BASE + (8 << 20)),
            65_536,
            Barrier::None,
        )
        .unwrap();
    }
    pair.trigger(&mut device, 200, 200).unwrap();
    rig.with(|rig| {
        let _ = rig.function.run();
        rig.write(rig.generation.misc_ram + misc_ram::REQUEST_LOW, 7);
        rig.function.region_write(7, 0x10, &[0xff; 24]).unwrap();
        assert_ne!(dump(rig), expected);
        rig.function.reset();
        assert_eq!(dump(rig), expected);
        // Bus mastering is off with the rest; and even with it nothing of before goes on.
        let all = (RAM_BASE, usize::try_from(RAM_SIZE).unwrap());
        let before = rig.bytes(all.0, all.1);
        rig.function.region_write(7, 4, &[6, 0]).unwrap();
        rig.run();
        assert!(
            rig.bytes(all.0, all.1) == before,
            "memory written after a reset"
        );
    });
}

/// Work that the device had decided on when the guest forbade it to master the bus waits until it may again.
#[test]
fn no_message_leaves_without_bus_master() {
    let (rig, mut device) = Rig::by_message(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    rig.with(|rig| rig.fill(DATA, &pattern(64, 1)));
    pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
        .unwrap();
    pair.trigger(&mut device, 1, 1).unwrap();
    rig.with(|rig| {
        let _ = rig.function.run();
        rig.function.region_write(7, 4, &[2, 0]).unwrap();
        let _ = rig.function.run();
        let request = rig.function.next_dma();
        assert!(request.is_none(), "{request:?} without bus mastering");
        rig.function.region_write(7, 4, &[6, 0]).unwrap();
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), pattern(64, 1));
    });
}

/// A client that answers nothing and a guest that gives its queue up again and again: nothing piles up (the device asserts
/// that a queue waits for one access at most), and the last round is served as if it were the first.
#[test]
fn a_queue_reset_while_it_waits_for_the_client_leaves_nothing_behind() {
    let (rig, mut device) = Rig::by_message(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    rig.with(|rig| rig.fill(DATA, &pattern(64, 3)));
    for _ in 0..3000 {
        pair.init(&mut device).unwrap();
        pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
            .unwrap();
        pair.trigger(&mut device, 1, 1).unwrap();
        rig.with(|rig| {
            let _ = rig.function.run();
        });
    }
    rig.with(|rig| {
        let mut sent = 0;
        while let Some((id, request)) = rig.function.next_dma() {
            assert!(rig.function.wants_dma(id), "{request:?}");
            sent += 1;
            let reply = match request {
                DmaRequest::Read { iova, len } => Ok(rig.bytes(iova, len)),
                DmaRequest::Write { iova, data } => {
                    rig.fill(iova, &data);
                    Ok(Vec::new())
                }
            };
            rig.function.dma_reply(id, reply);
            let _ = rig.function.run();
        }
        assert!((3..=5).contains(&sent), "{sent} messages for one copy");
        assert_eq!(rig.bytes(RESULT, 64), pattern(64, 3));
    });
}

/// A ring whose descriptors reset other cores: the client must not wait for all of them.
#[test]
fn a_slice_ends_with_a_reset() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let reset = {
        let generation = rig.with(|rig| rig.generation);
        let offset = u64::from(generation.reset_flag.offset);
        let mut inside = generation.soc_windows.iter().filter_map(|window| {
            let from = offset.checked_sub(window.bar_offset.into())?;
            (from < window.size).then_some(window.base + from)
        });
        inside.next().unwrap()
    };
    // Cores 1 to 7, none of which owns this engine.
    rig.with(|rig| rig.fill(DATA, &0xfe_u32.to_le_bytes()));
    let mut pair = queue(&mut device, 0, 0, 64);
    for _ in 0..32 {
        pair.stage(&mut device, host(DATA), reset, 4, Barrier::None)
            .unwrap();
    }
    pair.trigger(&mut device, 32, 32).unwrap();
    rig.with(|rig| {
        let resets = |rig: &mut Rig| {
            let events = rig.log.take();
            let reset = |event: &&EventKind| matches!(event, EventKind::Reset { .. });
            events.iter().filter(reset).count()
        };
        resets(rig);
        let mut total = 0;
        for _ in 0..100 {
            let _ = rig.function.run();
            let now = resets(rig);
            assert!(now <= 1, "{now} resets in one slice");
            total += now;
        }
        assert_eq!(total, 32);
    });
}

/// An access of BAR4 over the end of a stack reaches the part that exists.
#[test]
fn an_access_over_the_end_of_a_stack_reaches_what_is_there() {
    const END: u64 = 24 << 30;
    const STRIDE: u64 = 64 << 30;
    let mut rig = Rig::new(Product::Trn2, Platform::Silicon);
    for (offset, expected) in [
        (END - 3, [1, 2, 3, 0, 0, 0, 0, 0]),
        (STRIDE - 3, [0, 0, 0, 4, 5, 6, 7, 8]),
    ] {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        rig.function.region_write(4, offset, &bytes).unwrap();
        let mut read = [0xff; 8];
        rig.function.region_read(4, offset, &mut read).unwrap();
        assert_eq!(read, expected);
    }
}

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
use neuron_protocol::registers::{Direction, misc_ram, queue as udma_queue};
use neuron_protocol::ring::MAX_SIZE;
use neuron_vfio_user::memory::Unmapped;
use neuron_vfio_user::observe::event::EventKind;
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::udma::{Fault, FaultKind};
use neuron_vfio_user::vfio::{DmaMap, DmaRequest, DmaUnmap, PciFunction, Protection};
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

/// Memory that the client mapped for one direction only is not touched in the other: with a file behind it the kernel would
/// end the process, and without one the client would be asked for what it has forbidden.
#[test]
fn a_mapping_for_one_direction_refuses_the_other() {
    const ONE_WAY: u64 = 0x4000_0000;
    for (read, with_file) in [(true, true), (true, false), (false, true), (false, false)] {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let file = memfd(4096);
        rustix::io::pwrite(&file, &[7; 64], 0).unwrap();
        let protection = Protection { read, write: !read };
        rig.with(|rig| {
            rig.function.dma_map(DmaMap {
                iova: ONE_WAY,
                size: 4096,
                protection,
                file: with_file.then(|| (file.try_clone().unwrap(), 0)),
            })
        })
        .unwrap();
        let at = rig.with(|rig| rig.host(ONE_WAY));
        let (from, to) = if read { (HBM, at) } else { (at, HBM) };
        let mut pair = queue(&mut device, 0, 0, 64);
        pair.stage(&mut device, from, to, 64, Barrier::None)
            .unwrap();
        pair.trigger(&mut device, 1, 1).unwrap();
        rig.with(|rig| {
            rig.function.run();
            assert!(rig.function.next_dma().is_none(), "the client is asked");
            let events = rig.log.take();
            assert!(
                events.iter().any(|event| matches!(
                    event,
                    EventKind::Abort(Fault {
                        kind: FaultKind::Data(Unmapped::Protected(ONE_WAY)),
                        ..
                    })
                )),
                "{events:?}"
            );
        });
        let mut content = [0; 64];
        rustix::io::pread(&file, &mut content, 0).unwrap();
        assert_eq!(content, [7; 64]);
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

/// Failures of others that a client alone can bring about, and the tests that hold them here: source, file, test.
const HELD: &[(&str, &str, &str)] = &[
    (
        "rust-vmm/vfio#141",
        "wire/proto.rs",
        "no_reply_is_never_answered",
    ),
    (
        "rust-vmm/vfio#143, #144",
        "wire/proto.rs",
        "error_reply_is_a_reply",
    ),
    (
        "rust-vmm/vfio#146",
        "wire/proto.rs",
        "memory_without_descriptor_is_reached_by_messages",
    ),
    (
        "nutanix/libvfio-user#279, #466",
        "wire/proto.rs",
        "dma_reply_crossed_by_client_commands",
    ),
    (
        "oracle/qemu#10, #11",
        "wire/proto.rs",
        "a_read_flushes_posted_writes",
    ),
    (
        "nutanix/libvfio-user#422",
        "wire/proto.rs",
        "a_client_may_send_one_byte_at_a_time",
    ),
    (
        "nutanix/libvfio-user#422",
        "wire/proto.rs",
        "a_client_may_leave_at_any_byte",
    ),
    (
        "nutanix/libvfio-user#185, #619",
        "wire/proto.rs",
        "argsz_too_small",
    ),
    (
        "rust-vmm/vfio 669eb6b, 4721187",
        "wire/proto.rs",
        "access_at_the_end_of_a_region",
    ),
    (
        "nutanix/libvfio-user#463",
        "wire/proto.rs",
        "overlapping_maps_are_passed_on",
    ),
    (
        "nutanix/libvfio-user#463",
        "bugcases.rs",
        "the_later_of_two_overlapping_maps_counts",
    ),
    (
        "nutanix/libvfio-user#588, #202; spdk/spdk#3121",
        "wire/proto.rs",
        "ten_thousand_maps",
    ),
    (
        "nutanix/libvfio-user#588, #202; spdk/spdk#3121",
        "limits.rs",
        "ten_thousand_mappings_are_held_and_freed",
    ),
    (
        "nutanix/libvfio-user#788",
        "wire/proto.rs",
        "last_chunk_of_a_split_dma",
    ),
    (
        "spdk/spdk#2074, #2100",
        "wire/proto.rs",
        "unmap_with_a_message_transfer_under_way",
    ),
    (
        "spdk/spdk#2074, #2100",
        "wire/real.rs",
        "reset_and_unmap_of_a_busy_device",
    ),
    (
        "libvfio-user file DMA",
        "bugcases.rs",
        "dma_past_the_end_of_a_short_file_fails_cleanly",
    ),
    (
        "libvfio-user file DMA",
        "truncation.rs",
        "truncate_under_a_source",
    ),
    (
        "libvfio-user file DMA",
        "truncation.rs",
        "truncate_under_a_destination",
    ),
    (
        "nutanix/libvfio-user#392, spdk/spdk#1813, #1922",
        "limits.rs",
        "a_thousand_clients_that_vanish",
    ),
    (
        "nutanix/libvfio-user#392, spdk/spdk#1813, #1922",
        "wire/proto.rs",
        "a_new_client_finds_a_fresh_device",
    ),
    (
        "nutanix/libvfio-user#458, #844",
        "bugcases.rs",
        "a_device_reset_in_mid_ring_leaves_power_on_values",
    ),
    (
        "nutanix/libvfio-user#859, #729",
        "wire/proto.rs",
        "reset_while_busy",
    ),
    (
        "microsoft/openvmm#3338",
        "device/resets.rs",
        "no_dma_without_bus_master_and_the_work_waits_for_it",
    ),
    (
        "microsoft/openvmm#3915",
        "misbehaviour.rs",
        "a_reset_ends_what_a_fault_began_and_lets_nothing_of_it_land_later",
    ),
    (
        "a poisoned lock stops all devices",
        "wire/proto.rs",
        "a_panic_ends_one_device",
    ),
    (
        "a poisoned lock stops all devices",
        "many.rs",
        "one_failing_device_leaves_the_others_running",
    ),
    (
        "nutanix/libvfio-user#865, #354",
        "../src/function/config_space.rs",
        "status_errors_clear_by_writing_one_and_the_list_ends",
    ),
    (
        "nutanix/libvfio-user#829",
        "wire/proto.rs",
        "every_interrupt_index_is_described",
    ),
    (
        "a completion that is valid before it is written",
        "ordering.rs",
        "a_write_barrier_lands_data_before_the_marker",
    ),
    (
        "a completion that is valid before it is written",
        "ordering.rs",
        "an_engine_that_lands_its_marker_early_is_seen",
    ),
    (
        "Xilinx/systemctlm-cosim-demo#32",
        "wire/msix.rs",
        "masked_vectors_are_pending_until_they_are_unmasked",
    ),
    (
        "Xilinx/systemctlm-cosim-demo#32",
        "wire/msix.rs",
        "triggers_signal_and_the_next_client_finds_no_eventfd",
    ),
    (
        "aws-neuron-sdk#980, #776",
        "rings.rs",
        "a_ring_works_in_any_place_at_any_length_over_many_laps",
    ),
    (
        "aws-neuron-sdk#980, #776",
        "bugcases.rs",
        "ring_lengths_at_their_limits",
    ),
    (
        "aws-neuron-sdk#1390",
        "device/faults.rs",
        "a_bad_address_aborts_before_the_marker_and_stays_until_the_queue_is_reset",
    ),
    (
        "aws-neuron-sdk#61",
        "misbehaviour.rs",
        "firmware_is_late_silent_or_wrong",
    ),
];

/// The table is no longer than what it names.
#[test]
fn every_public_failure_is_held_by_a_test() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (source, file, name) in HELD {
        let text = std::fs::read_to_string(tests.join(file)).expect(file);
        let head = format!("fn {name}()");
        let at = text.find(&head);
        let is_test = at.is_some_and(|at| text[..at].trim_end().ends_with("#[test]"))
            || text.contains("proptest!") && text.contains(&format!("fn {name}("));
        assert!(is_test, "{source}: {file} has no test {name}");
    }
}

/// nutanix/libvfio-user#463 on the device: firmware maps a range again, longer, from a file of its own.
#[test]
fn the_later_of_two_overlapping_maps_counts() {
    const START: u64 = 0xc4000;
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let map = |end: u64, byte: u8| {
        let file = memfd(end - START);
        let bytes = vec![byte; usize::try_from(end - START).unwrap()];
        rustix::io::pwrite(&file, &bytes, 0).unwrap();
        rig.with(|rig| {
            rig.function.dma_map(DmaMap {
                iova: START,
                size: end - START,
                protection: RW,
                file: Some((file, 0)),
            })
        })
        .unwrap();
    };
    map(0xe0000, 1);
    map(0xe8000, 2);
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    // In the first, over its end, and in what only the second has.
    for (nth, at) in [START, 0xe0000 - 32, 0xe7fc0].into_iter().enumerate() {
        let to = host(RESULT + 64 * nth as u64);
        pair.stage(&mut device, host(at), to, 64, Barrier::None)
            .unwrap();
    }
    pair.trigger(&mut device, 3, 3).unwrap();
    rig.with(|rig| {
        rig.run();
        assert_eq!(rig.bytes(RESULT, 192), [2; 192]);
    });
}

/// The length register has 24 bits: what does not fit is not a longer ring but none, and nothing is read for it.
#[test]
fn ring_lengths_at_their_limits() {
    let mut rig = Rig::new(Product::Trn2, Platform::Silicon);
    for (written, kept) in [
        (MAX_SIZE, MAX_SIZE),
        (1 << 24, 0),
        (33, 33),
        (31, 31),
        (u32::MAX, (1 << 24) - 1),
    ] {
        for direction in Direction::BOTH {
            let drl = rig.register(0, 0, direction, udma_queue::DRL);
            rig.write(drl, written);
            assert_eq!(rig.read(drl), kept, "{written:#x}");
            let doorbell = rig.register(0, 0, direction, udma_queue::DRTP_INC);
            rig.write(doorbell, 1);
        }
        rig.run();
        assert_eq!(
            rig.function.report(Detail::Status).counters.bytes,
            0,
            "{written:#x}"
        );
    }
}

//! A client that cuts its memory short after the device has mapped it: the transfer fails, by name, and nothing else.
mod rig;

use neuron_protocol::cycle::QueuePair;
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::{Direction, misc_ram};
use neuron_protocol::ring::RingSize;
use neuron_vfio_user::memory::Unmapped;
use neuron_vfio_user::observe::event::EventKind;
use neuron_vfio_user::udma::{Fault, FaultKind};
use neuron_vfio_user::vfio::{DmaUnmap, PciFunction, Progress};

use rig::*;

/// Guest memory from here on is what the client takes away.
const GONE: u64 = RAM_BASE + (48 << 20);
const HBM: u64 = 0x100_0000;
/// Bytes of a descriptor.
const PIECE: u64 = 65_536;

fn faults(rig: &Shared) -> Vec<Fault> {
    let kinds = rig.with(|rig| rig.log.take()).into_iter();
    kinds
        .filter_map(|kind| match kind {
            EventKind::Abort(fault) => Some(fault),
            _ => None,
        })
        .collect()
}

/// The engine that failed is stopped; the copy queue on another one still works.
fn others_go_on(rig: &Shared, device: &mut Driver) {
    let mut pair = queue(device, 9, 1, 64);
    let host = |address| rig.with(|rig| rig.host(address));
    rig.with(|rig| rig.fill(DATA, &pattern(4096, 5)));
    let (from, to) = (host(DATA), host(RESULT));
    pair.stage(device, from, to, 4096, Barrier::None).unwrap();
    pair.trigger(device, 1, 1).unwrap();
    rig.with(Rig::run);
    assert_eq!(rig.with(|rig| rig.bytes(RESULT, 4096)), pattern(4096, 5));
    assert_eq!(faults(rig), []);
}

/// 12 MiB and a marker between HBM and memory that goes away in the middle of it.
fn truncate_under_a_copy(from_guest: bool) {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 256);
    for n in 0..192 {
        let (guest, hbm) = (host(GONE - (6 << 20) + n * PIECE), HBM + n * PIECE);
        let (from, to) = if from_guest {
            (guest, hbm)
        } else {
            (hbm, guest)
        };
        pair.stage(&mut device, from, to, 65_536, Barrier::None)
            .unwrap();
    }
    rig.with(|rig| rig.fill(MARKERS, &MARKER.to_le_bytes()));
    let (marker, done) = (host(MARKERS), host(MARKERS + 4));
    pair.stage(&mut device, marker, done, 4, Barrier::None)
        .unwrap();
    pair.trigger(&mut device, 193, 193).unwrap();
    rig.with(|rig| {
        assert_eq!(rig.function.run(), Progress::Again);
        rig.truncate(GONE);
        rig.run();
        assert_eq!(
            rig.bytes(MARKERS + 4, 4),
            [0; 4],
            "a marker after a failure"
        );
    });
    let direction = if from_guest {
        Direction::M2s
    } else {
        Direction::S2m
    };
    let expected = Fault {
        queue: 0,
        direction,
        // 6 MiB came before.
        index: 96,
        address: host(GONE),
        kind: FaultKind::Data(Unmapped::Truncated),
    };
    assert_eq!(faults(&rig), [expected]);
    assert!(
        expected
            .to_string()
            .contains("truncated after it was mapped")
    );
    others_go_on(&rig, &mut device);
    // What is lost stays lost, silently zero as it may read by now, until the client maps it again.
    let mut again = queue(&mut device, 3, 0, 64);
    for address in [GONE + (1 << 20), GONE] {
        again
            .stage(&mut device, host(address), HBM, 64, Barrier::None)
            .unwrap();
    }
    again.trigger(&mut device, 2, 2).unwrap();
    rig.with(Rig::run);
    assert!(matches!(
        faults(&rig)[..],
        [Fault {
            index: 0,
            kind: FaultKind::Data(Unmapped::Truncated),
            ..
        }]
    ));
}

#[test]
fn truncate_under_a_source() {
    truncate_under_a_copy(true);
}

#[test]
fn truncate_under_a_destination() {
    truncate_under_a_copy(false);
}

/// Single words go another way, the one of the marker.
#[test]
fn truncate_under_a_marker() {
    for lost_source in [false, true] {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let host = |address| rig.with(|rig| rig.host(address));
        let mut pair = queue(&mut device, 0, 0, 64);
        let (from, to) = if lost_source {
            (GONE, MARKERS)
        } else {
            (MARKERS, GONE)
        };
        rig.with(|rig| rig.fill(from, &MARKER.to_le_bytes()));
        rig.with(|rig| rig.fill(to, &[7; 4]));
        let (source, destination) = (host(from), host(to));
        pair.stage(&mut device, source, destination, 4, Barrier::None)
            .unwrap();
        pair.trigger(&mut device, 1, 1).unwrap();
        rig.with(|rig| {
            rig.truncate(GONE);
            rig.run();
            if lost_source {
                assert_eq!(rig.bytes(MARKERS, 4), [7; 4], "a word that was never read");
            }
        });
        let found = faults(&rig);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].kind, FaultKind::Data(Unmapped::Truncated));
        assert_eq!(found[0].direction == Direction::M2s, lost_source);
        others_go_on(&rig, &mut device);
    }
}

#[test]
fn truncate_under_a_ring() {
    for lost in Direction::BOTH {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let host = |address| rig.with(|rig| rig.host(address));
        let size = RingSize::new(64).unwrap();
        let place = |direction| if direction == lost { GONE } else { TX_RING };
        let [tx, rx] = [Direction::M2s, Direction::S2m].map(place);
        let mut pair = QueuePair::new(&device, 0, 0, size, tx, rx).unwrap();
        pair.init(&mut device).unwrap();
        let (from, to) = (host(DATA), host(RESULT));
        pair.stage(&mut device, from, to, 64, Barrier::None)
            .unwrap();
        pair.trigger(&mut device, 1, 1).unwrap();
        rig.with(|rig| {
            rig.fill(DATA, &[1; 64]);
            rig.truncate(GONE);
            rig.run();
            assert_eq!(rig.bytes(RESULT, 64), [0; 64]);
        });
        let found = faults(&rig);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].kind, FaultKind::Fetch(Unmapped::Truncated));
        assert_eq!((found[0].direction, found[0].index), (lost, 0));
        others_go_on(&rig, &mut device);
    }
}

#[test]
fn truncate_under_the_mailbox() {
    use neuron_protocol::mailbox::{Command, Response, Sequence, Status, build_request};
    for (request_at, response_at) in [(GONE, RESULT), (DATA, GONE)] {
        let (rig, mut device) = Rig::new(Product::Trn1, Platform::Silicon).driver();
        let ram = rig.with(|rig| rig.generation.misc_ram);
        let address = 0x0fff_f000_0000 + u64::from(ram + misc_ram::ROUTING_ID - 0x3000_0000);
        let mut request = vec![0; 64];
        let payload = address.to_le_bytes();
        let len = build_request(&mut request, Sequence::FIRST, Command::Read, &payload).unwrap();
        let send = |request_at, response_at| {
            rig.with(|rig| {
                rig.ask_firmware(request_at, response_at);
                rig.run();
            });
        };
        rig.with(|rig| {
            rig.fill(request_at, &request[..len]);
            rig.truncate(GONE);
        });
        send(request_at, response_at);
        rig.with(|rig| assert_eq!(rig.bytes(RESULT, 1), [0], "an answer from nowhere"));
        // The next request is answered.
        rig.with(|rig| rig.fill(DATA, &request[..len]));
        send(DATA, RESULT);
        let bytes = rig.with(|rig| rig.bytes(RESULT, 64));
        let response = Response::parse(&bytes).unwrap();
        assert_eq!((response.sequence, response.status), (1, Status::Ok));
        others_go_on(&rig, &mut device);
    }
}

/// Splits of a mapping know what the whole has lost, and a new mapping of the file starts afresh.
#[test]
fn a_lost_mapping_can_be_split_and_removed() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut copy = |engine, address| {
        let mut pair = queue(&mut device, engine, 0, 64);
        pair.stage(&mut device, host(address), HBM, 64, Barrier::None)
            .unwrap();
        pair.trigger(&mut device, 1, 1).unwrap();
        rig.with(Rig::run);
        faults(&rig).first().map(|fault| fault.kind)
    };
    rig.with(|rig| {
        rig.truncate(GONE);
        let hole = DmaUnmap::Range {
            iova: GONE - 0x2000,
            size: 0x1000,
        };
        rig.function.dma_unmap(hole).unwrap();
    });
    let truncated = Some(FaultKind::Data(Unmapped::Truncated));
    assert_eq!(copy(0, GONE), truncated);
    assert_eq!(copy(1, GONE - 0x1000), None);
    let hole = Some(FaultKind::Data(Unmapped::NotMapped(GONE - 0x2000)));
    assert_eq!(copy(2, GONE - 0x2000), hole);
    assert_eq!(copy(3, GONE + 0x1000), truncated);
    rig.with(|rig| rig.function.dma_unmap(DmaUnmap::All).unwrap());
    let unmapped = Some(FaultKind::Fetch(Unmapped::NotMapped(RX_RING)));
    assert_eq!(copy(4, GONE), unmapped);
}

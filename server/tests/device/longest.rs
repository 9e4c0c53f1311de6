//! The longest ring that a driver may program, worked off to its end and beyond: 2^24 - 16 descriptors (contract §8.4).
use neuron_protocol::descriptor::{Barrier, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::registers::{Direction, queue};
use neuron_protocol::ring::{MAX_SIZE, RingId};
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::vfio::{DmaMap, PciFunction};
use rustix::io::pwrite;

use crate::rig::*;

const ENGINE: u8 = 5;
const QUEUE: u8 = 4;
const MIB: u64 = 1 << 20;
const RINGS: [(Direction, u64); 2] = [
    (Direction::M2s, 0x10_0000_0000),
    (Direction::S2m, 0x20_0000_0000),
];
/// Copies that can be told apart, on either side of the end.
const EDGE: u32 = 8;
const EDGE_BYTES: u64 = 64;

/// Writes descriptors of both rings into files that are mapped there, from a place in bytes on.
fn write(files: &[std::os::fd::OwnedFd; 2], at: u64, pairs: &[(u64, u64, u32)], id: RingId) {
    let mut bytes = [Vec::new(), Vec::new()];
    for (source, destination, length) in pairs {
        let tx = TxDescriptor::copy(*source, *length, id, Barrier::None).unwrap();
        let rx = RxDescriptor::new(*destination, *length, id, Barrier::None).unwrap();
        let tx: [u8; 16] = zerocopy::transmute!(tx);
        let rx: [u8; 16] = zerocopy::transmute!(rx);
        bytes[0].extend(tx);
        bytes[1].extend(rx);
    }
    for (file, bytes) in files.iter().zip(&bytes) {
        assert_eq!(pwrite(file, bytes, at).unwrap(), bytes.len());
    }
}

/// The first and the last MiB of a ring have a file of their own; the 254 between share one, whose descriptors all move the
/// same byte. Sixteen copies around the end are told apart: eight with the first lap's id, eight with the second's.
#[test]
fn the_longest_ring_goes_on_at_its_beginning() {
    let mut rig = Rig::seen_by(Product::Trn2, Platform::Silicon, vec![]);
    let pair = || [memfd(MIB), memfd(MIB)];
    let (first, middle, last) = (pair(), pair(), pair());
    for (side, (_, base)) in RINGS.into_iter().enumerate() {
        for n in 0..256 {
            let file = match n {
                0 => &first,
                255 => &last,
                _ => &middle,
            };
            let map = DmaMap {
                iova: base + n * MIB,
                size: MIB,
                protection: RW,
                file: Some((file[side].try_clone().unwrap(), 0)),
            };
            rig.function.dma_map(map).unwrap();
        }
    }
    let filler = (rig.host(DATA), rig.host(RESULT - 1), 1);
    let per_mib = usize::try_from(MIB / 16).unwrap();
    for files in [&first, &middle, &last] {
        write(files, 0, &vec![filler; per_mib], RingId::INITIAL);
    }
    let (from, to) = (rig.host(DATA), rig.host(RESULT));
    let edge = |first: u32| -> Vec<(u64, u64, u32)> {
        let copies = (first..first + EDGE).map(|n| EDGE_BYTES * u64::from(n));
        copies.map(|at| (from + at, to + at, 64)).collect()
    };
    // The last sixteen slots of the mapped MiB are beyond the ring's end.
    let end = MIB - 16 * 16;
    write(&last, end - 16 * u64::from(EDGE), &edge(0), RingId::INITIAL);
    let data = pattern(2 * 8 * 64, 3);
    rig.fill(DATA, &data);
    rig.fill(RESULT, &vec![0; data.len()]);
    for (direction, base) in RINGS {
        let base = rig.host(base);
        for (register, value) in [
            (queue::DRBP_LOW, base & 0xffff_ffff),
            (queue::DRBP_HIGH, base >> 32),
            (queue::DRL, MAX_SIZE.into()),
            (queue::CFG, u32::MAX.into()),
        ] {
            let at = rig.register(ENGINE, QUEUE, direction, register);
            rig.write(at, u32::try_from(value).unwrap());
        }
    }
    let doorbells = |rig: &mut Rig, count| {
        for direction in [Direction::S2m, Direction::M2s] {
            let at = rig.register(ENGINE, QUEUE, direction, queue::DRTP_INC);
            rig.write(at, count);
        }
        rig.run();
    };
    // Up to the copies before the end.
    doorbells(&mut rig, MAX_SIZE - EDGE);
    assert_eq!(rig.bytes(RESULT, data.len()), vec![0; data.len()]);
    write(&first, 0, &edge(EDGE), RingId::INITIAL.next());
    doorbells(&mut rig, 2 * EDGE);
    assert!(
        rig.bytes(RESULT, data.len()) == data,
        "the copies around the end"
    );
    let counters = rig.function.report(Detail::Status).counters;
    assert_eq!(
        (counters.errors, counters.descriptors),
        (0, 2 * u64::from(MAX_SIZE + EDGE))
    );
    for direction in Direction::BOTH {
        for register in [queue::DRHP, queue::DRTP, queue::CRHP] {
            let at = rig.register(ENGINE, QUEUE, direction, register);
            assert_eq!(rig.read(at), 2 << 30 | EDGE, "{direction} {register:#x}");
        }
    }
}

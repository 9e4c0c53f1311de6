//! The cycle: batches, doorbells, pointers, slices.
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::{DCP, DRHP, DRTP, DRTP_INC};
use neuron_vfio_user::observe::report::{Account, Detail, Wait};
use neuron_vfio_user::vfio::{PciFunction, Progress};

use crate::HBM;
use crate::rig::*;

#[test]
fn the_cycle_copies_on_every_product_and_platform() {
    for product in Product::ALL {
        for platform in Platform::ALL {
            let (rig, mut device) = Rig::new(product, platform).driver();
            let mut copies = copy_queue(&mut device, platform);
            let data = pattern(3 * 65_536 + 17, 1);
            rig.with(|rig| rig.fill(DATA + 3, &data));
            let host = |address| rig.with(|rig| rig.host(address));
            let len = data.len() as u64;
            copies
                .copy(&mut device, host(DATA + 3), HBM + 5, len)
                .unwrap();
            copies
                .copy(&mut device, HBM + 5, host(RESULT + 1), len)
                .unwrap();
            assert_eq!(
                rig.with(|rig| rig.bytes(RESULT + 1, data.len())),
                data,
                "{product} {platform}"
            );
            let report = rig.with(|rig| rig.function.report(Detail::Status));
            assert_eq!(report.counters.batches, 2);
            assert_eq!(report.counters.bytes, 2 * (len + 4));
            assert_eq!(report.counters.errors, 0);
            assert_eq!(report.unmodelled, []);
        }
    }
}

#[test]
fn messages_reach_memory_that_has_no_file() {
    let (rig, mut device) = Rig::by_message(Product::Trn2, Platform::Qemu).driver();
    let mut copies = copy_queue(&mut device, Platform::Qemu);
    let data = pattern(2 * 65_536 + 1, 2);
    rig.with(|rig| rig.fill(DATA, &data));
    let host = |address| rig.with(|rig| rig.host(address));
    copies
        .copy(&mut device, host(DATA), HBM, data.len() as u64)
        .unwrap();
    copies
        .copy(&mut device, host(DATA), host(RESULT), data.len() as u64)
        .unwrap();
    assert_eq!(rig.with(|rig| rig.bytes(RESULT, data.len())), data);
    copies
        .copy(
            &mut device,
            HBM,
            host(RESULT + 0x10_0000),
            data.len() as u64,
        )
        .unwrap();
    assert_eq!(
        rig.with(|rig| rig.bytes(RESULT + 0x10_0000, data.len())),
        data
    );
}

#[test]
fn asynchronous_batches_and_several_batches_in_one_copy() {
    let (rig, mut device) = Rig::new(Product::Trn1, Platform::Silicon).driver();
    let mut copies = copy_queue(&mut device, Platform::Silicon);
    let host = |address| rig.with(|rig| rig.host(address));
    // 2,500 descriptors with a fixed source: more than one batch, less than guest RAM.
    rig.with(|rig| rig.fill(DATA, &pattern(65_536, 3)));
    copies
        .fill(&mut device, host(DATA), HBM, 2500 * 65_536)
        .unwrap();
    assert!(rig.with(|rig| rig.function.report(Detail::Status).counters.batches) >= 2);
    copies
        .copy(&mut device, HBM + 2499 * 65_536, host(RESULT), 65_536)
        .unwrap();
    assert_eq!(
        rig.with(|rig| rig.bytes(RESULT, 65_536)),
        pattern(65_536, 3)
    );

    let mut previous = None;
    for n in 0..8u32 {
        rig.with(|rig| rig.fill(DATA + u64::from(n) * 0x1000, &pattern(0x1000, n)));
        let at = u64::from(n) * 0x1000;
        previous = Some(
            copies
                .start(&mut device, host(DATA + at), HBM + at, 0x1000, previous)
                .unwrap(),
        );
    }
    copies.wait(&mut device, previous.unwrap()).unwrap();
    copies
        .copy(&mut device, HBM, host(RESULT), 8 * 0x1000)
        .unwrap();
    for n in 0..8u32 {
        let at = RESULT + u64::from(n) * 0x1000;
        assert_eq!(rig.with(|rig| rig.bytes(at, 0x1000)), pattern(0x1000, n));
    }
}

#[test]
fn doorbells_add_up_and_are_never_coalesced() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let mut pair = queue(&mut device, 0, 3, 256);
    let host = |address| rig.with(|rig| rig.host(address));
    for n in 0..200u64 {
        rig.with(|rig| rig.fill(DATA + n * 64, &pattern(64, n as u32)));
        pair.stage(
            &mut device,
            host(DATA + n * 64),
            host(RESULT + n * 64),
            64,
            Barrier::None,
        )
        .unwrap();
        pair.trigger(&mut device, 1, 1).unwrap();
    }
    rig.with(|rig| {
        let tail = rig.register(0, 3, Direction::M2s, DRTP);
        assert_eq!(rig.read(tail) & 0xff_ffff, 200);
        rig.run();
        for n in 0..200u64 {
            assert_eq!(rig.bytes(RESULT + n * 64, 64), pattern(64, n as u32));
        }
        for register in [DRHP, DRTP, DCP] {
            let register = rig.register(0, 3, Direction::S2m, register);
            assert_eq!(rig.read(register), 0x4000_0000 | 200);
        }
    });
}

#[test]
fn pointers_carry_the_ring_id_past_three_laps() {
    let (rig, mut device) = Rig::new(Product::Inf2, Platform::Silicon).driver();
    let mut pair = queue(&mut device, 32, 0, 64);
    let host = |address| rig.with(|rig| rig.host(address));
    let mut staged = 0u32;
    for lap in 0..14 {
        for _ in 0..20 {
            pair.stage(&mut device, host(DATA), host(RESULT), 4, Barrier::None)
                .unwrap();
        }
        pair.trigger(&mut device, 20, 20).unwrap();
        rig.with(Rig::run);
        pair.ack(20).unwrap();
        staged += 20;
        let expected = (((1 + staged / 64) % 4) << 30) | (staged % 64);
        rig.with(|rig| {
            for direction in Direction::BOTH {
                let head = rig.register(32, 0, direction, DRHP);
                assert_eq!(rig.read(head), expected, "lap {lap}");
            }
        });
    }
    assert_eq!(
        rig.with(|rig| rig.function.report(Detail::Status).counters.errors),
        0
    );
}

#[test]
fn an_rx_only_trigger_prefetches_and_a_tx_without_rx_waits() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let mut pair = queue(&mut device, 5, 0, 64);
    let host = |address| rig.with(|rig| rig.host(address));
    rig.with(|rig| rig.fill(DATA, &pattern(128, 9)));
    pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
        .unwrap();
    pair.stage(
        &mut device,
        host(DATA + 64),
        host(RESULT + 64),
        64,
        Barrier::None,
    )
    .unwrap();
    pair.trigger(&mut device, 0, 1).unwrap();
    rig.with(|rig| {
        rig.run();
        let head = rig.register(5, 0, Direction::S2m, DRHP);
        assert_eq!(rig.read(head) & 0xff_ffff, 1);
        assert_eq!(
            rig.function.report(Detail::Status).queues[0].wait,
            Wait::M2sDoorbell
        );
        let doorbell = rig.register(5, 0, Direction::M2s, DRTP_INC);
        rig.write(doorbell, 2);
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), pattern(128, 9)[..64]);
        assert_eq!(rig.bytes(RESULT + 64, 64), [0; 64]);
        assert_eq!(
            rig.function.report(Detail::Status).queues[0].wait,
            Wait::S2mDoorbell
        );
        let doorbell = rig.register(5, 0, Direction::S2m, DRTP_INC);
        rig.write(doorbell, 1);
        rig.run();
        assert_eq!(rig.bytes(RESULT, 128), pattern(128, 9));
        assert_eq!(
            rig.function.report(Detail::Status).queues[0].wait,
            Wait::Nothing
        );
    });
}

#[test]
fn a_slice_is_bounded_whatever_is_rung_for() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 8192);
    for _ in 0..2000 {
        pair.stage(&mut device, host(DATA), host(RESULT), 65_536, Barrier::None)
            .unwrap();
    }
    pair.trigger(&mut device, 2000, 2000).unwrap();
    rig.with(|rig| {
        let mut slices = 0;
        let mut before = 0;
        while rig.function.run() == Progress::Again {
            let bytes = rig.function.report(Detail::Status).counters.bytes;
            assert!(bytes - before <= neuron_vfio_user::function::SLICE_BYTES + 65_536);
            before = bytes;
            slices += 1;
        }
        assert!(slices > 20, "{slices}");
        assert_eq!(
            rig.function.report(Detail::Status).counters.bytes,
            2000 * 65_536
        );
    });
}

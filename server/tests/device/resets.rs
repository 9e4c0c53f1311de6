//! Resets, bus mastering, the end of a client.
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::registers::queue::DRBP_HIGH;
use neuron_protocol::registers::{Direction, misc_ram};
use neuron_vfio_user::observe::report::{Account, Detail, Wait};
use neuron_vfio_user::vfio::PciFunction;

use crate::HBM;
use crate::rig::*;

#[test]
fn no_dma_without_bus_master_and_the_work_waits_for_it() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
        .unwrap();
    rig.with(|rig| {
        rig.fill(DATA, &pattern(64, 6));
        rig.function.region_write(7, 4, &[2, 0]).unwrap();
    });
    pair.trigger(&mut device, 1, 1).unwrap();
    rig.with(|rig| {
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), [0; 64]);
        assert_eq!(
            rig.function.report(Detail::Status).queues[0].wait,
            Wait::BusMaster
        );
        rig.function.region_write(7, 4, &[6, 0]).unwrap();
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), pattern(64, 6));
    });
}

#[test]
fn resets_are_acknowledged_on_every_platform_and_drop_pending_work() {
    // What asks for the whole device on V3 and V4 of revision 255: 0, and from 2.30 on all ones (contract §7, §12.3).
    for all in [0, u32::MAX] {
        for (product, platform) in Product::ALL
            .into_iter()
            .flat_map(|p| Platform::ALL.map(|platform| (p, platform)))
        {
            let (rig, mut device) = Rig::new(product, platform).driver();
            let host = |address| rig.with(|rig| rig.host(address));
            let (engine, number) = device.generation.h2t_queue(0).unwrap();
            let mut pair = queue(&mut device, engine, number, 64);
            pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
                .unwrap();
            pair.trigger(&mut device, 1, 1).unwrap();
            rig.with(|rig| {
                rig.fill(DATA, &pattern(64, 6));
                let generation = rig.generation;
                let flag = &generation.reset_flag;
                if platform == Platform::Qemu {
                    rig.write(flag.offset, if flag.with_firmware { 1 } else { all });
                }
                if platform != Platform::Qemu || flag.with_firmware {
                    let ram = generation.misc_ram;
                    rig.write(ram + misc_ram::RESET_MAP, 0);
                    rig.write(ram + misc_ram::RESET, misc_ram::RESET_DEVICE);
                    rig.write(ram + misc_ram::TRIGGER, 1);
                    assert_eq!(rig.read(ram + misc_ram::RESET), 0);
                    assert_eq!(rig.read(ram + misc_ram::STATUS) & 8, 0);
                }
                assert_eq!(rig.read(flag.offset), 0);
                assert_eq!(rig.function.report(Detail::Status).counters.resets, 1);
                rig.run();
                assert_eq!(
                    rig.bytes(RESULT, 64),
                    [0; 64],
                    "{product} {platform}: written after the reset"
                );
                let base = rig.register(engine, number, Direction::M2s, DRBP_HIGH);
                assert_eq!(rig.read(base), 0);
            });
        }
    }
}

#[test]
fn a_core_reset_leaves_the_other_cores_alone() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 16, 0, 64);
    pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
        .unwrap();
    pair.trigger(&mut device, 1, 1).unwrap();
    rig.with(|rig| {
        rig.fill(DATA, &pattern(64, 6));
        let ram = rig.generation.misc_ram;
        rig.write(ram + misc_ram::RESET_MAP, 0x0001_0101);
        rig.write(ram + misc_ram::RESET, misc_ram::RESET_CORES);
        rig.write(ram + misc_ram::TRIGGER, 1);
        rig.run();
        assert_eq!(
            rig.bytes(RESULT, 64),
            pattern(64, 6),
            "core 1 was not reset"
        );
    });
}

/// Drivers from 2.27 on name the engines of the driver's own copies in a second word.
#[test]
fn a_core_reset_may_name_whole_copy_engines() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    // Of a queue that no core has; the neighbour's is left alone.
    let mut pairs = [129, 130].map(|engine| {
        let pair = queue(&mut device, engine, 5, 64);
        rig.with(|rig| {
            let base = rig.register(engine, 5, Direction::M2s, DRBP_HIGH);
            rig.write(base, 7);
        });
        (engine, pair)
    });
    rig.with(|rig| {
        let ram = rig.generation.misc_ram;
        rig.write(ram + misc_ram::RESET_MAP_HIGH, 1 << 1);
        rig.write(ram + misc_ram::RESET_MAP, 0x0002_0202);
        rig.write(ram + misc_ram::RESET, misc_ram::RESET_CORES);
        rig.write(ram + misc_ram::TRIGGER, 1);
        rig.run();
        assert_eq!(rig.read(ram + misc_ram::RESET), 0, "not acknowledged");
        let base = |rig: &mut Rig, engine| {
            let base = rig.register(engine, 5, Direction::M2s, DRBP_HIGH);
            rig.read(base)
        };
        assert_eq!((base(rig, 129), base(rig, 130)), (0, 7));
    });
    // It works again once it is programmed.
    let host = |address| rig.with(|rig| rig.host(address));
    rig.with(|rig| rig.fill(DATA, &pattern(64, 4)));
    let (engine, pair) = &mut pairs[0];
    neuron_protocol::cycle::init_engine(&mut device, *engine).unwrap();
    pair.init(&mut device).unwrap();
    pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
        .unwrap();
    pair.trigger(&mut device, 1, 1).unwrap();
    rig.with(|rig| {
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), pattern(64, 4));
    });
}

#[test]
fn a_disconnected_device_is_as_new() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let mut copies = copy_queue(&mut device, Platform::Silicon);
    let host = |address| rig.with(|rig| rig.host(address));
    rig.with(|rig| rig.fill(DATA, &pattern(4096, 1)));
    copies.copy(&mut device, host(DATA), HBM, 4096).unwrap();
    rig.with(|rig| {
        assert!(rig.function.report(Detail::Status).hbm_resident > 0);
        rig.function.disconnect();
        let report = rig.function.report(Detail::Dump);
        assert_eq!(
            (report.hbm_resident, report.bus_master, report.maps.len()),
            (0, false, 0)
        );
        let mut config = [0; 6];
        rig.function.region_read(7, 0, &mut config).unwrap();
        assert_eq!(config[4..], [0, 0]);
    });
}

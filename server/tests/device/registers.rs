//! Registers and tiles, reached by BAR and by DMA; the mailbox.
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Block, Platform, Product};
use neuron_protocol::registers::{misc_ram, semaphore};
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::vfio::PciFunction;

use crate::rig::*;

#[test]
fn semaphores_and_registers_are_reached_by_dma() {
    for (product, tile) in [
        (Product::Trn1, 0x0fff_c000_0000u64 + 0x270_0000),
        (Product::Trn2, 0x20_0000_0000 + 0x8_0270_0000),
    ] {
        let (rig, mut device) = Rig::new(product, Platform::Silicon).driver();
        let host = |address| rig.with(|rig| rig.host(address));
        let mut pair = queue(&mut device, 0, 0, 64);
        rig.with(|rig| rig.fill(DATA, &5u32.to_le_bytes()));
        let increment = tile + u64::from(semaphore::INCREMENT) + 4 * 7;
        for _ in 0..3 {
            pair.stage(&mut device, host(DATA), increment, 4, Barrier::None)
                .unwrap();
        }
        // And back, by DMA from the register.
        pair.stage(
            &mut device,
            tile + u64::from(semaphore::READ) + 4 * 7,
            host(RESULT),
            4,
            Barrier::None,
        )
        .unwrap();
        pair.trigger(&mut device, 4, 4).unwrap();
        rig.with(|rig| {
            rig.run();
            let core = rig.generation.block_base(Block::CoreTile, 0).unwrap();
            assert_eq!(
                rig.read(core + semaphore::CORE_OFFSET + semaphore::READ + 4 * 7),
                15
            );
            assert_eq!(rig.bytes(RESULT, 4), 15u32.to_le_bytes());
            assert_eq!(rig.function.report(Detail::Status).counters.errors, 0);
        });
    }
}

#[test]
fn state_buffer_is_the_same_by_bar_and_by_dma() {
    let (rig, mut device) = Rig::new(Product::Trn3, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    rig.with(|rig| rig.fill(DATA, &pattern(4096, 8)));
    pair.stage(&mut device, host(DATA), 0x30_0000_1000, 4096, Barrier::None)
        .unwrap();
    pair.trigger(&mut device, 1, 1).unwrap();
    rig.with(|rig| {
        rig.run();
        let mut bytes = vec![0; 4096];
        rig.function
            .region_read(0, 0xd400_1000, &mut bytes)
            .unwrap();
        assert_eq!(bytes, pattern(4096, 8));
    });
}

#[test]
fn the_legacy_mailbox_answers_in_host_memory() {
    use neuron_protocol::mailbox::{Command, Response, Sequence, Status, build_request};
    for by_message in [false, true] {
        let new = if by_message {
            Rig::by_message
        } else {
            Rig::new
        };
        let mut rig = new(Product::Trn1, Platform::Silicon);
        let ram = rig.generation.misc_ram;
        let mut request = vec![0; 64];
        let address = 0x0fff_f000_0000 + u64::from(ram + misc_ram::ROUTING_ID - 0x3000_0000);
        let payload: Vec<u8> = [address, address - 0x24]
            .iter()
            .flat_map(|a| a.to_le_bytes())
            .collect();
        let len = build_request(&mut request, Sequence::FIRST, Command::Read, &payload).unwrap();
        rig.fill(DATA, &request[..len]);
        rig.write(ram + misc_ram::SERIAL_LOW, 1);
        rig.ask_firmware(DATA, RESULT);
        rig.run();
        let bytes = rig.bytes(RESULT, 64);
        let response = Response::parse(&bytes).unwrap();
        assert_eq!((response.sequence, response.status), (1, Status::Ok));
        assert_eq!(response.payload, [0; 8]);

        // A wrong CRC stays without an answer, and the next good one is answered.
        rig.fill(RESULT, &[0; 64]);
        rig.fill(DATA + 9, &[0xff]);
        rig.write(ram + misc_ram::TRIGGER, 1);
        rig.run();
        assert_eq!(rig.bytes(RESULT, 1), [0]);
        rig.fill(DATA, &request[..len]);
        rig.write(ram + misc_ram::TRIGGER, 1);
        rig.run();
        assert_eq!(rig.bytes(RESULT, 1), [1]);
    }
}

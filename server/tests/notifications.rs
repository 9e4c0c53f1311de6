//! Notification queues as software sees them: registers, and entries that arrive in rings anywhere.
mod rig;

use neuron_protocol::generation::{Block, Platform, Product};
use neuron_protocol::registers::notification::{self, BASE_HIGH, BASE_LOW, HEAD, SIZE};
use neuron_vfio_user::function::PostError;
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::policy::NotificationBlock::{self, Core, Sdma, TopSp};
use neuron_vfio_user::vfio::{DmaUnmap, PciFunction};
use rig::{DATA, RAM_BASE, RAM_SIZE, Rig, pattern};

fn register(rig: &Rig, block: NotificationBlock, index: u8, queue: u32, register: u32) -> u32 {
    let block = match block {
        Core => Block::CoreNotification,
        TopSp => Block::TopSpNotification,
        Sdma => Block::SdmaNotification,
    };
    let base = rig.generation.block_base(block, index).unwrap();
    base + notification::QUEUES + queue * notification::QUEUE_STRIDE + register
}

/// High, low, size: the driver's order (contract §9).
fn program(rig: &mut Rig, at: (NotificationBlock, u8, u8), base: u64, size: u32) {
    let (block, index, queue) = at;
    for (name, value) in [
        (BASE_HIGH, u32::try_from(base >> 32).unwrap()),
        (BASE_LOW, u32::try_from(base & 0xffff_ffff).unwrap()),
        (SIZE, size),
    ] {
        let offset = register(rig, block, index, queue.into(), name);
        rig.write(offset, value);
        assert_eq!(rig.read(offset), value, "it reads back");
    }
}

fn head(rig: &mut Rig, at: (NotificationBlock, u8, u8)) -> u32 {
    let offset = register(rig, at.0, at.1, at.2.into(), HEAD);
    rig.read(offset)
}

fn rigs(product: Product) -> [Rig; 2] {
    [
        Rig::new(product, Platform::Silicon),
        Rig::by_message(product, Platform::Silicon),
    ]
}

#[test]
fn entries_arrive_in_every_blocks_ring_and_wrap() {
    for product in Product::ALL {
        for mut rig in rigs(product) {
            let last = |block| {
                let exists = |index: &u8| rig.generation.block_base(block, *index).is_some();
                (0..=255).filter(exists).max().unwrap()
            };
            let queues = [
                (Core, 0, 0),
                (Core, last(Block::CoreNotification), 15),
                (TopSp, last(Block::TopSpNotification), 3),
                (Sdma, last(Block::SdmaNotification), 0),
            ];
            for (at, place) in queues.into_iter().zip([0, 1, 2, 3]) {
                let (ring, size) = (DATA + place * 0x1000, 256);
                let base = rig.host(ring);
                program(&mut rig, at, base, size);
                // 96 does not divide 256: the third entry goes around the end.
                let mut expected = vec![0; 256];
                for n in 0..5 {
                    let entry = pattern(96, n);
                    let at_byte = (n as usize * 96) % 256;
                    for (k, byte) in entry.iter().enumerate() {
                        expected[(at_byte + k) % 256] = *byte;
                    }
                    let posted = rig.function.post(at.0, at.1, at.2, &entry).unwrap();
                    rig.run();
                    assert_eq!(rig.bytes(ring, 256), expected, "{at:?} entry {n}");
                    assert_eq!(head(&mut rig, at), (n + 1) * 96 % 256);
                    assert_eq!(posted.head, head(&mut rig, at));
                    assert_eq!(rig.bytes(ring + 256, 8), [0; 8], "past the ring");
                }
            }
            let counters = rig.function.report(Detail::Status).counters;
            assert_eq!(
                (counters.notifications, counters.notifications_lost),
                (20, 0)
            );
        }
    }
}

#[test]
fn rings_in_hbm_work_too() {
    let mut rig = Rig::new(Product::Trn2, Platform::Silicon);
    let at = (Core, 7, 2);
    program(&mut rig, at, 0x40_0000_1000, 64);
    rig.function.post(Core, 7, 2, b"entry in HBM").unwrap();
    let mut bytes = [0; 12];
    // Stack 1 is 64 GiB up in BAR4.
    rig.function
        .region_read(4, 0x10_0000_1000, &mut bytes)
        .unwrap();
    assert_eq!(&bytes, b"entry in HBM");
    // The head is the device's; a new size begins anew.
    let offset = register(&rig, Core, 7, 2, HEAD);
    rig.write(offset, 40);
    assert_eq!(head(&mut rig, at), 12);
    program(&mut rig, at, 0x40_0000_1000, 64);
    assert_eq!(head(&mut rig, at), 0);
}

#[test]
fn what_cannot_be_posted_is_named_counted_and_writes_nothing() {
    let mut rig = Rig::new(Product::Trn1, Platform::Silicon);
    let host = rig.host(RAM_BASE + RAM_SIZE - 64);
    let post = |rig: &mut Rig, block, index, queue, len| {
        rig.function.post(block, index, queue, &vec![0xee; len])
    };
    for (block, index, queue) in [(Core, 2, 0), (TopSp, 6, 0), (Sdma, 34, 0), (Core, 0, 16)] {
        assert_eq!(
            post(&mut rig, block, index, queue, 8),
            Err(PostError::NoQueue)
        );
    }
    assert_eq!(post(&mut rig, Core, 0, 0, 8), Err(PostError::Stopped));
    program(&mut rig, (Core, 0, 0), host, 128);
    assert_eq!(post(&mut rig, Core, 0, 0, 0), Err(PostError::Empty));
    let too_long = Err(PostError::TooLong {
        len: 129,
        size: 128,
    });
    assert_eq!(post(&mut rig, Core, 0, 0, 129), too_long);
    // The second half of the ring is not there: no part of the entry lands.
    assert!(matches!(
        post(&mut rig, Core, 0, 0, 65),
        Err(PostError::Unmapped { .. })
    ));
    assert_eq!(rig.bytes(RAM_BASE + RAM_SIZE - 64, 64), [0; 64]);
    assert_eq!(head(&mut rig, (Core, 0, 0)), 0);
    assert!(post(&mut rig, Core, 0, 0, 64).is_ok());
    for base in [0xdead_0000_0000_0000, u64::MAX - 3] {
        program(&mut rig, (Core, 0, 0), base, u32::MAX);
        assert!(post(&mut rig, Core, 0, 0, 8).is_err());
    }
    // The firmware window, device-side.
    program(&mut rig, (Core, 0, 0), 0x0fff_f0fa_0000, 64);
    assert!(matches!(
        post(&mut rig, Core, 0, 0, 8),
        Err(PostError::Register(_))
    ));
    rig.function
        .region_write(7, 4, &2u16.to_le_bytes())
        .unwrap();
    assert_eq!(post(&mut rig, Core, 0, 0, 8), Err(PostError::BusMaster));
    let counters = rig.function.report(Detail::Status).counters;
    assert_eq!(
        (counters.notifications, counters.notifications_lost),
        (1, 12)
    );
}

#[test]
fn a_reset_or_unmap_drops_what_is_on_its_way() {
    for unmap in [false, true] {
        let mut rig = Rig::by_message(Product::Trn2, Platform::Silicon);
        let base = rig.host(DATA);
        program(&mut rig, (Core, 0, 0), base, 64);
        rig.function.post(Core, 0, 0, &[0xee; 8]).unwrap();
        assert_eq!(
            rig.function.post(Core, 0, 0, &[0xee; 8]),
            Err(PostError::Busy)
        );
        assert_eq!(head(&mut rig, (Core, 0, 0)), 0, "it has not landed");
        if unmap {
            rig.function.dma_unmap(DmaUnmap::All).unwrap();
        } else {
            rig.function.reset();
        }
        assert!(rig.function.next_dma().is_none());
        assert_eq!(rig.bytes(DATA, 8), [0; 8]);
        assert_eq!(head(&mut rig, (Core, 0, 0)), 0);
        let lost = rig.function.report(Detail::Status).counters;
        assert_eq!(lost.notifications, 0);
        assert_eq!(lost.notifications_lost, 1 + u64::from(unmap));
    }
}

#[test]
fn activity_counters_of_an_idle_array_read_zero() {
    for product in Product::ALL {
        let mut rig = Rig::new(product, Platform::Silicon);
        for core in 0..rig.generation.cores {
            let base = rig.generation.block_base(Block::Activity, core).unwrap();
            for offset in (0x100..0x400).step_by(4) {
                assert_eq!(rig.read(base + offset), 0);
            }
        }
        let report = rig.function.report(Detail::Status);
        assert!(report.unmodelled.is_empty(), "{:?}", report.unmodelled);
    }
}

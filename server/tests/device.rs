//! The device as a driver drives it: register writes and descriptors in memory, no wire.
#![allow(
    clippy::cast_possible_truncation,
    clippy::decimal_bitwise_operands,
    clippy::too_many_lines,
    clippy::items_after_statements,
    clippy::type_complexity,
    reason = "test code"
)]
mod rig;

use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Block, Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::engine::{self, Machine};
use neuron_protocol::registers::queue::{DCP, DRBP_HIGH, DRBP_LOW, DRHP, DRL, DRTP, DRTP_INC};
use neuron_protocol::registers::{Direction, iofic, misc_ram, semaphore};
use neuron_vfio_user::observe::event::EventKind;
use neuron_vfio_user::observe::report::{Account, Detail, Wait};
use neuron_vfio_user::udma::FaultKind;
use neuron_vfio_user::vfio::{DmaUnmap, PciFunction, Progress};
use proptest::prelude::*;

use rig::*;

const HBM: u64 = 0x100_0000;

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
fn a_marker_is_never_cut_by_the_end_of_a_turn() {
    // A turn is 256 KiB, of which the two fetches cost 512 bytes: some of these leave it 1 to 3 bytes.
    for left in 0..=600 {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let host = |address| rig.with(|rig| rig.host(address));
        let mut pair = queue(&mut device, 0, 0, 64);
        for len in [65_536, 65_536, 65_536, 65_536 - left] {
            pair.stage(&mut device, host(DATA), host(RESULT), len, Barrier::None)
                .unwrap();
        }
        rig.with(|rig| rig.fill(MARKERS, &MARKER.to_le_bytes()));
        pair.stage(
            &mut device,
            host(MARKERS),
            host(MARKERS + 4),
            4,
            Barrier::None,
        )
        .unwrap();
        pair.trigger(&mut device, 5, 5).unwrap();
        rig.with(|rig| {
            rig.run();
            let whole = |kind: &EventKind| matches!(kind, EventKind::Marker { tx: 4, .. });
            assert!(rig.log.take().iter().any(whole), "{left} bytes left");
        });
    }
}

/// Cuts `total` bytes into at most 40 pieces of 1 to 65,536.
fn cuts(total: usize) -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1..total.max(2), 0..39).prop_map(move |mut points| {
        points.extend([0, total]);
        points.sort_unstable();
        points.dedup();
        points.windows(2).map(|pair| pair[1] - pair[0]).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_split_of_a_packet_is_one_big_copy(
        (tx, rx) in (1usize..60_000).prop_flat_map(|total| (cuts(total), cuts(total))),
        by_message in any::<bool>(),

    ) {
        let total: usize = tx.iter().sum();
        let rig = if by_message { Rig::by_message } else { Rig::new };
        let (rig, mut device) = rig(Product::Trn2, Platform::Qemu).driver();
        let mut pair = queue(&mut device, 1, 2, 64);
        let data = pattern(total, 77);
        rig.with(|rig| rig.fill(DATA, &data));
        let host = |address| rig.with(|rig| rig.host(address));
        let mut at = host(DATA);
        for (n, len) in tx.iter().enumerate() {
            let source = at;
            at += *len as u64;
            pair.push_tx(&mut device, |id| {
                let len_ctrl = LenCtrl::new()
                    .with_byte_length(u32::try_from(*len).unwrap())?
                    .with_ring_id(id)
                    .with_first(n == 0)
                    .with_last(n + 1 == tx.len());
                Some(TxDescriptor::from_words(len_ctrl, MetaCtrl::COPY, source))
            }).unwrap();
        }
        let mut at = host(RESULT);
        for len in &rx {
            let destination = at;
            at += *len as u64;
            pair.push_rx(&mut device, |id| {
                RxDescriptor::new(destination, u32::try_from(*len).unwrap(), id, Barrier::None)
            }).unwrap();
        }
        pair.trigger(&mut device, u32::try_from(tx.len()).unwrap(), u32::try_from(rx.len()).unwrap()).unwrap();
        rig.with(|rig| {
            rig.run();
            prop_assert_eq!(rig.bytes(RESULT, total), data);
            let counters = rig.function.report(Detail::Status).counters;
            prop_assert_eq!(counters.descriptors, (tx.len() + rx.len()) as u64);
            prop_assert_eq!(counters.errors, 0);
            Ok(())
        })?;
    }
}

#[test]
fn the_end_of_a_packet_closes_its_buffer() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let mut pair = queue(&mut device, 0, 0, 64);
    let host = |address| rig.with(|rig| rig.host(address));
    rig.with(|rig| rig.fill(DATA, &pattern(200, 4)));
    for (source, len) in [(0, 100), (100, 100)] {
        let source = host(DATA + source);
        pair.push_tx(&mut device, |id| {
            TxDescriptor::copy(source, len, id, Barrier::None)
        })
        .unwrap();
    }
    for n in 0..2 {
        let to = host(RESULT + n * 0x1000);
        pair.push_rx(&mut device, |id| {
            RxDescriptor::new(to, 0x1000, id, Barrier::None)
        })
        .unwrap();
    }
    pair.trigger(&mut device, 2, 2).unwrap();
    rig.with(|rig| {
        rig.run();
        assert_eq!(rig.bytes(RESULT, 100), pattern(200, 4)[..100]);
        assert_eq!(rig.bytes(RESULT + 0x1000, 100), pattern(200, 4)[100..]);
        assert_eq!(rig.bytes(RESULT + 100, 100), [0; 100]);
    });
}

/// Stages one copy with the given addresses, then a marker, and runs.
fn copy_with_marker(rig: &Shared, device: &mut Driver, source: u64, destination: u64) -> u32 {
    let mut pair = queue(device, 0, 1, 64);
    let host = |address| rig.with(|rig| rig.host(address));
    rig.with(|rig| rig.fill(MARKERS, &[MARKER.to_le_bytes(), [0; 4]].concat()));
    pair.stage(device, source, destination, 0x1000, Barrier::Write)
        .unwrap();
    pair.stage(device, host(MARKERS), host(MARKERS + 4), 4, Barrier::None)
        .unwrap();
    pair.trigger(device, 2, 2).unwrap();
    rig.with(|rig| {
        rig.run();
        u32::from_le_bytes(rig.bytes(MARKERS + 4, 4).try_into().unwrap())
    })
}

#[test]
fn a_bad_address_aborts_before_the_marker_and_stays_until_the_queue_is_reset() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    for (source, destination, group, bit) in [
        (
            host(RAM_BASE + RAM_SIZE),
            host(RESULT),
            iofic::Group::M2S,
            iofic::m2s::DATA_AXI_RESPONSE,
        ),
        (
            host(DATA),
            host(0x1000),
            iofic::Group::S2M,
            iofic::s2m::DATA_AXI_RESPONSE,
        ),
        (
            host(RAM_BASE + RAM_SIZE - 0x800),
            host(RESULT),
            iofic::Group::M2S,
            iofic::m2s::DATA_AXI_RESPONSE,
        ),
        (
            1 << 60,
            host(RESULT),
            iofic::Group::M2S,
            iofic::m2s::DATA_AXI_RESPONSE,
        ),
        (
            host(DATA),
            30 << 30,
            iofic::Group::S2M,
            iofic::s2m::DATA_AXI_RESPONSE,
        ),
    ] {
        assert_eq!(
            copy_with_marker(&rig, &mut device, source, destination),
            0,
            "{source:#x} {destination:#x}"
        );
        rig.with(|rig| {
            let state = rig.engine(0, engine::unit::STATE);
            assert_eq!(
                rig.read(state),
                engine::state(Machine::Abort, Direction::M2s)
            );
            let base = if group == iofic::Group::M2S {
                0x3a000
            } else {
                0x3a040
            };
            let cause = rig.engine(0, base);
            assert_ne!(rig.read(cause) & 1 << bit, 0);
            rig.write(cause, 0);
            let report = rig.function.report(Detail::Status);
            assert_eq!(report.aborted.len(), 1);
            assert!(matches!(report.queues[0].wait, Wait::Recovery { .. }));
            // Doorbells are ignored while it is aborted, other engines are not concerned.
            let doorbell = rig.register(0, 1, Direction::M2s, DRTP_INC);
            rig.write(doorbell, 1);
            rig.run();
            let other = rig.engine(1, engine::unit::STATE);
            assert_eq!(rig.read(other), 0);
        });
        let good = (host(DATA), host(RESULT));
        assert_eq!(copy_with_marker(&rig, &mut device, good.0, good.1), MARKER);
        rig.with(|rig| {
            let state = rig.engine(0, engine::unit::STATE);
            assert_eq!(rig.read(state), 0);
        });
    }
}

#[test]
fn malformed_descriptors_are_refused_by_name() {
    let plain = |id| LenCtrl::new().with_length(64).with_ring_id(id);
    type Make = fn(LenCtrl) -> (LenCtrl, MetaCtrl);
    let cases: [(Make, fn(&FaultKind) -> bool); 6] = [
        (
            |len| (len.with_last(true), MetaCtrl::COPY),
            |kind| *kind == FaultKind::WithoutFirst,
        ),
        (
            |len| {
                (
                    len.with_first(true).with_last(true),
                    MetaCtrl::from_bits(0x0090_0000),
                )
            },
            |kind| {
                matches!(
                    kind,
                    FaultKind::Operation {
                        operation: "SDMA transpose",
                        ..
                    }
                )
            },
        ),
        (
            |len| {
                (
                    len.with_first(true).with_last(true).with_meta(true),
                    MetaCtrl::COPY,
                )
            },
            |kind| matches!(kind, FaultKind::Operation { .. }),
        ),
        (
            |len| {
                (
                    len.with_first(true).with_last(true),
                    MetaCtrl::COPY.with_send_crc(true),
                )
            },
            |kind| {
                matches!(
                    kind,
                    FaultKind::Operation {
                        operation: "CRC",
                        ..
                    }
                )
            },
        ),
        (
            |len| {
                (
                    len.with_first(true)
                        .with_last(true)
                        .with_ring_id_bits(len.ring_id_bits() + 1),
                    MetaCtrl::COPY,
                )
            },
            |kind| {
                matches!(
                    kind,
                    FaultKind::RingId {
                        expected: 1,
                        found: 2
                    }
                )
            },
        ),
        // FIRST without LAST; the next descriptor below begins another packet.
        (
            |len| (len.with_first(true), MetaCtrl::COPY),
            |kind| *kind == FaultKind::FirstInPacket,
        ),
    ];
    for (n, (make, expected)) in cases.into_iter().enumerate() {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let host = |address| rig.with(|rig| rig.host(address));
        let mut pair = queue(&mut device, 0, 0, 64);
        let (source, destination) = (host(DATA), host(RESULT));
        pair.push_tx(&mut device, |id| {
            let (len_ctrl, meta) = make(plain(id));
            Some(TxDescriptor::from_words(len_ctrl, meta, source))
        })
        .unwrap();
        pair.push_rx(&mut device, |id| {
            RxDescriptor::new(destination, 64, id, Barrier::None)
        })
        .unwrap();
        pair.stage(
            &mut device,
            host(MARKERS),
            host(MARKERS + 4),
            4,
            Barrier::None,
        )
        .unwrap();
        pair.trigger(&mut device, 2, 2).unwrap();
        rig.with(|rig| {
            rig.fill(MARKERS, &MARKER.to_le_bytes());
            rig.run();
            assert_eq!(rig.bytes(MARKERS + 4, 4), [0; 4], "case {n}");
            let events = rig.log.take();
            let abort = events.iter().find_map(|kind| match kind {
                EventKind::Abort(fault) => Some(fault.kind),
                _ => None,
            });
            assert!(abort.as_ref().is_some_and(expected), "case {n}: {abort:?}");
        });
    }
}

#[test]
fn a_masked_ring_id_error_is_latched_but_copies() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    rig.with(|rig| {
        let mask = rig.engine(0, 0x3a000 + iofic::ABORT_MASK);
        rig.write(mask, 1 << iofic::m2s::RING_ID);
        rig.fill(DATA, &pattern(64, 5));
    });
    let (source, destination) = (host(DATA), host(RESULT));
    pair.push_tx(&mut device, |id| {
        TxDescriptor::copy(source, 64, id.next(), Barrier::None)
    })
    .unwrap();
    pair.push_rx(&mut device, |id| {
        RxDescriptor::new(destination, 64, id, Barrier::None)
    })
    .unwrap();
    pair.trigger(&mut device, 1, 1).unwrap();
    rig.with(|rig| {
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), pattern(64, 5));
        let cause = rig.engine(0, 0x3a000);
        assert_eq!(rig.read(cause), 1 << iofic::m2s::RING_ID);
    });
}

#[test]
fn a_masked_data_error_loses_its_bytes_and_goes_on() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    rig.with(|rig| {
        let mask = rig.engine(0, 0x3a000 + iofic::ABORT_MASK);
        rig.write(mask, 1 << iofic::m2s::DATA_AXI_RESPONSE);
        rig.fill(DATA, &pattern(64, 5));
    });
    let nowhere = host(RAM_BASE + RAM_SIZE);
    pair.stage(&mut device, nowhere, host(RESULT), 64, Barrier::None)
        .unwrap();
    pair.stage(
        &mut device,
        host(DATA),
        host(RESULT + 64),
        64,
        Barrier::None,
    )
    .unwrap();
    pair.trigger(&mut device, 2, 2).unwrap();
    rig.with(|rig| {
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), [0; 64]);
        assert_eq!(rig.bytes(RESULT + 64, 64), pattern(64, 5));
        let cause = rig.engine(0, 0x3a000);
        assert_eq!(rig.read(cause), 1 << iofic::m2s::DATA_AXI_RESPONSE);
        assert!(rig.function.report(Detail::Status).aborted.is_empty());
    });
}

#[test]
fn packets_obey_the_limits_that_are_programmed() {
    type Program = fn(&mut Rig);
    let cases: [(Program, u32, fn(&FaultKind) -> bool); 2] = [
        (
            |rig| {
                let limit = rig.engine(0, engine::M2S_DESC_PREF_CFG_2);
                rig.write(limit, 0x1_0003);
            },
            4,
            |kind| *kind == FaultKind::TooManyDescriptors { limit: 3 },
        ),
        (
            |rig| {
                let limit = rig.engine(0, engine::M2S_CFG_LEN);
                rig.write(limit, 0x0100_0fff);
            },
            64,
            |kind| {
                matches!(
                    kind,
                    FaultKind::PacketTooLong {
                        bytes: 4096,
                        limit: 4095
                    }
                )
            },
        ),
    ];
    for (program, descriptors, expected) in cases {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let host = |address| rig.with(|rig| rig.host(address));
        let mut pair = queue(&mut device, 0, 0, 128);
        rig.with(program);
        let (source, destination) = (host(DATA), host(RESULT));
        for n in 0..descriptors {
            pair.push_tx(&mut device, |id| {
                let len_ctrl = LenCtrl::new()
                    .with_length(64)
                    .with_ring_id(id)
                    .with_first(n == 0)
                    .with_last(n + 1 == descriptors);
                Some(TxDescriptor::from_words(len_ctrl, MetaCtrl::COPY, source))
            })
            .unwrap();
        }
        pair.push_rx(&mut device, |id| {
            RxDescriptor::new(destination, 65_536, id, Barrier::None)
        })
        .unwrap();
        pair.trigger(&mut device, descriptors, 1).unwrap();
        rig.with(|rig| {
            rig.run();
            let abort = rig.log.take().iter().find_map(|kind| match kind {
                EventKind::Abort(fault) => Some(fault.kind),
                _ => None,
            });
            assert!(abort.as_ref().is_some_and(expected), "{abort:?}");
        });
    }
}

#[test]
fn a_tx_without_rx_hints_at_the_missing_buffer() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
        .unwrap();
    rig.with(|rig| {
        let doorbell = rig.register(0, 0, Direction::M2s, DRTP_INC);
        rig.write(doorbell, 1);
        rig.run();
        let cause = rig.engine(0, 0x3a040);
        assert_eq!(rig.read(cause), 1 << iofic::s2m::NO_DESCRIPTOR_HINT);
        let state = rig.engine(0, engine::unit::STATE);
        assert_eq!(
            rig.read(state),
            engine::state(Machine::Normal, Direction::M2s)
        );
    });
}

#[test]
fn rings_off_their_boundary_are_refused() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let _pair = queue(&mut device, 0, 0, 64);
    for (base, length) in [(0x40, 64), (0, 33)] {
        rig.with(|rig| {
            let low = u32::try_from(rig.host(TX_RING) & 0xffff_ffff).unwrap();
            for (register, value) in [(DRBP_LOW, low + base), (DRL, length)] {
                let register = rig.register(0, 0, Direction::M2s, register);
                rig.write(register, value);
            }
            let doorbell = rig.register(0, 0, Direction::M2s, DRTP_INC);
            rig.write(doorbell, 1);
            let kind = FaultKind::RingMisaligned { length };
            let aborted =
                |event: &EventKind| matches!(event, EventKind::Abort(fault) if fault.kind == kind);
            assert!(rig.log.take().iter().any(aborted), "{base:#x} {length}");
            let change = rig.engine(0, engine::unit::CHANGE_STATE);
            rig.write(change, 1);
        });
    }
}

#[test]
fn doorbells_that_make_no_sense_abort_their_engine_only() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let _pair = queue(&mut device, 2, 0, 64);
    rig.with(|rig| {
        for (engine, count) in [(2, 65), (3, 1)] {
            let doorbell = rig.register(engine, 0, Direction::M2s, DRTP_INC);
            rig.write(doorbell, count);
            let state = rig.engine(engine, engine::unit::STATE);
            assert_eq!(
                rig.read(state),
                engine::state(Machine::Abort, Direction::M2s)
            );
        }
        assert_eq!(rig.function.report(Detail::Status).aborted.len(), 2);
        let change = rig.engine(3, engine::unit::CHANGE_STATE);
        rig.write(change, 1);
        assert_eq!(rig.function.report(Detail::Status).aborted.len(), 1);
    });
}

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
fn resets_are_acknowledged_on_every_platform_and_drop_pending_work() {
    for product in Product::ALL {
        for platform in Platform::ALL {
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
                    rig.write(flag.offset, u32::from(flag.with_firmware));
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
        let (from, to) = (rig.host(DATA), rig.host(RESULT));
        for (register, value) in [
            (misc_ram::REQUEST_LOW, from),
            (misc_ram::REQUEST_HIGH, from >> 32),
            (misc_ram::RESPONSE_LOW, to),
            (misc_ram::RESPONSE_HIGH, to >> 32),
            (misc_ram::TRIGGER, 1),
        ] {
            rig.write(ram + register, u32::try_from(value & 0xffff_ffff).unwrap());
        }
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

#[test]
fn nothing_is_touched_after_an_unmap() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 0, 0, 64);
    pair.stage(&mut device, host(DATA), host(RESULT), 64, Barrier::None)
        .unwrap();
    pair.trigger(&mut device, 1, 1).unwrap();
    rig.with(|rig| {
        rig.fill(DATA, &pattern(64, 1));
        rig.function
            .dma_unmap(DmaUnmap::Range {
                iova: RESULT,
                size: 4096,
            })
            .unwrap();
        rig.run();
        assert_eq!(rig.bytes(RESULT, 64), [0; 64]);
        assert_eq!(rig.function.report(Detail::Status).aborted.len(), 1);
        // What a panic would leave in the log.
        let words = rig.function.last_words();
        assert!(
            words.contains("doorbell m2s +1") && words.contains("is not mapped"),
            "{words}"
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

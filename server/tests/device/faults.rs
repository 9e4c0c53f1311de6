//! What stops an engine, what it leaves behind, what masks waive.
use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::engine::{self, Machine};
use neuron_protocol::registers::queue::{DRBP_LOW, DRL, DRTP_INC};
use neuron_protocol::registers::{Direction, iofic};
use neuron_vfio_user::observe::event::EventKind;
use neuron_vfio_user::observe::report::{Account, Detail, Wait};
use neuron_vfio_user::udma::FaultKind;
use neuron_vfio_user::vfio::{DmaUnmap, PciFunction};

use crate::rig::*;

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

/// The words of facts §2.3, and what else is not a plain copy.
#[test]
fn every_other_operation_is_refused_by_name_and_nothing_of_it_is_done() {
    let tx = |word| (false, MetaCtrl::from_bits(word), 0u32);
    let cases = [
        ("SDMA striding split", tx(0x0080_0102)),
        ("SDMA transpose", tx(0x0090_0304)),
        ("SDMA replication", tx(0x00a0_0010)),
        ("CCE add or min/max", tx(0x0200_1001)),
        ("CCE fma", tx(0x0210_0000)),
        ("CCE extended", tx(0x0240_1001)),
        ("CCE gradient", tx(0x0250_0000)),
        ("byte or bit swap", tx(0x0108_0003 | 1 << 6)),
        ("byte or bit swap", tx(0x0108_0003 | 1 << 13)),
        ("CRC", tx(0x0108_0003 | 1 << 14)),
        ("CRC", tx(0x0108_0003 | 1 << 15)),
        ("CRC", tx(0x0108_0003 | 1 << 16)),
        ("CRC", tx(0x0108_0003 | 1 << 17)),
        ("CRC without copy", tx(0x0100_0003)),
        ("unknown operation", tx(0x0308_0003)),
        ("CRC/CME meta descriptor", (true, MetaCtrl::COPY, 0)),
        (
            "embedded semaphore or second buffer",
            (false, MetaCtrl::COPY, 0x0270_1800),
        ),
    ];
    // Alone, and as the second source of a packet whose first is a plain copy. All of them are told, not the first alone.
    let mut wrong = Vec::new();
    for (name, case) in cases {
        for before in [0, 1] {
            if let Err(what) = refused(name, case, before) {
                wrong.push(format!("{name}, {before} before it: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A plain copy; then a packet with `before` plain sources and one of another operation, or with a destination that has
/// one; then a marker. The other operation is named with its word, queue and descriptor, and does nothing.
fn refused(
    name: &str,
    (meta, meta_ctrl, rx_word): (bool, MetaCtrl, u32),
    before: u32,
) -> Result<(), String> {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = |address| rig.with(|rig| rig.host(address));
    let mut pair = queue(&mut device, 3, 2, 64);
    let (source, destination) = (host(DATA), host(RESULT));
    pair.stage(&mut device, source, destination, 64, Barrier::None)
        .unwrap();
    let plain = |id| LenCtrl::new().with_length(64).with_ring_id(id);
    for n in 0..before {
        pair.push_tx(&mut device, |id| {
            let len_ctrl = plain(id).with_first(n == 0);
            Some(TxDescriptor::from_words(len_ctrl, MetaCtrl::COPY, source))
        })
        .unwrap();
    }
    pair.push_tx(&mut device, |id| {
        let len_ctrl = plain(id)
            .with_meta(meta)
            .with_first(before == 0)
            .with_last(true);
        Some(TxDescriptor::from_words(len_ctrl, meta_ctrl, source))
    })
    .unwrap();
    for n in 0..=before {
        pair.push_rx(&mut device, |id| {
            let to = destination + 0x100 * u64::from(n + 1);
            let plain = RxDescriptor::new(to, 64, id, Barrier::None)?;
            let mut bytes: [u8; 16] = zerocopy::transmute!(plain);
            let word = if n == before { rx_word } else { 0 };
            bytes[4..8].copy_from_slice(&word.to_le_bytes());
            Some(zerocopy::transmute!(bytes))
        })
        .unwrap();
    }
    pair.stage(
        &mut device,
        host(MARKERS),
        host(MARKERS + 4),
        4,
        Barrier::None,
    )
    .unwrap();
    pair.trigger(&mut device, before + 3, before + 3).unwrap();
    let fault = rig.with(|rig| {
        rig.fill(DATA, &pattern(64, 9));
        rig.fill(RESULT, &[0xee; 0x300]);
        rig.fill(MARKERS, &MARKER.to_le_bytes());
        rig.run();
        let events = rig.log.take();
        events.iter().find_map(|kind| match kind {
            EventKind::Abort(fault) => Some(fault.to_string()),
            _ => None,
        })
    });
    let at = u64::from(before + 1);
    let seen = rig.with(|rig| {
        [
            rig.bytes(RESULT, 64) == pattern(64, 9),
            rig.bytes(RESULT + 0x100 * at, 64) == [0xee; 64],
            rig.bytes(MARKERS + 4, 4) == [0; 4],
        ]
    });
    let what = [
        "the copy before it is lost",
        "it wrote",
        "the marker behind it came",
    ];
    if let Some((_, what)) = seen.iter().zip(what).find(|(good, _)| !**good) {
        return Err(what.to_owned());
    }
    let fault = fault.ok_or("no abort")?;
    let (side, word) = match rx_word {
        0 => ("m2s", meta_ctrl.into_bits()),
        word => ("s2m", word),
    };
    let expected = [
        name.to_owned(),
        format!("{word:#010x}"),
        format!("q2 {side} descriptor {at},"),
    ];
    match expected.iter().find(|part| !fault.contains(*part)) {
        Some(part) => Err(format!("{part:?} is not in: {fault}")),
        None => Ok(()),
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

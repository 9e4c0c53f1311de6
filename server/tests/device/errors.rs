//! Every error that hardware knows, as a state: its cause, status and log, what stops and what goes on, each way back.
use neuron_protocol::cycle::QueuePair;
use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::engine::{self, Machine, unit};
use neuron_protocol::registers::iofic::{self, Group, m2s, primary_d, s2m};
use neuron_protocol::registers::queue::{DRBP_HIGH, DRBP_LOW, DRL};
use neuron_protocol::registers::{Direction, misc_ram};
use neuron_protocol::ring::{RingId, RingSize};
use neuron_vfio_user::observe::report::{Account, Detail};

use crate::rig::*;

const ENGINE: u8 = 0;
const QUEUE: u8 = 1;
/// Guest memory that is not mapped.
const HOLE: u64 = 0x1000;
/// Rings and markers of the queues that must not notice.
const OTHER_RINGS: u64 = RAM_BASE + 0x40_0000;
const LENGTH: u32 = 256;

/// A device, and the queue that goes wrong.
struct Bed {
    rig: Shared,
    device: Driver,
    pair: QueuePair,
    staged: [u32; 2],
}

impl Bed {
    fn new() -> Self {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let pair = queue(&mut device, ENGINE, QUEUE, LENGTH);
        rig.with(|rig| rig.fill(DATA, &pattern(0x1000, 1)));
        Self {
            rig,
            device,
            pair,
            staged: [0; 2],
        }
    }

    fn host(&self, address: u64) -> u64 {
        self.rig.with(|rig| rig.host(address))
    }

    fn write(&self, offset: u32, value: u32) {
        self.rig.with(|rig| {
            let at = rig.engine(ENGINE, offset);
            rig.write(at, value);
        });
    }

    fn read(&self, offset: u32) -> u32 {
        self.rig.with(|rig| {
            let at = rig.engine(ENGINE, offset);
            rig.read(at)
        })
    }

    fn program(&self, direction: Direction, register: u32, value: u32) {
        self.rig.with(|rig| {
            let at = rig.register(ENGINE, QUEUE, direction, register);
            rig.write(at, value);
        });
    }

    /// A source of 64 bytes with what `change` makes of its first word.
    fn tx_at(&mut self, address: u64, change: impl FnOnce(LenCtrl) -> LenCtrl) {
        let source = self.host(address);
        let make = |id: RingId| {
            let len_ctrl = LenCtrl::new().with_length(64).with_ring_id(id);
            Some(TxDescriptor::from_words(
                change(len_ctrl),
                MetaCtrl::COPY,
                source,
            ))
        };
        self.pair.push_tx(&mut self.device, make).unwrap();
        self.staged[0] += 1;
    }

    fn tx(&mut self, change: impl FnOnce(LenCtrl) -> LenCtrl) {
        self.tx_at(DATA, change);
    }

    fn whole(&mut self) {
        self.tx(|len| len.with_first(true).with_last(true));
    }

    fn rx_at(&mut self, address: u64, change: impl FnOnce(LenCtrl) -> LenCtrl) {
        let destination = self.host(address);
        let make = |id: RingId| {
            let len_ctrl = LenCtrl::new().with_length(0x4000).with_ring_id(id);
            Some(RxDescriptor::from_words(change(len_ctrl), destination))
        };
        self.pair.push_rx(&mut self.device, make).unwrap();
        self.staged[1] += 1;
    }

    fn rx(&mut self) {
        self.rx_at(RESULT, |len| len);
    }

    /// A packet of `count` sources.
    fn packet(&mut self, count: u32) {
        for n in 0..count {
            self.tx(|len| len.with_first(n == 0).with_last(n + 1 == count));
        }
        self.rx();
    }

    /// Stages a marker behind what is there, triggers, runs; whether the marker came.
    fn run(&mut self) -> bool {
        let (from, to) = (self.host(MARKERS), self.host(MARKERS + 4));
        self.rig
            .with(|rig| rig.fill(MARKERS, &[MARKER.to_le_bytes(), [0; 4]].concat()));
        self.pair
            .stage(&mut self.device, from, to, 4, Barrier::None)
            .unwrap();
        let [tx, rx] = std::mem::take(&mut self.staged);
        self.pair.trigger(&mut self.device, tx + 1, rx + 1).unwrap();
        self.rig.with(|rig| {
            rig.run();
            rig.bytes(MARKERS + 4, 4) == MARKER.to_le_bytes()
        })
    }

    /// A copy with its marker on another queue, on rings of its own; whether it came through.
    fn other_copies(&mut self, engine: u8, number: u8) -> bool {
        let (tx, rx) = (OTHER_RINGS, OTHER_RINGS + 0x1_0000);
        let (data, result) = (OTHER_RINGS + 0x2_0000, OTHER_RINGS + 0x3_0000);
        let size = RingSize::new(64).unwrap();
        let mut pair = QueuePair::new(&self.device, engine, number, size, tx, rx).unwrap();
        pair.init(&mut self.device).unwrap();
        self.rig.with(|rig| {
            rig.fill(data, &pattern(100, u32::from(engine) + 9));
            rig.fill(result, &[0; 100]);
        });
        let (from, to) = (self.host(data), self.host(result));
        pair.stage(&mut self.device, from, to, 100, Barrier::None)
            .unwrap();
        pair.trigger(&mut self.device, 1, 1).unwrap();
        self.rig.with(|rig| {
            rig.run();
            rig.bytes(result, 100) == pattern(100, u32::from(engine) + 9)
        })
    }

    fn state(&self) -> u32 {
        self.read(unit::STATE)
    }

    /// The queue that failed, as a driver sets it up again; a copy through it.
    fn again(&mut self) {
        self.pair = queue(&mut self.device, ENGINE, QUEUE, LENGTH);
        self.whole();
        self.rx_at(RESULT + 0x8000, |len| len);
        assert!(self.run(), "no marker after the recovery");
        self.rig
            .with(|rig| assert_eq!(rig.bytes(RESULT + 0x8000, 64), pattern(64, 1)));
    }
}

/// One error.
struct Case {
    name: &'static str,
    provoke: fn(&mut Bed),
    group: Group,
    bit: u8,
    /// Its abort mask lets the queue go on.
    maskable: bool,
}

const fn tx(name: &'static str, bit: u8, maskable: bool, provoke: fn(&mut Bed)) -> Case {
    Case {
        name,
        provoke,
        group: Group::M2S,
        bit,
        maskable,
    }
}

const fn rx(name: &'static str, bit: u8, maskable: bool, provoke: fn(&mut Bed)) -> Case {
    Case {
        name,
        provoke,
        group: Group::S2M,
        bit,
        maskable,
    }
}

/// Programs a ring's base, as descriptors see it.
fn base(bed: &Bed, direction: Direction, address: u64) {
    let at = bed.host(address);
    bed.program(
        direction,
        DRBP_LOW,
        u32::try_from(at & 0xffff_ffff).unwrap(),
    );
    bed.program(direction, DRBP_HIGH, u32::try_from(at >> 32).unwrap());
}

const CASES: &[Case] = &[
    tx("ring id of tx", m2s::RING_ID, true, |bed| {
        bed.tx(|len| {
            len.with_first(true)
                .with_last(true)
                .with_ring_id(len.ring_id().next())
        });
        bed.rx();
    }),
    rx("ring id of rx", s2m::RING_ID, true, |bed| {
        bed.whole();
        bed.rx_at(RESULT, |len| len.with_ring_id(len.ring_id().next()));
    }),
    // The bit means something in tx alone; here it must not hide a stale descriptor.
    rx(
        "ring id of rx with the meta bit",
        s2m::RING_ID,
        true,
        |bed| {
            bed.whole();
            bed.rx_at(RESULT, |len| {
                len.with_ring_id(len.ring_id().next()).with_meta(true)
            });
        },
    ),
    tx("FIRST in a packet", m2s::FIRST_IN_PACKET, true, |bed| {
        bed.tx(|len| len.with_first(true));
        bed.whole();
        bed.rx();
    }),
    tx("LAST without FIRST", m2s::LAST_WITHOUT_FIRST, true, |bed| {
        bed.tx(|len| len.with_last(true));
        bed.rx();
    }),
    tx("packet length", m2s::PACKET_LENGTH, true, |bed| {
        bed.write(engine::M2S_CFG_LEN, 0x0100_0000 | 127);
        bed.packet(2);
    }),
    tx(
        "66 descriptors where 65 are programmed",
        m2s::MAX_DESCRIPTORS,
        true,
        |bed| {
            bed.write(engine::M2S_DESC_PREF_CFG_2, 65);
            bed.packet(66);
        },
    ),
    tx(
        "129 descriptors where 128 are programmed",
        m2s::MAX_DESCRIPTORS,
        true,
        |bed| {
            bed.write(engine::M2S_DESC_PREF_CFG_2, 128);
            bed.packet(129);
        },
    ),
    tx(
        "source that is not mapped",
        m2s::DATA_AXI_RESPONSE,
        true,
        |bed| {
            bed.tx_at(HOLE, |len| len.with_first(true).with_last(true));
            bed.rx();
        },
    ),
    rx(
        "destination that is not mapped",
        s2m::DATA_AXI_RESPONSE,
        true,
        |bed| {
            bed.whole();
            bed.rx_at(HOLE, |len| len);
        },
    ),
    tx(
        "tx ring that is not mapped",
        m2s::PREFETCH_AXI_RESPONSE,
        false,
        |bed| {
            base(bed, Direction::M2s, HOLE);
            bed.whole();
            bed.rx();
        },
    ),
    rx(
        "rx ring that is not mapped",
        s2m::PREFETCH_AXI_RESPONSE,
        false,
        |bed| {
            base(bed, Direction::S2m, HOLE);
            bed.whole();
            bed.rx();
        },
    ),
    tx(
        "tx base off its boundary",
        m2s::PREFETCH_AXI_RESPONSE,
        false,
        |bed| {
            base(bed, Direction::M2s, TX_RING + 64);
            bed.whole();
            bed.rx();
        },
    ),
    rx(
        "rx base off its boundary",
        s2m::PREFETCH_AXI_RESPONSE,
        false,
        |bed| {
            base(bed, Direction::S2m, RX_RING + 128);
            bed.whole();
            bed.rx();
        },
    ),
    tx(
        "tx end off its boundary",
        m2s::PREFETCH_AXI_RESPONSE,
        false,
        |bed| {
            bed.program(Direction::M2s, DRL, LENGTH - 1);
            bed.whole();
            bed.rx();
        },
    ),
    rx(
        "rx end off its boundary",
        s2m::PREFETCH_AXI_RESPONSE,
        false,
        |bed| {
            bed.program(Direction::S2m, DRL, LENGTH + 8);
            bed.whole();
            bed.rx();
        },
    ),
];

/// Register of a group in the secondary controller.
fn secondary(group: Group, register: u32) -> u32 {
    let nth = u32::from(group != Group::M2S);
    engine::GEN + iofic::SECONDARY + nth * iofic::GROUP_STRIDE + register
}

/// The engine's state while it is stopped: of `case` and of nothing else.
fn check_stopped(bed: &mut Bed, case: &Case) {
    let name = case.name;
    for direction in Direction::BOTH {
        let offset = unit::STATE
            + if direction == Direction::M2s {
                0
            } else {
                engine::S2M
            };
        assert_eq!(
            bed.read(offset),
            engine::state(Machine::Abort, direction),
            "{name}"
        );
    }
    let (mine, other) = if case.group == Group::M2S {
        (Group::M2S, Group::S2M)
    } else {
        (Group::S2M, Group::M2S)
    };
    let hint = 1 << s2m::NO_DESCRIPTOR_HINT;
    assert_eq!(
        bed.read(secondary(mine, iofic::CAUSE)) & !hint,
        1 << case.bit,
        "{name}"
    );
    assert_eq!(
        bed.read(secondary(mine, iofic::STATUS)) & !hint,
        1 << case.bit,
        "{name}"
    );
    assert_eq!(
        bed.read(secondary(other, iofic::CAUSE)) & !hint,
        0,
        "{name}"
    );
    let summary = bed.read(engine::GEN + 3 * iofic::GROUP_STRIDE);
    let bit = if mine == Group::M2S {
        primary_d::M2S
    } else {
        primary_d::S2M
    };
    assert_ne!(summary & 1 << bit, 0, "{name}");
    // The log names queue and address; on a ring's own error the address is a descriptor's.
    let unit = if mine == Group::M2S { 0 } else { engine::S2M };
    let log = [0, 4, 8, 12].map(|word| bed.read(unit + unit::LOG_0 + word));
    assert_eq!(log[0], u32::from(QUEUE), "{name}");
    assert!(log[2] | log[3] != 0, "{name}: {log:x?}");
    bed.write(unit + unit::CLEAR_ERR_LOG, 1);
    assert_eq!(bed.read(unit + unit::LOG_0 + 8), 0, "{name}");
    // It does nothing, others do.
    assert!(
        !bed.other_copies(ENGINE, 7),
        "{name}: another queue of the engine copies"
    );
    assert!(
        bed.other_copies(ENGINE + 1, 7),
        "{name}: another engine stopped"
    );
    // Sticky, whatever software makes of the causes.
    bed.write(secondary(mine, iofic::CAUSE), 0);
    assert_eq!(bed.read(secondary(mine, iofic::CAUSE)), 0, "{name}");
    assert_eq!(
        bed.state(),
        engine::state(Machine::Abort, Direction::M2s),
        "{name}"
    );
}

#[test]
fn every_error_stops_its_engine_alone_until_each_recovery() {
    type Recovery = fn(&mut Bed);
    let recoveries: [(&str, Recovery); 3] = [
        ("queue reset", |_| {}),
        ("change_state", |bed| {
            bed.write(unit::CHANGE_STATE, 1);
            assert_eq!(bed.read(unit::STATE) & 0x2222, 0);
        }),
        ("device reset", |bed| {
            bed.rig.with(|rig| {
                let ram = rig.generation.misc_ram;
                rig.write(ram + misc_ram::RESET_MAP, 0);
                rig.write(ram + misc_ram::RESET, misc_ram::RESET_DEVICE);
                rig.write(ram + misc_ram::TRIGGER, 1);
                assert_eq!(rig.function.report(Detail::Status).aborted.len(), 0);
            });
            assert_eq!(bed.state(), 0);
        }),
    ];
    for case in CASES {
        for (how, recover) in recoveries {
            let mut bed = Bed::new();
            (case.provoke)(&mut bed);
            assert!(!bed.run(), "{}: the marker came", case.name);
            check_stopped(&mut bed, case);
            recover(&mut bed);
            // A driver sets the queue up anew after any of them; alone that is the first.
            bed.again();
            let report = bed.rig.with(|rig| rig.function.report(Detail::Status));
            assert_eq!(report.aborted, [], "{} after {how}", case.name);
        }
    }
}

/// Software waives an error by its abort mask: it is latched, and the queue goes on.
#[test]
fn an_abort_mask_waives_what_hardware_can_live_with() {
    for case in CASES {
        let mut bed = Bed::new();
        bed.write(secondary(case.group, iofic::ABORT_MASK), 1 << case.bit);
        (case.provoke)(&mut bed);
        let came = bed.run();
        let cause = bed.read(secondary(case.group, iofic::CAUSE));
        assert_ne!(cause & 1 << case.bit, 0, "{}", case.name);
        let stopped = bed.state() == engine::state(Machine::Abort, Direction::M2s);
        assert_eq!(stopped, !case.maskable, "{}", case.name);
        // An open packet ends with the marker's own buffer otherwise.
        if case.maskable {
            assert!(came, "{}: no marker", case.name);
        }
    }
}

/// The log stays as it is for causes in its mask; the engine stops all the same.
#[test]
fn a_cause_in_the_log_mask_is_not_logged() {
    let mut bed = Bed::new();
    bed.write(unit::ERR_LOG_MASK, 1 << m2s::LAST_WITHOUT_FIRST);
    bed.tx(|len| len.with_last(true));
    bed.rx();
    assert!(!bed.run());
    assert_eq!(bed.state(), engine::state(Machine::Abort, Direction::M2s));
    assert_eq!(bed.read(unit::LOG_0), 0);
}

/// As many as are programmed are a packet: 65, as every driver has it, and 128, V2's limit for user queues (contract §5.3).
#[test]
fn a_packet_of_as_many_descriptors_as_programmed_is_copied() {
    for limit in [65, 128] {
        let mut bed = Bed::new();
        bed.write(engine::M2S_DESC_PREF_CFG_2, limit);
        bed.write(engine::M2S_CFG_LEN, 0x0100_0000 | (limit * 64));
        bed.packet(limit);
        assert!(bed.run(), "{limit}");
        assert_eq!(bed.state(), 0);
    }
}

/// A packet longer than its buffers goes on in the next one, a shorter one leaves the rest of its buffer alone: lengths of
/// the two sides need not match, and there is no error for it.
#[test]
fn lengths_of_the_two_sides_need_not_match() {
    let mut bed = Bed::new();
    bed.tx(|len| len.with_first(true).with_last(true).with_length(100));
    for n in 0..3 {
        bed.rx_at(RESULT + n * 0x100, |len| len.with_length(48));
    }
    bed.rig.with(|rig| rig.fill(RESULT, &[0xee; 0x300]));
    assert!(bed.run());
    bed.rig.with(|rig| {
        assert_eq!(rig.bytes(RESULT, 48), pattern(100, 1)[..48]);
        assert_eq!(rig.bytes(RESULT + 0x100, 48), pattern(100, 1)[48..96]);
        assert_eq!(rig.bytes(RESULT + 0x200, 4), pattern(100, 1)[96..]);
        assert_eq!(rig.bytes(RESULT + 0x204, 44), [0xee; 44]);
    });
    assert_eq!(bed.state(), 0);
}

/// The interrupt controllers' registers: cause, set, mask, complement-clear, status, control, in every group.
#[test]
fn iofic_registers_latch_and_clear_by_complement() {
    let bed = Bed::new();
    let primary = (0..4).map(|n| engine::GEN + n * iofic::GROUP_STRIDE);
    let secondary = (0..3).map(|n| engine::GEN + iofic::SECONDARY + n * iofic::GROUP_STRIDE);
    for group in primary.chain(secondary) {
        let at = |register| group + register;
        let before = bed.read(at(iofic::CAUSE));
        bed.write(at(iofic::CAUSE_SET), 0x00f0_0000);
        bed.write(at(iofic::CAUSE_SET), 0x0f00_0000);
        assert_eq!(
            bed.read(at(iofic::CAUSE)),
            before | 0x0ff0_0000,
            "{group:x}"
        );
        assert_eq!(bed.read(at(iofic::STATUS)), before | 0x0ff0_0000);
        assert_eq!(bed.read(at(iofic::CAUSE_SET)), 0);
        bed.write(at(iofic::CAUSE), !0x0f00_0000);
        assert_eq!(bed.read(at(iofic::CAUSE)), before | 0x00f0_0000);
        bed.write(at(iofic::STATUS), 0);
        assert_eq!(
            bed.read(at(iofic::STATUS)),
            before | 0x00f0_0000,
            "read-only"
        );
        bed.write(at(iofic::MASK), 0xff);
        bed.write(at(iofic::MASK_CLEAR), !0x0f);
        assert_eq!(bed.read(at(iofic::MASK)), 0xf0);
        for register in [iofic::CONTROL, iofic::ABORT_MASK, iofic::LOG_MASK] {
            bed.write(at(register), 0x28);
            assert_eq!(bed.read(at(register)), 0x28);
        }
        bed.write(at(iofic::CONTROL), iofic::CONTROL_CLEAR_ON_READ);
        assert_ne!(bed.read(at(iofic::CAUSE)), 0);
        assert_eq!(bed.read(at(iofic::CAUSE)), 0, "cleared by the first read");
        bed.write(at(iofic::CONTROL), 0);
        bed.write(at(iofic::MASK), 0);
    }
}

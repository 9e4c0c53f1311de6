//! The driver's half of the cycle, small and with a place for every mistake.
//!
//! Without a bug it does what the kernel does: program the queue, then batches of data and a marker, rx doorbell first,
//! poll, clear, ack. [`Bug`] changes one thing, as a real mistake would.
use neuron_protocol::cycle::{QueueLocation, init_engine};
use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::mailbox::{Command, RequestHeader, Sequence, build_request};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::engine::unit;
use neuron_protocol::registers::queue as registers;
use neuron_protocol::registers::{Direction, misc_ram};
use neuron_protocol::ring::RingId;
use neuron_vfio_user::observe::sanitize::{Findings, Mode, Sanitizer};
use neuron_vfio_user::vfio::{DmaMap, DmaUnmap, PciFunction};
use zerocopy::{FromBytes, IntoBytes};

use crate::bugs::Bug;
use crate::rig::{
    DATA, Driver, MARKERS, RAM_BASE, RAM_SIZE, RESULT, RW, RX_RING, Rig, Shared, TX_RING, memfd,
};

/// Batches of an ordinary run; the ring wraps within them.
const BATCHES: u32 = 24;
/// The batch that goes wrong.
const WRONG: u32 = 5;
/// Data descriptors of an ordinary batch.
const PER_BATCH: u32 = 3;
/// Guest RAM above 4 GiB, where no device memory has the same number.
pub const HIGH_RAM: u64 = 28 << 30;

/// One ring as this half keeps it.
#[derive(Clone, Copy, Default)]
struct Side {
    next: u32,
    id: RingId,
}

pub struct Half {
    bug: Option<Bug>,
    rig: Shared,
    device: Driver,
    findings: Findings,
    engine: u8,
    number: u8,
    size: u32,
    tx: Side,
    rx: Side,
    /// Rung for and not given back.
    used: u32,
    sequence: Sequence,
    batch: u32,
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap()
}

impl Half {
    /// On a fresh device under the sanitizer.
    pub fn new(bug: Option<Bug>, product: Product) -> Self {
        let generation = product.generation();
        let (sanitizer, findings) = Sanitizer::new(generation, 0, Mode::Warn);
        let rig = Rig::watched(product, Platform::Silicon, Box::new(sanitizer));
        let (engine, number) = generation.h2t_queue(0).unwrap();
        let (rig, device) = rig.driver();
        Self {
            bug,
            rig,
            device,
            findings,
            engine,
            number,
            size: match bug {
                Some(Bug::RewrittenDescriptor | Bug::FreedByHead) => 128,
                Some(Bug::OddRingSize) => 56,
                _ => 64,
            },
            tx: Side::default(),
            rx: Side::default(),
            used: 0,
            sequence: Sequence::FIRST,
            batch: 0,
        }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The bug, in the batch that goes wrong.
    fn now(&self, bug: Bug) -> bool {
        self.is(bug) && self.batch == WRONG
    }

    fn register(&mut self, direction: Direction, register: u32, value: u32) {
        let location =
            QueueLocation::new(self.device.generation, self.engine, self.number).unwrap();
        self.rig
            .with(|rig| rig.write(location.register(direction, register), value));
    }

    fn misc(&mut self, register: u32, value: u32) {
        self.rig
            .with(|rig| rig.write(rig.generation.misc_ram + register, value));
    }

    fn host(&self, address: u64) -> u64 {
        self.rig.with(|rig| rig.host(address))
    }

    fn run(&self) {
        self.rig.with(Rig::run);
    }

    /// Works through everything and returns the rules found broken, in order.
    pub fn play(mut self) -> Vec<String> {
        self.before();
        init_engine(&mut self.device, self.engine).unwrap();
        if !self.is(Bug::NeverProgrammed) {
            self.program();
        }
        match self.bug {
            Some(
                Bug::MailboxCrc
                | Bug::MailboxSequenceZero
                | Bug::MailboxSequenceKept
                | Bug::MailboxOverlap
                | Bug::MailboxUnmapped,
            ) => self.mailbox(),
            Some(Bug::RewrittenDescriptor | Bug::FreedByHead) => self.large(),
            _ => {
                self.mailbox();
                for batch in 0..BATCHES {
                    self.batch = batch;
                    if !self.batch() {
                        break;
                    }
                }
            }
        }
        let ledger = self.findings.ledger();
        assert_eq!(ledger.gaps(), (0, 0));
        let mut rules = Vec::new();
        for finding in ledger.findings() {
            let name = finding.rule.name().to_owned();
            // The mailbox and a queue may break the same rule.
            if !rules.contains(&name) {
                rules.push(name);
            }
        }
        rules
    }

    /// What the surroundings are to be for the bug to show.
    fn before(&mut self) {
        if self.is(Bug::HostBitForgotten) || self.is(Bug::RingHostBitForgotten) {
            let map = DmaMap {
                iova: HIGH_RAM,
                size: 16 << 20,
                protection: RW,
                file: Some((memfd(16 << 20), 0)),
            };
            self.rig.with(|rig| rig.function.dma_map(map)).unwrap();
        }
        if self.is(Bug::PhysicalBehindIommu) {
            // What the driver mapped for DMA stays; the rest of RAM is not the device's to see.
            self.rig.with(|rig| {
                let file = rig.file().try_clone().unwrap();
                let range = |iova, size| DmaUnmap::Range { iova, size };
                rig.function.dma_unmap(range(RAM_BASE, RAM_SIZE)).unwrap();
                for iova in [TX_RING, RX_RING, MARKERS] {
                    let file = Some((file.try_clone().unwrap().into(), iova - RAM_BASE));
                    let size = 0x1000;
                    let map = DmaMap {
                        iova,
                        size,
                        protection: RW,
                        file,
                    };
                    rig.function.dma_map(map).unwrap();
                }
            });
        }
        if self.is(Bug::BusMasterForgotten) {
            self.rig
                .with(|rig| rig.function.region_write(7, 4, &2u16.to_le_bytes()))
                .unwrap();
        }
    }

    /// Contract §5.4.
    fn program(&mut self) {
        let rings = [(Direction::M2s, TX_RING), (Direction::S2m, RX_RING)];
        self.register(Direction::M2s, registers::RLIMIT_MASK, 3);
        for (direction, base) in rings {
            let mut address = self.host(base);
            if self.is(Bug::RingOffItsLine) {
                address += 64;
            }
            if self.is(Bug::RingHostBitForgotten) {
                address = HIGH_RAM + (base - TX_RING) / 2;
            }
            self.register(direction, registers::CFG, 0x0300_0000);
            self.register(direction, registers::sw_ctrl(direction), 0x100);
            self.register(direction, registers::DRBP_LOW, low(address));
            self.register(direction, registers::DRBP_HIGH, low(address >> 32));
            self.register(direction, registers::DRL, self.size);
            if self.is(Bug::CompletionRing) {
                let ring = self.host(MARKERS + 0x1000);
                self.register(direction, registers::CRBP_LOW, low(ring));
                self.register(direction, registers::CRBP_HIGH, low(ring >> 32));
            }
            self.register(direction, registers::comp_cfg(direction), 0);
            if !self.is(Bug::LeftPaused) {
                self.register(direction, registers::CFG, 0x0303_0000);
            }
        }
        self.tx = Side::default();
        self.rx = Side::default();
        if self.is(Bug::PhaseFromZero) {
            self.tx.id = RingId::from_bits(0);
            self.rx.id = RingId::from_bits(0);
        }
        self.used = 0;
    }

    fn take(&mut self, direction: Direction) -> (u32, RingId) {
        let (length, bug) = (self.size, self.bug);
        let side = match direction {
            Direction::M2s => &mut self.tx,
            Direction::S2m => &mut self.rx,
        };
        let slot = (side.next, side.id);
        side.next = (side.next + 1) % length;
        let stuck = bug == Some(Bug::PhaseStuck)
            || bug == Some(Bug::RxPhaseStuck) && direction == Direction::S2m;
        if side.next == 0 && !stuck {
            side.id = side.id.next();
        }
        slot
    }

    fn push_tx(&mut self, make: impl FnOnce(LenCtrl) -> (LenCtrl, MetaCtrl, u64)) -> u64 {
        let (index, id) = self.take(Direction::M2s);
        let (len_ctrl, meta, source) = make(LenCtrl::new().with_ring_id(id));
        let descriptor = TxDescriptor::from_words(len_ctrl, meta, source);
        let at = TX_RING + 16 * u64::from(index);
        self.rig.with(|rig| rig.fill(at, descriptor.as_bytes()));
        at
    }

    fn push_rx(&mut self, destination: u64, bytes: u32) -> u64 {
        let (index, id) = self.take(Direction::S2m);
        let descriptor = RxDescriptor::new(destination, bytes, id, Barrier::None).unwrap();
        let at = RX_RING + 16 * u64::from(index);
        self.rig.with(|rig| rig.fill(at, descriptor.as_bytes()));
        at
    }

    /// One data descriptor pair of the present batch.
    fn data(&mut self, nth: u32, last: bool, bytes: u32) {
        let offset = u64::from(nth) * u64::from(bytes);
        let mut source = self.host(DATA + offset);
        let mut destination = self.host(RESULT + offset);
        if self.is(Bug::BarrierForgotten) {
            // Device memory past what the driver carves out for firmware.
            destination = 0x100_0000 + offset;
        }
        let mut rx_bytes = bytes;
        let wrong_one = nth == 1;
        if wrong_one {
            if self.now(Bug::FreedBuffer) {
                source = self.host(RAM_BASE + RAM_SIZE + 0x1000);
            }
            if self.now(Bug::FreedDestination) {
                destination = self.host(RAM_BASE + RAM_SIZE + 0x1000);
            }
            if self.now(Bug::BufferPastEnd) {
                source = self.host(RAM_BASE + RAM_SIZE - u64::from(bytes) / 2);
            }
            if self.now(Bug::HostBitForgotten) {
                source = HIGH_RAM + 0x1000;
            }
            if self.now(Bug::IntoOwnRing) {
                destination = self.host(TX_RING + 16 * u64::from(self.tx.next + 1));
                rx_bytes = 16;
            }
            if self.now(Bug::ShortBuffer) {
                rx_bytes = bytes / 2;
            }
        }
        let tx_bytes = if self.now(Bug::IntoOwnRing) && wrong_one {
            16
        } else {
            bytes
        };
        let barrier = last && !self.is(Bug::BarrierForgotten);
        let flag = |bug| wrong_one && self.now(bug);
        let first = !flag(Bug::FirstForgotten);
        let last_of_packet = !flag(Bug::LastForgotten);
        let concat = flag(Bug::ConcatOnFirst);
        self.push_tx(|len_ctrl| {
            let len_ctrl = len_ctrl
                .with_byte_length(tx_bytes)
                .unwrap()
                .with_first(first)
                .with_last(last_of_packet)
                .with_concat(concat);
            (len_ctrl, MetaCtrl::COPY.with_write_barrier(barrier), source)
        });
        self.push_rx(destination, rx_bytes);
    }

    /// Marker slot of the present batch.
    fn slot(&self) -> u64 {
        let nth = if self.is(Bug::SharedMarker) {
            0
        } else {
            self.batch % 2
        };
        MARKERS + 8 * u64::from(nth)
    }

    fn marker(&mut self) {
        let slot = self.slot();
        self.rig.with(|rig| rig.fill(slot, &MARKER.to_le_bytes()));
        if !self.is(Bug::PollWordKept) {
            self.rig.with(|rig| rig.fill(slot + 4, &[0; 4]));
        }
        let source = self.host(slot);
        self.push_tx(|len_ctrl| {
            let len_ctrl = len_ctrl.with_length(4).with_first(true).with_last(true);
            (len_ctrl, MetaCtrl::COPY, source)
        });
        self.push_rx(source + 4, 4);
    }

    fn ring(&mut self, direction: Direction, count: u32) {
        self.register(direction, registers::DRTP_INC, count);
    }

    /// One batch, from staging to ack. False: the driver gives up.
    fn batch(&mut self) -> bool {
        let count = PER_BATCH + 1;
        if self.now(Bug::RungBeforeWritten) {
            self.ring(Direction::S2m, count);
            self.ring(Direction::M2s, count);
            self.run();
        }
        if self.now(Bug::MarkerEarly) {
            self.marker();
        }
        for nth in 0..PER_BATCH {
            self.data(nth, nth + 1 == PER_BATCH, 4096);
        }
        if !self.now(Bug::MarkerEarly) {
            self.marker();
        }
        if self.now(Bug::RungBeforeWritten) {
            return false;
        }
        self.just_before();
        let (mut rx, mut tx) = (count, count);
        if self.now(Bug::RungForNothing) {
            tx = 0;
        }
        if self.now(Bug::RungTwice) {
            (rx, tx) = (2 * count, 2 * count);
        }
        if self.now(Bug::RungInBytes) {
            (rx, tx) = (count * 16 + 16, count * 16 + 16);
        }
        if self.now(Bug::TxFirst) {
            self.ring(Direction::M2s, tx);
            self.run();
            self.ring(Direction::S2m, rx);
        } else {
            self.ring(Direction::S2m, rx);
            self.ring(Direction::M2s, tx);
        }
        if self.is(Bug::NeverWaits) {
            return true;
        }
        if self.is(Bug::SharedMarker) && self.batch.is_multiple_of(2) {
            // Two at a time, as asynchronous copies.
            return true;
        }
        self.just_after();
        self.run();
        if self.is(Bug::PolledAnyway) && self.batch == WRONG {
            self.poll_by_copies();
            return false;
        }
        if self.now(Bug::PolledTheHead) {
            self.poll_the_head();
        }
        let poll = self.slot() + 4;
        let done = self.rig.with(|rig| rig.bytes(poll, 4)) == MARKER.to_le_bytes();
        if done && !self.is(Bug::PollWordKept) {
            self.rig.with(|rig| rig.fill(poll, &[0; 4]));
        }
        done
    }

    fn just_before(&mut self) {
        if self.now(Bug::ResetForgotten) {
            self.misc(misc_ram::RESET_MAP, 0);
            self.misc(misc_ram::RESET, misc_ram::RESET_DEVICE);
            self.misc(misc_ram::TRIGGER, 1);
        }
        if self.now(Bug::CoreResetForgotten) {
            self.misc(misc_ram::RESET_MAP, 1);
            self.misc(misc_ram::RESET, misc_ram::RESET_CORES);
            self.misc(misc_ram::TRIGGER, 1);
        }
        if self.now(Bug::EngineDisabled) {
            let register = self
                .rig
                .with(|rig| rig.engine(self.engine, unit::CHANGE_STATE));
            self.rig.with(|rig| rig.write(register, 2));
        }
        if self.now(Bug::BusMasterRevoked) {
            self.rig
                .with(|rig| rig.function.region_write(7, 4, &2u16.to_le_bytes()))
                .unwrap();
        }
        if self.now(Bug::UnknownRegister) {
            let offset = self.rig.with(|rig| rig.engine(self.engine, 0x3_7f00));
            self.rig.with(|rig| rig.write(offset, 1));
        }
    }

    fn just_after(&mut self) {
        if self.now(Bug::ReprogrammedBusy) || self.is(Bug::PolledAnyway) && self.batch == WRONG {
            self.rig.with(|rig| {
                // One step: the descriptors are fetched, little is copied.
                rig.function.run();
            });
        }
        if self.now(Bug::ReprogrammedBusy) {
            self.ring(Direction::S2m, 1);
            self.program();
        }
    }

    /// Reads the queue's head instead of the marker.
    fn poll_the_head(&mut self) {
        let location =
            QueueLocation::new(self.device.generation, self.engine, self.number).unwrap();
        let register = location.register(Direction::M2s, registers::DRHP);
        for _ in 0..2000 {
            self.rig.with(|rig| rig.read(register));
        }
    }

    /// A batch is launched, its queue programmed again, and its marker awaited all the same, by copies.
    fn poll_by_copies(&mut self) {
        let poll = self.host(self.slot() + 4);
        for nth in 0..PER_BATCH {
            self.data(nth, nth + 1 == PER_BATCH, 0x1_0000);
        }
        self.marker();
        // The rx side is one short, so that the marker stays fetched and undone.
        self.ring(Direction::S2m, PER_BATCH + 1);
        let cfg = 0x0301_0000;
        self.register(Direction::S2m, registers::CFG, cfg);
        self.ring(Direction::M2s, PER_BATCH + 1);
        self.run();
        self.program();
        for _ in 0..150 {
            let scratch = self.host(RESULT);
            self.push_tx(|len_ctrl| {
                let len_ctrl = len_ctrl.with_length(4).with_first(true).with_last(true);
                (len_ctrl, MetaCtrl::COPY, poll)
            });
            self.push_rx(scratch, 4);
            self.ring(Direction::S2m, 1);
            self.ring(Direction::M2s, 1);
            self.run();
        }
    }

    /// A batch that takes the device more than one slice.
    fn large(&mut self) {
        let bytes = 0xa000;
        for nth in 0..119 {
            self.data(nth, nth == 118, bytes);
        }
        self.marker();
        self.ring(Direction::S2m, 120);
        self.ring(Direction::M2s, 120);
        self.rig.with(|rig| rig.function.run());
        if self.is(Bug::RewrittenDescriptor) {
            // A buffer that was to go elsewhere after all.
            let at = RX_RING + 16 * 115;
            let other = self.host(RESULT);
            let descriptor =
                RxDescriptor::new(other, bytes, RingId::INITIAL, Barrier::None).unwrap();
            self.rig.with(|rig| rig.fill(at, descriptor.as_bytes()));
        }
        if self.is(Bug::FreedByHead) {
            // Slots that the head has passed are taken for free.
            self.batch = 1;
            for nth in 0..59 {
                self.data(nth, nth == 58, 4096);
            }
            self.marker();
            self.ring(Direction::S2m, 60);
            self.ring(Direction::M2s, 60);
        }
        self.run();
    }

    /// Contract §4.1, twice.
    fn mailbox(&mut self) {
        for nth in 0..2 {
            let mut request = [0; 64];
            let len = build_request(
                &mut request,
                self.sequence,
                Command::Read,
                &0x1000_u64.to_le_bytes(),
            );
            let len = len.unwrap();
            if self.is(Bug::MailboxCrc) {
                request[8] ^= 1;
            }
            if self.is(Bug::MailboxSequenceZero) {
                let (mut header, payload) = RequestHeader::read_from_prefix(&request).unwrap();
                header.sequence = 0;
                header.crc = header.checksum(&payload[..8]).into();
                let header = header.as_bytes().to_vec();
                request[..8].copy_from_slice(&header);
            }
            let (at, mut to) = (self.host(DATA), self.host(RESULT));
            if self.is(Bug::MailboxOverlap) {
                to = at + 8;
            }
            if self.is(Bug::MailboxUnmapped) {
                to = self.host(RAM_BASE + RAM_SIZE + 0x1000);
            }
            self.rig.with(|rig| rig.fill(DATA, &request[..len]));
            for (register, value) in [
                (misc_ram::REQUEST_LOW, at),
                (misc_ram::REQUEST_HIGH, at >> 32),
                (misc_ram::RESPONSE_LOW, to),
                (misc_ram::RESPONSE_HIGH, to >> 32),
                (misc_ram::TRIGGER, 1),
            ] {
                self.misc(register, low(value));
            }
            self.run();
            if !self.is(Bug::MailboxSequenceKept) || nth > 0 {
                self.sequence = self.sequence.next();
            }
        }
    }
}

//! A queue: its tx ring feeds a stream, its rx ring drains it.
//!
//! The bytes of a packet, from FIRST to LAST over any number of tx descriptors, fill rx buffers one after the other. The
//! end of a packet closes the buffer it reached. Everything happens in ring order, one transfer at a time, so that each
//! of the four barriers holds by construction: nothing is visible before what precedes it.
use std::time::Duration;

use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, Operation, RxDescriptor, TxDescriptor};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::{Direction, iofic};

use super::ring::{RawDescriptor, Ring};
use super::{Fault, FaultKind, Request};
use crate::memory::{self, Access, Lost, Memory, Target, Unmapped};
use crate::observe::event::{EventKind, Observers, Scope};
use crate::observe::recorder::Recorder;
use crate::policy::{Point, Policies, Verdict};

/// What a step may use: all of it outside the queue.
pub struct Context<'a> {
    /// Where addresses lead.
    pub memory: &'a Memory,
    /// Who listens.
    pub observers: &'a mut Observers,
    /// Who decides.
    pub policies: &'a mut Policies,
    /// Device time.
    pub now: Duration,
    /// Totals of the device.
    pub totals: &'a mut Totals,
}

/// Totals over all queues since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Doorbell writes.
    pub doorbells: u64,
    /// Descriptors done, both directions.
    pub descriptors: u64,
    /// Markers written.
    pub markers: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Engine aborts.
    pub aborts: u64,
    /// Descriptors that asked for an interrupt; none is sent.
    pub interrupts: u64,
}

/// The engine's settings that a queue obeys.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most descriptors in a packet; 0 is no limit.
    pub max_descriptors: u8,
    /// Most bytes in a packet; 0 is no limit.
    pub max_packet: u32,
    /// Causes that stop the engine, m2s and s2m: the complement of the abort masks (udma §9).
    pub aborting: [u32; 2],
}

impl Limits {
    /// Whether a fault stops the engine. One without a cause bit, or without which there is no way on, always does.
    fn stops(&self, fault: &Fault) -> bool {
        match fault.cause() {
            Some((iofic::Group::M2S, bit)) if fault.kind.can_go_on() => {
                self.aborting[0] & 1 << bit != 0
            }
            Some((iofic::Group::S2M, bit)) if fault.kind.can_go_on() => {
                self.aborting[1] & 1 << bit != 0
            }
            _ => true,
        }
    }
}

/// How a step ended.
#[derive(Debug)]
pub enum Step {
    /// Something moved; more may.
    Progress {
        /// Bytes moved.
        bytes: u32,
    },
    /// Nothing can move until a register is written.
    Blocked,
    /// An access that somebody else must make; [`Pair::complete`] goes on from there.
    Request(Request),
    /// The engine must stop.
    Fault(Fault),
}

/// A source descriptor in use.
#[derive(Debug)]
struct Tx {
    index: u32,
    address: u64,
    left: u32,
    last: bool,
}

/// A destination descriptor in use.
#[derive(Debug)]
struct Rx {
    index: u32,
    address: u64,
    left: u32,
}

/// An access that is not made here and now.
#[derive(Debug, Default)]
enum Pending {
    #[default]
    None,
    /// Descriptors of a ring are on their way.
    Fetch(Direction),
    /// Bytes of the current source are on their way.
    Read,
    /// Bytes of the current source are here.
    Have(Vec<u8>),
    /// That many bytes are on their way to the current destination.
    Write { bytes: u32, marker: bool },
}

/// Both rings of a queue and the stream between them.
#[derive(Debug)]
pub struct Pair {
    engine: u8,
    queue: u8,
    /// Sources.
    pub m2s: Ring,
    /// Destinations.
    pub s2m: Ring,
    tx: Option<Tx>,
    rx: Option<Rx>,
    /// Descriptors of the open packet so far; 0 between packets.
    packet: u32,
    /// Bytes of the open packet so far.
    packet_bytes: u32,
    pending: Pending,
    /// The request whose answer `pending` waits for.
    pub ticket: u64,
    /// Address and length of that request.
    asked: (u64, u64),
    /// Causes that did not stop the engine and are still to be latched, m2s and s2m.
    pub latched: [u32; 2],
    /// In the engine's list of queues with work.
    pub queued: bool,
    /// The last doorbell: when, which ring, how many.
    pub last_doorbell: Option<(Duration, Direction, u32)>,
    /// Its last events.
    pub recorder: Recorder,
}

impl Pair {
    /// A queue as after power-on.
    pub fn new(engine: u8, queue: u8) -> Self {
        Self {
            engine,
            queue,
            m2s: Ring::new(Direction::M2s),
            s2m: Ring::new(Direction::S2m),
            tx: None,
            rx: None,
            packet: 0,
            packet_bytes: 0,
            pending: Pending::None,
            ticket: 0,
            asked: (0, 0),
            latched: [0; 2],
            queued: false,
            last_doorbell: None,
            recorder: Recorder::default(),
        }
    }

    /// The ring of a direction.
    pub const fn ring(&self, direction: Direction) -> &Ring {
        match direction {
            Direction::M2s => &self.m2s,
            Direction::S2m => &self.s2m,
        }
    }

    /// The ring of a direction.
    pub const fn ring_mut(&mut self, direction: Direction) -> &mut Ring {
        match direction {
            Direction::M2s => &mut self.m2s,
            Direction::S2m => &mut self.s2m,
        }
    }

    /// Inside a packet: its LAST has not been taken.
    pub const fn in_packet(&self) -> bool {
        self.packet > 0
    }

    /// Waits for an access made elsewhere.
    pub const fn awaits(&self) -> bool {
        matches!(
            self.pending,
            Pending::Fetch(_) | Pending::Read | Pending::Write { .. }
        )
    }

    /// Address and bytes of that access.
    pub fn awaited(&self) -> Option<(u64, u64)> {
        self.awaits().then_some(self.asked)
    }

    /// Drops the stream and one ring's pending work (contract §5.4). Returns the descriptors dropped.
    pub fn reset(&mut self, direction: Direction) -> u32 {
        self.tx = None;
        self.rx = None;
        self.packet = 0;
        self.packet_bytes = 0;
        self.pending = Pending::None;
        self.ring_mut(direction).reset()
    }

    /// Adds to a tail.
    ///
    /// # Errors
    /// The doorbell breaks a rule; the engine must stop.
    pub fn doorbell(
        &mut self,
        direction: Direction,
        count: u32,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        cx.totals.doorbells += 1;
        self.last_doorbell = Some((cx.now, direction, count));
        let ring = self.ring_mut(direction);
        let (length, outstanding) = (ring.length(), ring.outstanding);
        let kind = if length == 0 {
            Some(FaultKind::RingUnset)
        } else if !ring.is_aligned() {
            Some(FaultKind::RingMisaligned { length })
        } else if count > length - outstanding.min(length) {
            Some(FaultKind::TailOverrun {
                count,
                outstanding,
                length,
            })
        } else {
            None
        };
        if let Some(kind) = kind {
            let (index, address) = (ring.tail.index, ring.address_of(ring.tail.index));
            return Err(self.fault(direction, index, address, kind));
        }
        ring.ring(count);
        let tail = ring.tail;
        self.record(
            cx,
            EventKind::Doorbell {
                direction,
                count,
                tail,
            },
        );
        Ok(())
    }

    /// Does the next small thing: a fetch, or up to one descriptor's bytes, at most `most`.
    pub fn step(&mut self, limits: Limits, most: u32, cx: &mut Context<'_>) -> Step {
        let result = match std::mem::take(&mut self.pending) {
            Pending::None => self.advance(limits, most, cx),
            Pending::Have(bytes) => self.put(bytes, limits, cx),
            awaiting => {
                self.pending = awaiting;
                Ok(Step::Blocked)
            }
        };
        if let Ok(Step::Request(request)) = &result {
            self.asked = request.place();
        }
        result.unwrap_or_else(Step::Fault)
    }

    /// Takes the answer to a [`Request`].
    ///
    /// # Errors
    /// The access failed; the engine must stop.
    pub fn complete(
        &mut self,
        reply: Result<Vec<u8>, FaultKind>,
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let pending = std::mem::take(&mut self.pending);
        let bytes = match reply {
            Ok(bytes) => bytes,
            Err(kind) => {
                let (direction, index, address) = match pending {
                    Pending::Fetch(direction) => {
                        let ring = self.ring(direction);
                        (direction, ring.head.index, ring.address_of(ring.head.index))
                    }
                    Pending::Write { .. } => (
                        Direction::S2m,
                        self.rx.as_ref().map_or(0, |rx| rx.index),
                        self.rx.as_ref().map_or(0, |rx| rx.address),
                    ),
                    _ => (
                        Direction::M2s,
                        self.tx.as_ref().map_or(0, |tx| tx.index),
                        self.tx.as_ref().map_or(0, |tx| tx.address),
                    ),
                };
                return Err(self.fault(direction, index, address, kind));
            }
        };
        match pending {
            Pending::Fetch(direction) => return self.fetched(direction, &bytes, limits, cx),
            Pending::Read => self.pending = Pending::Have(bytes),
            Pending::Write { bytes, marker } => self.landed(bytes, marker, cx),
            other => self.pending = other,
        }
        Ok(())
    }

    fn advance(&mut self, limits: Limits, most: u32, cx: &mut Context<'_>) -> Result<Step, Fault> {
        // Buffers are prefetched as soon as they are rung for, with or without a source (seed §3: rx-only trigger).
        for direction in [Direction::S2m, Direction::M2s] {
            let ring = self.ring(direction);
            if ring.fetched.is_empty()
                && ring.cfg.prefetch()
                && let Some((address, count)) = ring.next_fetch()
            {
                return self.fetch(direction, address, count, limits, cx);
            }
        }
        if !(self.m2s.cfg.schedule() && self.s2m.cfg.schedule()) {
            return Ok(Step::Blocked);
        }
        if self.tx.is_none() {
            let Some(raw) = self.m2s.fetched.pop_front() else {
                return Ok(Step::Blocked);
            };
            self.tx = Some(self.take_tx(&raw, limits, cx)?);
        }
        if self.rx.is_none() {
            let Some(raw) = self.s2m.fetched.pop_front() else {
                // A hint to software, not an error: the tx side waits for its rx doorbell (udma §8).
                self.latched[1] |= 1 << iofic::s2m::NO_DESCRIPTOR_HINT;
                return Ok(Step::Blocked);
            };
            self.rx = Some(self.take_rx(&raw, cx));
        }
        self.copy(limits, most, cx)
    }

    fn fetch(
        &mut self,
        direction: Direction,
        address: u64,
        count: u32,
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<Step, Fault> {
        let index = self.ring(direction).head.index;
        let point = Point::Fetch {
            engine: self.engine,
            queue: self.queue,
            direction,
            index,
        };
        if cx.policies.judge(point) == Verdict::Fail {
            return Err(self.fault(direction, index, address, FaultKind::Injected));
        }
        let len = count as usize * DESCRIPTOR_SIZE;
        let mut bytes = [0; super::ring::PREFETCH_DEPTH as usize * DESCRIPTOR_SIZE];
        let mut filled = 0;
        while filled < len {
            let at = address.wrapping_add(filled as u64);
            match cx.memory.resolve(at, len - filled, Access::Read) {
                Ok(Target::Memory(slice)) => {
                    let stretch = slice.len();
                    memory::read_bytes(&slice, &mut bytes[filled..filled + stretch]).map_err(
                        |_| self.fault(direction, index, at, FaultKind::Fetch(Unmapped::Truncated)),
                    )?;
                    filled += stretch;
                }
                // What is here already is used first; the rest is asked for when it is its turn.
                Ok(Target::Message { .. }) if filled >= DESCRIPTOR_SIZE => break,
                Ok(Target::Message { iova, len }) => {
                    self.pending = Pending::Fetch(direction);
                    // Whole descriptors; one that straddles two mappings is the client's to assemble.
                    let len = (len / DESCRIPTOR_SIZE).max(1) * DESCRIPTOR_SIZE;
                    let iova = iova.wrapping_sub(filled as u64);
                    return Ok(Step::Request(Request::ReadGuest { iova, len }));
                }
                Ok(Target::Register { .. }) => {
                    return Err(self.fault(direction, index, at, FaultKind::RingInRegisters));
                }
                Err(_) if filled >= DESCRIPTOR_SIZE => break,
                Err(unmapped) => {
                    return Err(self.fault(direction, index, at, FaultKind::Fetch(unmapped)));
                }
            }
        }
        self.fetched(direction, &bytes[..filled], limits, cx)?;
        Ok(Step::Progress { bytes: 0 })
    }

    /// Takes descriptors into the prefetch buffer. Their ring ids are checked here (udma §6), before any is used.
    fn fetched(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let (descriptors, _) = bytes.as_chunks::<DESCRIPTOR_SIZE>();
        let ring = self.ring(direction);
        let (first, length) = (ring.head, ring.length());
        for (nth, raw) in (0..).zip(descriptors) {
            let position = first.advanced(nth, length);
            // The first word is the same in both directions.
            let descriptor: TxDescriptor = zerocopy::transmute!(*raw);
            let len_ctrl = descriptor.len_ctrl();
            // A meta descriptor keeps an index where the ring id is (facts §2.3).
            if len_ctrl.ring_id() != position.ring_id && !len_ctrl.meta() {
                let kind = FaultKind::RingId {
                    expected: position.ring_id.bits(),
                    found: len_ctrl.ring_id().bits(),
                };
                self.refuse(
                    limits,
                    self.fault(direction, position.index, descriptor.source(), kind),
                )?;
            }
        }
        self.ring_mut(direction).accept(descriptors);
        let count = u32::try_from(descriptors.len()).unwrap_or(0);
        self.record(
            cx,
            EventKind::Fetch {
                direction,
                index: first.index,
                count,
            },
        );
        Ok(())
    }

    /// Meets a fault: stops the engine, or only latches the cause where software masked it.
    fn refuse(&mut self, limits: Limits, fault: Fault) -> Result<(), Fault> {
        if limits.stops(&fault) {
            return Err(fault);
        }
        match fault.cause() {
            Some((iofic::Group::M2S, bit)) => self.latched[0] |= 1 << bit,
            Some((_, bit)) => self.latched[1] |= 1 << bit,
            None => {}
        }
        Ok(())
    }

    fn take_tx(
        &mut self,
        raw: &RawDescriptor,
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<Tx, Fault> {
        let descriptor: TxDescriptor = zerocopy::transmute!(*raw);
        let (len_ctrl, index) = (descriptor.len_ctrl(), self.m2s.current.index);
        let address = descriptor.source();
        let queue = self.queue;
        let fault = move |kind| Fault {
            queue,
            direction: Direction::M2s,
            index,
            address,
            kind,
        };
        if len_ctrl.first() && self.packet > 0 {
            let fault = fault(FaultKind::FirstInPacket);
            self.refuse(limits, fault)?;
            self.packet = 0;
            self.packet_bytes = 0;
        } else if !len_ctrl.first() && self.packet == 0 {
            let fault = fault(FaultKind::WithoutFirst);
            self.refuse(limits, fault)?;
        }
        let limit = limits.max_descriptors;
        if limit != 0 && self.packet >= u32::from(limit) {
            let fault = fault(FaultKind::TooManyDescriptors { limit });
            self.refuse(limits, fault)?;
        }
        let (bytes, limit) = (
            self.packet_bytes.saturating_add(len_ctrl.byte_length()),
            limits.max_packet,
        );
        if limit != 0 && bytes > limit {
            let fault = fault(FaultKind::PacketTooLong { bytes, limit });
            self.refuse(limits, fault)?;
        }
        if let Operation::Unsupported(operation) = descriptor.operation() {
            let meta_ctrl = descriptor.meta_ctrl().into_bits();
            return Err(fault(FaultKind::Operation {
                operation,
                meta_ctrl,
            }));
        }
        self.packet += 1;
        self.packet_bytes = bytes;
        cx.totals.interrupts += u64::from(len_ctrl.interrupt());
        Ok(Tx {
            index,
            address,
            left: len_ctrl.byte_length(),
            last: len_ctrl.last(),
        })
    }

    fn take_rx(&mut self, raw: &RawDescriptor, cx: &mut Context<'_>) -> Rx {
        let descriptor: RxDescriptor = zerocopy::transmute!(*raw);
        let len_ctrl = descriptor.len_ctrl();
        cx.totals.interrupts += u64::from(len_ctrl.interrupt());
        Rx {
            index: self.s2m.current.index,
            address: descriptor.destination(),
            left: len_ctrl.byte_length(),
        }
    }

    /// Moves bytes from the current source to the current destination, up to where either ends.
    fn copy(&mut self, limits: Limits, most: u32, cx: &mut Context<'_>) -> Result<Step, Fault> {
        let (Some(tx), Some(rx)) = (&self.tx, &self.rx) else {
            return Ok(Step::Blocked);
        };
        let (source, destination) = (tx.address, rx.address);
        let whole = tx.left.min(rx.left).min(most.max(1));
        let point = Point::Copy {
            engine: self.engine,
            queue: self.queue,
            source,
            destination,
        };
        match cx.policies.judge(point) {
            Verdict::Proceed => {}
            Verdict::Drop => {
                self.landed(whole, false, cx);
                return Ok(Step::Progress { bytes: whole });
            }
            Verdict::Fail => return Err(self.data_fault(Direction::S2m, FaultKind::Injected)),
        }
        let from = cx.memory.resolve(source, whole as usize, Access::Read);
        let from = match from {
            Ok(from) => from,
            Err(unmapped) => return self.lost(Direction::M2s, unmapped, whole, limits, cx),
        };
        let to = match cx.memory.resolve(destination, from.len(), Access::Write) {
            Ok(to) => to,
            Err(unmapped) => return self.lost(Direction::S2m, unmapped, whole, limits, cx),
        };
        let bytes = to.len();
        match (from.truncated(bytes), to) {
            (Target::Memory(from), Target::Memory(to)) => {
                let marker =
                    memory::copy(&from, &to).map_err(|lost| self.truncated(lost))? == Some(MARKER);
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.landed(bytes, marker, cx);
                Ok(Step::Progress { bytes })
            }
            (Target::Memory(from), _) => {
                let mut data = vec![0; bytes];
                memory::read_bytes(&from, &mut data).map_err(|lost| self.truncated(lost))?;
                self.put(data, limits, cx)
            }
            (Target::Message { iova, .. }, _) => {
                self.pending = Pending::Read;
                Ok(Step::Request(Request::ReadGuest { iova, len: bytes }))
            }
            (Target::Register { offset, .. }, _) => {
                self.pending = Pending::Read;
                Ok(Step::Request(Request::ReadRegister { offset, len: bytes }))
            }
        }
    }

    /// Writes bytes of the current source to the current destination.
    fn put(
        &mut self,
        mut data: Vec<u8>,
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<Step, Fault> {
        let Some(rx) = &self.rx else {
            return Ok(Step::Blocked);
        };
        let to = match cx.memory.resolve(rx.address, data.len(), Access::Write) {
            Ok(to) => to,
            Err(unmapped) => {
                let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
                return self.lost(Direction::S2m, unmapped, bytes, limits, cx);
            }
        };
        // A mapping may have shrunk since: the rest is read again.
        data.truncate(to.len());
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let marker = data == MARKER.to_le_bytes();
        match to {
            Target::Memory(to) => {
                memory::write_bytes(&data, &to).map_err(|lost| self.truncated(lost))?;
                self.landed(bytes, marker, cx);
                Ok(Step::Progress { bytes })
            }
            Target::Message { iova, .. } => {
                self.pending = Pending::Write { bytes, marker };
                Ok(Step::Request(Request::WriteGuest { iova, data }))
            }
            Target::Register { offset, .. } => {
                self.pending = Pending::Write { bytes, marker };
                Ok(Step::Request(Request::WriteRegister { offset, data }))
            }
        }
    }

    /// Bytes that cannot be moved: the engine stops, or they are lost where software masked the error.
    fn lost(
        &mut self,
        direction: Direction,
        unmapped: Unmapped,
        bytes: u32,
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<Step, Fault> {
        let fault = self.data_fault(direction, FaultKind::Data(unmapped));
        self.refuse(limits, fault)?;
        self.landed(bytes, false, cx);
        Ok(Step::Progress { bytes })
    }

    /// Bytes have landed: descriptors that they finish are done, and only now do the pointers move.
    fn landed(&mut self, bytes: u32, marker: bool, cx: &mut Context<'_>) {
        let (Some(tx), Some(rx)) = (&mut self.tx, &mut self.rx) else {
            return;
        };
        let (tx_index, source, rx_index, destination) =
            (tx.index, tx.address, rx.index, rx.address);
        tx.address = tx.address.wrapping_add(u64::from(bytes));
        tx.left = tx.left.saturating_sub(bytes);
        rx.address = rx.address.wrapping_add(u64::from(bytes));
        rx.left = rx.left.saturating_sub(bytes);
        let source_done = tx.left == 0;
        let packet_done = source_done && tx.last;
        let buffer_done = rx.left == 0 || packet_done;
        cx.totals.bytes += u64::from(bytes);
        if source_done {
            self.tx = None;
            self.m2s.retire();
            cx.totals.descriptors += 1;
        }
        if packet_done {
            self.packet = 0;
            self.packet_bytes = 0;
        }
        if buffer_done {
            self.rx = None;
            self.s2m.retire();
            cx.totals.descriptors += 1;
        }
        self.record(
            cx,
            EventKind::Copy {
                tx: tx_index,
                rx: rx_index,
                source,
                destination,
                bytes,
            },
        );
        if marker {
            cx.totals.markers += 1;
            self.record(
                cx,
                EventKind::Marker {
                    tx: tx_index,
                    address: destination,
                },
            );
        }
    }

    fn record(&mut self, cx: &mut Context<'_>, kind: EventKind) {
        self.recorder.record(cx.now, kind);
        cx.observers.emit(
            Scope::Queue {
                engine: self.engine,
                queue: self.queue,
            },
            kind,
        );
    }

    /// Memory that the client took away in the middle of an access.
    fn truncated(&self, lost: Lost) -> Fault {
        let direction = match lost.access {
            Access::Read => Direction::M2s,
            Access::Write => Direction::S2m,
        };
        self.data_fault(direction, FaultKind::Data(Unmapped::Truncated))
    }

    fn data_fault(&self, direction: Direction, kind: FaultKind) -> Fault {
        let (index, address) = match direction {
            Direction::M2s => self.tx.as_ref().map_or((0, 0), |tx| (tx.index, tx.address)),
            Direction::S2m => self.rx.as_ref().map_or((0, 0), |rx| (rx.index, rx.address)),
        };
        self.fault(direction, index, address, kind)
    }

    const fn fault(
        &self,
        direction: Direction,
        index: u32,
        address: u64,
        kind: FaultKind,
    ) -> Fault {
        Fault {
            queue: self.queue,
            direction,
            index,
            address,
            kind,
        }
    }
}

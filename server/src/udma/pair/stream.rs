//! The stream between the rings: from source descriptors into destination buffers.
use neuron_protocol::descriptor::{Operation, RxDescriptor, TxDescriptor};
use neuron_protocol::marker::{MARKER, MARKER_SIZE, POLL_OFFSET};
use neuron_protocol::registers::Direction;

use super::ask::Permit;
use super::{Pair, Pending, Step};
use crate::memory::{Access, Lost, Purpose, Stretch, Target, Unmapped};
use crate::observe::event::EventKind;
use crate::udma::context::Context;
use crate::udma::limits::Limits;
use crate::udma::ring::RawDescriptor;
use crate::udma::{Fault, FaultKind, Request};

/// A source descriptor in use.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) index: u32,
    pub(super) address: u64,
    pub(super) left: u32,
    pub(super) last: bool,
    pub(super) interrupt: bool,
    pub(super) order: Order,
}

/// How a source descriptor is ordered against others.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) write_barrier: bool,
    pub(super) dmb: bool,
}

/// A destination descriptor in use.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) index: u32,
    pub(super) address: u64,
    pub(super) left: u32,
    pub(super) interrupt: bool,
    pub(super) strong_order: bool,
}

impl Pair {
    pub(super) fn take_tx(
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
            let word = descriptor.meta_ctrl().into_bits();
            return Err(fault(FaultKind::Operation { operation, word }));
        }
        self.packet += 1;
        self.packet_bytes = bytes;
        cx.totals.interrupts += u64::from(len_ctrl.interrupt());
        Ok(Tx {
            index,
            address,
            left: len_ctrl.byte_length(),
            last: len_ctrl.last(),
            interrupt: len_ctrl.interrupt(),
            order: Order {
                write_barrier: descriptor.meta_ctrl().write_barrier(),
                dmb: len_ctrl.dmb(),
            },
        })
    }

    pub(super) fn take_rx(
        &mut self,
        raw: &RawDescriptor,
        cx: &mut Context<'_>,
    ) -> Result<Rx, Fault> {
        let descriptor: RxDescriptor = zerocopy::transmute!(*raw);
        let len_ctrl = descriptor.len_ctrl();
        if let Operation::Unsupported(operation) = descriptor.operation() {
            return Err(Fault {
                queue: self.queue,
                direction: Direction::S2m,
                index: self.s2m.current.index,
                address: descriptor.destination(),
                kind: FaultKind::Operation {
                    operation,
                    word: descriptor.word(),
                },
            });
        }
        cx.totals.interrupts += u64::from(len_ctrl.interrupt());
        Ok(Rx {
            index: self.s2m.current.index,
            address: descriptor.destination(),
            left: len_ctrl.byte_length(),
            interrupt: len_ctrl.interrupt(),
            strong_order: len_ctrl.strong_order() && cx.memory.generation().strong_order,
        })
    }

    /// Moves bytes from the current source to the current destination, up to where either ends.
    pub(super) fn copy(
        &mut self,
        limits: Limits,
        most: u32,
        cx: &mut Context<'_>,
    ) -> Result<Step, Fault> {
        if self.must_drain() {
            return self.land(limits, cx);
        }
        let (Some(tx), Some(rx)) = (&self.tx, &self.rx) else {
            return Ok(Step::Blocked);
        };
        let (source, destination) = (tx.address, rx.address);
        let left = tx.left.min(rx.left);
        let whole = self.packet_bytes(source, destination, left.min(most.max(1)));
        if self.unasked(cx)
            && let Ok(word) = peek(source, left, cx)
            && let Permit::End(step) = self.permit(word, cx)?
        {
            return Ok(step);
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
            (Target::Memory(from), Target::Memory(to)) if !self.is_twisted() && !self.is_weak() => {
                if cx.audits() {
                    self.audit_poll(&from, &to, cx);
                }
                let marker = cx
                    .memory
                    .copy(&from, &to)
                    .map_err(|lost| self.truncated(lost))?
                    == Some(MARKER);
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.landed(bytes, marker, cx);
                Ok(Step::Progress { bytes })
            }
            (Target::Memory(from), _) => {
                let mut data = vec![0; bytes];
                cx.memory
                    .read(&from, Purpose::Data, &mut data)
                    .map_err(|lost| self.truncated(lost))?;
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

    /// Tells of a marker that is about to be written over a marker.
    fn audit_poll(&self, from: &Stretch<'_>, to: &Stretch<'_>, cx: &mut Context<'_>) {
        let (Some(tx), Some(rx)) = (&self.tx, &self.rx) else {
            return;
        };
        // Where the word behind the source is the destination (seed §2).
        let size = MARKER_SIZE as usize;
        let slot = rx.address == tx.address.wrapping_add(POLL_OFFSET);
        if !slot || from.len() != size || to.len() != size {
            return;
        }
        let marks = |stretch: &Stretch<'_>| {
            let mut word = [0; 4];
            let read = cx.memory.read(stretch, Purpose::Control, &mut word);
            read.is_ok() && word == MARKER.to_le_bytes()
        };
        if marks(from) && marks(to) {
            let kind = EventKind::PollSlot {
                tx: tx.index,
                address: rx.address,
            };
            self.emit(cx, kind);
        }
    }

    /// Writes bytes of the current source to the current destination.
    pub(super) fn put(
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
        let address = rx.address;
        // What had to be read to know whether it is the marker.
        if self.unasked(cx) {
            let word = data.as_slice().try_into().ok().map(u32::from_le_bytes);
            if let Permit::End(step) = self.permit(word, cx)? {
                if !matches!(step, Step::Progress { .. }) {
                    self.pending = Pending::Have(data);
                }
                return Ok(step);
            }
        }
        if self.is_twisted() {
            data = self.twisted(data, address, cx);
            if data.is_empty() {
                self.landed(bytes, false, cx);
                return Ok(Step::Progress { bytes });
            }
        }
        if self.is_weak() {
            return Ok(self.hold(&data, bytes, cx));
        }
        let marker = data == MARKER.to_le_bytes();
        let to = to.truncated(data.len());
        match to {
            Target::Memory(to) => {
                cx.memory
                    .write(&data, &to)
                    .map_err(|lost| self.truncated(lost))?;
                self.landed(bytes, marker, cx);
                Ok(Step::Progress { bytes })
            }
            Target::Message { iova, .. } => {
                if marker && cx.observers.interest().audit {
                    let tx = self.tx.as_ref().map_or(0, |tx| tx.index);
                    self.emit(cx, EventKind::MarkerSent { tx, address });
                }
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
    pub(super) fn lost(
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
    pub(super) fn landed(&mut self, bytes: u32, marker: bool, cx: &mut Context<'_>) {
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
        self.completed[0] |= source_done && tx.interrupt;
        self.completed[1] |= buffer_done && rx.interrupt;
        if source_done || buffer_done {
            self.pass_on(source_done);
        }
        if source_done {
            self.tx = None;
            if let Some(clock) = &mut self.clock {
                clock.done();
            }
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
            self.marked(tx_index, destination, cx);
        }
    }

    /// The marker has landed.
    pub(super) fn marked(&mut self, tx: u32, address: u64, cx: &mut Context<'_>) {
        cx.late.marker(self.engine, self.queue, cx.now);
        cx.totals.markers += 1;
        self.record(cx, EventKind::Marker { tx, address });
    }

    /// Memory that the client took away in the middle of an access.
    pub(super) fn truncated(&self, lost: Lost) -> Fault {
        let direction = match lost.access {
            Access::Read => Direction::M2s,
            Access::Write => Direction::S2m,
        };
        self.data_fault(direction, FaultKind::Data(Unmapped::Truncated))
    }

    pub(super) fn data_fault(&self, direction: Direction, kind: FaultKind) -> Fault {
        let (index, address) = match direction {
            Direction::M2s => self.tx.as_ref().map_or((0, 0), |tx| (tx.index, tx.address)),
            Direction::S2m => self.rx.as_ref().map_or((0, 0), |rx| (rx.index, rx.address)),
        };
        self.fault(direction, index, address, kind)
    }
}

/// It has to be read before anybody knows.
struct NotAtHand;

/// The word that is about to be moved, if it is just one.
fn peek(source: u64, left: u32, cx: &Context<'_>) -> Result<Option<u32>, NotAtHand> {
    if left != 4 {
        return Ok(None);
    }
    match cx.memory.resolve(source, 4, Access::Read) {
        Ok(Target::Memory(slice)) if slice.len() == 4 => {
            let mut word = [0; 4];
            // Memory that is gone makes the copy itself fail.
            let read = cx.memory.read(&slice, Purpose::Data, &mut word);
            Ok(read.ok().map(|()| u32::from_le_bytes(word)))
        }
        Ok(Target::Message { len: 4, .. } | Target::Register { len: 4, .. }) => Err(NotAtHand),
        _ => Ok(None),
    }
}

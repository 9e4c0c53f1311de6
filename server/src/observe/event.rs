//! What happens in a device, as typed events.
//!
//! Consumers observe, never influence. Those of register accesses and of descriptors' bytes, the frequent ones, are built
//! only if somebody is interested.
use std::fmt;
use std::time::Duration;

use neuron_protocol::descriptor::DESCRIPTOR_SIZE;
use neuron_protocol::mailbox::MailboxError;
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::Pointer;

use crate::memory::Unmapped;
use crate::udma::Fault;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Device time: that of the wake-up it belongs to. Events of one wake-up share it; their order is exact.
    pub at: Duration,
    /// Where.
    pub scope: Scope,
    /// What.
    pub kind: EventKind,
}

/// Where an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole device.
    Device,
    /// A queue of an engine.
    Queue {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
    },
}

/// What happened. Indices and counts are in descriptors, addresses as the engine sees them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventKind {
    /// The tail moved.
    Doorbell {
        /// Which ring.
        direction: Direction,
        /// Descriptors added.
        count: u32,
        /// The tail afterwards.
        tail: Pointer,
    },
    /// Descriptors were read from the ring.
    Fetch {
        /// Which ring.
        direction: Direction,
        /// First index.
        index: u32,
        /// How many.
        count: u32,
    },
    /// Bytes were moved. They have landed too, unless an adversary holds them: then [`Self::Landed`] follows.
    Copy {
        /// tx descriptor.
        tx: u32,
        /// rx descriptor.
        rx: u32,
        /// From.
        source: u64,
        /// To.
        destination: u64,
        /// How many bytes.
        bytes: u32,
    },
    /// The completion marker landed.
    Marker {
        /// tx descriptor.
        tx: u32,
        /// Address of the poll slot.
        address: u64,
    },
    /// Bytes that an adversary had held landed. Those of one copy may land apart and out of order.
    Landed {
        /// To.
        destination: u64,
        /// How many bytes.
        bytes: u32,
    },
    /// A policy says when the next descriptor's work is done: what it moves, the marker too, counts as landed then. The
    /// device thread may come to it later; the difference is the host's, not the model's.
    Due {
        /// Model time.
        at: Duration,
    },
    /// A marker is on its way to memory that only the client reaches: the driver may see it before we know that it
    /// landed. Only told to those who want it ([`Interest::audit`]).
    MarkerSent {
        /// tx descriptor.
        tx: u32,
        /// Address of the poll slot.
        address: u64,
    },
    /// A queue of one direction was reset.
    QueueReset {
        /// Which ring.
        direction: Direction,
        /// Descriptors that were rung for and are dropped.
        dropped: u32,
    },
    /// A descriptor came into the prefetch buffer; before the [`Self::Fetch`] it belongs to. Only told to those who
    /// want it ([`Interest::descriptors`]).
    Descriptor {
        /// Which ring.
        direction: Direction,
        /// Its index, and the ring id that the engine expected there.
        position: Pointer,
        /// Its bytes as they were read.
        raw: [u8; DESCRIPTOR_SIZE],
    },
    /// A register was read, or is about to be written. Only told to those who want it ([`Interest::registers`]).
    Register {
        /// Offset in the register BAR, bytes.
        offset: u64,
        /// The value.
        value: u32,
        /// Written rather than read.
        write: bool,
        /// The model knows the register.
        known: bool,
    },
    /// Guest memory was mapped.
    Map {
        /// First I/O virtual address.
        iova: u64,
        /// Bytes.
        size: u64,
    },
    /// Guest memory was unmapped.
    Unmap {
        /// First I/O virtual address.
        iova: u64,
        /// Bytes; `u64::MAX` is everything.
        size: u64,
    },
    /// Bus mastering was turned on or off, by the driver or by a reset of the function.
    BusMaster {
        /// The device may access memory.
        on: bool,
    },
    /// The client is gone.
    Disconnect,
    /// A descriptor in memory is no longer what was fetched, when its turn comes. Only told to those who want it
    /// ([`Interest::audit`]).
    DescriptorChanged {
        /// Which ring.
        direction: Direction,
        /// Its index.
        index: u32,
        /// As it was fetched, and as it is used.
        fetched: [u8; DESCRIPTOR_SIZE],
        /// As it is in memory now.
        found: [u8; DESCRIPTOR_SIZE],
    },
    /// A marker is about to be written to a word that holds the marker already. Only told to those who want it
    /// ([`Interest::audit`]).
    PollSlot {
        /// tx descriptor.
        tx: u32,
        /// Address of the poll slot.
        address: u64,
    },
    /// An engine stopped on an error.
    Abort(Fault),
    /// An engine left its abort.
    Recovered,
    /// A device or core reset was acknowledged.
    Reset {
        /// What it names, see [`neuron_protocol::generation::Generation::reset_covers`]; `None` is the whole device.
        map: Option<u64>,
    },
    /// A request of the legacy mailbox is about to be answered.
    MailboxRequest {
        /// Sequence number.
        sequence: u8,
        /// Address of the request and its bytes.
        request: (u64, u32),
        /// Address of the response and its bytes.
        response: (u64, u32),
    },
    /// A mailbox request gets no answer, or that it failed.
    MailboxRefused(MailboxFault),
    /// The firmware answered a mailbox request.
    Mailbox {
        /// Command number.
        command: u8,
        /// Sequence number.
        sequence: u8,
        /// Status sent back.
        status: u8,
    },
}

/// Why a mailbox request is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MailboxFault {
    /// Its bytes are wrong.
    Malformed(MailboxError),
    /// Its address or the response's leads nowhere.
    Address {
        /// The address, as the device sees it.
        address: u64,
        /// Why.
        reason: Unmapped,
    },
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Doorbell {
                direction,
                count,
                tail,
            } => {
                write!(
                    f,
                    "doorbell {direction} +{count}, tail {} (ring id {})",
                    tail.index, tail.ring_id
                )
            }
            Self::Fetch {
                direction,
                index,
                count,
            } => write!(f, "fetch {direction} {index}..+{count}"),
            Self::Copy {
                tx,
                rx,
                source,
                destination,
                bytes,
            } => {
                write!(
                    f,
                    "copy tx {tx} -> rx {rx}: {bytes} bytes {source:#x} -> {destination:#x}"
                )
            }
            Self::MarkerSent { tx, address } => write!(f, "marker tx {tx} sent to {address:#x}"),
            Self::Marker { tx, address } => write!(f, "marker tx {tx} -> {address:#x}"),
            Self::Landed { destination, bytes } => {
                write!(f, "{bytes} bytes landed at {destination:#x}")
            }
            Self::Due { at } => write!(f, "work is done at {:.6} s", at.as_secs_f64()),
            Self::QueueReset { direction, dropped } => {
                write!(f, "reset {direction}, {dropped} descriptors dropped")
            }
            Self::Descriptor {
                direction,
                position,
                raw,
            } => {
                write!(
                    f,
                    "descriptor {direction} {}: {:032x}",
                    position.index,
                    u128::from_be_bytes(*raw)
                )
            }
            Self::Register {
                offset,
                value,
                write: false,
                ..
            } => write!(f, "read {offset:#x}: {value:#x}"),
            Self::Register { offset, value, .. } => write!(f, "write {offset:#x}: {value:#x}"),
            Self::Map { iova, size } => write!(f, "map {iova:#x}+{size:#x}"),
            Self::Unmap { size: u64::MAX, .. } => f.write_str("unmap everything"),
            Self::Unmap { iova, size } => write!(f, "unmap {iova:#x}+{size:#x}"),
            Self::BusMaster { on: true } => f.write_str("bus mastering on"),
            Self::BusMaster { on: false } => f.write_str("bus mastering off"),
            Self::DescriptorChanged {
                direction, index, ..
            } => write!(f, "descriptor {direction} {index} changed since its fetch"),
            Self::PollSlot { tx, address } => {
                write!(f, "marker tx {tx} finds the marker at {address:#x}")
            }
            Self::MailboxRequest {
                sequence,
                request,
                response,
            } => write!(
                f,
                "mailbox request {sequence} at {:#x}, answer at {:#x}",
                request.0, response.0
            ),
            Self::MailboxRefused(MailboxFault::Malformed(error)) => write!(f, "{error}"),
            Self::MailboxRefused(MailboxFault::Address { address, reason }) => {
                write!(f, "mailbox address {address:#x}: {reason}")
            }
            Self::Disconnect => f.write_str("client gone"),
            Self::Abort(fault) => write!(f, "abort: {fault}"),
            Self::Recovered => f.write_str("recovered from abort"),
            Self::Reset { map: None } => f.write_str("device reset"),
            Self::Reset { map: Some(map) } => write!(f, "core reset, map {map:#x}"),
            Self::Mailbox {
                command,
                sequence,
                status,
            } => {
                write!(
                    f,
                    "mailbox command {command} sequence {sequence}: status {status}"
                )
            }
        }
    }
}

/// Which events beyond the ordinary ones a consumer wants: they are many, and cost those who do not ask nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// [`EventKind::Register`].
    pub registers: bool,
    /// [`EventKind::Descriptor`].
    pub descriptors: bool,
    /// [`EventKind::DescriptorChanged`], [`EventKind::PollSlot`] and [`EventKind::MarkerSent`], which cost a second
    /// look at memory.
    pub audit: bool,
}

impl Interest {
    const fn covers(self, kind: &EventKind) -> bool {
        match kind {
            EventKind::Register { .. } => self.registers,
            EventKind::Descriptor { .. } => self.descriptors,
            EventKind::DescriptorChanged { .. }
            | EventKind::PollSlot { .. }
            | EventKind::MarkerSent { .. } => self.audit,
            _ => true,
        }
    }
}

/// Descriptors that came into the prefetch buffer together, in the order of the ring.
#[derive(Clone, Copy, Debug)]
pub struct Prefetched<'a> {
    /// Which ring.
    pub direction: Direction,
    /// Index of the first, and the ring id that the engine expected there.
    pub first: Pointer,
    /// Descriptors of the ring.
    pub length: u32,
    /// Their bytes as they were read.
    pub raw: &'a [[u8; DESCRIPTOR_SIZE]],
}

impl<'a> Prefetched<'a> {
    /// Each with its position.
    pub fn each(self) -> impl Iterator<Item = (Pointer, &'a [u8; DESCRIPTOR_SIZE])> {
        let Self { first, length, .. } = self;
        (0..)
            .zip(self.raw)
            .map(move |(nth, raw)| (first.advanced(nth, length), raw))
    }
}

/// A consumer of events.
pub trait Observer: Send {
    /// Sees one event, in order.
    fn event(&mut self, event: &Event);

    /// Sees descriptors that came together, if it wants to ([`Interest::descriptors`]). One event for each, unless it knows
    /// better.
    fn prefetched(&mut self, at: Duration, scope: Scope, prefetched: Prefetched<'_>) {
        let direction = prefetched.direction;
        for (position, raw) in prefetched.each() {
            let kind = EventKind::Descriptor {
                direction,
                position,
                raw: *raw,
            };
            self.event(&Event { at, scope, kind });
        }
    }

    /// What else it wants to see; asked once, when it is added.
    fn interest(&self) -> Interest {
        Interest::default()
    }
}

/// Names a consumer of one device, to remove it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserverId(u64);

struct Consumer {
    id: ObserverId,
    interest: Interest,
    observer: Box<dyn Observer>,
}

/// The consumers of one device.
#[derive(Default)]
pub struct Observers {
    consumers: Vec<Consumer>,
    union: Interest,
    now: Duration,
    added: u64,
}

impl Observers {
    /// Adds a consumer.
    pub fn add(&mut self, observer: Box<dyn Observer>) -> ObserverId {
        let id = ObserverId(self.added);
        self.added += 1;
        self.consumers.push(Consumer {
            id,
            interest: observer.interest(),
            observer,
        });
        self.unite();
        id
    }

    /// Removes a consumer, if it is still there.
    pub fn remove(&mut self, id: ObserverId) -> Option<Box<dyn Observer>> {
        let at = self
            .consumers
            .iter()
            .position(|consumer| consumer.id == id)?;
        let consumer = self.consumers.remove(at);
        self.unite();
        Some(consumer.observer)
    }

    fn unite(&mut self) {
        self.union = Interest::default();
        for Consumer { interest, .. } in &self.consumers {
            self.union.registers |= interest.registers;
            self.union.descriptors |= interest.descriptors;
            self.union.audit |= interest.audit;
        }
    }

    /// What anybody wants to see beyond the ordinary events.
    pub const fn interest(&self) -> Interest {
        self.union
    }

    /// Tells the device time of the events to come.
    pub const fn tick(&mut self, now: Duration) {
        self.now = now;
    }

    /// Shows descriptors that came together to every consumer that wants them.
    pub fn prefetched(&mut self, scope: Scope, prefetched: Prefetched<'_>) {
        for consumer in &mut self.consumers {
            if consumer.interest.descriptors {
                consumer.observer.prefetched(self.now, scope, prefetched);
            }
        }
    }

    /// Shows an event to every consumer that wants it.
    pub fn emit(&mut self, scope: Scope, kind: EventKind) {
        let event = Event {
            at: self.now,
            scope,
            kind,
        };
        for consumer in &mut self.consumers {
            if consumer.interest.covers(&kind) {
                consumer.observer.event(&event);
            }
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.consumers.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Log(Interest, Arc<Mutex<Vec<Event>>>);

    impl Observer for Log {
        fn event(&mut self, event: &Event) {
            self.1.lock().unwrap().push(*event);
        }

        fn interest(&self) -> Interest {
            self.0
        }
    }

    #[test]
    fn the_many_events_reach_only_those_who_ask() {
        let [few, many] = [Arc::default(), Arc::<Mutex<Vec<_>>>::default()];
        let registers = Interest {
            registers: true,
            ..Interest::default()
        };
        let mut observers = Observers::default();
        observers.add(Box::new(Log(Interest::default(), Arc::clone(&few))));
        assert_eq!(observers.interest(), Interest::default());
        let id = observers.add(Box::new(Log(registers, Arc::clone(&many))));
        assert_eq!(observers.interest(), registers);

        observers.tick(Duration::from_secs(7));
        let kind = EventKind::Register {
            offset: 4,
            value: 5,
            write: true,
            known: false,
        };
        observers.emit(Scope::Device, kind);
        observers.emit(Scope::Device, EventKind::Disconnect);
        let kinds = |log: &Mutex<Vec<Event>>| {
            let log = log.lock().unwrap();
            assert!(log.iter().all(|event| event.at.as_secs() == 7));
            log.iter().map(|event| event.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&few), [EventKind::Disconnect]);
        assert_eq!(kinds(&many), [kind, EventKind::Disconnect]);

        assert!(observers.remove(id).is_some());
        assert!(observers.remove(id).is_none(), "removed twice");
        assert_eq!(observers.interest(), Interest::default());
        observers.emit(Scope::Device, EventKind::Recovered);
        assert_eq!(many.lock().unwrap().len(), 2);
        assert_eq!(few.lock().unwrap().len(), 2);
    }
}

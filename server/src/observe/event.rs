//! What happens in a device, as typed events.
//!
//! Consumers observe, never influence. An event is built only if somebody listens, except for the few that the flight
//! recorder of each queue always keeps.
use std::fmt;

use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::Pointer;

use crate::udma::Fault;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
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
    /// Bytes landed.
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
    /// A queue of one direction was reset.
    QueueReset {
        /// Which ring.
        direction: Direction,
        /// Descriptors that were rung for and are dropped.
        dropped: u32,
    },
    /// An engine stopped on an error.
    Abort(Fault),
    /// An engine left its abort.
    Recovered,
    /// A device or core reset was acknowledged.
    Reset {
        /// Cores; `u32::MAX` for the whole device.
        map: u32,
    },
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
            Self::Marker { tx, address } => write!(f, "marker tx {tx} -> {address:#x}"),
            Self::QueueReset { direction, dropped } => {
                write!(f, "reset {direction}, {dropped} descriptors dropped")
            }
            Self::Abort(fault) => write!(f, "abort: {fault}"),
            Self::Recovered => f.write_str("recovered from abort"),
            Self::Reset { map: u32::MAX } => f.write_str("device reset"),
            Self::Reset { map } => write!(f, "core reset, map {map:#x}"),
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

/// A consumer of events.
pub trait Observer: Send {
    /// Sees one event, in order.
    fn event(&mut self, event: &Event);
}

/// The consumers of one device.
#[derive(Default)]
pub struct Observers(Vec<Box<dyn Observer>>);

impl Observers {
    /// Adds a consumer.
    pub fn add(&mut self, observer: Box<dyn Observer>) {
        self.0.push(observer);
    }

    /// Shows an event to every consumer.
    pub fn emit(&mut self, scope: Scope, kind: EventKind) {
        for observer in &mut self.0 {
            observer.event(&Event { scope, kind });
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

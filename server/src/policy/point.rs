//! The points at which policies are asked.
use std::fmt;

use neuron_protocol::registers::Direction;

/// A point at which a policy is asked, before the thing happens. Addresses are as the engine sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A doorbell write is about to move a tail.
    Doorbell {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// Which ring.
        direction: Direction,
        /// Descriptors.
        count: u32,
    },
    /// Descriptors are about to be read.
    Fetch {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// Which ring.
        direction: Direction,
        /// First index.
        index: u32,
        /// How many.
        count: u32,
    },
    /// Bytes are about to be moved: once per pair of descriptors, however many pieces they are moved in.
    Copy {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// tx descriptor.
        tx: u32,
        /// rx descriptor.
        rx: u32,
        /// From.
        source: u64,
        /// To.
        destination: u64,
        /// How many until one of the two descriptors is done.
        bytes: u32,
    },
    /// The completion marker is about to be written.
    Marker {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// tx descriptor.
        tx: u32,
        /// Address of the poll slot.
        address: u64,
    },
    /// A reset is about to be done and acknowledged.
    Reset {
        /// What it names, see [`neuron_protocol::generation::Generation::reset_covers`]; `None` is the whole device.
        map: Option<u64>,
    },
    /// A mailbox request is about to be executed and answered.
    Mailbox {
        /// Command number.
        command: u8,
        /// Sequence number.
        sequence: u8,
    },
    /// A register read is about to be answered.
    Register {
        /// Offset in the register BAR.
        offset: u64,
        /// What the register holds.
        value: u32,
    },
}

impl Point {
    /// Engine and queue, where there is one.
    pub const fn queue(&self) -> Option<(u8, u8)> {
        match *self {
            Self::Doorbell { engine, queue, .. }
            | Self::Fetch { engine, queue, .. }
            | Self::Copy { engine, queue, .. }
            | Self::Marker { engine, queue, .. } => Some((engine, queue)),
            Self::Reset { .. } | Self::Mailbox { .. } | Self::Register { .. } => None,
        }
    }

    /// Which ring, where only one is concerned.
    pub const fn direction(&self) -> Option<Direction> {
        match *self {
            Self::Doorbell { direction, .. } | Self::Fetch { direction, .. } => Some(direction),
            _ => None,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((engine, queue)) = self.queue() {
            write!(f, "eng {engine} q{queue} ")?;
        }
        match self {
            Self::Doorbell {
                direction, count, ..
            } => write!(f, "doorbell {direction} +{count}"),
            Self::Fetch {
                direction,
                index,
                count,
                ..
            } => write!(f, "fetch {direction} {index}..+{count}"),
            Self::Copy {
                tx,
                rx,
                source,
                destination,
                bytes,
                ..
            } => write!(
                f,
                "copy tx {tx} -> rx {rx}: {bytes} bytes {source:#x} -> {destination:#x}"
            ),
            Self::Marker { tx, address, .. } => write!(f, "marker tx {tx} -> {address:#x}"),
            Self::Reset { map: None } => f.write_str("reset of the device"),
            Self::Reset { map: Some(map) } => write!(f, "reset of cores {map:#x}"),
            Self::Mailbox { command, sequence } => {
                write!(f, "mailbox command {command} sequence {sequence}")
            }
            Self::Register { offset, value } => write!(f, "read of {offset:#x} ({value:#x})"),
        }
    }
}

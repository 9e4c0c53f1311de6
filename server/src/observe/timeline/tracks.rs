//! Names and numbers of tracks, events and annotations.
use neuron_protocol::registers::Direction;

use super::proto::{
    CounterDescriptor, InternedData, InternedName, Ordering, TrackDescriptor, Unit,
};

/// A track of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Track {
    /// The device: resets, mailbox, maps. The others are below it.
    Device,
    /// Sampled register accesses.
    Registers,
    /// A queue: aborts. Its directions and counters are below it.
    Queue {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// Which part of it.
        part: Part,
    },
}

/// A part of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The whole.
    Whole,
    /// One ring's work.
    Ring(Direction),
    /// Descriptors rung for and not done, of one ring.
    Depth(Direction),
    /// Bytes of m2s descriptors fetched and not yet landed.
    InFlight,
}

impl Part {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 6] = [
        Self::Whole,
        Self::Ring(Direction::M2s),
        Self::Ring(Direction::S2m),
        Self::Depth(Direction::M2s),
        Self::Depth(Direction::S2m),
        Self::InFlight,
    ];

    fn number(self) -> u8 {
        match self {
            Self::Whole => 0,
            Self::Ring(Direction::M2s) => 1,
            Self::Ring(Direction::S2m) => 2,
            Self::Depth(Direction::M2s) => 3,
            Self::Depth(Direction::S2m) => 4,
            Self::InFlight => 5,
        }
    }

    const fn unit(self) -> Option<Unit> {
        match self {
            Self::Whole | Self::Ring(_) => None,
            Self::Depth(_) => Some(Unit::Count),
            Self::InFlight => Some(Unit::SizeBytes),
        }
    }
}

/// First bytes of every track number, so that traces can be put together with others: "ND".
const SPACE: u64 = 0x4e44 << 48;

impl Track {
    /// Perfetto's number for it, the same in every trace.
    pub fn uuid(self, device: u8) -> u64 {
        let (engine, queue, part) = match self {
            Self::Device => (0, 0, 0xff),
            Self::Registers => (0, 0, 0xfe),
            Self::Queue {
                engine,
                queue,
                part,
            } => (engine, queue, part.number()),
        };
        SPACE | u64::from(u32::from_be_bytes([device, engine, queue, part]))
    }

    /// The device and track that a number means, if it is one of ours.
    pub fn from_uuid(uuid: u64) -> Option<(u8, Self)> {
        let low = u32::try_from(uuid ^ SPACE).ok()?;
        let [device, engine, queue, part] = low.to_be_bytes();
        let track = match part {
            0xff => Self::Device,
            0xfe => Self::Registers,
            number => Self::Queue {
                engine,
                queue,
                part: Part::ALL.into_iter().find(|part| part.number() == number)?,
            },
        };
        Some((device, track))
    }

    /// The packet that introduces it. `title` names the device.
    pub fn describe(self, device: u8, title: &str) -> TrackDescriptor {
        let (name, parent, rank) = match self {
            Self::Device => (title.to_owned(), None, i32::from(device)),
            Self::Registers => ("registers (sampled)".to_owned(), Some(Self::Device), -1),
            Self::Queue {
                engine,
                queue,
                part: Part::Whole,
            } => (
                format!("engine {engine} queue {queue}"),
                Some(Self::Device),
                i32::from(engine) << 8 | i32::from(queue),
            ),
            Self::Queue {
                engine,
                queue,
                part,
            } => {
                let name = match part {
                    Part::Ring(direction) => direction.name().to_owned(),
                    Part::Depth(direction) => format!("{direction} queue depth"),
                    Part::Whole | Part::InFlight => "bytes in flight".to_owned(),
                };
                let parent = Self::Queue {
                    engine,
                    queue,
                    part: Part::Whole,
                };
                (name, Some(parent), i32::from(part.number()))
            }
        };
        let unit = match self {
            Self::Queue { part, .. } => part.unit(),
            Self::Device | Self::Registers => None,
        };
        TrackDescriptor {
            uuid: Some(self.uuid(device)),
            name: Some(name),
            parent_uuid: parent.map(|parent| parent.uuid(device)),
            counter: unit.map(|unit| CounterDescriptor {
                unit: Some(unit.into()),
            }),
            child_ordering: unit.is_none().then_some(Ordering::Explicit.into()),
            sibling_order_rank: Some(rank),
            description: None,
        }
    }
}

/// Declares names that are written once per sequence and then meant by number.
macro_rules! interned {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant),+
        }

        impl $name {
            const ALL: &[Self] = &[$(Self::$variant),+];

            /// The words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),+
                }
            }

            /// The number that stands for them; Perfetto reserves 0.
            pub const fn iid(self) -> u64 {
                self as u64 + 1
            }

            fn table() -> Vec<InternedName> {
                Self::ALL
                    .iter()
                    .map(|name| InternedName {
                        iid: Some(name.iid()),
                        name: Some(name.text().to_owned()),
                    })
                    .collect()
            }
        }
    };
}

interned! {
    /// Names of events.
    Name {
        /// A tail moved.
        Doorbell = "doorbell",
        /// Descriptors were read.
        Fetch = "fetch",
        /// What one m2s doorbell added, while it is worked on.
        Batch = "batch",
        /// What one s2m doorbell added, while it is filled.
        Buffers = "buffers",
        /// One descriptor.
        Descriptor = "descriptor",
        /// A completion marker landed.
        Marker = "marker",
        /// A descriptor with the data memory barrier was reached.
        Dmb = "barrier (dmb)",
        /// A descriptor with the write barrier was reached.
        WriteBarrier = "barrier (write)",
        /// An rx descriptor with strong-order write was reached.
        StrongOrder = "barrier (strong order)",
        /// A ring was reset.
        QueueReset = "queue reset",
        /// An engine stopped.
        Abort = "abort",
        /// It goes on.
        Recovered = "recovered",
        /// The device was reset.
        DeviceReset = "device reset",
        /// Cores were reset.
        CoreReset = "core reset",
        /// The firmware answered.
        Mailbox = "mailbox",
        /// Guest memory appeared.
        Map = "map",
        /// Guest memory went.
        Unmap = "unmap",
        /// The client left.
        Disconnect = "client gone",
        /// Events that found no room.
        Lost = "events lost",
        /// The file is as large as it may get.
        Limit = "size limit reached: the time line ends here",
    }
}

interned! {
    /// Names of annotations.
    Key {
        /// Descriptors of a doorbell, fetch or batch.
        Descriptors = "descriptors",
        /// Tail index.
        Tail = "tail",
        /// Ring id.
        RingId = "ring id",
        /// Index in the ring.
        Index = "index",
        /// Bytes.
        Bytes = "bytes",
        /// Where bytes come from, as the engine sees it.
        Source = "source",
        /// Where they go.
        Destination = "destination",
        /// An address.
        Address = "address",
        /// Why.
        Cause = "cause",
        /// Descriptors dropped.
        Dropped = "dropped",
        /// Cores, a bit each.
        Cores = "cores",
        /// Mailbox command.
        Command = "command",
        /// Mailbox sequence number.
        Sequence = "sequence",
        /// Mailbox status.
        Status = "status",
        /// Register offset.
        Offset = "offset",
        /// Register value.
        Value = "value",
        /// How many.
        Count = "count",
    }
}

/// Both tables.
pub fn interned_data() -> InternedData {
    InternedData {
        event_names: Name::table(),
        debug_annotation_names: Key::table(),
    }
}

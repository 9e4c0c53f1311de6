//! What a device says about itself on request: plain data, filled by the function, rendered by `render`.
//!
//! A [`DeviceReport`] without its `dump` parts answers `ctl status`; with them it answers `ctl dump`. Nothing here is
//! read back by the device.
use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::budget::BudgetReport;

pub use neuron_protocol::registers::Direction;

/// Events of a queue in a [`Detail::Live`] report.
pub const LIVE_EVENTS: usize = 16;

/// How much a report holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Queues, counters, maps.
    Status,
    /// Also each queue's last events, [`LIVE_EVENTS`] at most: what `show --live` asks for again and again.
    Live,
    /// Also decoded rings, flight recorders, registers.
    Dump,
}

/// Something that can give an account of itself. It must not change by being asked.
pub trait Account {
    /// Its state now.
    fn report(&self, detail: Detail) -> DeviceReport;
}

/// What a queue waits for: the answer to "why is my copy stuck".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Wait {
    /// Nothing: every descriptor that was rung for is done.
    Nothing,
    /// Its turn; it runs in the next slice.
    Turn,
    /// m2s descriptors are ready, no s2m buffer is left to take their bytes.
    S2mDoorbell,
    /// s2m buffers were rung for ahead, no m2s descriptor is ready to fill them.
    M2sDoorbell,
    /// The packet's LAST descriptor: a FIRST was fetched and the tail was reached before its LAST.
    LastDescriptor,
    /// The ring of this direction has no base or no length; it was never initialised since the last reset.
    RingSetup {
        /// The ring in question.
        #[serde(serialize_with = "name", deserialize_with = "direction")]
        direction: Direction,
    },
    /// Prefetch or scheduling is off in the queue's cfg register.
    QueueEnable {
        /// The ring in question.
        #[serde(serialize_with = "name", deserialize_with = "direction")]
        direction: Direction,
    },
    /// The PCI command register forbids DMA.
    BusMaster,
    /// The engine is aborted; it does no work until the driver recovers it.
    Recovery {
        /// What went wrong: queue, descriptor, address, reason.
        cause: String,
    },
    /// The client's answer to a DMA message: the address is in guest RAM without a shared file.
    DmaReply {
        /// Address asked for.
        iova: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// A moment in time: a policy delays this queue.
    Time {
        /// Microseconds left.
        left_us: u64,
        /// The policy.
        why: String,
    },
}

/// One doorbell, as counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doorbell {
    /// Ring that was rung.
    #[serde(serialize_with = "name", deserialize_with = "direction")]
    pub direction: Direction,
    /// Value written: descriptors added to the tail.
    pub count: u32,
    /// Microseconds since, if the device was told the time.
    pub age_us: Option<u64>,
}

/// One ring, as the registers show it. Indices and lengths are in descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingReport {
    /// Ring base as programmed, host bit included.
    pub base: u64,
    /// Ring length.
    pub length: u32,
    /// Next descriptor to fetch.
    pub head: u32,
    /// Ring id of the head's lap.
    pub head_ring_id: u8,
    /// One past the last descriptor rung for.
    pub tail: u32,
    /// Ring id of the tail's lap.
    pub tail_ring_id: u8,
    /// Descriptors rung for and not yet done.
    pub outstanding: u32,
    /// Doorbell writes since the queue's reset.
    pub doorbells: u64,
    /// Descriptors done since the queue's reset.
    pub done: u64,
}

/// One descriptor of a ring, decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorReport {
    /// Position in the ring.
    pub index: u32,
    /// `head`, `tail`, both or neither.
    pub at: Cow<'static, str>,
    /// The four little-endian words; empty if the ring itself could not be read.
    pub raw: Vec<u32>,
    /// Length, flags, ring id, operation: or why it could not be read.
    pub text: String,
    /// Where its address leads: `guest 0x12345000`, `HBM 0x100000`, `not mapped`.
    pub target: String,
}

/// One queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReport {
    /// Engine number, as the driver counts.
    pub engine: u16,
    /// Queue of that engine.
    pub queue: u8,
    /// What it waits for.
    pub wait: Wait,
    /// The last doorbell.
    pub last_doorbell: Option<Doorbell>,
    /// Transmit ring.
    pub m2s: RingReport,
    /// Receive ring.
    pub s2m: RingReport,
    /// Descriptors near head and tail of the transmit ring (dump only).
    pub m2s_descriptors: Vec<DescriptorReport>,
    /// Descriptors near head and tail of the receive ring (dump only).
    pub s2m_descriptors: Vec<DescriptorReport>,
    /// The flight recorder, oldest first: seconds of device time and what happened (live and dump).
    pub events: Vec<String>,
}

/// One entry of the guest map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapReport {
    /// First I/O virtual address.
    pub iova: u64,
    /// Length, bytes.
    pub size: u64,
    /// `rw`, `r-`, `-w` or `--`.
    pub access: String,
    /// `shared`, `message`, `hbm` or `hole`.
    pub backing: String,
}

/// One register's value (dump only).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterReport {
    /// Block and register: `eng 32 (D2H) m2s q0 drtp`.
    pub name: String,
    /// Offset in the register window.
    pub offset: u64,
    /// Value a read would give.
    pub value: u32,
}

/// A register the driver touched that has no behaviour here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmodelledReport {
    /// Register name or block.
    pub name: String,
    /// Offset in the register window.
    pub offset: u64,
    /// Reads so far.
    pub reads: u64,
    /// Writes so far.
    pub writes: u64,
}

/// Totals since the process started. Monotonic over resets and clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Doorbell writes, both directions.
    pub doorbells: u64,
    /// Descriptors done, both directions.
    pub descriptors: u64,
    /// Completion markers written: batches, as the kernel driver counts them.
    pub batches: u64,
    /// Bytes moved by descriptors.
    pub bytes: u64,
    /// Times that an engine aborted. Errors that software masked are not in here.
    pub errors: u64,
    /// Descriptors that asked for an interrupt (`INT_EN`), whether or not one could be sent.
    pub interrupts: u64,
    /// Interrupts sent; without `--msix` there are none.
    pub interrupts_sent: u64,
    /// Interrupts raised that nobody will hear of: the guest had not enabled MSI-X, or its eventfd could not be written.
    pub interrupts_lost: u64,
    /// Device and core resets acknowledged.
    pub resets: u64,
    /// Slices of engine work.
    pub slices: u64,
    /// Register reads served.
    pub register_reads: u64,
    /// Register writes served.
    pub register_writes: u64,
    /// Entries written into notification queues.
    pub notifications: u64,
    /// Entries that had nowhere to go.
    pub notifications_lost: u64,
}

/// The connection, as the wire counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireReport {
    /// Clients so far.
    pub connections: u64,
    /// Clients turned away because another was connected.
    pub turned_away: u64,
    /// Messages from the present client, or the last.
    pub messages: u64,
    /// Of them writes that wait for no answer.
    pub posted_writes: u64,
    /// Of them refused.
    pub refused: u64,
    /// System calls that received from this client.
    pub receives: u64,
    /// System calls that sent to it.
    pub sends: u64,
    /// System calls that waited, for any client.
    pub polls: u64,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Product name, as `--product` takes it.
    pub product: String,
    /// Platform name, as `--platform` takes it.
    pub platform: String,
    /// Routing id.
    pub routing_id: u8,
    /// Serial number.
    pub serial: u64,
    /// A client is connected. Filled in by whoever owns the connection, not by the function; `wire` as well.
    pub connected: bool,
    /// The guest works on a private copy of its memory (QEMU with share=off): nothing the device writes reaches it.
    pub private_memory: bool,
    /// The connection.
    pub wire: WireReport,
    /// The guest allows DMA.
    pub bus_master: bool,
    /// Memory behind HBM pages that were touched, bytes.
    pub hbm_resident: u64,
    /// Totals.
    pub counters: Counters,
    /// Aborted engines: number and cause.
    pub aborted: Vec<(u16, String)>,
    /// Queues that were ever rung or initialised, most recently rung first.
    pub queues: Vec<QueueReport>,
    /// Registers touched that have no behaviour, most touched first.
    pub unmodelled: Vec<UnmodelledReport>,
    /// What an adversary decided, in words, if there is one.
    pub adversary: Option<String>,
    /// How much of the driver's patience batches used, if books are kept.
    #[serde(skip_deserializing)]
    pub budget: Option<BudgetReport>,
    /// The guest map.
    pub maps: Vec<MapReport>,
    /// Registers that differ from their reset value (dump only).
    pub registers: Vec<RegisterReport>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde calls"
)]
fn name<S: Serializer>(direction: &Direction, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(direction.name())
}

fn direction<'de, D: Deserializer<'de>>(from: D) -> Result<Direction, D::Error> {
    let name = Cow::<str>::deserialize(from)?;
    Direction::BOTH
        .into_iter()
        .find(|direction| direction.name() == name)
        .ok_or_else(|| serde::de::Error::custom(format!("{name} is no direction")))
}

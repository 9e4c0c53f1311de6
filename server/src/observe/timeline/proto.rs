//! The part of Perfetto's trace format that a time line needs.
//!
//! Kept by hand, field numbers as in `protos/perfetto/trace` of the Perfetto project (stable by that project's rules); the
//! test `server/tests/timeline.rs` decodes what is written with bindings made from the published files.
use prost::{Message, Oneof};

/// `Trace.packet`: the only field of the file.
const TRACE_PACKET_TAG: u32 = 1;

/// `trusted_packet_sequence_id` of packets of no device; devices count up from 1.
pub const HEAD_SEQUENCE: u32 = 1000;
/// The same for packets that `merge` adds for the guest.
pub const GUEST_SEQUENCE: u32 = 1001;

/// `TracePacket.SequenceFlags`.
pub mod sequence_flags {
    /// What was interned before is forgotten.
    pub const INCREMENTAL_STATE_CLEARED: u32 = 1;
    /// The packet uses interned strings.
    pub const NEEDS_INCREMENTAL_STATE: u32 = 2;
}

/// `BuiltinClock` numbers.
pub mod clock {
    /// `BUILTIN_CLOCK_REALTIME`.
    pub const REALTIME: u32 = 1;
    /// `BUILTIN_CLOCK_MONOTONIC`.
    pub const MONOTONIC: u32 = 3;
    /// `BUILTIN_CLOCK_BOOTTIME`.
    pub const BOOTTIME: u32 = 6;
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub enum EventType {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// `CounterDescriptor.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub enum Unit {
    Unspecified = 0,
    TimeNs = 1,
    Count = 2,
    SizeBytes = 3,
}

/// `TrackDescriptor.ChildTracksOrdering`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub enum Ordering {
    Unknown = 0,
    Lexicographic = 1,
    Chronological = 2,
    Explicit = 3,
}

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(uint32, optional, tag = "42")]
    pub previous_packet_dropped: Option<u32>,
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    #[prost(oneof = "Data", tags = "6, 11, 60")]
    pub data: Option<Data>,
}

/// `TracePacket.data`.
#[derive(Clone, PartialEq, Oneof)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub enum Data {
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

/// `ClockSnapshot`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(enumeration = "EventType", optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
}

/// `DebugAnnotation`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    #[prost(oneof = "Value", tags = "3, 6, 7")]
    pub value: Option<Value>,
}

/// `DebugAnnotation.value`.
#[derive(Clone, PartialEq, Eq, Oneof)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub enum Value {
    #[prost(uint64, tag = "3")]
    Uint(u64),
    #[prost(string, tag = "6")]
    String(String),
    /// Shown in hexadecimal.
    #[prost(uint64, tag = "7")]
    Pointer(u64),
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    #[prost(enumeration = "Ordering", optional, tag = "11")]
    pub child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
    #[prost(string, optional, tag = "14")]
    pub description: Option<String>,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct CounterDescriptor {
    #[prost(enumeration = "Unit", optional, tag = "3")]
    pub unit: Option<i32>,
}

/// `InternedData`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<InternedName>,
}

/// `EventName`, `DebugAnnotationName`.
#[derive(Clone, PartialEq, Eq, Message)]
#[expect(missing_docs, reason = "Perfetto's names")]
pub struct InternedName {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// Appends a packet to a file's bytes.
pub fn append(file: &mut Vec<u8>, packet: &TracePacket) {
    prost::encoding::message::encode(TRACE_PACKET_TAG, packet, file);
}

/// The packets of a file.
#[derive(Clone, Copy, Debug)]
pub struct Packets<'a>(pub &'a [u8]);

/// Why a file is no time line.
#[derive(Debug, thiserror::Error)]
#[error("byte {at}: {error}")]
pub struct BadTrace {
    /// Offset of the packet.
    pub at: usize,
    /// What is wrong.
    pub error: prost::DecodeError,
}

impl Packets<'_> {
    /// Decodes every packet in order; returns the bytes that these are. A packet cut off at the end of the file is left
    /// out, as a crash leaves it.
    ///
    /// # Errors
    /// Bytes that are no trace.
    pub fn each(self, mut see: impl FnMut(TracePacket)) -> Result<usize, BadTrace> {
        let mut rest = self.0;
        while !rest.is_empty() {
            let at = self.0.len() - rest.len();
            let bad = |error| BadTrace { at, error };
            let mut next = rest;
            let header = prost::encoding::decode_key(&mut next)
                .and_then(|key| Ok((key, prost::encoding::decode_varint(&mut next)?)));
            // Ten bytes hold any header.
            let ((tag, wire), len) = match header {
                Ok(header) => header,
                Err(_) if rest.len() < 10 => return Ok(at),
                Err(error) => return Err(bad(error)),
            };
            if tag != TRACE_PACKET_TAG || wire != prost::encoding::WireType::LengthDelimited {
                #[expect(deprecated, reason = "the only way to make one")]
                return Err(bad(prost::DecodeError::new("no TracePacket")));
            }
            let Some((packet, tail)) = usize::try_from(len)
                .ok()
                .and_then(|len| next.split_at_checked(len))
            else {
                return Ok(at);
            };
            see(TracePacket::decode(packet).map_err(bad)?);
            rest = tail;
        }
        Ok(self.0.len())
    }
}

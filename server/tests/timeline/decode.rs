//! Time lines decoded by another implementation of protobuf, from Perfetto's published schema, and interpreted as
//! Perfetto does: interned names resolved per sequence, slices nested per track.
use std::collections::BTreeMap;
use std::path::Path;

use protobuf::reflect::{FileDescriptor, ReflectFieldRef, ReflectValueRef};
use protobuf::{MessageDyn, UnknownValueRef};
use serde_json::{Map, Value, json};

/// Every packet as JSON, with the names of the schema.
pub fn packets(trace: &[u8]) -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/timeline");
    let parsed = protobuf_parse::Parser::new()
        .pure()
        .include(&directory)
        .input(directory.join("trace.proto"))
        .parse_and_typecheck()
        .unwrap();
    let files = FileDescriptor::new_dynamic_fds(parsed.file_descriptors, &[]).unwrap();
    let descriptor = files[0].message_by_package_relative_name("Trace").unwrap();
    let message = descriptor.parse_from_bytes(trace).expect("no protobuf");
    let Value::Array(packets) = message_value(&*message)["packet"].take() else {
        panic!("no packets");
    };
    packets
}

fn message_value(message: &dyn MessageDyn) -> Value {
    let descriptor = message.descriptor_dyn();
    let unknown: Vec<(u32, UnknownValueRef<'_>)> = message
        .special_fields_dyn()
        .unknown_fields()
        .iter()
        .collect();
    assert!(
        unknown.is_empty(),
        "{descriptor}: not of the schema: {unknown:?}"
    );
    let mut object = Map::new();
    for field in descriptor.fields() {
        let value = match field.get_reflect(message) {
            ReflectFieldRef::Optional(value) => match value.value() {
                Some(value) => single(value),
                None => continue,
            },
            ReflectFieldRef::Repeated(values) if values.is_empty() => continue,
            ReflectFieldRef::Repeated(values) => values.into_iter().map(single).collect(),
            ReflectFieldRef::Map(_) => panic!("the schema has no map"),
        };
        object.insert(field.name().to_owned(), value);
    }
    Value::Object(object)
}

fn single(value: ReflectValueRef<'_>) -> Value {
    match value {
        ReflectValueRef::U32(n) => json!(n),
        ReflectValueRef::U64(n) => json!(n),
        ReflectValueRef::I32(n) => json!(n),
        ReflectValueRef::I64(n) => json!(n),
        ReflectValueRef::F32(n) => json!(n),
        ReflectValueRef::F64(n) => json!(n),
        ReflectValueRef::Bool(b) => json!(b),
        ReflectValueRef::String(text) => json!(text),
        ReflectValueRef::Bytes(bytes) => json!(bytes),
        ReflectValueRef::Enum(descriptor, number) => {
            let name = descriptor.value_by_number(number);
            json!(name.expect("a number of the schema").name())
        }
        ReflectValueRef::Message(message) => message_value(&*message),
    }
}

/// A slice or an instant.
#[derive(Clone, Debug)]
pub struct Span {
    pub name: String,
    pub begin: u64,
    /// The same for an instant; none if it never ended.
    pub end: Option<u64>,
    pub flows: Vec<u64>,
    pub annotations: BTreeMap<String, Value>,
    /// Slices around it.
    pub depth: usize,
    pub instant: bool,
}

/// One track.
#[derive(Clone, Debug, Default)]
pub struct Track {
    pub parent: Option<String>,
    pub spans: Vec<Span>,
    pub counter: Vec<(u64, i64)>,
}

/// Tracks by path, such as `nd0 trn2/engine 36 queue 0/m2s`.
#[derive(Debug, Default)]
pub struct Trace {
    pub tracks: BTreeMap<String, Track>,
    /// Packets that say that some before them were dropped.
    pub gaps: usize,
}

impl Trace {
    pub fn track(&self, path: &str) -> &Track {
        self.tracks
            .get(path)
            .unwrap_or_else(|| panic!("no track {path}: {:?}", self.tracks.keys()))
    }
}

#[derive(Default)]
struct Sequence {
    ready: bool,
    names: BTreeMap<u64, String>,
    keys: BTreeMap<u64, String>,
}

#[expect(
    clippy::too_many_lines,
    reason = "one pass over the packets, one over the events"
)]
/// Interprets a trace, and panics at anything that Perfetto would drop or count as an error.
pub fn trace(bytes: &[u8]) -> Trace {
    let mut result = Trace::default();
    let mut sequences = BTreeMap::<u64, Sequence>::new();
    let mut paths = BTreeMap::<u64, String>::new();
    let mut events = Vec::new();
    for packet in packets(bytes) {
        let id = packet["trusted_packet_sequence_id"]
            .as_u64()
            .expect("a sequence");
        let sequence = sequences.entry(id).or_default();
        if packet["previous_packet_dropped"].as_u64() == Some(1) {
            result.gaps += 1;
            sequence.ready = false;
        }
        let flags = packet["sequence_flags"].as_u64().unwrap_or(0);
        if flags & 1 != 0 {
            *sequence = Sequence {
                ready: true,
                ..Sequence::default()
            };
        }
        assert!(
            flags & 2 == 0 || sequence.ready,
            "names are not known: {packet}"
        );
        let table = |data: &Value| -> Vec<(u64, String)> {
            let entry = |entry: &Value| {
                (
                    entry["iid"].as_u64().unwrap(),
                    entry["name"].as_str().unwrap().to_owned(),
                )
            };
            data.as_array()
                .map_or(Vec::new(), |all| all.iter().map(entry).collect())
        };
        sequence
            .names
            .extend(table(&packet["interned_data"]["event_names"]));
        sequence
            .keys
            .extend(table(&packet["interned_data"]["debug_annotation_names"]));
        if let Some(descriptor) = packet.get("track_descriptor") {
            let name = descriptor["name"].as_str().unwrap().to_owned();
            let parent = descriptor["parent_uuid"]
                .as_u64()
                .map(|id| paths[&id].clone());
            let path = parent
                .as_ref()
                .map_or(name.clone(), |parent| format!("{parent}/{name}"));
            paths.insert(descriptor["uuid"].as_u64().unwrap(), path.clone());
            result.tracks.entry(path).or_default().parent = parent;
        }
        if let Some(event) = packet.get("track_event") {
            let at = packet["timestamp"].as_u64().expect("a time");
            let path = paths[&event["track_uuid"].as_u64().unwrap()].clone();
            let name = match event["name_iid"].as_u64() {
                Some(iid) => Some(sequence.names[&iid].clone()),
                None => event["name"].as_str().map(str::to_owned),
            };
            let mut annotations = BTreeMap::new();
            for annotation in event["debug_annotations"].as_array().unwrap_or(&Vec::new()) {
                let key = match annotation["name_iid"].as_u64() {
                    Some(iid) => sequence.keys[&iid].clone(),
                    None => annotation["name"].as_str().unwrap().to_owned(),
                };
                let value = ["uint_value", "string_value", "pointer_value"]
                    .iter()
                    .find_map(|kind| annotation.get(kind))
                    .unwrap();
                annotations.insert(key, value.clone());
            }
            events.push((at, path, name, annotations, event.clone()));
        }
    }
    // Perfetto sorts by time; events of one time stay in order.
    events.sort_by_key(|(at, ..)| *at);
    let mut open = BTreeMap::<String, Vec<usize>>::new();
    for (at, path, name, annotations, event) in events {
        let track = result.tracks.get_mut(&path).unwrap();
        let stack = open.entry(path.clone()).or_default();
        let span = || Span {
            name: name.clone().expect("a name"),
            begin: at,
            end: None,
            flows: event["flow_ids"].as_array().map_or(Vec::new(), |ids| {
                ids.iter().map(|id| id.as_u64().unwrap()).collect()
            }),
            annotations: annotations.clone(),
            depth: stack.len(),
            instant: false,
        };
        match event["type"].as_str().unwrap() {
            "TYPE_SLICE_BEGIN" => {
                track.spans.push(span());
                stack.push(track.spans.len() - 1);
            }
            "TYPE_SLICE_END" => {
                let at_index = stack
                    .pop()
                    .unwrap_or_else(|| panic!("{path}: an end of nothing at {at}"));
                track.spans[at_index].end = Some(at);
            }
            "TYPE_INSTANT" => {
                let span = Span {
                    end: Some(at),
                    instant: true,
                    ..span()
                };
                track.spans.push(span);
            }
            "TYPE_COUNTER" => track
                .counter
                .push((at, event["counter_value"].as_i64().unwrap())),
            other => panic!("{other}"),
        }
    }
    result
}

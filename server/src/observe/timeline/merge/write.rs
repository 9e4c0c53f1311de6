//! The guest's half as packets, in the device's time.
use std::collections::{BTreeMap, HashMap};

use super::Statement;
use super::ftrace::{Ftrace, Meaning};
use super::pair::{GuestHalf, Pairing, RESOLUTION};
use crate::observe::timeline::proto::{
    self, Data, DebugAnnotation, EventType, GUEST_SEQUENCE, Ordering, TracePacket, TrackDescriptor,
    TrackEvent, Value,
};

/// Track numbers of the guest: "NG".
const SPACE: u64 = 0x4e47 << 48;
const ROOT: u64 = SPACE;

/// Appends the guest's tracks: one per task, each event an instant, polls as slices, flows to and from the device.
pub fn append(out: &mut Vec<u8>, ftrace: &Ftrace, guest: &GuestHalf, pairing: &Pairing) {
    let fit = &pairing.fit;
    track(
        out,
        ROOT,
        None,
        "guest",
        Some(format!("clocks: {}", Statement(fit))),
    );
    let statement = TrackEvent {
        name: Some("clocks joined".to_owned()),
        debug_annotations: vec![
            text("clocks", Statement(fit).to_string()),
            number("uncertainty ns", fit.uncertainty),
        ],
        ..event(EventType::Instant, ROOT)
    };
    let first = ftrace.events.first().map_or(0, |event| event.at);
    packet(out, fit.device(first), statement);

    let mut flows = HashMap::new();
    for (start, batch) in &pairing.pairs {
        let start = guest.starts[*start];
        flows.insert(start.event, batch.flow);
        if let Some((done, _)) = start.done {
            flows.insert(done, batch.flow);
        }
    }
    let mut tasks = BTreeMap::<&str, (u64, bool)>::new();
    for (at_index, guest_event) in ftrace.events.iter().enumerate() {
        let next = SPACE | (tasks.len() as u64 + 1);
        let (task, waiting) = tasks.entry(&guest_event.task).or_insert_with(|| {
            track(out, next, Some(ROOT), &guest_event.task, None);
            (next, false)
        });
        // An end is drawn where it is certain to be past.
        let done = matches!(guest_event.meaning, Meaning::Done { .. });
        let at = fit.device(guest_event.at + if done { RESOLUTION } else { 0 });
        if guest_event.name == "neuron_done" && std::mem::take(waiting) {
            packet(out, at, event(EventType::SliceEnd, *task));
        }
        let kind = if guest_event.name == "neuron_wait" && !std::mem::replace(waiting, true) {
            EventType::SliceBegin
        } else {
            EventType::Instant
        };
        let drawn = TrackEvent {
            name: Some(guest_event.name.clone()),
            debug_annotations: vec![
                text("event", guest_event.text.clone()),
                number("cpu", guest_event.cpu.into()),
                number("guest time ns", guest_event.at),
            ],
            flow_ids: flows.get(&at_index).copied().into_iter().collect(),
            ..event(kind, *task)
        };
        packet(out, at, drawn);
    }
    let last = ftrace.events.last().map_or(0, |event| event.at);
    for (task, waiting) in tasks.into_values() {
        if waiting {
            packet(out, fit.device(last), event(EventType::SliceEnd, task));
        }
    }
}

fn event(kind: EventType, uuid: u64) -> TrackEvent {
    TrackEvent {
        r#type: Some(kind.into()),
        track_uuid: Some(uuid),
        ..TrackEvent::default()
    }
}

fn text(name: &str, value: String) -> DebugAnnotation {
    annotation(name, Value::String(value))
}

fn number(name: &str, value: u64) -> DebugAnnotation {
    annotation(name, Value::Uint(value))
}

fn annotation(name: &str, value: Value) -> DebugAnnotation {
    DebugAnnotation {
        name_iid: None,
        name: Some(name.to_owned()),
        value: Some(value),
    }
}

fn track(
    out: &mut Vec<u8>,
    uuid: u64,
    parent: Option<u64>,
    name: &str,
    description: Option<String>,
) {
    let descriptor = TrackDescriptor {
        uuid: Some(uuid),
        name: Some(name.to_owned()),
        parent_uuid: parent,
        counter: None,
        child_ordering: Some(Ordering::Chronological.into()),
        // Above the devices.
        sibling_order_rank: Some(-1),
        description,
    };
    append_packet(out, None, Data::TrackDescriptor(descriptor));
}

fn packet(out: &mut Vec<u8>, at: u64, event: TrackEvent) {
    append_packet(out, Some(at), Data::TrackEvent(event));
}

fn append_packet(out: &mut Vec<u8>, at: Option<u64>, data: Data) {
    let packet = TracePacket {
        timestamp: at,
        trusted_packet_sequence_id: Some(GUEST_SEQUENCE),
        data: Some(data),
        ..TracePacket::default()
    };
    proto::append(out, &packet);
}

//! Events become packets.
//!
//! What is drawn is decided here, from the events alone, on the writer's thread. A slice begins where the device's event
//! before it was: the device is one thread, so that is when it began to work on this.
use std::collections::HashMap;
use std::num::NonZeroU32;

use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::Generation;
use neuron_protocol::registers::queue::Pointer;
use neuron_protocol::registers::{Direction, RegisterName};

use super::channel::Stamped;
use super::proto::{
    self, Data, DebugAnnotation, EventType, TracePacket, TrackEvent, Value, sequence_flags,
};
use super::ring::{Fetched, Open, Ring};
use super::tracks::{Key, Name, Part, Track, interned_data};
use crate::observe::event::{EventKind, Scope};

/// Both rings of a queue.
#[derive(Debug, Default)]
struct Queue {
    m2s: Ring,
    s2m: Ring,
    /// Counters as last written: depth of m2s and s2m, bytes in flight.
    counters: [u64; 3],
}

impl Queue {
    fn ring(&mut self, direction: Direction) -> &mut Ring {
        match direction {
            Direction::M2s => &mut self.m2s,
            Direction::S2m => &mut self.s2m,
        }
    }
}

/// One device's part of the trace.
#[derive(Debug)]
pub struct Encoder {
    device: u8,
    title: String,
    generation: &'static Generation,
    /// Every how many-th register access is written; none without.
    sample: Option<NonZeroU32>,
    accesses: u32,
    queues: HashMap<(u8, u8), Queue>,
    registers_described: bool,
    /// Names must be written (again).
    fresh: bool,
    /// The next packet follows a loss.
    dropped: bool,
    /// The last event.
    last: u64,
    flows: u64,
    out: Vec<u8>,
}

impl Encoder {
    /// The part of a device called `title`.
    pub fn new(
        device: u8,
        title: String,
        generation: &'static Generation,
        sample: Option<NonZeroU32>,
    ) -> Self {
        let mut encoder = Self {
            device,
            title,
            generation,
            sample,
            accesses: 0,
            queues: HashMap::new(),
            registers_described: false,
            fresh: true,
            dropped: false,
            last: 0,
            flows: 0,
            out: Vec::new(),
        };
        encoder.describe(Track::Device);
        encoder
    }

    /// Takes what was encoded so far.
    pub fn take(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.out);
    }

    /// Bytes that [`Self::take`] would give.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Encodes one event.
    pub fn event(&mut self, stamped: &Stamped) {
        let Stamped { at, event } = stamped;
        // Time of one thread; a clock that went back would break slices.
        let at = (*at).max(self.last);
        match event.scope {
            Scope::Device => self.device_event(at, &event.kind),
            Scope::Queue { engine, queue } => self.queue_event(at, (engine, queue), &event.kind),
        }
        self.last = at;
    }

    /// Events were lost after the last one: what was drawn ends, and nothing is known of pending work.
    pub fn lost(&mut self, events: u64) {
        self.end_all(self.last);
        self.fresh = true;
        self.dropped = true;
        let at = self.last;
        self.instant(
            at,
            Track::Device,
            Name::Lost,
            vec![uint(Key::Count, events)],
            None,
        );
        self.queues.values_mut().for_each(|queue| {
            queue.m2s.clear();
            queue.s2m.clear();
        });
        self.all_counters(at);
    }

    /// The end, because the file is large enough or because somebody said so.
    pub fn finish(&mut self, limit: bool) {
        let at = self.last;
        self.end_all(at);
        if limit {
            self.instant(at, Track::Device, Name::Limit, Vec::new(), None);
        }
    }

    /// Nothing follows for now: batches that are done end, though a marker might have belonged to them.
    pub fn settle(&mut self) {
        for (engine, queue) in self.keys() {
            self.end_done((engine, queue));
        }
    }

    fn keys(&self) -> Vec<(u8, u8)> {
        self.queues.keys().copied().collect()
    }

    fn device_event(&mut self, at: u64, kind: &EventKind) {
        let (name, annotations) = match *kind {
            EventKind::Register {
                offset,
                value,
                write,
                ..
            } => return self.register(at, offset, value, write),
            EventKind::Reset { map: None } => {
                self.drop_work(at, |_| true);
                (Name::DeviceReset, Vec::new())
            }
            EventKind::Reset { map: Some(map) } => {
                let generation = self.generation;
                self.drop_work(at, |place| {
                    generation.reset_covers(Some(map), place.0, place.1)
                });
                (Name::CoreReset, vec![pointer(Key::Cores, map)])
            }
            EventKind::Disconnect => {
                self.drop_work(at, |_| true);
                (Name::Disconnect, Vec::new())
            }
            EventKind::Mailbox {
                command,
                sequence,
                status,
            } => {
                let annotations = vec![
                    uint(Key::Command, command.into()),
                    uint(Key::Sequence, sequence.into()),
                    uint(Key::Status, status.into()),
                ];
                (Name::Mailbox, annotations)
            }
            EventKind::Map { iova, size } => (Name::Map, range(iova, size)),
            EventKind::Unmap { iova, size } => (Name::Unmap, range(iova, size)),
            _ => return self.text(at, Track::Device, kind.to_string()),
        };
        self.instant(at, Track::Device, name, annotations, None);
    }

    fn queue_event(&mut self, at: u64, place: (u8, u8), kind: &EventKind) {
        self.know(place);
        if !matches!(kind, EventKind::Marker { .. }) {
            self.end_done(place);
        }
        match *kind {
            EventKind::Doorbell {
                direction,
                count,
                tail,
            } => self.doorbell(at, place, direction, count, tail),
            EventKind::Descriptor {
                direction,
                position,
                raw,
            } => {
                let fetched = Fetched::new(direction, position.index, raw);
                return self.queue(place).ring(direction).fetch(fetched);
            }
            EventKind::Fetch {
                direction,
                index,
                count,
            } => {
                let annotations = vec![
                    uint(Key::Index, index.into()),
                    uint(Key::Descriptors, count.into()),
                ];
                self.instant(
                    at,
                    ring_track(place, direction),
                    Name::Fetch,
                    annotations,
                    None,
                );
            }
            EventKind::Copy {
                tx,
                rx,
                source,
                destination,
                bytes,
            } => {
                let packet = self.move_bytes(at, place, Direction::M2s, tx, source, bytes, false);
                self.move_bytes(at, place, Direction::S2m, rx, destination, bytes, packet);
            }
            EventKind::Marker { tx, address } => self.marker(at, place, tx, address),
            EventKind::QueueReset { direction, dropped } => {
                self.end_open(at, place, Direction::M2s);
                self.end_open(at, place, Direction::S2m);
                self.queue(place).ring(direction).clear();
                let annotations = vec![uint(Key::Dropped, dropped.into())];
                self.instant(
                    at,
                    ring_track(place, direction),
                    Name::QueueReset,
                    annotations,
                    None,
                );
            }
            EventKind::Abort(fault) => {
                self.end_open(at, place, Direction::M2s);
                self.end_open(at, place, Direction::S2m);
                let cause = annotation(Key::Cause, Value::String(fault.to_string()));
                self.instant(at, queue_track(place), Name::Abort, vec![cause], None);
            }
            EventKind::Recovered => {
                self.instant(at, queue_track(place), Name::Recovered, Vec::new(), None);
            }
            _ => self.text(at, queue_track(place), kind.to_string()),
        }
        self.counters(at, place);
    }

    fn doorbell(
        &mut self,
        at: u64,
        place: (u8, u8),
        direction: Direction,
        count: u32,
        tail: Pointer,
    ) {
        let flow = self.next_flow();
        self.queue(place).ring(direction).ring(count, flow);
        let annotations = vec![
            uint(Key::Descriptors, count.into()),
            uint(Key::Tail, tail.index.into()),
            uint(Key::RingId, tail.ring_id.bits().into()),
        ];
        let flow = (count > 0).then_some(flow);
        let track = ring_track(place, direction);
        self.instant(at, track, Name::Doorbell, annotations, flow);
    }

    fn marker(&mut self, at: u64, place: (u8, u8), tx: u32, address: u64) {
        let ring = &self.queue(place).m2s;
        // The batch that the marker's descriptor ended, or the one it is in the middle of.
        let flow = if ring.open.done_at.is_some() {
            ring.last_flow
        } else {
            ring.batches.front().map(|batch| batch.flow)
        };
        let annotations = vec![uint(Key::Index, tx.into()), pointer(Key::Address, address)];
        let track = ring_track(place, Direction::M2s);
        self.instant(at, track, Name::Marker, annotations, flow);
        for direction in Direction::BOTH {
            if let Some(done) = &mut self.queue(place).ring(direction).open.done_at {
                *done = at;
            }
        }
        self.end_done(place);
    }

    /// Draws bytes that one ring's descriptor gave or took. Returns whether they end a packet of m2s.
    #[expect(clippy::too_many_arguments, reason = "an event, taken apart")]
    fn move_bytes(
        &mut self,
        at: u64,
        place: (u8, u8),
        direction: Direction,
        index: u32,
        address: u64,
        bytes: u32,
        packet_done: bool,
    ) -> bool {
        let (track, begin) = (ring_track(place, direction), self.last);
        let ring = self.queue(place).ring(direction);
        // The trace may have begun after the fetch: what is not known is taken for whole.
        let known = ring.current(index).copied();
        let fetched = known.unwrap_or(Fetched {
            index,
            left: bytes,
            last: true,
            barrier: Barrier::None,
        });
        let batch = ring.batches.front().copied();
        let open = ring.open;
        let begin_batch = batch.filter(|_| !open.batch);
        ring.open.batch |= begin_batch.is_some();
        ring.open.descriptor = Some(index);
        if let Some(batch) = begin_batch {
            let name = match direction {
                Direction::M2s => Name::Batch,
                Direction::S2m => Name::Buffers,
            };
            let annotations = vec![uint(Key::Descriptors, batch.count.into())];
            self.slice(begin, track, name, annotations, Some(batch.flow));
        }
        if open.descriptor != Some(index) {
            if open.descriptor.is_some() {
                self.end(begin, track);
            }
            let place = match direction {
                Direction::M2s => Key::Source,
                Direction::S2m => Key::Destination,
            };
            let annotations = vec![
                uint(Key::Index, index.into()),
                uint(Key::Bytes, fetched.left.into()),
                pointer(place, address),
            ];
            let barrier = match fetched.barrier {
                Barrier::None => None,
                Barrier::Dmb => Some(Name::Dmb),
                Barrier::Write => Some(Name::WriteBarrier),
                Barrier::StrongOrder => Some(Name::StrongOrder),
            };
            if let Some(name) = barrier {
                let index = uint(Key::Index, index.into());
                self.instant(begin, track, name, vec![index], None);
            }
            self.slice(begin, track, Name::Descriptor, annotations, None);
        }
        let left = fetched.left.saturating_sub(bytes);
        let ring = self.queue(place).ring(direction);
        if let Some(fetched) = ring.fetched.front_mut().filter(|_| known.is_some()) {
            fetched.left = left;
        }
        let done = left == 0 || packet_done;
        if done {
            if known.is_none() {
                // So that retiring takes this one and no other.
                ring.fetched.push_front(fetched);
            }
            ring.open.descriptor = None;
            if ring.retire() && ring.open.batch {
                ring.open.done_at = Some(at);
            }
            self.end(at, track);
        }
        done && fetched.last
    }

    fn register(&mut self, at: u64, offset: u64, value: u32, write: bool) {
        let Some(sample) = self.sample else {
            return;
        };
        self.accesses = (self.accesses + 1) % sample;
        if self.accesses != 1 % sample.get() {
            return;
        }
        if !std::mem::replace(&mut self.registers_described, true) {
            self.describe(Track::Registers);
        }
        let name = RegisterName {
            generation: self.generation,
            offset,
        };
        let what = if write { "write" } else { "read" };
        let event = TrackEvent {
            name: Some(format!("{what} {name}")),
            debug_annotations: vec![
                pointer(Key::Offset, offset),
                pointer(Key::Value, value.into()),
            ],
            ..track_event(EventType::Instant, Track::Registers.uuid(self.device))
        };
        self.packet(at, Data::TrackEvent(event));
    }

    /// Introduces a queue's tracks when it is first heard of.
    fn know(&mut self, place: (u8, u8)) {
        if self.queues.contains_key(&place) {
            return;
        }
        self.queues.insert(place, Queue::default());
        for part in Part::ALL {
            self.describe(track(place, part));
        }
    }

    fn queue(&mut self, place: (u8, u8)) -> &mut Queue {
        self.queues.entry(place).or_default()
    }

    fn next_flow(&mut self) -> u64 {
        self.flows += 1;
        u64::from(self.device) << 48 | self.flows
    }

    /// Work of the queues chosen is gone.
    fn drop_work(&mut self, at: u64, mut chosen: impl FnMut((u8, u8)) -> bool) {
        for place in self.keys() {
            if chosen(place) {
                for direction in Direction::BOTH {
                    self.end_open(at, place, direction);
                    self.queue(place).ring(direction).clear();
                }
                self.counters(at, place);
            }
        }
    }

    /// Ends what is drawn as begun.
    fn end_open(&mut self, at: u64, place: (u8, u8), direction: Direction) {
        let open = std::mem::take(&mut self.queue(place).ring(direction).open);
        let track = ring_track(place, direction);
        if open.descriptor.is_some() {
            self.end(at, track);
        }
        if open.batch {
            self.end(open.done_at.unwrap_or(at), track);
        }
    }

    /// Ends batches that are done.
    fn end_done(&mut self, place: (u8, u8)) {
        for direction in Direction::BOTH {
            let ring = self.queue(place).ring(direction);
            if let Open {
                done_at: Some(at), ..
            } = ring.open
            {
                ring.open.done_at = None;
                ring.open.batch = false;
                self.end(at, ring_track(place, direction));
            }
        }
    }

    fn end_all(&mut self, at: u64) {
        for place in self.keys() {
            for direction in Direction::BOTH {
                self.end_open(at, place, direction);
            }
        }
    }

    fn all_counters(&mut self, at: u64) {
        for place in self.keys() {
            self.counters(at, place);
        }
    }

    /// Writes the counters that changed.
    fn counters(&mut self, at: u64, place: (u8, u8)) {
        let queue = self.queue(place);
        let now = [queue.m2s.depth, queue.s2m.depth, queue.m2s.in_flight()];
        let before = std::mem::replace(&mut queue.counters, now);
        let parts = [
            Part::Depth(Direction::M2s),
            Part::Depth(Direction::S2m),
            Part::InFlight,
        ];
        for ((part, now), before) in parts.into_iter().zip(now).zip(before) {
            if now != before {
                let event = TrackEvent {
                    counter_value: Some(i64::try_from(now).unwrap_or(i64::MAX)),
                    ..track_event(EventType::Counter, track(place, part).uuid(self.device))
                };
                self.packet(at, Data::TrackEvent(event));
            }
        }
    }

    fn slice(
        &mut self,
        at: u64,
        track: Track,
        name: Name,
        annotations: Vec<DebugAnnotation>,
        flow: Option<u64>,
    ) {
        self.named(EventType::SliceBegin, at, track, name, annotations, flow);
    }

    fn instant(
        &mut self,
        at: u64,
        track: Track,
        name: Name,
        annotations: Vec<DebugAnnotation>,
        flow: Option<u64>,
    ) {
        self.named(EventType::Instant, at, track, name, annotations, flow);
    }

    fn named(
        &mut self,
        event_type: EventType,
        at: u64,
        track: Track,
        name: Name,
        annotations: Vec<DebugAnnotation>,
        flow: Option<u64>,
    ) {
        let event = TrackEvent {
            name_iid: Some(name.iid()),
            debug_annotations: annotations,
            flow_ids: flow.into_iter().collect(),
            ..track_event(event_type, track.uuid(self.device))
        };
        self.packet(at, Data::TrackEvent(event));
    }

    /// An event that this file has no picture for, in its own words.
    fn text(&mut self, at: u64, track: Track, name: String) {
        let event = TrackEvent {
            name: Some(name),
            ..track_event(EventType::Instant, track.uuid(self.device))
        };
        self.packet(at, Data::TrackEvent(event));
    }

    fn end(&mut self, at: u64, track: Track) {
        let event = track_event(EventType::SliceEnd, track.uuid(self.device));
        self.packet(at, Data::TrackEvent(event));
    }

    fn describe(&mut self, track: Track) {
        let descriptor = track.describe(self.device, &self.title);
        self.packet(0, Data::TrackDescriptor(descriptor));
    }

    fn packet(&mut self, at: u64, data: Data) {
        let fresh = std::mem::take(&mut self.fresh);
        let mut flags = sequence_flags::NEEDS_INCREMENTAL_STATE;
        if fresh {
            flags |= sequence_flags::INCREMENTAL_STATE_CLEARED;
        }
        let timed = !matches!(data, Data::TrackDescriptor(_));
        let packet = TracePacket {
            timestamp: timed.then_some(at),
            trusted_packet_sequence_id: Some(u32::from(self.device) + 1),
            interned_data: fresh.then(interned_data),
            sequence_flags: Some(flags),
            previous_packet_dropped: std::mem::take(&mut self.dropped).then_some(1),
            timestamp_clock_id: None,
            data: Some(data),
        };
        proto::append(&mut self.out, &packet);
    }
}

const fn track(place: (u8, u8), part: Part) -> Track {
    Track::Queue {
        engine: place.0,
        queue: place.1,
        part,
    }
}

const fn queue_track(place: (u8, u8)) -> Track {
    track(place, Part::Whole)
}

const fn ring_track(place: (u8, u8), direction: Direction) -> Track {
    track(place, Part::Ring(direction))
}

fn track_event(event_type: EventType, track_uuid: u64) -> TrackEvent {
    TrackEvent {
        r#type: Some(event_type.into()),
        track_uuid: Some(track_uuid),
        ..TrackEvent::default()
    }
}

fn annotation(key: Key, value: Value) -> DebugAnnotation {
    DebugAnnotation {
        name_iid: Some(key.iid()),
        name: None,
        value: Some(value),
    }
}

fn uint(key: Key, value: u64) -> DebugAnnotation {
    annotation(key, Value::Uint(value))
}

fn pointer(key: Key, value: u64) -> DebugAnnotation {
    annotation(key, Value::Pointer(value))
}

fn range(iova: u64, size: u64) -> Vec<DebugAnnotation> {
    vec![pointer(Key::Address, iova), pointer(Key::Bytes, size)]
}

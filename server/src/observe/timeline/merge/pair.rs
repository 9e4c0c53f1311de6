//! Which of the driver's batches is which of the device's.
use std::collections::{BTreeMap, BTreeSet, HashMap};

use neuron_protocol::registers::Direction;

use super::MergeError;
use super::ftrace::{Ftrace, Meaning, Place};
use super::solve::{Bound, Fit, NoFit, solve};
use crate::observe::timeline::proto::{Data, Packets, TrackEvent, Value};
use crate::observe::timeline::tracks::{Key, Name, Part, Track};

/// ftrace text cuts times here, nanoseconds.
pub const RESOLUTION: u64 = 1000;
/// Ways of laying two sequences side by side that are tried per queue.
const MAX_SHIFTS: usize = 4096;

/// A queue, fully named.
pub type QueuePlace = (u8, u8);

/// A batch as the device saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Joins its events in the trace.
    pub flow: u64,
    /// m2s descriptors.
    pub count: u64,
    /// The m2s doorbell.
    pub doorbell: u64,
    /// Its last marker.
    pub marker: Option<u64>,
}

/// A time line, as far as it bears on the clock.
#[derive(Debug, Default)]
pub struct DeviceHalf {
    /// Batches by queue, in the order of their doorbells.
    pub queues: BTreeMap<QueuePlace, Vec<Batch>>,
    /// The time line has gaps.
    pub lost: bool,
    /// Bytes of whole packets.
    pub whole: usize,
}

impl DeviceHalf {
    /// Reads the batches of one device.
    ///
    /// # Errors
    /// No time line, or not clear of which device.
    pub fn read(timeline: &[u8], device: Option<u8>) -> Result<Self, MergeError> {
        let mut devices = BTreeMap::<u8, Self>::new();
        let mut lost = false;
        let whole = Packets(timeline).each(|packet| {
            lost |= packet.previous_packet_dropped == Some(1);
            if let (Some(at), Some(Data::TrackEvent(event))) = (packet.timestamp, packet.data)
                && let Some((device, track)) = event.track_uuid.and_then(Track::from_uuid)
            {
                devices.entry(device).or_default().take(at, track, &event);
            }
        })?;
        let names = |devices: &BTreeMap<u8, Self>| {
            let names: Vec<_> = devices.keys().map(|id| format!("nd{id}")).collect();
            names.join(", ")
        };
        if device.is_none() && devices.len() > 1 {
            return Err(MergeError::SeveralDevices(names(&devices)));
        }
        let chosen = match device {
            Some(device) => devices.remove(&device),
            None => devices.pop_first().map(|(_, half)| half),
        };
        let who = device.map_or("any device".to_owned(), |id| format!("nd{id}"));
        chosen
            .filter(|half| !half.queues.is_empty())
            .map(|half| Self {
                lost,
                whole,
                ..half
            })
            .ok_or(MergeError::NoDoorbells(who))
    }

    fn take(&mut self, at: u64, track: Track, event: &TrackEvent) {
        let Track::Queue {
            engine,
            queue,
            part: Part::Ring(Direction::M2s),
        } = track
        else {
            return;
        };
        let Some(flow) = event.flow_ids.first().copied() else {
            return;
        };
        let batches = self.queues.entry((engine, queue)).or_default();
        if event.name_iid == Some(Name::Doorbell.iid()) {
            let count =
                event
                    .debug_annotations
                    .iter()
                    .find_map(|annotation| match annotation.value {
                        Some(Value::Uint(count))
                            if annotation.name_iid == Some(Key::Descriptors.iid()) =>
                        {
                            Some(count)
                        }
                        _ => None,
                    });
            batches.push(Batch {
                flow,
                count: count.unwrap_or(0),
                doorbell: at,
                marker: None,
            });
        } else if event.name_iid == Some(Name::Marker.iid())
            && let Some(batch) = batches.iter_mut().rev().find(|batch| batch.flow == flow)
        {
            batch.marker = Some(at);
        }
    }
}

/// A batch as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which event of the ftrace.
    pub event: usize,
    /// Where.
    pub place: QueuePlace,
    /// m2s descriptors.
    pub count: u32,
    /// When, guest time.
    pub at: u64,
    /// Which event ended it, and when.
    pub done: Option<(usize, u64)>,
}

/// An ftrace, as far as it bears on the clock.
#[derive(Debug, Default)]
pub struct GuestHalf {
    /// In order.
    pub starts: Vec<Start>,
}

impl GuestHalf {
    /// Finds the driver's batches and their ends.
    ///
    /// # Errors
    /// There are none, or of several devices.
    pub fn read(ftrace: &Ftrace) -> Result<Self, MergeError> {
        let nodes: BTreeSet<_> = ftrace
            .events
            .iter()
            .filter(|event| event.name.starts_with("dma_"))
            .filter_map(|event| event.text.split_whitespace().next())
            .filter(|word| word.starts_with("nd"))
            .collect();
        if nodes.len() > 1 {
            let nodes: Vec<_> = nodes.into_iter().collect();
            return Err(MergeError::SeveralNodes(nodes.join(", ")));
        }
        let probes = ftrace
            .events
            .iter()
            .any(|event| matches!(event.meaning, Meaning::Start { probe: true, .. }));
        let mut half = Self::default();
        // Batches without an end, oldest first, by engine and size.
        let mut open = HashMap::<(u8, u32), Vec<usize>>::new();
        for (number, event) in ftrace.events.iter().enumerate() {
            match event.meaning {
                Meaning::Start {
                    place:
                        Place {
                            engine,
                            queue: Some(queue),
                        },
                    tx,
                    probe,
                    ..
                } if probe == probes => {
                    open.entry((engine, tx))
                        .or_default()
                        .push(half.starts.len());
                    half.starts.push(Start {
                        event: number,
                        place: (engine, queue),
                        count: tx,
                        at: event.at,
                        done: None,
                    });
                }
                Meaning::Done { place, count } => {
                    // Without a queue it may be any of the engine's: the oldest gives the weakest claim, which is true.
                    let Some(waiting) = open.get_mut(&(place.engine, count)) else {
                        continue;
                    };
                    let fits = |start: &usize| {
                        place
                            .queue
                            .is_none_or(|queue| half.starts[*start].place.1 == queue)
                    };
                    if let Some(at) = waiting.iter().position(fits) {
                        half.starts[waiting.remove(at)].done = Some((number, event.at));
                    }
                }
                Meaning::Start { .. } | Meaning::Other => {}
            }
        }
        if half.starts.is_empty() {
            return Err(MergeError::NoStarts);
        }
        Ok(half)
    }

    fn of(&self, place: QueuePlace) -> Vec<usize> {
        (0..self.starts.len())
            .filter(|start| self.starts[*start].place == place)
            .collect()
    }
}

/// Both halves joined.
#[derive(Debug)]
pub struct Pairing {
    /// Driver batch by number, and the device's.
    pub pairs: Vec<(usize, Batch)>,
    /// The clocks.
    pub fit: Fit,
}

type Pairs = Vec<(usize, Batch)>;

impl Pairing {
    /// Lays the sequences of each queue side by side and solves for the clock.
    ///
    /// # Errors
    /// They do not fit, or fit in several ways.
    pub fn find(guest: &GuestHalf, device: &DeviceHalf) -> Result<Self, MergeError> {
        let places: BTreeSet<_> = guest.starts.iter().map(|start| start.place).collect();
        let mut sure = Pairs::new();
        let mut open = Vec::new();
        let mut failures = Vec::new();
        let mut contradiction = None;
        for place in places {
            let (engine, queue) = place;
            let name = format!("engine {engine} queue {queue}");
            let starts = guest.of(place);
            let none = Vec::new();
            let batches = device.queues.get(&place).unwrap_or(&none);
            let ways = alignments(guest, &starts, batches);
            if ways.is_empty() {
                failures.push(format!(
                    "{name} has {} batches in the ftrace, {} in the time line",
                    starts.len(),
                    batches.len()
                ));
                continue;
            }
            let mut possible = Vec::new();
            for way in ways {
                match solve(&bounds(guest, &way)) {
                    // One queue alone may lack ends; others may have them.
                    Ok(_) | Err(NoFit::Unbounded { .. }) => possible.push(way),
                    Err(NoFit::Contradiction(lower, upper)) => {
                        contradiction
                            .get_or_insert_with(|| contradicts(guest, &name, lower, upper));
                    }
                }
            }
            match possible.len() {
                0 => {}
                1 => sure.append(&mut possible.remove(0)),
                _ => open.push((name, possible)),
            }
        }
        if sure.is_empty() {
            return Err(match (open.first(), contradiction) {
                (Some((name, ways)), _) => {
                    MergeError::Ambiguous(format!("{name}: {} ways", ways.len()))
                }
                (None, Some(text)) => MergeError::Contradiction(text),
                (None, None) => MergeError::NoMatch(failures.join("; ")),
            });
        }
        let mut fit = fit(guest, &sure)?;
        // What was not clear alone may be clear beside the others.
        for (_, ways) in open {
            let mut good = ways.into_iter().filter_map(|way| {
                let all: Pairs = sure.iter().chain(&way).copied().collect();
                solve(&bounds(guest, &all)).ok().map(|fit| (all, fit))
            });
            if let (Some((all, better)), None) = (good.next(), good.next()) {
                (sure, fit) = (all, better);
            }
        }
        sure.sort_by_key(|(start, _)| *start);
        Ok(Self { pairs: sure, fit })
    }
}

/// Every way of laying a queue's sequences side by side so that sizes agree and the shorter one is used up.
fn alignments(guest: &GuestHalf, starts: &[usize], batches: &[Batch]) -> Vec<Pairs> {
    let (short, long) = (
        starts.len().min(batches.len()),
        starts.len().max(batches.len()),
    );
    if short == 0 {
        return Vec::new();
    }
    let mut ways = Vec::new();
    for shift in 0..=(long - short).min(MAX_SHIFTS) {
        let (skip_starts, skip_batches) = if starts.len() > batches.len() {
            (shift, 0)
        } else {
            (0, shift)
        };
        let pairs = || starts[skip_starts..].iter().zip(&batches[skip_batches..]);
        if pairs().all(|(start, batch)| u64::from(guest.starts[*start].count) == batch.count) {
            ways.push(pairs().map(|(start, batch)| (*start, *batch)).collect());
        }
    }
    ways
}

fn bounds(guest: &GuestHalf, pairs: &Pairs) -> Vec<Bound> {
    let mut bounds = Vec::with_capacity(2 * pairs.len());
    let difference = |device: u64, guest: u64| {
        i64::try_from(i128::from(device) - i128::from(guest)).unwrap_or(i64::MAX)
    };
    for (number, batch) in pairs {
        let start = guest.starts[*number];
        bounds.push(Bound {
            guest: start.at,
            difference: difference(batch.doorbell, start.at),
            lower: false,
            batch: *number,
        });
        if let (Some((_, done)), Some(marker)) = (start.done, batch.marker) {
            // The driver looked at some time before this.
            let done = done + RESOLUTION;
            bounds.push(Bound {
                guest: done,
                difference: difference(marker, done),
                lower: true,
                batch: *number,
            });
        }
    }
    bounds
}

fn fit(guest: &GuestHalf, pairs: &Pairs) -> Result<Fit, MergeError> {
    solve(&bounds(guest, pairs)).map_err(|error| match error {
        NoFit::Unbounded { lower: true } => MergeError::Unbounded("below"),
        NoFit::Unbounded { lower: false } => MergeError::Unbounded("above"),
        NoFit::Contradiction(lower, upper) => {
            MergeError::Contradiction(contradicts(guest, "the queues together", lower, upper))
        }
    })
}

fn contradicts(guest: &GuestHalf, name: &str, lower: Bound, upper: Bound) -> String {
    let at = |batch: usize| {
        let at = guest.starts[batch].at;
        format!("{}.{:06} s", at / 1_000_000_000, at % 1_000_000_000 / 1000)
    };
    format!(
        "no clock fits {name}: the batch that the driver started at {} was acknowledged {} us before the one started at {} allows; the files are of different runs, or the driver acknowledged without a marker",
        at(lower.batch),
        lower.difference.saturating_sub(upper.difference) / 1000,
        at(upper.batch)
    )
}

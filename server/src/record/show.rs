//! What a session looked like, gathered in bounded memory however long it was: `show` makes a page of it.
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entry::nanoseconds;
use crate::observe::event::{Event, EventKind, Observer, Scope};

/// Columns of the time line; when a session outgrows them, two become one.
pub const COLUMNS: usize = 512;
/// Queues with a line of their own; the others share one.
const MAX_LANES: usize = 47;
/// Events kept of the beginning, and of the end.
const MAX_EVENTS: usize = 300;
/// Powers of two of nanoseconds.
pub const BUCKETS: usize = 40;

/// A stretch of time of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Bytes copied.
    pub bytes: u64,
    /// Markers, that is batches.
    pub markers: u64,
    /// Aborts and resets.
    pub trouble: u64,
}

/// Engine and queue; none: those without a line of their own.
pub type LaneKey = Option<(u8, u8)>;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Nanoseconds of a column.
    pub width: u64,
    /// A row of columns for each queue that did something.
    pub lanes: BTreeMap<LaneKey, Vec<Cell>>,
    /// Batches by the time from their first doorbell to their marker: bucket n holds 2^(n-1) to 2^n ns, 0 what ended in
    /// the wake-up that it began in.
    pub latencies: Vec<u64>,
    /// How often each kind of event happened.
    pub kinds: BTreeMap<String, u64>,
    /// Events but those that come with each batch: the first and the last.
    pub first: Vec<(Duration, String)>,
    /// See `first`.
    pub last: VecDeque<(Duration, String)>,
    /// Events between the two.
    pub left_out: u64,
    /// Device time of the last event.
    pub end: Duration,
    /// Batches rung for and not done, by queue.
    open: BTreeMap<(u8, u8), Duration>,
}

impl Seen {
    fn cell(&mut self, key: LaneKey, at: Duration) -> &mut Cell {
        let at = nanoseconds(at);
        self.width = self.width.max(1_000);
        while at / self.width >= COLUMNS as u64 {
            self.width = self.width.saturating_mul(2);
            for lane in self.lanes.values_mut() {
                for column in 0..COLUMNS / 2 {
                    let (a, b) = (lane[2 * column], lane[2 * column + 1]);
                    lane[column] = Cell {
                        bytes: a.bytes + b.bytes,
                        markers: a.markers + b.markers,
                        trouble: a.trouble + b.trouble,
                    };
                }
                lane[COLUMNS / 2..].fill(Cell::default());
            }
        }
        let full = self.lanes.len() >= MAX_LANES && !self.lanes.contains_key(&key);
        let column = usize::try_from(at / self.width).unwrap_or(0);
        let lane = self.lanes.entry(if full { None } else { key });
        &mut lane.or_insert_with(|| vec![Cell::default(); COLUMNS])[column.min(COLUMNS - 1)]
    }

    fn note(&mut self, event: &Event) {
        let text = match event.scope {
            Scope::Device => event.kind.to_string(),
            Scope::Queue { engine, queue } => format!("e{engine}.q{queue}: {}", event.kind),
        };
        if self.first.len() < MAX_EVENTS {
            self.first.push((event.at, text));
            return;
        }
        if self.last.len() == MAX_EVENTS {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back((event.at, text));
    }

    fn see(&mut self, event: &Event) {
        self.end = event.at;
        let name = format!("{:?}", event.kind);
        let name = name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .unwrap_or("");
        *self.kinds.entry(name.to_owned()).or_default() += 1;
        let key = match event.scope {
            Scope::Device => None,
            Scope::Queue { engine, queue } => Some((engine, queue)),
        };
        match event.kind {
            EventKind::Doorbell { .. } => {
                if let Some(key) = key {
                    self.open.entry(key).or_insert(event.at);
                }
            }
            EventKind::Copy { bytes, .. } => self.cell(key, event.at).bytes += u64::from(bytes),
            EventKind::Marker { .. } => {
                self.cell(key, event.at).markers += 1;
                if let Some(begin) = key.and_then(|key| self.open.remove(&key)) {
                    let time = nanoseconds(event.at.saturating_sub(begin));
                    let bits = u64::BITS - time.leading_zeros();
                    let bucket = usize::try_from(bits).unwrap_or(BUCKETS).min(BUCKETS - 1);
                    self.latencies.resize(BUCKETS, 0);
                    self.latencies[bucket] += 1;
                }
            }
            EventKind::Fetch { .. } => {}
            EventKind::Abort(_) => {
                self.cell(key, event.at).trouble += 1;
                self.note(event);
            }
            _ => self.note(event),
        }
    }
}

/// Watches; clones share what they saw.
#[derive(Clone, Debug, Default)]
pub struct Watcher(Arc<Mutex<Seen>>);

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was seen.
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }
}

impl Observer for Watcher {
    fn event(&mut self, event: &Event) {
        self.lock().see(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(at: u64, engine: u8, bytes: u32) -> Event {
        Event {
            at: Duration::from_nanos(at),
            scope: Scope::Queue { engine, queue: 0 },
            kind: EventKind::Copy {
                tx: 0,
                rx: 0,
                source: 0,
                destination: 0,
                bytes,
            },
        }
    }

    #[test]
    fn a_long_session_keeps_its_sums_and_no_more_memory() {
        let mut watcher = Watcher::default();
        for n in 0..100_000_u64 {
            watcher.event(&copy(n * 1_000_000, u8::try_from(n % 200).unwrap(), 3));
            let reset = Event {
                kind: EventKind::Disconnect,
                scope: Scope::Device,
                ..copy(n, 0, 0)
            };
            watcher.event(&reset);
        }
        let seen = watcher.seen();
        let sum: u64 = seen.lanes.values().flatten().map(|cell| cell.bytes).sum();
        assert_eq!(sum, 300_000);
        assert!(seen.lanes.len() <= MAX_LANES + 1);
        assert!(seen.lanes.contains_key(&None));
        let kept = seen.first.len() + seen.last.len();
        assert_eq!(kept as u64 + seen.left_out, 100_000);
        assert!(kept <= 2 * MAX_EVENTS);
    }
}

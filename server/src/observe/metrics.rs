//! Counters per engine, for the metrics endpoint.
//!
//! The device thread adds to atomics that nobody else writes; a scrape reads them without stopping it. The clock is read
//! twice per batch, at its doorbell and at its marker.
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use neuron_protocol::generation::Generation;
use neuron_protocol::registers::Direction;

use super::event::{Event, EventKind, Observer, Scope};

/// Upper bounds of the latency histogram, seconds: from a wake-up of a thread to the driver's budget of real hardware
/// and beyond.
pub const LATENCY_BOUNDS: [f64; 12] = [
    10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 5e-3, 20e-3, 80e-3, 1.0, 10.0,
];
/// The same in nanoseconds.
const BOUNDS_NS: [u64; 12] = [
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    5_000_000,
    20_000_000,
    80_000_000,
    1_000_000_000,
    10_000_000_000,
];
/// Doorbells per queue whose marker is waited for; older ones are forgotten.
const PENDING: usize = 1024;

/// What one engine has done. Monotonic.
#[derive(Debug, Default)]
pub struct EngineCounters {
    /// Doorbell writes: m2s, s2m.
    pub doorbells: [AtomicU64; 2],
    /// Descriptors fetched: m2s, s2m.
    pub descriptors: [AtomicU64; 2],
    /// Bytes landed.
    pub bytes: AtomicU64,
    /// Markers landed.
    pub batches: AtomicU64,
    /// Aborts.
    pub aborts: AtomicU64,
    /// Batches per bound, each counted once; the last is beyond all bounds.
    pub latency: [AtomicU64; BOUNDS_NS.len() + 1],
    /// All latencies together, nanoseconds.
    pub latency_sum: AtomicU64,
}

impl EngineCounters {
    /// Anything happened.
    pub fn is_active(&self) -> bool {
        let any = |counters: &[AtomicU64]| counters.iter().any(|n| n.load(Ordering::Relaxed) > 0);
        any(&self.doorbells) || any(&self.descriptors) || any(std::slice::from_ref(&self.aborts))
    }
}

/// All engines of a device.
pub type Engines = Arc<[EngineCounters]>;

/// Counters for every engine of a generation, at zero.
pub fn engines(generation: &Generation) -> Engines {
    (0..generation.engines)
        .map(|_| EngineCounters::default())
        .collect()
}

/// A doorbell whose marker has not come: the descriptors from one index to before another.
#[derive(Clone, Copy, Debug)]
struct Rung {
    from: u32,
    to: u32,
    at: Instant,
}

impl Rung {
    const fn contains(self, index: u32) -> bool {
        if self.from < self.to {
            self.from <= index && index < self.to
        } else {
            // Over the end of the ring.
            index >= self.from || index < self.to
        }
    }
}

/// Counts the events of one device.
#[derive(Debug)]
pub struct Counter {
    generation: &'static Generation,
    engines: Engines,
    rung: HashMap<(u8, u8), VecDeque<Rung>>,
}

impl Counter {
    /// Adds to `engines`.
    pub fn new(generation: &'static Generation, engines: Engines) -> Self {
        Self {
            generation,
            engines,
            rung: HashMap::new(),
        }
    }

    fn doorbell(&mut self, place: (u8, u8), count: u32, tail: u32) {
        let rung = self.rung.entry(place).or_default();
        // Without the ring's length the beginning of a batch over its end is where the last one ended.
        let before = rung.back().map(|rung| rung.to);
        let from = tail.checked_sub(count).or(before).unwrap_or(0);
        if count == 0 {
            return;
        }
        if rung.len() == PENDING {
            rung.pop_front();
        }
        rung.push_back(Rung {
            from,
            to: tail,
            at: Instant::now(),
        });
    }

    fn marker(&mut self, place: (u8, u8), tx: u32) {
        let Some(engine) = self.engines.get(usize::from(place.0)) else {
            return;
        };
        add(&engine.batches, 1);
        let Some(rung) = self.rung.get_mut(&place) else {
            return;
        };
        let Some(at) = rung.iter().position(|rung| rung.contains(tx)) else {
            return;
        };
        let latency = rung[at].at.elapsed();
        // One stays, for its end tells where the next begins, and it may hold more markers.
        rung.drain(..at);
        let latency = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < latency);
        add(&engine.latency[bucket], 1);
        add(&engine.latency_sum, latency);
    }
}

/// Only the device thread writes, so no read-modify-write is needed.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(n),
        Ordering::Relaxed,
    );
}

const fn side(direction: Direction) -> usize {
    match direction {
        Direction::M2s => 0,
        Direction::S2m => 1,
    }
}

impl Observer for Counter {
    fn event(&mut self, event: &Event) {
        let Scope::Queue { engine, queue } = event.scope else {
            match event.kind {
                EventKind::Reset { map } => {
                    let generation = self.generation;
                    self.rung.retain(|(engine, queue), _| {
                        !generation.reset_covers(map, *engine, *queue)
                    });
                }
                EventKind::Disconnect => self.rung.clear(),
                _ => {}
            }
            return;
        };
        let place = (engine, queue);
        let Some(counters) = self.engines.get(usize::from(engine)) else {
            return;
        };
        match event.kind {
            EventKind::Doorbell {
                direction,
                count,
                tail,
            } => {
                add(&counters.doorbells[side(direction)], 1);
                if direction == Direction::M2s {
                    self.doorbell(place, count, tail.index);
                }
            }
            EventKind::Fetch {
                direction, count, ..
            } => add(&counters.descriptors[side(direction)], count.into()),
            EventKind::Copy { bytes, .. } => add(&counters.bytes, bytes.into()),
            EventKind::Marker { tx, .. } => self.marker(place, tx),
            EventKind::Abort(_) => add(&counters.aborts, 1),
            EventKind::QueueReset {
                direction: Direction::M2s,
                ..
            } => {
                self.rung.remove(&place);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use neuron_protocol::generation::Product;
    use neuron_protocol::registers::queue::Pointer;

    use super::*;

    fn see(counter: &mut Counter, kind: EventKind) {
        counter.event(&Event {
            at: Duration::ZERO,
            scope: Scope::Queue {
                engine: 2,
                queue: 1,
            },
            kind,
        });
    }

    fn rung(index: u32, count: u32) -> EventKind {
        EventKind::Doorbell {
            direction: Direction::M2s,
            count,
            tail: Pointer {
                index,
                ..Pointer::RESET
            },
        }
    }

    #[test]
    fn a_marker_ends_the_latency_of_the_doorbell_that_rang_for_it() {
        let generation = Product::Trn2.generation();
        let engines = engines(generation);
        let mut counter = Counter::new(generation, Arc::clone(&engines));
        see(&mut counter, rung(4, 4));
        std::thread::sleep(Duration::from_millis(6));
        see(&mut counter, rung(8, 4));
        let marker = |tx| EventKind::Marker { tx, address: 0 };
        see(&mut counter, marker(3));
        see(&mut counter, marker(7));
        // Over the end of a ring, and one that nobody rang for.
        see(&mut counter, rung(2, 1000));
        see(&mut counter, marker(1));
        see(&mut counter, marker(5));
        let engine = &engines[2];
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        assert_eq!(load(&engine.batches), 4);
        assert_eq!(load(&engine.doorbells[0]), 3);
        let sum: u64 = engine.latency.iter().map(load).sum();
        assert_eq!(sum, 3);
        // The first took its 6 ms, the second did not.
        assert!(engine.latency[8..].iter().map(load).sum::<u64>() >= 1);
        assert!(load(&engine.latency_sum) >= 6_000_000);
        assert!(engine.is_active() && !engines[3].is_active());
    }

    #[test]
    fn both_tables_of_bounds_agree() {
        for (seconds, ns) in LATENCY_BOUNDS.into_iter().zip(BOUNDS_NS) {
            assert_eq!(Duration::from_secs_f64(seconds), Duration::from_nanos(ns));
        }
    }
}

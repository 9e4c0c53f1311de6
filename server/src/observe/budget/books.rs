//! Keeping the books: doorbells wait for their marker.
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use neuron_protocol::budget::{PollBudget, Scaling, Wait};
use neuron_protocol::generation::{Generation, Platform};
use neuron_protocol::marker::MARKER_SIZE;
use neuron_protocol::registers::Direction;

use super::report::{BUCKETS, BatchReport, BudgetReport, Percent, QueueBudget, Span};
use crate::observe::event::{Event, EventKind, Scope};

/// Doorbells kept apart per queue. The driver has three batches under way at most; zero copy has 1024 contexts.
const MAX_RUNG: usize = 2048;
/// Batches kept as the worst of a queue.
const WORST: usize = 5;
/// Batches beyond the limit told one by one; all are counted.
const TOLD: u64 = 10;

/// A doorbell whose marker is to come.
#[derive(Clone, Copy, Debug)]
struct Rung {
    count: u32,
    /// One past its last descriptor.
    tail: u32,
    at: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    rung: VecDeque<Rung>,
    /// When a policy says that the descriptor in use is done.
    due: Duration,
    /// Data moved since the last marker, and whether any of it was the host's.
    moved: bool,
    host: bool,
    /// One of the driver's own.
    kernel: bool,
    report: QueueBudget,
}

/// The books of a device. Bounded by its queues.
#[derive(Debug)]
pub struct Books {
    generation: &'static Generation,
    platform: Platform,
    limit: Option<Percent>,
    pub exceeded: u64,
    queues: BTreeMap<(u8, u8), Queue>,
}

impl Books {
    pub const fn new(
        generation: &'static Generation,
        platform: Platform,
        limit: Option<Percent>,
    ) -> Self {
        Self {
            generation,
            platform,
            limit,
            exceeded: 0,
            queues: BTreeMap::new(),
        }
    }

    pub fn event(&mut self, event: &Event) {
        match (event.scope, event.kind) {
            (Scope::Queue { engine, queue }, kind) => {
                self.of_queue(engine, queue, event.at, kind);
            }
            (Scope::Device, EventKind::Disconnect) => {
                self.queues.values_mut().for_each(Queue::drop_work);
            }
            (Scope::Device, EventKind::Reset { map }) => {
                for ((engine, queue), books) in &mut self.queues {
                    if self.generation.reset_covers(map, *engine, *queue) {
                        books.drop_work();
                    }
                }
            }
            _ => {}
        }
    }

    fn of_queue(&mut self, engine: u8, queue: u8, now: Duration, kind: EventKind) {
        match kind {
            EventKind::Doorbell {
                direction: Direction::M2s,
                count,
                tail,
            } => {
                let generation = self.generation;
                let books = self.queues.entry((engine, queue)).or_insert_with(|| Queue {
                    kernel: (0..generation.cores)
                        .any(|core| generation.h2t_queue(core) == Some((engine, queue))),
                    ..Queue::default()
                });
                if books.rung.len() < MAX_RUNG {
                    books.rung.push_back(Rung {
                        count,
                        tail: tail.index,
                        at: now,
                    });
                } else {
                    books.report.untracked += 1;
                }
            }
            EventKind::Copy {
                source,
                destination,
                bytes,
                ..
            } if bytes != MARKER_SIZE => {
                let host = [source, destination]
                    .into_iter()
                    .any(|address| self.generation.host_address(address).is_some());
                if let Some(books) = self.queues.get_mut(&(engine, queue)) {
                    books.moved = true;
                    books.host |= host;
                }
            }
            EventKind::Due { at } => {
                if let Some(books) = self.queues.get_mut(&(engine, queue)) {
                    books.due = books.due.max(at);
                }
            }
            EventKind::Marker { tx, .. } => self.marker(engine, queue, now, tx),
            EventKind::QueueReset {
                direction: Direction::M2s,
                ..
            } => {
                if let Some(books) = self.queues.get_mut(&(engine, queue)) {
                    books.drop_work();
                }
            }
            _ => {}
        }
    }

    fn marker(&mut self, engine: u8, queue: u8, now: Duration, tx: u32) {
        let Some(books) = self.queues.get_mut(&(engine, queue)) else {
            return;
        };
        let device_to_device = books.moved && !books.host;
        (books.moved, books.host) = (false, false);
        let report = &mut books.report;
        report.batches += 1;
        report.device_to_device += u64::from(device_to_device);
        // The doorbell whose last descriptor this is. Earlier ones had no marker: a user's ring, or prefetch only.
        let ends = |rung: &Rung| rung.tail == tx + 1 || (rung.tail == 0 && rung.count <= tx + 1);
        let Some(nth) = books.rung.iter().position(ends) else {
            report.without_budget += 1;
            return;
        };
        let Some(rung) = books.rung.drain(..=nth).next_back() else {
            return;
        };
        let wait = if device_to_device {
            Wait::DeviceToDevice
        } else {
            Wait::Synchronous
        };
        // The device does not know the driver's version: the smaller stretch.
        let grant = |platform| {
            let estimate = self.generation.estimate;
            PollBudget::kernel(estimate, platform, Scaling::SPLIT, wait, rung.count)
        };
        let (Ok(silicon), Ok(granted)) = (grant(Platform::Silicon), grant(self.platform)) else {
            report.without_budget += 1;
            return;
        };
        let span = |us| Span(Duration::from_micros(us));
        let model = books.due.saturating_sub(rung.at);
        let wall = now.saturating_sub(rung.at);
        let (silicon_budget_us, platform_budget_us) =
            (span(silicon.total()), span(granted.total()));
        let batch = BatchReport {
            rung_at_us: Span(rung.at),
            descriptors: rung.count,
            device_to_device,
            model_us: Span(model),
            wall_us: Span(wall),
            first_wait_us: span(silicon.first_wait),
            silicon_budget_us,
            platform_budget_us,
            model_percent: Percent::of(model, silicon_budget_us.0),
            wall_percent: Percent::of(wall, platform_budget_us.0),
        };
        report.keep(batch);
        if self.limit.is_some_and(|limit| batch.model_percent > limit) {
            report.exceeded += 1;
            self.exceeded += 1;
            if self.exceeded <= TOLD {
                tracing::warn!(
                    engine,
                    queue,
                    "a batch of {} descriptors took {} in model time, {} of the {} that the driver grants on silicon (--budget-limit){}",
                    batch.descriptors,
                    batch.model_us,
                    batch.model_percent,
                    batch.silicon_budget_us,
                    if self.exceeded == TOLD {
                        "; further ones are only counted"
                    } else {
                        ""
                    },
                );
            }
        }
    }

    pub fn report(&self) -> BudgetReport {
        let mut queues: Vec<_> = self
            .queues
            .iter()
            .map(|(&(engine, queue), books)| QueueBudget {
                engine,
                queue,
                waiting: books.waiting(),
                ..books.report.clone()
            })
            .filter(|queue| queue.batches + queue.unfinished + queue.untracked + queue.waiting > 0)
            .collect();
        queues.sort_by_key(|queue| {
            std::cmp::Reverse(
                queue
                    .worst
                    .first()
                    .map(|worst| (worst.model_percent, worst.wall_percent)),
            )
        });
        BudgetReport {
            limit_percent: self.limit,
            exceeded: self.exceeded,
            buckets_percent: BUCKETS.map(Percent),
            queues,
        }
    }
}

impl Queue {
    /// Work that will never end. Doorbells of a user's queue that never had a marker end elsewhere: in a semaphore.
    fn drop_work(&mut self) {
        self.report.unfinished += self.waiting();
        self.rung.clear();
        (self.moved, self.host) = (false, false);
    }

    /// Batches that wait for their marker now.
    fn waiting(&self) -> u64 {
        if self.kernel || self.report.batches > 0 {
            u64::try_from(self.rung.len()).unwrap_or(u64::MAX)
        } else {
            0
        }
    }
}

impl QueueBudget {
    fn keep(&mut self, batch: BatchReport) {
        let bucket = |share: Percent| BUCKETS.partition_point(|bound| *bound < share.0);
        for (histogram, share) in [
            (&mut self.model_histogram, batch.model_percent),
            (&mut self.wall_histogram, batch.wall_percent),
        ] {
            if let Some(count) = histogram.get_mut(bucket(share)) {
                *count += 1;
            }
        }
        let rank = |batch: &BatchReport| (batch.model_percent, batch.wall_percent);
        let at = self
            .worst
            .partition_point(|other| rank(other) >= rank(&batch));
        if at < WORST {
            self.worst.insert(at, batch);
            self.worst.truncate(WORST);
        }
    }
}

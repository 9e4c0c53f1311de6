//! The sanitizer: a consumer of events that knows the rules of the cycle and speaks up (docs/sanitizer.md).
//!
//! It keeps bounded summaries of what is outstanding, judges each event against them, and folds what it finds. It sees
//! events only, so that it cannot change what a device does; `fatal` ends a device from outside.
mod copies;
mod descriptors;
mod doorbells;
mod faults;
mod finding;
mod mailbox;
mod maps;
mod output;
mod queue;
mod registers;
mod rule;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use neuron_protocol::generation::{Generation, QUEUES_PER_ENGINE};
use neuron_protocol::registers::Direction;

use super::event::{Event, EventKind, Interest, Observer, Prefetched, Scope};
pub use finding::{Finding, Ledger, Noted, Place};
pub use output::{json, junit, words};
pub use rule::{Rule, Severity};

use maps::Maps;
use queue::{Queue, Setup};
use registers::Spin;

/// Poll words of markers that were dropped, remembered.
const MAX_LOST_POLLS: usize = 64;
/// Poll words whose last marker is remembered.
const MAX_POLLS: usize = 4096;

/// What to do about findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Log them and go on.
    #[default]
    Warn,
    /// The first error ends the device.
    Fatal,
}

/// Called with the reason when a device is to end.
type Condemn = Box<dyn Fn(&str) + Send + Sync>;

/// The findings of a device, for those outside of its thread. Cheap to clone.
#[derive(Clone)]
pub struct Findings(Arc<Shared>);

struct Shared {
    ledger: Mutex<Ledger>,
    condemn: OnceLock<Condemn>,
}

impl Findings {
    /// What was found so far.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ends the device in [`Mode::Fatal`]. Only the first is kept.
    pub fn on_fatal(&self, condemn: impl Fn(&str) + Send + Sync + 'static) {
        // A second one has nothing to add.
        let _ = self.0.condemn.set(Box::new(condemn));
    }
}

impl std::fmt::Debug for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Findings").field(&*self.ledger()).finish()
    }
}

/// A poll word whose marker was dropped, and how often it was copied since.
#[derive(Debug)]
struct LostPoll {
    address: u64,
    copies: u64,
}

/// The observer.
pub struct Sanitizer {
    generation: &'static Generation,
    mode: Mode,
    findings: Findings,
    /// By engine and queue; made when first touched.
    queues: Vec<Option<Box<Queue>>>,
    /// Queues with pending work.
    active: Vec<usize>,
    /// Engines that software disabled.
    disabled: Vec<bool>,
    maps: Maps,
    bus_master: bool,
    /// Number of the present event.
    order: u64,
    at: Duration,
    /// When the marker of a poll word was last written, as a number of an event.
    polls: HashMap<u64, u64>,
    /// Markers on their way by message: since which event.
    sent: HashMap<u64, u64>,
    lost_polls: Vec<LostPoll>,
    /// Sequence number of the last request of the legacy mailbox.
    sequence: Option<u8>,
    spin: Spin,
}

impl Sanitizer {
    /// A sanitizer for a device at power-on, and where its findings are to be seen.
    pub fn new(generation: &'static Generation, device: u8, mode: Mode) -> (Self, Findings) {
        let findings = Findings(Arc::new(Shared {
            ledger: Mutex::new(Ledger::new(device)),
            condemn: OnceLock::new(),
        }));
        let engines = usize::from(generation.engines);
        let queues = engines * usize::from(QUEUES_PER_ENGINE);
        let sanitizer = Self {
            generation,
            mode,
            findings: findings.clone(),
            queues: (0..queues).map(|_| None).collect(),
            active: Vec::new(),
            disabled: vec![false; engines],
            maps: Maps::default(),
            bus_master: false,
            order: 0,
            at: Duration::ZERO,
            polls: HashMap::new(),
            sent: HashMap::new(),
            lost_polls: Vec::new(),
            sequence: None,
            spin: Spin::default(),
        };
        (sanitizer, findings)
    }

    fn slot(engine: u8, queue: u8) -> usize {
        usize::from(engine) * usize::from(QUEUES_PER_ENGINE) + usize::from(queue)
    }

    /// Engine and queue of a slot.
    fn place_of(slot: usize) -> (u8, u8) {
        let part = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        let per_engine = usize::from(QUEUES_PER_ENGINE);
        (part(slot / per_engine), part(slot % per_engine))
    }

    /// The state of a queue; `None` where the generation has none.
    fn queue(&mut self, engine: u8, queue: u8) -> Option<&mut Queue> {
        let slot = self.queues.get_mut(Self::slot(engine, queue))?;
        Some(slot.get_or_insert_with(Box::default))
    }

    /// Notes a finding, tells the log, and ends the device if it must.
    fn find(&self, rule: Rule, place: Place, fold: u64, detail: impl FnOnce() -> String) {
        let recorder = place
            .queue
            .and_then(|(engine, queue)| self.queues.get(Self::slot(engine, queue)))
            .and_then(Option::as_ref)
            .map(|queue| &queue.recorder);
        let events = || {
            let Some(recorder) = recorder else {
                return Vec::new();
            };
            recorder
                .iter()
                .map(|(at, kind)| format!("{:.6} s {kind}", at.as_secs_f64()))
                .collect()
        };
        let mut ledger = self.findings.ledger();
        let noted = ledger.note(self.at, rule, place, fold, detail, events);
        let Some(finding) = ledger.findings().last().filter(|_| noted == Noted::New) else {
            return;
        };
        let (engine, queue) = (finding.engine, finding.queue);
        let text = format!("{rule}: {} [{}]", finding.detail, finding.place());
        match rule.severity() {
            Severity::Error => {
                tracing::error!(engine, queue, "{text}; see {}", rule.anchor());
            }
            Severity::Suspicion => {
                tracing::warn!(engine, queue, "suspicion: {text}; see {}", rule.anchor());
            }
        }
        for event in &finding.events {
            tracing::debug!(engine, queue, "before it: {event}");
        }
        drop(ledger);
        if self.mode == Mode::Fatal
            && rule.severity() == Severity::Error
            && let Some(condemn) = self.findings.0.condemn.get()
        {
            condemn(&text);
        }
    }

    fn device_place(addresses: Vec<(&'static str, u64)>) -> Place {
        Place {
            addresses,
            ..Place::default()
        }
    }

    /// Poll words whose markers will not come any more.
    fn lose_polls(&mut self, slot: usize) {
        let Some(Some(queue)) = self.queues.get(slot) else {
            return;
        };
        for address in queue.awaited_polls() {
            if self.lost_polls.len() < MAX_LOST_POLLS
                && self.lost_polls.iter().all(|poll| poll.address != address)
            {
                self.lost_polls.push(LostPoll { address, copies: 0 });
            }
        }
    }

    /// A queue went to its power-on state.
    fn power_on(&mut self, slot: usize, setup: Setup) {
        self.lose_polls(slot);
        if let Some(Some(queue)) = self.queues.get_mut(slot) {
            queue.power_on(setup);
        }
    }

    /// A device or core reset (contract §7).
    fn reset(&mut self, map: Option<u64>) {
        let generation = self.generation;
        for slot in 0..self.queues.len() {
            let (engine, queue) = Self::place_of(slot);
            if !generation.reset_covers(map, engine, queue) {
                continue;
            }
            if map.is_none_or(|map| generation.resets_engine(map, engine)) {
                self.power_on(slot, Setup::Reset);
            } else {
                // Its registers stay, but the driver programs it again (contract §7).
                self.lose_polls(slot);
                if let Some(Some(queue)) = self.queues.get_mut(slot) {
                    for direction in Direction::BOTH {
                        queue.reset_ring(direction);
                        let ring = queue.ring_mut(direction);
                        if ring.setup == Setup::Programmed {
                            ring.setup = Setup::Reset;
                        }
                    }
                }
            }
        }
        if map.is_none() {
            self.disabled.fill(false);
            self.sequence = None;
        }
        self.forget_idle();
    }

    /// The client is gone: the next one finds a fresh device.
    fn disconnect(&mut self) {
        for slot in 0..self.queues.len() {
            if let Some(Some(queue)) = self.queues.get_mut(slot) {
                queue.power_on(Setup::Never);
                for direction in Direction::BOTH {
                    queue.ring_mut(direction).setup = Setup::Never;
                }
            }
        }
        self.disabled.fill(false);
        self.maps = Maps::default();
        self.bus_master = false;
        self.polls.clear();
        self.sent.clear();
        self.lost_polls.clear();
        self.sequence = None;
        self.spin = Spin::default();
        self.forget_idle();
    }

    /// Takes queues without pending work from the list.
    fn forget_idle(&mut self) {
        let Self { active, queues, .. } = self;
        active.retain(|slot| {
            let Some(Some(queue)) = queues.get_mut(*slot) else {
                return false;
            };
            queue.listed = queue.m2s.pending() > 0 || queue.s2m.pending() > 0;
            queue.listed
        });
    }

    fn queue_event(&mut self, engine: u8, number: u8, kind: &EventKind) {
        match *kind {
            EventKind::Doorbell {
                direction,
                count,
                tail,
            } => self.doorbell(engine, number, direction, count, tail),
            EventKind::DescriptorChanged {
                direction,
                index,
                fetched,
                found,
            } => self.changed(engine, number, direction, index, fetched, found),
            EventKind::Fetch { direction, .. } => self.fetched(engine, number, direction),
            EventKind::Copy {
                tx,
                rx,
                source,
                destination,
                bytes,
            } => self.copy(engine, number, (tx, rx), source, destination, bytes),
            EventKind::MarkerSent { address, .. } if self.sent.len() < MAX_POLLS => {
                self.sent.insert(address, self.order);
            }
            EventKind::PollSlot { tx, address } => self.stale_poll(engine, number, tx, address),
            EventKind::QueueReset { direction, dropped } => {
                self.queue_reset(engine, number, direction, dropped);
            }
            EventKind::Abort(fault) => self.abort(engine, &fault),
            _ => {}
        }
    }
}

impl Observer for Sanitizer {
    fn event(&mut self, event: &Event) {
        self.at = event.at;
        self.order += 1;
        let kind = &event.kind;
        if let Scope::Queue { engine, queue } = event.scope {
            // After the judgement: what is shown came before it.
            self.queue_event(engine, queue, kind);
            let told = matches!(
                kind,
                EventKind::PollSlot { .. }
                    | EventKind::MarkerSent { .. }
                    | EventKind::DescriptorChanged { .. }
            );
            if !told && let Some(queue) = self.queue(engine, queue) {
                queue.recorder.record(event.at, *kind);
            }
            return;
        }
        match *kind {
            EventKind::Register {
                offset,
                value,
                write,
                known,
            } => self.register(offset, value, write, known),
            EventKind::Map { iova, size } => self.maps.map(iova, size),
            EventKind::Unmap { iova, size } => self.maps.unmap(iova, size),
            EventKind::BusMaster { on } => {
                self.bus_master = on;
                if !on {
                    // The driver has gone; the next one counts from the start again.
                    self.sequence = None;
                }
            }
            EventKind::Reset { map } => self.reset(map),
            EventKind::Disconnect => self.disconnect(),
            EventKind::MailboxRequest {
                sequence,
                request,
                response,
            } => self.mailbox_request(sequence, request, response),
            EventKind::MailboxRefused(fault) => self.mailbox_refused(fault),
            _ => {}
        }
    }

    fn prefetched(&mut self, at: Duration, scope: Scope, prefetched: Prefetched<'_>) {
        self.at = at;
        self.order += 1;
        if let Scope::Queue { engine, queue } = scope {
            self.descriptors(engine, queue, prefetched);
        }
    }

    fn interest(&self) -> Interest {
        Interest {
            registers: true,
            descriptors: true,
            audit: true,
        }
    }
}

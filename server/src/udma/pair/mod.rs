//! A queue: its tx ring feeds a stream, its rx ring drains it.
//!
//! The bytes of a packet, from FIRST to LAST over any number of tx descriptors, fill rx buffers one after the other. The
//! end of a packet closes the buffer it reached. Everything happens in ring order, one transfer at a time, so that each
//! of the four barriers holds by construction: nothing is visible before what precedes it.
mod ask;
mod clock;
mod prefetch;
mod stream;
mod weak;

use std::time::Duration;

use neuron_protocol::registers::{Direction, iofic};

use super::context::Context;
use super::limits::Limits;
use super::ring::Ring;
use super::{Fault, FaultKind, Request};
use crate::observe::event::{EventKind, Scope};
use crate::observe::recorder::Recorder;
use ask::Policed;
use clock::Clock;
use stream::{Rx, Tx};
use weak::Weak;

/// How a step ended.
#[derive(Debug)]
pub enum Step {
    /// Something moved; more may.
    Progress {
        /// Bytes moved.
        bytes: u32,
    },
    /// Nothing can move until a register is written.
    Blocked,
    /// A policy stalls the engine until this time; [`Duration::MAX`] is until its reset.
    Stall(Duration),
    /// An access that somebody else must make; [`Pair::complete`] goes on from there.
    Request(Request),
    /// A policy lets nothing move before this device time.
    Until(Duration),
    /// The engine must stop.
    Fault(Fault),
}

/// An access that is not made here and now.
#[derive(Debug, Default)]
enum Pending {
    #[default]
    None,
    /// Descriptors of a ring are on their way.
    Fetch(Direction),
    /// Bytes of the current source are on their way.
    Read,
    /// Bytes of the current source are here.
    Have(Vec<u8>),
    /// That many bytes are on their way to the current destination.
    Write { bytes: u32, marker: bool },
    /// Bytes of the window are on their way.
    Land,
}

/// Both rings of a queue and the stream between them.
#[derive(Debug)]
pub struct Pair {
    engine: u8,
    queue: u8,
    /// Sources.
    pub m2s: Ring,
    /// Destinations.
    pub s2m: Ring,
    tx: Option<Tx>,
    rx: Option<Rx>,
    /// Descriptors of the open packet so far; 0 between packets.
    packet: u32,
    /// Bytes of the open packet so far.
    packet_bytes: u32,
    pending: Pending,
    /// The request whose answer `pending` waits for.
    pub ticket: Option<u64>,
    /// Address and length of that request.
    asked: (u64, u64),
    /// Causes that did not stop the engine and are still to be latched, m2s and s2m.
    pub latched: [u32; 2],
    /// What a policy decided; nothing on a device without one.
    policed: Option<Box<Policed>>,
    /// Descriptors with `INT_EN` were done, m2s and s2m.
    pub completed: [bool; 2],
    /// In the engine's list of queues with work.
    pub queued: bool,
    /// Waits for this device time.
    pub wakes_at: Option<Duration>,
    /// When its work is done in model time; nothing on a device where work takes no time.
    clock: Option<Box<Clock>>,
    /// What an adversary lets it do; nothing on a device without one.
    weak: Option<Box<Weak>>,
    /// The last doorbell: when, which ring, how many.
    pub last_doorbell: Option<(Duration, Direction, u32)>,
    /// Its last events.
    pub recorder: Recorder,
}

impl Pair {
    /// A queue as after power-on.
    pub fn new(engine: u8, queue: u8) -> Self {
        Self {
            engine,
            queue,
            m2s: Ring::new(Direction::M2s),
            s2m: Ring::new(Direction::S2m),
            tx: None,
            rx: None,
            packet: 0,
            packet_bytes: 0,
            pending: Pending::None,
            ticket: None,
            asked: (0, 0),
            latched: [0; 2],
            policed: None,
            completed: [false; 2],
            queued: false,
            wakes_at: None,
            clock: None,
            weak: None,
            last_doorbell: None,
            recorder: Recorder::default(),
        }
    }

    /// The ring of a direction.
    pub const fn ring(&self, direction: Direction) -> &Ring {
        match direction {
            Direction::M2s => &self.m2s,
            Direction::S2m => &self.s2m,
        }
    }

    /// The ring of a direction.
    pub const fn ring_mut(&mut self, direction: Direction) -> &mut Ring {
        match direction {
            Direction::M2s => &mut self.m2s,
            Direction::S2m => &mut self.s2m,
        }
    }

    /// Inside a packet: its LAST has not been taken.
    pub const fn in_packet(&self) -> bool {
        self.packet > 0
    }

    /// Model time until which it has booked its engine.
    pub fn booked(&self) -> Duration {
        self.clock
            .as_ref()
            .map_or(Duration::ZERO, |clock| clock.booked())
    }

    /// Waits for an access made elsewhere.
    pub const fn awaits(&self) -> bool {
        matches!(
            self.pending,
            Pending::Fetch(_) | Pending::Read | Pending::Write { .. } | Pending::Land
        )
    }

    /// Address and bytes of that access.
    pub fn awaited(&self) -> Option<(u64, u64)> {
        self.awaits().then_some(self.asked)
    }

    /// Drops the stream and one ring's pending work (contract §5.4). Returns the descriptors dropped.
    pub fn reset(&mut self, direction: Direction) -> u32 {
        self.tx = None;
        self.rx = None;
        self.packet = 0;
        self.packet_bytes = 0;
        self.pending = Pending::None;
        self.clock = None;
        self.policed = None;
        self.weak = None;
        self.m2s.keep_up();
        self.s2m.keep_up();
        self.ring_mut(direction).reset()
    }

    /// Adds to a tail.
    ///
    /// # Errors
    /// The doorbell breaks a rule; the engine must stop.
    pub fn doorbell(
        &mut self,
        direction: Direction,
        count: u32,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        cx.totals.doorbells += 1;
        self.weaken(cx);
        self.last_doorbell = Some((cx.now, direction, count));
        let ring = self.ring_mut(direction);
        let (length, outstanding) = (ring.length(), ring.outstanding);
        let kind = if length == 0 {
            Some(FaultKind::RingUnset)
        } else if !ring.is_aligned() {
            Some(FaultKind::RingMisaligned { length })
        } else if count > length - outstanding.min(length) {
            Some(FaultKind::TailOverrun {
                count,
                outstanding,
                length,
            })
        } else {
            None
        };
        if let Some(kind) = kind {
            let (index, address) = (ring.tail.index, ring.address_of(ring.tail.index));
            return Err(self.fault(direction, index, address, kind));
        }
        ring.ring(count);
        let tail = ring.tail;
        if cx.policies.timing().is_some() {
            let clock = self.clock.get_or_insert_default();
            clock.rung(direction, count, cx.now);
        }
        self.record(
            cx,
            EventKind::Doorbell {
                direction,
                count,
                tail,
            },
        );
        Ok(())
    }

    /// Does the next small thing: a fetch, or up to one descriptor's bytes, at most `most`.
    pub fn step(&mut self, limits: Limits, most: u32, cx: &mut Context<'_>) -> Step {
        if let Some(until) = self.held(cx.now) {
            return Step::Until(until);
        }
        let result = match std::mem::take(&mut self.pending) {
            Pending::None if self.is_weak() => self.weak_step(limits, most, cx),
            Pending::None => self.advance(limits, most, cx),
            Pending::Have(bytes) if !self.stopped() => self.put(bytes, limits, cx),
            awaiting => {
                self.pending = awaiting;
                Ok(Step::Blocked)
            }
        };
        if let Ok(Step::Request(request)) = &result {
            self.asked = request.place();
        }
        result.unwrap_or_else(|fault| {
            self.lose_window();
            Step::Fault(fault)
        })
    }

    /// Takes the answer to a [`Request`].
    ///
    /// # Errors
    /// The access failed; the engine must stop.
    pub fn complete(
        &mut self,
        reply: Result<Vec<u8>, FaultKind>,
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let pending = std::mem::take(&mut self.pending);
        let bytes = match reply {
            Ok(bytes) => bytes,
            Err(kind) => {
                let landing = self.landing();
                self.lose_window();
                let (direction, index, address) = match pending {
                    Pending::Fetch(direction) => {
                        let ring = self.ring(direction);
                        (direction, ring.head.index, ring.address_of(ring.head.index))
                    }
                    Pending::Land => {
                        let (index, address) = landing.unwrap_or_default();
                        (Direction::S2m, index, address)
                    }
                    Pending::Write { .. } => (
                        Direction::S2m,
                        self.rx.as_ref().map_or(0, |rx| rx.index),
                        self.rx.as_ref().map_or(0, |rx| rx.address),
                    ),
                    _ => (
                        Direction::M2s,
                        self.tx.as_ref().map_or(0, |tx| tx.index),
                        self.tx.as_ref().map_or(0, |tx| tx.address),
                    ),
                };
                return Err(self.fault(direction, index, address, kind));
            }
        };
        match pending {
            Pending::Fetch(direction) => return self.fetched(direction, &bytes, limits, cx),
            Pending::Read => self.pending = Pending::Have(bytes),
            Pending::Write { bytes, marker } => self.landed(bytes, marker, cx),
            Pending::Land => self.complete_landing(cx),
            other => self.pending = other,
        }
        Ok(())
    }

    fn advance(&mut self, limits: Limits, most: u32, cx: &mut Context<'_>) -> Result<Step, Fault> {
        // Buffers are prefetched as soon as they are rung for, with or without a source (seed §3: rx-only trigger).
        for direction in [Direction::S2m, Direction::M2s] {
            if self.fetches(direction, cx)
                && self.ring(direction).cfg.prefetch()
                && let Some((address, count)) = self.ring(direction).next_fetch()
            {
                let count = self.fetch_count(direction, count, cx);
                return self.fetch(direction, address, count, limits, cx);
            }
        }
        if !(self.m2s.cfg.schedule() && self.s2m.cfg.schedule()) || self.stopped() {
            return Ok(Step::Blocked);
        }
        if self.tx.is_none() {
            self.audit(Direction::M2s, cx);
            let Some(raw) = self.m2s.fetched.pop_front() else {
                return Ok(Step::Blocked);
            };
            self.tx = Some(self.take_tx(&raw, limits, cx)?);
        }
        if self.rx.is_none() {
            self.audit(Direction::S2m, cx);
            let Some(raw) = self.s2m.fetched.pop_front() else {
                // A hint to software, not an error: the tx side waits for its rx doorbell (udma §8).
                self.latched[1] |= 1 << iofic::s2m::NO_DESCRIPTOR_HINT;
                if let Some(clock) = &mut self.clock {
                    clock.starve();
                }
                return Ok(Step::Blocked);
            };
            self.rx = Some(self.take_rx(&raw, cx)?);
        }
        if let Some(timing) = cx.policies.timing()
            && let Some(tx) = &self.tx
        {
            let clock = self.clock.get_or_insert_default();
            let (due, new) = clock.due(limits.free_at, || timing.cost(tx.left));
            if new {
                self.emit(cx, EventKind::Due { at: due });
            }
            if due > cx.now {
                return Ok(Step::Until(due));
            }
        }
        self.copy(limits, most, cx)
    }

    /// Meets a fault: stops the engine, or only latches the cause where software masked it.
    fn refuse(&mut self, limits: Limits, fault: Fault) -> Result<(), Fault> {
        if limits.stops(&fault) {
            return Err(fault);
        }
        match fault.cause() {
            Some((iofic::Group::M2S, bit)) => self.latched[0] |= 1 << bit,
            Some((_, bit)) => self.latched[1] |= 1 << bit,
            None => {}
        }
        Ok(())
    }

    fn record(&mut self, cx: &mut Context<'_>, kind: EventKind) {
        self.recorder.record(cx.now, kind);
        self.emit(cx, kind);
    }

    fn emit(&self, cx: &mut Context<'_>, kind: EventKind) {
        cx.observers.emit(self.scope(), kind);
    }

    /// Where events of it happen.
    const fn scope(&self) -> Scope {
        Scope::Queue {
            engine: self.engine,
            queue: self.queue,
        }
    }

    const fn fault(
        &self,
        direction: Direction,
        index: u32,
        address: u64,
        kind: FaultKind,
    ) -> Fault {
        Fault {
            queue: self.queue,
            direction,
            index,
            address,
            kind,
        }
    }
}

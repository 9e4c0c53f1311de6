//! The DMA engines.
//!
//! Work is done in bounded slices, queue by queue. An access that cannot be made here and now (guest memory behind
//! messages, registers) leaves as a [`Request`] and the queue waits for its [`Udma::complete`]; others go on.
mod context;
mod doorbells;
mod engine;
mod fault;
mod iofic;
mod late;
mod limits;
mod pair;
mod ring;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use neuron_protocol::generation::{Generation, QUEUES_PER_ENGINE};
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::engine::EngineLocation;
use neuron_protocol::registers::queue::{DRTP_INC, INDEX_MASK, sw_ctrl};

pub use context::{Context, Totals};
pub use engine::{Effect, Engine};
pub use fault::{Fault, FaultKind};
pub use late::{LateWrite, LateWrites};
pub use pair::{Pair, Step};
pub use ring::Ring;

use crate::policy::{Point, Verdict};
use doorbells::{Doorbell, LateDoorbells};

/// An access that an engine needs somebody else to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Guest memory without a file behind it.
    ReadGuest {
        /// First I/O virtual address.
        iova: u64,
        /// Bytes.
        len: usize,
    },
    /// Guest memory without a file behind it.
    WriteGuest {
        /// First I/O virtual address.
        iova: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Part of one register.
    ReadRegister {
        /// Offset in the register BAR.
        offset: u64,
        /// Bytes, at most 4.
        len: usize,
    },
    /// Part of one register.
    WriteRegister {
        /// Offset in the register BAR.
        offset: u64,
        /// The bytes, at most 4.
        data: Vec<u8>,
    },
}

impl Request {
    /// First address or register offset, and bytes.
    fn place(&self) -> (u64, u64) {
        match self {
            Self::ReadGuest { iova: at, len } | Self::ReadRegister { offset: at, len } => {
                (*at, *len as u64)
            }
            Self::WriteGuest { iova: at, data } | Self::WriteRegister { offset: at, data } => {
                (*at, data.len() as u64)
            }
        }
    }
}

/// How a slice ended.
#[derive(Debug)]
pub enum Slice {
    /// No queue can move.
    Idle,
    /// The slice is used up.
    Again,
    /// An access to make; call again afterwards.
    Request {
        /// For [`Udma::complete`].
        id: u64,
        /// The access.
        request: Request,
    },
}

/// What a policy lets be heard of a doorbell.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    count: u32,
    twice: bool,
}

/// Bytes a queue moves before the next one has its turn.
const TURN_BYTES: u64 = 256 << 10;
/// What any step costs of a slice, in bytes: 2^24 tiny descriptors must not outlast it either.
const STEP_COST: u64 = 256;
/// What an access to a register costs of a slice, in bytes: it may start a mailbox, stop an engine, write to the log.
const REGISTER_COST: u64 = 8 << 10;

/// All engines of a device.
#[derive(Debug)]
pub struct Udma {
    engines: Vec<Engine>,
    /// Queues that may have work, in order of turns.
    ready: VecDeque<(u8, u8)>,
    /// Queues that wait for an access, by the access's id.
    waiting: HashMap<u64, (u8, u8)>,
    /// Queues that a policy lets wait for a time; each once, as its `wakes_at` says.
    sleeping: BTreeSet<(Duration, u8, u8)>,
    doorbells: LateDoorbells,
    next_id: u64,
    /// Engines that interrupt, each once.
    raised: Vec<u8>,
}

impl Udma {
    /// The engines of a generation as after power-on.
    pub fn new(generation: &Generation) -> Self {
        Self {
            engines: (0..generation.engines).map(Engine::new).collect(),
            ready: VecDeque::new(),
            waiting: HashMap::new(),
            sleeping: BTreeSet::new(),
            doorbells: LateDoorbells::default(),
            next_id: 0,
            raised: Vec::new(),
        }
    }

    /// The engines, by number.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Power-on state for the engines chosen; their pending work is dropped, requests under way are forgotten.
    pub fn reset(&mut self, mut chosen: impl FnMut(u8) -> bool) {
        self.ready.retain(|(engine, _)| !chosen(*engine));
        self.waiting.retain(|_, (engine, _)| !chosen(*engine));
        self.sleeping.retain(|(_, engine, _)| !chosen(*engine));
        self.doorbells.forget(|engine, _| chosen(engine));
        self.raised.retain(|engine| !chosen(*engine));
        for number in 0..u8::try_from(self.engines.len()).unwrap_or(u8::MAX) {
            if chosen(number) {
                self.engines[usize::from(number)].reset();
            }
        }
    }

    /// The engines that have raised their interrupt since the last call. What it tells of has landed.
    pub fn take_raised(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.raised)
    }

    /// Notes an engine that interrupts now.
    fn collect(&mut self, engine: u8) {
        if let Some(unit) = self.engines.get_mut(usize::from(engine))
            && unit.interrupts()
            && !self.raised.contains(&engine)
        {
            self.raised.push(engine);
        }
    }

    /// Drops the pending work of one queue, as its own reset bits would.
    pub fn reset_queue(&mut self, engine: u8, queue: u8) {
        if let Some(pair) = self
            .engines
            .get_mut(usize::from(engine))
            .and_then(|engine| engine.pair_mut(queue))
        {
            for direction in Direction::BOTH {
                pair.reset(direction);
            }
        }
        self.doorbells.forget(|e, q| (e, q) == (engine, queue));
    }

    /// Reads a register; `None` where it is plain storage.
    pub fn read(&mut self, engine: u8, location: EngineLocation) -> Option<u32> {
        self.engines.get_mut(usize::from(engine))?.read(location)
    }

    /// Writes a register. Returns whether the register file should keep the value.
    pub fn write(
        &mut self,
        engine: u8,
        location: EngineLocation,
        value: u32,
        cx: &mut Context<'_>,
    ) -> bool {
        let mut value = value;
        let mut again = false;
        if let EngineLocation::Queue {
            direction,
            queue,
            offset,
        } = location
        {
            if offset == DRTP_INC {
                let doorbell = Doorbell {
                    engine,
                    queue,
                    direction,
                    count: value & INDEX_MASK,
                };
                match self.admit(doorbell, cx) {
                    Some(Admitted { count, twice }) => (value, again) = (count, twice),
                    None => return false,
                }
            } else if offset == sw_ctrl(direction) {
                // What was rung for before a reset is not rung after it.
                self.doorbells.forget(|e, q| (e, q) == (engine, queue));
            }
        }
        if again {
            self.apply(engine, location, value, cx);
        }
        self.apply(engine, location, value, cx)
    }

    fn apply(
        &mut self,
        engine: u8,
        location: EngineLocation,
        value: u32,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(unit) = self.engines.get_mut(usize::from(engine)) else {
            return true;
        };
        let effect = unit.write(location, value, cx);
        self.collect(engine);
        match effect {
            Effect::Done => false,
            Effect::Store => true,
            Effect::Wake(queue) => {
                self.wake(engine, queue);
                false
            }
            Effect::WakeAll => {
                (0..QUEUES_PER_ENGINE).for_each(|queue| self.wake(engine, queue));
                false
            }
        }
    }

    /// Asks whether a doorbell is heard.
    fn admit(&mut self, doorbell: Doorbell, cx: &mut Context<'_>) -> Option<Admitted> {
        let Doorbell {
            engine,
            queue,
            direction,
            count,
        } = doorbell;
        let point = Point::Doorbell {
            engine,
            queue,
            direction,
            count,
        };
        let mut admitted = Admitted {
            count,
            twice: false,
        };
        match cx.policies.judge(cx.now, point) {
            Verdict::Drop => return None,
            // With too many put off already, it is not.
            Verdict::Delay(by)
                if by > Duration::ZERO
                    && self.doorbells.put_off(cx.now.saturating_add(by), doorbell) =>
            {
                return None;
            }
            Verdict::Duplicate(_) => admitted.twice = true,
            Verdict::Shift(by) => admitted.count = count.saturating_add_signed(by) & INDEX_MASK,
            Verdict::Stop(after) => {
                let unit = self.engines.get_mut(usize::from(engine));
                if let Some(pair) = unit.and_then(|unit| unit.pair_mut(queue)) {
                    pair.stop_after(after);
                }
            }
            Verdict::Stall(by) => {
                if let Some(unit) = self.engines.get_mut(usize::from(engine)) {
                    unit.stall(by.map_or(Duration::MAX, |by| cx.now.saturating_add(by)));
                }
            }
            _ => {}
        }
        Some(admitted)
    }

    /// Bus mastering was turned on: whatever waited for it goes on.
    pub fn wake_all(&mut self) {
        for engine in 0..u8::try_from(self.engines.len()).unwrap_or(u8::MAX) {
            for queue in 0..QUEUES_PER_ENGINE {
                self.wake(engine, queue);
            }
        }
    }

    fn wake(&mut self, engine: u8, queue: u8) {
        let Some(pair) = self
            .engines
            .get_mut(usize::from(engine))
            .and_then(|engine| engine.pair_mut(queue))
        else {
            return;
        };
        let work = pair.m2s.outstanding > 0 || pair.s2m.unfetched > 0 || pair.is_draining();
        if work && !pair.queued && !pair.awaits() {
            pair.queued = true;
            self.ready.push_back((engine, queue));
        }
    }

    /// The first device time at which something that waits for its time can go on.
    pub fn next_wake(&self) -> Option<Duration> {
        let queue = self.sleeping.first().map(|(at, ..)| *at);
        queue.into_iter().chain(self.doorbells.next()).min()
    }

    /// Lets a queue wait for a time.
    fn sleep(&mut self, engine: u8, queue: u8, at: Duration) {
        // Until a reset, which starts afresh.
        if at == Duration::MAX {
            return;
        }
        let pair = self
            .engines
            .get_mut(usize::from(engine))
            .and_then(|engine| engine.pair_mut(queue));
        if let Some(pair) = pair {
            if let Some(before) = pair.wakes_at.replace(at) {
                self.sleeping.remove(&(before, engine, queue));
            }
            self.sleeping.insert((at, engine, queue));
        }
    }

    /// Gives the queues whose time has come their turn, and rings the doorbells put off.
    fn wake_due(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        while let Some(&(at, engine, queue)) = self.sleeping.first()
            && at <= now
        {
            self.sleeping.pop_first();
            if let Some(pair) = self
                .engines
                .get_mut(usize::from(engine))
                .and_then(|engine| engine.pair_mut(queue))
            {
                pair.wakes_at = None;
            }
            self.wake(engine, queue);
        }
        while let Some(doorbell) = self.doorbells.due(now) {
            let location = EngineLocation::Queue {
                direction: doorbell.direction,
                queue: doorbell.queue,
                offset: DRTP_INC,
            };
            self.apply(doorbell.engine, location, doorbell.count, cx);
        }
    }

    /// A queue has its turn in the next slice.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Works until `slice` bytes are used up, nothing can move, or an access is needed.
    pub fn run(&mut self, slice: &mut u64, cx: &mut Context<'_>) -> Slice {
        self.wake_due(cx);
        while let Some((number, queue)) = self.ready.pop_front() {
            let Some(engine) = self.engines.get_mut(usize::from(number)) else {
                continue;
            };
            if let Some(pair) = engine.pair_mut(queue) {
                pair.queued = false;
            }
            let mut turn = TURN_BYTES.min(*slice);
            while turn > 0 {
                // What is left of a turn must not cut a marker in two.
                let most = u32::try_from(turn.max(STEP_COST)).unwrap_or(u32::MAX);
                let step = engine.step(queue, most, cx);
                if engine.interrupts() && !self.raised.contains(&number) {
                    self.raised.push(number);
                }
                let cost = match &step {
                    Step::Progress { bytes } => u64::from(*bytes).max(STEP_COST),
                    Step::Request(Request::ReadRegister { .. } | Request::WriteRegister { .. }) => {
                        REGISTER_COST
                    }
                    Step::Request(_) => STEP_COST,
                    Step::Until(at) => {
                        self.sleep(number, queue, *at);
                        break;
                    }
                    Step::Blocked | Step::Stall(_) | Step::Fault(_) => break,
                };
                *slice = slice.saturating_sub(cost);
                turn = turn.saturating_sub(cost);
                if let Step::Request(request) = step {
                    let id = self.next_id;
                    self.next_id += 1;
                    // A queue that was reset while it waited has one that nobody answers any more.
                    if let Some(pair) = engine.pair_mut(queue)
                        && let Some(before) = pair.ticket.replace(id)
                    {
                        self.waiting.remove(&before);
                    }
                    self.waiting.insert(id, (number, queue));
                    debug_assert!(
                        self.waiting.len() <= self.engines.len() * usize::from(QUEUES_PER_ENGINE),
                        "a queue waits for one access at a time"
                    );
                    return Slice::Request { id, request };
                }
            }
            if turn == 0 {
                self.wake(number, queue);
            }
            if *slice == 0 && !self.ready.is_empty() {
                return Slice::Again;
            }
        }
        Slice::Idle
    }

    /// Whether a queue still waits for the answer to a request; a reset may have made it forget.
    pub fn awaits(&self, id: u64) -> bool {
        let Some((engine, queue)) = self.waiting.get(&id) else {
            return false;
        };
        self.engines
            .get(usize::from(*engine))
            .and_then(|engine| engine.pairs().get(usize::from(*queue)))
            .is_some_and(|pair| pair.awaits() && pair.ticket == Some(id))
    }

    /// Takes the answer to a request. One that was dropped by a reset meanwhile is ignored.
    pub fn complete(&mut self, id: u64, reply: Result<Vec<u8>, FaultKind>, cx: &mut Context<'_>) {
        // The queue may have been reset since, and wait for something else by now.
        let current = self.awaits(id);
        let Some((number, queue)) = self.waiting.remove(&id).filter(|_| current) else {
            return;
        };
        let Some(engine) = self.engines.get_mut(usize::from(number)) else {
            return;
        };
        engine.complete(queue, reply, cx);
        if engine.interrupts() && !self.raised.contains(&number) {
            self.raised.push(number);
        }
        if let Some(pair) = engine.pair_mut(queue)
            && !pair.queued
        {
            pair.queued = true;
            // Its turn was only interrupted.
            self.ready.push_front((number, queue));
        }
    }
}

//! One DMA engine: sixteen queues, two units, and the state that stops them all.
use std::time::Duration;

use neuron_protocol::generation::QUEUES_PER_ENGINE;
use neuron_protocol::registers::engine::{
    self, CfgLen, ChangeState, DescPrefCfg2, EngineLocation, M2S_CFG_LEN, M2S_DESC_PREF_CFG_2,
    Machine, unit,
};
use neuron_protocol::registers::queue::{self, INDEX_MASK, SwCtrl};
use neuron_protocol::registers::{Direction, iofic};

use super::context::Context;
use super::iofic::Iofic;
use super::limits::Limits;
use super::pair::{Pair, Step};
use super::{Fault, FaultKind};
use crate::observe::event::{EventKind, Scope};

/// What a register write leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing; the register keeps no value elsewhere either.
    Done,
    /// A plain register: keep the value in the register file.
    Store,
    /// A queue may have work.
    Wake(u8),
    /// Every queue may have work.
    WakeAll,
}

/// A DMA engine.
#[derive(Debug)]
pub struct Engine {
    number: u8,
    /// As after power-on: nothing was written since.
    pristine: bool,
    /// Its queues; empty until one of them is written, for most engines are never used.
    pairs: Vec<Pair>,
    iofic: Iofic,
    fault: Option<Fault>,
    /// A policy lets it do nothing before this time.
    stalled: Option<Duration>,
    disabled: bool,
    max_descriptors: u8,
    max_packet: u32,
    /// Last error per unit: the descriptor's place and address. What hardware puts into the four words is not public.
    log: [[u32; 4]; 2],
    err_log_mask: [u32; 2],
    /// Model time at which it has done what it took on so far: its queues share it.
    free_at: Duration,
}

impl Engine {
    /// An engine as after power-on: enabled, idle (contract §5.3: it must take work without a change of state).
    pub fn new(number: u8) -> Self {
        Self {
            number,
            pristine: true,
            pairs: Vec::new(),
            iofic: Iofic::default(),
            fault: None,
            stalled: None,
            disabled: false,
            max_descriptors: 0,
            max_packet: 0,
            log: [[0; 4]; 2],
            err_log_mask: [0; 2],
            free_at: Duration::ZERO,
        }
    }

    /// Power-on state; the flight recorders go on, for they are read after a reset.
    pub fn reset(&mut self) {
        // A guest may ask for resets without end; each costs what was done since the last.
        if self.pristine {
            return;
        }
        let mut fresh = Self::new(self.number);
        if !self.pairs.is_empty() {
            fresh.power_queues();
        }
        for (pair, old) in fresh.pairs.iter_mut().zip(&mut self.pairs) {
            pair.recorder = std::mem::take(&mut old.recorder);
            pair.last_doorbell = old.last_doorbell;
        }
        *self = fresh;
    }

    fn power_queues(&mut self) {
        self.pairs = (0..QUEUES_PER_ENGINE)
            .map(|queue| Pair::new(self.number, queue))
            .collect();
    }

    /// Its queues; none if no queue was written since power-on.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Registers that are kept as written and mean something all the same.
    pub const fn obeys(direction: Direction, offset: u32) -> bool {
        matches!(
            (direction, offset),
            (_, unit::ERR_LOG_MASK) | (Direction::M2s, M2S_DESC_PREF_CFG_2 | M2S_CFG_LEN)
        )
    }

    /// One queue, if any was written since power-on.
    pub fn pair_mut(&mut self, queue: u8) -> Option<&mut Pair> {
        self.pairs.get_mut(usize::from(queue))
    }

    /// Why it is stopped.
    pub const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Does the next small thing of a queue. A fault stops the engine here.
    pub fn step(&mut self, queue: u8, most: u32, cx: &mut Context<'_>) -> Step {
        if let Some(until) = self.stalled {
            if until > cx.now {
                return Step::Until(until);
            }
            self.stalled = None;
        }
        let (runs, limits) = (self.runs(), self.limits());
        let Some(pair) = self.pairs.get_mut(usize::from(queue)).filter(|_| runs) else {
            return Step::Blocked;
        };
        let step = pair.step(limits, most, cx);
        self.free_at = self.free_at.max(pair.booked());
        self.collect(queue);
        match step {
            Step::Fault(fault) => {
                self.abort(fault, cx);
                Step::Blocked
            }
            Step::Stall(until) => {
                self.stall(until);
                Step::Until(until)
            }
            step => step,
        }
    }

    /// A policy lets it do nothing before this time.
    pub fn stall(&mut self, until: Duration) {
        self.stalled = Some(until);
    }

    /// Latches what a queue has to tell.
    fn collect(&mut self, queue: u8) {
        let Some(pair) = self.pairs.get_mut(usize::from(queue)) else {
            return;
        };
        let latched = std::mem::take(&mut pair.latched);
        for (group, causes) in [iofic::Group::M2S, iofic::Group::S2M]
            .into_iter()
            .zip(latched)
        {
            self.iofic.latch(group, causes);
        }
        let completed = std::mem::take(&mut pair.completed);
        for (group, done) in [iofic::Group::TX, iofic::Group::RX]
            .into_iter()
            .zip(completed)
        {
            self.iofic.latch(group, u32::from(done) << queue);
        }
    }

    /// Whether it has begun to interrupt since the last call.
    pub fn interrupts(&mut self) -> bool {
        self.iofic.interrupts()
    }

    /// Takes work.
    const fn runs(&self) -> bool {
        self.fault.is_none() && !self.disabled
    }

    /// The settings that its queues obey.
    fn limits(&self) -> Limits {
        Limits {
            max_descriptors: self.max_descriptors,
            max_packet: self.max_packet,
            aborting: [
                self.iofic.aborting(iofic::Group::M2S),
                self.iofic.aborting(iofic::Group::S2M),
            ],
            free_at: self.free_at,
        }
    }

    /// Stops on an error: cause latched, log filled, sticky until software recovers (udma §5, §9).
    pub fn abort(&mut self, fault: Fault, cx: &mut Context<'_>) {
        if let Some((group, bit)) = fault.cause() {
            self.iofic.latch(group, 1 << bit);
            if self.err_log_mask[unit_index(fault.direction)] & 1 << bit == 0 {
                let address = fault.address.to_le_bytes();
                let half = |at: usize| {
                    u32::from_le_bytes([
                        address[at],
                        address[at + 1],
                        address[at + 2],
                        address[at + 3],
                    ])
                };
                self.log[unit_index(fault.direction)] =
                    [u32::from(fault.queue), fault.index, half(0), half(4)];
            }
        }
        self.fault = Some(fault);
        cx.totals.aborts += 1;
        let kind = EventKind::Abort(fault);
        if let Some(pair) = self.pair_mut(fault.queue) {
            pair.recorder.record(cx.now, kind);
        }
        cx.observers.emit(
            Scope::Queue {
                engine: self.number,
                queue: fault.queue,
            },
            kind,
        );
    }

    fn recover(&mut self, cx: &mut Context<'_>) {
        if let Some(fault) = self.fault.take() {
            cx.observers.emit(
                Scope::Queue {
                    engine: self.number,
                    queue: fault.queue,
                },
                EventKind::Recovered,
            );
        }
    }

    fn machine(&self) -> Machine {
        if self.fault.is_some() {
            Machine::Abort
        } else if self
            .pairs
            .iter()
            .any(|pair| pair.m2s.outstanding > 0 || pair.is_draining())
        {
            Machine::Normal
        } else {
            Machine::Idle
        }
    }

    /// Reads a register; `None` where it is plain storage.
    pub fn read(&mut self, location: EngineLocation) -> Option<u32> {
        match location {
            EngineLocation::Queue {
                direction,
                queue,
                offset,
            } if self.pairs.is_empty() => {
                let pair = (queue < QUEUES_PER_ENGINE).then(|| Pair::new(self.number, queue))?;
                pair.ring(direction).read(offset)
            }
            EngineLocation::Queue {
                direction,
                queue,
                offset,
            } => self
                .pairs
                .get(usize::from(queue))?
                .ring(direction)
                .read(offset),
            EngineLocation::Iofic { group, offset } => self.iofic.read(group, offset),
            EngineLocation::Unit { direction, offset } => match (direction, offset) {
                (_, unit::STATE) => Some(engine::state(self.machine(), direction)),
                (_, unit::CHANGE_STATE | unit::CLEAR_ERR_LOG) => Some(0),
                (_, unit::LOG_0..=unit::LOG_3) => self.log[unit_index(direction)]
                    .get((offset - unit::LOG_0) as usize / 4)
                    .copied(),
                _ => None,
            },
            EngineLocation::General { .. } => None,
        }
    }

    /// Writes a register.
    pub fn write(&mut self, location: EngineLocation, value: u32, cx: &mut Context<'_>) -> Effect {
        self.pristine = false;
        match location {
            EngineLocation::Queue {
                direction,
                queue,
                offset,
            } => self.write_queue(direction, queue, offset, value, cx),
            EngineLocation::Iofic { group, offset } => {
                if self.iofic.write(group, offset, value) {
                    Effect::Done
                } else {
                    Effect::Store
                }
            }
            EngineLocation::Unit { direction, offset } => {
                self.write_unit(direction, offset, value, cx)
            }
            EngineLocation::General { .. } => Effect::Store,
        }
    }

    fn write_unit(
        &mut self,
        direction: Direction,
        offset: u32,
        value: u32,
        cx: &mut Context<'_>,
    ) -> Effect {
        match (direction, offset) {
            (_, unit::CHANGE_STATE) => {
                let change = ChangeState::from_bits(value);
                if change.abort() {
                    let kind = FaultKind::Requested;
                    self.abort(
                        Fault {
                            queue: 0,
                            direction,
                            index: 0,
                            address: 0,
                            kind,
                        },
                        cx,
                    );
                } else if change.disable() {
                    self.disabled = true;
                } else if change.normal() {
                    self.disabled = false;
                    self.recover(cx);
                    return Effect::WakeAll;
                }
                Effect::Done
            }
            (_, unit::ERR_LOG_MASK) => {
                self.err_log_mask[unit_index(direction)] = value;
                Effect::Store
            }
            (_, unit::CLEAR_ERR_LOG) => {
                self.log[unit_index(direction)] = [0; 4];
                Effect::Done
            }
            (_, unit::STATE | unit::LOG_0..=unit::LOG_3) => Effect::Done,
            (Direction::M2s, M2S_DESC_PREF_CFG_2) => {
                self.max_descriptors = DescPrefCfg2::from_bits(value).max_descriptors();
                Effect::Store
            }
            (Direction::M2s, M2S_CFG_LEN) => {
                self.max_packet = CfgLen::from_bits(value).max_packet();
                Effect::Store
            }
            _ => Effect::Store,
        }
    }

    /// Takes the answer to a queue's request. A fault stops the engine here.
    pub fn complete(&mut self, queue: u8, reply: Result<Vec<u8>, FaultKind>, cx: &mut Context<'_>) {
        let limits = self.limits();
        if let Some(pair) = self.pair_mut(queue)
            && let Err(fault) = pair.complete(reply, limits, cx)
        {
            self.abort(fault, cx);
        }
        self.collect(queue);
    }

    fn write_queue(
        &mut self,
        direction: Direction,
        number: u8,
        offset: u32,
        value: u32,
        cx: &mut Context<'_>,
    ) -> Effect {
        let stopped = self.fault.is_some();
        if self.pairs.is_empty() {
            self.power_queues();
        }
        let Some(pair) = self.pairs.get_mut(usize::from(number)) else {
            return Effect::Store;
        };
        match offset {
            queue::DRTP_INC => {
                if stopped {
                    return Effect::Done;
                }
                match pair.doorbell(direction, value & INDEX_MASK, cx) {
                    Ok(()) => Effect::Wake(number),
                    Err(fault) => {
                        self.abort(fault, cx);
                        Effect::Done
                    }
                }
            }
            _ if offset == queue::sw_ctrl(direction) => {
                if SwCtrl::from_bits(value).reset_queue() {
                    let kind = EventKind::QueueReset {
                        direction,
                        dropped: pair.reset(direction),
                    };
                    pair.recorder.record(cx.now, kind);
                    let engine = self.number;
                    cx.late.forget(|e, q| (e, q) == (engine, number));
                    cx.observers.emit(
                        Scope::Queue {
                            engine: self.number,
                            queue: number,
                        },
                        kind,
                    );
                    // Re-initialising the queue that failed is how the driver recovers (udma §10).
                    if self.fault.is_some_and(|fault| fault.queue == number) {
                        self.recover(cx);
                        return Effect::WakeAll;
                    }
                }
                Effect::Done
            }
            _ => {
                if !pair.ring_mut(direction).write(offset, value) {
                    return Effect::Store;
                }
                // Enables may let pending work go on.
                if offset == queue::CFG {
                    Effect::Wake(number)
                } else {
                    Effect::Done
                }
            }
        }
    }
}

const fn unit_index(direction: Direction) -> usize {
    match direction {
        Direction::M2s => 0,
        Direction::S2m => 1,
    }
}

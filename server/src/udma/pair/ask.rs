//! Asking policies, and what their verdicts do to bytes on their way.
use std::time::Duration;

use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::Direction;

use super::{Pair, Step};
use crate::observe::event::EventKind;
use crate::policy::{Corruption, Point, Tear, Verdict};
use crate::udma::context::Context;
use crate::udma::late::{LateWrite, When};
use crate::udma::{Fault, FaultKind};

/// A place where a queue asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Before it reads descriptors.
    Fetch(Direction),
    /// Before it moves the bytes of a pair of descriptors.
    Copy,
}

/// A wait that a policy set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold(Duration);

impl Hold {
    /// Until the queue is reset.
    pub(super) const FOREVER: Self = Self(Duration::MAX);
}

/// What came of asking.
pub(super) enum Asked {
    /// Wait first; then go on without asking again.
    Wait(Step),
    /// Do this.
    Verdict(Verdict),
}

/// Whether bytes may be moved.
pub(super) enum Permit {
    /// Move them.
    Go,
    /// End the step like this.
    End(Step),
}

/// What a policy decided about a queue. Boxed, for few queues ever have any.
#[derive(Debug, Default)]
pub(super) struct Policed {
    /// Nothing moves before.
    pub(super) hold: Option<Hold>,
    /// The last gate passed: what was decided there is not asked again.
    pub(super) passed: Option<Gate>,
    /// To be done to the bytes on their way to the current destination.
    twist: Option<Verdict>,
    /// To be done to the descriptors on their way.
    pub(super) corruption: Option<Corruption>,
    /// Descriptors until the queue stops.
    left: Option<u32>,
}

impl Pair {
    pub(super) fn policed(&mut self) -> &mut Policed {
        self.policed.get_or_insert_default()
    }

    /// A policy stopped it.
    pub(super) fn stopped(&self) -> bool {
        self.policed
            .as_ref()
            .is_some_and(|policed| policed.left == Some(0))
    }

    /// A policy wants something done to the bytes on their way.
    pub(super) fn is_twisted(&self) -> bool {
        self.policed
            .as_ref()
            .is_some_and(|policed| policed.twist.is_some())
    }

    /// The pair of descriptors changes: the next one is asked about, and counted if its source is new.
    pub(super) fn pass_on(&mut self, source_done: bool) {
        if let Some(policed) = &mut self.policed {
            policed.passed = None;
            if source_done {
                policed.left = policed.left.map(|left| left.saturating_sub(1));
            }
        }
    }

    /// The time before which a policy lets nothing move.
    pub(super) fn held(&mut self, now: Duration) -> Option<Duration> {
        let policed = self.policed.as_mut()?;
        let Hold(until) = policed.hold?;
        if until > now {
            return Some(until);
        }
        policed.hold = None;
        None
    }

    /// Asks at a gate, once.
    pub(super) fn ask(&mut self, gate: Gate, point: Point, cx: &mut Context<'_>) -> Asked {
        if self.has_passed(gate) {
            return Asked::Verdict(Verdict::Proceed);
        }
        let verdict = cx.policies.judge(cx.now, point);
        if cx.policies.is_empty() {
            return Asked::Verdict(verdict);
        }
        self.policed().passed = Some(gate);
        match verdict {
            Verdict::Delay(by) if by > Duration::ZERO => {
                let until = cx.now.saturating_add(by);
                self.policed().hold = Some(Hold(until));
                self.emit(cx, EventKind::Due { at: until });
                Asked::Wait(Step::Until(until))
            }
            Verdict::Stall(Some(by)) => {
                let until = cx.now.saturating_add(by);
                self.emit(cx, EventKind::Due { at: until });
                Asked::Wait(Step::Stall(until))
            }
            Verdict::Stall(None) => Asked::Wait(Step::Stall(Duration::MAX)),
            other => Asked::Verdict(other),
        }
    }

    /// Nobody has asked about the current pair of descriptors and somebody wants to be.
    pub(super) fn unasked(&self, cx: &Context<'_>) -> bool {
        !cx.policies.is_empty() && !self.has_passed(Gate::Copy)
    }

    fn has_passed(&self, gate: Gate) -> bool {
        self.policed
            .as_ref()
            .is_some_and(|policed| policed.passed == Some(gate))
    }

    /// Asks whether the bytes of the current pair of descriptors may be moved, of which the first word is `word` if
    /// there are no more.
    pub(super) fn permit(
        &mut self,
        word: Option<u32>,
        cx: &mut Context<'_>,
    ) -> Result<Permit, Fault> {
        let (Some(tx), Some(rx)) = (&self.tx, &self.rx) else {
            return Ok(Permit::End(Step::Blocked));
        };
        let bytes = tx.left.min(rx.left);
        let point = if word == Some(MARKER) {
            Point::Marker {
                engine: self.engine,
                queue: self.queue,
                tx: tx.index,
                address: rx.address,
            }
        } else {
            Point::Copy {
                engine: self.engine,
                queue: self.queue,
                tx: tx.index,
                rx: rx.index,
                source: tx.address,
                destination: rx.address,
                bytes,
            }
        };
        Ok(match self.ask(Gate::Copy, point, cx) {
            Asked::Wait(step) => Permit::End(step),
            Asked::Verdict(Verdict::Drop) => {
                self.landed(bytes, false, cx);
                Permit::End(Step::Progress { bytes })
            }
            Asked::Verdict(Verdict::Fail) => {
                return Err(self.data_fault(Direction::S2m, FaultKind::Injected));
            }
            Asked::Verdict(Verdict::Stop(after)) => {
                self.stop_after(after);
                if after == 0 {
                    Permit::End(Step::Blocked)
                } else {
                    Permit::Go
                }
            }
            Asked::Verdict(
                twist @ (Verdict::Corrupt(_) | Verdict::Tear(_) | Verdict::Duplicate(_)),
            ) => {
                self.policed().twist = Some(twist);
                Permit::Go
            }
            Asked::Verdict(_) => Permit::Go,
        })
    }

    /// A policy stops the queue after this many descriptors.
    pub fn stop_after(&mut self, descriptors: u32) {
        self.policed().left = Some(descriptors);
    }

    /// Does to the bytes at hand what a policy decided, and gives what is to be written now.
    pub(super) fn twisted(
        &mut self,
        mut data: Vec<u8>,
        address: u64,
        cx: &mut Context<'_>,
    ) -> Vec<u8> {
        let twist = self.policed.as_mut();
        let Some(twist) = twist.and_then(|policed| policed.twist.take()) else {
            return data;
        };
        let (engine, queue, now) = (self.engine, self.queue, cx.now);
        let mut put_off = |when, address, data| {
            let write = LateWrite {
                engine,
                queue,
                when,
                address,
                data,
            };
            // With too much put off already, it is not: what has no room to wait lands now.
            cx.late.put_off(write).map_err(|write| write.data)
        };
        match twist {
            Verdict::Corrupt(corruption) => corruption.apply(&mut data),
            Verdict::Duplicate(after) => {
                let _ = put_off(When::At(now.saturating_add(after)), address, data.clone());
            }
            Verdict::Tear(Tear::Half(rest)) => {
                let half = data.len() / 2;
                let second = data.split_off(half);
                if let Some(after) = rest {
                    let at = When::At(now.saturating_add(after));
                    let address = address.wrapping_add(half as u64);
                    if let Err(second) = put_off(at, address, second) {
                        data.extend(second);
                    }
                }
            }
            Verdict::Tear(Tear::BehindMarker(by)) => {
                data = put_off(When::BehindMarker(by), address, data)
                    .map_or_else(|data| data, |()| Vec::new());
            }
            _ => {}
        }
        data
    }
}

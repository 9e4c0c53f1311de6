//! What policies hold back or take away: late answers, late writes, resets not yet acknowledged, a device that is gone.
use std::time::Duration;

use super::NeuronFunction;
use super::messages::Asker;
use super::requests::{Answer, Via};
use crate::memory::{Access, Target};
use crate::policy::{Point, Verdict};
use crate::udma::LateWrite;
use crate::vfio::{DmaRequest, Progress};

/// What waits for a time that a policy set.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// A reset is done and not acknowledged before this time; [`Duration::MAX`] is never.
    pub(super) reset: Option<Duration>,
    /// An answer of firmware: a new request takes its place.
    pub(super) answer: Option<(Duration, Via, Answer)>,
}

impl NeuronFunction {
    /// The client sees nothing of the device any more.
    pub(super) const fn is_lost(&self) -> bool {
        self.policies.loss().is_some()
    }

    /// Asks whether a reset is acknowledged.
    pub(super) fn admit_reset(&mut self, map: Option<u64>) -> bool {
        self.held.reset = match self.policies.judge(self.now, Point::Reset { map }) {
            Verdict::Drop => Some(Duration::MAX),
            Verdict::Delay(by) if by > Duration::ZERO => Some(self.now.saturating_add(by)),
            _ => None,
        };
        self.held.reset != Some(Duration::MAX)
    }

    /// Acknowledges the reset whose time has come.
    pub(super) fn release_reset(&mut self) {
        if self.held.reset.is_some_and(|at| at <= self.now) {
            self.held.reset = None;
            self.finish_reset();
        }
    }

    /// Sends the answer and lands the writes whose time has come.
    pub(super) fn release(&mut self) {
        if let Some((_, via, answer)) = self.held.answer.take_if(|(at, ..)| *at <= self.now) {
            self.answer(via, &answer);
        }
        while !self.messages.is_busy()
            && let Some(write) = self.late.due(self.now)
        {
            self.land(write);
        }
    }

    /// When [`Self::release`] has something to do, or an engine.
    pub(super) fn next_release(&self) -> Progress {
        let reset = self.held.reset.filter(|at| *at != Duration::MAX);
        // Nothing else moves without bus mastering.
        let work = self.pci.bus_master().then(|| {
            let answer = self.held.answer.as_ref().map(|(at, ..)| *at);
            // With too much to tell the client already, late writes wait for it to listen.
            let late = self.late.next().filter(|_| !self.messages.is_busy());
            let others = [answer, self.udma.next_wake(), late];
            others.into_iter().flatten().min()
        });
        match reset.into_iter().chain(work.flatten()).min() {
            Some(at) => Progress::After(at.saturating_sub(self.now)),
            None => Progress::Idle,
        }
    }

    /// What a register read gives.
    pub(super) fn judged_read(&mut self, offset: u64, value: u32) -> u32 {
        match self
            .policies
            .judge(self.now, Point::Register { offset, value })
        {
            Verdict::Value(other) => other,
            Verdict::Shift(by) => value.wrapping_add_signed(by),
            Verdict::Corrupt(corruption) => {
                let mut bytes = value.to_le_bytes();
                corruption.apply(&mut bytes);
                u32::from_le_bytes(bytes)
            }
            // What the bus gives when nobody answers.
            Verdict::Drop => u32::MAX,
            _ => value,
        }
    }

    /// A late write. Whose memory is gone by now has lost it.
    fn land(&mut self, write: LateWrite) {
        let LateWrite { address, data, .. } = write;
        let mut done = 0;
        while done < data.len() {
            let at = address.wrapping_add(done as u64);
            let left = &data[done..];
            let len = match self.memory.resolve(at, left.len(), Access::Write) {
                Ok(Target::Memory(slice)) => {
                    let len = slice.len();
                    if self.memory.write(&left[..len], &slice).is_err() {
                        return;
                    }
                    len
                }
                Ok(Target::Message { iova, len }) => {
                    let data = left[..len].to_vec();
                    self.ask(Asker::Late, DmaRequest::Write { iova, data });
                    len
                }
                Ok(Target::Register { offset, len }) => {
                    // The descriptor that this belongs to is long done: an error has nowhere to go.
                    let _ = self.write_registers(offset, &left[..len]);
                    len
                }
                Err(unmapped) => {
                    tracing::debug!("a late write to {at:#x} is lost: {unmapped}");
                    return;
                }
            };
            done += len;
        }
    }
}

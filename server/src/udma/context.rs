//! What the work of a queue needs from outside, and what it adds to.
use std::time::Duration;

use crate::memory::Memory;
use crate::observe::event::Observers;
use crate::policy::Policies;
use crate::udma::late::LateWrites;

/// What a step may use: all of it outside the queue.
pub struct Context<'a> {
    /// Where addresses lead.
    pub memory: &'a Memory,
    /// Who listens.
    pub observers: &'a mut Observers,
    /// Who decides.
    pub policies: &'a mut Policies,
    /// Writes put off.
    pub late: &'a mut LateWrites,
    /// Device time.
    pub now: Duration,
    /// Totals of the device.
    pub totals: &'a mut Totals,
}

impl Context<'_> {
    /// Somebody wants a second look at memory, and it is not a recording's: that has only what the device read.
    pub const fn audits(&self) -> bool {
        self.observers.interest().audit && !self.memory.is_tapped()
    }
}

/// Totals over all queues since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Doorbell writes.
    pub doorbells: u64,
    /// Descriptors done, both directions.
    pub descriptors: u64,
    /// Markers written.
    pub markers: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Engine aborts.
    pub aborts: u64,
    /// Descriptors that asked for an interrupt, whether or not one can be sent.
    pub interrupts: u64,
}

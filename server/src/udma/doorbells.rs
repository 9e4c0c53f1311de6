//! Doorbells that a policy puts off.
use std::time::Duration;

use neuron_protocol::registers::Direction;

/// Most doorbells put off at a time.
const MAX_DOORBELLS: usize = 256;

/// A doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Engine number.
    pub engine: u8,
    /// Queue number.
    pub queue: u8,
    /// Which ring.
    pub direction: Direction,
    /// Descriptors.
    pub count: u32,
}

/// Doorbells put off, in the order in which they were rung.
#[derive(Debug, Default)]
pub struct LateDoorbells(Vec<(Duration, Doorbell)>);

impl LateDoorbells {
    /// Puts one off; false if too many are.
    pub fn put_off(&mut self, at: Duration, doorbell: Doorbell) -> bool {
        let room = self.0.len() < MAX_DOORBELLS;
        if room {
            self.0.push((at, doorbell));
        }
        room
    }

    /// The first whose time has come.
    pub fn due(&mut self, now: Duration) -> Option<Doorbell> {
        let due = self.0.iter().position(|(at, _)| *at <= now)?;
        Some(self.0.remove(due).1)
    }

    /// When the next is due.
    pub fn next(&self) -> Option<Duration> {
        self.0.iter().map(|(at, _)| *at).min()
    }

    /// Forgets those of the queues chosen.
    pub fn forget(&mut self, mut chosen: impl FnMut(u8, u8) -> bool) {
        self.0
            .retain(|(_, doorbell)| !chosen(doorbell.engine, doorbell.queue));
    }
}

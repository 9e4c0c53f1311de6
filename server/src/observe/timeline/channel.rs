//! From a device thread to the writer: bounded, and never waited for.
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::super::event::Event;

/// Events that may wait per device by default. The writer comes by every few milliseconds, so this holds bursts.
pub const CAPACITY: usize = 1 << 15;

/// An event and when the writer's clock says it was, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamped {
    /// When.
    pub at: u64,
    /// What.
    pub event: Event,
}

/// What has gathered. What was lost came after all of `events`.
#[derive(Debug, Default)]
pub struct Batch {
    /// In order.
    pub events: Vec<Stamped>,
    /// Events that found no room.
    pub lost: u64,
}

/// The events of one device on their way.
#[derive(Debug)]
pub struct Channel {
    batch: Mutex<Batch>,
    capacity: usize,
}

impl Channel {
    /// An empty one with room for `capacity` events.
    pub fn new(capacity: usize) -> Self {
        Self {
            batch: Mutex::default(),
            capacity,
        }
    }

    /// Adds an event, or counts it as lost. True if the writer may be asleep.
    pub fn push(&self, stamped: Stamped) -> bool {
        let mut batch = self.lock();
        if batch.events.len() >= self.capacity {
            batch.lost += 1;
            return false;
        }
        batch.events.push(stamped);
        batch.events.len() == 1
    }

    /// Takes what has gathered; `spare` becomes the next buffer.
    pub fn swap(&self, spare: &mut Batch) {
        spare.events.clear();
        spare.lost = 0;
        std::mem::swap(&mut *self.lock(), spare);
    }

    // Held for a push or a swap, never while writing.
    fn lock(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the writer.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// There is something to write, or an end.
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Sleeps until then.
    pub fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rung = self
            .changed
            .wait_while(rung, |rung| !*rung)
            .unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}

//! The flight recorder of a queue: its last events, always on.
use std::time::Duration;

use super::event::EventKind;

/// Events of a queue that the device keeps.
pub const CAPACITY: usize = 64;

/// A ring of the last events, `KEPT` at most; empty until the first.
#[derive(Debug, Default)]
pub struct Recorder<const KEPT: usize = CAPACITY> {
    events: Vec<(Duration, EventKind)>,
    next: usize,
}

impl<const KEPT: usize> Recorder<KEPT> {
    /// Keeps an event, forgetting the oldest beyond `KEPT`.
    pub fn record(&mut self, at: Duration, kind: EventKind) {
        if self.events.len() < KEPT {
            if self.events.is_empty() {
                self.events.reserve_exact(KEPT);
            }
            self.events.push((at, kind));
        } else {
            self.events[self.next] = (at, kind);
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// Events kept now.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// None yet.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Oldest first, each with the device's time.
    pub fn iter(&self) -> impl Iterator<Item = &(Duration, EventKind)> {
        let oldest = if self.events.len() < KEPT {
            0
        } else {
            self.next
        };
        self.events[oldest..].iter().chain(&self.events[..oldest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_stay_in_order() {
        let mut recorder = Recorder::<CAPACITY>::default();
        assert_eq!(recorder.iter().count(), 0);
        for n in 0..100u64 {
            recorder.record(Duration::from_secs(n), EventKind::Recovered);
            let kept: Vec<_> = recorder.iter().map(|(at, _)| at.as_secs()).collect();
            assert_eq!(kept, (n.saturating_sub(63)..=n).collect::<Vec<_>>());
        }
    }
}

//! The flight recorder of a queue: its last events, always on.
use std::time::Duration;

use super::event::EventKind;

/// Events kept per queue.
pub const CAPACITY: usize = 64;

/// A ring of the last events; empty until the first.
#[derive(Debug, Default)]
pub struct Recorder {
    events: Vec<(Duration, EventKind)>,
    next: usize,
}

impl Recorder {
    /// Keeps an event, forgetting the oldest beyond [`CAPACITY`].
    pub fn record(&mut self, at: Duration, kind: EventKind) {
        if self.events.len() < CAPACITY {
            if self.events.is_empty() {
                self.events.reserve_exact(CAPACITY);
            }
            self.events.push((at, kind));
        } else {
            self.events[self.next] = (at, kind);
        }
        self.next = (self.next + 1) % CAPACITY;
    }

    /// Oldest first, each with the device's time.
    pub fn iter(&self) -> impl Iterator<Item = &(Duration, EventKind)> {
        let oldest = if self.events.len() < CAPACITY {
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
        let mut recorder = Recorder::default();
        assert_eq!(recorder.iter().count(), 0);
        for n in 0..100u64 {
            recorder.record(Duration::from_secs(n), EventKind::Recovered);
            let kept: Vec<_> = recorder.iter().map(|(at, _)| at.as_secs()).collect();
            assert_eq!(kept, (n.saturating_sub(63)..=n).collect::<Vec<_>>());
        }
    }
}

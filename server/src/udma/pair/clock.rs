//! When a queue's work is done in model time.
use std::collections::VecDeque;
use std::time::Duration;

use neuron_protocol::registers::Direction;

/// Most doorbells kept apart. Further ones count with the last, as if all had come with the latest.
const MAX_ARRIVALS: usize = 256;

/// The clock of one queue. It stands still unless timing is modelled.
///
/// Work begins when its descriptor has been rung for, its buffer too, and the engine is free. What the device thread's
/// own lateness adds is not in it: descriptors that were late all begin when they should have.
#[derive(Debug, Default)]
pub struct Clock {
    /// tx doorbells whose descriptors are not all taken: how many are left, and when it rang.
    arrivals: VecDeque<(u32, Duration)>,
    /// When a missing rx buffer arrived.
    fed_at: Duration,
    starved: bool,
    /// When the descriptor in use is done.
    due: Option<Duration>,
    /// When the last one is, or was.
    booked: Duration,
}

impl Clock {
    /// A doorbell.
    pub fn rung(&mut self, direction: Direction, count: u32, now: Duration) {
        match direction {
            Direction::S2m if self.starved => {
                self.starved = false;
                self.fed_at = now;
            }
            Direction::S2m => {}
            Direction::M2s => {
                let full = self.arrivals.len() >= MAX_ARRIVALS;
                match self.arrivals.back_mut().filter(|_| full) {
                    Some((left, at)) => {
                        *left = left.saturating_add(count);
                        *at = now;
                    }
                    None => self.arrivals.push_back((count, now)),
                }
            }
        }
    }

    /// A tx descriptor found no rx buffer.
    pub const fn starve(&mut self) {
        self.starved = true;
    }

    /// When the descriptor in use is done, and whether that was decided just now. The engine is busy with other work until
    /// `free_at`.
    pub fn due(&mut self, free_at: Duration, cost: impl FnOnce() -> Duration) -> (Duration, bool) {
        if let Some(due) = self.due {
            return (due, false);
        }
        let arrived = match self.arrivals.front_mut() {
            None => Duration::ZERO,
            Some((left, at)) => {
                let at = *at;
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.arrivals.pop_front();
                }
                at
            }
        };
        let begins = arrived.max(self.fed_at).max(free_at);
        let due = begins.saturating_add(cost());
        self.due = Some(due);
        self.booked = due;
        (due, true)
    }

    /// Until when it has booked the engine.
    pub const fn booked(&self) -> Duration {
        self.booked
    }

    /// The descriptor in use is done.
    pub const fn done(&mut self) {
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn work_begins_when_all_it_needs_is_there() {
        let mut clock = Clock::default();
        clock.rung(Direction::M2s, 2, us(10));
        clock.rung(Direction::M2s, 1, us(30));
        assert_eq!(clock.due(us(0), || us(4)), (us(14), true));
        assert_eq!(clock.due(us(99), || us(9)), (us(14), false));
        clock.done();
        // The engine is busy with another queue.
        assert_eq!(clock.due(us(18), || us(4)), (us(22), true));
        clock.done();
        // It rang later than the engine was free.
        assert_eq!(clock.due(us(22), || us(4)), (us(34), true));
        clock.done();
        clock.rung(Direction::M2s, 1, us(40));
        clock.starve();
        clock.rung(Direction::S2m, 1, us(50));
        clock.rung(Direction::S2m, 1, us(60));
        assert_eq!(clock.due(us(34), || us(4)), (us(54), true));
    }

    #[test]
    fn many_doorbells_are_bounded() {
        let mut clock = Clock::default();
        for n in 0..10_000 {
            clock.rung(Direction::M2s, 1, us(n));
        }
        assert_eq!(clock.arrivals.len(), MAX_ARRIVALS);
        let left: u32 = clock.arrivals.iter().map(|(left, _)| left).sum();
        assert_eq!(left, 10_000);
    }
}

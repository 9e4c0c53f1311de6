//! Runs cells, some at a time, each as often as retries allow.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::cell::Cell;
use super::record::Attempt;
use crate::lane::INTERRUPTED;

/// How the list is worked off.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Guests at a time.
    pub jobs: usize,
    /// Further attempts for a cell that failed.
    pub retries: u32,
    /// Start nothing new after a cell has failed for good.
    pub fail_fast: bool,
}

/// What is heard meanwhile, on the caller's thread.
#[derive(Debug)]
pub enum Event {
    /// A cell begins.
    Started(usize),
    /// What it is doing.
    Step(usize, String),
    /// It has ended, with all its attempts; none if it was interrupted.
    Ended(usize, Vec<Attempt>),
    /// Nothing happened for a while.
    Tick,
}

/// Boots one cell once. Gets the number of the attempt, from 1, and somewhere to say what it is doing.
pub type One<'a> = dyn Fn(&Cell, u32, &mut dyn FnMut(String)) -> Attempt + Sync + 'a;

/// How often the caller hears a tick.
const TICK: Duration = Duration::from_millis(200);
/// Events under way. Steps that find no room are dropped; results wait for it.
const EVENTS: usize = 256;

/// Runs `cells` and tells `saw` of it. Returns when no guest is left.
pub fn all(cells: &[Cell], how: How, one: &One<'_>, saw: &mut dyn FnMut(Event)) {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let (to, from) = sync_channel(EVENTS);
    std::thread::scope(|scope| {
        for _ in 0..how.jobs.clamp(1, cells.len().max(1)) {
            let (to, next, stop) = (to.clone(), &next, &stop);
            scope.spawn(move || worker(cells, how, one, next, stop, &to));
        }
        drop(to);
        loop {
            match from.recv_timeout(TICK) {
                Ok(event) => saw(event),
                Err(RecvTimeoutError::Timeout) => saw(Event::Tick),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}

fn worker(
    cells: &[Cell],
    how: How,
    one: &One<'_>,
    next: &AtomicUsize,
    stop: &AtomicBool,
    to: &SyncSender<Event>,
) {
    while !stop.load(Ordering::Relaxed) && !INTERRUPTED.load(Ordering::Relaxed) {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(cell) = cells.get(at) else { return };
        // The receiver lives as long as this thread: the scope sees to it.
        let _ = to.send(Event::Started(at));
        let mut attempts = Vec::new();
        for number in 1..=how.retries.saturating_add(1) {
            let attempt = one(cell, number, &mut |step| {
                let _ = to.try_send(Event::Step(at, step));
            });
            if attempt.interrupted() {
                break;
            }
            let passed = attempt.passed();
            attempts.push(attempt);
            if passed {
                break;
            }
        }
        if how.fail_fast && attempts.last().is_some_and(|a| !a.passed()) {
            stop.store(true, Ordering::Relaxed);
        }
        let _ = to.send(Event::Ended(at, attempts));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::matrix::cell::ALL_SCENARIOS;
    use crate::matrix::drivers;
    use crate::matrix::plan::{Dimensions, enumerate};
    use crate::matrix::samples;
    use neuron_protocol::generation::{Platform, Product};

    fn cells() -> Vec<Cell> {
        enumerate(
            &drivers::own(),
            &Dimensions {
                products: &Product::ALL,
                platforms: &[Platform::Qemu],
                scenarios: &[ALL_SCENARIOS.to_owned()],
                devices: 1,
            },
        )
    }

    fn run(how: How, one: &One<'_>) -> Vec<(usize, Vec<bool>)> {
        let mut ended = Vec::new();
        all(&cells(), how, one, &mut |event| {
            if let Event::Ended(at, attempts) = event {
                ended.push((at, attempts.iter().map(Attempt::passed).collect()));
            }
        });
        ended.sort_unstable();
        ended
    }

    #[test]
    fn every_cell_runs_once_whatever_the_number_of_jobs() {
        for jobs in [1, 3, 50] {
            let seen = Mutex::new(Vec::new());
            let how = How {
                jobs,
                retries: 2,
                fail_fast: false,
            };
            let ended = run(how, &|cell, number, _| {
                assert_eq!(number, 1);
                seen.lock().unwrap().push(cell.name());
                samples::passed()
            });
            assert_eq!(ended.len(), 8);
            let mut seen = seen.into_inner().unwrap();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), 8);
        }
    }

    #[test]
    fn retries_are_kept_beside_what_they_repeat() {
        let how = How {
            jobs: 1,
            retries: 2,
            fail_fast: false,
        };
        let ended = run(how, &|cell, number, _| {
            let good = cell.product != Product::Trn1 || (cell.kernel.name == "6.1" && number == 2);
            if good {
                samples::passed()
            } else {
                samples::failed()
            }
        });
        assert_eq!(ended[0].1, [false, true]);
        assert_eq!(ended[4].1, [false, false, false]);
        assert_eq!(ended[1].1, [true]);
    }

    #[test]
    fn fail_fast_starts_nothing_after_a_failure() {
        let how = How {
            jobs: 1,
            retries: 1,
            fail_fast: true,
        };
        let ended = run(how, &|cell, _, _| {
            if cell.product == Product::Trn2 {
                samples::failed()
            } else {
                samples::passed()
            }
        });
        assert_eq!(ended.len(), 3);
        assert_eq!(ended[2].1, [false, false]);
    }
}

//! Rules about what lands, and in which order.
use std::collections::VecDeque;

use neuron_protocol::registers::Direction;

use super::queue::Held;
use super::{MAX_POLLS, Place, Rule, Sanitizer};

/// Copies of a poll word that nothing will write any more, until it is called spinning.
const SPIN_COPIES: u64 = 100;

/// What a copy finished. Small: there is one for every copy.
#[derive(Default)]
struct Landed {
    /// Descriptors behind the last marker of a launch that is done, that marker's index, and its poll word.
    behind: Option<(u64, u32, u64)>,
    /// A marker was written.
    marked: Option<Marked>,
}

/// A marker, and what is known of the launch that it ends.
struct Marked {
    /// tx index.
    index: u32,
    /// Where it went.
    poll: u64,
    /// It or the last data before it is ordered.
    ordered: bool,
    /// Slots of the launch were rung for again: that doorbell's first index.
    reused: Option<u32>,
    /// Number of the event that launched it.
    order: u64,
    /// Descriptors of the launch.
    descriptors: u64,
}

impl Sanitizer {
    /// Bytes landed.
    pub(super) fn copy(
        &mut self,
        engine: u8,
        number: u8,
        (tx, rx): (u32, u32),
        source: u64,
        destination: u64,
        bytes: u32,
    ) {
        self.check_pending_rings(engine, number, rx, destination, bytes);
        if !self.lost_polls.is_empty() {
            self.of_lost_poll(engine, number, tx, source, destination);
        }
        // Bytes for host memory go the marker's way and arrive before it; those for device memory need a barrier. Only
        // the kernel's own queues are held to what the kernel does.
        let ordered = engine < self.generation.first_h2t_engine
            || self.generation.host_address(destination).is_some();
        let Some(queue) = self.queue(engine, number) else {
            return;
        };
        if queue.blind {
            return;
        }
        let Some(landed) = queue.land(tx, rx, bytes, ordered) else {
            // An order of work that cannot be followed.
            queue.blind = true;
            self.findings.ledger().untracked();
            return;
        };
        let idle = queue.m2s.pending() == 0 && queue.s2m.pending() == 0;
        let overflow = queue.overflow();
        self.judge(engine, number, &landed);
        if let Some(overflow) = overflow {
            self.tell_overflow(engine, number, overflow);
        }
        if idle {
            self.forget_idle();
        }
    }

    fn judge(&mut self, engine: u8, number: u8, landed: &Landed) {
        let place = |direction, index, addresses| Place {
            queue: Some((engine, number)),
            direction: Some(direction),
            index: Some(index),
            addresses,
        };
        if let Some(marked) = &landed.marked {
            let &Marked {
                index,
                poll,
                order,
                descriptors,
                ..
            } = marked;
            let addresses = || vec![("poll word", poll)];
            if !marked.ordered {
                self.find(Rule::NoBarrier, place(Direction::M2s, index, addresses()), 0, || {
                    "neither the last data descriptor nor the marker has a barrier: hardware may show the marker before the data".to_owned()
                });
            }
            if let Some(first) = marked.reused {
                self.find(Rule::SlotsReusedEarly, place(Direction::M2s, first, addresses()), 0, || {
                    format!(
                        "slots of the batch of {descriptors} descriptors were rung for again before its marker, tx {index}, was written"
                    )
                });
            }
            // One that went by message may have been seen when it was sent.
            let now = self.sent.remove(&poll).unwrap_or(self.order);
            let written = self.polls.insert(poll, now);
            if written.is_some_and(|written| order < written) {
                self.find(Rule::MarkerShared, place(Direction::M2s, index, addresses()), 0, || {
                    "this batch was launched while another one with the same poll word was outstanding: the first marker completes both".to_owned()
                });
            }
            if self.polls.len() > MAX_POLLS {
                self.polls.clear();
            }
        }
        if let Some((behind, index, poll)) = landed.behind {
            self.find(Rule::MarkerNotLast, place(Direction::M2s, index, vec![("poll word", poll)]), 0, || {
                format!("the batch goes on for {behind} descriptors after its marker, and no marker follows them")
            });
        }
    }

    /// A packet that did not fit, as soon as it is certain that it had to.
    pub(super) fn judge_overflow(&mut self, engine: u8, number: u8) {
        if let Some(overflow) = self.queue(engine, number).and_then(super::Queue::overflow) {
            self.tell_overflow(engine, number, overflow);
        }
    }

    fn tell_overflow(&self, engine: u8, number: u8, (tx, rx): (Held, Held)) {
        let place = Place {
            queue: Some((engine, number)),
            direction: Some(Direction::S2m),
            index: Some(rx.index),
            addresses: vec![("source", tx.address), ("destination", rx.address)],
        };
        self.find(Rule::RxShort, place, 0, || {
            format!(
                "the packet of {} bytes at tx {} overflows its buffer of {}: the rest goes to the next packet's buffer, and the last packet of the batch has none",
                tx.length, tx.index, rx.length
            )
        });
    }

    /// A copy that wrote over descriptors which an engine has yet to do.
    fn check_pending_rings(&self, engine: u8, number: u8, rx: u32, destination: u64, bytes: u32) {
        for slot in &self.active {
            let Some(Some(queue)) = self.queues.get(*slot) else {
                continue;
            };
            if queue.blind {
                continue;
            }
            for direction in Direction::BOTH {
                let ring = queue.ring(direction);
                if !ring.holds_pending(destination, u64::from(bytes)) {
                    continue;
                }
                let (victim, of) = Self::place_of(*slot);
                let place = Place {
                    queue: Some((engine, number)),
                    direction: Some(Direction::S2m),
                    index: Some(rx),
                    addresses: vec![("destination", destination), ("ring", ring.base)],
                };
                self.find(Rule::WritesPendingRing, place, 0, || {
                    format!(
                        "{bytes} bytes written over descriptors that are rung for in the {direction} ring of e{victim} q{of}"
                    )
                });
            }
        }
    }

    /// A copy from or to a poll word whose marker was dropped.
    fn of_lost_poll(&mut self, engine: u8, number: u8, tx: u32, source: u64, destination: u64) {
        self.lost_polls.retain(|poll| poll.address != destination);
        let Some(poll) = self
            .lost_polls
            .iter_mut()
            .find(|poll| poll.address == source)
        else {
            return;
        };
        poll.copies += 1;
        if poll.copies != SPIN_COPIES {
            return;
        }
        let place = Place {
            queue: Some((engine, number)),
            direction: Some(Direction::M2s),
            index: Some(tx),
            addresses: vec![("poll word", source)],
        };
        self.find(Rule::SpinMarker, place, source, || {
            format!("the poll word was copied {SPIN_COPIES} times since the batch that would write it was dropped")
        });
    }

    /// A marker is about to be written over a marker.
    pub(super) fn stale_poll(&mut self, engine: u8, number: u8, tx: u32, address: u64) {
        let written = self.polls.get(&address).copied();
        let launched = self.queue(engine, number).and_then(|queue| {
            let ordinal = queue.tx.iter().find(|held| held.index == tx)?.ordinal;
            Some(queue.launch_of(ordinal)?.order)
        });
        // Another batch's marker, of the same time: that is a finding of its own.
        if let (Some(launched), Some(written)) = (launched, written)
            && launched < written
        {
            return;
        }
        let place = Place {
            queue: Some((engine, number)),
            direction: Some(Direction::M2s),
            index: Some(tx),
            addresses: vec![("poll word", address)],
        };
        self.find(Rule::PollSlotNotCleared, place, 0, || {
            "the poll word held the marker before the batch was done: who polls it takes the batch for finished".to_owned()
        });
    }
}

/// Removes one of a few: nearly always the first, which nobody has to move for.
fn take(held: &mut VecDeque<Held>, at: usize) {
    if at == 0 {
        held.pop_front();
    } else {
        held.remove(at);
    }
}

impl super::Queue {
    /// Follows a copy as the engine does it: descriptors that it finishes are done. `None` if they are not known.
    fn land(&mut self, tx: u32, rx: u32, bytes: u32, ordered: bool) -> Option<Landed> {
        let at = self.tx.iter().position(|held| held.index == tx)?;
        let to = self.rx.iter().position(|held| held.index == rx)?;
        let source = self.tx.get_mut(at)?;
        source.left = source.left.saturating_sub(bytes);
        let source = *source;
        let target = self.rx.get_mut(to)?;
        target.left = target.left.saturating_sub(bytes);
        let target = *target;
        let source_done = source.left == 0;
        let marks = source_done && source.marks(&target);
        let mut landed = Landed::default();
        if let Some(launch) = self.launch_of(source.ordinal) {
            if target.left == 0 && !source_done && launch.overflow.is_none() {
                launch.overflow = Some((source, target));
            }
            if marks {
                launch.marker = Some((source.ordinal, source.index, target.address));
                landed.marked = Some(Marked {
                    index: source.index,
                    poll: target.address,
                    // A barrier on the marker itself orders it as well.
                    ordered: launch.data != Some(false) || source.barrier || target.barrier,
                    reused: launch.reused,
                    order: launch.order,
                    descriptors: launch.end - launch.start,
                });
            } else if source_done {
                launch.data = Some(source.barrier || ordered);
            }
        }
        if target.left == 0 || source_done && source.last {
            take(&mut self.rx, to);
            self.s2m.done += 1;
        }
        if source_done {
            take(&mut self.tx, at);
            self.m2s.done += 1;
            if let Some(launch) = self.launches.front()
                && launch.end <= self.m2s.done
            {
                landed.behind = launch
                    .marker
                    .map(|(position, index, poll)| (launch.end - position - 1, index, poll))
                    .filter(|(behind, ..)| *behind > 0);
                self.launches.pop_front();
            }
        }
        Some(landed)
    }
}

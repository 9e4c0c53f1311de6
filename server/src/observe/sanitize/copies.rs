//! Rules about what lands, and in which order.
use neuron_protocol::registers::Direction;

use super::queue::{Held, Launch};
use super::{MAX_POLLS, Place, Rule, Sanitizer};

/// Copies of a poll word that nothing will write any more, until it is called spinning.
const SPIN_COPIES: u64 = 100;

/// What a copy finished.
struct Landed {
    tx: Held,
    rx: Held,
    /// The launch that is done with it.
    done: Option<Launch>,
    /// The launch, if a marker was written.
    marked: Option<Launch>,
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
        self.judge(engine, number, &landed);
        self.judge_overflow(engine, number);
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
        let Landed { tx, rx, .. } = landed;
        if let Some(launch) = landed.marked {
            let poll = rx.address;
            let addresses = || vec![("poll word", poll)];
            // A barrier on the marker itself orders it as well.
            if launch.data == Some(false) && !tx.barrier && !rx.barrier {
                self.find(Rule::NoBarrier, place(Direction::M2s, tx.index, addresses()), 0, || {
                    "neither the last data descriptor nor the marker has a barrier: hardware may show the marker before the data".to_owned()
                });
            }
            if let Some(index) = launch.reused {
                self.find(Rule::SlotsReusedEarly, place(Direction::M2s, index, addresses()), 0, || {
                    format!(
                        "slots of the batch of {} descriptors were rung for again before its marker, tx {}, was written",
                        launch.end - launch.start,
                        tx.index
                    )
                });
            }
            // One that went by message may have been seen when it was sent.
            let now = self.sent.remove(&poll).unwrap_or(self.order);
            let written = self.polls.insert(poll, now);
            if written.is_some_and(|written| launch.order < written) {
                self.find(Rule::MarkerShared, place(Direction::M2s, tx.index, addresses()), 0, || {
                    "this batch was launched while another one with the same poll word was outstanding: the first marker completes both".to_owned()
                });
            }
            if self.polls.len() > MAX_POLLS {
                self.polls.clear();
            }
        }
        if let Some(launch) = landed.done
            && let Some((position, index, poll)) = launch.marker
            && position + 1 != launch.end
        {
            self.find(Rule::MarkerNotLast, place(Direction::M2s, index, vec![("poll word", poll)]), 0, || {
                format!(
                    "the batch goes on for {} descriptors after its marker, and no marker follows them",
                    launch.end - position - 1
                )
            });
        }
    }

    /// A packet that did not fit, as soon as it is certain that it had to.
    pub(super) fn judge_overflow(&mut self, engine: u8, number: u8) {
        let Some((tx, rx)) = self.queue(engine, number).and_then(super::Queue::overflow) else {
            return;
        };
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
        let mut marked = None;
        if let Some(launch) = self.launch_of(source.ordinal) {
            if target.left == 0 && !source_done && launch.overflow.is_none() {
                launch.overflow = Some((source, target));
            }
            if marks {
                launch.marker = Some((source.ordinal, source.index, target.address));
                marked = Some(*launch);
            } else if source_done {
                launch.data = Some(source.barrier || ordered);
            }
        }
        if target.left == 0 || source_done && source.last {
            self.rx.remove(to);
            self.s2m.done += 1;
        }
        let mut done = None;
        if source_done {
            self.tx.remove(at);
            self.m2s.done += 1;
            if self
                .launches
                .front()
                .is_some_and(|launch| launch.end <= self.m2s.done)
            {
                done = self.launches.pop_front();
            }
        }
        Some(Landed {
            tx: source,
            rx: target,
            done,
            marked,
        })
    }
}

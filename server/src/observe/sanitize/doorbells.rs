//! Rules about doorbells and queue resets.
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::Pointer;

use super::queue::{Launch, Setup};
use super::{Place, Rule, Sanitizer};

impl Sanitizer {
    /// A tail moved.
    pub(super) fn doorbell(
        &mut self,
        engine: u8,
        number: u8,
        direction: Direction,
        count: u32,
        tail: Pointer,
    ) {
        let (order, bus_master) = (self.order, self.bus_master);
        let engine_disabled = self.disabled.get(usize::from(engine)) == Some(&true);
        let slot = Self::slot(engine, number);
        let Some(queue) = self.queue(engine, number) else {
            return;
        };
        let ring = queue.ring_mut(direction);
        ring.rung += u64::from(count);
        let (length, total, setup, enabled) =
            (ring.length, ring.rung, ring.setup, ring.cfg.enabled());
        let index = match length {
            0 => tail.index,
            _ => (tail.index + length - count % length) % length,
        };
        let mut untracked = false;
        if direction == Direction::M2s && count > 0 {
            untracked = !queue.began(count, total, length, index, order);
        }
        let newly_active = count > 0 && !std::mem::replace(&mut queue.listed, true);
        if newly_active {
            self.active.push(slot);
        }
        if untracked {
            self.findings.ledger().untracked();
        }
        let place = || Place {
            queue: Some((engine, number)),
            direction: Some(direction),
            index: Some(index),
            addresses: Vec::new(),
        };
        if count == 0 {
            self.find(Rule::DoorbellZero, place(), 0, || {
                "a doorbell of 0 descriptors launches nothing".to_owned()
            });
        }
        if setup == Setup::Reset {
            self.find(Rule::DoorbellAfterReset, place(), 0, || {
                format!(
                    "doorbell of {count} on a queue that was not programmed again since the reset"
                )
            });
        }
        if !enabled || engine_disabled {
            let what = if engine_disabled { "engine" } else { "queue" };
            self.find(Rule::DoorbellDisabled, place(), 0, || {
                format!("doorbell of {count} while the {what} is disabled: nothing moves until it is enabled")
            });
        }
        if !bus_master {
            self.find(Rule::DoorbellBusMaster, place(), 0, || {
                format!("doorbell of {count} while the command register forbids DMA")
            });
        }
    }

    /// A ring was reset.
    pub(super) fn queue_reset(
        &mut self,
        engine: u8,
        number: u8,
        direction: Direction,
        dropped: u32,
    ) {
        self.lose_polls(Self::slot(engine, number));
        let Some(queue) = self.queue(engine, number) else {
            return;
        };
        let excused = queue.ring(direction).excused;
        let index = queue.held(direction).front().map(|held| held.index);
        if dropped > 0 && !excused {
            let place = Place {
                queue: Some((engine, number)),
                direction: Some(direction),
                index,
                addresses: Vec::new(),
            };
            self.find(Rule::RingResetPending, place, 0, || {
                format!("reset with {dropped} descriptors rung for and not done; they are dropped")
            });
        }
        if let Some(queue) = self.queue(engine, number) {
            queue.reset_ring(direction);
        }
        self.forget_idle();
    }
}

impl super::Queue {
    /// An m2s doorbell launched descriptors. False: too many launches to follow.
    fn began(&mut self, count: u32, rung: u64, length: u32, index: u32, order: u64) -> bool {
        let start = rung - u64::from(count);
        // Slots of a launch that is not done are in use again.
        if let Some(oldest) = self.launches.front_mut()
            && length > 0
            && rung - oldest.start > u64::from(length)
        {
            oldest.reused.get_or_insert(index);
        }
        let rx_rung = self.s2m.rung;
        let before = std::mem::replace(&mut self.rx_launched, rx_rung);
        self.launch(Launch {
            start,
            end: rung,
            rx_rung,
            rx_count: rx_rung.saturating_sub(before),
            order,
            data: None,
            even: self.m2s.pending() == self.s2m.pending(),
            packets: 0,
            overflow: None,
            marker: None,
            reused: None,
            early_told: false,
        })
    }
}

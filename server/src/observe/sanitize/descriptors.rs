//! Rules about descriptors as they are fetched.
use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, TxDescriptor};
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::Pointer;
use neuron_protocol::ring::RingId;

use super::queue::Held;
use super::{Place, Rule, Sanitizer};
use crate::observe::event::Prefetched;

/// What is wrong with a descriptor by itself.
#[derive(Clone, Copy)]
enum Wrong {
    RingId { expected: RingId, found: RingId },
    Chain(&'static str),
    Early { tx: u64, rx: u64 },
}

impl super::Queue {
    /// Takes in a descriptor that was read, and what is wrong with it: at most one of each.
    fn read(
        &mut self,
        direction: Direction,
        position: Pointer,
        raw: &[u8; DESCRIPTOR_SIZE],
    ) -> (Held, [Option<Wrong>; 3]) {
        // The first word is the same in both directions.
        let descriptor: TxDescriptor = zerocopy::transmute!(*raw);
        let len_ctrl = descriptor.len_ctrl();
        let held = self.stage(direction, Held::read(direction, position, *raw));
        let (expected, found) = (position.ring_id, len_ctrl.ring_id());
        let stale = found != expected && !len_ctrl.meta();
        let mut wrong = [None; 3];
        if stale {
            wrong[0] = Some(Wrong::RingId { expected, found });
        }
        // A stale descriptor says nothing about the packets of this lap.
        if direction == Direction::S2m || stale {
            return (held, wrong);
        }
        let broken = match (self.in_packet, held.first, len_ctrl.concat()) {
            (true, true, _) => Some("FIRST inside a packet whose LAST has not come"),
            (false, false, _) => Some("a packet begins without FIRST"),
            (_, true, true) => {
                Some("CONCAT on the first descriptor of a packet, which continues nothing")
            }
            _ => None,
        };
        wrong[1] = broken.map(Wrong::Chain);
        self.in_packet = !held.last;
        if held.last {
            self.packets += 1;
            let packets = self.packets + self.packets_from;
            if let Some(launch) = self.launch_of(held.ordinal) {
                launch.packets += 1;
                if packets > launch.rx_rung && !launch.early_told {
                    launch.early_told = true;
                    wrong[2] = Some(Wrong::Early {
                        tx: launch.end - launch.start,
                        rx: launch.rx_count,
                    });
                }
            }
        }
        (held, wrong)
    }
}

impl Sanitizer {
    /// Descriptors were read.
    pub(super) fn descriptors(&mut self, engine: u8, number: u8, prefetched: Prefetched<'_>) {
        let direction = prefetched.direction;
        let Some(queue) = self.queue(engine, number) else {
            return;
        };
        // Nearly always none.
        let mut wrong = Vec::new();
        for (position, raw) in prefetched.each() {
            let (held, found) = queue.read(direction, position, raw);
            wrong.extend(found.into_iter().flatten().map(|found| (held, found)));
        }
        for (held, found) in wrong {
            let place = Place {
                queue: Some((engine, number)),
                direction: Some(direction),
                index: Some(held.index),
                addresses: vec![(address_name(direction), held.address)],
            };
            match found {
                Wrong::RingId { expected, found } => self.find(Rule::RingId, place, 0, || {
                    format!(
                        "ring id {found} where this lap has {expected}: a stale descriptor, one that was not visible at its doorbell, or a phase that did not advance at the wrap"
                    )
                }),
                Wrong::Chain(how) => self.find(Rule::PacketChain, place, 0, || how.to_owned()),
                Wrong::Early { tx, rx } => self.find(Rule::TxBeforeRx, place, 0, || {
                    format!("{tx} tx descriptors were launched when only {rx} more rx buffers had been rung for: this packet had none")
                }),
            }
        }
    }

    /// The engine accepted what it read.
    pub(super) fn fetched(&mut self, engine: u8, number: u8, direction: Direction) {
        if let Some(queue) = self.queue(engine, number)
            && !queue.accept(direction)
        {
            self.findings.ledger().untracked();
        }
        self.judge_overflow(engine, number);
    }

    /// A descriptor differs from what was fetched.
    pub(super) fn changed(
        &mut self,
        engine: u8,
        number: u8,
        direction: Direction,
        index: u32,
        fetched: [u8; DESCRIPTOR_SIZE],
        found: [u8; DESCRIPTOR_SIZE],
    ) {
        let place = Place {
            queue: Some((engine, number)),
            direction: Some(direction),
            index: Some(index),
            addresses: Vec::new(),
        };
        let [fetched, found] = [fetched, found].map(u128::from_be_bytes);
        self.find(Rule::DescriptorChanged, place, 0, || {
            format!("fetched as {fetched:032x}, but {found:032x} in memory when its turn came: written after its doorbell")
        });
    }
}

/// What a descriptor's address is called.
pub(super) const fn address_name(direction: Direction) -> &'static str {
    match direction {
        Direction::M2s => "source",
        Direction::S2m => "destination",
    }
}

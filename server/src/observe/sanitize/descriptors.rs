//! Rules about descriptors as they are fetched.
use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, TxDescriptor};
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::Pointer;

use super::queue::Held;
use super::{Place, Rule, Sanitizer};

impl Sanitizer {
    /// A descriptor was read.
    pub(super) fn descriptor(
        &mut self,
        engine: u8,
        number: u8,
        direction: Direction,
        position: Pointer,
        raw: [u8; DESCRIPTOR_SIZE],
    ) {
        let Some(queue) = self.queue(engine, number) else {
            return;
        };
        // The first word is the same in both directions.
        let descriptor: TxDescriptor = zerocopy::transmute!(raw);
        let len_ctrl = descriptor.len_ctrl();
        let held = queue.stage(direction, Held::read(direction, position, raw));
        let wrong_id = len_ctrl.ring_id() != position.ring_id && !len_ctrl.meta();
        let mut broken = None;
        let mut early = None;
        // A stale descriptor says nothing about the packets of this lap.
        if direction == Direction::M2s && !wrong_id {
            broken = match (queue.in_packet, held.first, len_ctrl.concat()) {
                (true, true, _) => Some("FIRST inside a packet whose LAST has not come"),
                (false, false, _) => Some("a packet begins without FIRST"),
                (_, true, true) => {
                    Some("CONCAT on the first descriptor of a packet, which continues nothing")
                }
                _ => None,
            };
            queue.in_packet = !held.last;
            if held.last {
                queue.packets += 1;
                let packets = queue.packets + queue.packets_from;
                if let Some(launch) = queue.launch_of(held.ordinal) {
                    launch.packets += 1;
                    if packets > launch.rx_rung && !launch.early_told {
                        launch.early_told = true;
                        early = Some((launch.end - launch.start, launch.rx_count));
                    }
                }
            }
        }
        let place = || Place {
            queue: Some((engine, number)),
            direction: Some(direction),
            index: Some(held.index),
            addresses: vec![(address_name(direction), held.address)],
        };
        if wrong_id {
            let (expected, found) = (position.ring_id, len_ctrl.ring_id());
            self.find(Rule::RingId, place(), 0, || {
                format!(
                    "ring id {found} where this lap has {expected}: a stale descriptor, one that was not visible at its doorbell, or a phase that did not advance at the wrap"
                )
            });
        }
        if let Some(how) = broken {
            self.find(Rule::PacketChain, place(), 0, || how.to_owned());
        }
        if let Some((tx, rx)) = early {
            self.find(Rule::TxBeforeRx, place(), 0, || {
                format!("{tx} tx descriptors were launched when only {rx} more rx buffers had been rung for: this packet had none")
            });
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

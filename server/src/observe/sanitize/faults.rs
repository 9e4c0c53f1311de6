//! What stopped an engine, as a rule that was broken.
use neuron_protocol::registers::Direction;

use super::descriptors::address_name;
use super::queue::Setup;
use super::{Place, Rule, Sanitizer};
use crate::memory::Unmapped;
use crate::udma::{Fault, FaultKind};

impl Sanitizer {
    /// An engine stopped.
    pub(super) fn abort(&mut self, engine: u8, fault: &Fault) {
        let Fault {
            queue: number,
            direction,
            index,
            address,
            kind,
        } = *fault;
        let Some(queue) = self.queue(engine, number) else {
            return;
        };
        queue.refuse();
        let ring = queue.ring(direction);
        let (base, started, setup) = (ring.base, ring.fetched > 0, ring.setup);
        let held = queue
            .held(direction)
            .iter()
            .find(|held| held.index == index);
        let buffer = held.map(|held| (held.address, held.length));
        let place = |addresses| Place {
            queue: Some((engine, number)),
            direction: Some(direction),
            index: Some(index),
            addresses,
        };
        let detail = || kind.to_string();
        match kind {
            FaultKind::RingUnset if setup == Setup::Reset => {
                self.find(Rule::DoorbellAfterReset, place(Vec::new()), 0, || {
                    "doorbell on a queue that was not programmed again since the reset".to_owned()
                });
            }
            FaultKind::RingUnset => {
                self.find(Rule::DoorbellUninitialised, place(Vec::new()), 0, detail);
            }
            FaultKind::RingMisaligned { .. } => {
                self.find(Rule::RingMisaligned, place(vec![("ring", base)]), 0, detail);
            }
            FaultKind::TailOverrun { count, length, .. } if count > length => {
                self.find(Rule::DoorbellBeyondRing, place(Vec::new()), 0, || {
                    format!("doorbell of {count} on a ring of {length}")
                });
            }
            FaultKind::TailOverrun { .. } => {
                self.find(Rule::TailOverrun, place(Vec::new()), 0, detail);
            }
            FaultKind::TooManyDescriptors { .. } | FaultKind::PacketTooLong { .. } => {
                self.find(Rule::PacketChain, place(Vec::new()), 0, detail);
            }
            FaultKind::Fetch(unmapped) => {
                let start = started.then_some((base, 0));
                self.address(
                    place(vec![("ring", base)]),
                    "the ring",
                    start,
                    address,
                    unmapped,
                );
            }
            FaultKind::Data(unmapped) => {
                let at = buffer.map_or(address, |(start, _)| start);
                let place = place(vec![(address_name(direction), at)]);
                let what = match direction {
                    Direction::M2s => "the source",
                    Direction::S2m => "the destination",
                };
                self.address(place, what, buffer, address, unmapped);
            }
            // Told where the descriptor was read; or no fault of the driver's.
            _ => {}
        }
        self.lose_polls(Self::slot(engine, number));
        self.excuse(engine);
    }

    /// An address led nowhere. `buffer` is where it belongs, if its beginning was all right.
    pub(super) fn address(
        &self,
        place: Place,
        what: &str,
        buffer: Option<(u64, u32)>,
        address: u64,
        unmapped: Unmapped,
    ) {
        let straddles = buffer.is_some_and(|(start, _)| address > start);
        let (rule, why) = match unmapped {
            // The client's doing.
            Unmapped::Truncated => return,
            _ if straddles => (
                Rule::AddressStraddles,
                "it begins where there is memory and goes on where there is none",
            ),
            Unmapped::Nowhere | Unmapped::PastStack { .. } if self.maps.contains(address) => (
                Rule::AddressNoHostBit,
                "guest RAM is mapped at this very number: the host bit is missing",
            ),
            Unmapped::NotMapped(_) if self.maps.only_pieces() => (
                Rule::AddressIommu,
                "the client maps only small pieces, as behind an IOMMU of the guest: a guest-physical address means nothing there (boot with iommu=pt, or map the memory for DMA)",
            ),
            _ => (Rule::AddressUnmapped, "check how it was made"),
        };
        self.find(rule, place, 0, || {
            format!("{what} leads nowhere at {address:#x}: {unmapped}; {why}")
        });
    }

    /// What is pending on an engine that stopped is lost; resetting its queues is how software recovers.
    fn excuse(&mut self, engine: u8) {
        let first = Self::slot(engine, 0);
        let last = Self::slot(engine + 1, 0);
        for queue in self.queues.iter_mut().take(last).skip(first).flatten() {
            for direction in Direction::BOTH {
                let ring = queue.ring_mut(direction);
                ring.excused = ring.pending() > 0;
            }
        }
    }
}

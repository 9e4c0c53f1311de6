//! Reading descriptors ahead of their use.
use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, TxDescriptor};
use neuron_protocol::registers::Direction;

use super::ask::{Asked, Gate, Hold};
use super::{Pair, Pending, Step};
use crate::memory::{Access, Purpose, Target, Unmapped};
use crate::observe::event::EventKind;
use crate::policy::{Point, Verdict};
use crate::udma::context::Context;
use crate::udma::limits::Limits;
use crate::udma::ring::{PREFETCH_DEPTH, RawDescriptor};
use crate::udma::{Fault, FaultKind, Request};

impl Pair {
    pub(super) fn fetch(
        &mut self,
        direction: Direction,
        address: u64,
        count: u32,
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<Step, Fault> {
        let index = self.ring(direction).head.index;
        let point = Point::Fetch {
            engine: self.engine,
            queue: self.queue,
            direction,
            index,
            count,
        };
        let mut address = address;
        match self.ask(Gate::Fetch(direction), point, cx) {
            Asked::Wait(step) => return Ok(step),
            Asked::Verdict(Verdict::Fail) => {
                return Err(self.fault(direction, index, address, FaultKind::InjectedFetch));
            }
            // The descriptors never arrive.
            Asked::Verdict(Verdict::Drop) => {
                self.policed().hold = Some(Hold::FOREVER);
                return Ok(Step::Blocked);
            }
            Asked::Verdict(Verdict::Shift(by)) => address = self.ring(direction).shifted(by),
            Asked::Verdict(Verdict::Corrupt(corruption)) => {
                self.policed().corruption = Some(corruption);
            }
            Asked::Verdict(_) => {}
        }
        let len = count as usize * DESCRIPTOR_SIZE;
        let mut bytes = [0; PREFETCH_DEPTH as usize * DESCRIPTOR_SIZE];
        let mut filled = 0;
        while filled < len {
            let at = address.wrapping_add(filled as u64);
            match cx.memory.resolve(at, len - filled, Access::Read) {
                Ok(Target::Memory(slice)) => {
                    let stretch = slice.len();
                    cx.memory
                        .read(
                            &slice,
                            Purpose::Control,
                            &mut bytes[filled..filled + stretch],
                        )
                        .map_err(|_| {
                            self.fault(direction, index, at, FaultKind::Fetch(Unmapped::Truncated))
                        })?;
                    filled += stretch;
                }
                // What is here already is used first; the rest is asked for when it is its turn.
                Ok(Target::Message { .. }) if filled >= DESCRIPTOR_SIZE => break,
                Ok(Target::Message { iova, len }) => {
                    self.pending = Pending::Fetch(direction);
                    // Whole descriptors; one that straddles two mappings is the client's to assemble.
                    let len = (len / DESCRIPTOR_SIZE).max(1) * DESCRIPTOR_SIZE;
                    let iova = iova.wrapping_sub(filled as u64);
                    return Ok(Step::Request(Request::ReadGuest { iova, len }));
                }
                Ok(Target::Register { .. }) => {
                    return Err(self.fault(direction, index, at, FaultKind::RingInRegisters));
                }
                Err(_) if filled >= DESCRIPTOR_SIZE => break,
                Err(unmapped) => {
                    return Err(self.fault(direction, index, at, FaultKind::Fetch(unmapped)));
                }
            }
        }
        self.fetched(direction, &bytes[..filled], limits, cx)?;
        Ok(Step::Progress { bytes: 0 })
    }

    /// Looks at a fetched descriptor again, for those who want to know whether it has changed since. What was fetched
    /// is used either way.
    pub(super) fn audit(&self, direction: Direction, raw: &RawDescriptor, cx: &mut Context<'_>) {
        if !cx.audits() {
            return;
        }
        let ring = self.ring(direction);
        let index = ring.current.index;
        let found = cx
            .memory
            .resolve(ring.address_of(index), raw.len(), Access::Read);
        // What is behind messages, or in two mappings, costs more than it tells.
        let Ok(Target::Memory(stretch)) = found else {
            return;
        };
        let mut found = [0; DESCRIPTOR_SIZE];
        if stretch.len() == found.len()
            && cx
                .memory
                .read(&stretch, Purpose::Control, &mut found)
                .is_ok()
            && found != *raw
        {
            let kind = EventKind::DescriptorChanged {
                direction,
                index,
                fetched: *raw,
                found,
            };
            self.emit(cx, kind);
        }
    }

    /// Takes descriptors into the prefetch buffer. Their ring ids are checked here (udma §6), before any is used.
    pub(super) fn fetched(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        limits: Limits,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let corrupt;
        let corruption = self.policed.as_mut().and_then(|policed| {
            policed.passed = None;
            policed.corruption.take()
        });
        let bytes = match corruption {
            Some(corruption) => {
                let mut changed = bytes.to_vec();
                corruption.apply(&mut changed);
                corrupt = changed;
                &corrupt
            }
            None => bytes,
        };
        let (descriptors, _) = bytes.as_chunks::<DESCRIPTOR_SIZE>();
        let ring = self.ring(direction);
        let (first, length) = (ring.head, ring.length());
        for (nth, raw) in (0..).zip(descriptors) {
            let position = first.advanced(nth, length);
            if cx.observers.interest().descriptors {
                self.emit(
                    cx,
                    EventKind::Descriptor {
                        direction,
                        position,
                        raw: *raw,
                    },
                );
            }
            // The first word is the same in both directions.
            let descriptor: TxDescriptor = zerocopy::transmute!(*raw);
            let len_ctrl = descriptor.len_ctrl();
            // A tx meta descriptor keeps an index where the ring id is (facts §2.3); in rx the bit means nothing.
            let overlaid = direction == Direction::M2s && len_ctrl.meta();
            if len_ctrl.ring_id() != position.ring_id && !overlaid {
                let kind = FaultKind::RingId {
                    expected: position.ring_id.bits(),
                    found: len_ctrl.ring_id().bits(),
                };
                self.refuse(
                    limits,
                    self.fault(direction, position.index, descriptor.source(), kind),
                )?;
            }
        }
        self.ring_mut(direction).accept(descriptors);
        let count = u32::try_from(descriptors.len()).unwrap_or(0);
        self.record(
            cx,
            EventKind::Fetch {
                direction,
                index: first.index,
                count,
            },
        );
        Ok(())
    }
}

//! Reading descriptors ahead of their use.
use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, TxDescriptor};
use neuron_protocol::registers::Direction;

use super::ask::{Asked, Gate, Hold};
use super::{Pair, Pending, Step};
use crate::memory::{Access, Purpose, Target, Unmapped};
use crate::observe::event::{EventKind, Prefetched};
use crate::policy::{Point, Verdict};
use crate::udma::context::Context;
use crate::udma::limits::Limits;
use crate::udma::ring::PREFETCH_DEPTH;
use crate::udma::{Fault, FaultKind, Request};

/// Descriptors that one audit looks at.
const AUDITED_AT_ONCE: usize = 16;

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

    /// Looks at fetched descriptors again before the next is taken, for those who want to know whether they have changed
    /// since. What was fetched is used either way.
    ///
    /// Each look is at [`AUDITED_AT_ONCE`]: none of them is done, so that nobody may have given the slots away.
    pub(super) fn audit(&mut self, direction: Direction, cx: &mut Context<'_>) {
        let ring = self.ring_mut(direction);
        if ring.fetched.is_empty() {
            return;
        }
        if let Some(left) = ring.audited.checked_sub(1) {
            ring.audited = left;
            return;
        }
        if !cx.audits() {
            return;
        }
        let first = ring.current.index;
        let to_end = usize::try_from(ring.length().saturating_sub(first)).unwrap_or(usize::MAX);
        let count = ring.fetched.len().min(to_end).min(AUDITED_AT_ONCE);
        let ring = self.ring(direction);
        let address = ring.address_of(first);
        let mut found = [0; AUDITED_AT_ONCE * DESCRIPTOR_SIZE];
        let mut seen = 0;
        // What is behind messages, or past the end of a mapping, costs more than it tells.
        if let Ok(Target::Memory(stretch)) =
            cx.memory
                .resolve(address, count * DESCRIPTOR_SIZE, Access::Read)
            && let Some(into) = found.get_mut(..stretch.len())
            && cx.memory.read(&stretch, Purpose::Control, into).is_ok()
        {
            seen = stretch.len() / DESCRIPTOR_SIZE;
        }
        let (found, _) = found.as_chunks::<DESCRIPTOR_SIZE>();
        for ((index, found), fetched) in (first..).zip(&found[..seen]).zip(&ring.fetched) {
            if found != fetched {
                let kind = EventKind::DescriptorChanged {
                    direction,
                    index,
                    fetched: *fetched,
                    found: *found,
                };
                self.emit(cx, kind);
            }
        }
        self.ring_mut(direction).audited = u32::try_from(count.saturating_sub(1)).unwrap_or(0);
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
        let prefetched = Prefetched {
            direction,
            first,
            length,
            raw: descriptors,
        };
        let mut accepted = Ok(());
        let mut seen = 0;
        for (position, raw) in prefetched.each() {
            seen += 1;
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
                let fault = self.fault(direction, position.index, descriptor.source(), kind);
                accepted = self.refuse(limits, fault);
                if accepted.is_err() {
                    break;
                }
            }
        }
        if cx.observers.interest().descriptors {
            let raw = &descriptors[..seen];
            let scope = self.scope();
            cx.observers
                .prefetched(scope, Prefetched { raw, ..prefetched });
        }
        accepted?;
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

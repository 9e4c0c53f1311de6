//! A queue as unhelpful as it may be: writes land late, apart and out of order, wherever no barrier forbids it.
//!
//! In order, a write lands when its descriptor is done. Under an adversary it waits in a window of bounded size until
//! it is chosen. What it must not overtake (`docs/adversary.md` has the sources):
//! - a write before a write barrier, if it comes after it;
//! - any earlier write, if it is strongly ordered;
//! - an earlier write to host memory, if it goes there too: they take the same path;
//! - an earlier write to the same bytes.
//!
//! A DMB lets its descriptor begin only when the window is empty.
use std::time::Duration;

use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::Direction;

use super::{Pair, Pending, Step};
use crate::memory::{Access, Target};
use crate::observe::event::EventKind;
use crate::policy::adversary::{Adversary, Kind, Stream};
use crate::udma::context::Context;
use crate::udma::limits::Limits;
use crate::udma::ring::PREFETCH_DEPTH;
use crate::udma::{Fault, FaultKind, Request};

/// What becomes visible at once: a beat of the bus, 64 bytes.
const BEAT: u64 = 64;
/// No packet of the bus crosses a multiple of this (PCI Express: 4 KiB).
const BOUNDARY: u64 = 4096;
/// Writes in the window beyond which nothing is added; one step adds up to [`BOUNDARY`] / [`BEAT`] + 1 more.
const WINDOW: usize = 192;
/// Longest nap, as a power of two in microseconds: short against the 40 ms of the smallest budget.
const LONGEST_NAP: u64 = 8;

/// A write that has not landed.
#[derive(Debug)]
struct Held {
    address: u64,
    data: Vec<u8>,
    /// Write barriers before it.
    epoch: u64,
    strong_order: bool,
    host: bool,
    /// The completion marker, whose tx descriptor this is.
    marker: Option<u32>,
    rx: u32,
    /// Descriptors of either ring that were done before its own, since the queue's reset.
    done: [u64; 2],
}

impl Held {
    const fn end(&self) -> u64 {
        self.address.saturating_add(self.data.len() as u64)
    }

    /// Whether it must not land before `earlier` has.
    const fn waits_for(&self, earlier: &Self) -> bool {
        self.strong_order
            || earlier.epoch < self.epoch
            || (self.host && earlier.host)
            || (self.address < earlier.end() && earlier.address < self.end())
    }
}

/// The window and what else has not been decided yet.
#[derive(Debug)]
pub(super) struct Weak {
    stream: Stream,
    /// In the order of the ring.
    held: Vec<Held>,
    epoch: u64,
    nap: Option<Duration>,
    /// The write that the client or a register is being told of, and its bytes.
    landing: Option<(usize, usize)>,
    /// The heads have had their rest.
    rested: bool,
    /// Descriptors with `INT_EN` are done whose bytes have not all landed, m2s and s2m.
    completed: [bool; 2],
}

impl Weak {
    /// A write that may land now: the oldest, or one that need not wait for those before it.
    fn pick(&mut self, adversary: &mut Adversary) -> usize {
        let Some(word) = adversary.deviates(&mut self.stream, Kind::Reorder) else {
            return 0;
        };
        let free = |nth: &usize| {
            let (before, rest) = self.held.split_at(*nth);
            rest.first()
                .is_some_and(|held| !before.iter().any(|earlier| held.waits_for(earlier)))
        };
        let free: Vec<_> = (0..self.held.len()).filter(free).collect();
        let nth = usize::try_from(word).unwrap_or(0) % free.len().max(1);
        free.get(nth).copied().unwrap_or(0)
    }
}

impl Pair {
    /// Puts the queue at an adversary's mercy, if there is one.
    pub(super) fn weaken(&mut self, cx: &mut Context<'_>) {
        if self.weak.is_none()
            && let Some(adversary) = cx.policies.adversary_mut()
        {
            self.weak = Some(Box::new(Weak {
                stream: adversary.stream(self.engine, self.queue),
                held: Vec::new(),
                epoch: 0,
                nap: None,
                landing: None,
                rested: false,
                completed: [false; 2],
            }));
            self.m2s.lag();
            self.s2m.lag();
        }
    }

    /// Its writes are held.
    pub(super) const fn is_weak(&self) -> bool {
        self.weak.is_some()
    }

    /// Work is done that cannot be seen yet.
    pub fn is_draining(&self) -> bool {
        self.weak.as_ref().is_some_and(|weak| !weak.held.is_empty())
            || self.m2s.unshown > 0
            || self.s2m.unshown > 0
    }

    fn deviates(&mut self, kind: Kind, cx: &mut Context<'_>) -> Option<u64> {
        let weak = self.weak.as_mut()?;
        cx.policies
            .adversary_mut()?
            .deviates(&mut weak.stream, kind)
    }

    /// The next small thing, or another one.
    pub(super) fn weak_step(
        &mut self,
        limits: Limits,
        most: u32,
        cx: &mut Context<'_>,
    ) -> Result<Step, Fault> {
        if let Some(weak) = &mut self.weak
            && let Some(until) = weak.nap
        {
            if until > cx.now {
                return Ok(Step::Until(until));
            }
            weak.nap = None;
        }
        if (self.m2s.outstanding > 0 || self.is_draining())
            && let Some(word) = self.deviates(Kind::Nap, cx)
        {
            return Ok(self.sleep(word, cx));
        }
        let held = self.weak.as_ref().map_or(0, |weak| weak.held.len());
        if held > 0 && (held >= WINDOW || self.deviates(Kind::Hold, cx).is_none()) {
            return self.land(limits, cx);
        }
        match self.advance(limits, most, cx)? {
            Step::Blocked if held > 0 => self.land(limits, cx),
            Step::Blocked if self.is_draining() => Ok(self.rest(cx)),
            step => Ok(step),
        }
    }

    /// Does nothing for a while: at least until messages have been looked at.
    fn sleep(&mut self, word: u64, cx: &Context<'_>) -> Step {
        let us = match word % (LONGEST_NAP + 2) {
            0 => 0,
            n => 1 << (n - 1),
        };
        let until = cx.now.saturating_add(Duration::from_micros(us));
        if let Some(weak) = &mut self.weak {
            weak.nap = Some(until);
        }
        Step::Until(until)
    }

    /// All has landed; the heads say so now, or after a nap.
    fn rest(&mut self, cx: &mut Context<'_>) -> Step {
        let rested = self
            .weak
            .as_mut()
            .is_none_or(|weak| std::mem::replace(&mut weak.rested, true));
        if !rested && let Some(word) = self.deviates(Kind::LagHeads, cx) {
            return self.sleep(word, cx);
        }
        self.show_heads();
        Step::Progress { bytes: 0 }
    }

    /// The heads move up to the first descriptor that has not landed.
    fn show_heads(&mut self) {
        let limit = match self.weak.as_ref().and_then(|weak| weak.held.first()) {
            Some(held) => held.done,
            None => [self.m2s.done, self.s2m.done],
        };
        self.m2s.show(limit[0]);
        self.s2m.show(limit[1]);
        if let Some(weak) = &mut self.weak {
            weak.rested = false;
        }
    }

    /// Whether to fetch now: when none are left, or earlier.
    pub(super) fn fetches(&mut self, direction: Direction, cx: &mut Context<'_>) -> bool {
        let fetched = self.ring(direction).fetched.len();
        fetched == 0
            || (self.is_weak()
                && fetched < PREFETCH_DEPTH as usize
                && self.ring(direction).unfetched > 0
                && self.deviates(Kind::FetchEarly, cx).is_some())
    }

    /// How many of `count` to fetch.
    pub(super) fn fetch_count(
        &mut self,
        direction: Direction,
        count: u32,
        cx: &mut Context<'_>,
    ) -> u32 {
        if !self.is_weak() {
            return count;
        }
        let here = u32::try_from(self.ring(direction).fetched.len()).unwrap_or(u32::MAX);
        let room = count.min(PREFETCH_DEPTH.saturating_sub(here)).max(1);
        match self.deviates(Kind::FetchFew, cx) {
            Some(word) => u32::try_from(word % u64::from(room)).unwrap_or(0) + 1,
            None => room,
        }
    }

    /// Most bytes to move in this step from and to these addresses: no packet crosses a boundary.
    pub(super) fn packet_bytes(&self, source: u64, destination: u64, most: u32) -> u32 {
        if !self.is_weak() {
            return most;
        }
        let left = |address: u64| BOUNDARY - address % BOUNDARY;
        let left = left(source).min(left(destination));
        most.min(u32::try_from(left).unwrap_or(most))
    }

    /// The descriptor in use must not begin before everything before it has landed.
    pub(super) fn must_drain(&mut self) -> bool {
        let held = self.weak.as_ref().is_some_and(|weak| !weak.held.is_empty());
        let enabled = self.m2s.obeys_dmb();
        let Some(tx) = &mut self.tx else {
            return false;
        };
        let drain = tx.order.dmb && enabled && held;
        if !drain {
            // It has begun: its own writes are not before it.
            tx.order.dmb = false;
        }
        drain
    }

    /// Takes what is left of `bytes` for the current destination into the window. Their descriptors are done as far as the
    /// queue goes on.
    pub(super) fn hold(&mut self, data: &[u8], bytes: u32, cx: &mut Context<'_>) -> Step {
        let (Some(tx), Some(rx)) = (&self.tx, &self.rx) else {
            return Step::Blocked;
        };
        let (address, rx_index, strong_order) = (rx.address, rx.index, rx.strong_order);
        let barrier = tx.order.write_barrier && tx.left <= bytes;
        let marker = (data == MARKER.to_le_bytes()).then_some(tx.index);
        let host = cx.memory.is_host(address);
        let done = [self.m2s.done, self.s2m.done];
        let mut rest = data;
        let mut at = address;
        while !rest.is_empty() {
            let run = self.run_bytes(at, rest.len(), cx);
            let (piece, after) = rest.split_at(run);
            rest = after;
            if let Some(weak) = &mut self.weak {
                weak.held.push(Held {
                    address: at,
                    data: piece.to_vec(),
                    epoch: weak.epoch,
                    strong_order,
                    host,
                    marker: marker.filter(|_| rest.is_empty()),
                    rx: rx_index,
                    done,
                });
            }
            at = at.wrapping_add(run as u64);
        }
        if let Some(weak) = &mut self.weak {
            weak.epoch += u64::from(barrier);
        }
        let before = std::mem::take(&mut self.completed);
        self.landed(bytes, false, cx);
        // What an interrupt is about lands before it.
        let completed = std::mem::replace(&mut self.completed, before);
        if let Some(weak) = &mut self.weak {
            weak.completed[0] |= completed[0];
            weak.completed[1] |= completed[1];
        }
        Step::Progress { bytes }
    }

    /// Bytes of the next run of beats.
    fn run_bytes(&mut self, at: u64, len: usize, cx: &mut Context<'_>) -> usize {
        let Some(word) = self.deviates(Kind::Cut, cx) else {
            return len;
        };
        // Mostly few beats, sometimes many.
        let beats = 1 + (word >> 8) % (1 << (word % 6));
        let end = at - at % BEAT + beats * BEAT;
        len.min(usize::try_from(end - at).unwrap_or(len))
    }

    /// Lands a write of the window, or the part of it that is of one mapping.
    pub(super) fn land(&mut self, limits: Limits, cx: &mut Context<'_>) -> Result<Step, Fault> {
        let Some(weak) = &mut self.weak else {
            return Ok(Step::Blocked);
        };
        let Some(adversary) = cx.policies.adversary_mut() else {
            return Ok(Step::Blocked);
        };
        let nth = weak.pick(adversary);
        let Some(held) = weak.held.get(nth) else {
            return Ok(Step::Blocked);
        };
        let fault = |kind| Fault {
            queue: self.queue,
            direction: Direction::S2m,
            index: held.rx,
            address: held.address,
            kind,
        };
        let to = cx
            .memory
            .resolve(held.address, held.data.len(), Access::Write);
        match to {
            Ok(to) => {
                let len = to.len();
                let data = &held.data[..len];
                let request = match to {
                    Target::Memory(to) => {
                        if cx.memory.write(data, &to).is_err() {
                            let kind = FaultKind::Data(crate::memory::Unmapped::Truncated);
                            return Err(fault(kind));
                        }
                        self.has_landed(nth, len, cx);
                        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
                        return Ok(Step::Progress { bytes });
                    }
                    Target::Message { iova, .. } => Request::WriteGuest {
                        iova,
                        data: data.to_vec(),
                    },
                    Target::Register { offset, .. } => Request::WriteRegister {
                        offset,
                        data: data.to_vec(),
                    },
                };
                weak.landing = Some((nth, len));
                self.pending = Pending::Land;
                Ok(Step::Request(request))
            }
            Err(unmapped) => {
                let fault = fault(FaultKind::Data(unmapped));
                // Where software masked the error the bytes are lost, as they are in order.
                weak.held.remove(nth);
                self.refuse(limits, fault)?;
                Ok(Step::Progress { bytes: 0 })
            }
        }
    }

    /// The write that was asked for has been made.
    pub(super) fn complete_landing(&mut self, cx: &mut Context<'_>) {
        let landing = self.weak.as_mut().and_then(|weak| weak.landing.take());
        if let Some((nth, len)) = landing {
            self.has_landed(nth, len, cx);
        }
    }

    /// Place and address of the write that was asked for.
    pub(super) fn landing(&self) -> Option<(u32, u64)> {
        let weak = self.weak.as_ref()?;
        let held = weak.held.get(weak.landing?.0)?;
        Some((held.rx, held.address))
    }

    /// The engine stops: what is in the window never lands.
    pub(super) fn lose_window(&mut self) {
        if let Some(weak) = &mut self.weak {
            weak.held.clear();
            weak.landing = None;
        }
    }

    fn has_landed(&mut self, nth: usize, len: usize, cx: &mut Context<'_>) {
        let Some(weak) = &mut self.weak else {
            return;
        };
        let Some(held) = weak.held.get_mut(nth) else {
            return;
        };
        let (destination, marker) = (held.address, held.marker);
        let whole = len >= held.data.len();
        if whole {
            weak.held.remove(nth);
        } else {
            held.data.drain(..len);
            held.address = held.address.wrapping_add(len as u64);
        }
        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
        self.emit(cx, EventKind::Landed { destination, bytes });
        if whole && let Some(tx) = marker {
            self.marked(tx, destination, cx);
        }
        if let Some(weak) = &mut self.weak
            && weak.held.is_empty()
        {
            let [m2s, s2m] = std::mem::take(&mut weak.completed);
            self.completed[0] |= m2s;
            self.completed[1] |= s2m;
        }
        if self.deviates(Kind::LagHeads, cx).is_none() {
            self.show_heads();
        }
    }
}

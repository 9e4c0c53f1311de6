//! What the sanitizer keeps of a queue: bounded summaries of what is outstanding, built from events alone.
use std::collections::VecDeque;

use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, RxDescriptor, TxDescriptor};
use neuron_protocol::marker::{MARKER_SIZE, POLL_OFFSET};
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::{Cfg, Pointer};

use crate::observe::recorder::Recorder;

/// Events of the queue that a finding shows.
pub const SHOWN_EVENTS: usize = 8;
/// Fetched descriptors followed per direction: twice what an engine prefetches.
const MAX_DESCRIPTORS: usize = 256;
/// Launches followed: the driver's zero-copy queue has 1024 contexts (facts §4.3).
const MAX_LAUNCHES: usize = 1024;

/// How far software has come with a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setup {
    /// Never programmed.
    #[default]
    Never,
    /// Has a length.
    Programmed,
    /// Was programmed before a reset that covered it.
    Reset,
}

/// One ring. Totals count since its last reset, so that they are positions as well.
#[derive(Debug)]
pub struct Ring {
    /// Enables.
    pub cfg: Cfg,
    /// Base as programmed.
    pub base: u64,
    /// Length in descriptors.
    pub length: u32,
    /// See [`Setup`].
    pub setup: Setup,
    /// Descriptors rung for.
    pub rung: u64,
    /// Descriptors that came into the prefetch buffer.
    pub fetched: u64,
    /// Descriptors done.
    pub done: u64,
    /// An abort dropped its work: resetting it is how software recovers.
    pub excused: bool,
}

impl Ring {
    const fn new(setup: Setup) -> Self {
        Self {
            cfg: Cfg::RESET,
            base: 0,
            length: 0,
            setup,
            rung: 0,
            fetched: 0,
            done: 0,
            excused: false,
        }
    }

    /// Rung for and not done.
    pub const fn pending(&self) -> u64 {
        self.rung.saturating_sub(self.done)
    }

    /// Whether bytes lie in descriptors that are rung for and not done.
    pub fn holds_pending(&self, address: u64, bytes: u64) -> bool {
        let size = DESCRIPTOR_SIZE as u64;
        let (length, pending) = (u64::from(self.length), self.pending());
        let end = address.saturating_add(bytes);
        if pending == 0 || length == 0 || end <= self.base {
            return false;
        }
        let Some(first) = address
            .max(self.base)
            .checked_sub(self.base)
            .map(|offset| offset / size)
            .filter(|first| *first < length)
        else {
            return false;
        };
        let last = ((end - 1 - self.base) / size).min(length - 1);
        let from = self.done % length;
        // Distance from the first pending slot, going round.
        let distance = |slot: u64| (slot + length - from) % length;
        pending >= length
            || distance(first) < pending
            || distance(first) > distance(last)
            || distance(last) < pending
    }

    fn restart(&mut self) {
        self.rung = 0;
        self.fetched = 0;
        self.done = 0;
        self.excused = false;
    }
}

/// A fetched descriptor of either direction.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Position since the ring's reset.
    pub ordinal: u64,
    /// Index in the ring.
    pub index: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Bytes that have not been moved.
    pub left: u32,
    /// tx: first and last of its packet.
    pub first: bool,
    /// tx: last of its packet.
    pub last: bool,
    /// Orders what follows it, or itself, behind what came before.
    pub barrier: bool,
}

impl Held {
    /// Reads a descriptor.
    pub fn read(direction: Direction, position: Pointer, raw: [u8; DESCRIPTOR_SIZE]) -> Self {
        let tx: TxDescriptor = zerocopy::transmute!(raw);
        let rx: RxDescriptor = zerocopy::transmute!(raw);
        let len_ctrl = tx.len_ctrl();
        let barrier = match direction {
            Direction::M2s => len_ctrl.dmb() || tx.meta_ctrl().write_barrier(),
            Direction::S2m => rx.len_ctrl().strong_order(),
        };
        Self {
            ordinal: 0,
            index: position.index,
            address: tx.source(),
            length: len_ctrl.byte_length(),
            left: len_ctrl.byte_length(),
            first: len_ctrl.first(),
            last: len_ctrl.last(),
            barrier,
        }
    }

    /// As tx: a packet of its own.
    pub const fn alone(&self) -> bool {
        self.first && self.last
    }

    /// As tx, with the rx descriptor its bytes go to: a marker, that is a word copied to the word behind it (seed §2).
    pub const fn marks(&self, rx: &Self) -> bool {
        self.alone()
            && self.length == MARKER_SIZE
            && rx.length == MARKER_SIZE
            && rx.address == self.address.wrapping_add(POLL_OFFSET)
    }
}

/// What one m2s doorbell launched: for the kernel's queues a batch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// First tx descriptor, as a position since the ring's reset.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// rx descriptors that had been rung for by then, since the ring's reset.
    pub rx_rung: u64,
    /// rx descriptors rung for since the launch before.
    pub rx_count: u64,
    /// Number of the event that launched it.
    pub order: u64,
    /// Data descriptors are done, and the last of them is ordered before the marker.
    pub data: Option<bool>,
    /// As many buffers as descriptors were outstanding then, as the kernel launches them (seed §3).
    pub even: bool,
    /// Packets fetched of it.
    pub packets: u64,
    /// A packet was longer than its buffer: tx and rx.
    pub overflow: Option<(Held, Held)>,
    /// The last marker done: its position, its index, and its poll word.
    pub marker: Option<(u64, u32, u64)>,
    /// Slots of it were rung for again before it was done: that doorbell's first index.
    pub reused: Option<u32>,
    /// [`super::Rule::TxBeforeRx`] was told.
    pub early_told: bool,
}

impl Launch {
    /// Every packet is one descriptor and has one buffer. Known when all of it is fetched.
    pub const fn one_to_one(&self) -> bool {
        let descriptors = self.end - self.start;
        self.even && self.rx_count == descriptors && self.packets == descriptors
    }
}

/// Where things of a direction are.
const fn side(direction: Direction) -> usize {
    match direction {
        Direction::M2s => 0,
        Direction::S2m => 1,
    }
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    /// Sources.
    pub m2s: Ring,
    /// Destinations.
    pub s2m: Ring,
    /// tx descriptors fetched and not done.
    pub tx: VecDeque<Held>,
    /// rx descriptors fetched and not done.
    pub rx: VecDeque<Held>,
    /// Read, but not yet known to be accepted: of m2s and of s2m.
    staged: [Vec<Held>; 2],
    /// Launched and not done.
    pub launches: VecDeque<Launch>,
    /// rx descriptors rung for when the last launch was made.
    pub rx_launched: u64,
    /// A packet whose LAST has not been fetched.
    pub in_packet: bool,
    /// Packets fetched since [`Self::packets_from`].
    pub packets: u64,
    /// rx descriptors done when packets were last counted from 0.
    pub packets_from: u64,
    /// Too much was outstanding to be followed: only rules about doorbells and faults are checked until a reset.
    pub blind: bool,
    /// In the list of queues with pending work.
    pub listed: bool,
    /// Its last events.
    pub recorder: Recorder<SHOWN_EVENTS>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            m2s: Ring::new(Setup::Never),
            s2m: Ring::new(Setup::Never),
            tx: VecDeque::new(),
            rx: VecDeque::new(),
            staged: [Vec::new(), Vec::new()],
            launches: VecDeque::new(),
            rx_launched: 0,
            in_packet: false,
            packets: 0,
            packets_from: 0,
            blind: false,
            listed: false,
            recorder: Recorder::default(),
        }
    }
}

impl Queue {
    /// The ring of a direction.
    pub const fn ring(&self, direction: Direction) -> &Ring {
        match direction {
            Direction::M2s => &self.m2s,
            Direction::S2m => &self.s2m,
        }
    }

    /// The ring of a direction.
    pub const fn ring_mut(&mut self, direction: Direction) -> &mut Ring {
        match direction {
            Direction::M2s => &mut self.m2s,
            Direction::S2m => &mut self.s2m,
        }
    }

    /// Fetched descriptors of a direction.
    pub const fn held(&self, direction: Direction) -> &VecDeque<Held> {
        match direction {
            Direction::M2s => &self.tx,
            Direction::S2m => &self.rx,
        }
    }

    /// Adds a launch. False: there are too many to follow.
    pub fn launch(&mut self, launch: Launch) -> bool {
        if self.launches.len() >= MAX_LAUNCHES {
            self.blind = true;
            return false;
        }
        self.launches.push_back(launch);
        true
    }

    /// The launch that holds a tx descriptor.
    pub fn launch_of(&mut self, ordinal: u64) -> Option<&mut Launch> {
        self.launches
            .iter_mut()
            .find(|launch| launch.end > ordinal)
            .filter(|launch| launch.start <= ordinal)
    }

    /// Takes a descriptor in until the engine accepts it. Returns it with its position.
    pub fn stage(&mut self, direction: Direction, mut held: Held) -> Held {
        let fetched = self.ring(direction).fetched;
        let staged = &mut self.staged[side(direction)];
        held.ordinal = fetched + staged.len() as u64;
        // An engine reads far fewer at a time; one that does not is not followed.
        if staged.len() < MAX_DESCRIPTORS {
            staged.push(held);
        }
        held
    }

    /// A packet that overflowed its buffer, where each has one: once all of its launch is fetched.
    pub fn overflow(&mut self) -> Option<(Held, Held)> {
        let fetched = self.m2s.fetched;
        let launch = self.launches.front_mut()?;
        if fetched < launch.end || !launch.one_to_one() {
            return None;
        }
        launch.overflow.take()
    }

    /// The engine accepted what it read. False: there is too much to follow.
    pub fn accept(&mut self, direction: Direction) -> bool {
        let (queue, ring) = match direction {
            Direction::M2s => (&mut self.tx, &mut self.m2s),
            Direction::S2m => (&mut self.rx, &mut self.s2m),
        };
        let staged = &mut self.staged[side(direction)];
        ring.fetched += staged.len() as u64;
        let room = MAX_DESCRIPTORS.saturating_sub(queue.len());
        self.blind |= staged.len() > room;
        queue.extend(staged.drain(..).take(room));
        !self.blind
    }

    /// What was read and not accepted is forgotten.
    pub fn refuse(&mut self) {
        self.staged.iter_mut().for_each(Vec::clear);
    }

    /// Addresses of poll words whose markers are fetched and not done.
    pub fn awaited_polls(&self) -> impl Iterator<Item = u64> + '_ {
        self.tx.iter().filter_map(|tx| {
            let rx = self.rx.iter().find(|rx| tx.marks(rx))?;
            Some(rx.address)
        })
    }

    /// A ring was reset: everything rung for is dropped.
    pub fn reset_ring(&mut self, direction: Direction) {
        self.ring_mut(direction).restart();
        self.refuse();
        match direction {
            Direction::M2s => {
                self.tx.clear();
                self.launches.clear();
                self.in_packet = false;
                self.blind = false;
            }
            Direction::S2m => {
                self.rx.clear();
                self.rx_launched = 0;
            }
        }
        self.packets = 0;
        self.packets_from = self.s2m.done;
    }

    /// Power-on state. `setup` is what a programmed ring becomes.
    pub fn power_on(&mut self, setup: Setup) {
        for direction in Direction::BOTH {
            self.reset_ring(direction);
            let ring = self.ring_mut(direction);
            let setup = match ring.setup {
                Setup::Never => Setup::Never,
                _ => setup,
            };
            *ring = Ring::new(setup);
        }
        self.packets_from = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_slots_go_round_the_ring() {
        let mut ring = Ring::new(Setup::Programmed);
        ring.base = 0x1000;
        ring.length = 32;
        let slots = |ring: &Ring| {
            (0..32)
                .filter(|slot| ring.holds_pending(0x1000 + 16 * slot, 16))
                .collect::<Vec<_>>()
        };
        assert_eq!(slots(&ring), [0_u64; 0]);
        ring.rung = 34;
        ring.done = 30;
        assert_eq!(slots(&ring), [0, 1, 30, 31]);
        assert!(ring.holds_pending(0xff0, 0x20));
        assert!(!ring.holds_pending(0xff0, 0x10));
        assert!(!ring.holds_pending(0x1200, 0x10));
        assert!(!ring.holds_pending(0x1020, 16 * 28));
        assert!(ring.holds_pending(0x1020, 16 * 29));
        assert!(ring.holds_pending(0, 0x10_0000));
        ring.rung = 62;
        assert_eq!(slots(&ring).len(), 32);
    }
}

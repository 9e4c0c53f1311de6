//! What memory should hold, and what each queue may do next.
use std::collections::VecDeque;

use neuron_protocol::generation::Generation;
use neuron_protocol::registers::Direction;
use neuron_vfio_user::observe::event::{EventKind, Scope};

pub const QUEUES: usize = 3;
/// Guest memory is mapped in pieces of this size, each shared or by message.
pub const PIECE: u64 = 0x8000;
pub const PIECES: usize = 4;
/// Guest memory of a queue.
pub const WINDOW: u64 = PIECE * PIECES as u64;
pub const RAM_BASE: u64 = 0x10_0000;
pub const RAM_SIZE: usize = WINDOW as usize * QUEUES;
/// Device memory of a queue.
pub const HBM_WINDOW: u64 = 0x4_0000;
pub const HBM_BASE: u64 = 0x100_0000;
pub const HBM_SIZE: usize = HBM_WINDOW as usize * QUEUES;

/// A descriptor that the driver staged.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// How often the queue had been initialised then.
    epoch: u64,
    address: u64,
    left: u32,
    last: bool,
    order: Order,
}

/// How a descriptor is ordered against others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// tx: a write barrier.
    pub barrier: bool,
    /// tx: a DMB.
    pub dmb: bool,
    /// rx: a strongly ordered write.
    pub strong: bool,
}

/// Bytes that an adversary holds.
#[derive(Clone, Debug)]
struct Held {
    destination: u64,
    data: Vec<u8>,
    /// Write barriers before it.
    barriers: u64,
    strong: bool,
    host: bool,
}

/// How the device reaches a piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Never mapped, or shared before its unmap.
    Unmapped,
    Shared,
    Message,
    /// By message before its unmap. What was read or written before it may still be accounted for.
    NoMessage,
}

#[derive(Debug)]
pub struct QueueModel {
    pub engine: u8,
    pub number: u8,
    tx: VecDeque<Part>,
    rx: VecDeque<Part>,
    held: Vec<Held>,
    barriers: u64,
    /// Whether the source in use has begun.
    begun: bool,
    /// Initialisations that the driver began, and that the device has seen.
    pub driver_epoch: u64,
    device_epoch: u64,
    pub pieces: [Piece; PIECES],
    /// Bytes that the client wrote for the present descriptors and that the device was not told of, as far as is known.
    written: u64,
    /// Memory was taken from under it: an abort is what should happen.
    pub may_abort: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub doorbells: u64,
    pub descriptors: u64,
    pub markers: u64,
    pub bytes: u64,
    pub aborts: u64,
}

#[derive(Debug)]
pub struct Model {
    generation: &'static Generation,
    pub ram: Vec<u8>,
    pub hbm: Vec<u8>,
    pub queues: Vec<QueueModel>,
    pub counts: Counts,
    /// An adversary is at work: bytes land when it says so.
    pub weak: bool,
}

enum Place {
    Ram(usize),
    Hbm(usize),
}

impl Model {
    pub fn new(generation: &'static Generation, queues: &[(u8, u8)]) -> Self {
        let queue = |&(engine, number): &(u8, u8)| QueueModel {
            engine,
            number,
            tx: VecDeque::new(),
            rx: VecDeque::new(),
            held: Vec::new(),
            barriers: 0,
            begun: false,
            driver_epoch: 0,
            device_epoch: 0,
            pieces: [Piece::Unmapped; PIECES],
            written: 0,
            may_abort: false,
        };
        Self {
            generation,
            ram: vec![0; RAM_SIZE],
            hbm: vec![0; HBM_SIZE],
            queues: queues.iter().map(queue).collect(),
            counts: Counts::default(),
            weak: false,
        }
    }

    fn place(&self, address: u64, len: usize) -> Place {
        let inside = |base: u64, size: usize, address: u64| {
            let at = usize::try_from(address.checked_sub(base)?).ok()?;
            (at + len <= size).then_some(at)
        };
        match self.generation.host_address(address) {
            Some(guest) => Place::Ram(
                inside(RAM_BASE, RAM_SIZE, guest).unwrap_or_else(|| panic!("guest {guest:#x}")),
            ),
            None => Place::Hbm(
                inside(HBM_BASE, HBM_SIZE, address).unwrap_or_else(|| panic!("HBM {address:#x}")),
            ),
        }
    }

    fn bytes(&self, address: u64, len: usize) -> &[u8] {
        match self.place(address, len) {
            Place::Ram(at) => &self.ram[at..at + len],
            Place::Hbm(at) => &self.hbm[at..at + len],
        }
    }

    fn pieces(&self, address: u64, len: usize) -> impl Iterator<Item = Piece> + '_ {
        let range = match self.place(address, len) {
            Place::Ram(at) => at / PIECE as usize..(at + len - 1) / PIECE as usize + 1,
            Place::Hbm(_) => 0..0,
        };
        range.map(|piece| self.queues[piece / PIECES].pieces[piece % PIECES])
    }

    /// The driver has staged a source.
    pub fn stage_tx(&mut self, queue: usize, address: u64, left: u32, last: bool, order: Order) {
        let epoch = self.queues[queue].driver_epoch;
        let part = Part {
            epoch,
            address,
            left,
            last,
            order,
        };
        self.queues[queue].tx.push_back(part);
    }

    /// The driver has staged a destination.
    pub fn stage_rx(&mut self, queue: usize, address: u64, left: u32, strong: bool) {
        let epoch = self.queues[queue].driver_epoch;
        let part = Part {
            epoch,
            address,
            left,
            last: false,
            order: Order {
                strong: strong && self.generation.strong_order,
                ..Order::default()
            },
        };
        self.queues[queue].rx.push_back(part);
    }

    /// Whether something that was staged is not done.
    pub fn is_busy(&self, queue: usize) -> bool {
        !self.queues[queue].tx.is_empty() || !self.queues[queue].held.is_empty()
    }

    /// The connection ended, and with it everything under way.
    pub fn disconnected(&mut self) {
        self.hbm.fill(0);
        for queue in &mut self.queues {
            queue.tx.clear();
            queue.rx.clear();
            queue.held.clear();
            queue.begun = false;
            queue.written = 0;
            queue.device_epoch = queue.driver_epoch;
            queue.pieces = [Piece::Unmapped; PIECES];
            queue.may_abort = false;
        }
    }

    fn drop_work(&mut self, queue: usize) {
        let queue = &mut self.queues[queue];
        let epoch = queue.device_epoch;
        queue.held.clear();
        queue.begun = false;
        queue.tx.retain(|part| part.epoch > epoch);
        queue.rx.retain(|part| part.epoch > epoch);
        queue.written = 0;
    }

    fn is_reset(&self, queue: usize, map: Option<u64>) -> bool {
        let Some(map) = map else { return true };
        let QueueModel { engine, number, .. } = self.queues[queue];
        let first = |core: u8| core * self.generation.engines_per_core;
        (0..self.generation.cores)
            .filter(|core| map & 1 << core != 0)
            .any(|core| {
                (first(core)..first(core + 1)).contains(&engine)
                    || self.generation.h2t_queue(core) == Some((engine, number))
            })
    }

    /// Follows an event of the device, and fails on what nobody asked for.
    pub fn event(&mut self, scope: Scope, kind: EventKind) {
        let Scope::Queue { engine, queue } = scope else {
            if let EventKind::Reset { map } = kind {
                for queue in 0..self.queues.len() {
                    if self.is_reset(queue, map) {
                        self.drop_work(queue);
                    }
                }
            }
            return;
        };
        let known = |q: &QueueModel| (q.engine, q.number) == (engine, queue);
        let nth = self
            .queues
            .iter()
            .position(known)
            .unwrap_or_else(|| panic!("queue {engine}/{queue}: {kind}"));
        match kind {
            EventKind::Doorbell { .. } => self.counts.doorbells += 1,
            EventKind::Copy {
                source,
                destination,
                bytes,
                ..
            } => {
                self.copied(nth, source, destination, bytes);
            }
            EventKind::Landed { destination, bytes } => {
                self.landed(nth, destination, bytes as usize);
            }
            EventKind::Marker { .. } => self.counts.markers += 1,
            EventKind::QueueReset { direction, .. } => {
                self.drop_work(nth);
                // The driver resets m2s, then s2m; what it stages next is of the new epoch.
                if direction == Direction::S2m {
                    self.queues[nth].device_epoch += 1;
                }
            }
            EventKind::Abort(fault) => {
                self.counts.aborts += 1;
                self.queues[nth].held.clear();
                assert!(
                    self.queues[nth].may_abort,
                    "abort of {engine}/{queue}: {fault}"
                );
            }
            _ => {}
        }
    }

    /// The descriptors that the next byte of a queue must come from and go to.
    fn next(&self, queue: usize) -> (Part, Part) {
        let q = &self.queues[queue];
        let current = |parts: &VecDeque<Part>| {
            parts
                .front()
                .copied()
                .filter(|part| part.epoch == q.device_epoch)
        };
        match (current(&q.tx), current(&q.rx)) {
            (Some(tx), Some(rx)) => (tx, rx),
            _ => panic!("queue {}/{} works without work", q.engine, q.number),
        }
    }

    fn copied(&mut self, queue: usize, source: u64, destination: u64, bytes: u32) {
        let (tx, rx) = self.next(queue);
        assert_eq!(
            (source, destination),
            (tx.address, rx.address),
            "wrong place"
        );
        assert!(bytes > 0 && bytes <= tx.left.min(rx.left), "too many bytes");
        let len = bytes as usize;
        let is = |address, kinds: [Piece; 2]| self.pieces(address, len).any(|p| kinds.contains(&p));
        let by_message = |address| is(address, [Piece::Message, Piece::NoMessage]);
        if !by_message(destination) && !self.weak {
            for address in [source, destination] {
                let gone = is(address, [Piece::Unmapped; 2]);
                assert!(!gone, "{address:#x} is used after its unmap");
            }
        }
        let by_message = by_message(destination);
        let data = self.bytes(source, len).to_vec();
        if self.weak {
            self.hold(queue, tx.order, rx.order, destination, data);
        } else if by_message {
            // The client wrote it when it was told to. The driver may have written there since: it saw a marker.
            let written = &mut self.queues[queue].written;
            assert!(*written >= u64::from(bytes), "landed before it was written");
            *written -= u64::from(bytes);
        } else {
            match self.place(destination, len) {
                Place::Ram(at) => self.ram[at..at + len].copy_from_slice(&data),
                Place::Hbm(at) => self.hbm[at..at + len].copy_from_slice(&data),
            }
        }
        let q = &mut self.queues[queue];
        let (tx, rx) = (&mut q.tx[0], &mut q.rx[0]);
        tx.address += u64::from(bytes);
        tx.left -= bytes;
        rx.address += u64::from(bytes);
        rx.left -= bytes;
        let tx_barrier = tx.order.barrier;
        let (tx_done, end) = (tx.left == 0, tx.left == 0 && tx.last);
        let rx_done = rx.left == 0 || end;
        if tx_done {
            q.barriers += u64::from(tx_barrier);
            q.begun = false;
            q.tx.pop_front();
        }
        if rx_done {
            q.rx.pop_front();
        }
        self.counts.bytes += u64::from(bytes);
        self.counts.descriptors += u64::from(tx_done) + u64::from(rx_done);
    }

    /// The device moved bytes, which are not to be seen yet.
    fn hold(&mut self, queue: usize, tx: Order, rx: Order, destination: u64, data: Vec<u8>) {
        let q = &mut self.queues[queue];
        if tx.dmb && !q.begun {
            assert!(q.held.is_empty(), "a DMB was not waited for");
        }
        q.begun = true;
        q.held.push(Held {
            destination,
            data,
            barriers: q.barriers,
            strong: rx.strong,
            host: self.generation.host_address(destination).is_some(),
        });
    }

    /// Held bytes landed: they may, and now memory holds them.
    fn landed(&mut self, queue: usize, destination: u64, len: usize) {
        let gone = self
            .pieces(destination, len)
            .any(|piece| piece == Piece::Unmapped);
        assert!(!gone, "{destination:#x} is used after its unmap");
        let by_message = self
            .pieces(destination, len)
            .any(|piece| matches!(piece, Piece::Message | Piece::NoMessage));
        let q = &mut self.queues[queue];
        let end = destination + len as u64;
        let holds = |held: &Held| {
            held.destination <= destination && end <= held.destination + held.data.len() as u64
        };
        let nth = q.held.iter().position(holds);
        let nth = nth.unwrap_or_else(|| panic!("{destination:#x}+{len:#x} lands from nowhere"));
        let held = q.held.remove(nth);
        let at = (destination - held.destination) as usize;
        let mut pieces = Vec::new();
        for (from, to) in [(0, at), (at + len, held.data.len())] {
            if from < to {
                pieces.push(Held {
                    destination: held.destination + from as u64,
                    data: held.data[from..to].to_vec(),
                    ..held.clone()
                });
            }
        }
        // What was before it in its own copy is before it here as well.
        let own = usize::from(at > 0);
        for (n, earlier) in q.held[..nth].iter().chain(&pieces[..own]).enumerate() {
            let apart = earlier.destination + earlier.data.len() as u64 <= destination
                || end <= earlier.destination;
            assert!(
                apart,
                "{destination:#x} overtook older bytes of the same place ({n})"
            );
            assert!(
                earlier.barriers == held.barriers,
                "{destination:#x} overtook {:#x} past a barrier",
                earlier.destination
            );
            assert!(
                !held.strong,
                "{destination:#x} is strongly ordered and overtook"
            );
            assert!(
                !(held.host && earlier.host),
                "{destination:#x} overtook on the way to the host"
            );
        }
        q.held.splice(nth..nth, pieces);
        // The client made it when it was told to; the memory may have been of another kind when the bytes were moved.
        if by_message {
            return;
        }
        let data = &held.data[at..at + len];
        match self.place(destination, len) {
            Place::Ram(at) => self.ram[at..at + len].copy_from_slice(data),
            Place::Hbm(at) => self.hbm[at..at + len].copy_from_slice(data),
        }
    }

    /// The client has written for the device.
    pub fn written(&mut self, iova: u64, len: usize) {
        if self.weak {
            return;
        }
        let queue = ((iova - RAM_BASE) / WINDOW) as usize;
        let q = &mut self.queues[queue];
        if let Some(rx) = q.rx.front().filter(|part| part.epoch == q.device_epoch)
            && let Some(at) = self.generation.host_address(rx.address)
            && (at..at + u64::from(rx.left)).contains(&iova)
        {
            q.written += len as u64;
        }
    }

    /// The device asks the client to write.
    pub fn check_write(&self, iova: u64, data: &[u8]) {
        let queue = ((iova - RAM_BASE) / WINDOW) as usize;
        if self.weak {
            let host = self.generation.host_to_soc(iova).unwrap();
            let held = self.queues[queue].held.iter().any(|held| {
                host.checked_sub(held.destination).is_some_and(|at| {
                    held.data
                        .get(at as usize..at as usize + data.len())
                        .is_some_and(|held| held == data)
                })
            });
            assert!(held, "writes what it does not hold");
            return;
        }
        let (tx, rx) = self.next(queue);
        assert_eq!(
            self.generation.host_address(rx.address),
            Some(iova),
            "writes elsewhere"
        );
        assert!(
            data.len() <= tx.left.min(rx.left) as usize,
            "writes too much"
        );
        assert!(
            self.bytes(tx.address, data.len()) == data,
            "writes something else"
        );
        assert!(
            self.pieces(rx.address, data.len())
                .all(|piece| piece == Piece::Message),
            "a message for memory that is not behind messages"
        );
    }
}

//! What one seed does: queues, copies, and everything that may come between.
use std::cell::RefCell;
use std::rc::Rc;

use neuron_protocol::cycle::{
    Batch, CopyQueue, Device, Pending, QueuePair, Settings, Transfer, init_engine,
};
use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::{Context, MARKER};
use neuron_protocol::registers::{Direction, misc_ram, queue as registers};
use neuron_protocol::ring::RingSize;
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::observe::sanitize::Rule;
use neuron_vfio_user::policy::adversary::Script;
use neuron_vfio_user::vfio::codec::Command;

use crate::Random;
use crate::model::{Counts, HBM_BASE, HBM_WINDOW, Order, PIECE, PIECES, QUEUES, RAM_BASE, WINDOW};
use crate::world::{Sim, World};

type Driver = Device<Sim, Sim, Sim>;

/// Places in a queue's guest memory. The tx ring lies across two pieces.
const ZONES: [(u64, u64); 2] = [(0, 0xe000), (0x1_2000, 0xe000)];
const RX_RING: u64 = 0xf000;
const TX_RING: u64 = 2 * PIECE - 0x100;
const MARKERS: u64 = 0x1_1000;
/// Descriptors of a ring; at 32 half of it is on either side.
const RINGS: [u32; 3] = [32, 64, 128];
/// Slots for the markers of queues without a [`CopyQueue`].
const RAW_SLOTS: u64 = 4;

/// What happened over some seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    bytes: u64,
    markers: u64,
    aborts: u64,
    dma_messages: u64,
    dropped: u64,
    device_resets: u64,
    core_resets: u64,
    function_resets: u64,
    queue_resets: u64,
    unmaps: u64,
    reconnects: u64,
    stopped: u64,
}

impl Tally {
    pub fn counts(&self) -> [(&'static str, u64); 12] {
        [
            ("bytes", self.bytes),
            ("markers", self.markers),
            ("aborts", self.aborts),
            ("messages", self.dma_messages),
            ("work dropped", self.dropped),
            ("device resets", self.device_resets),
            ("core resets", self.core_resets),
            ("function resets", self.function_resets),
            ("queue resets", self.queue_resets),
            ("unmaps", self.unmaps),
            ("reconnects", self.reconnects),
            ("waits given up", self.stopped),
        ]
    }

    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.markers += other.markers;
        self.aborts += other.aborts;
        self.dma_messages += other.dma_messages;
        self.dropped += other.dropped;
        self.device_resets += other.device_resets;
        self.core_resets += other.core_resets;
        self.function_resets += other.function_resets;
        self.queue_resets += other.queue_resets;
        self.unmaps += other.unmaps;
        self.reconnects += other.reconnects;
        self.stopped += other.stopped;
    }
}

enum Kind {
    /// Batches with a marker, started and looked at by hand.
    Manual(CopyQueue, Vec<Batch>),
    /// The asynchronous and the synchronous copy as the driver has them.
    Classic(CopyQueue, Option<Pending>),
    /// Packets of several descriptors; counts of a flight and its marker slot.
    Raw(QueuePair, Vec<(u32, u32, u64)>),
}

struct Queue {
    nth: usize,
    engine: u8,
    kind: Kind,
    needs_init: bool,
    slot: u64,
}

/// A copy to make: device-side addresses.
struct Copy {
    source: u64,
    destination: u64,
    length: u64,
}

struct Run {
    sim: Sim,
    device: Driver,
    queues: Vec<Queue>,
    own_engines: bool,
    /// Nothing but copies: rings get to wrap.
    calm: bool,
    /// Memory went while the device used it.
    unmapped_under_way: bool,
    tally: Tally,
}

pub fn run(seed: u64, script: Option<&Script>) -> (Tally, Vec<u64>) {
    let mut random = Random(seed.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let product = if random.one_in(8) {
        Product::Trn2
    } else {
        Product::Trn1
    };
    let generation = product.generation();
    let own_engines = !random.one_in(4);
    let base = random.below(u64::from(generation.engines) - 3) as u8;
    let count = 1 + random.size(QUEUES);
    let place = |nth: usize| {
        let nth = nth as u8;
        if own_engines {
            (base + nth, nth * 5)
        } else {
            (base, 3 + nth * 6)
        }
    };
    let places: Vec<_> = (0..count).map(place).collect();
    let world = World::new(random, product, &places, script);
    let sim = Sim(Rc::new(RefCell::new(world)));
    let calm = sim.with(|world| world.random.one_in(6));
    let device = Device {
        registers: sim.clone(),
        memory: sim.clone(),
        delay: sim.clone(),
        generation,
    };
    let queues = places
        .iter()
        .enumerate()
        .map(|(nth, place)| Queue::new(&sim, &device, nth, *place));
    let queues = queues.collect();
    let mut run = Run {
        sim: sim.clone(),
        device,
        queues,
        own_engines,
        calm,
        unmapped_under_way: false,
        tally: Tally::default(),
    };
    run.sim.with(World::connect);
    let actions = if calm {
        60
    } else {
        4 + run.random(|random| random.below(28))
    };
    for _ in 0..actions {
        run.act();
    }
    let tally = run.finish();
    let taken = sim.with(|world| {
        let adversary = world.function_mut().policies_mut().adversary();
        adversary.map_or_else(Vec::new, |adversary| adversary.taken().to_vec())
    });
    (tally, taken)
}

impl Queue {
    fn new(sim: &Sim, device: &Driver, nth: usize, (engine, number): (u8, u8)) -> Self {
        let (kind, size, limit) = sim.with(|world| {
            let random = &mut world.random;
            (
                random.below(3),
                RINGS[random.size(RINGS.len())],
                2 + random.below(6),
            )
        });
        let window = RAM_BASE + nth as u64 * WINDOW;
        let size = RingSize::new(size).unwrap();
        let (tx, rx) = (window + TX_RING, window + RX_RING);
        let pair = QueuePair::new(device, engine, number, size, tx, rx).unwrap();
        let copies = |pair| {
            let settings = Settings {
                batch_limit: limit as u32,
                ..Settings::new(device.generation, Platform::Silicon)
            };
            CopyQueue::new(device, pair, window + MARKERS, settings).unwrap()
        };
        let kind = match kind {
            0 => Kind::Manual(copies(pair), Vec::new()),
            1 => Kind::Classic(copies(pair), None),
            _ => Kind::Raw(pair, Vec::new()),
        };
        Self {
            nth,
            engine,
            kind,
            needs_init: true,
            slot: 0,
        }
    }
}

impl Run {
    fn random<R>(&self, f: impl FnOnce(&mut Random) -> R) -> R {
        self.sim.with(|world| f(&mut world.random))
    }

    fn act(&mut self) {
        let nth = self.random(|random| random.size(self.queues.len()));
        if self.queues[nth].needs_init {
            return self.init(nth);
        }
        let most = if self.calm { 84 } else { 100 };
        match self.random(|random| random.below(most)) {
            0..60 => self.copy(nth),
            60..70 => {
                let count = self.random(|random| random.below(60));
                self.sim.with(|world| world.steps(count));
            }
            70..80 => self.look(nth),
            80..84 => self.unmap_when_idle(nth),
            84..87 if self.own_engines => self.unmap_under_way(nth),
            84..90 => {
                self.tally.queue_resets += 1;
                self.init(nth);
            }
            90..93 => self.reset_device(),
            93..96 => self.reset_cores(),
            96..98 => self.reset_function(),
            _ => self.reconnect(),
        }
    }

    fn host(&self, nth: usize, offset: u64) -> u64 {
        let address = RAM_BASE + nth as u64 * WINDOW + offset;
        self.device.generation.host_to_soc(address).unwrap()
    }

    /// Programs a queue afresh, whatever it is doing.
    fn init(&mut self, nth: usize) {
        let device = &mut self.device;
        let queue = &mut self.queues[nth];
        let busy = self.sim.with(|world| {
            world.model.queues[nth].driver_epoch += 1;
            world.model.is_busy(nth)
        });
        self.tally.dropped += u64::from(busy);
        if self.sim.with(|world| world.random.one_in(4)) && self.own_engines {
            init_engine(device, queue.engine).unwrap();
        }
        match &mut queue.kind {
            Kind::Manual(copies, flight) => {
                flight.clear();
                copies.init(device).unwrap();
            }
            Kind::Classic(copies, pending) => {
                *pending = None;
                copies.init(device).unwrap();
            }
            Kind::Raw(pair, flight) => {
                flight.clear();
                pair.init(device).unwrap();
            }
        }
        queue.needs_init = false;
        let location = match &queue.kind {
            Kind::Manual(copies, _) | Kind::Classic(copies, _) => copies.queue().location(),
            Kind::Raw(pair, _) => pair.location(),
        };
        // The answer to a read says that all of it has arrived.
        let head = location.register(Direction::S2m, registers::DRHP);
        self.sim.with(|world| {
            assert_eq!(world.read_register(head), 0x4000_0000);
            world.acknowledged(Some(nth));
            world.model.queues[nth].may_abort = false;
        });
    }

    fn pick(&self, nth: usize, most: u64) -> Copy {
        self.random(|random| {
            let hbm = HBM_BASE + nth as u64 * HBM_WINDOW;
            let places = [
                (
                    self.device
                        .generation
                        .host_to_soc(RAM_BASE + nth as u64 * WINDOW)
                        .unwrap()
                        + ZONES[0].0,
                    ZONES[0].1,
                ),
                (
                    self.device
                        .generation
                        .host_to_soc(RAM_BASE + nth as u64 * WINDOW)
                        .unwrap()
                        + ZONES[1].0,
                    ZONES[1].1,
                ),
                (hbm, HBM_WINDOW),
            ];
            loop {
                let (from, to) = (places[random.size(3)], places[random.size(3)]);
                let limit = match random.below(8) {
                    0 => 8,
                    1..6 => 2000,
                    6 => 20_000,
                    _ => 100_000,
                };
                let length = 1 + random.below(limit.min(from.1).min(to.1).min(most));
                let source = from.0 + random.below(from.1 - length + 1);
                let destination = to.0 + random.below(to.1 - length + 1);
                if source + length <= destination || destination + length <= source {
                    return Copy {
                        source,
                        destination,
                        length,
                    };
                }
            }
        })
    }

    /// Tells the model of a batch as the driver cuts it.
    fn expect(&self, nth: usize, copy: &Copy, context: Context) {
        let marker = self.host(nth, MARKERS) + context.offset();
        self.sim.with(|world| {
            let mut at = 0;
            while at < copy.length {
                let length = (copy.length - at).min(0x1_0000) as u32;
                let order = Order {
                    // As the driver does it: on the last data descriptor.
                    barrier: at + u64::from(length) == copy.length,
                    ..Order::default()
                };
                world
                    .model
                    .stage_tx(nth, copy.source + at, length, true, order);
                world
                    .model
                    .stage_rx(nth, copy.destination + at, length, false);
                at += u64::from(length);
            }
            world.model.stage_tx(nth, marker, 4, true, Order::default());
            world.model.stage_rx(nth, marker + 4, 4, false);
        });
    }

    fn copy(&mut self, nth: usize) {
        let copy = self.pick(nth, u64::MAX);
        let wait = self.random(|random| random.one_in(4));
        match &mut self.queues[nth].kind {
            Kind::Manual(_, flight) => {
                let free = Context::ALL
                    .into_iter()
                    .find(|context| flight.iter().all(|batch| batch.context() != *context));
                let Some(context) = free else {
                    return self.look(nth);
                };
                let mut transfer =
                    Transfer::new(copy.source, copy.destination, copy.length).unwrap();
                let Kind::Manual(copies, _) = &mut self.queues[nth].kind else {
                    unreachable!()
                };
                if copies.queue().available() < 4 {
                    return self.look(nth);
                }
                let batch = copies
                    .stage(&mut self.device, context, &mut transfer)
                    .unwrap();
                assert_eq!(transfer.remaining(), 0);
                self.expect(nth, &copy, context);
                let Kind::Manual(copies, flight) = &mut self.queues[nth].kind else {
                    unreachable!()
                };
                copies.launch(&mut self.device, &batch).unwrap();
                flight.push(batch);
            }
            Kind::Classic(copies, pending) => {
                if copies.queue().available() < 4 {
                    return;
                }
                let pending = pending.take();
                let previous = pending.as_ref().map(Pending::context);
                let context = if wait {
                    Context::Sync
                } else {
                    Context::following(previous)
                };
                self.expect(nth, &copy, context);
                let Copy {
                    source,
                    destination,
                    length,
                } = copy;
                let Kind::Classic(copies, kept) = &mut self.queues[nth].kind else {
                    unreachable!()
                };
                let result = if wait {
                    *kept = pending;
                    copies.copy(&mut self.device, source, destination, length)
                } else {
                    copies
                        .start(&mut self.device, source, destination, length, pending)
                        .map(|pending| *kept = Some(pending))
                };
                self.ended(nth, result.is_err());
            }
            Kind::Raw(..) => self.packet(nth),
        }
    }

    /// A wait was given up: the rings may hold anything.
    fn ended(&mut self, nth: usize, failed: bool) {
        if failed {
            assert!(self.sim.with(|world| world.impatient), "a wait failed");
            self.tally.stopped += 1;
            self.queues[nth].needs_init = true;
        }
    }

    /// One packet cut differently on both sides, and a marker.
    fn packet(&mut self, nth: usize) {
        let copy = self.pick(nth, 50_000);
        let cut = |random: &mut Random| {
            let mut ends: Vec<u64> = (0..random.below(5))
                .map(|_| 1 + random.below(copy.length))
                .collect();
            ends.push(copy.length);
            ends.sort_unstable();
            ends.dedup();
            ends
        };
        let lengths = |ends: &[u64]| {
            let starts = [0].into_iter().chain(ends.iter().copied());
            starts
                .zip(ends)
                .map(|(from, to)| (from, (to - from) as u32))
                .collect::<Vec<_>>()
        };
        let (tx, rx, barrier, spare) = self.random(|random| {
            let barriers = [
                Barrier::None,
                Barrier::Dmb,
                Barrier::Write,
                Barrier::StrongOrder,
            ];
            let spare = if random.one_in(3) {
                random.below(500) as u32
            } else {
                0
            };
            (
                lengths(&cut(random)),
                lengths(&cut(random)),
                barriers[random.size(4)],
                spare,
            )
        });
        let markers = self.host(nth, MARKERS);
        let queue = &mut self.queues[nth];
        let Kind::Raw(pair, flight) = &mut queue.kind else {
            unreachable!()
        };
        if flight.len() as u64 == RAW_SLOTS || pair.available() < 8 {
            return self.look(nth);
        }
        queue.slot = (queue.slot + 1) % RAW_SLOTS;
        let slot = 8 * queue.slot;
        let strong = barrier == Barrier::StrongOrder;
        let word = RAM_BASE + nth as u64 * WINDOW + MARKERS + slot;
        self.sim.with(|world| {
            world.store(word, &[MARKER.to_le_bytes(), [0; 4]].concat());
            for (n, (from, length)) in tx.iter().enumerate() {
                let order = Order {
                    barrier: barrier == Barrier::Write,
                    dmb: barrier == Barrier::Dmb,
                    strong: false,
                };
                let last = n + 1 == tx.len();
                world
                    .model
                    .stage_tx(nth, copy.source + from, *length, last, order);
            }
            for (n, (from, length)) in rx.iter().enumerate() {
                // The end of a packet closes the buffer it reached, full or not.
                let more = if n + 1 == rx.len() {
                    spare.min(0x1_0000 - length)
                } else {
                    0
                };
                world
                    .model
                    .stage_rx(nth, copy.destination + from, length + more, strong);
            }
            let order = Order {
                barrier: barrier == Barrier::Write,
                dmb: barrier == Barrier::Dmb,
                strong: false,
            };
            world.model.stage_tx(nth, markers + slot, 4, true, order);
            world.model.stage_rx(nth, markers + slot + 4, 4, strong);
        });
        for (n, (from, length)) in tx.iter().enumerate() {
            let make = |id| {
                let len_ctrl = LenCtrl::new()
                    .with_byte_length(*length)?
                    .with_ring_id(id)
                    .with_first(n == 0)
                    .with_last(n + 1 == tx.len())
                    .with_dmb(barrier == Barrier::Dmb);
                let meta = MetaCtrl::COPY.with_write_barrier(barrier == Barrier::Write);
                Some(TxDescriptor::from_words(len_ctrl, meta, copy.source + from))
            };
            pair.push_tx(&mut self.device, make).unwrap();
        }
        for (n, (from, length)) in rx.iter().enumerate() {
            let more = if n + 1 == rx.len() {
                spare.min(0x1_0000 - length)
            } else {
                0
            };
            let make = |id| RxDescriptor::new(copy.destination + from, length + more, id, barrier);
            pair.push_rx(&mut self.device, make).unwrap();
        }
        let marker = (markers + slot, markers + slot + 4);
        pair.stage(&mut self.device, marker.0, marker.1, 4, barrier)
            .unwrap();
        let counts = (tx.len() as u32 + 1, rx.len() as u32 + 1);
        flight.push((counts.0, counts.1, word + 4));
        pair.trigger(&mut self.device, counts.0, counts.1).unwrap();
    }

    /// Gives back what is done.
    fn look(&mut self, nth: usize) {
        let device = &mut self.device;
        let mut failed = false;
        match &mut self.queues[nth].kind {
            Kind::Manual(copies, flight) => {
                while let Some(batch) = flight.first() {
                    if !copies.is_done(device, batch).unwrap() {
                        break;
                    }
                    copies.finish(device, flight.remove(0)).unwrap();
                }
            }
            Kind::Classic(copies, pending) => {
                if let Some(pending) = pending.take() {
                    failed = copies.wait(device, pending).is_err();
                }
            }
            Kind::Raw(pair, flight) => {
                while let Some((tx, rx, poll)) = flight.first().copied() {
                    use neuron_protocol::cycle::HostMemory;
                    if device.memory.load_word(poll) != Ok(MARKER) {
                        break;
                    }
                    flight.remove(0);
                    pair.ring(Direction::S2m).cursors().ack(rx).unwrap();
                    pair.ring(Direction::M2s).cursors().ack(tx).unwrap();
                }
            }
        }
        self.ended(nth, failed);
    }

    /// Waits until a queue has nothing to do. False: it lost its work.
    fn settle(&mut self, nth: usize) -> bool {
        for _ in 0..100_000 {
            if self.queues[nth].needs_init {
                return false;
            }
            self.look(nth);
            if !self.sim.with(|world| world.model.is_busy(nth)) {
                self.look(nth);
                return !self.queues[nth].needs_init;
            }
            self.sim.with(World::step);
        }
        panic!("queue {nth} does not end what it has to do");
    }

    fn unmap(&mut self, nth: usize) -> usize {
        self.tally.unmaps += 1;
        let piece = self.random(|random| random.size(PIECES));
        self.sim.with(|world| world.unmap(nth, piece));
        piece
    }

    fn unmap_when_idle(&mut self, nth: usize) {
        if !self.settle(nth) {
            return;
        }
        let piece = self.unmap(nth);
        let count = self.random(|random| random.below(60));
        self.sim.with(|world| {
            world.steps(count);
            world.map(nth, piece, 1);
        });
    }

    /// Memory goes while the device uses it: the engine stops at the first byte that is not there.
    fn unmap_under_way(&mut self, nth: usize) {
        self.unmapped_under_way = true;
        self.sim
            .with(|world| world.model.queues[nth].may_abort = true);
        let piece = self.unmap(nth);
        let count = self.random(|random| random.below(100));
        self.sim.with(|world| {
            world.steps(count);
            world.compare();
            world.map(nth, piece, 1);
        });
        self.queues[nth].needs_init = true;
    }

    fn all_need_init(&mut self) {
        for queue in &mut self.queues {
            queue.needs_init = true;
        }
    }

    fn request_reset(&mut self, kind: u32, map: u32) {
        let ram = self.device.generation.misc_ram;
        self.sim.with(|world| {
            world.late = true;
            for (register, value) in [
                (misc_ram::RESET_MAP, map),
                (misc_ram::RESET, kind),
                (misc_ram::TRIGGER, 1),
            ] {
                world.write(0, u64::from(ram + register), &value.to_le_bytes());
            }
            let mut looks = 0;
            while world.read_register(ram + misc_ram::RESET) != 0 {
                looks += 1;
                assert!(looks < 10_000, "a reset is not acknowledged");
            }
            world.late = false;
        });
    }

    fn reset_device(&mut self) {
        self.tally.device_resets += 1;
        self.request_reset(misc_ram::RESET_DEVICE, 0);
        self.sim.with(|world| {
            world.acknowledged(None);
            world.compare();
        });
        self.all_need_init();
    }

    fn reset_cores(&mut self) {
        self.tally.core_resets += 1;
        let generation = self.device.generation;
        let map = self.random(|random| 1 + random.below((1 << generation.cores) - 1)) as u32;
        self.request_reset(misc_ram::RESET_CORES, map);
        for queue in &mut self.queues {
            let core = queue.engine / generation.engines_per_core;
            let own = core < generation.cores && map & 1 << core != 0;
            let number = self.sim.with(|world| world.model.queues[queue.nth].number);
            let shared = (0..generation.cores).any(|core| {
                map & 1 << core != 0 && generation.h2t_queue(core) == Some((queue.engine, number))
            });
            if own || shared {
                queue.needs_init = true;
                self.sim.with(|world| world.acknowledged(Some(queue.nth)));
            }
        }
    }

    fn reset_function(&mut self) {
        self.tally.function_resets += 1;
        self.sim.with(|world| {
            // A message that the client already has cannot be called back, and the reset's reply must not wait for it
            // (QEMU answers none while it waits): such a client makes its writes before it asks for the reset.
            world.make_postponed();
            world.call(&Command::DeviceReset, None);
            world.acknowledged(None);
            world.compare();
            world.enable();
        });
        self.all_need_init();
    }

    fn reconnect(&mut self) {
        self.tally.reconnects += 1;
        self.sim.with(|world| {
            world.disconnect();
            world.connect();
        });
        self.all_need_init();
    }

    /// Ends all work, and compares memory and accounts.
    fn finish(mut self) -> Tally {
        for nth in 0..self.queues.len() {
            self.settle(nth);
        }
        self.sim.with(|world| {
            world.drain();
            world.compare();
            let report = world.function().report(Detail::Status);
            let counters = report.counters;
            let counts = Counts {
                doorbells: counters.doorbells,
                descriptors: counters.descriptors,
                markers: counters.batches,
                bytes: counters.bytes,
                aborts: counters.errors,
            };
            // A doorbell of an engine that is stopped, or never got its queue, has no event.
            assert!(counts.doorbells >= world.model.counts.doorbells);
            let expected = Counts {
                doorbells: counts.doorbells,
                ..world.model.counts
            };
            assert_eq!(counts, expected, "the device's account");
            assert_eq!(report.unmodelled, []);
            let ledger = world.findings.ledger();
            assert_eq!(ledger.gaps(), (0, 0), "the sanitizer lost track");
            for finding in ledger.findings() {
                // What a seed does on purpose.
                let meant = match finding.rule {
                    Rule::AddressUnmapped | Rule::AddressStraddles | Rule::AddressIommu => {
                        self.unmapped_under_way
                    }
                    Rule::RingResetPending => {
                        self.tally.dropped + self.tally.stopped + self.tally.aborts > 0
                            || self.unmapped_under_way
                    }
                    // Its packets have any barrier, or none.
                    Rule::NoBarrier => self.queues.iter().any(|queue| {
                        matches!(queue.kind, Kind::Raw(..)) && Some(queue.engine) == finding.engine
                    }),
                    _ => false,
                };
                assert!(meant, "{finding:#?}");
            }
            drop(ledger);
            self.tally.bytes += counts.bytes;
            self.tally.markers += counts.markers;
            self.tally.aborts += counts.aborts;
            self.tally.dma_messages += world.dma_messages;
        });
        self.tally
    }
}

//! What consumers of events cost: the same copies with and without each, as a ratio within one run.
//!
//! `cargo bench -p neuron-vfio-user --bench observers [-- --quick] [-- LOAD]`, where LOAD is a part of a
//! load's name. The device runs in this process, without a socket,
//! so that the share is that of the device's own work: with a client around it the share is smaller. Consumers take turns,
//! round by round, because the times of a shared machine move and their ratios hold.
#[path = "../tests/rig/mod.rs"]
mod rig;

use std::time::{Duration, Instant};

use neuron_protocol::cycle::QueuePair;
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_vfio_user::observe::event::Observer;
use neuron_vfio_user::observe::narrate::Narrator;
use neuron_vfio_user::observe::sanitize::{Mode, Sanitizer};
use rig::{DATA, Driver, MARKERS, Rig, Shared, queue};

const PRODUCT: Product = Product::Trn2;
/// Device memory past what the driver carves out for firmware.
const HBM: u64 = 0x100_0000;
/// Bytes of guest memory that the copies come from.
const WINDOW: u64 = 16 << 20;

/// Name, and how to make the consumers. One line for each.
type Maker = fn() -> Vec<Box<dyn Observer>>;
const CONSUMERS: &[(&str, Maker)] = &[
    ("none", Vec::new),
    ("log", || vec![Box::new(Narrator)]),
    ("--sanitize", || {
        let (sanitizer, _) = Sanitizer::new(PRODUCT.generation(), 0, Mode::Warn);
        vec![Box::new(Narrator), Box::new(sanitizer)]
    }),
];

/// Name, data descriptors of a batch, and bytes of each.
const LOADS: &[(&str, u32, u32)] = &[
    ("full batch, 64 KiB descriptors", 2031, 0x1_0000),
    ("full batch, 4 KiB descriptors", 2031, 0x1000),
    ("one copy of 4 KiB", 1, 0x1000),
    ("one copy of 64 B", 1, 64),
];

struct Bench {
    rig: Shared,
    device: Driver,
    pair: QueuePair,
}

impl Bench {
    fn new(make: Maker) -> Self {
        let rig = Rig::seen_by(PRODUCT, Platform::Silicon, make());
        let generation = rig.generation;
        let (rig, mut device) = rig.driver();
        let (engine, number) = generation.h2t_queue(0).expect("a queue");
        let pair = queue(&mut device, engine, number, 8192);
        Self { rig, device, pair }
    }

    /// One batch, from its doorbells to the device's rest.
    fn batch(&mut self, count: u32, bytes: u32) -> Duration {
        let host = |address| self.rig.with(|rig| rig.host(address));
        let (data, slot) = (host(DATA), host(MARKERS));
        for nth in 0..u64::from(count) {
            let offset = nth * u64::from(bytes) % WINDOW;
            let barrier = if nth + 1 == u64::from(count) {
                Barrier::Write
            } else {
                Barrier::None
            };
            self.pair
                .stage(
                    &mut self.device,
                    data + offset,
                    HBM + offset,
                    bytes,
                    barrier,
                )
                .expect("room");
        }
        self.rig.with(|rig| {
            rig.fill(MARKERS, &[MARKER.to_le_bytes(), [0; 4]].concat());
        });
        self.pair
            .stage(&mut self.device, slot, slot + 4, 4, Barrier::None)
            .expect("room");
        let start = Instant::now();
        self.pair
            .trigger(&mut self.device, count + 1, count + 1)
            .expect("doorbells");
        self.rig.with(Rig::run);
        let time = start.elapsed();
        let done = self.rig.with(|rig| rig.bytes(MARKERS + 4, 4));
        assert_eq!(done, MARKER.to_le_bytes(), "the batch is not done");
        self.pair.ack(count + 1).expect("ack");
        time
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    // cargo itself passes --bench.
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let mut benches: Vec<_> = CONSUMERS
        .iter()
        .map(|(_, make)| Bench::new(*make))
        .collect();
    let asked = |name: &str| {
        wanted
            .as_ref()
            .is_none_or(|part| name.contains(part.as_str()))
    };
    for (name, count, bytes) in LOADS.iter().filter(|(name, ..)| asked(name)) {
        let rounds = match (quick, *count) {
            (true, 1) => 2000,
            (true, _) => 10,
            (false, 1) => 20_000,
            (false, _) => 60,
        };
        let mut times = vec![Vec::new(); benches.len()];
        for round in 0..rounds + 3 {
            for (bench, times) in benches.iter_mut().zip(&mut times) {
                let time = bench.batch(*count, *bytes);
                // The first touch memory and fill caches.
                if round >= 3 {
                    times.push(time);
                }
            }
        }
        println!("{name}");
        let times: Vec<_> = times.into_iter().map(median).collect();
        let base = times[0].as_secs_f64();
        for ((consumer, _), time) in CONSUMERS.iter().zip(&times) {
            let micros = time.as_secs_f64() * 1e6;
            let more = (time.as_secs_f64() / base - 1.0) * 100.0;
            println!("  {consumer:<12} {micros:>12.2} us  {more:>+7.1} %");
        }
    }
}

//! The cycle over a real socket: latency beside an empty round trip, bandwidth beside a bare memmove.
//!
//! `cargo bench -p neuron-vfio-user` runs it. Options after `--`: `--json FILE`, `--product NAME`, `--quick`.
//!
//! All numbers come from one run, and are to be compared by ratio: on a shared machine the times move, the ratios hold.
//! The client posts its writes as QEMU does, and polls the marker in shared memory as the driver does.
#[path = "../tests/common/mod.rs"]
mod common;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::Served;
use common::raw::RawClient;
use neuron_protocol::cycle::{
    CopyQueue, Device, QueuePair, Registers, Settings, Transfer, init_engine,
};
use neuron_protocol::descriptor::MAX_DESCRIPTOR_LENGTH;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::Context;
use neuron_protocol::registers::misc_ram;
use neuron_protocol::ring::{H2T_DESC_COUNT, RingSize, SYNC_THRESHOLD, allocated_count};
use neuron_vfio_user::probe::GuestRam;
use serde_json::json;
use vm_memory::{GuestAddress, GuestMemoryBackend};

const RAM: u64 = 1 << 32;
const RX_RING: u64 = RAM + (1 << 20);
const COMPLETION: u64 = RAM + (2 << 20);
const SOURCE: u64 = RAM + (4 << 20);
/// Past the driver's carve-out.
const HBM: u64 = 16 << 20;

type Neuron = Device<RawClient, GuestRam, ()>;

struct Options {
    json: Option<String>,
    product: Product,
    /// Data descriptors of a full batch.
    batch: u64,
    samples: usize,
    rounds: usize,
}

fn options() -> Options {
    let mut options = Options {
        json: None,
        product: Product::Trn2,
        batch: SYNC_THRESHOLD.into(),
        samples: 4000,
        rounds: 9,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .unwrap_or_else(|| usage(&format!("{argument} needs a value")))
        };
        match argument.as_str() {
            // cargo says so.
            "--bench" => {}
            "--json" => options.json = Some(value()),
            "--product" => {
                options.product = value()
                    .parse()
                    .unwrap_or_else(|error| usage(&format!("--product: {error}")));
            }
            "--quick" => (options.samples, options.rounds, options.batch) = (500, 3, 256),
            other => usage(&format!("unknown option {other}")),
        }
    }
    options
}

fn usage(error: &str) -> ! {
    eprintln!(
        "error: {error}\nusage: cargo bench -p neuron-vfio-user [-- [--quick] [--product NAME] [--json FILE]]"
    );
    std::process::exit(2)
}

/// Percentiles of durations, in nanoseconds.
#[derive(Clone, Copy)]
struct Times {
    p10: u128,
    p50: u128,
    p99: u128,
}

impl Times {
    fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| samples[(samples.len() - 1) * percent / 100].as_nanos();
        Self {
            p10: at(10),
            p50: at(50),
            p99: at(99),
        }
    }
}

struct Bench {
    neuron: Neuron,
    queue: CopyQueue,
    options: Options,
}

impl Bench {
    fn new(served: &Served, options: Options) -> Self {
        let bytes = options.batch * u64::from(MAX_DESCRIPTOR_LENGTH);
        let memory = GuestRam::new(RAM, SOURCE - RAM + 2 * bytes).expect("guest memory");
        let mut registers = RawClient::connect(&served.socket()).expect("connect");
        registers.map(&memory, memory.as_fd()).expect("map");
        registers.enable().expect("enable");
        let generation = options.product.generation();
        let mut neuron = Device {
            registers,
            memory,
            delay: (),
            generation,
        };
        let (engine, queue) = generation.h2t_queue(0).expect("a queue");
        init_engine(&mut neuron, engine).expect("engine");
        let size = RingSize::new(allocated_count(H2T_DESC_COUNT).expect("size")).expect("size");
        let pair = QueuePair::new(&neuron, engine, queue, size, RAM, RX_RING).expect("queue");
        let mut settings = Settings::new(generation, Platform::Qemu);
        settings.batch_limit = u32::try_from(options.batch).expect("batch");
        let mut queue = CopyQueue::new(&neuron, pair, COMPLETION, settings).expect("queue");
        queue.init(&mut neuron).expect("init");
        Self {
            neuron,
            queue,
            options,
        }
    }

    fn bytes(&self) -> u64 {
        self.options.batch * u64::from(MAX_DESCRIPTOR_LENGTH)
    }

    fn host(&self, address: u64) -> u64 {
        self.neuron.host_to_device(address).expect("address")
    }

    /// One batch: from the first doorbell to the marker.
    fn copy(&mut self, source: u64, destination: u64, length: u64) -> Duration {
        let mut transfer = Transfer::new(source, destination, length).expect("range");
        let batch = self
            .queue
            .stage(&mut self.neuron, Context::Sync, &mut transfer)
            .expect("stage");
        assert_eq!(transfer.remaining(), 0, "more than one batch");
        let start = Instant::now();
        self.queue
            .launch(&mut self.neuron, &batch)
            .expect("doorbells");
        while !self.queue.is_done(&mut self.neuron, &batch).expect("poll") {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the copy did not end"
            );
            std::hint::spin_loop();
        }
        let time = start.elapsed();
        self.queue.finish(&mut self.neuron, batch).expect("ack");
        time
    }

    fn round_trips(&mut self) -> Times {
        let offset = self.neuron.generation.misc_ram + misc_ram::ROUTING_ID;
        let one = |_| {
            let start = Instant::now();
            self.neuron.registers.read32(offset).expect("read");
            start.elapsed()
        };
        Times::of((0..self.options.samples).map(one).collect())
    }

    fn latency(&mut self, length: u64) -> Times {
        let source = self.host(SOURCE);
        for _ in 0..100 {
            self.copy(source, HBM, length);
        }
        Times::of(
            (0..self.options.samples)
                .map(|_| self.copy(source, HBM, length))
                .collect(),
        )
    }

    fn batches(&mut self, source: u64, destination: u64) -> Times {
        // The first pass touches fresh pages.
        self.copy(source, destination, self.bytes());
        let bytes = self.bytes();
        Times::of(
            (0..self.options.rounds)
                .map(|_| self.copy(source, destination, bytes))
                .collect(),
        )
    }

    /// What the machine can do with the same two buffers, in the same 64 KiB pieces.
    fn memmove(&mut self) -> Times {
        let bytes = self.bytes();
        let step = usize::try_from(MAX_DESCRIPTOR_LENGTH).expect("length");
        let memory = self.neuron.memory.memory();
        let one = || {
            let start = Instant::now();
            let mut position = 0;
            while position < bytes {
                let slice = |base| {
                    memory
                        .get_slice(GuestAddress(base + position), step)
                        .expect("slice")
                };
                slice(SOURCE).copy_to_volatile_slice(slice(SOURCE + bytes));
                position += u64::from(MAX_DESCRIPTOR_LENGTH);
            }
            start.elapsed()
        };
        one();
        Times::of((0..self.options.rounds).map(|_| one()).collect())
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn ratio(a: u128, b: u128) -> f64 {
    a as f64 / b.max(1) as f64
}

fn main() {
    let options = options();
    let (product, json) = (options.product, options.json.clone());
    let served = Served::start(&["--product", product.name(), "--log", "warn"]);
    let mut bench = Bench::new(&served, options);

    let round_trip = bench.round_trips();
    let latencies = [("4 B", 4), ("64 KiB", u64::from(MAX_DESCRIPTOR_LENGTH))]
        .map(|(name, length)| (name, bench.latency(length)));
    let bytes = bench.bytes();
    let memmove = bench.memmove();
    let (first, second) = (bench.host(SOURCE), bench.host(SOURCE + bytes));
    let copies = [
        ("host to host", first, second),
        ("host to device", first, HBM),
        ("device to host", HBM, second),
        ("device to device", HBM, HBM + bytes),
    ]
    .map(|(name, source, destination)| (name, bench.batches(source, destination)));

    println!(
        "{product}, one queue, posted doorbells, {} samples",
        bench.options.samples
    );
    println!(
        "{:<30}{:>10}{:>10}{:>10}   p10 / round trip",
        "microseconds", "p10", "p50", "p99"
    );
    let row = |name: &str, times: Times| {
        let us = |ns| ratio(ns, 1000);
        let relative = ratio(times.p10, round_trip.p10);
        println!(
            "{name:<30}{:>10.1}{:>10.1}{:>10.1}   {relative:.2}",
            us(times.p10),
            us(times.p50),
            us(times.p99)
        );
    };
    row("empty round trip", round_trip);
    for (name, times) in latencies {
        row(&format!("doorbell to marker, {name}"), times);
    }
    println!();
    println!(
        "{} descriptors of 64 KiB a batch, {} batches",
        bench.options.batch, bench.options.rounds
    );
    println!("{:<30}{:>10}{:>10}   of memmove", "MB/s", "best", "median");
    // Times rise where rates fall: the 10th percentile of the time is the better rate.
    let rate = |ns| ratio(u128::from(bytes) * 1000, ns);
    let row = |name: &str, times: Times| {
        let relative = ratio(memmove.p50, times.p50);
        println!(
            "{name:<30}{:>10.0}{:>10.0}   {relative:.2}",
            rate(times.p10),
            rate(times.p50)
        );
    };
    row("memmove, host to host", memmove);
    for (name, times) in copies {
        row(name, times);
    }
    if let Some(path) = json {
        let times =
            |times: Times| json!({ "p10_ns": times.p10, "p50_ns": times.p50, "p99_ns": times.p99 });
        let mut report = json!({
            "product": product.name(),
            "samples": bench.options.samples,
            "batch_bytes": bytes,
            "round_trip": times(round_trip),
            "memmove": times(memmove),
        });
        for (name, latency) in latencies {
            report["latency"][name] = times(latency);
            report["latency"][name]["p10_per_round_trip"] =
                json!(ratio(latency.p10, round_trip.p10));
        }
        for (name, copy) in copies {
            report["bandwidth"][name] = times(copy);
            report["bandwidth"][name]["of_memmove"] = json!(ratio(memmove.p50, copy.p50));
        }
        if let Err(error) = std::fs::write(&path, format!("{report:#}\n")) {
            eprintln!("error: {path}: {error}");
            std::process::exit(1);
        }
    }
}

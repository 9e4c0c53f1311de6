//! The measurements. What is compared is measured in turns, so that whatever else the machine does meets both alike.
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use neuron_protocol::cycle::{
    CopyQueue, Device, QueuePair, Registers, Settings, Transfer, init_engine,
};
use neuron_protocol::descriptor::MAX_DESCRIPTOR_LENGTH;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::Context;
use neuron_protocol::registers::misc_ram;
use neuron_protocol::ring::{H2T_DESC_COUNT, RingSize, allocated_count};
use neuron_vfio_user::probe::GuestRam;
use vm_memory::{GuestAddress, GuestMemoryBackend};

use crate::common::raw::RawClient;
use crate::common::{Served, text};
use crate::reference::{CALLS_PER_WRITE, Peers, Reference};

const RAM: u64 = 1 << 32;
const RX_RING: u64 = RAM + (1 << 20);
const COMPLETION: u64 = RAM + (2 << 20);
const SOURCE: u64 = RAM + (4 << 20);
/// Past the driver's carve-out.
const HBM: u64 = 16 << 20;
/// Samples of one kind in a row.
const TURN: usize = 20;
/// Copies whose system calls are counted.
const CALL_SAMPLES: u32 = 1000;
/// Copies longer than this are waited for asleep.
const LONG: u64 = 1 << 20;
/// Posted writes in a row, before the read that waits for them.
const POSTED: u64 = 20_000;

type Neuron = Device<RawClient, GuestRam, ()>;

/// How much to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Data descriptors of a full batch.
    pub batch: u64,
    pub samples: usize,
    pub rounds: usize,
}

/// Percentiles of durations, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Times {
    pub p10: u128,
    pub p50: u128,
    pub p99: u128,
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

/// Writes that nobody answers, until a read comes back.
#[derive(Clone, Copy)]
pub struct Posted {
    /// Nanoseconds for one write; percentiles are of rounds.
    pub each: Times,
    pub calls_per_write: f64,
}

/// Copies between two places, and a memmove of as many bytes between the same two buffers of the client, or two others of
/// the same size where the client has none.
pub struct Bandwidth {
    pub name: &'static str,
    pub copy: Times,
    pub memmove: Times,
    /// p10 and p50 of the ratios of each round.
    pub of_memmove: (f64, f64),
    /// p50 of the ratios in CPU time: what is left if nobody else wants the CPUs.
    pub of_memmove_cpu: f64,
}

pub struct Bench<'a> {
    served: &'a Served,
    neuron: Neuron,
    queue: CopyQueue,
    effort: Effort,
}

impl<'a> Bench<'a> {
    pub fn new(served: &'a Served, product: Product, effort: Effort) -> Self {
        let bytes = effort.batch * u64::from(MAX_DESCRIPTOR_LENGTH);
        let memory = GuestRam::new(RAM, SOURCE - RAM + 2 * bytes).expect("guest memory");
        let mut registers = RawClient::connect(&served.socket()).expect("connect");
        registers.map(&memory, memory.as_fd()).expect("map");
        registers.enable().expect("enable");
        let generation = product.generation();
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
        settings.batch_limit = u32::try_from(effort.batch).expect("batch");
        let mut queue = CopyQueue::new(&neuron, pair, COMPLETION, settings).expect("queue");
        queue.init(&mut neuron).expect("init");
        Self {
            served,
            neuron,
            queue,
            effort,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.effort.batch * u64::from(MAX_DESCRIPTOR_LENGTH)
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
            if length > LONG {
                // Milliseconds: looking all the time would only take the CPU that copies.
                std::thread::sleep(Duration::from_micros(250));
            } else {
                std::hint::spin_loop();
            }
        }
        let time = start.elapsed();
        self.queue.finish(&mut self.neuron, batch).expect("ack");
        time
    }

    fn routing_id(&self) -> u32 {
        self.neuron.generation.misc_ram + misc_ram::ROUTING_ID
    }

    fn round_trip(&mut self) -> Duration {
        let offset = self.routing_id();
        timed_read(&mut self.neuron.registers, offset)
    }

    /// The whole device, our loop with the small device, the crate's with the same.
    pub fn reads(&mut self, peers: &mut Peers) -> [Times; 3] {
        let mut samples = [const { Vec::new() }; 3];
        for _ in 0..self.effort.samples / TURN {
            samples[0].extend((0..TURN).map(|_| self.round_trip()));
            samples[1].extend((0..TURN).map(|_| timed_read(&mut peers.our_loop.client, 0)));
            samples[2].extend((0..TURN).map(|_| timed_read(&mut peers.crates.client, 0)));
        }
        samples.map(Times::of)
    }

    pub fn posted(&mut self, reference: &mut Reference) -> [Posted; 2] {
        let generation = self.neuron.generation;
        let scratch = generation.misc_ram + misc_ram::SERIAL_LOW;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let before = self.calls();
        for _ in 0..self.effort.rounds {
            ours.push(post(&mut self.neuron.registers, scratch));
            theirs.push(post(&mut reference.client, 0));
        }
        let calls = self.calls() - before;
        let writes = POSTED * u64::try_from(self.effort.rounds).unwrap_or(u64::MAX);
        [
            Posted {
                each: Times::of(ours),
                calls_per_write: ratio(calls.into(), writes.into()),
            },
            Posted {
                each: Times::of(theirs),
                calls_per_write: ratio(CALLS_PER_WRITE.into(), 1),
            },
        ]
    }

    /// Some full batches, short copies, and register reads by a client that looks for the answer.
    pub fn loads(&mut self, turn: usize) -> [Vec<Duration>; 3] {
        let (source, bytes) = (self.host(SOURCE), self.bytes());
        let batches = (0..turn).map(|_| self.copy(source, HBM, bytes)).collect();
        let copies = (0..turn).map(|_| self.copy(source, HBM, 4096)).collect();
        self.neuron.registers.look_for_replies(true);
        let reads = (0..turn).map(|_| self.round_trip()).collect();
        self.neuron.registers.look_for_replies(false);
        [batches, copies, reads]
    }

    /// CPU time of the device thread so far.
    fn cpu(&self) -> Duration {
        let pid = self.served.pid().as_raw_nonzero();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        let path = tasks
            .map(|task| task.expect("thread").path())
            .find(|path| {
                std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "nd0")
            })
            .expect("the device thread");
        // Nanoseconds on a CPU come first.
        let schedstat = std::fs::read_to_string(path.join("schedstat")).expect("schedstat");
        let ns = schedstat.split_ascii_whitespace().next();
        Duration::from_nanos(ns.and_then(|ns| ns.parse().ok()).expect("a number"))
    }

    /// System calls of the device thread for its socket so far, as the server counts them.
    fn calls(&self) -> u64 {
        let socket = self.served.socket();
        let (code, out, err) =
            crate::common::run(&["ctl", "--socket", text(&socket), "status", "--json"]);
        assert_eq!(code, 0, "{err}");
        let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let wire = &report[0]["wire"];
        ["receives", "sends", "polls"]
            .map(|name| wire[name].as_u64().expect("a counter"))
            .iter()
            .sum()
    }

    /// Round trips with a client that sleeps until its answer comes and with one that looks for it, and copies of some
    /// lengths from doorbell to marker with the system calls that each took.
    pub fn latencies<const N: usize>(
        &mut self,
        lengths: [u64; N],
    ) -> ([Times; 2], [(Times, f64); N]) {
        let source = self.host(SOURCE);
        for _ in 0..100 {
            for length in lengths {
                self.copy(source, HBM, length);
            }
        }
        let (mut asleep, mut awake) = (Vec::new(), Vec::new());
        let mut copies = lengths.map(|_| (Vec::new(), 0));
        for _ in 0..self.effort.samples / TURN {
            asleep.extend((0..TURN).map(|_| self.round_trip()));
            self.neuron.registers.look_for_replies(true);
            awake.extend((0..TURN).map(|_| self.round_trip()));
            self.neuron.registers.look_for_replies(false);
            for ((samples, _), length) in copies.iter_mut().zip(lengths) {
                samples.extend((0..TURN).map(|_| self.copy(source, HBM, length)));
            }
        }
        for ((_, calls), length) in copies.iter_mut().zip(lengths) {
            let before = self.calls();
            for _ in 0..CALL_SAMPLES {
                self.copy(source, HBM, length);
            }
            *calls = self.calls() - before;
        }
        (
            [Times::of(asleep), Times::of(awake)],
            copies.map(|(samples, calls)| {
                (Times::of(samples), ratio(calls.into(), CALL_SAMPLES.into()))
            }),
        )
    }

    pub fn bandwidths(&mut self) -> Vec<Bandwidth> {
        let bytes = self.bytes();
        let (first, second) = (self.host(SOURCE), self.host(SOURCE + bytes));
        [
            ("host to host", first, second),
            ("host to device", first, HBM),
            ("device to host", HBM, second),
            ("device to device", HBM, HBM + bytes),
        ]
        .map(|(name, source, destination)| {
            // The first pass touches fresh pages.
            self.copy(source, destination, bytes);
            self.memmove();
            let (mut copies, mut moves, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            let mut cpu_ratios = Vec::new();
            for _ in 0..self.effort.rounds {
                // Each once before, so that neither finds the bytes in the other's cache.
                self.memmove();
                let (memmove, memmove_cpu) = self.memmove();
                self.copy(source, destination, bytes);
                let before = self.cpu();
                let copy = self.copy(source, destination, bytes);
                // The thread sleeps again as soon as the marker is there.
                let copy_cpu = self.cpu().saturating_sub(before);
                ratios.push(ratio(memmove.as_nanos(), copy.as_nanos()));
                cpu_ratios.push(ratio(memmove_cpu.as_nanos(), copy_cpu.as_nanos()));
                moves.push(memmove);
                copies.push(copy);
            }
            ratios.sort_by(f64::total_cmp);
            cpu_ratios.sort_by(f64::total_cmp);
            Bandwidth {
                name,
                copy: Times::of(copies),
                memmove: Times::of(moves),
                of_memmove: (ratios[ratios.len() / 10], ratios[ratios.len() / 2]),
                of_memmove_cpu: cpu_ratios[cpu_ratios.len() / 2],
            }
        })
        .into()
    }

    /// What the machine can do between the same two buffers, in the same 64 KiB pieces: with memory as the guest has it,
    /// and without a descriptor.
    fn memmove(&self) -> (Duration, Duration) {
        let bytes = self.bytes();
        let step = usize::try_from(MAX_DESCRIPTOR_LENGTH).expect("length");
        let memory = self.neuron.memory.memory();
        let (start, cpu) = (Instant::now(), thread_cpu());
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
        (start.elapsed(), thread_cpu().saturating_sub(cpu))
    }
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("not negative")
}

fn timed_read(client: &mut RawClient, offset: u32) -> Duration {
    let start = Instant::now();
    client.read32(offset).expect("read");
    start.elapsed()
}

/// Posts writes and waits until a read has followed them; the time of one.
fn post(client: &mut RawClient, offset: u32) -> Duration {
    let start = Instant::now();
    for n in 0..POSTED {
        client
            .write32(offset, u32::try_from(n).unwrap_or(0))
            .expect("write");
    }
    client.read32(offset).expect("read");
    start.elapsed() / u32::try_from(POSTED).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn ratio(a: u128, b: u128) -> f64 {
    a as f64 / b.max(1) as f64
}

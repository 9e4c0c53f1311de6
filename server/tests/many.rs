//! Sixteen devices in one process: each its own, idle ones free, and a broken one alone in its trouble.
mod common;

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::raw::RawClient;
use common::{Served, run, text};
use neuron_protocol::cycle::{CopyQueue, Delay, Device, QueuePair, Settings, init_engine};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::ring::{H2T_DESC_COUNT, RingSize, allocated_count};
use neuron_vfio_user::probe::GuestRam;

const DEVICES: u8 = 16;
const PRODUCT: Product = Product::Trn2;
const RAM: u64 = 1 << 32;
const RAM_SIZE: u64 = 16 << 20;
const SOURCE: u64 = RAM + (4 << 20);
const BACK: u64 = RAM + (8 << 20);
const BYTES: u64 = 3_000_001;
/// What a device that nobody uses may add to the server's own memory, KiB. Most of it is its thread's stack and tables.
const PER_DEVICE: u64 = 1 << 10;

/// Real time until a client gives up; the driver's budgets count looks, and a look here takes longer than a microsecond.
struct Patience {
    limit: Duration,
    since: Instant,
}

impl Delay for Patience {
    fn delay(&mut self, microseconds: u64) -> ControlFlow<()> {
        if self.since.elapsed() > self.limit {
            return ControlFlow::Break(());
        }
        std::thread::sleep(Duration::from_micros(microseconds.max(200)));
        ControlFlow::Continue(())
    }
}

fn path(served: &Served, n: u8) -> PathBuf {
    served.socket().with_file_name(format!("neuron{n}.sock"))
}

/// A client of one device with its engine and queue set up, and memory of its own at the same address as everybody's.
struct Client {
    device: Device<RawClient, GuestRam, Patience>,
    queue: CopyQueue,
}

impl Client {
    fn new(served: &Served, n: u8) -> Self {
        let generation = PRODUCT.generation();
        let memory = GuestRam::new(RAM, RAM_SIZE).unwrap();
        let mut registers = RawClient::connect(&path(served, n)).unwrap();
        registers.map(&memory, memory.as_fd()).unwrap();
        registers.enable().unwrap();
        let mut device = Device {
            registers,
            memory,
            delay: Patience {
                limit: Duration::from_secs(20),
                since: Instant::now(),
            },
            generation,
        };
        let (engine, queue) = generation.h2t_queue(0).unwrap();
        init_engine(&mut device, engine).unwrap();
        let size = RingSize::new(allocated_count(H2T_DESC_COUNT).unwrap()).unwrap();
        let pair = QueuePair::new(&device, engine, queue, size, RAM, RAM + (1 << 20)).unwrap();
        let settings = Settings::new(generation, Platform::Qemu);
        let mut queue = CopyQueue::new(&device, pair, RAM + (2 << 20), settings).unwrap();
        queue.init(&mut device).unwrap();
        Self { device, queue }
    }

    /// Up, and down to another place.
    fn round_trip(&mut self, seed: u64) -> Result<(), String> {
        self.device.delay.since = Instant::now();
        let memory = &mut self.device.memory;
        memory
            .fill(SOURCE, BYTES, seed)
            .map_err(|e| e.to_string())?;
        memory.fill(BACK, BYTES, !seed).map_err(|e| e.to_string())?;
        let hbm = self.device.generation.hbm.soc_bases[0] + 12_345;
        let up = self.device.host_to_device(SOURCE).unwrap();
        let down = self.device.host_to_device(BACK).unwrap();
        for (from, to) in [(up, hbm), (hbm, down)] {
            self.queue
                .copy(&mut self.device, from, to, BYTES)
                .map_err(|e| e.to_string())?;
        }
        match self.device.memory.differs(BACK, BYTES, seed) {
            Ok(None) => Ok(()),
            other => Err(format!("wrong content: {other:?}")),
        }
    }
}

/// All at once, each with data of its own.
fn all(clients: &mut [Client], round: u64) -> Vec<Result<(), String>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(clients)
            .map(|(n, client)| scope.spawn(move || client.round_trip(round * 1000 + n)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// The server's own memory in KiB (HBM is shared memory), that of its HBM, and its CPU time in ticks.
fn costs(served: &Served) -> (u64, u64, u64) {
    let pid = served.pid().as_raw_nonzero().get();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        line.split_ascii_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_ascii_whitespace()
        .collect();
    let ticks = |n: usize| fields[n].parse::<u64>().unwrap();
    (
        field("RssAnon:") + field("RssFile:"),
        field("RssShmem:"),
        ticks(11) + ticks(12),
    )
}

#[test]
fn devices_have_ids_and_serials_of_their_own_and_become_the_nodes_in_order() {
    let served = Served::start_many(DEVICES, &["--product", PRODUCT.name()]);
    let dir = served.socket().parent().unwrap().to_owned();
    let (code, stdout, stderr) = run(&["ctl", "--socket-dir", text(&dir), "status", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let devices: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let devices = devices.as_array().unwrap();
    let nodes: Vec<u64> = devices
        .iter()
        .map(|d| {
            let id = u8::try_from(d["routing_id"].as_u64().unwrap()).unwrap();
            u64::from(PRODUCT.node(id))
        })
        .collect();
    assert_eq!(nodes, (0..u64::from(DEVICES)).collect::<Vec<_>>());
    let mut serials: Vec<u64> = devices
        .iter()
        .map(|d| d["serial"].as_u64().unwrap())
        .collect();
    serials.sort_unstable();
    serials.dedup();
    assert_eq!(serials.len(), usize::from(DEVICES));
    assert!(!serials.contains(&0));
}

#[test]
fn idle_devices_cost_next_to_nothing() {
    let one = Served::start_many(1, &[]);
    let many = Served::start_many(DEVICES, &[]);
    let own = |served: &Served| costs(served).0;
    let grown = own(&many).saturating_sub(own(&one));
    let limit = PER_DEVICE * u64::from(DEVICES - 1);
    assert!(
        grown <= limit,
        "{grown} KiB for {} more devices",
        DEVICES - 1
    );
    // A client that copies pays for itself; the fifteen beside it for nothing.
    let before = costs(&many);
    let mut client = Client::new(&many, 3);
    client.round_trip(1).unwrap();
    let used = costs(&many).1.saturating_sub(before.1);
    assert!(
        used >= BYTES >> 10,
        "the copy did not reach the server: {used} KiB"
    );
    // The copied bytes in HBM, and the client's memory as far as it was touched.
    assert!(
        used <= (RAM_SIZE + 2 * BYTES) >> 10,
        "{used} KiB for one copy"
    );
    std::thread::sleep(Duration::from_millis(500));
    let ticks = costs(&many).2;
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(costs(&many).2, ticks, "an idle server used CPU");
}

#[test]
fn one_failing_device_leaves_the_others_running() {
    let served = Served::start_many(DEVICES, &[]);
    let mut clients: Vec<Client> = (0..DEVICES).map(|n| Client::new(&served, n)).collect();
    for (n, result) in all(&mut clients, 1).into_iter().enumerate() {
        assert_eq!(result, Ok(()), "device {n}");
    }
    // The last one is told to copy from where nothing is: its engine aborts.
    let last = clients.last_mut().unwrap();
    let nowhere = last.device.host_to_device(RAM + (1 << 40)).unwrap();
    let hbm = last.device.generation.hbm.soc_bases[0];
    last.device.delay = Patience {
        limit: Duration::from_millis(500),
        since: Instant::now(),
    };
    assert!(
        last.queue
            .copy(&mut last.device, nowhere, hbm, 4096)
            .is_err()
    );
    // The first one loses its client without a word.
    drop(clients.remove(0));
    let results = all(&mut clients, 2);
    let (victim, others) = results.split_last().unwrap();
    assert!(victim.is_err(), "an aborted engine went on");
    for (n, result) in (1..).zip(others) {
        assert_eq!(*result, Ok(()), "device {n}");
    }
    // The first device takes a new client and is a fresh one.
    Client::new(&served, 0).round_trip(3).unwrap();
    let dir = served.socket().parent().unwrap().to_owned();
    let (_, stdout, _) = run(&["ctl", "--socket-dir", text(&dir), "status", "--json"]);
    let devices: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let aborted: Vec<usize> = devices
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .filter(|(_, d)| d["aborted"].as_array().is_some_and(|a| !a.is_empty()))
        .map(|(n, _)| n)
        .collect();
    assert_eq!(aborted, [usize::from(DEVICES) - 1], "{stdout}");
}

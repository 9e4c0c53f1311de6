//! A server without work costs nothing, and holds little beyond what the guest touched.
mod common;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

use common::Served;
use common::raw::RawClient;
use neuron_protocol::cycle::{CopyQueue, Device, QueuePair, Registers, Settings, init_engine};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::ring::{H2T_DESC_COUNT, RingSize, allocated_count};
use neuron_vfio_user::probe::GuestRam;

const RAM: u64 = 1 << 32;
const SOURCE: u64 = RAM + (4 << 20);
const RAM_SIZE: u64 = 64 << 20;
/// Context switches per thread that may happen in the measured time for reasons of the kernel's own.
const STRAY_WAKEUPS: u64 = 3;
/// Issue's limit on the server's own memory, KiB.
const OWN_MEMORY: u64 = 32 << 10;

/// Clock ticks used and times woken, by thread.
fn activity(pid: i32) -> BTreeMap<String, (u64, u64)> {
    let mut threads = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let path = entry.unwrap().path();
        let stat = std::fs::read_to_string(path.join("stat")).unwrap();
        let name = std::fs::read_to_string(path.join("comm"))
            .unwrap()
            .trim()
            .to_owned();
        // Fields after the name in parentheses: state is the first, utime and stime the 12th and 13th.
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_ascii_whitespace()
            .collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        let woken = field(&status, "voluntary_ctxt_switches:");
        let id = path.file_name().unwrap().to_str().unwrap().to_owned();
        threads.insert(format!("{name} {id}"), (ticks, woken));
    }
    threads
}

fn field(status: &str, name: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.split_ascii_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

/// A device after the driver's initialisation of all engines and one copy of 16 MiB, with the client still connected.
fn used(served: &Served) -> Device<RawClient, GuestRam, ()> {
    let generation = Product::Trn2.generation();
    let memory = GuestRam::new(RAM, RAM_SIZE).unwrap();
    let mut registers = RawClient::connect(&served.socket()).unwrap();
    registers.map(&memory, memory.as_fd()).unwrap();
    registers.enable().unwrap();
    let mut device = Device {
        registers,
        memory,
        delay: (),
        generation,
    };
    for engine in 0..generation.engines {
        init_engine(&mut device, engine).unwrap();
    }
    let (engine, queue) = generation.h2t_queue(0).unwrap();
    let size = RingSize::new(allocated_count(H2T_DESC_COUNT).unwrap()).unwrap();
    let pair = QueuePair::new(&device, engine, queue, size, RAM, RAM + (1 << 20)).unwrap();
    let settings = Settings::new(generation, Platform::Qemu);
    let mut queue = CopyQueue::new(&device, pair, RAM + (2 << 20), settings).unwrap();
    queue.init(&mut device).unwrap();
    let mut transfer = neuron_protocol::cycle::Transfer::new(
        device.host_to_device(SOURCE).unwrap(),
        16 << 20,
        16 << 20,
    )
    .unwrap();
    let context = neuron_protocol::marker::Context::Sync;
    let batch = queue.stage(&mut device, context, &mut transfer).unwrap();
    queue.launch(&mut device, &batch).unwrap();
    let start = std::time::Instant::now();
    while !queue.is_done(&mut device, &batch).unwrap() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    queue.finish(&mut device, batch).unwrap();
    device
}

#[test]
fn an_idle_server_uses_no_cpu() {
    let served = Served::start(&[]);
    let _device = used(&served);
    std::thread::sleep(Duration::from_millis(500));
    let pid = served.pid().as_raw_nonzero().get();
    let before = activity(pid);
    std::thread::sleep(Duration::from_secs(2));
    let after = activity(pid);
    assert!(
        before.keys().any(|name| name.starts_with("nd0 ")),
        "{before:?}"
    );
    for (thread, (ticks, woken)) in &after {
        let (ticks_before, woken_before) = before.get(thread).copied().unwrap_or_default();
        assert_eq!(
            ticks - ticks_before,
            0,
            "{thread} used CPU: {before:?} {after:?}"
        );
        assert!(
            woken - woken_before <= STRAY_WAKEUPS,
            "{thread} woke up: {before:?} {after:?}"
        );
    }
}

/// Ticks (10 ms) that the device thread used in half a second, a read being the last activity before it.
fn ticks_after_a_read(options: &[&str]) -> u64 {
    let served = Served::start(options);
    let mut device = used(&served);
    let pid = served.pid().as_raw_nonzero().get();
    std::thread::sleep(Duration::from_millis(1200));
    let ticks = || -> u64 {
        let activity = activity(pid);
        let device = activity.iter().filter(|(name, _)| name.starts_with("nd0 "));
        device.map(|(_, (ticks, _))| ticks).sum()
    };
    let before = ticks();
    device.registers.read32(0).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    ticks() - before
}

#[test]
fn busy_polling_is_honoured_and_ends() {
    // With a tenth of a CPU this machine is still fast enough.
    let spins = ticks_after_a_read(&["--busy-poll", "1000000"]);
    assert!(spins >= 5, "{spins} ticks of 10 ms in 500 ms");
    let ends = ticks_after_a_read(&["--busy-poll", "1000"]);
    assert!(ends <= 1, "{ends} ticks of 10 ms after 1 ms of polling");
}

#[test]
fn own_memory_stays_small() {
    let served = Served::start(&[]);
    let _device = used(&served);
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", served.pid().as_raw_nonzero())).unwrap();
    // Guest RAM and HBM are shared memory; the rest is the server's own.
    let own = field(&status, "RssAnon:") + field(&status, "RssFile:");
    let shared = field(&status, "RssShmem:");
    assert!(own < OWN_MEMORY, "{own} KiB of its own:\n{status}");
    assert!(
        shared >= 16 << 10,
        "the copy did not reach the server: {shared} KiB shared"
    );
}

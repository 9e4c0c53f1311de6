//! The probe's steps.
use std::fmt::Display;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use neuron_protocol::cycle::{
    CopyQueue, Device, QueuePair, Registers, Settings, Transfer, init_engine,
};
use neuron_protocol::generation::{Generation, Platform, Product, VENDOR_ID};
use neuron_protocol::marker::Context;
use neuron_protocol::registers::misc_ram;
use neuron_protocol::ring::{H2T_DESC_COUNT, RingSize, allocated_count};

use super::ProbeError;
use super::findings::{Copy, Findings, Latency, Throughput};
use super::memory::GuestRam;
use super::peer::Peer;

/// Where our memory appears to the device. Not 0, so that a forgotten offset shows.
const RAM_BASE: u64 = 0x1_4000_0000;
/// Layout of that memory: rings, completion buffer, then two buffers.
const TX_RING: u64 = RAM_BASE;
const RX_RING: u64 = RAM_BASE + (1 << 20);
const COMPLETION: u64 = RAM_BASE + (2 << 20);
const SOURCE: u64 = RAM_BASE + (4 << 20);
const BUFFER: u64 = 17 << 20;
const RESULT: u64 = SOURCE + BUFFER;
const RAM_SIZE: u64 = RESULT - RAM_BASE + BUFFER;

/// The driver never touches the first 16 MiB of a stack (contract §3); nor do we.
const CARVE_OUT: u64 = 16 << 20;
/// Bytes of the copies whose bandwidth is told.
const LARGE: u64 = 16 << 20;
/// Sizes and offsets that have been wrong in somebody's device: around a descriptor's 64 KiB, around a page, odd.
const SHAPES: [(u64, u64); 8] = [
    (1, 0),
    (4, 1),
    (4095, 3),
    (4097, 0),
    (65_535, 1),
    (65_536, 0),
    (65_537, 7),
    (200_001, 61),
];
/// Copies timed.
const SAMPLES: usize = 500;

/// PCI command register: memory space and bus master.
const COMMAND: (u64, [u8; 2]) = (4, [6, 0]);
/// Status of the firmware window: reset in progress (contract §4).
const IN_RESET: u32 = 1 << 3;
/// Vendor, device; then revision.
const PCI_ID: u64 = 0;
const PCI_REVISION: u64 = 8;
/// vfio index of the BAR over HBM (contract §1.1).
const HBM_BAR: u32 = 4;

type Neuron = Device<Peer, GuestRam, ()>;

/// Tells the watcher where we are, and turns errors into ones that say so.
struct Steps<'a> {
    watcher: &'a Sender<String>,
    step: String,
}

impl Steps<'_> {
    fn begin(&mut self, step: impl Into<String>) {
        self.step = step.into();
        // Without a watcher nobody waits for us either.
        let _ = self.watcher.send(self.step.clone());
    }

    fn failed(&self, reason: impl Display) -> ProbeError {
        ProbeError::Failed {
            step: self.step.clone(),
            reason: reason.to_string(),
        }
    }
}

pub(super) fn run(
    socket: &Path,
    patience: Duration,
    watcher: &Sender<String>,
) -> Result<Findings, ProbeError> {
    let mut steps = Steps {
        watcher,
        step: String::new(),
    };
    let mut findings = Findings::default();
    steps.begin("connecting");
    let peer = Peer::connect(socket)?;
    let (mut neuron, product, platform) = identify(&mut steps, &mut findings, peer)?;
    steps.begin("mapping guest memory");
    neuron
        .registers
        .map(&neuron.memory)
        .map_err(|error| steps.failed(error))?;
    steps.begin(format!("reset on platform {platform}"));
    let start = Instant::now();
    reset(&mut neuron, platform, patience).map_err(|reason| steps.failed(reason))?;
    findings.reset_us = us(start.elapsed());

    let stacks = stacks(&neuron, platform);
    let generation = product.generation();
    for engine in generation.first_h2t_engine..generation.engines {
        steps.begin(format!("setting up engine {engine}"));
        init_engine(&mut neuron, engine).map_err(|error| steps.failed(error))?;
    }
    for core in 0..generation.cores {
        let Some((engine, queue)) = generation.h2t_queue(core) else {
            continue;
        };
        let name = format!("e{engine}.q{queue}");
        steps.begin(format!("copies on {name}"));
        let mut queue = Queue::new(&mut neuron, engine, queue, platform, patience)
            .map_err(|error| steps.failed(error))?;
        let stack = stacks[usize::from(core) % stacks.len()];
        for (seed, (length, offset)) in (1..).zip(SHAPES) {
            let what = format!("{name}, {length} bytes at offset {offset}");
            steps.begin(&what);
            round_trip(
                &mut neuron,
                &mut queue,
                [stack, stack],
                length,
                offset,
                seed,
            )
            .map_err(|error| steps.failed(error))?;
            findings.copies.push(Copy {
                what,
                bytes: length,
            });
        }
        findings.queues.push(name);
    }

    let (engine, number) = generation.h2t_queue(0).unwrap_or_default();
    steps.begin(format!("setting up e{engine}.q{number}"));
    let mut queue = Queue::new(&mut neuron, engine, number, platform, patience)
        .map_err(|error| steps.failed(error))?;
    for (index, stack) in stacks.iter().enumerate() {
        let next = stacks[(index + 1) % stacks.len()];
        let what = format!("{LARGE} bytes over HBM stack {index} and the next");
        steps.begin(&what);
        let times = round_trip(&mut neuron, &mut queue, [*stack, next], LARGE, 0, 99)
            .map_err(|error| steps.failed(error))?;
        findings.copies.push(Copy { what, bytes: LARGE });
        findings.stacks += 1;
        let directions = ["host to device", "device to device", "device to host"];
        findings.throughput = directions
            .into_iter()
            .zip(times)
            .map(|(direction, time)| Throughput {
                direction,
                bytes: LARGE,
                us: us(time),
            })
            .collect();
    }
    steps.begin("latency");
    let mut samples = Vec::with_capacity(SAMPLES);
    let source = neuron
        .host_to_device(SOURCE)
        .map_err(|error| steps.failed(error))?;
    for _ in 0..SAMPLES {
        samples.push(
            queue
                .copy(&mut neuron, source, stacks[0], 4)
                .map_err(|error| steps.failed(error))?,
        );
    }
    findings.latency = Latency::of(samples);
    steps.begin("unmapping guest memory");
    neuron
        .registers
        .unmap(&neuron.memory)
        .map_err(|error| steps.failed(error))?;
    Ok(findings)
}

/// Reads who it is from configuration space and the firmware window.
fn identify(
    steps: &mut Steps<'_>,
    findings: &mut Findings,
    mut peer: Peer,
) -> Result<(Neuron, Product, Platform), ProbeError> {
    steps.begin("reading configuration space");
    let id = peer
        .config_read::<4>(PCI_ID)
        .map_err(|error| steps.failed(error))?;
    let [revision] = peer
        .config_read::<1>(PCI_REVISION)
        .map_err(|error| steps.failed(error))?;
    let (vendor, device) = (
        u16::from_le_bytes([id[0], id[1]]),
        u16::from_le_bytes([id[2], id[3]]),
    );
    let product = Product::from_device_id(device)
        .filter(|_| vendor == VENDOR_ID)
        .ok_or_else(|| {
            steps.failed(format!(
                "{vendor:04x}:{device:04x} is no Neuron device that the driver knows"
            ))
        })?;
    let platform = Platform::from_revision_id(revision);
    let generation = product.generation();
    for (bar, size) in (0..).zip(&mut findings.bars) {
        *size = peer.region_size(bar);
    }
    if findings.bars[4] == 0 {
        return Err(steps.failed("BAR4, the window on device memory, is missing"));
    }
    // Drivers up to 2.24 look for the registers in BAR2 on the qemu platform, later ones in BAR0 on V3 and V4
    // (contract §13.1): both must be there, and the same.
    let bars: &[u32] = if platform == Platform::Qemu {
        &[0, 2]
    } else {
        &[0]
    };
    for bar in bars {
        steps.begin(format!("reading the firmware window through BAR{bar}"));
        if peer.region_size(*bar) != generation.register_bar_size {
            return Err(steps.failed(format!(
                "BAR{bar} has {} bytes, the register window of {} has {}",
                peer.region_size(*bar),
                generation.name,
                generation.register_bar_size
            )));
        }
        peer.use_bar(*bar);
        let mut read = |offset| {
            peer.read32(generation.misc_ram + offset)
                .map_err(|error| steps.failed(error))
        };
        findings.routing_id = read(misc_ram::ROUTING_ID)?;
        findings.firmware_api = read(misc_ram::API_VERSION)?;
        let (low, high) = (read(misc_ram::SERIAL_LOW)?, read(misc_ram::SERIAL_HIGH)?);
        findings.serial = u64::from(high) << 32 | u64::from(low);
        findings.register_bar = *bar;
        let id = u8::try_from(findings.routing_id).ok().filter(|id| *id < 64);
        findings.node = id.map(|id| product.node(id)).ok_or_else(|| {
            steps.failed(format!(
                "routing id {:#x}: the driver wants 0 to 63",
                findings.routing_id
            ))
        })?;
    }
    steps.begin("enabling DMA");
    peer.config_write(COMMAND.0, &COMMAND.1)
        .map_err(|error| steps.failed(error))?;
    findings.pci_id = [vendor, device];
    findings.revision = revision;
    findings.product = product.to_string();
    findings.platform = platform.to_string();
    generation.name.clone_into(&mut findings.generation);
    let memory = GuestRam::new(RAM_BASE, RAM_SIZE).map_err(|error| steps.failed(error))?;
    Ok((
        Device {
            registers: peer,
            memory,
            delay: (),
            generation,
        },
        product,
        platform,
    ))
}

/// The driver's reset of the whole device (contract §7).
fn reset(neuron: &mut Neuron, platform: Platform, patience: Duration) -> Result<(), String> {
    let Generation {
        reset_flag,
        misc_ram: window,
        ..
    } = neuron.generation;
    let registers = &mut neuron.registers;
    let write = |registers: &mut Peer, offset, value| {
        registers
            .write32(offset, value)
            .map_err(|error| error.to_string())
    };
    let with_flag = platform == Platform::Qemu;
    if with_flag {
        // Where there is no firmware handshake the value is the map of cores to reset, and 0 is the device (contract §7).
        write(
            registers,
            reset_flag.offset,
            u32::from(reset_flag.with_firmware),
        )?;
    }
    if !with_flag || reset_flag.with_firmware {
        write(registers, window + misc_ram::RESET, misc_ram::RESET_DEVICE)?;
        write(registers, window + misc_ram::TRIGGER, 1)?;
        poll(
            registers,
            window + misc_ram::RESET,
            !0,
            patience,
            "the firmware window's reset register",
        )?;
        poll(
            registers,
            window + misc_ram::STATUS,
            IN_RESET,
            patience,
            "the reset-in-progress bit",
        )?;
    }
    if with_flag {
        poll(
            registers,
            reset_flag.offset,
            !0,
            patience,
            "the qemu platform's reset flag",
        )?;
    }
    Ok(())
}

/// Waits until the bits of `mask` read 0.
fn poll(
    registers: &mut Peer,
    offset: u32,
    mask: u32,
    patience: Duration,
    what: &str,
) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    loop {
        let value = registers
            .read32(offset)
            .map_err(|error| error.to_string())?;
        if value & mask == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!(
                "{what} ({offset:#x}) still reads {value:#x} after {} s",
                patience.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Device-side addresses where each stack may be used.
fn stacks(neuron: &Neuron, platform: Platform) -> Vec<u64> {
    let hbm = &neuron.generation.hbm;
    // Near the end of the stack, where the driver's small allocations live.
    let size = if hbm.sized_by_bar && platform == Platform::Qemu {
        let count = hbm.soc_bases.iter().fold(0, |count, _| count + 1);
        neuron.registers.region_size(HBM_BAR) / count
    } else {
        hbm.stack_size
    };
    let offset = size.saturating_sub(2 * BUFFER).max(CARVE_OUT);
    hbm.soc_bases.iter().map(|base| base + offset).collect()
}

/// Host to the first device address, from there to the second, and back to the host: the three times.
fn round_trip(
    neuron: &mut Neuron,
    queue: &mut Queue,
    stacks: [u64; 2],
    length: u64,
    offset: u64,
    seed: u64,
) -> Result<[Duration; 3], String> {
    let text = |error: &dyn Display| error.to_string();
    let source = neuron
        .host_to_device(SOURCE + offset)
        .map_err(|error| text(&error))?;
    let result = neuron
        .host_to_device(RESULT + offset)
        .map_err(|error| text(&error))?;
    neuron
        .memory
        .fill(SOURCE + offset, length, seed)
        .map_err(|error| text(&error))?;
    // Whatever was there must not pass for a copy.
    neuron
        .memory
        .fill(RESULT, offset + length + 4096, !seed)
        .map_err(|error| text(&error))?;
    let [first, second] = [
        stacks[0] + offset,
        stacks[1] + offset + if stacks[0] == stacks[1] { BUFFER } else { 0 },
    ];
    let times = [
        queue.copy(neuron, source, first, length)?,
        queue.copy(neuron, first, second, length)?,
        queue.copy(neuron, second, result, length)?,
    ];
    if let Some(position) = neuron
        .memory
        .differs(RESULT + offset, length, seed)
        .map_err(|error| text(&error))?
    {
        return Err(format!(
            "the copy came back wrong from byte {position} of {length} on"
        ));
    }
    for (start, end) in [(0, offset), (offset + length, offset + length + 4096)] {
        let touched = neuron
            .memory
            .differs_from(RESULT, start..end, !seed)
            .map_err(|error| text(&error))?;
        if let Some(position) = touched {
            return Err(format!(
                "a copy of {length} bytes to offset {offset} also changed byte {position}"
            ));
        }
    }
    Ok(times)
}

/// A copy queue with our own clock.
struct Queue {
    queue: CopyQueue,
    patience: Duration,
}

impl Queue {
    fn new(
        neuron: &mut Neuron,
        engine: u8,
        queue: u8,
        platform: Platform,
        patience: Duration,
    ) -> Result<Self, String> {
        let size = allocated_count(H2T_DESC_COUNT).ok_or("ring size")?;
        let size = RingSize::new(size).map_err(|error| error.to_string())?;
        let pair = QueuePair::new(neuron, engine, queue, size, TX_RING, RX_RING)
            .map_err(|error| error.to_string())?;
        // Its budget is not used: the wait is ours.
        let settings = Settings::new(neuron.generation, platform);
        let mut queue = CopyQueue::new(neuron, pair, COMPLETION, settings)
            .map_err(|error| error.to_string())?;
        queue.init(neuron).map_err(|error| error.to_string())?;
        Ok(Self { queue, patience })
    }

    /// Copies between device-side addresses: the time from the doorbells to the markers.
    fn copy(
        &mut self,
        neuron: &mut Neuron,
        source: u64,
        destination: u64,
        length: u64,
    ) -> Result<Duration, String> {
        let mut transfer =
            Transfer::new(source, destination, length).ok_or("the addresses overflow")?;
        let mut time = Duration::ZERO;
        while transfer.remaining() > 0 {
            let batch = self
                .queue
                .stage(neuron, Context::Sync, &mut transfer)
                .map_err(|error| error.to_string())?;
            let start = Instant::now();
            self.queue
                .launch(neuron, &batch)
                .map_err(|error| error.to_string())?;
            while !self
                .queue
                .is_done(neuron, &batch)
                .map_err(|error| error.to_string())?
            {
                if start.elapsed() > self.patience {
                    return Err(format!(
                        "no completion marker within {} s for {length} bytes from {source:#x} to {destination:#x} ({} \
                         descriptors); ask `neuron-vfio-user ctl status` before this probe ends, or read the server's log",
                        self.patience.as_secs(),
                        batch.count()
                    ));
                }
                std::thread::yield_now();
            }
            time += start.elapsed();
            self.queue
                .finish(neuron, batch)
                .map_err(|error| error.to_string())?;
        }
        Ok(time)
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

//! A process's own rings, as the runtime drives them: descriptors copied in, doorbell by ioctl,
//! completion by a marker (seed §3, §4; contract §8.2, §8.3, §8.7).
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;
use neuron_protocol::ring::RingId;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::Device;
use crate::ioctl;
use crate::job::stage;
use crate::ring::{Marker, Piece, Place, Ring};

/// Small, so that laps are short.
const SIZE: u32 = 64;
const QUEUE: u32 = 3;
const CHUNK: u64 = 1 << 20;

/// Rings in guest RAM.
pub fn run_host(context: &Context) -> Result<Outcome> {
    let last = context.device.cores - 1;
    for (core, nth) in [(0, 1), (last, 15)] {
        let engine = core * u32::from(context.device.generation.engines_per_core) + nth;
        whole(context, Place::Host, engine).with_context(|| format!("engine {engine}"))?;
    }
    Ok(Outcome::Pass)
}

/// Rings in device memory: the driver copies descriptors there by DMA, the engine fetches them from HBM.
pub fn run_device(context: &Context) -> Result<Outcome> {
    whole(context, Place::Device, 2)?;
    Ok(Outcome::Pass)
}

struct Stage<'d> {
    ring: Ring<'d>,
    marker: Marker<'d>,
    host: Canvas<'d>,
    hbm: Canvas<'d>,
}

fn whole(context: &Context, place: Place, engine: u32) -> Result<()> {
    let device = &context.device;
    let core = engine / u32::from(device.generation.engines_per_core);
    let mut on = Stage {
        ring: Ring::new(device, engine, QUEUE, SIZE, place)?,
        marker: Marker::new(device, Place::Host)?,
        host: Canvas::paint(
            device,
            "host",
            device.host_of(core, CHUNK)?,
            context.pattern(1),
        )?,
        hbm: Canvas::paint(
            device,
            "device",
            device.device_of(core, CHUNK)?,
            context.pattern(2),
        )?,
    };
    one_to_one(&mut on)?;
    prefetch_only(&mut on)?;
    packets(&mut on)?;
    laps(&mut on)?;
    registers(device, &mut on)?;
    descriptors(device, &mut on)?;
    refusals(device, &on)?;
    on.ring.release()?;
    Ok(())
}

impl Stage<'_> {
    /// Stages one packet from the host canvas to the device canvas and updates the model.
    fn up(&mut self, at: u64, to: u64, tx: &[u32], rx: &[u32]) -> Result<()> {
        self.ring.stage(
            &pieces(self.host.address(at), tx),
            &pieces(self.hbm.address(to), rx),
        )?;
        let bytes = self.host.model(at, total(tx))?.to_vec();
        self.hbm.expect(to, &bytes)
    }

    /// The other way.
    fn down(&mut self, at: u64, to: u64, tx: &[u32], rx: &[u32]) -> Result<()> {
        self.ring.stage(
            &pieces(self.hbm.address(at), tx),
            &pieces(self.host.address(to), rx),
        )?;
        let bytes = self.hbm.model(at, total(tx))?.to_vec();
        self.host.expect(to, &bytes)
    }

    /// Stages the marker, rings for `tx` and `rx` descriptors and it, waits, acknowledges, compares.
    fn finish(&mut self, tx: u32, rx: u32) -> Result<()> {
        self.marker.stage(&mut self.ring)?;
        self.ring.start(tx + 1, rx + 1)?;
        self.settle(tx.max(rx) + 1)
    }

    fn settle(&self, count: u32) -> Result<()> {
        self.marker.wait()?;
        self.ring.ack(count)?;
        self.hbm.check()?;
        self.host.check()
    }
}

fn total(lengths: &[u32]) -> u64 {
    lengths.iter().map(|l| u64::from(*l)).sum()
}

/// Consecutive pieces of the given lengths.
fn pieces(start: u64, lengths: &[u32]) -> Vec<Piece> {
    let mut at = start;
    lengths
        .iter()
        .map(|length| {
            let piece = (at, *length);
            at += u64::from(*length);
            piece
        })
        .collect()
}

fn one_to_one(on: &mut Stage<'_>) -> Result<()> {
    for size in [1, 2, 3, 4, 63, 64, 65, 4095, 4096, 4097, 65535, 65536] {
        stage(format_args!("one to one, {size} bytes"));
        on.up(u64::from(size) * 3, u64::from(size) + 5, &[size], &[size])?;
        on.finish(1, 1)
            .with_context(|| format!("{size} bytes up"))?;
        on.down(u64::from(size) + 5, 300_001, &[size], &[size])?;
        on.finish(1, 1)
            .with_context(|| format!("{size} bytes down"))?;
    }
    Ok(())
}

/// Arms the receive ring first, with a transmit count of 0; the data moves only with the second
/// doorbell (seed §3: the m2s count of 0 is a trigger of its own).
fn prefetch_only(on: &mut Stage<'_>) -> Result<()> {
    stage("prefetch-only trigger");
    let before = on.hbm.model(400_000, 3 * 5000)?.to_vec();
    for nth in 0..3 {
        on.up(nth * 7001, 400_000 + nth * 5000, &[5000], &[5000])?;
    }
    on.marker.stage(&mut on.ring)?;
    on.ring.start(0, 3)?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    ensure!(
        on.marker.read()? == 0,
        "the marker came with only the receive ring armed"
    );
    let now = on
        .ring
        .device()
        .read_vec(on.hbm.chunk, 400_000, before.len())?;
    ensure!(now == before, "data moved with only the receive ring armed");
    on.ring.start(4, 1)?;
    on.settle(4).context("after a prefetch-only trigger")
}

/// Packets of several descriptors on either side: the bytes are one stream (contract §8.2).
fn packets(on: &mut Stage<'_>) -> Result<()> {
    let shapes: &[(&[u32], &[u32])] = &[
        (&[100, 200, 300], &[250, 350]),
        (&[1], &[1]),
        (&[7, 1, 1, 1, 65536, 3], &[65549]),
        (&[65536], &[1, 2, 3, 4, 65526]),
        (&[4096, 4096, 4096, 4096], &[8192, 8192]),
        (&[33333, 11111, 22222], &[11111, 33333, 22222]),
        (&[13; 17], &[17; 13]),
        (&[65536, 65536, 65535], &[65535, 65536, 65536]),
    ];
    for (nth, (tx, rx)) in shapes.iter().enumerate() {
        stage(format_args!("packet of {} into {}", tx.len(), rx.len()));
        let nth = u64::try_from(nth)?;
        // A length the receive side cannot hold in one descriptor is split.
        let rx = split(rx);
        let counts = (u32::try_from(tx.len())?, u32::try_from(rx.len())?);
        on.up(nth * 1009, 500_000 + nth * 4001, tx, &rx)?;
        on.finish(counts.0, counts.1)
            .with_context(|| format!("packet {tx:?} into {rx:?}"))?;
    }
    // Two packets of different shape under one doorbell: their streams do not mix.
    on.up(10_000, 700_000, &[100, 5000, 3], &[5103])?;
    on.down(20_000, 800_001, &[4000], &[1, 3998, 1])?;
    on.finish(4, 4).context("two packets under one doorbell")
}

fn split(lengths: &[u32]) -> Vec<u32> {
    lengths
        .iter()
        .flat_map(|l| {
            if *l > 65536 {
                vec![65536, l - 65536]
            } else {
                vec![*l]
            }
        })
        .collect()
}

/// More than three laps with both rings at a different pace; every phase 1, 2, 3, 0, 1 is used.
fn laps(on: &mut Stage<'_>) -> Result<()> {
    on.ring.init()?;
    let mut phases = vec![on.ring.rx_position().1];
    let mut round: u64 = 0;
    while phases.len() < 6 || on.ring.tx_position().1 != RingId::from_bits(1) {
        stage(format_args!("lap {}, round {round}", phases.len()));
        let (at, to) = (round * 611 % 200_000, 250_000 + round * 977 % 300_000);
        on.up(at, to, &[901, 99], &[300, 300, 400])?;
        on.down(to, 600_000 + round * 13, &[1000], &[1000])?;
        on.finish(3, 4)
            .with_context(|| format!("lap {}, round {round}", phases.len()))?;
        let phase = on.ring.rx_position().1;
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        round += 1;
        ensure!(round < 200, "laps do not end");
    }
    let expected: Vec<RingId> = [1, 2, 3, 0, 1, 2]
        .into_iter()
        .map(RingId::from_bits)
        .collect();
    ensure!(phases.starts_with(&expected), "phases {phases:?}");
    Ok(())
}

/// Heads, tails, base and length as the driver reads them back.
fn registers(device: &Device, on: &mut Stage<'_>) -> Result<()> {
    stage("queue state");
    on.ring.wait_idle()?;
    let (tx, rx) = on.ring.state()?;
    for (name, state, chunk, next) in [
        ("tx", tx, on.ring.tx_chunk, on.ring.tx_position().0),
        ("rx", rx, on.ring.rx_chunk, on.ring.rx_position().0),
    ] {
        ensure!(
            state.base_addr == chunk.address,
            "{name} base {:#x}, ring at {:#x}",
            state.base_addr,
            chunk.address
        );
        ensure!(state.length == SIZE, "{name} length {}", state.length);
        ensure!(
            (state.head_pointer, state.tail_pointer) == (next, next),
            "{name} head {} tail {}, staged up to {next}",
            state.head_pointer,
            state.tail_pointer
        );
        ensure!(
            state.completion_base_addr == 0,
            "{name} completion base {:#x}",
            state.completion_base_addr
        );
    }
    ensure!(
        rx.completion_head == on.ring.rx_position().0,
        "rx completion head {} after {} descriptors of the lap",
        rx.completion_head,
        on.ring.rx_position().0
    );
    // Armed but not transmitted: the receive tail moves alone.
    let (before, _) = on.ring.rx_position();
    on.up(0, 0, &[64], &[64])?;
    on.ring.start(0, 1)?;
    let (tx_now, rx_now) = on.ring.state()?;
    ensure!(
        rx_now.tail_pointer == (before + 1) % SIZE,
        "rx tail {} after arming one at {before}",
        rx_now.tail_pointer
    );
    ensure!(
        tx_now.tail_pointer == tx.tail_pointer,
        "tx tail moved to {} without a doorbell",
        tx_now.tail_pointer
    );
    on.marker.stage(&mut on.ring)?;
    on.ring.start(2, 1)?;
    on.settle(2)?;
    // Another queue of the engine is untouched by all this.
    let other = ioctl::queue_state(device.file(), on.ring.engine, QUEUE + 1)?;
    ensure!(
        other.0.base_addr != on.ring.tx_chunk.address,
        "queue {} shows this queue's ring",
        QUEUE + 1
    );
    Ok(())
}

/// What was copied into the rings is there: read by the driver, and by us.
fn descriptors(device: &Device, on: &mut Stage<'_>) -> Result<()> {
    stage("descriptor copyout");
    on.ring.init()?;
    on.up(1, 2, &[10, 20, 30], &[60])?;
    on.finish(3, 1)?;
    for (queue_type, chunk, count) in [
        (abi::queue_type::TX, on.ring.tx_chunk, 4),
        (abi::queue_type::RX, on.ring.rx_chunk, 2),
    ] {
        let mut seen = vec![[0xa5; 16]; count];
        ioctl::descriptor_copyout(
            device.file(),
            on.ring.engine,
            on.ring.queue,
            queue_type,
            0,
            &mut seen,
        )?;
        let ring = device.read_vec(chunk, 0, count * 16)?;
        ensure!(
            seen.as_flattened() == ring.as_slice(),
            "copyout of ring type {queue_type} differs from the ring"
        );
        ensure!(
            ring.iter().any(|b| *b != 0),
            "ring type {queue_type} is empty"
        );
    }
    let mut too_many = vec![[0; 16]; usize::try_from(SIZE)? + 1];
    let file = device.file();
    let past = ioctl::descriptor_copyout(
        file,
        on.ring.engine,
        on.ring.queue,
        abi::queue_type::TX,
        0,
        &mut too_many,
    );
    ensure!(past.is_err(), "a copyout past the ring is not refused");
    Ok(())
}

/// Descriptors that name guest RAM nobody allocated do not get into a ring (contract §6.2).
fn refusals(device: &Device, on: &Stage<'_>) -> Result<()> {
    let Some(foreign) = device.generation.host_to_soc(0x1000) else {
        return Ok(());
    };
    let mut descriptor = [0; 16];
    descriptor[0] = 4;
    descriptor[8..].copy_from_slice(&foreign.to_le_bytes());
    let answer = ioctl::copy_descriptors(
        device.file(),
        on.ring.rx_chunk.handle,
        0,
        abi::queue_type::RX,
        &[descriptor],
    );
    ensure!(
        answer.is_err(),
        "a descriptor naming guest address 0x1000 is accepted"
    );
    let mut too_small = abi::DmaQueueInit {
        eng_id: on.ring.engine,
        qid: QUEUE + 1,
        tx_desc_count: 40,
        rx_desc_count: 40,
        tx_handle: on.ring.tx_chunk.handle,
        rx_handle: on.ring.rx_chunk.handle,
        ..Default::default()
    };
    let odd = ioctl::plain(device.file(), abi::DMA_QUEUE_INIT, &mut too_small);
    ensure!(odd.is_err(), "a ring of 40 descriptors is accepted");
    Ok(())
}

/// Descriptors for a place behind a ring's chunk are refused, and the device has heard nothing of it. Apart from the
/// other refusals: a driver that dies of it still shows what its rings do.
pub fn run_past_chunk(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let chunk = device.host(CHUNK)?;
    let size = u32::try_from(CHUNK)?;
    for offset in [size - 8, size, size * 16] {
        stage(format_args!("a descriptor at {offset:#x} of {size:#x}"));
        let answer = ioctl::copy_descriptors(
            device.file(),
            chunk.handle,
            offset,
            abi::queue_type::RX,
            &[[0; 16]],
        );
        ensure!(
            answer.is_err(),
            "a descriptor at {offset:#x} of a chunk of {size:#x} bytes is accepted"
        );
    }
    Ok(Outcome::Pass)
}

/// A ring of 96: laps end where the length says, not at a power of two. Nothing is acknowledged, since
/// that crashes the kernel with the real driver (contract §11).
pub fn run_odd(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let mut on = Stage {
        ring: Ring::new(device, 4, QUEUE, 96, Place::Host)?,
        marker: Marker::new(device, Place::Host)?,
        host: Canvas::paint(device, "host", device.host(CHUNK)?, context.pattern(1))?,
        hbm: Canvas::paint(device, "device", device.device(CHUNK)?, context.pattern(2))?,
    };
    for round in 0..40 {
        stage(format_args!("round {round}"));
        for nth in 0..4 {
            on.up(
                round * 997 + nth * 3,
                round * 4001 + nth * 1000,
                &[999],
                &[999],
            )?;
        }
        on.up(0, 500_000 + round * 100, &[1, 98], &[99])?;
        on.marker.stage(&mut on.ring)?;
        on.ring.start(7, 6)?;
        on.marker.wait().with_context(|| format!("round {round}"))?;
        on.hbm.check().with_context(|| format!("round {round}"))?;
    }
    on.ring.wait_idle()?;
    on.ring.release()?;
    Ok(Outcome::Pass)
}

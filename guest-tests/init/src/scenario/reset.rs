//! Resets by ioctl (contract §7): the driver closes the cores' rings, the device acknowledges, the
//! driver sets everything up again, and copies work as before.
use anyhow::{Context as _, Result};
use neuron_protocol::generation::Platform;
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::Device;
use crate::job::stage;
use crate::ring::{Marker, Place, Ring};

/// First core, last core, and two at once.
pub fn run_cores(context: &Context) -> Result<Outcome> {
    let last = context.device.cores - 1;
    let mut maps: Vec<u32> = vec![1, 1 << last, 0b11];
    maps.dedup();
    // One core on an emulator.
    maps.retain(|map| u64::from(*map) >> context.device.cores == 0);
    for map in maps {
        around(context, map).with_context(|| format!("core map {map:#x}"))?;
    }
    Ok(Outcome::Pass)
}

/// The whole device, twice.
pub fn run_device(context: &Context) -> Result<Outcome> {
    let rounds = if context.device.platform == Platform::Silicon {
        2
    } else {
        1
    };
    for round in 0..rounds {
        around(context, abi::NC_MAP_DEVICE).with_context(|| format!("device reset {round}"))?;
    }
    Ok(Outcome::Pass)
}

/// The whole device without a copy before it, which after a fault would fail: then everything works again.
pub fn run_recovery(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    stage("reset");
    device.reset(abi::NC_MAP_DEVICE)?;
    stage("after the reset");
    for core in 0..device.cores {
        let mut canvas = Canvas::paint(
            device,
            "painted after",
            device.device_of(core, 300_000)?,
            context.pattern(u64::from(core)),
        )?;
        canvas.copy_within(0, 150_001, 140_003)?;
        canvas.check().with_context(|| format!("core {core}"))?;
        canvas.free()?;
    }
    Ok(Outcome::Pass)
}

fn around(context: &Context, map: u32) -> Result<()> {
    let device = &context.device;
    stage(format_args!("before reset {map:#x}"));
    let mut kept = Vec::new();
    for core in [0, device.cores - 1] {
        kept.push(Canvas::paint(
            device,
            "painted before",
            device.device_of(core, 300_000)?,
            context.pattern(u64::from(core)),
        )?);
    }
    own_ring(context, device)?;
    stage(format_args!("reset {map:#x}"));
    let begin = std::time::Instant::now();
    device.reset(map)?;
    let took = begin.elapsed();
    stage(format_args!("after reset {map:#x}"));
    // Memory is usable; whether its content survives is the device's business, and worth knowing.
    let survived = kept.iter().filter(|canvas| canvas.check().is_ok()).count();
    context.note(format_args!(
        "reset {map:#x}: {} ms, {survived} of {} buffers kept their content",
        took.as_millis(),
        kept.len()
    ));
    for (nth, canvas) in kept.into_iter().enumerate() {
        let chunk = canvas.chunk;
        let mut again = Canvas::paint(
            device,
            "painted after",
            chunk,
            context.pattern(50 + u64::try_from(nth)?),
        )?;
        again.check()?;
        again.copy_within(0, 150_001, 140_003)?;
        again.check().context("a copy after the reset")?;
        again.free()?;
    }
    own_ring(context, device).context("a user ring after the reset")
}

/// A user queue has to be initialised again, and then works.
fn own_ring(context: &Context, device: &Device) -> Result<()> {
    let mut ring = Ring::new(device, 13, 6, 32, Place::Host)?;
    let marker = Marker::new(device, Place::Host)?;
    let source = Canvas::paint(device, "source", device.host(65_536)?, context.pattern(90))?;
    let mut target = Canvas::paint(
        device,
        "target",
        device.device(65_536)?,
        context.pattern(91),
    )?;
    ring.stage(
        &[(source.address(9), 40_000)],
        &[(target.address(1), 40_000)],
    )?;
    marker.stage(&mut ring)?;
    ring.start(2, 2)?;
    marker.wait()?;
    ring.ack(2)?;
    target.expect(1, source.model(9, 40_000)?)?;
    target.check()
}

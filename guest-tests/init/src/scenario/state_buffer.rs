//! A core's state buffer: written by the driver's engine programming and by descriptors, read back by
//! descriptors (contract §6.1).
use anyhow::{Context as _, Result};
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::ioctl;
use crate::job::stage;
use crate::ring::{Marker, Place, Ring};

const CHUNK: u64 = 256 << 10;
/// The state buffer is 32 MiB (contract §6.1); somewhere in its middle, and up to its last byte.
const PLACES: [u64; 3] = [0, 0x12_3451, (32 << 20) - 0x1_0000];

/// HBM to state buffer to guest RAM, and programmed by the driver.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    for core in [0, device.cores - 1] {
        let engine = core * u32::from(device.generation.engines_per_core) + 9;
        let mut ring = Ring::new(device, engine, 5, 64, Place::Host)?;
        let marker = Marker::new(device, Place::Host)?;
        let hbm = Canvas::paint(
            device,
            "device",
            device.device_of(core, CHUNK)?,
            context.pattern(1),
        )?;
        let mut host = Canvas::paint(
            device,
            "host",
            device.host_of(core, CHUNK)?,
            context.pattern(2),
        )?;
        for (nth, place) in PLACES.into_iter().enumerate() {
            stage(format_args!("core {core} at {place:#x}"));
            let sbuf = device
                .tile_address(core, place)
                .context("no device-side address leads to the state buffer")?;
            let at = u64::try_from(nth)? * 1001;
            ring.stage(&[(hbm.address(at), 65_536)], &[(sbuf, 65_536)])?;
            ring.stage(&[(sbuf, 65_536)], &[(host.address(at + 5), 65_536)])?;
            marker.stage(&mut ring)?;
            ring.start(3, 3)?;
            marker
                .wait()
                .with_context(|| format!("core {core} at {place:#x}"))?;
            ring.ack(3)?;
            host.expect(at + 5, hbm.model(at, 65_536)?)?;
            host.check()
                .with_context(|| format!("core {core} at {place:#x}"))?;
        }
        if device.offers(abi::PROGRAM_ENGINE_NC) {
            stage(format_args!("core {core}: engine programming"));
            let sbuf = device
                .tile_address(core, 0x4_0001)
                .context("state buffer")?;
            let program = context.pattern(3).bytes(0, 60_001);
            ioctl::program_engine(device.file(), core, sbuf, &program)?;
            ring.stage(&[(sbuf, 60_001)], &[(host.address(100_000), 60_001)])?;
            marker.stage(&mut ring)?;
            ring.start(2, 2)?;
            marker.wait()?;
            ring.ack(2)?;
            host.expect(100_000, &program)?;
            host.check().context("engine programming")?;
        }
        ring.release()?;
    }
    Ok(Outcome::Pass)
}

//! One device in trouble, the others at work. Not part of `all`: the device rightly complains.
use anyhow::{Context as _, Result, anyhow, ensure};

use super::{Outcome, Setup, cores};
use crate::canvas::Canvas;
use crate::device::Device;
use crate::ring::{Marker, Place, Ring};

/// No guest has RAM there, whatever its size: 1 TiB up.
const NOWHERE: u64 = 1 << 40;
const ROUNDS: u64 = 4;
/// An engine of core 0 that is not the driver's own (contract §5).
const ENGINE: u32 = 13;

/// The last device is given a descriptor that leads nowhere while all others copy and compare.
pub fn run(setup: Setup) -> Result<Outcome> {
    ensure!(setup.devices > 1, "two devices and up: neuron.devices=2");
    let devices = (0..setup.devices)
        .map(Device::open)
        .collect::<Result<Vec<Device>>>()?;
    let Some((victim, others)) = devices.split_last() else {
        return Err(anyhow!("no device"));
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = others
            .iter()
            .map(|device| {
                let patterns = [0, 1, 2].map(|n| setup.pattern(device.index, n));
                scope.spawn(move || cores::traffic(device, 0, patterns, ROUNDS))
            })
            .collect();
        let planted = plant(victim, setup);
        let mut all: Vec<Result<()>> = threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            })
            .collect();
        all.push(planted);
        all
    });
    for (device, result) in results.into_iter().enumerate() {
        result.with_context(|| format!("device {device}"))?;
    }
    // Its other engines go on as well.
    let patterns = [0, 1, 2].map(|n| setup.pattern(victim.index, n));
    cores::traffic(victim, 0, patterns, 1).context("another engine of the device that failed")?;
    Ok(Outcome::Pass)
}

fn plant(device: &Device, setup: Setup) -> Result<()> {
    let mut ring = Ring::new(device, ENGINE, 6, 32, Place::Host)?;
    // Past whatever the driver checks in descriptors.
    ring.by_copy_in = true;
    let marker = Marker::new(device, Place::Host)?;
    let pattern = setup.pattern(device.index, 3);
    let source = Canvas::paint(device, "source", device.host(65_536)?, pattern)?;
    let target = Canvas::paint(device, "target", device.device(65_536)?, pattern)?;
    ring.stage(
        &[(source.address(0) | NOWHERE, 4096)],
        &[(target.address(0), 4096)],
    )?;
    marker.stage(&mut ring)?;
    ring.start(2, 2)?;
    std::thread::sleep(std::time::Duration::from_millis(200));
    ensure!(
        marker.read()? == 0,
        "the marker came although the data before it cannot have"
    );
    target.check().context("an aborted copy wrote something")
}

//! Every device of the guest copying at once, each with data of its own.
use anyhow::{Context as _, Result, anyhow, ensure};

use super::{Outcome, Setup, cores};
use crate::device::Device;

/// One thread per device; a write that lands in another device's memory shows on both.
pub fn run(setup: Setup) -> Result<Outcome> {
    if setup.devices < 2 {
        return Ok(Outcome::NotOffered(
            "one device only: neuron.devices=2 and up".into(),
        ));
    }
    let devices = (0..setup.devices)
        .map(Device::open)
        .collect::<Result<Vec<Device>>>()?;
    ensure!(
        devices
            .windows(2)
            .all(|d| d[0].generation.arch == d[1].generation.arch),
        "the driver serves one architecture at a time"
    );
    let rounds = if devices.len() > 4 { 4 } else { 12 };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter()
            .map(|device| {
                let patterns = [0, 1, 2].map(|n| setup.pattern(device.index, n));
                scope.spawn(move || cores::traffic(device, 0, patterns, rounds))
            })
            .collect();
        threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            })
            .collect()
    });
    for (device, result) in results.into_iter().enumerate() {
        result.with_context(|| format!("device {device}"))?;
    }
    Ok(Outcome::Pass)
}

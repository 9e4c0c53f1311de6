//! One thread per core, each through its own queue of the driver, all at once.
use anyhow::{Context as _, Result, anyhow};

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::Device;
use crate::pattern::Pattern;

const CHUNK: u64 = 2 << 20;
const ROUNDS: u64 = 12;

/// Every core copies up, across and down; each thread compares its own data.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..device.cores)
            .map(|core| {
                let patterns = [0, 1, 2].map(|n| context.pattern(u64::from(core) * 10 + n));
                scope.spawn(move || traffic(device, core, patterns, ROUNDS))
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
    for (core, result) in results.into_iter().enumerate() {
        result.with_context(|| format!("core {core}"))?;
    }
    Ok(Outcome::Pass)
}

/// Copies of one core, all compared: up from user memory, within the device, down again.
pub fn traffic(device: &Device, core: u32, patterns: [Pattern; 3], rounds: u64) -> Result<()> {
    let mut first = Canvas::paint(device, "first", device.device_of(core, CHUNK)?, patterns[0])?;
    let mut second = Canvas::paint(
        device,
        "second",
        device.device_of(core, CHUNK)?,
        patterns[1],
    )?;
    for round in 0..rounds {
        let at = round * 4097;
        first
            .write(at, &patterns[2].bytes(at, 300_001))
            .with_context(|| format!("round {round}"))?;
        second
            .copy_from(&first, at, 700_000 + round, 1_000_003)
            .with_context(|| format!("round {round}"))?;
        second
            .check_part(700_000, 1_048_576)
            .with_context(|| format!("round {round}"))?;
    }
    first.check()?;
    second.check()?;
    first.free()?;
    second.free()
}

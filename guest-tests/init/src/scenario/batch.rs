//! One copy longer than a batch: the driver's ring takes 2031 data descriptors of 64 KiB and a marker
//! (seed §4, `sync_threshold`), then waits, then goes on.
use anyhow::{Context as _, Result};

use super::{Context, Outcome};
use crate::job::stage;
use crate::pattern::compare;

/// Two full batches and a third of one descriptor plus three bytes: 254 MiB.
const SIZE: u64 = 2 * 2032 * 0x1_0000 + 0x1_0003;
/// The guest holds one slice at a time: the memory this needs is the device's, not the guest's.
const SLICE: u64 = 4 << 20;
const GUARD: u64 = 8192;

/// Device to device, a size that ends in an odd piece of a third batch, all of it compared.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let core = device.cores - 1;
    let source = device.device_of(core, SIZE)?;
    let target = device.device_of(core, SIZE + 2 * GUARD)?;
    let pattern = context.pattern(0);
    let guard = context.pattern(1);
    for (at, length) in slices(SIZE)? {
        stage(format_args!("fill at {at:#x}"));
        device.write(source, at, &pattern.bytes(at, length))?;
    }
    for at in [0, GUARD + SIZE] {
        device.write(target, at, &guard.bytes(at, usize::try_from(GUARD)?))?;
    }
    // A value no pattern has eight times in a row, so that what is not copied shows.
    device.memset(target, GUARD, 0x5a, SIZE)?;
    stage("the copy");
    let begin = std::time::Instant::now();
    device.copy((source, 0), (target, GUARD), SIZE)?;
    let took = begin.elapsed();
    for (at, length) in slices(SIZE)? {
        stage(format_args!("compare at {at:#x}"));
        compare(
            &device.read_vec(target, GUARD + at, length)?,
            &pattern.bytes(at, length),
        )
        .with_context(|| format!("slice at {at:#x}"))?;
    }
    for at in [0, GUARD + SIZE] {
        let length = usize::try_from(GUARD)?;
        compare(
            &device.read_vec(target, at, length)?,
            &guard.bytes(at, length),
        )
        .context("beside the target")?;
    }
    device.free(source)?;
    device.free(target)?;
    context.note(format_args!(
        "{SIZE} bytes in one copy, three batches, {} ms",
        took.as_millis()
    ));
    Ok(Outcome::Pass)
}

fn slices(total: u64) -> Result<Vec<(u64, usize)>> {
    let mut slices = Vec::new();
    let mut at = 0;
    while at < total {
        let length = SLICE.min(total - at);
        slices.push((at, usize::try_from(length)?));
        at += length;
    }
    Ok(slices)
}

//! Megabytes (10^6) per second of large copies, second pass, with the data compared.
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{Context, Outcome, zero_copy};
use crate::boot;
use crate::device::Chunk;
use crate::ioctl::{self, User};
use crate::job::stage;
use crate::pattern::compare;

/// What is copied, and held twice in guest RAM.
const SIZE: u64 = 64 << 20;
const SMALL: u64 = 8 << 20;
/// Largest piece of contiguous guest RAM that is asked for.
const HOST: u64 = 1 << 20;

/// `bandwidth_h2d`, `d2h` (user memory, bounced), `d2d`, `host_h2d`, `host_d2h` (host chunk, pure DMA),
/// `zero_copy_h2d`, `zero_copy_d2h`.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let free = boot::memory_mib("MemAvailable").unwrap_or(0);
    let size = if free >= 192 { SIZE } else { SMALL };
    if size == SMALL {
        context.note(format_args!(
            "bandwidth with 8 MiB: {free} MiB of guest RAM are free, 192 needed for 64 MiB"
        ));
    }
    let data = context.pattern(1).bytes(0, usize::try_from(size)?);
    let mut back = vec![0; data.len()];
    let (first, second) = (device.device(size)?, device.device(size)?);
    stage("user memory to device");
    publish(context, "h2d", size, || device.write(first, 0, &data))?;
    stage("device to device");
    publish(context, "d2d", size, || {
        device.copy((first, 0), (second, 0), size)
    })?;
    stage("device to user memory");
    publish(context, "d2h", size, || device.read(second, 0, &mut back))?;
    compare(&back, &data).context("up, across and down")?;

    stage("host chunk and device");
    let host = device.host(HOST)?;
    device.write(host, 0, &data[..usize::try_from(HOST)?])?;
    let chunks =
        |copy: &dyn Fn(u64) -> Result<()>| (0..size / HOST).try_for_each(|n| copy(n * HOST));
    publish(context, "host_h2d", size, || {
        chunks(&|at| device.copy((host, 0), (first, at), HOST))
    })?;
    publish(context, "host_d2h", size, || {
        chunks(&|at| device.copy((first, at), (host, 0), HOST))
    })?;
    let tail = device.read_vec(first, size - HOST, usize::try_from(HOST)?)?;
    compare(&tail, &data[..tail.len()]).context("host chunk to device")?;

    if let Ok(request) = zero_copy::request_of(device)? {
        stage("zero copy");
        let handle = |chunk: Chunk| chunk.handle;
        publish(context, "zero_copy_h2d", size, || {
            Ok(ioctl::zero_copy(
                device.file(),
                request,
                handle(second),
                0,
                User::Write(&data),
                0,
                -1,
            )?)
        })?;
        back.fill(0);
        publish(context, "zero_copy_d2h", size, || {
            Ok(ioctl::zero_copy(
                device.file(),
                request,
                handle(second),
                0,
                User::Read(&mut back),
                0,
                -1,
            )?)
        })?;
        compare(&back, &data).context("zero copy")?;
    }
    device.free(host)?;
    device.free(first)?;
    device.free(second)?;
    Ok(Outcome::Pass)
}

fn publish(
    context: &Context,
    name: &str,
    size: u64,
    mut copy: impl FnMut() -> Result<()>,
) -> Result<()> {
    // The first pass touches memory on both sides for the first time.
    copy()?;
    let begin = Instant::now();
    copy()?;
    let took = begin.elapsed().max(Duration::from_nanos(1));
    #[expect(clippy::cast_precision_loss, reason = "megabytes for people")]
    let rate = size as f64 / took.as_secs_f64() / 1e6;
    context.metric(&format!("bandwidth_{name}"), rate, "MB/s");
    Ok(())
}

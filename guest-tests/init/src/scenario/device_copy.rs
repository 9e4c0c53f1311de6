//! Chunk to chunk (`MEM_COPY`): descriptors between device memory and guest RAM in all four directions.
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;
use rustix::io::Errno;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::{Chunk, Device};
use crate::ioctl::Allocation;
use crate::job::stage;

const CHUNK: u64 = 320 << 10;
const SIZES: &[u64] = &[
    1, 2, 3, 4, 5, 63, 64, 4095, 4096, 4097, 65535, 65536, 65537, 131_071, 131_072, 131_073,
    196_609,
];

/// All directions, sizes and offsets; across channels and cores; both request forms; refusals.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    directions(context)?;
    across(context)?;
    narrow_form(context)?;
    refusals(device)?;
    Ok(Outcome::Pass)
}

fn chunk(device: &Device, host: bool, core: u32) -> Result<Chunk> {
    if host {
        device.host_of(core, CHUNK)
    } else {
        device.device_of(core, CHUNK)
    }
}

fn directions(context: &Context) -> Result<()> {
    let device = &context.device;
    let core = device.cores - 1;
    for (from_host, to_host) in [(false, false), (true, false), (false, true), (true, true)] {
        let side = |host| if host { "host" } else { "device" };
        let direction = format!("{} to {}", side(from_host), side(to_host));
        let source = Canvas::paint(
            device,
            "source",
            chunk(device, from_host, core)?,
            context.pattern(1),
        )?;
        let mut target = Canvas::paint(
            device,
            "target",
            chunk(device, to_host, core)?,
            context.pattern(2),
        )?;
        for (nth, size) in SIZES.iter().copied().enumerate() {
            stage(format_args!("{direction} size {size}"));
            let nth = u64::try_from(nth)?;
            let (at, to) = (nth * 13 + 1, nth * 4099 + 5);
            target
                .copy_from(&source, at, to, size)
                .with_context(|| direction.clone())?;
            target
                .check()
                .with_context(|| format!("{direction}, size {size} from {at} to {to}"))?;
        }
        source
            .check()
            .with_context(|| format!("{direction}: the source changed"))?;
        source.free()?;
        target.free()?;
    }
    Ok(())
}

/// Every channel to the next one, served by every core in turn.
fn across(context: &Context) -> Result<()> {
    let device = &context.device;
    for core in 0..device.cores {
        let channel = core % device.channels();
        let next = (channel + 1) % device.channels();
        stage(format_args!("core {core}: channel {channel} to {next}"));
        let take = |channel| {
            device.allocate(Allocation {
                size: CHUNK,
                core,
                channel,
                ..Allocation::default()
            })
        };
        let source = Canvas::paint(
            device,
            "source",
            take(channel)?,
            context.pattern(10 + u64::from(core)),
        )?;
        let mut target = Canvas::paint(
            device,
            "target",
            take(next)?,
            context.pattern(20 + u64::from(core)),
        )?;
        target.copy_from(&source, 3, 65_533, 131_073)?;
        target
            .check()
            .with_context(|| format!("core {core}: channel {channel} to {next}"))?;
        // And within one chunk.
        target.copy_within(65_533, 1, 60_001)?;
        target.check()?;
        source.free()?;
        target.free()?;
    }
    Ok(())
}

fn narrow_form(context: &Context) -> Result<()> {
    let device = &context.device;
    let source = Canvas::paint(device, "source", device.device(CHUNK)?, context.pattern(30))?;
    let mut target = Canvas::paint(device, "target", device.device(CHUNK)?, context.pattern(31))?;
    device.copy_narrow(abi::MemCopy64 {
        src_mem_handle: source.chunk.handle,
        dst_mem_handle: target.chunk.handle,
        size: 100_003,
        src_offset: 17,
        dst_offset: 4099,
    })?;
    let bytes = source.model(17, 100_003)?.to_vec();
    target.expect(4099, &bytes)?;
    target.check().context("32-bit form")?;
    source.free()?;
    target.free()
}

fn refusals(device: &Device) -> Result<()> {
    let (a, b) = (device.device(4096)?, device.device(4096)?);
    for (from, to, size, why) in [
        (0, 0, 4097, "longer than the chunks"),
        (1, 0, 4096, "past the end of the source"),
        (0, 1, 4096, "past the end of the target"),
    ] {
        let answer = device.try_copy((a, from), (b, to), size);
        ensure!(
            matches!(answer, Err(r) if r.is(Errno::INVAL)),
            "a copy {why} is answered {answer:?}"
        );
    }
    device.free(a)?;
    device.free(b)
}

//! Memory of every kind, and its end.
use anyhow::{Context as _, Result, bail, ensure};
use neuron_protocol::ioctl as abi;
use rustix::io::Errno;

use super::{Context, Outcome};
use crate::device::{Chunk, Device};
use crate::ioctl::{self, Allocation, Refused};

/// Chunks are page multiples (contract §6.3).
const PAGE: u64 = 4096;
/// More than any HBM stack holds.
const TOO_MUCH: u64 = 1 << 40;

/// Sizes, alignments, channels, cores, all request forms, overlap, exhaustion, and use after free.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    sizes(device)?;
    alignments(device)?;
    channels_and_cores(device)?;
    forms(device)?;
    refusals(device)?;
    exhaustion(context)?;
    Ok(Outcome::Pass)
}

fn inspect(device: &Device, chunk: Chunk) -> Result<abi::MemGetExtendedInfo> {
    let info = device.extended_info(chunk.handle)?;
    ensure!(
        (info.host_memory != 0) == chunk.host,
        "host flag {} of a {} chunk",
        info.host_memory,
        place(chunk)
    );
    ensure!(
        info.size >= chunk.size && info.size - chunk.size < PAGE,
        "asked for {} bytes, got {}",
        chunk.size,
        info.size
    );
    let as_host = device.generation.host_address(info.pa).is_some();
    ensure!(
        as_host == chunk.host,
        "{} chunk at {:#x}: the host bit is wrong",
        place(chunk),
        info.pa
    );
    if !chunk.host {
        let stack =
            |base: &u64| info.pa >= *base && info.pa - base < device.generation.hbm.stack_size;
        ensure!(
            device.generation.hbm.soc_bases.iter().any(stack),
            "device chunk at {:#x}, outside every HBM stack",
            info.pa
        );
    }
    ensure!(
        info.pid == u64::from(std::process::id()),
        "chunk of process {}",
        info.pid
    );
    Ok(info)
}

fn place(chunk: Chunk) -> &'static str {
    if chunk.host { "host" } else { "device" }
}

fn sizes(device: &Device) -> Result<()> {
    let mut chunks = Vec::new();
    for size in [
        1,
        4,
        4095,
        PAGE,
        PAGE + 1,
        0xffff,
        0x1_0000,
        0x1_0001,
        512 << 10,
        (512 << 10) + 1,
        1 << 20,
    ] {
        for host in [false, true] {
            let chunk = device
                .allocate(Allocation {
                    size,
                    host,
                    ..Allocation::default()
                })
                .with_context(|| format!("{size} bytes, host {host}"))?;
            chunks.push((inspect(device, chunk)?, chunk));
        }
    }
    chunks.sort_by_key(|(info, _)| info.pa);
    for pair in chunks.windows(2) {
        ensure!(
            pair[0].0.pa + pair[0].0.size <= pair[1].0.pa,
            "chunks overlap: {:#x} + {:#x} and {:#x}",
            pair[0].0.pa,
            pair[0].0.size,
            pair[1].0.pa
        );
    }
    chunks
        .into_iter()
        .try_for_each(|(_, chunk)| device.free(chunk))
}

fn alignments(device: &Device) -> Result<()> {
    for align in [PAGE, 0x1_0000, 1 << 20, 64 << 20] {
        let chunk = device
            .allocate(Allocation {
                size: 3 * PAGE,
                align,
                ..Allocation::default()
            })
            .with_context(|| format!("alignment {align:#x}"))?;
        ensure!(
            chunk.address % align == 0,
            "asked for alignment {align:#x}, got {:#x}",
            chunk.address
        );
        device.free(chunk)?;
    }
    Ok(())
}

fn channels_and_cores(device: &Device) -> Result<()> {
    for core in 0..device.cores {
        for channel in 0..device.channels() {
            let chunk = device
                .allocate(Allocation {
                    size: 2 << 20,
                    core,
                    channel,
                    ..Allocation::default()
                })
                .with_context(|| format!("core {core} channel {channel}"))?;
            let base = device.generation.hbm.soc_bases[usize::try_from(channel)?];
            ensure!(
                chunk.address >= base && chunk.address - base < device.generation.hbm.stack_size,
                "channel {channel} starts at {base:#x}, its chunk lies at {:#x}",
                chunk.address
            );
            device.free(chunk)?;
        }
        device.free(device.host_of(core, PAGE)?)?;
    }
    Ok(())
}

/// Every form of the request that this driver knows does the same.
fn forms(device: &Device) -> Result<()> {
    for request in [
        abi::MEM_ALLOC,
        abi::MEM_ALLOC_V2,
        abi::MEM_ALLOC_V2MT,
        abi::MEM_ALLOC_V2MT64,
    ] {
        if !device.offers(request) {
            continue;
        }
        for host in [false, true] {
            let what = Allocation {
                size: PAGE,
                host,
                ..Allocation::default()
            };
            let chunk = device
                .allocate_by(request, what)
                .with_context(|| ioctl::name(request))?;
            inspect(device, chunk)?;
            device.free(chunk)?;
        }
    }
    Ok(())
}

fn refused(device: &Device, what: Allocation, why: &str) -> Result<Refused> {
    match device.allocate(what) {
        Ok(chunk) => bail!("{why}: not refused, got {:#x}", chunk.address),
        Err(error) => error.downcast::<Refused>().with_context(|| why.to_owned()),
    }
}

fn refusals(device: &Device) -> Result<()> {
    let good = Allocation {
        size: PAGE,
        ..Allocation::default()
    };
    let bad_channel = refused(
        device,
        Allocation {
            channel: device.channels(),
            ..good
        },
        "channel past the last",
    )?;
    ensure!(
        bad_channel.is(Errno::INVAL),
        "channel past the last: {bad_channel}"
    );
    let too_much = refused(
        device,
        Allocation {
            size: TOO_MUCH,
            ..good
        },
        "1 TiB of device memory",
    )?;
    ensure!(
        too_much.is(Errno::NOMEM),
        "1 TiB of device memory: {too_much}"
    );
    let chunk = device.allocate(good)?;
    device.free(chunk)?;
    ensure!(device.free(chunk).is_err(), "a chunk can be freed twice");
    ensure!(
        device.read_vec(chunk, 0, 4).is_err(),
        "a freed chunk can be read"
    );
    let chunk = device.allocate(good)?;
    ensure!(
        device.read_vec(chunk, PAGE - 3, 4).is_err(),
        "reading past the end of a chunk is not refused"
    );
    // An offset near 2^64 is not tried: the real driver up to 2.25 adds before it compares (contract §12.3).
    device.free(chunk)
}

/// Takes gigabytes until a channel is empty: the driver says so, and gives all of it again.
fn exhaustion(context: &Context) -> Result<()> {
    const STEP: u64 = 1 << 30;
    let device = &context.device;
    let channel = device.channels() - 1;
    let what = Allocation {
        size: STEP,
        channel,
        ..Allocation::default()
    };
    let take_all = || -> Result<Vec<Chunk>> {
        let mut chunks = Vec::new();
        loop {
            match device.allocate(what) {
                Ok(chunk) => chunks.push(chunk),
                Err(error) => {
                    let refused = error.downcast::<Refused>()?;
                    ensure!(refused.is(Errno::NOMEM), "a full channel answers {refused}");
                    return Ok(chunks);
                }
            }
            ensure!(chunks.len() <= 256, "a channel never fills up");
        }
    };
    let first = take_all()?;
    let count = first.len();
    first.into_iter().try_for_each(|chunk| device.free(chunk))?;
    let again = take_all()?;
    ensure!(
        again.len() == count,
        "a channel held {count} GiB, after freeing {} GiB",
        again.len()
    );
    again.into_iter().try_for_each(|chunk| device.free(chunk))?;
    context.note(format_args!(
        "channel {channel} holds {count} chunks of 1 GiB"
    ));
    Ok(())
}

//! Asynchronous copies (`MEM_COPY_ASYNC`): the next one is triggered before the one before is waited
//! for, so that two doorbells are outstanding at the device (seed §6, contract §5.5).
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;
use rustix::io::Errno;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::Device;
use crate::job::stage;

const CHUNK: u64 = 1 << 20;
const PIECE: u64 = 100_003;

/// Chains of copies with both contexts in flight, waits in either order, and refusals.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::MEM_COPY_ASYNC) && !device.offers(abi::MEM_COPY_ASYNC64) {
        return Ok(Outcome::NotOffered(
            "the driver has no MEM_COPY_ASYNC".into(),
        ));
    }
    for core in [0, device.cores - 1] {
        chain(context, core)?;
        in_order(context, core)?;
    }
    refusals(device)?;
    Ok(Outcome::Pass)
}

/// Nine pieces, each started while the one before may still run.
fn chain(context: &Context, core: u32) -> Result<()> {
    let device = &context.device;
    for to_device in [true, false] {
        stage(format_args!("chain, core {core}, to device {to_device}"));
        let (host, hbm) = (device.host_of(core, CHUNK)?, device.device_of(core, CHUNK)?);
        let (from, to) = if to_device { (host, hbm) } else { (hbm, host) };
        let source = Canvas::paint(device, "source", from, context.pattern(1))?;
        let mut target = Canvas::paint(device, "target", to, context.pattern(2))?;
        let mut previous = abi::wait_handle::NONE;
        let mut handles = Vec::new();
        for nth in 0..9 {
            // Reversed order of pieces, so that place and time cannot be mixed up.
            let (at, into) = (nth * PIECE, (8 - nth) * PIECE + 7);
            previous = device.copy_async((from, at), (to, into), PIECE, previous)?;
            handles.push(previous);
            target.expect(into, source.model(at, PIECE)?)?;
        }
        let valid = |h: &u32| [abi::wait_handle::ASYNC1, abi::wait_handle::ASYNC2].contains(h);
        ensure!(handles.iter().all(valid), "wait handles {handles:?}");
        ensure!(
            handles.windows(2).all(|w| w[0] != w[1]),
            "the same context twice in a row: {handles:?}"
        );
        device.copy_wait(from, to, previous)?;
        target
            .check()
            .with_context(|| format!("core {core}, to device {to_device}"))?;
        source.free()?;
        target.free()?;
    }
    Ok(())
}

/// The second copy reads what the first one writes: right only if the queue keeps their order.
fn in_order(context: &Context, core: u32) -> Result<()> {
    let device = &context.device;
    stage(format_args!("order, core {core}"));
    let source = Canvas::paint(
        device,
        "source",
        device.host_of(core, CHUNK)?,
        context.pattern(3),
    )?;
    let mut middle = Canvas::paint(
        device,
        "middle",
        device.device_of(core, CHUNK)?,
        context.pattern(4),
    )?;
    let mut target = Canvas::paint(
        device,
        "target",
        device.host_of(core, CHUNK)?,
        context.pattern(5),
    )?;
    for round in 0..8 {
        let at = round * 1024;
        let size = 800_000 + round;
        let none = abi::wait_handle::NONE;
        let first = device.copy_async((source.chunk, at), (middle.chunk, 3), size, none)?;
        let second = device.copy_async((middle.chunk, 3), (target.chunk, 1), size, first)?;
        device.copy_wait(middle.chunk, target.chunk, second)?;
        middle.expect(3, source.model(at, size)?)?;
        target.expect(1, source.model(at, size)?)?;
        target.check().with_context(|| format!("round {round}"))?;
    }
    middle.check()?;
    source.free()?;
    middle.free()?;
    target.free()
}

fn refusals(device: &Device) -> Result<()> {
    let (a, b) = (device.device(4096)?, device.device(4096)?);
    for handle in [0, 3, 77] {
        let answer = device.copy_wait(a, b, handle);
        ensure!(
            matches!(answer, Err(r) if r.is(Errno::INVAL)),
            "waiting for handle {handle} is answered {answer:?}"
        );
    }
    let answer = device.copy_async((a, 1), (b, 0), 4096, abi::wait_handle::NONE);
    ensure!(
        matches!(answer, Err(r) if r.is(Errno::INVAL)),
        "a copy past the end is answered {answer:?}"
    );
    device.free(a)?;
    device.free(b)
}

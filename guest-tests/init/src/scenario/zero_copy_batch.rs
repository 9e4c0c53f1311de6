//! Zero copy in batches (`MEM_BUF_ZEROCOPY64_BATCHES`), and its asynchronous form, whose completions arrive in a ring
//! that this program maps (`GET_ASYNC_H2T_DMA_COMPL_QUEUES`, since 2.27).
use anyhow::Result;
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome, zero_copy};
use crate::canvas::Canvas;
use crate::completions::{self, Completions};
use crate::ioctl;
use crate::job::stage;

/// More requests in all than the ring has entries, so that it wraps.
const REQUESTS: u64 = 1_100;
/// Requests in flight.
const DEPTH: u64 = 16;

/// Several odd pieces now; then more requests than the ring has entries, each completion with its number in order.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::MEM_BUF_ZEROCOPY64_BATCHES) {
        return Ok(Outcome::NotOffered(
            "the driver has no MEM_BUF_ZEROCOPY64_BATCHES".into(),
        ));
    }
    if let Err(reason) = zero_copy::request_of(device)? {
        return Ok(Outcome::NotOffered(reason));
    }
    let mut canvas = Canvas::paint(
        device,
        "device",
        device.device(1 << 20)?,
        context.pattern(0),
    )?;
    let data = context.pattern(1).bytes(0, 900_000);
    let pieces: &[(u64, &[u8])] = &[
        (5, &data[1..70_000]),
        (100_001, &data[80_000..80_001]),
        (200_000, &data[90_000..620_003]),
    ];
    stage("batch");
    // SAFETY: number 0 is done on return.
    unsafe { ioctl::zero_copy_batch(device.file(), canvas.chunk.handle, &[pieces], 0, 0, -1)? };
    for (offset, bytes) in pieces {
        canvas.expect(*offset, bytes)?;
    }
    canvas.check()?;

    if !completions::known(device) {
        canvas.free()?;
        context.note("batches done; no completion ring of a known layout");
        return Ok(Outcome::Pass);
    }
    in_order(context, &mut canvas, &data)?;
    canvas.free()?;
    Ok(Outcome::Pass)
}

/// On the core's own queue, read as they come.
fn in_order(context: &Context, canvas: &mut Canvas<'_>, data: &[u8]) -> Result<()> {
    let device = &context.device;
    stage("asynchronous");
    let mut ring = Completions::map(device, 0)?;
    let span = |n: u64| {
        (
            n % 100 * 8_000,
            &data[usize::try_from(n).unwrap_or(0) * 700..][..7_999],
        )
    };
    let mut sent = 0;
    for done in 0..REQUESTS {
        while sent < REQUESTS && sent < done + DEPTH {
            // SAFETY: `data` stays until every completion came; on an early return the process ends with its file.
            unsafe {
                ioctl::zero_copy_batch(
                    device.file(),
                    canvas.chunk.handle,
                    &[&[span(sent)]],
                    sent + 1,
                    !(sent + 1),
                    -1,
                )?;
            }
            sent += 1;
        }
        ring.expect(done + 1)?;
    }
    for n in REQUESTS - 100..REQUESTS {
        let (offset, bytes) = span(n);
        canvas.expect(offset, bytes)?;
    }
    canvas.check()?;
    context.note(format_args!("{REQUESTS} completions in order"));
    Ok(())
}

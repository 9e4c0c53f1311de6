//! Fills: 64 KiB from the host, the rest copied on from there by the device (contract §8.6).
use anyhow::{Context as _, Result, ensure};

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::job::stage;

const CHUNK: u64 = 400 << 10;

/// Sizes around the 64 KiB seam, odd offsets, several values, everything around compared.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let mut canvas = Canvas::paint(device, "chunk", device.device(CHUNK)?, context.pattern(0))?;
    for (nth, size) in [
        1, 3, 4, 4096, 65535, 65536, 65537, 131_072, 131_073, 262_145,
    ]
    .into_iter()
    .enumerate()
    {
        stage(format_args!("size {size}"));
        let nth = u64::try_from(nth)?;
        let value = u8::try_from(nth * 37 % 251)?;
        // Painted anew, so that a fill of the right value at the wrong place shows.
        let bytes = context.pattern(1 + nth).bytes(0, usize::try_from(CHUNK)?);
        canvas.write(0, &bytes)?;
        canvas.memset(nth * 4097 + 1, value, size)?;
        canvas
            .check()
            .with_context(|| format!("{size} bytes of {value:#04x}"))?;
    }
    // Only the low byte counts: the driver fills bytes.
    let bytes = context.pattern(100).bytes(0, usize::try_from(CHUNK)?);
    canvas.write(0, &bytes)?;
    device.memset(canvas.chunk, 7, 0x1234_5678, 1001)?;
    canvas.expect(7, &[0x78; 1001])?;
    canvas.check().context("value 0x12345678")?;
    ensure!(
        device.memset(canvas.chunk, CHUNK - 1, 0, 2).is_err(),
        "a fill past the end is not refused"
    );
    canvas.check()?;
    canvas.free()?;
    Ok(Outcome::Pass)
}

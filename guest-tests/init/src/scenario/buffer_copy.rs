//! User memory to chunks and back (`MEM_BUF_COPY`): through a bounce chunk, 64 KiB a batch.
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::ioctl::User;
use crate::job::stage;
use crate::pattern::compare;

/// Around every power of two that a length field, a descriptor or a page could trip over.
const SIZES: &[u64] = &[
    1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 4095, 4096, 4097, 8191, 32767,
    32768, 32769, 65533, 65534, 65535, 65536, 65537, 65538, 131_071, 131_072, 131_073, 196_607,
    196_608, 196_609, 262_143, 262_144, 262_145,
];
const OFFSETS: &[u64] = &[0, 1, 3, 7, 63, 64, 4093, 4096, 65535, 65536];
const CHUNK: u64 = 512 << 10;

/// Sizes and offsets in both directions, on the first and the last core, and in both request forms.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    for (purpose, core) in [(0, 0), (1, device.cores - 1)] {
        let name = if core == 0 {
            "first core's chunk"
        } else {
            "last core's chunk"
        };
        let mut canvas = Canvas::paint(
            device,
            name,
            device.device_of(core, CHUNK)?,
            context.pattern(purpose),
        )?;
        canvas.check()?;
        for (nth, size) in SIZES.iter().copied().enumerate() {
            stage(format_args!("core {core} size {size}"));
            let offset = OFFSETS[nth % OFFSETS.len()];
            let bytes = context
                .pattern(100 + purpose)
                .bytes(offset + size * 31, usize::try_from(size)?);
            canvas
                .write(offset, &bytes)
                .with_context(|| format!("size {size} offset {offset}"))?;
            canvas
                .check_part(offset, size)
                .with_context(|| format!("size {size} offset {offset}"))?;
            // Read in other pieces too: a fault that undoes itself on the way back shows only so.
            canvas
                .check()
                .with_context(|| format!("size {size} offset {offset}"))?;
        }
        for offset in OFFSETS.iter().copied() {
            stage(format_args!("core {core} offset {offset}"));
            let bytes = context.pattern(200 + purpose).bytes(offset, 70_001);
            canvas
                .write(offset, &bytes)
                .with_context(|| format!("offset {offset}"))?;
            canvas
                .check_part(offset, 70_001)
                .with_context(|| format!("offset {offset}"))?;
        }
        // Everything that was never meant to change is compared here.
        canvas.check()?;
        // Up to the last byte.
        let last = context.pattern(300).bytes(0, 65_537);
        canvas.write(CHUNK - 65_537, &last)?;
        canvas.check()?;
        canvas.free()?;
    }
    both_forms(context)?;
    host_chunk(context)?;
    Ok(Outcome::Pass)
}

/// The 32-bit and the 64-bit request do the same.
fn both_forms(context: &Context) -> Result<()> {
    let device = &context.device;
    let chunk = device.device(CHUNK)?;
    for wide in [false, true] {
        if wide && !device.offers(abi::MEM_BUF_COPY64) {
            continue;
        }
        let bytes = context.pattern(400 + u64::from(wide)).bytes(0, 99_999);
        let mut back = vec![0; bytes.len()];
        device.buffer_copy(wide, chunk, 12_345, User::Write(&bytes))?;
        device.buffer_copy(wide, chunk, 12_345, User::Read(&mut back))?;
        compare(&back, &bytes).with_context(|| format!("64-bit form: {wide}"))?;
    }
    device.free(chunk)
}

/// The same request on guest RAM is a plain copy by the kernel.
fn host_chunk(context: &Context) -> Result<()> {
    let mut canvas = Canvas::paint(
        &context.device,
        "host chunk",
        context.device.host(128 << 10)?,
        context.pattern(500),
    )?;
    ensure!(canvas.chunk.host, "not a host chunk");
    canvas.write(4097, &context.pattern(501).bytes(0, 65_537))?;
    canvas.check()?;
    canvas.free()
}

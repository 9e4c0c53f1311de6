//! A chunk and, beside it, what every one of its bytes should be.
//!
//! Each operation is done to the device and to the model; [`Canvas::check`] reads the whole chunk back.
//! So a copy is checked with everything around it: a byte too many, a neighbour overwritten or a
//! destination left alone all show.
use anyhow::{Context, Result, ensure};

use crate::device::{Chunk, Device};
use crate::pattern::{Pattern, compare};

/// See the module documentation.
pub struct Canvas<'d> {
    device: &'d Device,
    /// The memory.
    pub chunk: Chunk,
    name: &'static str,
    model: Vec<u8>,
}

impl<'d> Canvas<'d> {
    /// Paints a chunk with a pattern.
    pub fn paint(
        device: &'d Device,
        name: &'static str,
        chunk: Chunk,
        pattern: Pattern,
    ) -> Result<Self> {
        let model = pattern.bytes(0, usize::try_from(chunk.size)?);
        device
            .write(chunk, 0, &model)
            .with_context(|| format!("paint {name}"))?;
        Ok(Self {
            device,
            chunk,
            name,
            model,
        })
    }

    /// What `length` bytes at `offset` should be.
    pub fn model(&self, offset: u64, length: u64) -> Result<&[u8]> {
        self.model
            .get(range(offset, length)?)
            .context("outside the chunk")
    }

    /// Says that these bytes are there now, by whatever way.
    pub fn expect(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let span = range(offset, u64::try_from(bytes.len())?)?;
        self.model
            .get_mut(span)
            .context("outside the chunk")?
            .copy_from_slice(bytes);
        Ok(())
    }

    /// Device-side address of a byte.
    pub const fn address(&self, offset: u64) -> u64 {
        self.chunk.address + offset
    }

    /// Writes from user memory.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.device.write(self.chunk, offset, bytes)?;
        self.expect(offset, bytes)
    }

    /// Fills with one byte.
    pub fn memset(&mut self, offset: u64, value: u8, size: u64) -> Result<()> {
        self.device
            .memset(self.chunk, offset, u32::from(value), size)?;
        self.expect(offset, &vec![value; usize::try_from(size)?])
    }

    /// Copies from another chunk by the driver's own queue.
    pub fn copy_from(
        &mut self,
        from: &Canvas<'_>,
        source: u64,
        target: u64,
        size: u64,
    ) -> Result<()> {
        self.device
            .copy((from.chunk, source), (self.chunk, target), size)?;
        self.expect(target, from.model(source, size)?)
    }

    /// Copies inside this chunk by the driver's own queue; the two ranges must not overlap.
    pub fn copy_within(&mut self, source: u64, target: u64, size: u64) -> Result<()> {
        ensure!(
            source + size <= target || target + size <= source,
            "overlapping copy"
        );
        self.device
            .copy((self.chunk, source), (self.chunk, target), size)?;
        let bytes = self.model(source, size)?.to_vec();
        self.expect(target, &bytes)
    }

    /// Reads everything back and compares, byte by byte.
    pub fn check(&self) -> Result<()> {
        let found = self.device.read_vec(self.chunk, 0, self.model.len())?;
        compare(&found, &self.model).with_context(|| self.name.to_owned())
    }

    /// Reads a part back into user memory that has guard bytes on both sides, at an odd address.
    pub fn check_part(&self, offset: u64, length: u64) -> Result<()> {
        const GUARD: usize = 67;
        let wanted = self.model(offset, length)?;
        let mut user = vec![0xee_u8; wanted.len() + 2 * GUARD];
        self.device
            .read(self.chunk, offset, &mut user[GUARD..GUARD + wanted.len()])?;
        let (before, rest) = user.split_at(GUARD);
        let (middle, after) = rest.split_at(wanted.len());
        compare(middle, wanted).with_context(|| format!("{} at {offset:#x}", self.name))?;
        ensure!(
            before.iter().chain(after).all(|b| *b == 0xee),
            "{}: reading {length} bytes at {offset:#x} wrote outside the buffer",
            self.name
        );
        Ok(())
    }

    /// Frees the memory.
    pub fn free(self) -> Result<()> {
        self.device.free(self.chunk)
    }
}

fn range(offset: u64, length: u64) -> Result<std::ops::Range<usize>> {
    let start = usize::try_from(offset)?;
    let end = start
        .checked_add(usize::try_from(length)?)
        .context("range")?;
    Ok(start..end)
}

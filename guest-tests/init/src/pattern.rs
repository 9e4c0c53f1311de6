//! Data whose every byte tells where it belongs.
//!
//! A pattern is a seed; byte `i` of the pattern depends on `i / 8` and the seed through a 64-bit mix
//! (the finaliser of `SplitMix64`), so that a copy that is shifted, swapped, repeated or cut short never
//! compares equal. A mismatch says where the bytes that were found would have belonged.
use std::fmt;

/// A seeded sequence of bytes without end; cheap to copy, regenerated rather than stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    /// The pattern of `seed` for a numbered `purpose` (so that two buffers of one scenario differ).
    pub const fn new(seed: u64, purpose: u64) -> Self {
        Self {
            seed: mix(seed ^ mix(purpose.wrapping_add(1))),
        }
    }

    const fn word(self, index: u64) -> u64 {
        mix(self
            .seed
            .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Writes bytes `start ..` of the pattern.
    pub fn fill(self, buffer: &mut [u8], start: u64) {
        let mut index = start / 8;
        let skip = usize::try_from(start % 8).unwrap_or(0);
        let mut rest = buffer;
        if skip != 0 {
            let (head, tail) = rest.split_at_mut((8 - skip).min(rest.len()));
            head.copy_from_slice(&self.word(index).to_le_bytes()[skip..skip + head.len()]);
            index += 1;
            rest = tail;
        }
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.word(index).to_le_bytes());
            index += 1;
        }
        let tail = words.into_remainder();
        tail.copy_from_slice(&self.word(index).to_le_bytes()[..tail.len()]);
    }

    /// Bytes `start .. start + length` of the pattern.
    pub fn bytes(self, start: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        self.fill(&mut buffer, start);
        buffer
    }
}

/// Compares what was found with what should be there, byte by byte.
///
/// # Errors
/// The first difference, and what is known about it.
pub fn compare(found: &[u8], expected: &[u8]) -> Result<(), Mismatch> {
    if found == expected {
        return Ok(());
    }
    let differs = |(f, e): (&u8, &u8)| f != e;
    let common = found.len().min(expected.len());
    let first = found
        .iter()
        .zip(expected)
        .position(differs)
        .unwrap_or(common);
    let differing = found.iter().zip(expected).filter(|(f, e)| f != e).count()
        + found.len().max(expected.len())
        - common;
    let shown = |bytes: &[u8]| bytes[first.min(bytes.len())..(first + 8).min(bytes.len())].to_vec();
    let window = shown(found);
    let origin = match window.first() {
        Some(byte) if window.len() == 8 && window.iter().all(|b| b == byte) => {
            Origin::Constant(*byte)
        }
        // Patterns repeat nowhere, so a second home of these bytes is where they belong.
        Some(_) if window.len() == 8 => expected
            .windows(8)
            .position(|w| w == window)
            .map_or(Origin::Unknown, Origin::Offset),
        _ => Origin::Unknown,
    };
    Err(Mismatch {
        at: first,
        differing,
        of: expected.len(),
        expected: shown(expected),
        found: window,
        origin,
    })
}

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where the first wrong bytes seem to come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// One byte value throughout: never written, or cleared.
    Constant(u8),
    /// Right bytes at the wrong place: they belong at this offset of the buffer.
    Offset(usize),
    /// Neither.
    Unknown,
}

/// The first difference between data and pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the buffers compared.
    pub at: usize,
    /// How many bytes differ in the buffer compared.
    pub differing: usize,
    /// Length of the buffer compared.
    pub of: usize,
    /// Up to eight bytes that should stand there.
    pub expected: Vec<u8>,
    /// What stands there.
    pub found: Vec<u8>,
    /// Where that seems to come from.
    pub origin: Origin,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at {:#x}: found {}, expected {}",
            self.at,
            Hex(&self.found),
            Hex(&self.expected)
        )?;
        match self.origin {
            Origin::Constant(0) => f.write_str(" (zeroes: never written?)")?,
            Origin::Constant(b) => write!(f, " (all {b:#04x}: never written?)")?,
            Origin::Offset(o) => write!(f, " (these bytes belong at {o:#x})")?,
            Origin::Unknown => {}
        }
        write!(f, "; {} of {} bytes differ", self.differing, self.of)
    }
}

impl std::error::Error for Mismatch {}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_window_is_the_same_pattern() {
        let p = Pattern::new(1, 0);
        let whole = p.bytes(0, 100);
        for start in 0..20 {
            let at = usize::try_from(start).unwrap();
            assert_eq!(p.bytes(start, 33), whole[at..at + 33]);
            compare(&p.bytes(start, 33), &whole[at..at + 33]).unwrap();
        }
    }

    #[test]
    fn a_shift_is_found_and_named() {
        let p = Pattern::new(1, 0);
        let mut moved = p.bytes(0, 4096);
        moved[1024..2048].copy_from_slice(&p.bytes(2048, 1024));
        let found = compare(&moved, &p.bytes(0, 4096)).unwrap_err();
        assert_eq!((found.at, found.origin), (1024, Origin::Offset(2048)));
    }

    #[test]
    fn unwritten_memory_is_named() {
        let p = Pattern::new(1, 0);
        let mut short = p.bytes(0, 64);
        short[40..].fill(0);
        let found = compare(&short, &p.bytes(0, 64)).unwrap_err();
        assert_eq!(
            (found.at, found.origin, found.differing),
            (40, Origin::Constant(0), 24)
        );
    }

    #[test]
    fn one_wrong_bit_is_found() {
        let p = Pattern::new(9, 3);
        let mut data = p.bytes(7, 513);
        data[512] ^= 0x80;
        assert_eq!(compare(&data, &p.bytes(7, 513)).unwrap_err().at, 512);
    }

    #[test]
    fn seeds_and_purposes_differ() {
        assert_ne!(
            Pattern::new(1, 0).bytes(0, 8),
            Pattern::new(1, 1).bytes(0, 8)
        );
        assert_ne!(
            Pattern::new(1, 0).bytes(0, 8),
            Pattern::new(2, 0).bytes(0, 8)
        );
    }
}

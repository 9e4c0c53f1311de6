//! Bytes in a recording, whole or only what is needed to compare them.
use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{Decoder, Malformed, put_bytes, put_number};

/// Bytes up to here are always kept: descriptors, markers, semaphores.
pub const SHORT: usize = 64;
/// Of bytes that are only compared, the first so many are kept for people.
const HEAD: usize = 16;

/// Bytes of an entry, whole or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// All of them.
    Bytes(Vec<u8>),
    /// One byte, over and over.
    Fill {
        /// The byte.
        byte: u8,
        /// How often.
        len: usize,
    },
    /// Left out on request: a replay makes up bytes of this length that follow from the hash.
    Absent {
        /// How many.
        len: usize,
        /// xxh3 of them.
        hash: u64,
    },
    /// The first bytes of what the device read last.
    AsRead {
        /// How many.
        len: usize,
    },
    /// Only to be compared, for a replay has them as well.
    Digest {
        /// How many.
        len: usize,
        /// xxh3 of them.
        hash: u64,
        /// The first few.
        head: Vec<u8>,
    },
}

impl Content {
    /// Keeps them all.
    pub fn whole(bytes: &[u8]) -> Self {
        let fill = if bytes.len() > 8 { fill(bytes) } else { None };
        fill.unwrap_or_else(|| Self::Bytes(bytes.to_vec()))
    }

    /// Leaves them out, unless they are short.
    pub fn absent(bytes: &[u8]) -> Self {
        if bytes.len() <= SHORT {
            return Self::whole(bytes);
        }
        fill(bytes).unwrap_or_else(|| Self::Absent {
            len: bytes.len(),
            hash: xxh3_64(bytes),
        })
    }

    /// Keeps what is needed to compare them.
    pub fn digest(bytes: &[u8]) -> Self {
        if bytes.len() <= SHORT {
            return Self::Bytes(bytes.to_vec());
        }
        Self::Digest {
            len: bytes.len(),
            hash: xxh3_64(bytes),
            head: bytes[..HEAD].to_vec(),
        }
    }

    /// How many bytes it stands for.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Fill { len, .. }
            | Self::Absent { len, .. }
            | Self::AsRead { len }
            | Self::Digest { len, .. } => *len,
        }
    }

    /// It stands for none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the bytes it stands for, `len` of them, as a replay serves them; `None` if it cannot say.
    pub fn fill_in(&self, out: &mut [u8]) -> Option<()> {
        match self {
            Self::Bytes(bytes) if bytes.len() == out.len() => out.copy_from_slice(bytes),
            Self::Fill { byte, len } if *len == out.len() => out.fill(*byte),
            Self::Absent { len, hash } if *len == out.len() => made_up(*hash, out),
            _ => return None,
        }
        Some(())
    }

    /// Whether `bytes` are the ones; `read` is what the device read last.
    pub fn is(&self, bytes: &[u8], read: &[u8]) -> bool {
        match self {
            Self::Bytes(own) => own == bytes,
            Self::Fill { byte, len } => {
                *len == bytes.len() && (bytes.is_empty() || one_byte(bytes) == Some(*byte))
            }
            Self::AsRead { len } => *len == bytes.len() && read.get(..*len) == Some(bytes),
            Self::Digest { len, hash, .. } => *len == bytes.len() && xxh3_64(bytes) == *hash,
            // Nothing compares with what was left out.
            Self::Absent { len, .. } => *len == bytes.len(),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => {
                out.push(0);
                put_bytes(out, bytes);
            }
            Self::Fill { byte, len } => {
                out.extend([1, *byte]);
                put_number(out, *len as u64);
            }
            Self::Absent { len, hash } => {
                out.push(2);
                put_number(out, *len as u64);
                out.extend(hash.to_le_bytes());
            }
            Self::AsRead { len } => {
                out.push(3);
                put_number(out, *len as u64);
            }
            Self::Digest { len, hash, head } => {
                out.push(4);
                put_number(out, *len as u64);
                out.extend(hash.to_le_bytes());
                put_bytes(out, head);
            }
        }
    }

    pub(super) fn decode(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(match from.byte()? {
            0 => Self::Bytes(from.bytes()?.to_vec()),
            1 => Self::Fill {
                byte: from.byte()?,
                len: from.length()?,
            },
            2 => Self::Absent {
                len: from.length()?,
                hash: from.hash()?,
            },
            3 => Self::AsRead {
                len: from.length()?,
            },
            4 => Self::Digest {
                len: from.length()?,
                hash: from.hash()?,
                head: from.bytes()?.to_vec(),
            },
            _ => return Err(from.error("content is of kind 0 to 4")),
        })
    }
}

/// The byte that all of them are.
fn one_byte(bytes: &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    // Each is like the one before it: a comparison of memory, which is faster than a search for another byte.
    (rest == &bytes[..rest.len()]).then_some(*first)
}

fn fill(bytes: &[u8]) -> Option<Content> {
    let len = bytes.len();
    one_byte(bytes).map(|byte| Content::Fill { byte, len })
}

/// Bytes that follow from a hash: equal contents stay equal, different ones differ.
fn made_up(hash: u64, out: &mut [u8]) {
    let mut state = hash | 1;
    for chunk in out.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_it_stands_for() {
        let bytes: Vec<u8> = (0..200).collect();
        let zeros = [0; 4096];
        assert!(matches!(
            Content::whole(&zeros),
            Content::Fill { byte: 0, len: 4096 }
        ));
        assert!(matches!(Content::absent(&zeros), Content::Fill { .. }));
        assert!(matches!(
            Content::absent(&bytes),
            Content::Absent { len: 200, .. }
        ));
        assert!(matches!(Content::absent(&bytes[..64]), Content::Bytes(_)));
        for content in [
            Content::whole(&bytes),
            Content::digest(&bytes),
            Content::AsRead { len: 200 },
        ] {
            assert!(content.is(&bytes, &bytes));
            let mut wrong = bytes.clone();
            wrong[199] ^= 1;
            assert!(!content.is(&wrong, &bytes), "{content:?}");
            assert!(!content.is(&bytes[..199], &bytes));
        }
        let made = |bytes: &[u8]| {
            let mut out = vec![0; bytes.len()];
            Content::absent(bytes).fill_in(&mut out).unwrap();
            out
        };
        assert_eq!(made(&bytes), made(&bytes));
        let other: Vec<u8> = (1..=200).collect();
        assert_ne!(made(&bytes), made(&other));
        assert!(Content::AsRead { len: 1 }.fill_in(&mut [0]).is_none());
        assert!(Content::whole(&bytes).fill_in(&mut [0; 3]).is_none());
    }
}

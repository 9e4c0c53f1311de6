//! Moving bytes, with the one ordering promise of the cycle: what came before a marker is visible before it.
//!
//! The only place that touches them, so that a client that takes its memory away is noticed here.
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, VolatileSlice};

use super::sigbus::take_hit;
use super::{Access, Unmapped};

/// Memory that was mapped and no longer has a file behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", Unmapped::Truncated)]
pub struct Lost {
    /// Whether the bytes could not be read, or not be written.
    pub access: Access,
}

/// Copies `source` to `destination`, which must be as long. Gives the little-endian word if it copied just one.
///
/// An aligned word is stored as a whole and with release: a CPU that sees the completion marker (seed §2) sees every
/// byte written before it, and never half of the marker.
///
/// # Errors
/// Part of either is lost: the destination's content is undefined.
pub fn copy(
    source: &VolatileSlice<'_>,
    destination: &VolatileSlice<'_>,
) -> Result<Option<u32>, Lost> {
    if source.len() == size_of::<u32>() {
        let mut word = [0; size_of::<u32>()];
        read_bytes(source, &mut word)?;
        store_word(word, destination);
        check(|_| Access::Write)?;
        Ok(Some(u32::from_le_bytes(word)))
    } else {
        source.copy_to_volatile_slice(*destination);
        let start = destination.ptr_guard().as_ptr().addr();
        let written = start..start + destination.len();
        check(|address| {
            if written.contains(&address) {
                Access::Write
            } else {
                Access::Read
            }
        })?;
        Ok(None)
    }
}

/// Writes `bytes` to `destination`, which must be as long; ordered like [`copy`].
///
/// # Errors
/// Part of it is lost.
pub fn write_bytes(bytes: &[u8], destination: &VolatileSlice<'_>) -> Result<(), Lost> {
    match bytes.try_into() {
        Ok(word) => store_word(word, destination),
        Err(_) => destination.copy_from(bytes),
    }
    check(|_| Access::Write)
}

/// Fills `bytes` from `source`, which must be as long.
///
/// # Errors
/// Part of it is lost: the content of `bytes` is undefined.
pub fn read_bytes(source: &VolatileSlice<'_>, bytes: &mut [u8]) -> Result<(), Lost> {
    source.copy_to(bytes);
    check(|_| Access::Read)
}

/// [`write_bytes`] for memory of ours, which is sealed against truncation.
#[cfg(test)]
pub fn write_own(bytes: &[u8], destination: &VolatileSlice<'_>) {
    write_bytes(bytes, destination).unwrap();
}

/// Whether the bytes just moved were all there; `access` tells which access an address belongs to.
fn check(access: impl FnOnce(usize) -> Access) -> Result<(), Lost> {
    take_hit().map_or(Ok(()), |address| {
        Err(Lost {
            access: access(address),
        })
    })
}

fn store_word(word: [u8; 4], destination: &VolatileSlice<'_>) {
    // `store` refuses a misaligned address; hardware would split such a write as well.
    if destination
        .store(u32::from_ne_bytes(word), 0, Ordering::Release)
        .is_err()
    {
        destination.copy_from(&word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_runs_arrive_whole_at_any_alignment() {
        for len in [1, 3, 4, 5, 4096] {
            for offset in 0..4 {
                let mut from: Vec<u8> = (0..=255).cycle().take(len + offset).collect();
                let mut to = vec![0; len + offset];
                let source = VolatileSlice::from(&mut from[offset..]);
                copy(&source, &VolatileSlice::from(&mut to[offset..])).unwrap();
                assert_eq!(from[offset..], to[offset..]);
                let mut out = vec![0; len];
                write_bytes(&from[offset..], &VolatileSlice::from(&mut to[offset..])).unwrap();
                read_bytes(&VolatileSlice::from(&mut to[offset..]), &mut out).unwrap();
                assert_eq!(from[offset..], out);
            }
        }
    }
}

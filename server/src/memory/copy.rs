//! Moving bytes, with the one ordering promise of the cycle: what came before a marker is visible before it.
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, VolatileSlice};

/// Copies `source` to `destination`, which must be as long. Gives the little-endian word if it copied just one.
///
/// An aligned word is stored as a whole and with release: a CPU that sees the completion marker (seed §2) sees every
/// byte written before it, and never half of the marker.
pub fn copy(source: &VolatileSlice<'_>, destination: &VolatileSlice<'_>) -> Option<u32> {
    if source.len() == size_of::<u32>() {
        let mut word = [0; size_of::<u32>()];
        source.copy_to(&mut word);
        store_word(word, destination);
        Some(u32::from_le_bytes(word))
    } else {
        source.copy_to_volatile_slice(*destination);
        None
    }
}

/// Writes `bytes` to `destination`, which must be as long; ordered like [`copy`].
pub fn write_bytes(bytes: &[u8], destination: &VolatileSlice<'_>) {
    match bytes.try_into() {
        Ok(word) => store_word(word, destination),
        Err(_) => destination.copy_from(bytes),
    }
}

/// Fills `bytes` from `source`, which must be as long.
pub fn read_bytes(source: &VolatileSlice<'_>, bytes: &mut [u8]) {
    source.copy_to(bytes);
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
                copy(&source, &VolatileSlice::from(&mut to[offset..]));
                assert_eq!(from[offset..], to[offset..]);
                let mut out = vec![0; len];
                write_bytes(&from[offset..], &VolatileSlice::from(&mut to[offset..]));
                read_bytes(&VolatileSlice::from(&mut to[offset..]), &mut out);
                assert_eq!(from[offset..], out);
            }
        }
    }
}

//! Cutting a transfer into chunks and batches.

use crate::descriptor::MAX_DESCRIPTOR_LENGTH;
use crate::marker::Context;

/// A copy on its way: what of it is not staged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    source: u64,
    destination: u64,
    remaining: u64,
    source_moves: bool,
}

/// One descriptor pair's share of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) source: u64,
    pub(super) destination: u64,
    pub(super) length: u32,
}

impl Transfer {
    /// `length` bytes between two device-side addresses. `None` if either passes the end of the
    /// address space.
    pub fn new(source: u64, destination: u64, length: u64) -> Option<Self> {
        source.checked_add(length)?;
        destination.checked_add(length)?;
        Some(Self {
            source,
            destination,
            remaining: length,
            source_moves: true,
        })
    }

    /// The same 64 KiB at `source` over and over: the second step of a memset (contract §8.6).
    /// `None` if the destination passes the end of the address space.
    pub fn repeating(source: u64, destination: u64, length: u64) -> Option<Self> {
        source.checked_add(length.min(MAX_DESCRIPTOR_LENGTH.into()))?;
        destination.checked_add(length)?;
        Some(Self {
            source,
            destination,
            remaining: length,
            source_moves: false,
        })
    }

    /// Bytes not staged yet.
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Takes the next chunk of at most 64 KiB.
    pub(super) fn next_chunk(&mut self) -> Option<Chunk> {
        let length = self.remaining.min(MAX_DESCRIPTOR_LENGTH.into());
        let chunk = Chunk {
            source: self.source,
            destination: self.destination,
            length: u32::try_from(length).ok().filter(|length| *length > 0)?,
        };
        self.remaining -= length;
        self.destination += length;
        if self.source_moves {
            self.source += length;
        }
        Some(chunk)
    }
}

/// A batch in a ring: staged, perhaps launched, not acknowledged.
///
/// It stands for its marker slot and its descriptors, so it cannot be copied, and finishing it
/// consumes it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch that nobody finishes keeps its marker slot and its descriptors"]
pub struct Batch {
    pub(super) context: Context,
    pub(super) count: u32,
    pub(super) epoch: u64,
}

impl Batch {
    /// Descriptors in each ring, the marker included: the value of both doorbells.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Marker slot it uses.
    pub const fn context(&self) -> Context {
        self.context
    }
}

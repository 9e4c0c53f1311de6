//! What policies decide.
use std::time::Duration;

/// Bytes turned over: the word `mask` is exclusive-ored onto the bytes from `offset` on, counted modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// First byte.
    pub offset: u32,
    /// Little-endian.
    pub mask: u32,
}

impl Corruption {
    /// Turns the bits over.
    pub fn apply(&self, bytes: &mut [u8]) {
        let len = bytes.len();
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        for (nth, mask) in self.mask.to_le_bytes().into_iter().take(len).enumerate() {
            // No byte is turned over twice: there are at most as many bytes of the mask as there are here.
            let at = (offset % len).wrapping_add(nth) % len;
            bytes[at] ^= mask;
        }
    }
}

/// How a write comes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    /// Its first half lands now; the rest this much later, or never.
    Half(Option<Duration>),
    /// It lands this much later than the queue's next marker, which tells software that it has landed.
    BehindMarker(Duration),
}

/// What a policy decides. A verdict that has no meaning at a point is [`Self::Proceed`] there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// As hardware would.
    #[default]
    Proceed,
    /// It does not happen, and nobody is told: a doorbell or copy is lost, descriptors never arrive and their queue
    /// waits for them, a reset or mailbox request is not answered.
    Drop,
    /// A fetch, copy or marker meets an AXI response error; a mailbox request fails.
    Fail,
    /// It happens this much later; the point is not asked again. A later answer of the mailbox or to a reset.
    Delay(Duration),
    /// A doorbell counts twice; a write lands now and once more this much later.
    Duplicate(Duration),
    /// Descriptors, data, a marker, a mailbox answer or a register's value arrive with bits turned over.
    Corrupt(Corruption),
    /// A write lands in parts or out of order.
    Tear(Tear),
    /// The queue does this many more descriptors and then none until it is reset.
    Stop(u32),
    /// The engine does nothing for this long, or until the device is reset.
    Stall(Option<Duration>),
    /// A pointer is wrong by this much: the tail moves further or less far, descriptors are read from elsewhere in the
    /// ring, a register reads differently.
    Shift(i32),
    /// What a register reads.
    Value(u32),
    /// The mailbox answers as if to another request.
    WrongSequence,
    /// The device is gone from the bus: reads give all ones, writes and DMA do nothing, until a power-on reset.
    Remove,
    /// The client is disconnected.
    Disconnect,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corruption_stays_inside_and_changes_something() {
        for len in 0..9 {
            for offset in [0, 1, 3, 7, u32::MAX] {
                let mut bytes = vec![0; len];
                Corruption {
                    offset,
                    mask: 0x0101_0101,
                }
                .apply(&mut bytes);
                assert_eq!(
                    bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>(),
                    len.min(4)
                );
            }
        }
    }
}

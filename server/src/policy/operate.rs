//! What people may make a device do from outside.
use std::fmt;
use std::str::FromStr;

use super::fault::Order;
use crate::observe::event::Observers;

/// Longest notification that can be asked for, bytes. Entries of the real device are far shorter.
pub const MAX_NOTIFICATION: usize = 256;

/// Whose notification queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationBlock {
    /// A core's.
    Core,
    /// A top-level synchronisation processor's.
    TopSp,
    /// A DMA engine's.
    Sdma,
}

impl NotificationBlock {
    /// All.
    pub const ALL: [Self; 3] = [Self::Core, Self::TopSp, Self::Sdma];

    /// Name, as people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::TopSp => "topsp",
            Self::Sdma => "sdma",
        }
    }
}

/// One notification to post: `core 0 3 deadbeef`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    /// Kind of block.
    pub block: NotificationBlock,
    /// Which of its kind.
    pub index: u8,
    /// Queue of the block, 0 to 15.
    pub queue: u8,
    /// The entry.
    pub bytes: Vec<u8>,
}

impl fmt::Display for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", self.block.name(), self.index, self.queue)?;
        self.bytes
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Notify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        let [block, index, queue, hex] = words[..] else {
            return Err(
                "a notification is BLOCK INDEX QUEUE HEX, for example core 0 3 deadbeef".to_owned(),
            );
        };
        let number = |word: &str| {
            word.parse()
                .map_err(|_| format!("{word:?} is no number from 0 to 255"))
        };
        Ok(Self {
            block: NotificationBlock::ALL
                .into_iter()
                .find(|known| known.name() == block)
                .ok_or_else(|| format!("unknown block {block:?}: say core, topsp or sdma"))?,
            index: number(index)?,
            queue: number(queue)?,
            bytes: bytes(hex)?,
        })
    }
}

fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    if hex.len() > 2 * MAX_NOTIFICATION {
        return Err(format!(
            "a notification has {MAX_NOTIFICATION} bytes at most"
        ));
    }
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let whole: Option<Vec<_>> = pairs
        .iter()
        .map(|[high, low]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok())
        .collect();
    whole
        .filter(|_| rest.is_empty())
        .ok_or_else(|| "the entry is written as pairs of hexadecimal digits: 00ff".to_owned())
}

/// Where an entry went, bytes from the ring's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its first byte.
    pub offset: u32,
    /// The head after it.
    pub head: u32,
}

/// Something that can be operated.
pub trait Operate {
    /// Posts a notification.
    ///
    /// # Errors
    /// Why not.
    fn notify(&mut self, notify: &Notify) -> Result<Posted, String>;

    /// Changes or shows the faults on purpose; the answer is for people.
    ///
    /// # Errors
    /// Why not.
    fn fault(&mut self, order: &Order) -> Result<String, String>;

    /// Its consumers of events.
    fn observers_mut(&mut self) -> &mut Observers;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_read_back_and_bad_ones_say_why() {
        let notify: Notify = "topsp 3 15 00fFa5".parse().unwrap();
        assert_eq!(notify.bytes, [0, 0xff, 0xa5]);
        assert_eq!(notify.to_string(), "topsp 3 15 00ffa5");
        for (text, words) in [
            ("core 0 3", "for example"),
            ("gpu 0 3 00", "core, topsp or sdma"),
            ("core 300 3 00", "0 to 255"),
            ("core 0 3 0", "pairs"),
            ("core 0 3 \u{e9}\u{e9}", "pairs"),
            (&format!("core 0 0 {}", "00".repeat(257)), "256 bytes"),
        ] {
            let error = text.parse::<Notify>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

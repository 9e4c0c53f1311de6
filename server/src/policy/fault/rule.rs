//! What a rule can say. Which actions fit which events, and what each action takes, is [`ACTIONS`].
use std::fmt;
use std::time::Duration;

use neuron_protocol::registers::Direction;
use serde::Deserialize;

use crate::policy::{Corruption, Tear, Verdict};

/// The events that a rule can match.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum On {
    /// A doorbell moves a tail.
    Doorbell,
    /// Descriptors are read.
    Fetch,
    /// Data is moved.
    Copy,
    /// The completion marker is written.
    Marker,
    /// A reset is acknowledged.
    Reset,
    /// A mailbox request is answered.
    Mailbox,
    /// A register is read.
    Register,
}

impl On {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::Doorbell,
        Self::Fetch,
        Self::Copy,
        Self::Marker,
        Self::Reset,
        Self::Mailbox,
        Self::Register,
    ];

    /// Name, as people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::Fetch => "fetch",
            Self::Copy => "copy",
            Self::Marker => "marker",
            Self::Reset => "reset",
            Self::Mailbox => "mailbox",
            Self::Register => "register",
        }
    }
}

/// The actions.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It does not happen.
    Drop,
    /// It happens later.
    Delay,
    /// It happens twice.
    Duplicate,
    /// The first half of a write lands now, the rest later or never.
    TearHalf,
    /// Data lands after the marker that tells of it.
    MarkerFirst,
    /// Bits are turned over.
    Corrupt,
    /// The queue stops after some descriptors.
    Stop,
    /// The engine stalls.
    Stall,
    /// An AXI response error; a failed mailbox request.
    Error,
    /// A pointer is wrong.
    Pointer,
    /// The mailbox answers as if to another request.
    WrongSequence,
    /// A register reads this.
    Value,
    /// The device is gone from the bus.
    Remove,
    /// The client is disconnected.
    Disconnect,
}

/// What an action takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// A time.
    By,
    /// A number of descriptors.
    Descriptors,
    /// Where bits are turned over.
    Byte,
    /// Which.
    Mask,
    /// By how much a pointer is wrong.
    Shift,
    /// A register's value.
    Value,
}

impl Param {
    /// Its key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::By => "by",
            Self::Descriptors => "descriptors",
            Self::Byte => "byte",
            Self::Mask => "mask",
            Self::Shift => "shift",
            Self::Value => "value",
        }
    }
}

/// A row of [`ACTIONS`].
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// The action.
    pub action: Action,
    /// Name, as people write it.
    pub name: &'static str,
    /// The events it fits.
    pub on: &'static [On],
    /// What must be given.
    pub needs: &'static [Param],
    /// What may be given.
    pub takes: &'static [Param],
    /// The events after which software waits for something that never comes.
    pub starves: &'static [On],
    /// One line for people.
    pub what: &'static str,
}

const DMA: &[On] = &[On::Doorbell, On::Fetch, On::Copy, On::Marker];
const WRITES: &[On] = &[On::Copy, On::Marker];

/// Every action: where it fits and what it takes.
pub const ACTIONS: [Fit; 14] = [
    Fit {
        action: Action::Drop,
        name: "drop",
        on: &[
            On::Doorbell,
            On::Fetch,
            On::Copy,
            On::Marker,
            On::Reset,
            On::Mailbox,
        ],
        needs: &[],
        takes: &[],
        starves: &[On::Doorbell, On::Fetch, On::Marker],
        what: "it does not happen and nobody is told",
    },
    Fit {
        action: Action::Delay,
        name: "delay",
        on: &[
            On::Doorbell,
            On::Fetch,
            On::Copy,
            On::Marker,
            On::Reset,
            On::Mailbox,
        ],
        needs: &[Param::By],
        takes: &[],
        starves: &[],
        what: "it happens `by` later",
    },
    Fit {
        action: Action::Duplicate,
        name: "duplicate",
        on: &[On::Doorbell, On::Copy, On::Marker],
        needs: &[],
        takes: &[Param::By],
        starves: &[On::Doorbell],
        what: "a doorbell counts twice; a write lands once more, `by` later",
    },
    Fit {
        action: Action::TearHalf,
        name: "tear-half",
        on: WRITES,
        needs: &[],
        takes: &[Param::By],
        starves: &[],
        what: "the first half of a write lands, the rest `by` later, or never without `by`",
    },
    Fit {
        action: Action::MarkerFirst,
        name: "marker-first",
        on: &[On::Copy],
        needs: &[],
        takes: &[Param::By],
        starves: &[],
        what: "data lands `by` after the marker that tells of it",
    },
    Fit {
        action: Action::Corrupt,
        name: "corrupt",
        on: &[On::Fetch, On::Copy, On::Marker, On::Mailbox, On::Register],
        needs: &[],
        takes: &[Param::Byte, Param::Mask],
        starves: &[On::Fetch, On::Marker],
        what: "the bits of `mask` are turned over from `byte` on; random ones where not given",
    },
    Fit {
        action: Action::Stop,
        name: "stop",
        on: &[On::Doorbell, On::Copy, On::Marker],
        needs: &[Param::Descriptors],
        takes: &[],
        starves: &[On::Doorbell, On::Copy, On::Marker],
        what: "the queue does that many more descriptors and then none until it is reset",
    },
    Fit {
        action: Action::Stall,
        name: "stall",
        on: DMA,
        needs: &[],
        takes: &[Param::By],
        starves: DMA,
        what: "the engine does nothing for `by`, or until the device is reset",
    },
    Fit {
        action: Action::Error,
        name: "error",
        on: &[On::Fetch, On::Copy, On::Marker, On::Mailbox],
        needs: &[],
        takes: &[],
        starves: &[On::Fetch, On::Copy, On::Marker],
        what: "an AXI response error that aborts the engine; a mailbox request fails",
    },
    Fit {
        action: Action::Pointer,
        name: "pointer",
        on: &[On::Doorbell, On::Fetch, On::Register],
        needs: &[Param::Shift],
        takes: &[],
        starves: &[On::Doorbell, On::Fetch],
        what: "a tail moves, descriptors are read or a register reads off by `shift`",
    },
    Fit {
        action: Action::WrongSequence,
        name: "wrong-sequence",
        on: &[On::Mailbox],
        needs: &[],
        takes: &[],
        starves: &[],
        what: "the answer has the next request's sequence number",
    },
    Fit {
        action: Action::Value,
        name: "value",
        on: &[On::Register],
        needs: &[Param::Value],
        takes: &[],
        starves: &[],
        what: "the register reads `value`",
    },
    Fit {
        action: Action::Remove,
        name: "remove",
        on: &On::ALL,
        needs: &[],
        takes: &[],
        starves: &[],
        what: "the device leaves the bus: reads give all ones, until a power-on reset",
    },
    Fit {
        action: Action::Disconnect,
        name: "disconnect",
        on: &On::ALL,
        needs: &[],
        takes: &[],
        starves: &[],
        what: "QEMU's connection is closed",
    },
];

impl Action {
    /// Its row.
    #[must_use]
    pub fn fit(self) -> &'static Fit {
        ACTIONS
            .iter()
            .find(|fit| fit.action == self)
            .unwrap_or(&ACTIONS[0])
    }
}

/// Which of the events that match are hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Occurrence {
    /// All.
    Always,
    /// The nth only, from 1.
    Nth(u64),
    /// Every nth.
    Every(u64),
    /// The first n.
    First(u64),
    /// Each with this probability.
    Chance(f64),
}

impl fmt::Display for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Nth(n) => write!(f, "number {n}"),
            Self::Every(n) => write!(f, "one in {n}"),
            Self::First(n) => write!(f, "the first {n}"),
            Self::Chance(p) => write!(f, "with probability {p}"),
        }
    }
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The same every time.
    Fixed(Verdict),
    /// Bits are turned over, and what is not given is random.
    Corrupt {
        /// Where.
        byte: Option<u32>,
        /// Which.
        mask: Option<u32>,
    },
}

/// A rule, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What people call it.
    pub name: String,
    /// Which event.
    pub on: On,
    /// Of this engine only.
    pub engine: Option<u8>,
    /// Of this queue only.
    pub queue: Option<u8>,
    /// Of this ring only.
    pub direction: Option<Direction>,
    /// Of this mailbox command only.
    pub command: Option<u8>,
    /// Of registers whose name ends like this only.
    pub register: Option<String>,
    /// Which of those.
    pub occurrence: Occurrence,
    /// What it does.
    pub action: Action,
    /// In detail.
    pub outcome: Outcome,
}

/// What an action was given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    /// [`Param::By`].
    pub by: Option<Duration>,
    /// [`Param::Descriptors`].
    pub descriptors: Option<u32>,
    /// [`Param::Byte`].
    pub byte: Option<u32>,
    /// [`Param::Mask`].
    pub mask: Option<u32>,
    /// [`Param::Shift`].
    pub shift: Option<i32>,
    /// [`Param::Value`].
    pub value: Option<u32>,
}

impl Given {
    /// What the action comes to; [`ACTIONS`] has seen to it that what it needs is there.
    #[must_use]
    pub fn outcome(self, action: Action) -> Outcome {
        let by = self.by.unwrap_or_default();
        Outcome::Fixed(match action {
            Action::Drop => Verdict::Drop,
            Action::Delay => Verdict::Delay(by),
            Action::Duplicate => Verdict::Duplicate(by),
            Action::TearHalf => Verdict::Tear(Tear::Half(self.by)),
            Action::MarkerFirst => Verdict::Tear(Tear::BehindMarker(by)),
            Action::Corrupt => match (self.byte, self.mask) {
                (Some(offset), Some(mask)) => Verdict::Corrupt(Corruption { offset, mask }),
                (byte, mask) => return Outcome::Corrupt { byte, mask },
            },
            Action::Stop => Verdict::Stop(self.descriptors.unwrap_or_default()),
            Action::Stall => Verdict::Stall(self.by),
            Action::Error => Verdict::Fail,
            Action::Pointer => Verdict::Shift(self.shift.unwrap_or_default()),
            Action::WrongSequence => Verdict::WrongSequence,
            Action::Value => Verdict::Value(self.value.unwrap_or_default()),
            Action::Remove => Verdict::Remove,
            Action::Disconnect => Verdict::Disconnect,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        action: Action,
    }

    #[test]
    fn the_table_has_each_action_once_under_the_name_that_files_use() {
        for fit in &ACTIONS {
            assert_eq!(
                ACTIONS
                    .iter()
                    .filter(|other| other.action == fit.action)
                    .count(),
                1
            );
            let text = format!("action = \"{}\"", fit.name);
            assert_eq!(toml::from_str::<File>(&text).unwrap().action, fit.action);
            assert!(
                fit.starves.iter().all(|on| fit.on.contains(on)),
                "{}",
                fit.name
            );
        }
    }
}

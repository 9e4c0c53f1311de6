//! What may change the outcome of what a device does: asked at named points, answered with a verdict.
//!
//! Without a policy every verdict is [`Verdict::Proceed`] and the points cost a branch.
mod operate;
pub mod timing;

use std::fmt;

use neuron_protocol::registers::Direction;

pub use operate::{MAX_NOTIFICATION, NotificationBlock, Notify, Operate, Posted};
pub use timing::Timing;

/// A point at which a policy is asked, before the thing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A doorbell write is about to move a tail.
    Doorbell {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// Which ring.
        direction: Direction,
        /// Descriptors.
        count: u32,
    },
    /// Descriptors are about to be read.
    Fetch {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// Which ring.
        direction: Direction,
        /// First index.
        index: u32,
    },
    /// Bytes are about to be moved.
    Copy {
        /// Engine number.
        engine: u8,
        /// Queue number.
        queue: u8,
        /// From, as the engine sees it.
        source: u64,
        /// To, as the engine sees it.
        destination: u64,
    },
    /// A reset is about to be acknowledged.
    Reset,
    /// A mailbox request is about to be answered.
    Mailbox {
        /// Command number.
        command: u8,
    },
}

/// What a policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// As hardware would.
    #[default]
    Proceed,
    /// It does not happen, and nobody is told: a doorbell or copy is lost, a reset or mailbox never answered.
    Drop,
    /// A fetch or copy meets an AXI response error; elsewhere the same as [`Self::Drop`].
    Fail,
}

/// Something that decides.
pub trait Policy: Send {
    /// Decides at a point.
    fn judge(&mut self, point: Point) -> Verdict;
}

/// The policies of a device, if it has any.
#[derive(Default)]
pub struct Policies {
    judge: Option<Box<dyn Policy>>,
    timing: Option<Timing>,
}

impl Policies {
    /// Installs a policy.
    pub fn set(&mut self, policy: Box<dyn Policy>) {
        self.judge = Some(policy);
    }

    /// Asks it.
    pub fn judge(&mut self, point: Point) -> Verdict {
        self.judge
            .as_mut()
            .map_or(Verdict::Proceed, |policy| policy.judge(point))
    }

    /// Says how long work takes in model time; `None` is no time at all.
    pub const fn set_timing(&mut self, timing: Option<Timing>) {
        self.timing = timing;
    }

    /// How long work takes.
    pub const fn timing(&self) -> Option<Timing> {
        self.timing
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.judge.is_some() {
            "a policy"
        } else {
            "no policy"
        })
    }
}

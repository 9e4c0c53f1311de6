//! The firmware mailbox: requests the driver makes of the card's firmware (contract §4, facts §5).
//!
//! Two transports carry the same request header. The *legacy* one keeps request and response in
//! two buffers of host memory whose addresses the driver writes into registers; the *register* one
//! (API version 7 and later) keeps them in the register window itself. This module only knows
//! bytes and words; who reads them from where is the caller's business.

use core::num::NonZeroU8;

pub mod data;
mod message;
mod metrics;

pub use message::{
    MailboxError, REGISTER_RESPONSE_HEADER_SIZE, REQUEST_HEADER_SIZE, RESPONSE_HEADER_SIZE,
    Request, RequestHeader, Response, ResponseHeader, build_request, build_response,
};
pub use metrics::{MAX_POST, Metric, Metrics, TruncatedMetric};

/// Length of the two host buffers of the legacy transport, in bytes: `FW_IO_MAX_SIZE`
/// (contract §3; a request's 16-bit size cannot exceed it either).
pub const BUFFER_SIZE: usize = 0xffff;

/// Length of the data window of the register transport, in bytes (contract §4, MR+0x100).
pub const DATA_WINDOW_SIZE: usize = 128;

/// Most registers one [`Command::Read`] asks for: `FW_IO_MAX_READLESS_READ_REGISTER_COUNT`.
pub const MAX_READ_REGISTERS: usize = 100;

/// What the firmware is asked to do (facts §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read registers: payload of u64 device addresses, answered with one u32 each.
    Read,
    /// Post a blob of metrics to the cloud's monitoring.
    PostToCw,
    /// Choose a power profile (API version 7).
    SetPowerProfile,
    /// Get a data item by type (API version 7).
    GetData,
    /// Switch a feature (API version 7).
    SetFeature,
}

impl Command {
    /// All commands, by number.
    pub const ALL: [Self; 5] = [
        Self::Read,
        Self::PostToCw,
        Self::SetPowerProfile,
        Self::GetData,
        Self::SetFeature,
    ];

    /// The number in the header.
    pub const fn number(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::PostToCw => 2,
            Self::SetPowerProfile => 3,
            Self::GetData => 4,
            Self::SetFeature => 5,
        }
    }

    /// The command with this number. An unknown one is answered [`Status::UnknownCommand`].
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|command| command.number() == number)
    }
}

/// Outcome byte of a response (contract §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// 0: done.
    Ok,
    /// 1: failed; the driver tries again.
    Failed,
    /// 2: no such command; the driver does not try again.
    UnknownCommand,
    /// Any other value; the driver tries again.
    Other(u8),
}

impl From<u8> for Status {
    fn from(byte: u8) -> Self {
        match byte {
            0 => Self::Ok,
            1 => Self::Failed,
            2 => Self::UnknownCommand,
            other => Self::Other(other),
        }
    }
}

impl From<Status> for u8 {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok => 0,
            Status::Failed => 1,
            Status::UnknownCommand => 2,
            Status::Other(other) => other,
        }
    }
}

/// Number that ties a response to its request: 1..=255, never 0, new for every try
/// (contract §4.1). The driver clears the response's to 0 before it triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence(NonZeroU8);

impl Sequence {
    /// The first number a driver uses.
    pub const FIRST: Self = Self(NonZeroU8::MIN);

    /// `None` for 0, which no request carries.
    pub fn new(number: u8) -> Option<Self> {
        NonZeroU8::new(number).map(Self)
    }

    /// The byte in the header.
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// Number of the next try: 255 is followed by 1.
    #[must_use]
    pub fn next(self) -> Self {
        self.0.checked_add(1).map_or(Self::FIRST, Self)
    }
}

/// Features that the API version register (MR+0) switches on in the driver (facts §5.1).
pub mod api_version {
    /// Power readings are sampled.
    pub const POWER: u32 = 3;
    /// ECC counters are decoded.
    pub const ECC: u32 = 6;
    /// The register transport is used.
    pub const REGISTER_MAILBOX: u32 = 7;
}

/// How long and how often a driver tries one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time per try, in microseconds.
    pub timeout: u64,
    /// Tries, each with a new sequence number.
    pub tries: u32,
}

impl Patience {
    const fn seconds(seconds: u64, tries: u32) -> Self {
        Self {
            timeout: seconds * 1_000_000,
            tries,
        }
    }

    /// Legacy transport up to 2.24: 15 tries of 1 s, any command (contract §4.1).
    pub const LEGACY_2_24: Self = Self::seconds(1, 15);

    /// Legacy transport of 2.25 and later: 30 tries of 1 s, any command (contract §4.1).
    pub const LEGACY_2_25: Self = Self::seconds(1, 30);

    /// Register transport of 2.25: commands it has no row for get the legacy figure
    /// (2.25.4.0 `fw_io_cmd_timeout_tbl`).
    pub const fn register_2_25(command: Command) -> Self {
        match command {
            Command::Read | Command::PostToCw => Self::seconds(1, 15),
            Command::SetPowerProfile => Self::seconds(60, 3),
            Command::GetData | Command::SetFeature => Self::LEGACY_2_25,
        }
    }

    /// Register transport of 2.27 (facts §5.3).
    pub const fn register_2_27(command: Command) -> Self {
        match command {
            Command::Read | Command::PostToCw => Self::seconds(1, 15),
            Command::SetPowerProfile => Self::seconds(90, 3),
            Command::GetData => Self::seconds(10, 3),
            Command::SetFeature => Self::seconds(60, 3),
        }
    }
}

/// Time between two looks at a response, in microseconds: `msleep(1)` (contract §4.1).
pub const POLL_INTERVAL: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_skip_zero() {
        let mut sequence = Sequence::FIRST;
        for expected in (2..=255).chain([1, 2]) {
            sequence = sequence.next();
            assert_eq!(sequence.get(), expected);
        }
        assert_eq!(Sequence::new(0), None);
    }

    #[test]
    fn commands_and_statuses_round_trip() {
        for command in Command::ALL {
            assert_eq!(Command::from_number(command.number()), Some(command));
        }
        assert_eq!(Command::from_number(0), None);
        assert_eq!(Command::from_number(6), None);
        for byte in 0..=255_u8 {
            assert_eq!(u8::from(Status::from(byte)), byte);
        }
    }
}

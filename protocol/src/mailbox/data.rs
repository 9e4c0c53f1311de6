//! Payloads of the commands of the register mailbox (contract §4.2, facts §5.3; layouts from the public 2.25.4.0 and
//! later driver interface).
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Payload of [`Command::SetPowerProfile`](super::Command::SetPowerProfile), and the answer to [`POWER_PROFILE`].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct PowerProfile {
    /// Always 0.
    pub reserved: [u8; 4],
    /// Number of the profile.
    pub profile: u8,
    /// Drivers send 0 for this and what follows.
    pub voltage_margin: u8,
    /// See above.
    pub frequency_index: u8,
    /// See above.
    pub ocw_index: u8,
}

/// Type in the first byte of a [`Command::GetData`](super::Command::GetData) request: the profile in force.
pub const POWER_PROFILE: u8 = 0x01;
/// The profiles there are; a u16 behind the type says which kind.
pub const AVAILABLE_PROFILES: u8 = 0x02;
/// Kind of [`AVAILABLE_PROFILES`]: all.
pub const PROFILES_ALL: u16 = 0;
/// Kind of [`AVAILABLE_PROFILES`]: those with HBM at 7200; asked once after a reset on V3 (facts §5.4).
pub const PROFILES_HBM_7200: u16 = 5;

/// Answer to [`AVAILABLE_PROFILES`].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct AvailableProfiles {
    /// How many.
    pub count: u8,
    /// Which, one bit each.
    pub bitmap: [u8; 32],
}

/// Feature bit of [`Command::SetFeature`](super::Command::SetFeature): notify about throttling.
pub const FEATURE_THROTTLING_NOTIFICATIONS: u32 = 1;

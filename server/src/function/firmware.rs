//! What firmware says of the card, and what it does at the mailbox's request (contract §4, facts §5).
use std::time::Duration;

use neuron_protocol::mailbox::data::{self, AvailableProfiles, PowerProfile};
use neuron_protocol::mailbox::{Command, Status, api_version};
use neuron_protocol::registers::misc_ram as window;
use zerocopy::{FromBytes, IntoBytes};

/// Highest API version a driver is known to ask for (facts §5.1).
pub const MAX_API_VERSION: u8 = 7;
/// Full power, in the unit of the samples: 1/100 % (contract §4).
pub const MAX_POWER: u16 = 10_000;
/// Highest server or rack id: 15 bits (facts §5.1).
pub const MAX_SERVER_ID: u16 = 0x7fff;
/// Between two power samples. The driver looks every 50 ms and needs 60 new samples a minute (facts §5.5).
const SAMPLE_PERIOD: Duration = Duration::from_millis(100);
/// Samples in which power goes up and down once.
const WAVE: u128 = 64;
/// How far, in 1/100 %.
const SWING: u16 = 500;
/// How many profiles a card has is not public: a number that has both good and bad ones to ask for.
const PROFILES: u8 = 8;

/// Errors that memory corrected or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ecc {
    /// Corrected.
    pub corrected: u16,
    /// Not.
    pub uncorrected: u16,
}

/// What firmware knows about repairs of HBM (facts §5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HbmRepair {
    /// Nothing to repair.
    #[default]
    None,
    /// At the next reset.
    Pending,
    /// Tried in vain.
    Failed,
}

/// What firmware says. The default is the least: API version 0 and no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Firmware {
    /// API version: power samples from 3 on, the register mailbox and its commands from 7 on (facts §5.1).
    pub api_version: u8,
    /// Power that the samples move about, in 1/100 % of the maximum.
    pub power: u16,
    /// Of on-chip memory.
    pub sram_ecc: Ecc,
    /// By HBM stack.
    pub hbm_ecc: [Ecc; 4],
    /// State of HBM repair.
    pub hbm_repair: HbmRepair,
    /// Server id, if there is a valid one.
    pub server_id: Option<u16>,
    /// Rack id, if there is a valid one.
    pub rack_id: Option<u16>,
    /// Health check status word.
    pub health_status: u32,
    /// Health check sequence word.
    pub health_sequence: u32,
    /// Build number.
    pub build: u32,
    /// Reservation id.
    pub reservation: u64,
}

impl Default for Firmware {
    fn default() -> Self {
        Self {
            api_version: 0,
            power: 1_000,
            sram_ecc: Ecc::default(),
            hbm_ecc: [Ecc::default(); 4],
            hbm_repair: HbmRepair::None,
            server_id: None,
            rack_id: None,
            health_status: 0,
            health_sequence: 0,
            build: 0,
            reservation: 0,
        }
    }
}

impl Firmware {
    /// The registers that hold it, without those that move.
    pub(super) fn registers(&self) -> impl Iterator<Item = (u32, u32)> {
        let ecc = |ecc: Ecc| u32::from(ecc.corrected) << 16 | u32::from(ecc.uncorrected);
        let valid = |id: Option<u16>| id.map_or(0, |id| u32::from(id & MAX_SERVER_ID) | 1 << 15);
        let half = |shift: u32| u32::try_from(self.reservation >> shift & 0xffff_ffff).unwrap_or(0);
        let fixed = [
            (window::API_VERSION, u32::from(self.api_version)),
            (window::HEALTH_STATUS, self.health_status),
            (window::HEALTH_SEQUENCE, self.health_sequence),
            (window::SRAM_ECC, ecc(self.sram_ecc)),
            (
                window::HBM_REPAIR,
                match self.hbm_repair {
                    HbmRepair::None => 0,
                    HbmRepair::Pending => 1,
                    HbmRepair::Failed => 2,
                },
            ),
            (
                window::SERVER_ID,
                valid(self.server_id) | valid(self.rack_id) << 16,
            ),
            (window::FW_BUILD, self.build),
            (window::RESERVATION_HIGH, half(32)),
            (window::RESERVATION_LOW, half(0)),
        ];
        let stacks = (window::HBM_ECC..).step_by(4).zip(self.hbm_ecc.map(ecc));
        fixed.into_iter().chain(stacks)
    }

    /// The power registers at a moment: one word per die, sample number in the upper half. 0 before API version 3.
    pub(super) fn power_at(&self, now: Duration) -> [u32; 2] {
        if u32::from(self.api_version) < api_version::POWER {
            return [0; 2];
        }
        let sample = now.as_millis() / SAMPLE_PERIOD.as_millis();
        let swing = SWING
            .min(self.power)
            .min(MAX_POWER - self.power.min(MAX_POWER));
        // Up and down between minus and plus `swing`, the second die a quarter of a wave behind.
        [0, WAVE / 4].map(|behind| {
            let phase = (sample + behind) % WAVE;
            let height = phase.min(WAVE - phase);
            let above = u128::from(swing) * 2 * height / (WAVE / 2);
            let power = u128::from(self.power - swing) + above;
            // The counter wraps; it starts at 1, since a driver begins with 0 as the last one seen.
            u32::try_from(power | ((sample + 1) & 0xffff) << 16).unwrap_or(0)
        })
    }
}

/// What requests changed. Lost at power-on only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    profile: PowerProfile,
    features: u32,
}

/// Executes a command of the register mailbox's own: profile, data, feature. Firmware before API version 7 knows none.
pub fn execute(
    firmware: &Firmware,
    settings: &mut Settings,
    command: Command,
    payload: &[u8],
) -> (Status, Vec<u8>) {
    const UNKNOWN: (Status, Vec<u8>) = (Status::UnknownCommand, Vec::new());
    let failed = |why: &str| {
        tracing::warn!("mailbox command {command:?} failed: {why}");
        (Status::Failed, Vec::new())
    };
    if u32::from(firmware.api_version) < api_version::REGISTER_MAILBOX {
        return UNKNOWN;
    }
    match command {
        Command::SetPowerProfile => {
            let Ok(profile) = PowerProfile::read_from_bytes(payload) else {
                return failed("its payload has eight bytes");
            };
            if profile.profile >= PROFILES {
                return failed("no such power profile");
            }
            settings.profile = profile;
            tracing::info!(profile = profile.profile, "power profile set");
            (Status::Ok, Vec::new())
        }
        Command::GetData => match payload {
            [data::POWER_PROFILE, ..] => (Status::Ok, settings.profile.as_bytes().to_vec()),
            [data::AVAILABLE_PROFILES, low, high, ..] => {
                let mut available = AvailableProfiles::default();
                // None has HBM at 7200: 0 is how firmware says so (facts §5.3).
                if u16::from_le_bytes([*low, *high]) == data::PROFILES_ALL {
                    available.count = PROFILES;
                    available.bitmap[0] = u8::MAX;
                }
                (Status::Ok, available.as_bytes().to_vec())
            }
            [] | [data::AVAILABLE_PROFILES, ..] => failed("its payload is too short"),
            // The answer that ends a driver's tries.
            [kind, ..] => {
                tracing::warn!("mailbox: data of type {kind:#x} is not modelled");
                UNKNOWN
            }
        },
        Command::SetFeature => {
            let Ok(bitmap) = u32::read_from_bytes(payload) else {
                return failed("its payload has four bytes");
            };
            if bitmap & !data::FEATURE_THROTTLING_NOTIFICATIONS != 0 {
                return failed("no such feature");
            }
            settings.features = bitmap;
            tracing::info!("features set: {bitmap:#x}");
            (Status::Ok, Vec::new())
        }
        Command::Read | Command::PostToCw => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_moves_stays_in_bounds_and_is_off_before_version_3() {
        for power in [0, 3, 5_000, 9_999, MAX_POWER] {
            let firmware = Firmware {
                api_version: 3,
                power,
                ..Firmware::default()
            };
            let words: Vec<_> = (0..200)
                .map(|n| firmware.power_at(SAMPLE_PERIOD * n))
                .collect();
            for pair in words.windows(2) {
                assert_ne!(pair[0][0] >> 16, pair[1][0] >> 16, "the counter must move");
            }
            assert!(words.iter().flatten().all(|word| word & 0xffff <= 10_000));
            let moves = words
                .iter()
                .any(|word| word[0] & 0xffff != words[0][0] & 0xffff);
            assert_eq!(moves, power != 0 && power != MAX_POWER);
        }
        let off = Firmware {
            api_version: 2,
            ..Firmware::default()
        };
        assert_eq!(off.power_at(Duration::from_secs(9)), [0; 2]);
        // A year on, and past the wrap of the counter.
        let on = Firmware {
            api_version: 3,
            ..off
        };
        assert_ne!(on.power_at(Duration::from_secs(31_536_000)), [0; 2]);
        assert_eq!(on.power_at(SAMPLE_PERIOD * 65_535)[0] >> 16, 0);
    }
}

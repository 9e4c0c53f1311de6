//! `--firmware` and `--firmware-api`: what firmware says of the card.
use std::str::FromStr;

use clap::{Args, value_parser};
use neuron_protocol::mailbox::api_version;

use crate::function::{Ecc, Firmware, HbmRepair, MAX_API_VERSION, MAX_POWER, MAX_SERVER_ID};

/// The known keys with their values' forms, for messages.
const KEYS: &str = "power=PERCENT, sram-ecc=CORRECTED/UNCORRECTED, hbm0-ecc to hbm3-ecc=CORRECTED/UNCORRECTED, \
hbm-repair=none|pending|failed, server=ID, rack=ID, health=STATUS/SEQUENCE, build=N, reservation=N";

/// What firmware says.
#[derive(Args, Clone, Debug)]
pub struct FirmwareArgs {
    /// API version of the firmware. From 3 on the driver samples power, from 6 on it decodes ECC counts, from 7 on it uses
    /// the register mailbox (power profiles, data, features); 0 asks least of both
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u8).range(0..=i64::from(MAX_API_VERSION)))]
    firmware_api: u8,

    /// What the firmware reports, separated by commas: power=PERCENT that samples move about (API 3 and up, default 10),
    /// sram-ecc=C/U and hbm0-ecc=C/U to hbm3-ecc=C/U for corrected and uncorrected errors,
    /// hbm-repair=none|pending|failed, server=ID and rack=ID (0 to 32767), health=STATUS/SEQUENCE words, build=N,
    /// reservation=N. Numbers may be hexadecimal (0x...)
    #[arg(long, value_name = "KEY=VALUE,...", value_delimiter = ',')]
    firmware: Vec<Setting>,
}

/// One key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Power(u16),
    SramEcc(Ecc),
    HbmEcc(usize, Ecc),
    HbmRepair(HbmRepair),
    Server(u16),
    Rack(u16),
    Health(u32, u32),
    Build(u32),
    Reservation(u64),
}

impl FirmwareArgs {
    /// All of it together.
    ///
    /// # Errors
    /// A sentence that names the option, the reason and the remedy.
    pub fn firmware(&self) -> Result<Firmware, String> {
        let mut firmware = Firmware {
            api_version: self.firmware_api,
            ..Firmware::default()
        };
        for setting in &self.firmware {
            match *setting {
                Setting::Power(_) if u32::from(self.firmware_api) < api_version::POWER => {
                    return Err(format!(
                        "--firmware power=...: the driver reads power from firmware API {} on; add --firmware-api {0}, or higher",
                        api_version::POWER
                    ));
                }
                Setting::Power(power) => firmware.power = power,
                Setting::SramEcc(ecc) => firmware.sram_ecc = ecc,
                Setting::HbmEcc(stack, ecc) => {
                    if let Some(entry) = firmware.hbm_ecc.get_mut(stack) {
                        *entry = ecc;
                    }
                }
                Setting::HbmRepair(state) => firmware.hbm_repair = state,
                Setting::Server(id) => firmware.server_id = Some(id),
                Setting::Rack(id) => firmware.rack_id = Some(id),
                Setting::Health(status, sequence) => {
                    firmware.health_status = status;
                    firmware.health_sequence = sequence;
                }
                Setting::Build(build) => firmware.build = build,
                Setting::Reservation(id) => firmware.reservation = id,
            }
        }
        Ok(firmware)
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| format!("it must be KEY=VALUE; the keys are {KEYS}"))?;
        Ok(match key {
            "power" => Self::Power(percent(value)?),
            "sram-ecc" => Self::SramEcc(ecc(value)?),
            "hbm0-ecc" => Self::HbmEcc(0, ecc(value)?),
            "hbm1-ecc" => Self::HbmEcc(1, ecc(value)?),
            "hbm2-ecc" => Self::HbmEcc(2, ecc(value)?),
            "hbm3-ecc" => Self::HbmEcc(3, ecc(value)?),
            "hbm-repair" => Self::HbmRepair(match value {
                "none" => HbmRepair::None,
                "pending" => HbmRepair::Pending,
                "failed" => HbmRepair::Failed,
                _ => return Err("it is none, pending or failed".to_owned()),
            }),
            "server" => Self::Server(id(value)?),
            "rack" => Self::Rack(id(value)?),
            "health" => {
                let (status, sequence) = pair(value, "STATUS/SEQUENCE, two words")?;
                Self::Health(status, sequence)
            }
            "build" => Self::Build(number(value)?),
            "reservation" => Self::Reservation(number(value)?),
            _ => return Err(format!("no such key; the keys are {KEYS}")),
        })
    }
}

fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number
        .ok()
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| {
            format!(
                "{text:?} is no number of {} bits: write 1234 or 0x4d2",
                8 * size_of::<T>()
            )
        })
}

fn pair<T: TryFrom<u64>>(text: &str, form: &str) -> Result<(T, T), String> {
    let (first, second) = text
        .split_once('/')
        .ok_or_else(|| format!("it must be {form}"))?;
    Ok((number(first)?, number(second)?))
}

fn ecc(text: &str) -> Result<Ecc, String> {
    let (corrected, uncorrected) = pair(text, "CORRECTED/UNCORRECTED, two counts")?;
    Ok(Ecc {
        corrected,
        uncorrected,
    })
}

fn id(text: &str) -> Result<u16, String> {
    number(text)
        .ok()
        .filter(|id| *id <= MAX_SERVER_ID)
        .ok_or_else(|| format!("an id is a number from 0 to {MAX_SERVER_ID}"))
}

fn percent(text: &str) -> Result<u16, String> {
    number::<u16>(text)
        .ok()
        .and_then(|percent| percent.checked_mul(100))
        .filter(|power| *power <= MAX_POWER)
        .ok_or_else(|| "power is a whole percentage from 0 to 100".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firmware(api: u8, settings: &[&str]) -> Result<Firmware, String> {
        let settings: Result<_, _> = settings.iter().map(|text| text.parse()).collect();
        FirmwareArgs {
            firmware_api: api,
            firmware: settings?,
        }
        .firmware()
    }

    #[test]
    fn every_key_lands_where_it_belongs() {
        let got = firmware(
            7,
            &[
                "power=35",
                "sram-ecc=2/1",
                "hbm3-ecc=0x10/0",
                "hbm-repair=pending",
                "server=5",
                "rack=32767",
                "health=0x1/0x2000",
                "build=9",
                "reservation=0x123456789",
            ],
        );
        let mut hbm_ecc = [Ecc::default(); 4];
        hbm_ecc[3].corrected = 16;
        let expected = Firmware {
            api_version: 7,
            power: 3_500,
            sram_ecc: Ecc {
                corrected: 2,
                uncorrected: 1,
            },
            hbm_ecc,
            hbm_repair: HbmRepair::Pending,
            server_id: Some(5),
            rack_id: Some(32_767),
            health_status: 1,
            health_sequence: 0x2000,
            build: 9,
            reservation: 0x1_2345_6789,
        };
        assert_eq!(got, Ok(expected));
    }

    #[test]
    fn bad_settings_say_what_is_right() {
        for (setting, words) in [
            ("power", "KEY=VALUE"),
            ("volts=3", "keys are power=PERCENT"),
            ("power=101", "0 to 100"),
            ("power=x", "0 to 100"),
            ("sram-ecc=3", "CORRECTED/UNCORRECTED"),
            ("hbm0-ecc=65536/0", "16 bits"),
            ("hbm4-ecc=0/0", "no such key"),
            ("hbm-repair=2", "none, pending or failed"),
            ("server=32768", "0 to 32767"),
            ("health=1", "STATUS/SEQUENCE"),
        ] {
            let error = firmware(7, &[setting]).unwrap_err();
            assert!(error.contains(words), "{setting}: {error}");
        }
        assert!(
            firmware(2, &["power=5"])
                .unwrap_err()
                .contains("--firmware-api 3")
        );
    }
}

//! What a recording says of the device: enough to build it again.
use std::str::FromStr;

use neuron_protocol::generation::{Platform, Product};
use serde::{Deserialize, Serialize};

use crate::function::{Config, Firmware, MAX_API_VERSION};
use crate::memory::HbmGeometry;
use crate::policy::timing::Speed;
use crate::policy::{Adversary, Timing};

/// Which bytes that are only carried a recording keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// All of them.
    #[default]
    Full,
    /// None of more than 64 bytes: their length and hash.
    None,
}

/// The head of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the program that recorded.
    pub version: String,
    /// Product.
    pub product: String,
    /// Platform.
    pub platform: String,
    /// Routing id.
    pub routing_id: u8,
    /// Serial number.
    pub serial: u64,
    /// Bytes of BAR4.
    pub hbm: u64,
    /// What firmware says.
    pub firmware: Firmware,
    /// What is kept of payload.
    pub payload: Payload,
    /// How many times the driver's estimate work takes; none: no time.
    #[serde(default)]
    pub timing: Option<f64>,
    /// It offers MSI-X.
    #[serde(default)]
    pub msix: bool,
    /// It is as unhelpful as hardware may be, by this script.
    #[serde(default)]
    pub adversary: Option<String>,
}

/// A header that describes no device of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoDevice(String);

impl Header {
    /// Describes a device.
    pub fn new(config: &Config, payload: Payload) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            product: config.product.name().to_owned(),
            platform: config.platform.name().to_owned(),
            routing_id: config.routing_id,
            serial: config.serial,
            hbm: config.hbm.bar_size(),
            firmware: config.firmware,
            payload,
            timing: None,
            msix: config.msix,
            adversary: None,
        }
    }

    /// How long work takes.
    ///
    /// # Errors
    /// No `serve` would make it so long.
    pub fn timing(&self) -> Result<Option<Timing>, NoDevice> {
        let Some(factor) = self.timing else {
            return Ok(None);
        };
        let speed: Speed = factor
            .to_string()
            .parse()
            .map_err(|error| NoDevice(format!("timing {factor}: {error}")))?;
        let generation = self.config()?.product.generation();
        Ok(Timing::new(generation.estimate, speed))
    }

    /// Who decides what hardware is free to do.
    ///
    /// # Errors
    /// No `serve` would take the script.
    pub fn adversary(&self) -> Result<Option<Adversary>, NoDevice> {
        let Some(script) = &self.adversary else {
            return Ok(None);
        };
        let script = script
            .parse()
            .map_err(|error| NoDevice(format!("adversary {script:?}: {error}")))?;
        Ok(Some(Adversary::new(script)))
    }

    /// What the device is made of.
    ///
    /// # Errors
    /// No `serve` would make such a device.
    pub fn config(&self) -> Result<Config, NoDevice> {
        let product = Product::from_str(&self.product)
            .map_err(|_| NoDevice(format!("there is no product {:?}", self.product)))?;
        let platform = Platform::from_str(&self.platform)
            .map_err(|_| NoDevice(format!("there is no platform {:?}", self.platform)))?;
        let generation = product.generation();
        let standard = HbmGeometry::standard(generation, platform);
        let hbm = if standard.bar_size() == self.hbm {
            standard
        } else {
            HbmGeometry::new(generation, platform, Some(self.hbm))
                .map_err(|error| NoDevice(format!("HBM of {}: {error}", self.hbm)))?
        };
        if self.routing_id > 63 {
            return Err(NoDevice(format!(
                "routing id {}: the highest is 63",
                self.routing_id
            )));
        }
        if self.firmware.api_version > MAX_API_VERSION {
            return Err(NoDevice(format!(
                "firmware API {}: the highest is {MAX_API_VERSION}",
                self.firmware.api_version
            )));
        }
        Ok(Config {
            product,
            platform,
            routing_id: self.routing_id,
            serial: self.serial,
            firmware: self.firmware,
            hbm,
            mmap_hbm: false,
            msix: self.msix,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_can_be_built_again_and_no_other() {
        for product in Product::ALL {
            for platform in Platform::ALL {
                let config = Config {
                    routing_id: 3,
                    serial: 9,
                    msix: platform == Platform::Silicon,
                    ..Config::new(product, platform)
                };
                let header = Header::new(&config, Payload::None);
                let text = serde_json::to_string(&header).unwrap();
                let header: Header = serde_json::from_str(&text).unwrap();
                assert_eq!(
                    format!("{:?}", header.config().unwrap()),
                    format!("{config:?}")
                );
                assert_eq!(header.timing(), Ok(None));
                for (timing, good) in [(1.0, true), (2.5, true), (0.0, false), (1e9, false)] {
                    let timing = Some(timing);
                    let header = Header {
                        timing,
                        ..header.clone()
                    };
                    assert_eq!(header.timing().is_ok(), good, "{timing:?}");
                }
                for wrong in [
                    Header {
                        product: "trn9".to_owned(),
                        ..header.clone()
                    },
                    Header {
                        hbm: 12345,
                        ..header.clone()
                    },
                    Header {
                        routing_id: 64,
                        ..header.clone()
                    },
                ] {
                    assert!(wrong.config().is_err());
                }
            }
        }
    }
}

//! The JSON of `VERSION`.
use serde::{Deserialize, Serialize};

use super::{MAX_FDS, MAX_TRANSFER, Refusal, size_field};

/// Longest JSON read; QEMU sends 194 bytes (qemu client).
const MAX_JSON: usize = 4096;

#[derive(Debug, Default, Deserialize, Serialize)]
struct Document {
    #[serde(default)]
    capabilities: Capabilities,
}

/// The capabilities that matter here; others are ignored. `migration` and
/// `write_multiple` (QEMU 10.1 and 10.2 send such messages with wrong flags) are never offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Capabilities {
    /// Most descriptors in one message. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_msg_fds: Option<u32>,
    /// Largest data of one message, bytes. Default 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_data_xfer_size: Option<u32>,
    /// Most DMA mappings. Default 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dma_maps: Option<u32>,
    /// Page sizes of DMA mappings, a bit each. Default 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgsizes: Option<u64>,
    /// Whether `REGION_WRITE_MULTI` is understood. Default false; among clients only QEMU names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_multiple: Option<bool>,
}

/// What a connection has agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest data of one message, bytes: the smaller of both sides.
    pub max_transfer: u32,
    /// Whether the client takes descriptors.
    pub passes_fds: bool,
    /// Whether the client is QEMU, as far as one can tell.
    pub is_qemu: bool,
}

impl Capabilities {
    /// Reads the data of a `VERSION` command; none at all means all defaults.
    ///
    /// # Errors
    /// Data without a NUL at the end and only there, or not the JSON expected.
    pub fn decode(data: &[u8]) -> Result<Self, Refusal> {
        let json = match data {
            [] => return Ok(Self::default()),
            [json @ .., 0] => json,
            _ => return Err(Refusal::Capabilities("no NUL at the end".into())),
        };
        if json.len() > MAX_JSON {
            let (got, limit) = (size_field(json.len()).into(), size_field(MAX_JSON).into());
            return Err(Refusal::TooLarge {
                what: "VERSION data",
                got,
                limit,
            });
        }
        if json.contains(&0) {
            return Err(Refusal::Capabilities("NUL before the end".into()));
        }
        let document: Document =
            serde_json::from_slice(json).map_err(|e| Refusal::Capabilities(e.to_string()))?;
        Ok(document.capabilities)
    }

    /// What this server and the client both keep to.
    ///
    /// # Errors
    /// A client that takes no data at all.
    pub fn limits(&self) -> Result<Limits, Refusal> {
        let max_transfer = self
            .max_data_xfer_size
            .unwrap_or(MAX_TRANSFER)
            .min(MAX_TRANSFER);
        if max_transfer == 0 {
            return Err(Refusal::Capabilities("max_data_xfer_size is 0".into()));
        }
        Ok(Limits {
            max_transfer,
            passes_fds: self.max_msg_fds != Some(0),
            is_qemu: self.write_multiple.is_some(),
        })
    }

    /// The data of the reply, NUL included, in at most `room` bytes: QEMU discards a reply that is longer than its
    /// request (qemu client). What does not fit is left out; only the first member differs from its default.
    pub fn server_data(room: usize) -> Vec<u8> {
        let all = Self {
            max_msg_fds: Some(size_field(MAX_FDS)),
            max_data_xfer_size: Some(MAX_TRANSFER),
            max_dma_maps: Some(65535),
            pgsizes: Some(4096),
            write_multiple: None,
        };
        let no_pgsizes = Self {
            pgsizes: None,
            ..all.clone()
        };
        let no_maps = Self {
            max_dma_maps: None,
            ..no_pgsizes.clone()
        };
        let only_fds = Self {
            max_data_xfer_size: None,
            ..no_maps.clone()
        };
        let documents =
            [all, no_pgsizes, no_maps, only_fds].map(|capabilities| Document { capabilities });
        let mut texts = documents
            .iter()
            .filter_map(|document| serde_json::to_vec(document).ok());
        let mut data = texts
            .find(|text| text.len() < room)
            .unwrap_or_else(|| b"{}".to_vec());
        if data.len() >= room {
            return Vec::new();
        }
        data.push(0);
        data
    }
}

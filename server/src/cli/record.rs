//! `--record`: keep all that goes into a device and comes out of it.
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::size;
use crate::control::protocol::MIN_RECORDING;
use crate::function::Config;
use crate::outputs;
use crate::policy::timing::Speed;
use crate::record::{Header, Journal, Payload};

/// Where and what to record.
#[derive(Args, Clone, Debug)]
pub struct RecordArgs {
    /// Record all inputs and outputs of the device into FILE, for `replay`, `show` and `coverage`. With --devices N > 1 the
    /// files are FILE.0 to FILE.(N-1). A file that exists is overwritten
    #[arg(long, value_name = "FILE", conflicts_with = "mmap_hbm")]
    record: Option<PathBuf>,

    /// End the recording, cleanly, before its file is larger than this; the device goes on
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse, requires = "record")]
    record_limit: u64,

    /// What to keep of the bytes that are only copied: all of them, or none but short ones (64 bytes), which still lets a
    /// replay check each copy by hash
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t,
        requires = "record"
    )]
    record_payload: Payload,
}

/// The files, open before the process gives up opening files.
#[derive(Debug, Default)]
pub struct Recordings {
    files: Vec<(PathBuf, File)>,
    limit: u64,
    payload: Payload,
}

impl RecordArgs {
    /// Opens the files of `devices` devices.
    ///
    /// # Errors
    /// A sentence that names the option, the file and the reason.
    pub fn open(&self, devices: usize) -> Result<Recordings, String> {
        let Some(path) = &self.record else {
            return Ok(Recordings::default());
        };
        if self.record_limit < MIN_RECORDING {
            return Err("--record-limit: less than 1M is not worth a recording".to_owned());
        }
        Ok(Recordings {
            files: open("record", path, devices)?,
            limit: self.record_limit,
            payload: self.record_payload,
        })
    }
}

/// What a recording says of a device without adversary.
pub fn header(config: &Config, speed: Speed) -> Header {
    Header {
        timing: match speed {
            Speed::Instant => None,
            Speed::Factor(factor) => Some(factor),
        },
        ..Header::new(config, Payload::Full)
    }
}

/// Opens the files of an option for `devices` devices.
///
/// # Errors
/// A sentence that names the option, the file and the reason.
pub fn open(option: &str, path: &Path, devices: usize) -> Result<Vec<(PathBuf, File)>, String> {
    (0..devices)
        .map(|n| {
            let path = numbered(path, n, devices);
            let file = outputs::create(&format!("--{option}"), &path)?;
            Ok((path, file))
        })
        .collect()
}

fn numbered(path: &Path, n: usize, devices: usize) -> PathBuf {
    if devices == 1 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

impl Recordings {
    /// A recording was asked for.
    pub const fn is_wanted(&self) -> bool {
        !self.files.is_empty()
    }

    /// Begins the recording of the next device.
    ///
    /// # Errors
    /// A sentence that names the file and the reason.
    pub fn start(
        &mut self,
        config: &Config,
        speed: Speed,
        adversary: Option<String>,
    ) -> Result<Option<Arc<Journal>>, String> {
        if self.files.is_empty() {
            return Ok(None);
        }
        if adversary.is_some() && self.payload == Payload::None {
            return Err("--record-payload none cannot be combined with --adversary: what it writes late is no longer what was just read, so that a replay could not check it; record payload in full".to_owned());
        }
        let (path, file) = self.files.remove(0);
        let header = Header {
            adversary,
            payload: self.payload,
            ..header(config, speed)
        };
        Journal::start(file, &header, self.limit, &path.display().to_string())
            .map(Some)
            .map_err(|error| format!("--record {}: {error}", path.display()))
    }
}

/// Creates a file for something else to fill, for `replay --rewrite` and the like.
///
/// # Errors
/// A sentence that names the file and the reason.
pub fn create(path: &Path) -> Result<impl Write + Send + use<>, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

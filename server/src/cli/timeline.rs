//! Options of the time line.
use std::fs::File;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use super::size;
use crate::observe::timeline::Options;
use crate::outputs;

/// Smallest limit that leaves room for anything but the end.
const MIN_LIMIT: u64 = 1 << 20;

/// Where to draw, and what.
#[derive(Args, Clone, Debug)]
pub struct TimelineArgs {
    /// Write a time line of all devices to FILE, a Perfetto trace: doorbells, batches with their descriptors, markers,
    /// barriers, resets, mailbox exchanges, aborts. Open it in ui.perfetto.dev; `merge` adds the guest's half
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,

    /// Size at which a time line ends, so that it cannot fill the disk
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = limit)]
    timeline_limit: u64,

    /// Also draw every N-th register access
    #[arg(long, value_name = "N")]
    timeline_registers: Option<NonZeroU32>,
}

fn limit(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes < MIN_LIMIT {
        return Err(format!(
            "{text} holds next to nothing; give {} or more",
            size::exact(MIN_LIMIT)
        ));
    }
    Ok(bytes)
}

impl TimelineArgs {
    /// Opens the file, which must happen before the process gives up its rights.
    ///
    /// # Errors
    /// A sentence that names option, file and reason.
    pub fn open(&self) -> Result<Option<File>, String> {
        let Some(path) = &self.timeline else {
            return Ok(None);
        };
        outputs::create("--timeline", path).map(Some)
    }

    /// How every time line of this process is made.
    pub fn options(&self) -> Options {
        Options {
            limit: self.timeline_limit,
            registers: self.timeline_registers,
            ..Options::default()
        }
    }
}

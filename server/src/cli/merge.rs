//! `merge`: both halves of a copy on one clock.
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::exit::Exit;
use crate::observe::timeline::merge::merge;

/// Larger files are not what the options ask for.
const MAX_INPUT: u64 = 4 << 30;

/// Below the options in `merge --help`.
pub const NOTES: &str = "\
TIMELINE is what `serve --timeline` wrote. FTRACE is the text of /sys/kernel/tracing/trace of the guest, with the driver's \
dma_* events on; docs/timeline.md has three probes to set there for the copies that pass no event. The two clocks \
are joined by what must be so: a driver rings before the device sees it, and acknowledges after the marker was written. The \
offset, its uncertainty and the drift are printed and stand in the result. Files that no clock fits are refused.";

/// Options of `merge`.
#[derive(Args, Debug)]
pub struct MergeArgs {
    /// The device's half
    #[arg(value_name = "TIMELINE")]
    timeline: PathBuf,

    /// The guest's half
    #[arg(value_name = "FTRACE")]
    ftrace: PathBuf,

    /// Where to write the merged trace
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,

    /// Routing id of the device whose driver FTRACE is of; not needed for the only one
    #[arg(long, value_name = "ID")]
    device: Option<u8>,
}

impl MergeArgs {
    /// Merges.
    pub fn run(&self) -> Exit {
        match self.merge() {
            Ok(text) => {
                super::print(&text);
                Exit::Ok
            }
            Err(error) => {
                eprintln!("error: {error}");
                Exit::Failed
            }
        }
    }

    fn merge(&self) -> Result<String, String> {
        let timeline = read(&self.timeline)?;
        let ftrace = read(&self.ftrace)?;
        let merged = merge(&timeline, &String::from_utf8_lossy(&ftrace), self.device)
            .map_err(|error| error.to_string())?;
        File::create(&self.output)
            .and_then(|mut file| file.write_all(&merged.bytes))
            .map_err(|error| format!("{}: {error}", self.output.display()))?;
        Ok(merged.to_string())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_INPUT + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(format!("{}: larger than 4 GiB", path.display()));
    }
    Ok(bytes)
}

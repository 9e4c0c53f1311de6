//! One directory per run, with its logs.
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::artifacts;

/// Directories kept; older ones are removed.
const KEEP: usize = 60;

/// Makes the next directory, `target/guest-runs/0042-LABEL`.
///
/// # Errors
/// The target directory cannot be written.
pub fn create(label: &str) -> Result<PathBuf> {
    let base = artifacts::target().join("guest-runs");
    fs::create_dir_all(&base).with_context(|| format!("cannot make {}", base.display()))?;
    let mut known: Vec<(u32, PathBuf)> = fs::read_dir(&base)?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path
                .file_name()?
                .to_str()?
                .split('-')
                .next()?
                .parse()
                .ok()?;
            Some((number, path))
        })
        .collect();
    known.sort();
    let old = known.len().saturating_sub(KEEP - 1);
    for (_, path) in known.drain(..old) {
        // Somebody else may be removing it too.
        let _ = fs::remove_dir_all(path);
    }
    let first = known.last().map_or(1, |(number, _)| number + 1);
    for number in first..first + 100 {
        let dir = base.join(format!("{number:04}-{label}"));
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", dir.display()));
            }
        }
    }
    bail!("no free run directory in {}", base.display())
}

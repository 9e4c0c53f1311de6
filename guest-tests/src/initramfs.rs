//! The guest's whole file system: `init`, the module, and a shell when one is asked for.
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cpio::Archive;

/// Where the module lies in the guest.
pub const MODULE: &str = "/neuron.ko";

/// Writes the archive.
///
/// # Errors
/// A file that cannot be read or written.
pub fn write(to: &Path, init: &Path, module: &[u8], busybox: Option<&Path>) -> Result<()> {
    let read = |path: &Path| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    let mut archive = Archive::new(BufWriter::new(file));
    for dir in ["dev", "proc", "sys", "tmp", "bin", "sbin"] {
        archive.dir(dir)?;
    }
    // The kernel opens it before anything mounts a devtmpfs.
    archive.char_device("dev/console", 5, 1)?;
    archive.file("init", 0o755, &read(init)?)?;
    archive.file(MODULE.trim_start_matches('/'), 0o644, module)?;
    if let Some(busybox) = busybox {
        archive.file("bin/busybox", 0o755, &read(busybox)?)?;
        archive.symlink("bin/sh", "busybox")?;
    }
    archive.finish().context("cannot write the initramfs")?;
    Ok(())
}

//! Loading and unloading the driver, with reasons a person can act on.
use std::ffi::CString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::system::{delete_module, finit_module};

use crate::boot;

/// A module file and what its `.modinfo` says.
#[derive(Clone, Debug)]
pub struct Module {
    /// Where the file is.
    pub path: PathBuf,
    /// Name after loading: `name=`, else the file name.
    pub name: String,
    /// `version=`, if any.
    pub version: Option<String>,
    /// `vermagic=`: kernel release, then configuration words.
    pub vermagic: Option<String>,
}

impl Module {
    /// Finds `file` as given, or by its name in the places an initramfs keeps it.
    ///
    /// # Errors
    /// When it is nowhere, with the places that were searched.
    pub fn find(file: &str) -> Result<Self> {
        let name = Path::new(file).file_name().context("empty module name")?;
        let places = [
            PathBuf::from(file),
            Path::new("/").join(name),
            Path::new("/lib/modules").join(name),
            Path::new("/lib").join(name),
        ];
        let path = places
            .iter()
            .find(|p| p.is_file())
            .cloned()
            .ok_or_else(|| {
                let places: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
                anyhow!(
                    "no such file in the initramfs (looked at {})",
                    places.join(", ")
                )
            })?;
        let image = fs::read(&path).with_context(|| path.display().to_string())?;
        let stem = path
            .file_stem()
            .map(|s| s.to_string_lossy().replace('-', "_"))
            .unwrap_or_default();
        Ok(Self {
            name: modinfo(&image, "name").unwrap_or(stem),
            version: modinfo(&image, "version"),
            vermagic: modinfo(&image, "vermagic"),
            path,
        })
    }

    /// Loads it. Blocks for as long as the driver's probe takes.
    ///
    /// # Errors
    /// The kernel's refusal, explained.
    pub fn load(&self, arguments: &str) -> Result<()> {
        let file = File::open(&self.path).with_context(|| self.path.display().to_string())?;
        let arguments = CString::new(arguments).context("module arguments hold a NUL")?;
        finit_module(&file, &arguments, 0).map_err(|error| anyhow!(self.explain(error)))
    }

    fn explain(&self, error: Errno) -> String {
        let running = boot::kernel_release();
        if let (Errno::NOEXEC, Some(magic)) = (error, &self.vermagic) {
            let built_for = magic.split_whitespace().next().unwrap_or_default();
            if built_for != running {
                return format!(
                    "built for kernel {built_for}, but this guest runs {running}: build it against the headers of \
                     {running}, or boot {built_for}"
                );
            }
            return format!(
                "the kernel refuses the file although it names {built_for}: see the kernel message above"
            );
        }
        match error {
            Errno::NOEXEC => "not a kernel module (compressed files must be unpacked first)".into(),
            Errno::EXIST => "already loaded".into(),
            Errno::NOENT => "unresolved symbols, or an unknown parameter: see the kernel message above".into(),
            Errno::INVAL => "the kernel or the module refuses it: wrong parameter value, or built for another configuration; see the kernel message above".into(),
            other => format!("{other}"),
        }
    }

    /// Unloads it, waiting for late users to let go.
    ///
    /// # Errors
    /// When it is still in use after five seconds, or the kernel refuses.
    pub fn unload(&self) -> Result<()> {
        let name = CString::new(self.name.as_str()).context("module name")?;
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).context("O_NONBLOCK")?;
        let begin = Instant::now();
        loop {
            match delete_module(&name, nonblock) {
                Ok(()) => return Ok(()),
                // Closing a device is finished by the kernel shortly after the process is reaped.
                Err(Errno::AGAIN | Errno::BUSY) if begin.elapsed() < Duration::from_secs(5) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Errno::AGAIN | Errno::BUSY) => {
                    bail!("module {} is still in use after 5 s", self.name)
                }
                Err(error) => bail!("module {}: {error}", self.name),
            }
        }
    }

    /// Whether the kernel lists it.
    pub fn is_loaded(&self) -> bool {
        Path::new("/sys/module")
            .join(&self.name)
            .join("initstate")
            .exists()
    }
}

/// Value of `key=` in the NUL-separated `.modinfo` strings of an image.
fn modinfo(image: &[u8], key: &str) -> Option<String> {
    let wanted = [b"\0", key.as_bytes(), b"="].concat();
    let from = image.windows(wanted.len()).position(|w| w == wanted)? + wanted.len();
    let value = image[from..].split(|b| *b == 0).next()?;
    String::from_utf8(value.to_vec())
        .ok()
        .filter(|v| !v.is_empty() && v.len() < 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modinfo_is_read_between_nuls() {
        let image = b"\x7fELF..\0license=GPL\0vermagic=6.1.0-57-amd64 SMP\0name=neuron\0version=2.25.4.0\0srcversion=1\0";
        assert_eq!(
            modinfo(image, "vermagic").as_deref(),
            Some("6.1.0-57-amd64 SMP")
        );
        assert_eq!(modinfo(image, "version").as_deref(), Some("2.25.4.0"));
        assert_eq!(modinfo(image, "name").as_deref(), Some("neuron"));
        assert_eq!(modinfo(image, "depends"), None);
    }
}

//! Where the things are that a guest needs: made by cargo and make, or fetched by the scripts.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::vmlinux;

/// The clone this launcher was built from.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Everything made goes below here.
pub fn target() -> PathBuf {
    root().join("target")
}

/// Downloads and answers that outlive a clone.
pub fn cache() -> PathBuf {
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let base = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")));
    base.unwrap_or_else(std::env::temp_dir)
        .join("neuron-vfio-user")
}

/// The device server.
///
/// # Errors
/// Not built.
pub fn server() -> Result<PathBuf> {
    built(
        "NEURON_SERVER",
        "release/neuron-vfio-user",
        "the device server",
    )
}

/// PID 1 of the guest.
///
/// # Errors
/// Not built.
pub fn init() -> Result<PathBuf> {
    built(
        "NEURON_INIT",
        "release/neuron-guest-init",
        "the guest's init",
    )
}

fn built(variable: &str, path: &str, what: &str) -> Result<PathBuf> {
    let file = std::env::var_os(variable)
        .filter(|v| !v.is_empty())
        .map_or_else(|| target().join(path), PathBuf::from);
    if !file.is_file() {
        bail!(
            "{what} is not built ({} is missing)\nremedy: scripts/build",
            file.display()
        );
    }
    Ok(file)
}

/// A guest kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What QEMU boots: an ELF if it could be unpacked.
    pub image: PathBuf,
    /// `uname -r` of it, if known.
    pub release: Option<String>,
    /// Header tree for modules; only for kernels that `get-kernel` fetched.
    pub headers: Option<PathBuf>,
    /// Static busybox for `--shell`.
    pub busybox: Option<PathBuf>,
}

/// Finds a kernel: a version that `scripts/get-kernel` knows, or a vmlinux or bzImage file.
///
/// # Errors
/// Neither of them, or it cannot be fetched.
pub fn kernel(name: &str) -> Result<Kernel> {
    let file = Path::new(name);
    if file.is_file() {
        let image = vmlinux::bootable(file, &cache().join("unpacked").join(file_key(file)))?;
        let release = release_of(&image);
        return Ok(Kernel {
            image,
            release,
            headers: None,
            busybox: None,
        });
    }
    if !matches!(name, "6.1" | "6.12") {
        bail!("kernel {name:?} is neither 6.1, 6.12 nor a file (a vmlinux or bzImage)");
    }
    let dir = PathBuf::from(script("get-kernel", &[name])?);
    let image = vmlinux::bootable(&dir.join("vmlinuz"), &dir)?;
    let release = std::fs::read_to_string(dir.join("release"))
        .context("the fetched kernel has no release file")?;
    Ok(Kernel {
        image,
        release: Some(release.trim().to_owned()),
        headers: Some(dir.join("build")),
        busybox: Some(dir.join("busybox")),
    })
}

fn file_key(file: &Path) -> String {
    let full = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    full.to_string_lossy()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect()
}

/// Reads "Linux version R " out of an uncompressed kernel.
fn release_of(image: &Path) -> Option<String> {
    let data = std::fs::read(image).ok()?;
    let mark = b"Linux version ";
    data.windows(mark.len())
        .enumerate()
        .filter(|(_, w)| w == mark)
        .find_map(|(at, _)| {
            let rest = data.get(at + mark.len()..at + mark.len() + 100)?;
            let word: Vec<u8> = rest
                .iter()
                .copied()
                .take_while(u8::is_ascii_graphic)
                .collect();
            // The format string of the same banner starts with '%'.
            (word.first()?.is_ascii_digit()).then(|| String::from_utf8_lossy(&word).into_owned())
        })
}

/// Our own module for a kernel, built if its sources are newer.
///
/// # Errors
/// No header tree for this kernel, or the build failed.
pub fn own_driver(kernel: &Kernel) -> Result<PathBuf> {
    let Some(headers) = &kernel.headers else {
        bail!(
            "no driver for a kernel given as a file: build one against that kernel and give it by --driver FILE.ko"
        );
    };
    Ok(PathBuf::from(script(
        "build-driver",
        &[&headers.to_string_lossy()],
    )?))
}

/// A QEMU that has `vfio-user-pci`.
///
/// # Errors
/// It cannot be fetched, or the one that `QEMU` names does not run.
pub fn qemu() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("QEMU").filter(|v| !v.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    Ok(PathBuf::from(script("get-qemu", &[])?))
}

/// Runs a script of ours and takes the last line of its output; its progress goes to our standard error.
fn script(name: &str, args: &[&str]) -> Result<String> {
    let path = root().join("scripts").join(name);
    let output = Command::new(&path)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().last() {
        Some(line) if output.status.success() => Ok(line.to_owned()),
        _ => bail!(
            "scripts/{name} {} failed ({}); its messages are above",
            args.join(" "),
            output.status
        ),
    }
}

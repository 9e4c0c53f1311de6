//! What lies in `--driver-dir`: one folder per kernel, module files in each.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use neuron_protocol::generation::VENDOR_ID;

use super::cell::{Driver, KernelChoice, OWN, version_key};
use crate::module::Module;

/// Kernels that `scripts/get-kernel` knows.
pub const KERNELS: [&str; 2] = ["6.1", "6.12"];
/// Names of a kernel image beside the modules, for kernels that `get-kernel` does not know.
const IMAGES: [&str; 3] = ["vmlinux", "vmlinuz", "bzImage"];
/// A directory with more is not what was meant.
const MAX_MODULES: usize = 1000;

/// A kernel with the drivers built for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Guest kernel.
    pub kernel: KernelChoice,
    /// Oldest version first.
    pub drivers: Vec<Arc<Driver>>,
}

/// Our own module on every kernel that can be fetched.
pub fn own() -> Vec<Folder> {
    let driver = Arc::new(Driver {
        label: OWN.to_owned(),
        file: None,
        pci_ids: std::collections::BTreeSet::new(),
    });
    KERNELS
        .iter()
        .map(|name| Folder {
            kernel: fetched(name),
            drivers: vec![Arc::clone(&driver)],
        })
        .collect()
}

fn fetched(name: &str) -> KernelChoice {
    KernelChoice {
        name: name.to_owned(),
        source: name.to_owned(),
    }
}

/// Reads a directory.
///
/// # Errors
/// Nothing usable in it, a kernel that cannot be had, a file that is no module, two modules of one version.
pub fn discover(dir: &Path) -> Result<Vec<Folder>> {
    let mut folders = Vec::new();
    for path in entries(dir)? {
        if !path.is_dir() {
            continue;
        }
        let drivers = modules(&path)?;
        if drivers.is_empty() {
            continue;
        }
        folders.push(Folder {
            kernel: kernel_of(&path)?,
            drivers,
        });
    }
    if folders.is_empty() {
        bail!(
            "--driver-dir {}: no module in it; expected one folder per kernel, such as {}/6.1/neuron-2.25.4.0.ko",
            dir.display(),
            dir.display()
        );
    }
    folders.sort_by_key(|f| version_key(&f.kernel.name));
    Ok(folders)
}

fn kernel_of(folder: &Path) -> Result<KernelChoice> {
    let name = folder
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    if name.chars().any(|c| c == '/' || c.is_whitespace()) {
        bail!(
            "{}: a kernel's folder has no spaces in its name",
            folder.display()
        );
    }
    if KERNELS.contains(&name.as_str()) {
        return Ok(fetched(&name));
    }
    match IMAGES.iter().map(|i| folder.join(i)).find(|i| i.is_file()) {
        Some(image) => Ok(KernelChoice {
            name,
            source: image.to_string_lossy().into_owned(),
        }),
        None => bail!(
            "{}: kernel {name} is not one that scripts/get-kernel fetches ({}); put its vmlinux or bzImage into the folder",
            folder.display(),
            KERNELS.join(", ")
        ),
    }
}

fn modules(folder: &Path) -> Result<Vec<Arc<Driver>>> {
    let mut drivers: Vec<Arc<Driver>> = Vec::new();
    for path in entries(folder)? {
        if path.extension().is_none_or(|e| e != "ko") {
            continue;
        }
        let module = Module::open(&path)?;
        let pci_ids = module.pci_ids(VENDOR_ID);
        let label = label(&path, module.version.as_deref());
        if let Some(twin) = drivers.iter().find(|d| d.label == label) {
            bail!(
                "{} and {} both say version {label}: cells are named by it; keep one, or give the other its own MODULE_VERSION",
                twin.file.as_deref().unwrap_or(Path::new("?")).display(),
                path.display()
            );
        }
        drivers.push(Arc::new(Driver {
            label,
            file: Some(path),
            pci_ids,
        }));
        if drivers.len() > MAX_MODULES {
            bail!("{}: more than {MAX_MODULES} modules", folder.display());
        }
    }
    drivers.sort_by_key(|d| (version_key(&d.label), d.label.clone()));
    Ok(drivers)
}

/// The version, made fit for a name; a module without one goes by its file's name.
fn label(path: &Path, version: Option<&str>) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned());
    let text = version
        .map(str::to_owned)
        .filter(|v| !v.trim().is_empty())
        .or(stem)
        .unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+~".contains(c);
    text.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let list = std::fs::read_dir(dir)
        .with_context(|| format!("driver directory {} cannot be read", dir.display()))?;
    let mut paths = list
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::module::tests::module_file;

    #[test]
    fn folders_are_kernels_and_versions_come_from_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, bytes: &[u8]| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        put("6.12/b.ko", &module_file("2.25.4.0", &[0x7164, 0x7564]));
        put("6.12/a.ko", &module_file("2.9.1.0", &[0x7164]));
        put("6.1/x.ko", &module_file("2.24.7.0", &[]));
        put("6.1/README", b"not a module");
        fs::create_dir(dir.path().join("empty")).unwrap();
        let folders = discover(dir.path()).unwrap();
        let seen: Vec<_> = folders
            .iter()
            .flat_map(|f| {
                f.drivers
                    .iter()
                    .map(|d| (f.kernel.name.clone(), d.label.clone()))
            })
            .collect();
        let expected = [
            ("6.1", "2.24.7.0"),
            ("6.12", "2.9.1.0"),
            ("6.12", "2.25.4.0"),
        ];
        assert_eq!(seen, expected.map(|(k, d)| (k.to_owned(), d.to_owned())));
        assert_eq!(
            folders[1].drivers[1]
                .pci_ids
                .iter()
                .copied()
                .collect::<Vec<_>>(),
            [0x7164, 0x7564]
        );
        // A twin would have the same name.
        put("6.12/c.ko", &module_file("2.25.4.0", &[]));
        let error = discover(dir.path()).unwrap_err().to_string();
        assert!(error.contains("b.ko") && error.contains("c.ko"), "{error}");
    }

    #[test]
    fn a_kernel_that_cannot_be_fetched_needs_its_image() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("6.6.30");
        fs::create_dir(&folder).unwrap();
        assert!(
            discover(dir.path())
                .unwrap_err()
                .to_string()
                .contains("one folder per kernel")
        );
        fs::write(folder.join("n.ko"), module_file("1", &[])).unwrap();
        let error = discover(dir.path()).unwrap_err().to_string();
        assert!(error.contains("vmlinux"), "{error}");
        fs::write(folder.join("bzImage"), b"x").unwrap();
        let found = discover(dir.path()).unwrap();
        assert!(found[0].kernel.source.ends_with("6.6.30/bzImage"));
        assert_eq!(found[0].kernel.name, "6.6.30");
    }

    #[test]
    fn labels_are_fit_for_names() {
        assert_eq!(label(Path::new("d/n-1.ko"), None), "n-1");
        assert_eq!(label(Path::new("n.ko"), Some("2.1 beta/3")), "2.1_beta_3");
    }
}

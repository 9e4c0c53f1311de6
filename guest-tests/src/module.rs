//! What a kernel module file says about itself, read before a guest is booted with it.
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::read::elf::ElfFile64;
use object::{Object, ObjectKind, ObjectSection};

/// A real driver with debug information has 9 MB.
const MAX_MODULE: u64 = 256 << 20;

/// A module file that was checked.
#[derive(Debug)]
pub struct Module {
    /// The file's bytes.
    pub bytes: Vec<u8>,
    /// Name in the kernel, from `.modinfo`.
    pub name: String,
    /// The module's own version, if it states one.
    pub version: Option<String>,
    /// Kernel release, first word of `vermagic`.
    pub release: String,
}

impl Module {
    /// Reads and checks a `.ko` file.
    ///
    /// # Errors
    /// A missing file, or one that is not a loadable x86-64 module.
    pub fn open(path: &Path) -> Result<Self> {
        let size = fs::metadata(path)
            .with_context(|| format!("driver file {} cannot be read", path.display()))?
            .len();
        if size > MAX_MODULE {
            bail!(
                "driver file {} has {size} bytes: that is no kernel module",
                path.display()
            );
        }
        let bytes = fs::read(path)
            .with_context(|| format!("driver file {} cannot be read", path.display()))?;
        Self::parse(bytes)
            .with_context(|| format!("driver file {} is not a kernel module", path.display()))
    }

    fn parse(bytes: Vec<u8>) -> Result<Self> {
        if bytes.starts_with(b"\xfd7zXZ")
            || bytes.starts_with(b"\x28\xb5\x2f\xfd")
            || bytes.starts_with(b"\x1f\x8b")
        {
            bail!("it is compressed: unpack it first (xz -d, zstd -d or gunzip)");
        }
        let elf: ElfFile64 = ElfFile64::parse(&*bytes).map_err(|e| anyhow::anyhow!("{e}"))?;
        if elf.kind() != ObjectKind::Relocatable
            || elf.architecture() != object::Architecture::X86_64
        {
            bail!("it is an ELF file, but not a relocatable one for x86-64");
        }
        let section = elf
            .section_by_name(".modinfo")
            .context("it has no .modinfo section (an object file, not a .ko?)")?;
        let info = section
            .data()
            .map_err(|e| anyhow::anyhow!(".modinfo: {e}"))?;
        let field = |key: &str| {
            info.split(|b| *b == 0).find_map(|entry| {
                let text = std::str::from_utf8(entry).ok()?;
                text.strip_prefix(key)?.strip_prefix('=').map(str::to_owned)
            })
        };
        let magic = field("vermagic").context(
            "its .modinfo has no vermagic (the last step of the module build is missing)",
        )?;
        let release = magic
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned();
        let name = field("name").context("its .modinfo has no name")?;
        let version = field("version");
        Ok(Self {
            bytes,
            name,
            version,
            release,
        })
    }

    /// Refuses a module that this kernel would not load.
    ///
    /// # Errors
    /// Built for another release; names both and the remedy.
    pub fn check_release(&self, path: &Path, kernel: &str) -> Result<()> {
        if self.release != kernel {
            bail!(
                "driver file {} is built for kernel {}, the guest runs {kernel}\n\
                 remedy: build it against the tree that `scripts/get-kernel --headers 6.1|6.12` prints \
                 (make -C TREE M=$PWD modules), or give the matching --kernel",
                path.display(),
                self.release
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_module_are_told_apart() {
        let say = |bytes: &[u8]| format!("{:#}", Module::parse(bytes.to_vec()).unwrap_err());
        assert!(say(b"hello").contains("magic") || !say(b"hello").is_empty());
        assert!(say(b"\xfd7zXZ\0....").contains("compressed"));
        let own = fs::read("/proc/self/exe").unwrap();
        assert!(say(&own).contains("not a relocatable"));
    }

    #[test]
    fn release_mismatch_names_both_kernels_and_the_remedy() {
        let module = Module {
            bytes: vec![],
            name: "m".into(),
            version: None,
            release: "6.12.1".into(),
        };
        module.check_release(Path::new("m.ko"), "6.12.1").unwrap();
        let error = module
            .check_release(Path::new("m.ko"), "6.1.0")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("6.12.1")
                && error.contains("6.1.0")
                && error.contains("get-kernel --headers"),
            "{error}"
        );
    }
}

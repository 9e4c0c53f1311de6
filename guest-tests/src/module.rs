//! What a kernel module file says about itself, read before a guest is booted with it.
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::read::elf::ElfFile64;
use object::{Object, ObjectKind, ObjectSection, SectionKind};

/// A real driver with debug information has 9 MB.
const MAX_MODULE: u64 = 256 << 20;

/// A module file that was checked.
#[derive(Clone, Debug)]
pub struct Module {
    /// The file's bytes.
    pub bytes: Vec<u8>,
    /// Name in the kernel, from `.modinfo`.
    pub name: String,
    /// The module's own version, if it states one.
    pub version: Option<String>,
    /// Kernel release, first word of `vermagic`.
    pub release: String,
    /// Names of its parameters.
    pub parameters: BTreeSet<String>,
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
        let parameters = info
            .split(|byte| *byte == 0)
            .filter_map(|entry| {
                let text = std::str::from_utf8(entry).ok()?;
                let (name, _) = text.strip_prefix("parmtype=")?.split_once(':')?;
                Some(name.to_owned())
            })
            .collect();
        Ok(Self {
            bytes,
            name,
            version,
            release,
            parameters,
        })
    }

    /// Device ids of one vendor in the module's `struct pci_device_id` tables. The `alias` lines of `.modinfo` are no
    /// substitute: real drivers export an empty or stale table there and bind by another one.
    pub fn pci_ids(&self, vendor: u16) -> BTreeSet<u16> {
        let Ok(elf) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else {
            return BTreeSet::new();
        };
        elf.sections()
            .filter(|s| matches!(s.kind(), SectionKind::Data | SectionKind::ReadOnlyData))
            .filter_map(|s| s.data().ok())
            .flat_map(|data| pci_entries(data, vendor))
            .collect()
    }

    /// Refuses parameters that the module does not have: the kernel loads it all the same and says so in its log alone.
    ///
    /// # Errors
    /// Names the parameter and those that there are.
    pub fn check_parameters(&self, arguments: &str) -> Result<()> {
        // To the kernel a dash in a name is an underscore.
        let plain = |name: &str| name.replace('-', "_");
        for argument in arguments.split_whitespace() {
            let name = argument.split('=').next().unwrap_or(argument);
            // The kernel's own, which every module takes.
            let common = ["async_probe", "dyndbg"];
            if common.contains(&plain(name).as_str())
                || self
                    .parameters
                    .iter()
                    .any(|known| plain(known) == plain(name))
            {
                continue;
            }
            let known: Vec<&str> = self.parameters.iter().map(String::as_str).collect();
            bail!(
                "--driver-args: module {} has no parameter {name:?}; it has {}",
                self.name,
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            );
        }
        Ok(())
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

/// An entry begins with four words: vendor, device, and two subsystem ids that are all ones for "any".
fn pci_entries(data: &[u8], vendor: u16) -> impl Iterator<Item = u16> {
    let words: Vec<u32> = data
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect();
    let entry = move |w: &[u32]| match w {
        [v, device, u32::MAX, u32::MAX] if *v == u32::from(vendor) => u16::try_from(*device).ok(),
        _ => None,
    };
    let found: Vec<u16> = words.windows(4).filter_map(entry).collect();
    found.into_iter()
}

#[cfg(test)]
pub(crate) mod tests {
    use object::write::{Object as Writer, StandardSegment};
    use object::{Architecture, BinaryFormat, Endianness};

    use super::*;

    /// A file that passes for a module of a version, with a PCI table.
    pub(crate) fn module_file(version: &str, pci_ids: &[u16]) -> Vec<u8> {
        let mut file = Writer::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let segment = file.segment_name(StandardSegment::Data).to_vec();
        let info = file.add_section(segment.clone(), b".modinfo".to_vec(), SectionKind::Data);
        let text = format!("version={version}\0name=neuron\0vermagic=6.1.0-test SMP\0");
        file.append_section_data(info, text.as_bytes(), 1);
        let table = file.add_section(segment, b".rodata".to_vec(), SectionKind::ReadOnlyData);
        for id in pci_ids {
            let entry: [u32; 10] = [0x1d0f, u32::from(*id), u32::MAX, u32::MAX, 0, 0, 0, 0, 0, 0];
            let bytes: Vec<u8> = entry.iter().flat_map(|w| w.to_le_bytes()).collect();
            file.append_section_data(table, &bytes, 8);
        }
        file.write().unwrap()
    }

    #[test]
    fn pci_table_is_found_and_stale_aliases_are_not_taken_for_it() {
        let ids = |file: Vec<u8>| Module::parse(file).unwrap().pci_ids(0x1d0f);
        assert_eq!(
            ids(module_file("2.1", &[0x7164, 0x7564])),
            BTreeSet::from([0x7164, 0x7564])
        );
        assert!(ids(module_file("2.1\0alias=pci:v00001d0fd00007064sv*", &[])).is_empty());
        // Another vendor's, or one bound to a subsystem.
        let table = |words: [u32; 4]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            pci_entries(&bytes, 0x1d0f).count()
        };
        assert_eq!(table([0x1d0f, 0x7164, u32::MAX, u32::MAX]), 1);
        assert_eq!(table([0x8086, 0x7164, u32::MAX, u32::MAX]), 0);
        assert_eq!(table([0x1d0f, 0x0001_7164, u32::MAX, u32::MAX]), 0);
        assert_eq!(table([0x1d0f, 0x7164, 0, 0]), 0);
    }

    #[test]
    fn parameters_that_the_module_does_not_have_are_refused() {
        let file = module_file(
            "1\0parmtype=dup_helper_enable:int\0parm=x:text\0parmtype=wc_en:int",
            &[],
        );
        let module = Module::parse(file).unwrap();
        for fine in ["", "wc_en=1 dup-helper-enable=0", "dyndbg=+p wc_en"] {
            module.check_parameters(fine).unwrap();
        }
        let error = module.check_parameters("wc_en=1 wc_enn=0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "--driver-args: module neuron has no parameter \"wc_enn\"; it has dup_helper_enable, wc_en"
        );
    }

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
            parameters: BTreeSet::new(),
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

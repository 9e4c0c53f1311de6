//! Options shared by everything that boots a guest, and their resolution into a lane.
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use neuron_protocol::generation::{Platform, Product, VENDOR_ID};

use crate::accel::{self, Choice};
use crate::known::Known;
use crate::lane::Lane;
use crate::module::Module;
use crate::progress::Progress;
use crate::qemu::{self, Backing, Qemu};
use crate::{artifacts, coverage};

/// What to boot and what to run in it.
#[derive(Clone, Debug, clap::Args)]
pub struct GuestOptions {
    /// Device model: trn1, inf2, trn2 or trn3
    #[arg(long, default_value = "trn2")]
    pub product: Product,
    /// What the driver takes its surroundings to be: silicon, qemu or emulator
    #[arg(long, default_value = "qemu")]
    pub platform: Platform,
    /// Guest kernel: 6.1, 6.12 (fetched) or a vmlinux or bzImage file
    #[arg(long, default_value = "6.1", value_name = "6.1|6.12|FILE")]
    pub kernel: String,
    /// Kernel module to test; default: the one of this project, built for the kernel
    #[arg(long, value_name = "FILE.ko")]
    pub driver: Option<PathBuf>,
    /// Parameters for the module, as for insmod
    #[arg(long, value_name = "ARGS", default_value = "")]
    pub driver_args: String,
    /// Scenarios: names with commas between, `all`, `none`, or `all,-name` to leave some out
    #[arg(long, default_value = "all", value_name = "A,B|all")]
    pub scenario: String,
    /// Defects that drivers are known to have (docs/testing.md): a scenario of theirs runs in a boot of its own, and
    /// must fail by the very line of the kernel's log that the file gives
    #[arg(long, value_name = "FILE.toml")]
    pub known: Option<PathBuf>,
    /// Devices in the guest
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub devices: u8,
    /// Put each device behind a `pcie-root-port`, from which the scenarios `hotplug` and `hotplug_busy` pull it
    #[arg(long)]
    pub hotplug: bool,
    /// Virtualisation; auto: KVM if it can really run a guest here
    #[arg(long, value_enum, default_value_t)]
    pub accel: Choice,
    /// Let the guest live in virtual time (QEMU -icount): what it sleeps costs no time, and no budget of its driver runs
    /// out because the host is busy. Emulation alone can do it, one CPU at a time
    #[arg(long)]
    pub virtual_time: bool,
    /// Guest memory in MiB [default: 2048, and 512 more for each further device]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(256..=1_048_576))]
    pub memory: Option<u32>,
    /// How the device gets at guest memory; `private` and `messages` are what a QEMU without `share=on` does
    #[arg(long, value_enum, default_value_t)]
    pub guest_memory: Backing,
    /// Guest CPUs; with one alone the kernel's stall detection starves while a driver polls
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
    /// Limit of the whole run in seconds
    #[arg(long, default_value_t = 420, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Text that the guest's log must contain (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub require: Vec<String>,
    /// Text that it must not contain, beside oopses, warnings and DMA timeouts (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub reject: Vec<String>,
    /// Further kernel command line
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub append: String,
    /// Further QEMU argument (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_arg: Vec<OsString>,
    /// Do not judge the driver by the rules of the ring cycle (docs/sanitizer.md)
    #[arg(long)]
    pub no_sanitize: bool,
    /// Where the device's reports go (docs/ci.md) [default: beside the run's logs]
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Trace the driver in the guest, by its own events and by probes, and write the text here: for `neuron-vfio-user
    /// merge`, with `-- --timeline FILE` (docs/timeline.md)
    #[arg(long, value_name = "FILE")]
    pub ftrace: Option<PathBuf>,
    /// Options of the device server (see `neuron-vfio-user serve --help`)
    #[arg(last = true, value_name = "SERVER OPTIONS")]
    pub server_args: Vec<OsString>,
}

impl GuestOptions {
    fn check_texts(&self) -> Result<()> {
        for (option, text) in [
            ("--driver-args", &self.driver_args),
            ("--append", &self.append),
            ("--scenario", &self.scenario),
        ] {
            if text.contains('"') || text.contains('\n') {
                bail!("{option}: quotes and line ends cannot be passed on the kernel command line");
            }
        }
        Ok(())
    }

    /// Checks everything that can be checked before a boot.
    ///
    /// # Errors
    /// The first thing that is wrong, with its remedy.
    pub fn lane(&self, progress: &mut Progress) -> Result<Lane> {
        self.check_texts()?;
        let report = self
            .report
            .as_deref()
            .map(std::path::absolute)
            .transpose()?;
        if let Some(directory) = &report {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("--report {}: cannot be made", directory.display()))?;
        }
        let ftrace = self
            .ftrace
            .as_deref()
            .map(std::path::absolute)
            .transpose()?;
        if let Some(file) = &ftrace {
            std::fs::write(file, "")
                .with_context(|| format!("--ftrace {}: cannot be written", file.display()))?;
        }
        let server = artifacts::server()?;
        let init = artifacts::init()?;
        // Bad names are cheap to find and a download is not.
        ensure!(
            !self.scenario.trim().is_empty(),
            "--scenario is empty; name scenarios, or 'all'"
        );
        let names = check_scenarios(&init, &self.scenario)?;
        let known = self
            .known
            .as_deref()
            .map(|file| Known::read(file, &names))
            .transpose()?
            .unwrap_or_default();
        let module = self
            .driver
            .as_ref()
            .map(|path| Module::open(path))
            .transpose()?;
        progress.step("looking for QEMU");
        let qemu = Qemu::check(artifacts::qemu()?)?;
        progress.step(format!("looking for kernel {}", self.kernel));
        let kernel = artifacts::kernel(&self.kernel)?;
        let (driver, module) = if let (Some(path), Some(module)) = (&self.driver, module) {
            (path.clone(), module)
        } else {
            progress.step("building the driver of this project");
            let path = artifacts::own_driver(&kernel)?;
            let module = Module::open(&path)?;
            (path, module)
        };
        check_product(&driver, &module, self.product)?;
        let asked = coverage::asked(&self.scenario, &names);
        let known = Known::of(known, module.version.as_deref(), &asked);
        module.check_parameters(&self.driver_args)?;
        if let Some(release) = &kernel.release {
            module.check_release(&driver, release)?;
        }
        progress.step("choosing the virtualisation");
        let choice = accel::in_time(self.accel, self.virtual_time)?;
        let accel = accel::choose(choice, &qemu.program, &kernel.image)?;
        qemu::check_host(accel, self.product, usize::from(self.devices))?;
        Ok(Lane {
            product: self.product,
            platform: self.platform,
            kernel,
            driver,
            module,
            module_args: self.driver_args.clone(),
            scenarios: self.scenario.clone(),
            known,
            devices: self.devices,
            hotplug: self.hotplug,
            server_args: from_here(&self.server_args)?,
            sanitize: !self.no_sanitize,
            report,
            ftrace,
            qemu_args: self.qemu_arg.clone(),
            accel,
            virtual_time: self.virtual_time,
            memory: self
                .memory
                .unwrap_or(2048 + 512 * (u32::from(self.devices) - 1)),
            backing: self.guest_memory,
            cpus: self.cpus,
            timeout: Duration::from_secs(self.timeout),
            required: self.require.clone(),
            rejected: self.reject.clone(),
            qemu,
            server,
            init,
            append: self.append.clone(),
            shell: false,
            gdb: None,
        })
    }
}

/// The kernel would not bind a driver without the id, and the guest would be waited for in vain.
fn check_product(driver: &std::path::Path, module: &Module, product: Product) -> Result<()> {
    let id = product.device_id();
    ensure!(
        module.pci_ids(VENDOR_ID).contains(&id),
        "{}: the driver's PCI table has no {VENDOR_ID:04x}:{id:04x} ({product}): the kernel would not bind it",
        driver.display()
    );
    Ok(())
}

/// Options of the server that name a file: it runs in the directory of the run's logs, and people name files from where they are.
const FILE_OPTIONS: &[&str] = &[
    "--faults",
    "--budget",
    "--coverage",
    "--record",
    "--timeline",
    "--report",
    "--adversary",
];

/// The server's options with absolute paths.
fn from_here(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut follows = false;
    let absolute = |option: &str, value: &str| -> Result<String> {
        // The adversary takes a file only behind an @.
        let (mark, path) = match (option, value.strip_prefix('@')) {
            ("--adversary", None) => return Ok(value.to_owned()),
            ("--adversary", Some(path)) => ("@", path),
            _ => ("", value),
        };
        let path = std::path::absolute(path).with_context(|| format!("{option} {value}"))?;
        Ok(format!("{mark}{}", path.display()))
    };
    let mut option = String::new();
    let mut all = Vec::new();
    for word in args {
        let text = word.to_string_lossy();
        let given = text
            .split_once('=')
            .filter(|(name, _)| FILE_OPTIONS.contains(name));
        all.push(if follows {
            OsString::from(absolute(&option, &text)?)
        } else if let Some((name, value)) = given {
            OsString::from(format!("{name}={}", absolute(name, value)?))
        } else {
            word.clone()
        });
        follows = !follows && FILE_OPTIONS.contains(&text.as_ref());
        option = text.into_owned();
    }
    Ok(all)
}

/// `init` itself knows its scenarios; it runs on the host as well as in the guest. Returns the names of all.
fn check_scenarios(init: &std::path::Path, wanted: &str) -> Result<Vec<String>> {
    let output = std::process::Command::new(init)
        .arg("list")
        .stdin(std::process::Stdio::null())
        .output()
        .with_context(|| format!("{} does not run; remedy: scripts/build", init.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let known: Vec<&str> = text
        .lines()
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    let unknown = |name: &&str| {
        !known.contains(&name.trim_start_matches('-')) && !matches!(*name, "all" | "none")
    };
    match wanted
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .find(unknown)
    {
        Some(name) if output.status.success() => bail!(
            "unknown scenario {name:?}; known: all, none, {}",
            known.join(", ")
        ),
        _ => Ok(known.into_iter().map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_from_where_people_are() {
        let of = |words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            let all = from_here(&words).unwrap();
            let all: Vec<_> = all.iter().map(|word| word.to_string_lossy()).collect();
            all.join(" ")
        };
        let here = std::env::current_dir().unwrap();
        let here = here.display();
        assert_eq!(
            of("--faults f.toml --fault f.toml --budget=b --adversary 7 --adversary @s --mmap-hbm"),
            format!(
                "--faults {here}/f.toml --fault f.toml --budget={here}/b --adversary 7 --adversary @{here}/s --mmap-hbm"
            )
        );
        assert_eq!(of("--faults /f --sanitize"), "--faults /f --sanitize");
    }
}

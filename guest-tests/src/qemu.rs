//! QEMU: is it the right one, and what are its arguments.
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use neuron_protocol::generation::Product;

use crate::accel::Accel;

/// First version with the vfio-user client (qemu client).
const OLDEST: (u32, u32) = (10, 1);
/// With it 16 devices fit (contract §13.12).
const PHYS_BITS: u32 = 46;

/// A nanosecond for each instruction; a guest that waits for a timer gets it at once.
const VIRTUAL_TIME: &str = "shift=0,sleep=off";

/// A QEMU that was checked.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// Program.
    pub program: PathBuf,
    /// `major.minor.patch` as it says.
    pub version: String,
}

impl Qemu {
    /// Checks that a program is a QEMU that can talk to the device.
    ///
    /// # Errors
    /// It does not run, is too old, or was built without `vfio-user-pci`; the remedy is named.
    pub fn check(program: PathBuf) -> Result<Self> {
        let ask = |args: &[&str]| -> Result<String> {
            let output = Command::new(&program)
                .args(args)
                .stdin(Stdio::null())
                .output()
                .with_context(|| {
                    format!(
                        "QEMU {} does not run; remedy: scripts/get-qemu fetches one",
                        program.display()
                    )
                })?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let banner = ask(&["--version"])?;
        let version = version(&banner).with_context(|| {
            format!(
                "{} is not QEMU; remedy: scripts/get-qemu fetches one",
                program.display()
            )
        })?;
        let devices = if version.1 < OLDEST {
            String::new()
        } else {
            ask(&["-device", "help"])?
        };
        suitable(&program, &version, &devices)?;
        Ok(Self {
            program,
            version: version.0,
        })
    }
}

fn suitable(program: &Path, version: &(String, (u32, u32)), devices: &str) -> Result<()> {
    if version.1 < OLDEST {
        bail!(
            "QEMU {} ({}) is too old: the device needs {}.{} or newer; remedy: scripts/get-qemu fetches one, unset QEMU to use it",
            version.0,
            program.display(),
            OLDEST.0,
            OLDEST.1
        );
    }
    if !devices.contains("\"vfio-user-pci\"") {
        bail!(
            "QEMU {} ({}) was built without vfio-user-pci; remedy: scripts/get-qemu fetches one, unset QEMU to use it",
            version.0,
            program.display()
        );
    }
    Ok(())
}

fn version(banner: &str) -> Option<(String, (u32, u32))> {
    let text = banner
        .strip_prefix("QEMU emulator version ")?
        .split_whitespace()
        .next()?;
    let mut parts = text.split('.');
    let pair = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((text.to_owned(), pair))
}

/// How the device gets at guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Backing {
    /// By a file that it maps: what the device needs
    #[default]
    Shared,
    /// By a file of which the guest works on a private copy (`share=off`): the mistake that hides best
    Private,
    /// By messages to QEMU, for there is no file
    Messages,
}

impl Backing {
    /// QEMU's arguments for so many MiB.
    fn args(self, memory: u32) -> Vec<String> {
        let mut args = vec!["-m".to_owned(), format!("{memory}M")];
        let share = match self {
            Self::Shared => "on",
            Self::Private => "off",
            Self::Messages => return args,
        };
        args.extend([
            "-object".to_owned(),
            format!("memory-backend-memfd,id=mem,size={memory}M,share={share}"),
            "-machine".to_owned(),
            "memory-backend=mem".to_owned(),
        ]);
        args
    }
}

/// What a guest is made of.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// Virtualisation.
    pub accel: Accel,
    /// Model and number of the devices.
    pub product: Product,
    /// Each device behind a root port of its own, and QEMU commanded over this socket.
    pub hotplug: Option<&'a str>,
    /// Their sockets, relative to QEMU's working directory.
    pub sockets: &'a [String],
    /// The guest's clock counts instructions.
    pub virtual_time: bool,
    /// Guest memory, MiB.
    pub memory: u32,
    /// How the device gets at it.
    pub backing: Backing,
    /// Guest CPUs.
    pub cpus: u32,
    /// Kernel image.
    pub kernel: &'a Path,
    /// Initramfs.
    pub initramfs: &'a Path,
    /// Kernel command line.
    pub append: &'a str,
    /// Wait for a debugger's connection on this port.
    pub gdb: Option<u16>,
    /// The console is the launcher's terminal, copied to this file.
    pub terminal: Option<&'a Path>,
    /// Receives what the guest writes to its second serial port.
    pub second_serial: Option<&'a Path>,
    /// Further arguments, last.
    pub extra: &'a [OsString],
}

impl Machine<'_> {
    /// QEMU's arguments.
    pub fn args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: &str| {
            args.push(flag.into());
            if !value.is_empty() {
                args.push(value.into());
            }
        };
        add("-nodefaults", "");
        add("-no-user-config", "");
        add("-display", "none");
        add("-no-reboot", "");
        if self.terminal.is_none() {
            // The guest stays after it powers off, and with it the device's state, until the account is taken.
            add("-no-shutdown", "");
        }
        add("-machine", &format!("q35,accel={}", self.accel.name()));
        for word in self.backing.args(self.memory) {
            add(&word, "");
        }
        add(
            "-cpu",
            &cpu_model(self.accel, self.product, self.sockets.len()),
        );
        add("-smp", &self.cpus.to_string());
        if self.virtual_time {
            add("-icount", VIRTUAL_TIME);
        }
        if let Some(path) = self.hotplug {
            // Otherwise the guest is told of plugging by ACPI and the root ports have no part in it.
            add(
                "-global",
                "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off",
            );
            add("-qmp", &format!("unix:{path},server=on,wait=off"));
        }
        for (index, socket) in self.sockets.iter().enumerate() {
            if self.hotplug.is_some() {
                // The guest knows the slot by its number, and the launcher the device.
                add(
                    "-device",
                    &format!(
                        "pcie-root-port,id={},chassis={slot},slot={slot}",
                        port(index),
                        slot = slot(index)
                    ),
                );
            }
            add(
                "-device",
                &device(index, socket, self.hotplug.is_some()).to_string(),
            );
        }
        add("-kernel", &self.kernel.to_string_lossy());
        add("-initrd", &self.initramfs.to_string_lossy());
        add("-append", self.append);
        match self.terminal {
            None => {
                add("-chardev", "stdio,id=console,signal=off");
                add("-serial", "chardev:console");
            }
            Some(log) => {
                add(
                    "-chardev",
                    &format!(
                        "stdio,id=console,mux=on,signal=off,logfile={}",
                        log.display()
                    ),
                );
                add("-serial", "chardev:console");
                add("-mon", "chardev=console");
            }
        }
        if let Some(file) = self.second_serial {
            add("-serial", &format!("file:{}", file.display()));
        }
        if let Some(port) = self.gdb {
            add("-gdb", &format!("tcp:127.0.0.1:{port}"));
        }
        args.extend(self.extra.iter().cloned());
        args
    }
}

/// What QEMU calls a device.
pub fn id(index: usize) -> String {
    format!("nd{index}")
}

/// The slot of a device, as the guest's kernel calls it.
pub fn slot(index: usize) -> usize {
    index + 1
}

/// What QEMU calls the root port of a device.
fn port(index: usize) -> String {
    format!("rp{index}")
}

/// The properties of a device, for the command line or for `device_add`.
pub fn device(index: usize, socket: &str, behind_port: bool) -> serde_json::Value {
    let mut device = serde_json::json!({
        "driver": "vfio-user-pci",
        "id": id(index),
        "socket": { "type": "unix", "path": socket },
    });
    if behind_port {
        device["bus"] = port(index).into();
    }
    device
}

/// A guest with several V3 or V4 devices needs more physical address bits than QEMU's default CPU has, since BAR4 of
/// each is 256 GiB (contract §13.12).
fn cpu_model(accel: Accel, product: Product, devices: usize) -> String {
    match (accel, large_bars(product) && devices > 1) {
        // The host's own width; `check_host` has looked at it.
        (Accel::Kvm, _) => "host,host-phys-bits=on".to_owned(),
        (Accel::Tcg, true) => format!("qemu64,phys-bits={PHYS_BITS}"),
        (Accel::Tcg, false) => "qemu64".to_owned(),
    }
}

fn large_bars(product: Product) -> bool {
    matches!(product, Product::Trn2 | Product::Trn3)
}

/// Refuses a device count that the host CPU cannot address under KVM.
///
/// # Errors
/// Too few physical address bits.
pub fn check_host(accel: Accel, product: Product, devices: usize) -> Result<()> {
    if accel != Accel::Kvm || !large_bars(product) || devices < 2 {
        return Ok(());
    }
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match host_bits(&info) {
        Some(bits) if bits < PHYS_BITS => bail!(
            "{devices} {product} devices need {PHYS_BITS} physical address bits, this CPU has {bits}; remedy: --accel tcg"
        ),
        _ => Ok(()),
    }
}

fn host_bits(cpuinfo: &str) -> Option<u32> {
    let line = cpuinfo.lines().find(|l| l.starts_with("address sizes"))?;
    line.split(": ").nth(1)?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_incomplete_qemu_are_refused_with_the_remedy() {
        let old = version("QEMU emulator version 7.2.17 (Debian 1:7.2+dfsg-7)\n").unwrap();
        assert_eq!(old, ("7.2.17".to_owned(), (7, 2)));
        let say = |v, d| suitable(Path::new("q"), v, d).unwrap_err().to_string();
        assert!(say(&old, "").contains("too old") && say(&old, "").contains("scripts/get-qemu"));
        let new = version("QEMU emulator version 10.1.0").unwrap();
        assert!(say(&new, "name \"vfio-pci\"").contains("without vfio-user-pci"));
        suitable(Path::new("q"), &new, "name \"vfio-user-pci\", bus PCI").unwrap();
        assert_eq!(version("GNU bash"), None);
    }

    #[test]
    fn cpu_follows_the_device_count() {
        assert_eq!(cpu_model(Accel::Tcg, Product::Trn2, 1), "qemu64");
        assert_eq!(
            cpu_model(Accel::Tcg, Product::Trn2, 2),
            "qemu64,phys-bits=46"
        );
        assert_eq!(cpu_model(Accel::Tcg, Product::Inf2, 12), "qemu64");
        assert_eq!(
            host_bits("flags: x\naddress sizes\t: 39 bits physical, 48 bits virtual\n"),
            Some(39)
        );
    }

    #[test]
    fn memory_is_shared_unless_told_otherwise() {
        let machine = Machine {
            accel: Accel::Tcg,
            virtual_time: true,
            product: Product::Trn2,
            hotplug: None,
            sockets: &["d0.sock".into()],
            memory: 64,
            backing: Backing::default(),
            cpus: 1,
            kernel: Path::new("k"),
            initramfs: Path::new("i"),
            append: "",
            gdb: None,
            terminal: None,
            second_serial: None,
            extra: &[],
        };
        let line = machine
            .args()
            .join(&OsString::from(" "))
            .into_string()
            .unwrap();
        assert!(line.contains("memory-backend-memfd,id=mem,size=64M,share=on"));
        assert!(line.contains("-machine memory-backend=mem"));
        assert!(!Backing::Messages.args(64).concat().contains("backend"));
        assert!(line.contains("-icount shift=0,sleep=off"));
        assert!(line.contains(r#""path":"d0.sock""#));
    }
}

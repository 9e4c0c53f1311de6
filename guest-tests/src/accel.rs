//! KVM or emulation.
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::artifacts;
use crate::capture::{Message, Source, follow};
use crate::process::{Group, Watched};

/// A kernel under working KVM is at its first panic in about a second.
const PROBE_TIME: Duration = Duration::from_secs(15);
/// The first console line comes at once; broken nested virtualisation prints nothing and burns a CPU.
const FIRST_LINE: Duration = Duration::from_secs(4);

/// How the guest's CPU is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's emulation.
    Tcg,
}

impl Accel {
    /// QEMU's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// KVM if it can run a guest here, else emulation.
    #[default]
    Auto,
    /// KVM or an error.
    Kvm,
    /// Emulation.
    Tcg,
}

/// The choice that virtual time leaves.
///
/// # Errors
/// KVM was demanded: its guests run on the host's clock.
pub fn in_time(choice: Choice, virtual_time: bool) -> Result<Choice> {
    match (choice, virtual_time) {
        (Choice::Kvm, true) => bail!(
            "--virtual-time with --accel kvm: under KVM the guest runs by the CPU's own clock, and instructions are not counted; remedy: --accel tcg or auto"
        ),
        (_, true) => Ok(Choice::Tcg),
        (choice, false) => Ok(choice),
    }
}

/// Settles the choice. `/dev/kvm` alone proves nothing (nested virtualisation may be off, the device may be a dummy), so
/// a kernel is booted once, and the answer is kept until the host reboots or QEMU changes.
///
/// # Errors
/// KVM was demanded and does not work.
pub fn choose(choice: Choice, qemu: &Path, kernel: &Path) -> Result<Accel> {
    if choice == Choice::Tcg {
        return Ok(Accel::Tcg);
    }
    let works = match std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
    {
        Err(error) => Err(anyhow::anyhow!("/dev/kvm: {error}")),
        Ok(_) => remembered(qemu, || probe(qemu, kernel)),
    };
    match (works, choice) {
        (Ok(()), _) => Ok(Accel::Kvm),
        (Err(error), Choice::Kvm) => {
            Err(error
                .context("--accel kvm: KVM cannot run a guest here; remedy: --accel auto or tcg"))
        }
        (Err(_), _) => Ok(Accel::Tcg),
    }
}

fn remembered(qemu: &Path, probe: impl FnOnce() -> Result<()>) -> Result<()> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // A user who joins the kvm group meanwhile is another question; opening the device was tried before.
    let key = format!("{} {}", boot.trim(), qemu.display());
    let file = artifacts::cache().join("kvm-works");
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    if let Some(answer) = known.lines().find_map(|line| line.strip_prefix(&key)) {
        return match answer.trim() {
            "yes" => Ok(()),
            why => bail!("{why} (remembered in {})", file.display()),
        };
    }
    let answer = probe();
    let word = answer.as_ref().map_or_else(
        |error| format!("{error:#}").replace('\n', " "),
        |()| "yes".to_owned(),
    );
    // Not being able to remember only costs time.
    let _ = std::fs::create_dir_all(artifacts::cache());
    let _ = std::fs::write(&file, format!("{key} {word}\n"));
    answer
}

/// Boots a kernel without a root: working KVM brings it to the panic about that.
fn probe(qemu: &Path, kernel: &Path) -> Result<()> {
    let mut command = Command::new(qemu);
    command
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-machine", "q35,accel=kvm", "-cpu", "host", "-m", "256M"])
        .args([
            "-chardev",
            "stdio,id=console,signal=off",
            "-serial",
            "chardev:console",
        ])
        .arg("-kernel")
        .arg(kernel)
        .args(["-append", "console=ttyS0 panic=-1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Watched::spawn("KVM probe", &mut command, Group::Own)?;
    let (to, from) = sync_channel(64);
    let out = child.child_mut().stdout.take().context("no pipe")?;
    let err = child.child_mut().stderr.take().context("no pipe")?;
    follow(out, Source::Guest, Path::new("/dev/null"), to.clone())?;
    follow(err, Source::Qemu, Path::new("/dev/null"), to)?;
    let start = Instant::now();
    let mut end = start + FIRST_LINE;
    let mut complaint = String::from("QEMU ended without booting the kernel");
    loop {
        match from.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Message::Line(Source::Guest, line, _)) => {
                end = start + PROBE_TIME;
                if line.contains("Kernel panic - not syncing: VFS") {
                    return Ok(());
                }
            }
            Ok(Message::Line(Source::Qemu, line, _)) if !line.is_empty() => complaint = line,
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("{complaint}"),
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "a kernel does not boot under KVM within {} s",
                    (end - start).as_secs()
                )
            }
        }
    }
}

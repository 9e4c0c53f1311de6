//! One guest run: server up, QEMU up, watch all of them, take the device's account, take everything down.
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use neuron_protocol::generation::{Platform, Product};

use crate::accel::Accel;
use crate::artifacts::Kernel;
use crate::guest_line::GuestLine;
use crate::known::{self, Known};
use crate::module::Module;
use crate::progress::Progress;
use crate::qemu::{Backing, Qemu};
use crate::report::Report;
use crate::supervise::Run;
use crate::{coverage, initramfs, rundir};

/// Everything that a run needs, checked beforehand.
#[expect(
    clippy::struct_excessive_bools,
    reason = "options that do not exclude one another"
)]
#[derive(Clone, Debug)]
pub struct Lane {
    /// Device model.
    pub product: Product,
    /// What the driver takes its surroundings to be.
    pub platform: Platform,
    /// Guest kernel.
    pub kernel: Kernel,
    /// Where the driver comes from, for messages.
    pub driver: PathBuf,
    /// The driver.
    pub module: Module,
    /// Its parameters.
    pub module_args: String,
    /// `a,b`, `all`, `none` or `all,-a`, as `init` understands it.
    pub scenarios: String,
    /// Defects of this driver that scenarios of this run are known to meet.
    pub known: Vec<Known>,
    /// Number of devices.
    pub devices: u8,
    /// Behind root ports, and pulled out by scenarios that ask for it.
    pub hotplug: bool,
    /// Further options of the server.
    pub server_args: Vec<OsString>,
    /// Judge the driver by the rules of the ring cycle.
    pub sanitize: bool,
    /// Where the device's reports go; absolute. `None` is the run's directory.
    pub report: Option<PathBuf>,
    /// Where the guest's ftrace goes; absolute.
    pub ftrace: Option<PathBuf>,
    /// Further arguments of QEMU.
    pub qemu_args: Vec<OsString>,
    /// Virtualisation.
    pub accel: Accel,
    /// The guest's clock counts instructions, and sleep costs no time.
    pub virtual_time: bool,
    /// Guest memory, MiB.
    pub memory: u32,
    /// How the device gets at it.
    pub backing: Backing,
    /// Guest CPUs.
    pub cpus: u32,
    /// Limit of the whole run.
    pub timeout: Duration,
    /// Substrings that the guest's log must have.
    pub required: Vec<String>,
    /// Substrings that it must not have.
    pub rejected: Vec<String>,
    /// QEMU.
    pub qemu: Qemu,
    /// Device server program.
    pub server: PathBuf,
    /// PID 1 program.
    pub init: PathBuf,
    /// Further kernel command line.
    pub append: String,
    /// Terminal in the guest after the scenarios.
    pub shell: bool,
    /// Debugger port.
    pub gdb: Option<u16>,
}

/// What the guest's second serial port wrote, in the directory of the run.
pub(crate) const FTRACE: &str = "ftrace.serial";

/// Brings the guest's ftrace to where it was asked for, without what a terminal line adds.
fn take_ftrace(from: &Path, to: &Path) -> Result<()> {
    let text =
        std::fs::read_to_string(from).with_context(|| format!("cannot read {}", from.display()))?;
    if text.is_empty() {
        bail!(
            "--ftrace: nothing came out of the guest; its notes in guest.log in the run's directory say why"
        );
    }
    std::fs::write(to, text.replace('\r', ""))
        .with_context(|| format!("--ftrace {}: cannot be written", to.display()))?;
    // The same once more.
    let _ = std::fs::remove_file(from);
    Ok(())
}

/// Set by a signal handler: every run ends at once and takes its children down.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Runs a lane: one boot, and one more for each scenario that a known defect ends. `on_line` sees each line of `init`
/// as it comes.
///
/// # Errors
/// The run could not be started: nothing is known about the driver. Everything later is in the report.
pub fn run(
    lane: &Lane,
    progress: &mut Progress,
    on_line: &mut dyn FnMut(&GuestLine),
) -> Result<Report> {
    if !lane.known.is_empty() {
        return known::run(lane, progress, on_line);
    }
    let mut report = boot(lane, progress, on_line)?;
    if lane.scenarios.trim() != "none" {
        report.findings.extend(coverage::nothing_passed(&report));
    }
    Ok(report)
}

/// One boot with the scenarios of a lane.
///
/// # Errors
/// As [`run`].
pub(crate) fn boot(
    lane: &Lane,
    progress: &mut Progress,
    on_line: &mut dyn FnMut(&GuestLine),
) -> Result<Report> {
    let start = Instant::now();
    let dir = rundir::create(&format!("{}-{}", lane.product, lane.platform))?;
    progress.step("packing the initramfs");
    let initramfs = dir.join("initramfs.cpio");
    let busybox = lane.kernel.busybox.as_deref().filter(|_| lane.shell);
    initramfs::write(&initramfs, &lane.init, &lane.module.bytes, busybox)?;
    let (to, from) = sync_channel(1024);
    let mut run = Run::new(lane, dir, from);
    let started = run.start(&to, &initramfs, progress);
    // The loop ends when the last reader does.
    drop(to);
    if let Err(error) = started {
        run.stop();
        let _ = std::fs::remove_file(&initramfs);
        let tails: Vec<String> = run
            .tails()
            .into_iter()
            .flat_map(|(_, lines)| lines)
            .collect();
        let said = if tails.is_empty() {
            String::new()
        } else {
            format!("\n{}", tails.join("\n"))
        };
        return Err(anyhow!(
            "{error:#}{said}\nlogs are in {}",
            run.dir.display()
        ));
    }
    if lane.shell {
        run.wait_for_terminal();
    } else {
        run.watch(progress, on_line);
    }
    run.take_account(progress);
    progress.step("stopping QEMU and the server");
    run.report.tails = run.tails();
    run.stop();
    run.take_findings();
    if let Some(to) = &lane.ftrace {
        take_ftrace(&run.dir.join(FTRACE), to)?;
    }
    // Large, and made again in no time.
    let _ = std::fs::remove_file(&initramfs);
    run.report.elapsed = start.elapsed();
    Ok(std::mem::take(&mut run.report))
}

//! Boots the cells: what they share is fetched and built once.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::cell::Cell;
use super::cli::now;
use super::record::{Attempt, Made};
use crate::accel::{self, Choice};
use crate::guest_line::GuestLine;
use crate::options::GuestOptions;
use crate::outcome::{Failure, Finding};
use crate::progress::Progress;
use crate::qemu::{Backing, Qemu};
use crate::report::Report;
use crate::{artifacts, coverage, lane};

/// Limit of one boot with one device, seconds.
const TIMEOUT: u64 = 420;
/// More for each further device.
const TIMEOUT_PER_DEVICE: u64 = 30;

/// What every boot has in common.
#[derive(Clone, Debug)]
pub struct BootOptions {
    /// Virtualisation.
    pub accel: Choice,
    /// Guests live in virtual time.
    pub virtual_time: bool,
    /// Limit of one boot, seconds.
    pub timeout: Option<u64>,
    /// Defects that drivers are known to have.
    pub known: Option<PathBuf>,
    /// Further options of the server.
    pub server_args: Vec<OsString>,
    /// Where logs of failed cells go.
    pub out: PathBuf,
}

/// Boots cells.
pub struct Booter {
    options: BootOptions,
    own: BTreeMap<String, PathBuf>,
    known: Vec<String>,
    qemu: String,
    accel: String,
}

impl Booter {
    /// Fetches QEMU and the kernels, and builds our module where it is needed: before the first guest, so that its time
    /// is its own.
    ///
    /// # Errors
    /// Something cannot be had.
    pub fn prepare(cells: &[Cell], options: &BootOptions, progress: &mut Progress) -> Result<Self> {
        let mut booter = Self {
            options: options.clone(),
            own: BTreeMap::new(),
            known: coverage::known(),
            qemu: "-".to_owned(),
            accel: "-".to_owned(),
        };
        if cells.is_empty() {
            return Ok(booter);
        }
        progress.step("looking for QEMU");
        let qemu = Qemu::check(artifacts::qemu()?)?;
        booter.qemu.clone_from(&qemu.version);
        for cell in cells {
            let name = &cell.kernel.name;
            if booter.own.contains_key(name) {
                continue;
            }
            progress.step(format!("looking for kernel {name}"));
            let kernel = artifacts::kernel(&cell.kernel.source)?;
            if booter.own.is_empty() {
                progress.step("choosing the virtualisation");
                let choice = accel::in_time(options.accel, options.virtual_time)?;
                let accel = accel::choose(choice, &qemu.program, &kernel.image)?;
                accel.name().clone_into(&mut booter.accel);
                if options.virtual_time {
                    booter.accel.push_str(" in virtual time");
                }
            }
            let driver = if cell.driver.file.is_none() {
                progress.step(format!("building the driver of this project for {name}"));
                artifacts::own_driver(&kernel)?
            } else {
                PathBuf::new()
            };
            booter.own.insert(name.clone(), driver);
        }
        Ok(booter)
    }

    /// With what the results were made.
    pub fn made(&self, at: String) -> Made {
        Made {
            started: at.clone(),
            ended: at,
            revision: revision(),
            qemu: self.qemu.clone(),
            accel: self.accel.clone(),
        }
    }

    /// Boots a cell once.
    pub fn boot(&self, cell: &Cell, number: u32, step: &mut dyn FnMut(String)) -> Attempt {
        let (started, start) = (now(), Instant::now());
        let guest = self.guest(cell);
        let mut quiet = Progress::new(true);
        let run = guest.lane(&mut quiet).and_then(|lane| {
            let report = lane::run(&lane, &mut quiet, &mut |line| {
                step(said(line));
            })?;
            Ok((report, lane.kernel.release))
        });
        match run {
            Ok((mut report, release)) => {
                self.judge(cell, &mut report);
                let mut attempt = Attempt::of(&report, started, release);
                if !attempt.passed() {
                    attempt.logs = Some(self.keep(cell, number, &report.dir));
                }
                attempt
            }
            Err(error) => Attempt::setup_error(&error, started, start.elapsed().as_secs_f64()),
        }
    }

    fn guest(&self, cell: &Cell) -> GuestOptions {
        let further = u64::from(cell.devices) - 1;
        GuestOptions {
            ftrace: None,
            product: cell.product,
            platform: cell.platform,
            kernel: cell.kernel.source.clone(),
            driver: cell
                .driver
                .file
                .clone()
                .or_else(|| self.own.get(&cell.kernel.name).cloned()),
            driver_args: String::new(),
            scenario: cell.asked(),
            known: self.options.known.clone(),
            hotplug: false,
            devices: cell.devices,
            accel: self.options.accel,
            virtual_time: self.options.virtual_time,
            memory: None,
            guest_memory: Backing::default(),
            cpus: 2,
            timeout: self
                .options
                .timeout
                .unwrap_or(TIMEOUT + TIMEOUT_PER_DEVICE * further),
            require: Vec::new(),
            reject: Vec::new(),
            append: String::new(),
            qemu_arg: Vec::new(),
            no_sanitize: false,
            report: Some(
                self.options
                    .out
                    .join(format!("reports/{}", file_name(cell))),
            ),
            server_args: self.options.server_args.clone(),
        }
    }

    /// A cell is judged more strictly than a run by hand: what was asked for must have been done.
    fn judge(&self, cell: &Cell, report: &mut Report) {
        if !report.findings.is_empty() {
            return;
        }
        let asked = coverage::asked(&cell.asked(), &self.known);
        let mut wrong = coverage::shortfalls(&asked, cell.devices, report);
        if cell.driver.file.is_none() {
            wrong.extend(coverage::lacking(
                cell.devices,
                false,
                &self.options.server_args,
                report,
            ));
        }
        report.findings.extend(coverage::nothing_passed(report));
        report.findings.extend(
            wrong
                .into_iter()
                .map(|text| Finding::new(Failure::Scenario, text)),
        );
    }

    /// Moves the logs to where they are not rotated away. Returns where, relative to the results.
    fn keep(&self, cell: &Cell, number: u32, dir: &Path) -> String {
        let name = format!("logs/{}.{number}", file_name(cell));
        let to = self.options.out.join(&name);
        // Of an earlier matrix in the same directory.
        let _ = std::fs::remove_dir_all(&to);
        match copy(dir, &to) {
            Ok(()) => name,
            // Better the old place than none.
            Err(_) => dir.to_string_lossy().into_owned(),
        }
    }
}

/// A cell's name as that of a file.
fn file_name(cell: &Cell) -> String {
    cell.name().replace('/', "+")
}

fn said(line: &GuestLine) -> String {
    match line {
        GuestLine::Scenario { name, .. } => name.clone(),
        GuestLine::Ready { .. } => "ready".to_owned(),
        GuestLine::Module { .. } => "driver loaded".to_owned(),
        GuestLine::Summary { .. } | GuestLine::Poweroff => "ending".to_owned(),
        _ => "booted".to_owned(),
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        // Sockets and the like stay behind.
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn revision() -> String {
    Command::new("git")
        .arg("-C")
        .arg(artifacts::root())
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output()
        .ok()
        .filter(|o| o.status.success())
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

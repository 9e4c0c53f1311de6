//! The inner loop of a driver developer.
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};

use crate::lane::{self, INTERRUPTED, Lane};
use crate::options::GuestOptions;
use crate::outcome::{Failure, verdict};
use crate::print;
use crate::progress::Progress;
use crate::watch::FileWatch;

/// Options beside those of a single run.
#[derive(Clone, Debug, clap::Args)]
pub struct DevOptions {
    /// What to boot.
    #[command(flatten)]
    pub guest: GuestOptions,
    /// Boot again as soon as the driver file changes; ends with Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// A shell on the guest's console after the scenarios (leave by `exit`, or Ctrl-A X)
    #[arg(long, conflicts_with = "watch")]
    pub shell: bool,
    /// QEMU listens for gdb on this port of the local host; the guest does not wait for it
    #[arg(long, num_args = 0..=1, default_missing_value = "1234", value_name = "PORT")]
    pub gdb: Option<u16>,
}

/// Runs once, or until interrupted.
///
/// # Errors
/// Setup errors; with `--watch` only those that a new driver file cannot cure.
pub fn run(options: &DevOptions, progress: &mut Progress) -> Result<Option<Failure>> {
    if !options.watch {
        return once(options, progress);
    }
    let Some(driver) = &options.guest.driver else {
        bail!("--watch needs --driver FILE.ko: the file to watch")
    };
    let watch = FileWatch::new(driver)?;
    loop {
        let result = once(options, progress);
        progress.clear();
        let last = match result {
            Ok(failure) => failure,
            Err(error) => {
                eprintln!("setup error: {error:#}");
                Some(Failure::Setup)
            }
        };
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Ok(last);
        }
        eprintln!("waiting for {} to change (Ctrl-C ends)", driver.display());
        if !watch.changed()? {
            return Ok(last);
        }
        *progress = Progress::new(false);
    }
}

fn once(options: &DevOptions, progress: &mut Progress) -> Result<Option<Failure>> {
    let mut lane = options.guest.lane(progress)?;
    lane.shell = options.shell;
    lane.gdb = options.gdb;
    if options.shell && lane.kernel.busybox.is_none() {
        bail!(
            "--shell needs a kernel that scripts/get-kernel fetched (--kernel 6.1 or 6.12), which brings the busybox"
        );
    }
    if let Some(port) = options.gdb {
        progress.clear();
        hints(&lane, port);
    }
    run_and_print(&lane, progress)
}

/// Runs a lane and prints it for people.
///
/// # Errors
/// As [`lane::run`].
pub fn run_and_print(lane: &Lane, progress: &mut Progress) -> Result<Option<Failure>> {
    let report = lane::run(lane, progress, &mut |line| {
        if let Some(text) = print::live(line) {
            println!("{text}");
        }
    })?;
    progress.clear();
    print!("{}", print::closing(lane, &report));
    Ok(verdict(&report.findings))
}

fn hints(lane: &Lane, port: u16) {
    let driver = lane
        .driver
        .canonicalize()
        .unwrap_or_else(|_| PathBuf::from(&lane.driver));
    eprintln!(
        "gdb: the guest runs on; stop it with\n\
         \x20   gdb {} -ex 'target remote 127.0.0.1:{port}'\n\
         \x20 and give it the driver's symbols with the address that the guest's shell prints for\n\
         \x20   cat /sys/module/{}/sections/.text\n\
         \x20   (gdb) add-symbol-file {} ADDRESS",
        lane.kernel.image.display(),
        lane.module.name,
        driver.display()
    );
}

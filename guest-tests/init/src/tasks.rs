//! What a child does: load, unload, wait for the devices, or one scenario.
//!
//! Arguments after `job`: `load FILE PARAMETERS`, `unload FILE`, `ready DEVICES`,
//! `scenario NAME DEVICE DEVICES SEED`.
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::device::{Device, node};
use crate::job::{self, Outcome, stage};
use crate::module::Module;
use crate::scenario::{self, Body, Context, Setup};
use crate::{boot, pci, report};

/// Runs the task and exits with 0 unless it failed.
pub fn child(arguments: &[String]) -> ExitCode {
    let code = job::child(|| dispatch(arguments));
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn dispatch(arguments: &[String]) -> Result<Outcome> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["load", file, parameters] => {
            let module = Module::find(file)?;
            stage(format_args!("loading {}", module.path.display()));
            module.load(parameters)?;
            Ok(Outcome::Pass)
        }
        ["unload", file] => {
            Module::find(file)?.unload()?;
            Ok(Outcome::Pass)
        }
        ["ready", devices] => ready(devices.parse().context("number of devices")?),
        ["scenario", name, index, devices, seed] => {
            let setup = Setup {
                index: index.parse().context("device")?,
                devices: devices.parse().context("number of devices")?,
                seed: seed.parse().context("seed")?,
            };
            match scenario::find(name).context("no such scenario")?.body {
                Body::Open(run) => run(&Context::open(setup)?),
                Body::Closed(run) | Body::All(run) => run(setup),
                Body::Reload => bail!("reload runs in process 1"),
            }
        }
        _ => bail!("no such task: {arguments:?}"),
    }
}

/// Whether the driver says so in sysfs, where it has the attribute (2.25.4.0 `neuron_cdev.c`: 0 is in reset).
fn is_in_reset(index: u32) -> bool {
    let state = rustix::fs::stat(node(index)).and_then(|stat| {
        let (major, minor) = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/reset"))
            .map_err(|_| rustix::io::Errno::NOENT)
    });
    state.is_ok_and(|state| state.trim() == "0")
}

/// Waits for the nodes, then for each device's reset, and describes them.
fn ready(devices: u32) -> Result<Outcome> {
    let bus = pci::functions();
    if bus.len() < usize::try_from(devices)? {
        bail!("{devices} devices expected, but: {}", pci::describe());
    }
    for index in 0..devices {
        stage(format_args!(
            "waiting for {}; PCI: {}",
            node(index).display(),
            pci::describe()
        ));
        // Probe has ended by the time a module is loaded, but nodes are made by the kernel a little later.
        let deadline = Instant::now() + Duration::from_secs(5);
        while !node(index).exists() {
            if Instant::now() > deadline {
                bail!("no {}: {}", node(index).display(), pci::describe());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        stage(format_args!(
            "waiting for {} to come out of its reset",
            node(index).display()
        ));
        // To open it is to wait as well, but drivers spin there: a CPU less for the device, and no idle time to skip
        // for a guest in virtual time.
        while is_in_reset(index) {
            std::thread::sleep(Duration::from_millis(20));
        }
        stage(format_args!("opening {}", node(index).display()));
        let device = Device::open(index)?;
        report::line(format_args!(
            "device {index}: arch {} revision {} cores {} platform {} uptime {:.2} s",
            device.generation.name,
            device.revision,
            device.cores,
            device.platform,
            boot::uptime()
        ));
    }
    Ok(Outcome::Pass)
}

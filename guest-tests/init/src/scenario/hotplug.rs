//! Devices that leave their slot and come back while the guest runs.
//!
//! The launcher pulls and plugs, asked by a line (`scripts/guest --hotplug`); the kernel's pciehp tells the driver.
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::{Outcome, Setup, cores};
use crate::device::{Device, node};
use crate::ioctl::Refused;
use crate::job::stage;
use crate::{pci, report};

/// pciehp waits 5 s between the button and the driver; the rest is for the driver's probe and a slow host.
const PATIENCE: Duration = Duration::from_secs(60);
/// Copies of the device that leaves must have ended by then.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// A slot with a device in it.
struct Slot {
    number: u32,
    /// Of its functions, up to the dot.
    address: String,
}

impl Slot {
    fn function(&self) -> Option<pci::Function> {
        let inside = |f: &pci::Function| f.address.starts_with(&format!("{}.", self.address));
        pci::functions().into_iter().find(inside)
    }
}

/// Slots that the kernel can empty and that hold a Neuron device, by number.
fn slots() -> Vec<Slot> {
    let Ok(entries) = std::fs::read_dir("/sys/bus/pci/slots") else {
        return Vec::new();
    };
    let mut found: Vec<Slot> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let address = std::fs::read_to_string(entry.path().join("address")).ok()?;
            Some(Slot {
                number,
                address: address.trim().to_owned(),
            })
        })
        .filter(|slot| slot.function().is_some())
        .collect();
    found.sort_by_key(|slot| slot.number);
    found
}

fn until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + limit;
    while !done() {
        ensure!(
            Instant::now() < end,
            "{what}: not after {} s; {}",
            limit.as_secs(),
            pci::describe()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Pulls the device of a slot. Returns the number of the node that went with it.
fn pull(slot: &Slot, devices: u32) -> Result<u32> {
    stage(format_args!("pulling slot {}", slot.number));
    report::line(format_args!("unplug slot {}", slot.number));
    let number = slot.number;
    until(
        &format!("the device in slot {number} is gone"),
        PATIENCE,
        || slot.function().is_none(),
    )?;
    let missing: Vec<u32> = (0..devices).filter(|n| !node(*n).exists()).collect();
    ensure!(
        missing.len() == 1,
        "nodes gone with the device in slot {number}: {missing:?}"
    );
    Ok(missing[0])
}

/// Plugs it in again and waits for the driver.
fn push(slot: &Slot, index: u32) -> Result<()> {
    stage(format_args!("plugging slot {}", slot.number));
    report::line(format_args!("plug slot {}", slot.number));
    let path = node(index);
    until(&format!("{} is back", path.display()), PATIENCE, || {
        Path::exists(&path) && slot.function().is_some_and(|f| f.driver.is_some())
    })
}

fn copies(setup: Setup, device: &Device, round: u64) -> Result<()> {
    let patterns = [0, 1, 2].map(|n| setup.pattern(device.index, round * 3 + n));
    cores::traffic(device, 0, patterns, 2)
}

fn each(setup: Setup, pull: impl Fn(Setup, &Slot) -> Result<u32>) -> Result<Outcome> {
    let slots = slots();
    if slots.is_empty() {
        return Ok(Outcome::NotOffered(
            "no device sits in a slot that can be emptied: scripts/guest --hotplug".into(),
        ));
    }
    ensure!(
        slots.len() == usize::try_from(setup.devices)?,
        "{} of {} devices sit in a slot",
        slots.len(),
        setup.devices
    );
    for round in 0..2 {
        for slot in &slots {
            let with = |what: &str| format!("round {round}, slot {}: {what}", slot.number);
            let index = pull(setup, slot).with_context(|| with("pulled"))?;
            push(slot, index).with_context(|| with("plugged"))?;
            stage(with("copies afterwards"));
            copies(setup, &Device::open(index)?, round)
                .with_context(|| with("copies afterwards"))?;
        }
    }
    Ok(Outcome::Pass)
}

/// With nothing open.
pub fn run_idle(setup: Setup) -> Result<Outcome> {
    each(setup, |setup, slot| {
        for index in 0..setup.devices {
            copies(setup, &Device::open(index)?, 100)?;
        }
        pull(slot, setup.devices)
    })
}

/// While every device copies: the one that leaves says so, with an error and in time; the others notice nothing.
pub fn run_busy(setup: Setup) -> Result<Outcome> {
    each(setup, |setup, slot| {
        let stop = AtomicBool::new(false);
        let rounds: Vec<AtomicU32> = (0..setup.devices).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..setup.devices)
                .zip(&rounds)
                .map(|(index, rounds)| {
                    let stop = &stop;
                    scope.spawn(move || -> Result<()> {
                        let device = Device::open(index)?;
                        while !stop.load(Ordering::Relaxed) {
                            copies(setup, &device, 200)?;
                            rounds.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            let all_copy = || rounds.iter().all(|r| r.load(Ordering::Relaxed) > 0);
            let gone = until("every device copies", PATIENCE, all_copy)
                .and_then(|()| pull(slot, setup.devices));
            let ended = gone.and_then(|index| {
                let leaver = &threads[usize::try_from(index)?];
                stage("the last copies end");
                until("the last copies have ended", LAST_WORDS, || {
                    leaver.is_finished()
                })?;
                Ok(index)
            });
            // Whatever happened, nobody copies on.
            stop.store(true, Ordering::Relaxed);
            let results: Vec<Result<()>> = threads
                .into_iter()
                .map(|t| {
                    t.join()
                        .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
                })
                .collect();
            let index = ended?;
            for (other, result) in (0..).zip(results) {
                match result {
                    Err(error) if other == index => {
                        // Wrong bytes are no way to say that a device is gone.
                        ensure!(
                            error.chain().any(<dyn std::error::Error>::is::<Refused>),
                            "the last copy ended wrongly: {error:#}"
                        );
                    }
                    Ok(()) if other == index => {
                        anyhow::bail!("copies went on without a device");
                    }
                    result => result.with_context(|| format!("device {other}, not pulled"))?,
                }
            }
            Ok(index)
        })
    })
}

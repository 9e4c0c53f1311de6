//! Semaphores and events by ioctl: register writes and reads of each core's tile (contract §6.1).
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;
use neuron_protocol::registers::semaphore::COUNT;
use rustix::io::Errno;

use super::{Context, Outcome};
use crate::device::Device;
use crate::ioctl::{self, Refused};

impl Device {
    /// One semaphore request; returns the value field afterwards.
    pub fn semaphore(
        &self,
        request: u32,
        core: u32,
        index: u32,
        value: u32,
    ) -> Result<u32, Refused> {
        let mut argument = abi::Semaphore {
            nc_id: core,
            semaphore_index: index,
            value,
        };
        ioctl::plain(self.file(), request, &mut argument)?;
        Ok(argument.value)
    }

    /// One event request; returns the value field afterwards. The core is not checked by the real driver.
    pub fn event(&self, request: u32, core: u32, index: u32, value: u32) -> Result<u32, Refused> {
        assert!(
            core < self.cores,
            "an event of a core past the last would touch any register"
        );
        let mut argument = abi::Event {
            nc_id: core,
            event_index: index,
            value,
        };
        ioctl::plain(self.file(), request, &mut argument)?;
        Ok(argument.value)
    }
}

/// Every core, first to last semaphore and event: distinct values, arithmetic, isolation, refusals.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::SEMAPHORE_READ) {
        return Ok(Outcome::NotOffered(
            "the driver has no semaphore requests".into(),
        ));
    }
    let indices = [0, 1, 31, 128, COUNT - 1];
    let initial = |core: u32, index: u32| 1000 * (core + 1) + index;
    for core in 0..device.cores {
        for index in indices {
            device.semaphore(abi::SEMAPHORE_WRITE, core, index, initial(core, index))?;
        }
    }
    for core in 0..device.cores {
        for index in indices {
            device.semaphore(abi::SEMAPHORE_INCREMENT, core, index, 7 + core)?;
            device.semaphore(abi::SEMAPHORE_INCREMENT, core, index, 1)?;
            device.semaphore(abi::SEMAPHORE_DECREMENT, core, index, 3)?;
        }
    }
    for core in 0..device.cores {
        for index in indices {
            let found = device.semaphore(abi::SEMAPHORE_READ, core, index, 0)?;
            let expected = initial(core, index) + 5 + core;
            ensure!(
                found == expected,
                "core {core} semaphore {index}: {found}, expected {expected}"
            );
            device.semaphore(abi::SEMAPHORE_WRITE, core, index, 0)?;
            let cleared = device.semaphore(abi::SEMAPHORE_READ, core, index, 1)?;
            ensure!(
                cleared == 0,
                "core {core} semaphore {index}: {cleared} after writing 0"
            );
        }
        let beside = device.semaphore(abi::SEMAPHORE_READ, core, 2, 0)?;
        ensure!(
            beside == 0,
            "core {core} semaphore 2: {beside}, nobody wrote it"
        );
    }
    events(device).context("events")?;

    let bad_core = device.semaphore(
        abi::SEMAPHORE_READ,
        u32::from(device.generation.cores),
        0,
        0,
    );
    ensure!(
        matches!(bad_core, Err(r) if r.is(Errno::TOOBIG)),
        "a core past the last is answered {bad_core:?}"
    );
    let bad_index = device.semaphore(abi::SEMAPHORE_READ, 0, COUNT, 0);
    ensure!(
        matches!(bad_index, Err(r) if r.is(Errno::INVAL)),
        "semaphore {COUNT} is answered {bad_index:?}"
    );
    Ok(Outcome::Pass)
}

fn events(device: &Device) -> Result<()> {
    if !device.offers(abi::EVENT_GET) {
        return Ok(());
    }
    let indices = [0, 1, 100, COUNT - 1];
    for core in 0..device.cores {
        for index in indices {
            device.event(abi::EVENT_SET, core, index, (core + index) % 2)?;
        }
    }
    for core in 0..device.cores {
        for index in indices {
            let found = device.event(abi::EVENT_GET, core, index, 77)?;
            ensure!(
                found == (core + index) % 2,
                "core {core} event {index}: {found}"
            );
            device.event(abi::EVENT_SET, core, index, 0)?;
            ensure!(
                device.event(abi::EVENT_GET, core, index, 77)? == 0,
                "core {core} event {index} does not clear"
            );
        }
    }
    Ok(())
}

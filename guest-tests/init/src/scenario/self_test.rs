//! Scenarios that end badly on purpose, so that whoever reads our lines can see that it notices. Not
//! part of `all`; named on the command line; no device needed (`neuron.devices=0 neuron.module=`).
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Outcome, Setup};
use crate::job::stage;

/// Fails a check.
pub fn fail(_: Setup) -> Result<Outcome> {
    bail!("failed on purpose")
}

/// Panics in a thread of its own, as a scenario with threads would.
pub fn panic(_: Setup) -> Result<Outcome> {
    let thread = std::thread::spawn(|| {
        let nothing: Option<u32> = std::hint::black_box(None);
        assert!(nothing.is_some(), "panicked on purpose");
    });
    match thread.join() {
        Ok(()) => Ok(Outcome::Pass),
        Err(cause) => std::panic::resume_unwind(cause),
    }
}

/// Dies without a word.
pub fn crash(_: Setup) -> Result<Outcome> {
    stage("about to die on purpose");
    std::process::abort()
}

/// Fails as a scenario does whose process the driver killed: the kernel's log has the reason.
pub fn bug(_: Setup) -> Result<Outcome> {
    std::fs::write("/dev/kmsg", "kernel BUG at planted.c:1!\n")?;
    bail!("as if the driver had killed this process")
}

/// Never ends.
pub fn hang(_: Setup) -> Result<Outcome> {
    stage("hanging on purpose");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

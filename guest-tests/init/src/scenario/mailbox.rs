//! Requests that the driver passes on to the firmware (contract §4.1).
use anyhow::{Context as _, Result};
use neuron_protocol::generation::Block;
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome};
use crate::ioctl;
use crate::job::stage;

/// Counters read (command 1) and metrics posted (command 2), at the first try each.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::READ_HW_COUNTERS) && !device.offers(abi::POST_METRIC) {
        return Ok(Outcome::NotOffered(
            "the driver has no mailbox requests".into(),
        ));
    }
    if device.offers(abi::READ_HW_COUNTERS) {
        stage("READ_HW_COUNTERS");
        let misc = device
            .generation
            .block_base(Block::MiscRam, 0)
            .context("misc RAM")?;
        for count in [1, 3, 8] {
            let addresses: Vec<u64> = (0..count).map(|n| u64::from(misc) + 0x38 + 4 * n).collect();
            let mut values = vec![0; addresses.len()];
            ioctl::read_counters(device.file(), &addresses, &mut values)?;
        }
    }
    if device.offers(abi::POST_METRIC) {
        stage("POST_METRIC");
        for length in [4, 16, 128] {
            ioctl::post_metric(device.file(), &context.pattern(1).bytes(0, length))
                .with_context(|| format!("{length} bytes"))?;
        }
    }
    Ok(Outcome::Pass)
}

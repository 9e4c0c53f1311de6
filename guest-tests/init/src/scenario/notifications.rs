//! Notification queues (`NOTIFICATIONS_INIT_V2`): the driver makes a ring and tells the device (contract §9).
use anyhow::{Result, ensure};
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome};
use crate::ioctl;

/// One queue of the first and last core in guest memory: fresh, all of it readable, at an address of its own.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::NOTIFICATIONS_INIT_V2) {
        return Ok(Outcome::NotOffered(
            "the driver has no NOTIFICATIONS_INIT_V2".into(),
        ));
    }
    let mut seen = Vec::new();
    for core in [0, device.cores - 1] {
        let mut queue = abi::NotificationsInitV2 {
            nq_dev_id: core,
            nq_type: 1,
            size: 0x4000,
            on_host_memory: 1,
            ..Default::default()
        };
        ioctl::plain(device.file(), abi::NOTIFICATIONS_INIT_V2, &mut queue)?;
        let info = device.extended_info(queue.mem_handle)?;
        ensure!(info.size >= 0x4000, "a ring of {} bytes", info.size);
        ensure!(info.host_memory != 0, "asked for guest memory");
        ensure!(
            !seen.contains(&info.pa) || device.cores == 1,
            "two queues at {:#x}",
            info.pa
        );
        seen.push(info.pa);
        ensure!(queue.mmap_offset != 0, "no offset to map it at");
    }
    Ok(Outcome::Pass)
}

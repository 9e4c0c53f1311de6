//! Options of the wire.
use std::time::Duration;

use clap::Args;

use crate::vfio::Settings;

/// How devices serve their sockets.
#[derive(Args, Debug)]
pub struct WireArgs {
    /// Keep looking for messages for so long after the last one, instead of blocking at once: lower latency for a CPU
    /// per device that does nothing else. Useless, and worse, without a CPU to spare
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    busy_poll: u32,
}

impl WireArgs {
    /// For each device's server.
    pub fn settings(&self) -> Settings {
        Settings {
            busy_poll: Duration::from_micros(self.busy_poll.into()),
        }
    }
}

//! `--timing`: how long work takes.
use clap::Args;
use neuron_protocol::generation::Generation;

use crate::policy::Timing;
use crate::policy::timing::Speed;

/// How long work takes.
#[derive(Args, Clone, Debug)]
pub struct TimingArgs {
    /// How long DMA takes: instant, silicon (what the driver estimates: 4 us or 2 us for each descriptor, by generation),
    /// or a factor of silicon's time such as 2.5. Descriptors of an engine queue up, engines work side by side
    #[arg(long, value_name = "instant|silicon|FACTOR", default_value = "instant")]
    timing: Speed,
}

impl TimingArgs {
    /// The timing of a device.
    pub fn timing(&self, generation: &Generation) -> Option<Timing> {
        Timing::new(generation.estimate, self.timing)
    }
}

//! `--timing`, `--budget` and `--budget-limit`: how long work takes, and how much of the driver's patience that uses.
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use neuron_protocol::generation::Generation;
use tracing::{error, info, warn};

use super::device::DeviceSpec;
use crate::observe::budget::{Budget, Percent};
use crate::outputs;
use crate::policy::Timing;
use crate::policy::fault::risk::Clock;
use crate::policy::timing::Speed;

/// How long work takes.
#[derive(Args, Clone, Debug)]
pub struct TimingArgs {
    /// How long DMA takes: instant, silicon (what the driver estimates: 4 us or 2 us for each descriptor, by generation),
    /// or a factor of silicon's time such as 2.5. Descriptors of an engine queue up, engines work side by side
    #[arg(long, value_name = "instant|silicon|FACTOR", default_value = "instant")]
    timing: Speed,

    /// End with exit code 6 if a batch took more than this share of the time that the driver grants on silicon, whatever
    /// the platform. Counts model time (--timing), not the host's
    #[arg(long, value_name = "PERCENT")]
    budget_limit: Option<Percent>,

    /// At the end, write how much of the driver's budget each queue's batches used to this file, as JSON
    #[arg(long, value_name = "FILE")]
    budget: Option<PathBuf>,
}

/// The books of all devices, for the end.
#[derive(Debug, Default)]
pub struct Budgets {
    books: Vec<(u8, Budget)>,
    /// Opened at the start: later the process may not.
    file: Option<(PathBuf, File)>,
}

impl TimingArgs {
    /// The timing of a device.
    pub fn timing(&self, generation: &Generation) -> Option<Timing> {
        Timing::new(generation.estimate, self.timing)
    }

    /// Whether it fits the guest's clock.
    ///
    /// # Errors
    /// Work takes the host's time, and the guest lives by another.
    pub fn check(&self, clock: Clock) -> Result<(), String> {
        match (clock, self.timing) {
            (Clock::Virtual, Speed::Factor(_)) => Err(
                "--timing with --virtual-time: work would take the host's time, and a guest in virtual time may sleep through it in no time; leave one of them out"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// The same, as it was asked for.
    pub const fn speed(&self) -> Speed {
        self.timing
    }

    /// Books for the devices to come.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn budgets(&self) -> Result<Budgets, String> {
        let file = match &self.budget {
            None => None,
            Some(path) => {
                let file = outputs::create("--budget", path)?;
                Some((path.clone(), file))
            }
        };
        Ok(Budgets {
            books: Vec::new(),
            file,
        })
    }

    /// Books for a device.
    pub fn book(&self, spec: &DeviceSpec, budgets: &mut Budgets) -> Budget {
        let generation = spec.product.generation();
        let budget = Budget::new(generation, spec.platform, self.budget_limit);
        budgets.books.push((spec.routing_id, budget.clone()));
        if self.budget_limit.is_some() && self.timing == Speed::Instant {
            warn!(
                "--budget-limit with --timing instant: only faults that delay take model time; add --timing silicon"
            );
        }
        budget
    }
}

impl Budgets {
    /// Tells and writes what the books say. True if a batch was beyond the limit.
    pub fn close(self) -> bool {
        let mut all = Vec::new();
        for (device, budget) in &self.books {
            let report = budget.report();
            let text = report.text();
            if !text.is_empty() {
                info!(device, "batches and the driver's patience:\n{text}");
            }
            if self.file.is_some() {
                let mut value = serde_json::to_value(report).unwrap_or_default();
                value["routing_id"] = (*device).into();
                all.push(value);
            }
        }
        if let Some((path, mut file)) = self.file {
            let text = format!("{:#}\n", serde_json::Value::from(all));
            if let Err(error) = file.write_all(text.as_bytes()) {
                error!("--budget {}: {error}", path.display());
                outputs::lost();
            }
        }
        self.books.iter().any(|(_, budget)| budget.is_exceeded())
    }
}

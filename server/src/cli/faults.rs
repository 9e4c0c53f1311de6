//! `--fault`, `--faults`: hardware that misbehaves on purpose.
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use tracing::info;

use super::device::DeviceSpec;
use crate::policy::fault::risk::{self, Clock};
use crate::policy::fault::{self, Plan, Rule};
use crate::policy::{Faults, Ground};

/// Bytes of a file that are looked at; the parser refuses fewer.
const MAX_READ: u64 = 1 << 20;

/// What is to go wrong.
#[derive(Args, Clone, Debug)]
pub struct FaultArgs {
    /// Misbehave on purpose: a scenario (marker-drop-once), or a rule (`on=marker action=drop nth=2`); may be repeated.
    /// `list` prints the scenarios with what a driver is expected to do, and ends
    #[arg(long, value_name = "NAME|RULE", value_parser = scenario, conflicts_with = "record")]
    fault: Vec<String>,

    /// Misbehave by the rules of a TOML file; see docs/faults.md
    #[arg(long, value_name = "FILE.toml", conflicts_with = "record")]
    faults: Option<PathBuf>,

    /// Seed of what faults leave to chance [default: the file's, or 0]
    #[arg(long, value_name = "N")]
    fault_seed: Option<u64>,

    /// Take faults that make a guest wait for minutes on this platform
    #[arg(long)]
    allow_hangs: bool,
}

/// The scenarios are printed as help is: nothing else has to be said with it.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the shape of a parser of arguments"
)]
fn scenario(text: &str) -> Result<String, String> {
    if text == "list" {
        super::print(&fault::library::list());
        std::process::exit(0);
    }
    Ok(text.to_owned())
}

/// What goes wrong, checked.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    ground: Ground,
    rules: Vec<Rule>,
}

impl FaultArgs {
    /// Reads and checks everything for the devices to come.
    ///
    /// # Errors
    /// Option or file, place in it, cause and remedy.
    pub fn plans(&self, specs: &[DeviceSpec], clock: Clock) -> Result<Plans, String> {
        let mut rules = Vec::new();
        for text in &self.fault {
            let parsed = fault::inline(text);
            rules.extend(parsed.map_err(|error| format!("--fault {text}: {error}"))?);
        }
        let mut seed = None;
        if let Some(path) = &self.faults {
            let shown = path.display();
            let text = read(path).map_err(|error| format!("--faults {shown}: {error}"))?;
            let plan: Plan =
                fault::plan(&text).map_err(|error| format!("--faults {shown}: {error}"))?;
            seed = plan.seed;
            rules.extend(plan.rules);
        }
        if rules.len() > fault::MAX_RULES {
            return Err(format!(
                "{} fault rules are given: a device takes {} at most",
                rules.len(),
                fault::MAX_RULES
            ));
        }
        for spec in specs {
            for rule in &rules {
                let generation = spec.product.generation();
                risk::admit(rule, generation, spec.platform, clock, self.allow_hangs)?;
            }
        }
        Ok(Plans {
            ground: Ground {
                seed: self.fault_seed.or(seed).unwrap_or(0),
                clock,
            },
            rules,
        })
    }
}

impl Plans {
    /// What they rest on, and any that are added later.
    pub const fn ground(&self) -> Ground {
        self.ground
    }

    /// The faults of a device; `None` if nothing is to go wrong.
    pub fn faults(&self, spec: &DeviceSpec) -> Option<Faults> {
        if self.rules.is_empty() {
            return None;
        }
        let mut faults = Faults::new(spec.product.generation(), self.ground.seed);
        for rule in &self.rules {
            // Their number was checked.
            let _ = faults.add(rule.clone());
        }
        info!(
            device = spec.routing_id,
            "misbehaves on purpose, seed {}:\n{}",
            self.ground.seed,
            faults.describe().trim_end()
        );
        Some(faults)
    }
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_READ).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    Ok(text)
}

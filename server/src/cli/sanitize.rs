//! Options of the sanitizer.
use clap::Args;
use neuron_protocol::generation::Generation;

use crate::control::report::{Parts, to_json};
use crate::observe::sanitize::{self, Findings, Mode, Sanitizer};

/// Whether and how the driver is judged.
#[derive(Args, Clone, Copy, Debug)]
pub struct SanitizeArgs {
    /// Judge the driver by the rules of the ring cycle (docs/sanitizer.md). warn logs what is found, and sums it up at the
    /// end; fatal also ends the device at its first error, and the exit status is then 5. Other devices go on
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "warn"
    )]
    sanitize: Option<Mode>,
}

impl SanitizeArgs {
    /// A sanitizer for a device at power-on, if one is wanted.
    pub fn sanitizer(
        self,
        generation: &'static Generation,
        device: u8,
    ) -> Option<(Sanitizer, Findings)> {
        Some(Sanitizer::new(generation, device, self.sanitize?))
    }
}

/// Has the findings written into reports.
pub fn add_to(parts: &mut Parts, findings: &Findings) {
    let for_programs = findings.clone();
    parts.add("findings.json", move || {
        to_json(&sanitize::json(&for_programs.ledger()))
    });
    let for_ci = findings.clone();
    parts.add("findings-junit.xml", move || {
        sanitize::junit(&for_ci.ledger()).into_bytes()
    });
}

//! `--adversary`: hardware that does what it is free to do.
use clap::Args;

use crate::policy::Adversary;
use crate::policy::adversary::Script;

/// Whether hardware is as unhelpful as it may be.
#[derive(Args, Clone, Debug)]
pub struct AdversaryArgs {
    /// Be legal hardware that is as unhelpful as it may be: writes land late, apart and in any order that no barrier forbids,
    /// descriptors are fetched early or late, heads lag. SEED decides; SEED:K deviates from the usual only in the first K
    /// decisions, SEED:+LIST only in those of a list such as 3,17-20
    #[arg(long, value_name = "SEED[:K|:+LIST]")]
    adversary: Option<Script>,
}

impl AdversaryArgs {
    /// The adversary of the nth device, if there is one: each has a seed of its own, counting up.
    pub fn adversary(&self, nth: u8) -> Option<Adversary> {
        let mut script = self.adversary.clone()?;
        script.seed = script.seed.wrapping_add(nth.into());
        Some(Adversary::new(script))
    }
}

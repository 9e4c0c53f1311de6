//! Which faults keep a guest waiting for minutes.
use std::time::Duration;

use neuron_protocol::budget::{PollBudget, Scaling, Wait};
use neuron_protocol::generation::{Generation, Platform};

use super::Rule;

/// A driver that waits longer than this for one small copy has hung, as far as people are concerned.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a driver waits at least for the marker of the smallest batch (contract §8.4).
#[must_use]
pub fn shortest_wait(generation: &Generation, platform: Platform) -> Duration {
    // A data descriptor and its marker; older drivers have the smaller factors.
    let budget = PollBudget::kernel(
        generation.estimate,
        platform,
        Scaling::SPLIT,
        Wait::Synchronous,
        2,
    );
    Duration::from_micros(budget.map_or(u64::MAX, PollBudget::total))
}

/// Why a rule is not for this device, and what to do.
///
/// # Errors
/// A driver would wait for minutes, spinning, for a marker that never comes.
pub fn check(rule: &Rule, generation: &Generation, platform: Platform) -> Result<(), String> {
    let wait = shortest_wait(generation, platform);
    if wait <= PATIENCE || !rule.action.fit().starves.contains(&rule.on) {
        return Ok(());
    }
    Err(format!(
        "fault {}: a marker never comes, and on platform {platform} the driver waits {} s or more for it, even of the smallest copy; use --platform silicon ({} ms), or --allow-hangs with a guest in virtual time",
        rule.name,
        wait.as_secs(),
        shortest_wait(generation, Platform::Silicon).as_millis()
    ))
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::Product;

    use super::*;
    use crate::policy::fault::inline;

    #[test]
    fn lost_markers_are_for_silicon_and_lost_data_for_all() {
        for product in Product::ALL {
            for platform in Platform::ALL {
                let ok = |text| {
                    let rules = inline(text).unwrap();
                    check(&rules[0], product.generation(), platform).is_ok()
                };
                let silicon = platform == Platform::Silicon;
                assert_eq!(ok("on=marker action=drop nth=1"), silicon);
                assert_eq!(ok("on=copy action=stall"), silicon);
                assert!(ok("on=copy action=drop") && ok("on=marker action=delay by=5ms"));
            }
        }
        let rules = inline("on=marker action=drop").unwrap();
        let error = check(&rules[0], Product::Trn2.generation(), Platform::Qemu).unwrap_err();
        assert!(
            error.contains("799 s") && error.contains("--allow-hangs"),
            "{error}"
        );
    }
}

//! Which faults keep a guest waiting for minutes, and which make no sense beside its clock.
use std::time::Duration;

use neuron_protocol::budget::{PollBudget, Scaling, Wait};
use neuron_protocol::generation::{Generation, Platform};

use super::rule::{Occurrence, On, Outcome, Rule};
use crate::policy::{Tear, Verdict};

/// A driver that waits longer than this for one small copy has hung, as far as people are concerned.
const PATIENCE: Duration = Duration::from_secs(60);

/// Until a driver gives up a reset that is never acknowledged, at least: on V2; V3 and V4 wait four times as long (contract §7).
const RESET_WAIT: Duration = Duration::from_secs(120);

/// More resets in a row than these are never survived: a driver asks again every 30 s at most (contract §7).
const RESETS_IN_PATIENCE: u64 = 2;

/// What the guest's clock runs by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The host's time, like the device's.
    #[default]
    Host,
    /// QEMU's `-icount` with `sleep=off`: instructions, and a guest that sleeps loses no time.
    Virtual,
}

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
/// A driver would wait for minutes for something that never comes, which `allow_hangs` takes, or its times mean nothing.
pub fn admit(
    rule: &Rule,
    generation: &Generation,
    platform: Platform,
    clock: Clock,
    allow_hangs: bool,
) -> Result<(), String> {
    if !allow_hangs {
        check(rule, generation, platform, clock)?;
    }
    check_clock(rule, clock)
}

fn check(
    rule: &Rule,
    generation: &Generation,
    platform: Platform,
    clock: Clock,
) -> Result<(), String> {
    let wait = shortest_wait(generation, platform);
    if wait > PATIENCE && rule.action.fit().starves.contains(&rule.on) {
        return Err(format!(
            "fault {}: a marker never comes, and on platform {platform} the driver spins for {} s or more for it, even of the smallest copy; use --platform silicon ({} ms), or --allow-hangs. Virtual time does not shorten what spins",
            rule.name,
            wait.as_secs(),
            shortest_wait(generation, Platform::Silicon).as_millis()
        ));
    }
    if clock == Clock::Host && resets_never_end(rule) {
        return Err(format!(
            "fault {}: no reset is acknowledged in time, and the driver sleeps for {} s or more until it gives up; use virtual time, where sleep costs nothing (scripts/guest --virtual-time), or --allow-hangs",
            rule.name,
            RESET_WAIT.as_secs()
        ));
    }
    Ok(())
}

/// Whether a rule keeps reset after reset from being acknowledged.
fn resets_never_end(rule: &Rule) -> bool {
    let lost = match rule.outcome {
        Outcome::Fixed(Verdict::Drop) => true,
        Outcome::Fixed(Verdict::Delay(by)) => by > PATIENCE,
        _ => false,
    };
    let again = match rule.occurrence {
        Occurrence::Always => true,
        Occurrence::First(n) => n > RESETS_IN_PATIENCE,
        // The driver's next request is one that they let through.
        Occurrence::Nth(_) | Occurrence::Every(2..) | Occurrence::Chance(_) => false,
        Occurrence::Every(_) => true,
    };
    rule.on == On::Reset && lost && again
}

/// A time is the host's; how much of the time of a guest in virtual time that is depends on what the guest does.
fn check_clock(rule: &Rule, clock: Clock) -> Result<(), String> {
    let by = match rule.outcome {
        Outcome::Fixed(
            Verdict::Delay(by)
            | Verdict::Duplicate(by)
            | Verdict::Stall(Some(by))
            | Verdict::Tear(Tear::Half(Some(by)) | Tear::BehindMarker(by)),
        ) => by,
        _ => Duration::ZERO,
    };
    if clock == Clock::Host || by.is_zero() {
        return Ok(());
    }
    Err(format!(
        "fault {}: by={by:?} is the device's time, which is the host's; a guest in virtual time may sleep through it in no time. Leave --virtual-time out, or use an action without a time",
        rule.name
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
                    check(&rules[0], product.generation(), platform, Clock::Host).is_ok()
                };
                let silicon = platform == Platform::Silicon;
                assert_eq!(ok("on=marker action=drop nth=1"), silicon);
                assert_eq!(ok("on=copy action=stall"), silicon);
                assert!(ok("on=copy action=drop") && ok("on=marker action=delay by=5ms"));
            }
        }
        let rules = inline("on=marker action=drop").unwrap();
        let error = check(
            &rules[0],
            Product::Trn2.generation(),
            Platform::Qemu,
            Clock::Virtual,
        )
        .unwrap_err();
        assert!(
            error.contains("799 s") && error.contains("--allow-hangs"),
            "{error}"
        );
    }

    #[test]
    fn resets_that_never_end_are_for_virtual_time() {
        let check = |text, clock| {
            let rules = inline(text).unwrap();
            check(
                &rules[0],
                Product::Trn1.generation(),
                Platform::Silicon,
                clock,
            )
        };
        for text in [
            "reset-never",
            "on=reset action=drop every=1",
            "on=reset action=drop first=3",
            "on=reset action=delay by=100s",
        ] {
            let error = check(text, Clock::Host).unwrap_err();
            assert!(
                error.contains("120 s") && error.contains("--virtual-time"),
                "{error}"
            );
            check(text, Clock::Virtual).unwrap();
        }
        for text in ["reset-retry", "reset-late", "mailbox-silent"] {
            check(text, Clock::Host).unwrap();
        }
    }

    #[test]
    fn what_takes_time_is_for_guests_on_the_hosts_clock() {
        for (text, fits) in [
            ("on=marker action=delay by=5ms", false),
            ("on=copy action=stall by=1s", false),
            ("on=copy action=marker-first by=1ms", false),
            ("on=marker action=tear-half by=1ms", false),
            ("on=marker action=tear-half", true),
            ("on=copy action=stall", true),
            ("on=marker action=duplicate", true),
            ("reset-never", true),
        ] {
            let rules = inline(text).unwrap();
            assert_eq!(
                check_clock(&rules[0], Clock::Virtual).is_ok(),
                fits,
                "{text}"
            );
            check_clock(&rules[0], Clock::Host).unwrap();
        }
    }
}

//! A driver half that keeps every rule passes any seed of the adversary; one that lacks a barrier fails, from its seed.
//!
//! Each test removes one thing from the driver's half, finds the first seed that shows it, cuts the seed down to the
//! deviations that matter, and prints both with what went wrong. The table is in `docs/adversary.md`.
#![allow(clippy::cast_possible_truncation, reason = "test code")]
mod cpu;
#[path = "../rig/mod.rs"]
mod rig;
mod scenario;

use neuron_vfio_user::policy::adversary::{Plan, Script, shrink};
use scenario::{Missing, Outcome, Scenario, run};

/// Seeds of a driver half that lacks nothing.
const HONEST: u64 = 700;
/// Seeds in which a missing barrier must show.
const SEEDS: u64 = 200;

fn with_adversary(scenario: Scenario, missing: Missing, seed: u64) -> Outcome {
    let plan = Plan::All;
    run(scenario, missing, seed, Some(&Script { seed, plan }))
}

/// How many of the seeds fail, and the first with what goes wrong.
fn failures(scenario: Scenario, missing: Missing) -> (u64, Option<(u64, String)>) {
    let mut first = None;
    let mut count = 0;
    for seed in 0..SEEDS {
        if let Err(wrong) = with_adversary(scenario, missing, seed).result {
            count += 1;
            first.get_or_insert((seed, wrong));
        }
    }
    (count, first)
}

/// The barrier is needed: without it seeds fail, on hardware in order none does if `hidden`; the first is cut down.
fn is_needed(scenario: Scenario, missing: Missing, hidden: bool) {
    let (count, first) = failures(scenario, missing);
    let (seed, wrong) =
        first.unwrap_or_else(|| panic!("{missing:?} does not show in {SEEDS} seeds"));
    let in_order = (0..SEEDS).filter(|seed| run(scenario, missing, *seed, None).result.is_err());
    let in_order = in_order.count();
    let fails = |script: &Script| {
        let outcome = run(scenario, missing, seed, Some(script));
        (outcome.result.is_err(), outcome.taken)
    };
    let script = shrink(seed, 400, fails);
    let few = run(scenario, missing, seed, Some(&script)).result;
    let few = few.expect_err("the seed that was cut down fails");
    println!(
        "{missing:?} in {scenario:?}: {count} of {SEEDS} seeds ({in_order} in order), the first --adversary {seed}: {wrong}; \
         cut down to --adversary {script}: {few}"
    );
    // A seed does the same every time.
    let again = with_adversary(scenario, missing, seed).result;
    assert_eq!(again, Err(wrong));
    if hidden {
        assert_eq!(in_order, 0, "hardware in order shows it as well");
    }
}

#[test]
fn a_driver_half_that_lacks_nothing_passes() {
    for scenario in [
        Scenario::Classic,
        Scenario::ZeroCopy,
        Scenario::Chain,
        Scenario::Overlap,
    ] {
        for seed in 0..HONEST {
            let outcome = with_adversary(scenario, Missing::Nothing, seed);
            if let Err(wrong) = outcome.result {
                panic!("{scenario:?}, seed {seed}: {wrong}");
            }
            assert!(
                !outcome.taken.is_empty(),
                "{scenario:?}, seed {seed} is in order"
            );
        }
    }
}

#[test]
fn the_write_barrier_is_needed() {
    is_needed(Scenario::Classic, Missing::WriteBarrier, true);
}

#[test]
fn the_strong_order_of_the_marker_is_needed() {
    is_needed(Scenario::ZeroCopy, Missing::StrongOrder, true);
}

#[test]
fn the_dmb_is_needed() {
    is_needed(Scenario::Chain, Missing::Dmb, true);
}

#[test]
fn the_bit_that_lets_dmbs_act_is_needed() {
    is_needed(Scenario::Chain, Missing::DmbEnable, true);
}

#[test]
fn the_barrier_before_the_rx_doorbell_is_needed() {
    is_needed(Scenario::Classic, Missing::PublishBeforeRx, false);
}

#[test]
fn the_barriers_before_the_doorbells_are_needed() {
    is_needed(Scenario::Classic, Missing::BothPublishes, false);
}

/// Nothing is stored between the two: the first one covers it. It orders the two doorbells on other buses than this.
#[test]
fn the_barrier_before_the_tx_doorbell_is_covered_by_the_one_before() {
    assert_eq!(
        failures(Scenario::Classic, Missing::PublishBeforeTx),
        (0, None)
    );
}

#[test]
fn the_order_of_the_markers_load_is_needed() {
    is_needed(Scenario::Classic, Missing::LoadOrder, false);
}

#[test]
fn all_must_be_staged_before_the_doorbell() {
    is_needed(Scenario::ZeroCopy, Missing::StageFirst, false);
}

#[test]
fn the_head_is_not_the_marker() {
    is_needed(Scenario::Classic, Missing::MarkerNotHead, true);
}

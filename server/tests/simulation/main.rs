//! The driver's half, the wire and the device in one thread, every choice made from one seed.
//!
//! Messages are cut anywhere and delivered whenever; the device works whenever; resets, unmaps and lost connections come
//! at any moment. A reference model follows what the device says it does, checks that the driver asked for exactly that,
//! and must hold the same bytes as memory at the end. A failing seed prints the command that runs it alone.
#![allow(
    clippy::cast_possible_truncation,
    clippy::too_many_lines,
    reason = "test code"
)]
mod driver;
mod model;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use neuron_vfio_user::policy::adversary::{Plan, Script};

/// Seeds of the normal run.
const SEEDS: u64 = 10_000;

/// A small generator: `splitmix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit.max(1)
    }

    pub(crate) fn size(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn run(seed: u64) -> driver::Tally {
    run_with(seed, None)
}

/// Under an adversary with the same seed.
fn run_weak(seed: u64) -> driver::Tally {
    let plan = Plan::All;
    run_with(seed, Some(&Script { seed, plan }))
}

fn run_with(seed: u64, script: Option<&Script>) -> driver::Tally {
    let result = catch_unwind(AssertUnwindSafe(|| driver::run(seed, script).0));
    result.unwrap_or_else(|panic| {
        let adversary = script.map_or_else(String::new, |script| format!(" SIM_ADVERSARY={script}"));
        eprintln!("seed {seed} failed; alone: SIM_SEED={seed}{adversary} cargo test -p neuron-vfio-user --test simulation");
        resume_unwind(panic)
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One seed, if the environment asks for one.
fn one_seed(weak: bool) -> bool {
    let Some(seed) = number("SIM_SEED") else {
        return false;
    };
    let script = std::env::var("SIM_ADVERSARY").ok();
    if script.is_some() == weak {
        let script = script.map(|script| script.parse().unwrap());
        println!("{:?}", run_with(seed, script.as_ref()));
    }
    true
}

fn run_all(run: fn(u64) -> driver::Tally) {
    let mut all = driver::Tally::default();
    for seed in 0..number("SIM_SEEDS").unwrap_or(SEEDS) {
        all.add(&run(seed));
    }
    println!("{all:?}");
    // Nothing that is meant to happen has stopped happening.
    for (what, count) in all.counts() {
        assert!(count > 0, "no seed had any {what}");
    }
}

#[test]
fn memory_equals_the_model_whatever_happens() {
    if !one_seed(false) {
        run_all(run);
    }
}

/// The same on a legal machine that is as unhelpful as it may be; the model also checks that it is legal.
#[test]
fn memory_equals_the_model_under_an_adversary() {
    if !one_seed(true) {
        run_all(run_weak);
    }
}

/// What a seed does must not depend on anything else, or a failing one could not be looked at.
#[test]
fn a_seed_is_the_same_every_time() {
    for seed in [3, 17, 1001] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
        assert_eq!(run_weak(seed), run_weak(seed), "seed {seed}, adversary");
    }
}

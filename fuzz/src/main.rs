//! One binary for all targets: `NEURON_FUZZ_TARGET` says which (scripts/fuzz).
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../server/tests/targets/mod.rs"]
mod targets;

fn chosen() -> fn(&[u8]) {
    static CHOSEN: OnceLock<fn(&[u8])> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let wanted = std::env::var("NEURON_FUZZ_TARGET").unwrap_or_default();
        let found = targets::TARGETS.iter().find(|(name, _)| *name == wanted);
        let Some((_, run)) = found else {
            let names: Vec<_> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
            eprintln!("NEURON_FUZZ_TARGET is {wanted:?}; it must be one of {names:?}");
            std::process::exit(2);
        };
        *run
    })
}

fuzz_target!(|data: &[u8]| chosen()(data));

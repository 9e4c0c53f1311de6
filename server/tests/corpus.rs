//! The fuzzers' corpus, replayed: what they found interesting, and what once failed.
mod targets;

use std::path::Path;

use targets::TARGETS;

#[test]
fn every_input_of_the_corpus_keeps_the_rules() {
    for (name, run) in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fuzz/corpus")
            .join(name);
        let mut inputs: Vec<_> = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        assert!(
            inputs.len() >= 5,
            "{}: {} inputs",
            directory.display(),
            inputs.len()
        );
        for path in inputs {
            // Only a failure shows it.
            println!("{}", path.display());
            run(&std::fs::read(&path).unwrap());
        }
    }
}

/// Not what a fuzzer would find first: nothing at all, and noise.
#[test]
fn nothing_and_noise_keep_the_rules() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    for (_, run) in TARGETS {
        run(&[]);
        for len in [1, 7, 40, 400, 2000, 2001] {
            run(&(0..len).map(|_| byte()).collect::<Vec<_>>());
        }
    }
}

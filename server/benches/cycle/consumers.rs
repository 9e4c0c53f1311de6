//! What watching costs: the same work by servers that differ in one option, in turns, by that of one that watches nothing.
use std::path::Path;
use std::time::Duration;

use neuron_protocol::generation::Product;
use serde_json::{Value, json};

use crate::common::Served;
use crate::measure::{Bench, Effort};
use crate::pin::Pin;

/// Name, options of `serve`, and whether the last takes a file.
///
/// The second is the first again: what it differs by is noise.
const CONSUMERS: &[(&str, &[&str], bool)] = &[
    ("nothing", &["--log", "off"], false),
    ("nothing, again", &["--log", "off"], false),
    ("default (--log info)", &[], false),
    ("--log debug", &["--log", "debug"], false),
    ("--sanitize", &["--sanitize"], false),
    ("--budget", &["--budget"], true),
    ("--coverage", &["--coverage"], true),
    ("--metrics", &["--metrics"], true),
    ("--timeline", &["--timeline"], true),
    ("--record", &["--record"], true),
    (
        "--record, no payload",
        &["--record-payload", "none", "--record"],
        true,
    ),
    ("--report", &["--report"], true),
];

/// Samples of one kind in a row.
const TURN: usize = 40;

/// Descriptors of a batch: a batch stays in the caches, so that no server is faster for where its memory happens to be.
const BATCH: u64 = 16;

/// Names of what is measured.
pub const LOADS: [&str; 3] = ["16 copies of 64 KiB", "one copy of 4 KiB", "register read"];

struct Watched {
    served: Served,
    name: &'static str,
    samples: [Vec<Duration>; LOADS.len()],
}

/// Median and lower tenth of each load, by those of the first consumer.
pub struct Cost {
    name: &'static str,
    of_nothing: [[f64; 2]; LOADS.len()],
}

pub fn measure(product: Product, effort: Effort, pin: Pin) -> Vec<Cost> {
    let effort = Effort {
        batch: BATCH,
        ..effort
    };
    let directory = tempfile::tempdir().expect("directory");
    pin.servers();
    let mut watched: Vec<Watched> = CONSUMERS
        .iter()
        .enumerate()
        .map(|(n, (name, options, takes_file))| {
            let mut options: Vec<String> = options.iter().map(ToString::to_string).collect();
            if *takes_file {
                options.push(place(directory.path(), n, name));
            }
            options.extend(["--product".to_owned(), product.name().to_owned()]);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            Watched {
                served: Served::start(&options),
                name,
                samples: [const { Vec::new() }; LOADS.len()],
            }
        })
        .collect();
    pin.client();
    let (mut servers, mut samples): (Vec<_>, Vec<_>) = watched
        .iter_mut()
        .map(|one| (&one.served, &mut one.samples))
        .unzip();
    let mut benches: Vec<Bench> = servers
        .drain(..)
        .map(|served| Bench::new(served, product, effort))
        .collect();
    for round in 0..=effort.rounds {
        for (bench, samples) in benches.iter_mut().zip(&mut samples) {
            let times = bench.loads(TURN);
            // The first touches fresh pages.
            if round > 0 {
                for (all, new) in samples.iter_mut().zip(times) {
                    all.extend(new);
                }
            }
        }
    }
    drop(benches);
    let of = |samples: &[Vec<Duration>; LOADS.len()]| {
        samples.each_ref().map(|times| {
            let mut times = times.clone();
            times.sort_unstable();
            [times[times.len() / 10], times[times.len() / 2]].map(|t| t.as_secs_f64())
        })
    };
    let base = of(&watched[0].samples);
    watched
        .iter()
        .map(|one| {
            let mut of_nothing = of(&one.samples);
            for (these, base) in of_nothing.iter_mut().zip(base) {
                for (this, base) in these.iter_mut().zip(base) {
                    *this /= base;
                }
            }
            Cost {
                name: one.name,
                of_nothing,
            }
        })
        .collect()
}

/// Where an option's output goes.
fn place(directory: &Path, n: usize, name: &str) -> String {
    let path = directory.join(n.to_string());
    let path = path.to_str().expect("a path");
    if name == "--metrics" {
        format!("unix:{path}")
    } else {
        path.to_owned()
    }
}

pub fn print(costs: &[Cost]) {
    println!(
        "{:<24}{:>20}{:>20}{:>20}   p10, p50 by those of a server that watches nothing",
        "", LOADS[0], LOADS[1], LOADS[2]
    );
    for cost in costs {
        print!("{:<24}", cost.name);
        for [p10, p50] in cost.of_nothing {
            print!("{p10:>13.2}{p50:>7.2}");
        }
        println!();
    }
}

pub fn json(costs: &[Cost]) -> Value {
    costs
        .iter()
        .map(|cost| {
            let loads: serde_json::Map<_, _> = LOADS
                .iter()
                .zip(cost.of_nothing)
                .map(|(load, [p10, p50])| ((*load).to_owned(), json!({ "p10": p10, "p50": p50 })))
                .collect();
            json!({ "consumer": cost.name, "of_nothing": loads })
        })
        .collect()
}

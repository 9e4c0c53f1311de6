//! The cycle over a real socket: accesses beside the crate's own server, latency beside an empty round trip, bandwidth
//! beside a bare memmove.
//!
//! `cargo bench -p neuron-vfio-user` runs it; docs/performance.md says how to read it. Options after `--`: `--json FILE`,
//! `--product NAME`, `--quick`, `--serve OPTION` for the server under test, `--pin apart|together|no` (apart). With
//! `--consumers` it measures instead what each way of watching a device costs.
//!
//! All numbers come from one run, and are to be compared by ratio: on a shared machine the times move, the ratios hold.
//! The client posts its writes as QEMU does, and polls the marker in shared memory as the driver does.
#[path = "../../tests/common/mod.rs"]
mod common;
mod consumers;
mod measure;
mod pin;
mod reference;
mod report;

use std::path::Path;

use common::Served;
use measure::{Bench, Effort};
use neuron_protocol::descriptor::MAX_DESCRIPTOR_LENGTH;
use neuron_protocol::generation::Product;
use neuron_protocol::ring::SYNC_THRESHOLD;
use pin::Pin;
use reference::{Loop, Peers, Reference};
use report::Results;

struct Options {
    json: Option<String>,
    product: Product,
    effort: Effort,
    /// For `serve`.
    serve: Vec<String>,
    pin: Pin,
    consumers: bool,
}

fn options() -> Options {
    let mut options = Options {
        json: None,
        product: Product::Trn2,
        effort: Effort {
            batch: SYNC_THRESHOLD.into(),
            samples: 4000,
            rounds: 15,
        },
        serve: Vec::new(),
        pin: Pin::Apart,
        consumers: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .unwrap_or_else(|| usage(&format!("{argument} needs a value")))
        };
        match argument.as_str() {
            // cargo says so.
            "--bench" => {}
            reference::SERVE => {
                let server = value();
                reference::serve(&server, Path::new(&value()))
            }
            "--json" => options.json = Some(value()),
            "--product" => {
                options.product = value()
                    .parse()
                    .unwrap_or_else(|error| usage(&format!("--product: {error}")));
            }
            "--serve" => options.serve.push(value()),
            "--pin" => {
                options.pin = Pin::parse(&value())
                    .unwrap_or_else(|| usage("--pin takes apart, together or no"));
            }
            "--consumers" => options.consumers = true,
            "--quick" => {
                options.effort = Effort {
                    batch: 256,
                    samples: 500,
                    rounds: 5,
                };
            }
            other => usage(&format!("unknown option {other}")),
        }
    }
    options
}

fn usage(error: &str) -> ! {
    eprintln!(
        "error: {error}\nusage: cargo bench -p neuron-vfio-user [-- [--quick] [--consumers] [--product NAME] [--serve OPTION]... [--pin apart|together|no] [--json FILE]]"
    );
    std::process::exit(2)
}

fn main() {
    let Options {
        json,
        product,
        effort,
        serve,
        pin,
        consumers,
    } = options();
    if consumers {
        let costs = consumers::measure(product, effort, pin);
        consumers::print(&costs);
        return write(json, &consumers::json(&costs));
    }
    let mut arguments = vec!["--product", product.name(), "--log", "warn"];
    arguments.extend(serve.iter().map(String::as_str));
    // What is started now stays there.
    pin.servers();
    let served = Served::start(&arguments);
    let mut peers = Peers {
        our_loop: Reference::start(Loop::Ours),
        crates: Reference::start(Loop::Crates),
    };
    pin.client();
    let mut bench = Bench::new(&served, product, effort);

    let reads = bench.reads(&mut peers);
    let posted = bench.posted(&mut peers.crates);
    drop(peers);
    let (round_trips, [word, most]) = bench.latencies([4, u64::from(MAX_DESCRIPTOR_LENGTH)]);
    let results = Results {
        product,
        effort,
        bytes: bench.bytes(),
        reads,
        posted,
        round_trips,
        latencies: [("4 B", word), ("64 KiB", most)],
        bandwidths: bench.bandwidths(),
    };
    results.print();
    write(json, &results.json());
}

fn write(path: Option<String>, report: &serde_json::Value) {
    if let Some(path) = path
        && let Err(error) = std::fs::write(&path, format!("{report:#}\n"))
    {
        eprintln!("error: {path}: {error}");
        std::process::exit(1);
    }
}

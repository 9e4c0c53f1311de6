//! What was measured, for people and for programs.
use neuron_protocol::generation::Product;
use serde_json::{Value, json};

use crate::measure::{Bandwidth, Effort, Posted, Times, ratio};

/// All of one run. Ours comes first and the crate's server last.
pub struct Results {
    pub product: Product,
    pub effort: Effort,
    /// Of a batch.
    pub bytes: u64,
    /// The whole device, our loop with a small device, the crate's server with the same small device.
    pub reads: [Times; 3],
    pub posted: [Posted; 2],
    /// With a client that sleeps until its answer comes, and with one that looks for it.
    pub round_trips: [Times; 2],
    /// With the system calls of each.
    pub latencies: [(&'static str, (Times, f64)); 2],
    pub bandwidths: Vec<Bandwidth>,
}

const SERVERS: [&str; 2] = ["this server", "the crate's"];

const READS: [&str; 3] = [
    "this server",
    "its loop, with a small device",
    "the crate's, with the same",
];

fn columns(times: Times) -> String {
    let us = |ns| ratio(ns, 1000);
    format!(
        "{:>8.1}{:>8.1}{:>8.1}",
        us(times.p10),
        us(times.p50),
        us(times.p99)
    )
}

impl Results {
    pub fn print(&self) {
        println!("{}, {} samples", self.product, self.effort.samples);
        self.print_accesses();
        self.print_latencies();
        self.print_bandwidths();
    }

    fn print_accesses(&self) {
        println!(
            "{:<34}{:>8}{:>8}{:>8}   p10, p50 by the crate's server",
            "register read, us", "p10", "p50", "p99"
        );
        let theirs = self.reads[2];
        for (name, times) in READS.into_iter().zip(self.reads) {
            println!(
                "{name:<34}{}   {:.2} {:.2}",
                columns(times),
                ratio(times.p10, theirs.p10),
                ratio(times.p50, theirs.p50)
            );
        }
        println!();
        println!(
            "{:<34}{:>8}{:>8}   calls a write",
            "posted writes, thousands a second", "best", "median"
        );
        for (name, posted) in SERVERS.into_iter().zip(self.posted) {
            println!(
                "{name:<34}{:>8.0}{:>8.0}   {:.3}",
                ratio(1_000_000, posted.each.p10),
                ratio(1_000_000, posted.each.p50),
                posted.calls_per_write
            );
        }
    }

    fn print_latencies(&self) {
        println!();
        println!(
            "{:<34}{:>8}{:>8}{:>8}   p10 by round trip, client asleep and awake; calls",
            "one queue, us", "p10", "p50", "p99"
        );
        let [asleep, awake] = self.round_trips;
        println!(
            "{:<34}{}",
            "empty round trip, client asleep",
            columns(asleep)
        );
        println!("{:<34}{}", "empty round trip, client awake", columns(awake));
        for (name, (times, calls)) in self.latencies {
            let name = format!("doorbell to marker, {name}");
            println!(
                "{name:<34}{}   {:.2} {:.2}; {calls:.1}",
                columns(times),
                ratio(times.p10, asleep.p10),
                ratio(times.p10, awake.p10)
            );
        }
    }

    fn print_bandwidths(&self) {
        println!();
        println!(
            "{} descriptors of 64 KiB a batch, {} rounds of memmove and copy",
            self.effort.batch, self.effort.rounds
        );
        println!(
            "{:<34}{:>8}{:>8}   of memmove: median, worst tenth, median in CPU time",
            "MB/s", "memmove", "copy"
        );
        let rate = |ns| ratio(u128::from(self.bytes) * 1000, ns);
        for row in &self.bandwidths {
            println!(
                "{:<34}{:>8.0}{:>8.0}   {:.2} {:.2} {:.2}",
                row.name,
                rate(row.memmove.p50),
                rate(row.copy.p50),
                row.of_memmove.1,
                row.of_memmove.0,
                row.of_memmove_cpu
            );
        }
    }

    pub fn json(&self) -> Value {
        let times =
            |times: Times| json!({ "p10_ns": times.p10, "p50_ns": times.p50, "p99_ns": times.p99 });
        let posted =
            |posted: Posted| json!({ "each": times(posted.each), "calls": posted.calls_per_write });
        let mut report = json!({
            "product": self.product.name(),
            "samples": self.effort.samples,
            "batch_bytes": self.bytes,
            "register_read": {
                "this_server": times(self.reads[0]),
                "loop_with_small_device": times(self.reads[1]),
                "vfio_user_crate": times(self.reads[2]),
                "p10_ratio": ratio(self.reads[0].p10, self.reads[2].p10),
                "loop_p10_ratio": ratio(self.reads[1].p10, self.reads[2].p10),
            },
            "posted_write": {
                "this_server": posted(self.posted[0]),
                "vfio_user_crate": posted(self.posted[1]),
            },
            "round_trip": times(self.round_trips[0]),
            "round_trip_client_awake": times(self.round_trips[1]),
        });
        for (name, (latency, calls)) in self.latencies {
            let [asleep, awake] = self.round_trips.map(|base| ratio(latency.p10, base.p10));
            report["latency"][name] = times(latency);
            report["latency"][name]["p10_per_round_trip"] = json!(asleep);
            report["latency"][name]["p10_per_round_trip_client_awake"] = json!(awake);
            report["latency"][name]["calls"] = json!(calls);
        }
        for row in &self.bandwidths {
            report["bandwidth"][row.name] = json!({
                "copy": times(row.copy),
                "memmove": times(row.memmove),
                "of_memmove_median": row.of_memmove.1,
                "of_memmove_worst_tenth": row.of_memmove.0,
                "of_memmove_median_cpu": row.of_memmove_cpu,
            });
        }
        report
    }
}

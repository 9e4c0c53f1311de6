//! One run with our eyes on the numbers.
use anyhow::Result;

use crate::guest_line::Verdict;
use crate::lane::{self, Lane};
use crate::options::GuestOptions;
use crate::outcome::{Failure, Finding, verdict};
use crate::print;
use crate::progress::Progress;
use crate::report::Report;

/// Options of the demonstration.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoOptions {
    /// What to boot.
    #[command(flatten)]
    pub guest: GuestOptions,
}

/// Runs and prints the table; `PASS` is the last line if everything held.
///
/// # Errors
/// Setup errors.
pub fn run(options: &DemoOptions, progress: &mut Progress) -> Result<Option<Failure>> {
    let lane = options.guest.lane(progress)?;
    let mut report = lane::run(&lane, progress, &mut |line| {
        if let Some(text) = print::live(line) {
            println!("{text}");
        }
    })?;
    progress.clear();
    // A table of dashes must not end in PASS.
    report.findings.extend(
        rows(&lane, &report)
            .into_iter()
            .filter_map(|(name, value)| {
                value.is_none().then(|| {
                    Finding::new(
                        Failure::Scenario,
                        format!("nothing was measured for {name:?}"),
                    )
                })
            }),
    );
    println!();
    if report.findings.is_empty() {
        println!("logs      {}\n", report.dir.display());
    } else {
        print!("{}", print::closing(&lane, &report));
    }
    for (name, value) in rows(&lane, &report) {
        println!("{name:<28} {}", value.as_deref().unwrap_or("-"));
    }
    let verdict = verdict(&report.findings);
    println!(
        "{}",
        verdict.map_or_else(|| "PASS".to_owned(), |failure| format!("FAIL ({failure})"))
    );
    Ok(verdict)
}

/// What the device thinks of the driver.
fn judged(lane: &Lane, report: &Report) -> String {
    if !lane.sanitize {
        return "off".to_owned();
    }
    let errors = report
        .findings
        .iter()
        .filter(|finding| finding.text.contains("sanitizer: "))
        .count();
    format!("{errors} errors, {} suspicions", report.suspicions.len())
}

/// What is shown, by name. `None`: the run did not bring it.
fn rows(lane: &Lane, report: &Report) -> Vec<(&'static str, Option<String>)> {
    let metric = |name: &str| {
        let found = report.metrics.iter().find(|m| m.name == name)?;
        Some((found.value, found.unit.clone()))
    };
    let rate = |name: &str| metric(name).map(|(value, unit)| format!("{value:.0} {unit}"));
    let latency = [
        "latency_doorbell_to_marker_p10",
        "latency_doorbell_to_marker_p50",
        "latency_doorbell_to_marker_p99",
    ]
    .map(metric);
    let latency = match latency {
        [Some((p10, unit)), Some((p50, _)), Some((p99, _))] => {
            Some(format!("{p10:.1} / {p50:.1} / {p99:.1} {unit}"))
        }
        _ => None,
    };
    let total = |of: fn(&crate::account::Counters) -> u64| {
        let sum: u64 = report.accounts.iter().map(|a| of(&a.counters)).sum();
        (sum > 0).then(|| sum.to_string())
    };
    let version = report
        .driver_version
        .as_ref()
        .or(lane.module.version.as_ref());
    let passed = report
        .scenarios
        .iter()
        .filter(|s| s.verdict == Verdict::Pass)
        .count();
    vec![
        (
            "product",
            Some(format!(
                "{} ({} device(s), platform {})",
                lane.product, lane.devices, lane.platform
            )),
        ),
        (
            "driver",
            Some(
                format!(
                    "{} {}",
                    lane.module.name,
                    version.map_or("", String::as_str)
                )
                .trim()
                .to_owned(),
            ),
        ),
        (
            "guest",
            Some(format!(
                "kernel {}, QEMU {} ({})",
                lane.kernel.release.as_deref().unwrap_or("?"),
                lane.qemu.version,
                lane.accel.name()
            )),
        ),
        ("scenarios passed", (passed > 0).then(|| passed.to_string())),
        ("time to READY", report.ready.map(|s| format!("{s:.2} s"))),
        ("host to device", rate("bandwidth_h2d")),
        ("device to host", rate("bandwidth_d2h")),
        ("device to device", rate("bandwidth_d2d")),
        ("doorbell to marker p10/50/99", latency),
        ("batches", total(|c| c.batches)),
        ("bytes moved by the device", total(|c| c.bytes)),
        ("sanitizer", Some(judged(lane, report))),
    ]
}

//! A run for people: lines as they come, and the account at the end.
use std::fmt::Write as _;

use crate::guest_line::{GuestLine, Verdict};
use crate::lane::Lane;
use crate::outcome::verdict;
use crate::report::Report;

/// Lines of a dump that are shown; the file has the rest.
const DUMP_LINES: usize = 40;

/// The line for something that `init` said, if people want to see it.
pub fn live(line: &GuestLine) -> Option<String> {
    Some(match line {
        GuestLine::Boot(text) => format!("boot      {text}"),
        GuestLine::Module { text, .. } => format!("module    {text}"),
        GuestLine::Device(text) => format!("device    {text}"),
        GuestLine::Ready { devices, uptime } => {
            format!("READY     {devices} device(s), {uptime:.2} s after the guest kernel started")
        }
        GuestLine::NotReady(why) => format!("NOT READY {why}"),
        GuestLine::Scenario {
            name,
            device,
            verdict,
            reason,
            millis,
        } => {
            let word = match verdict {
                Verdict::Pass => "ok",
                Verdict::Fail => "FAIL",
                Verdict::Hang => "HANG",
                Verdict::NotOffered => "n/o",
                Verdict::KnownDefect => "known",
            };
            let reason = if reason.is_empty() {
                String::new()
            } else {
                format!("  ({reason})")
            };
            format!("{word:<9} {name:<26} nd{device:<3} {millis:>9.1} ms{reason}")
        }
        GuestLine::Metric {
            device,
            name,
            value,
            unit,
        } => format!("metric    {name:<26} nd{device:<3} {value:>9.2} {unit}"),
        GuestLine::Slot { plug, slot } => {
            let word = if *plug { "plug" } else { "unplug" };
            format!("{word:<9} slot {slot}")
        }
        GuestLine::Note(text) => format!("note      {text}"),
        GuestLine::Unknown(text) => format!("???       {text}"),
        GuestLine::Notify { .. } | GuestLine::Summary { .. } | GuestLine::Poweroff => return None,
    })
}

/// The end of a run: account, findings, and on failure the evidence.
pub fn closing(lane: &Lane, report: &Report) -> String {
    let mut out = String::new();
    for account in &report.accounts {
        let c = &account.counters;
        line(
            &mut out,
            format_args!(
                "device    nd{}: {} doorbells, {} descriptors, {} batches, {} bytes, {} errors, {} resets",
                account.routing_id,
                c.doorbells,
                c.descriptors,
                c.batches,
                c.bytes,
                c.errors,
                c.resets
            ),
        );
    }
    for known in &report.harmless {
        line(
            &mut out,
            format_args!("ignored   known harmless warning: {known}"),
        );
    }
    for known in report
        .scenarios
        .iter()
        .filter(|s| s.verdict == Verdict::KnownDefect)
    {
        line(
            &mut out,
            format_args!(
                "known     {} ends by a known defect of the driver: {}",
                known.name, known.reason
            ),
        );
    }
    for suspicion in &report.suspicions {
        line(&mut out, format_args!("suspicion {suspicion}"));
    }
    if !report.findings.is_empty() {
        for (name, lines) in &report.tails {
            line(&mut out, format_args!("--- last lines of {name}"));
            for text in lines {
                line(&mut out, format_args!("    {text}"));
            }
        }
        if let Some(dump) = &report.dump {
            line(
                &mut out,
                format_args!(
                    "--- the device (all of it: {}/dump.txt)",
                    report.dir.display()
                ),
            );
            for text in dump.lines().take(DUMP_LINES) {
                line(&mut out, format_args!("    {text}"));
            }
        }
        line(&mut out, format_args!("--- what went wrong"));
        for finding in &report.findings {
            line(
                &mut out,
                format_args!("    {}: {}", finding.failure, finding.text),
            );
        }
    }
    line(&mut out, format_args!("logs      {}", report.dir.display()));
    let end = verdict(&report.findings).map_or_else(
        || "PASS".to_owned(),
        |f| format!("FAIL ({f}, exit code {})", f.code()),
    );
    line(
        &mut out,
        format_args!(
            "{end}: {} {} kernel {} driver {}{}: {} passed, {} failed, {} not offered, {} by known defects, {:.1} s",
            lane.product,
            lane.platform,
            lane.kernel.release.as_deref().unwrap_or("?"),
            lane.module.name,
            report
                .driver_version
                .as_ref()
                .or(lane.module.version.as_ref())
                .map_or_else(String::new, |v| format!(" {v}")),
            report.count(Verdict::Pass),
            report.count(Verdict::Fail) + report.count(Verdict::Hang),
            report.count(Verdict::NotOffered),
            report.count(Verdict::KnownDefect),
            report.elapsed.as_secs_f64()
        ),
    );
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

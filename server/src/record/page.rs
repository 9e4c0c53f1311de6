//! A session as one HTML page that needs nothing else: no script, no network.
use std::fmt::Write as _;

use neuron_protocol::generation::Generation;

use super::show::{BUCKETS, COLUMNS, Cell, LaneKey, Seen};
use super::words::time;
use crate::observe::coverage::Report;

/// Shades of a cell, from little to much.
const SHADES: [&str; 6] = [
    "#cfe3f7", "#9cc7ee", "#64a6e0", "#3582cb", "#1c5fa8", "#0c3c78",
];
/// Height of a line, and of what is drawn in it.
const LINE: usize = 18;
const BAR: usize = 14;
/// Width of the names before the lines, and of a column.
const LEFT: usize = 120;
const COLUMN: usize = 2;

const STYLE: &str = "\
body{font:14px/1.4 system-ui,sans-serif;margin:24px auto;max-width:1240px;padding:0 16px;color:#1c2733;background:#fff}\
h1{font-size:20px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 6px}p{margin:4px 0;color:#51606f}\
svg{max-width:100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:#51606f}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:1px 10px 1px 4px;text-align:right;\
white-space:nowrap}td:first-child,th:first-child{text-align:left;font-family:ui-monospace,monospace;font-size:12px}\
.scroll{max-height:420px;overflow:auto;border:1px solid #d6dde4;padding:6px}.e td{text-align:left;font-family:\
ui-monospace,monospace;font-size:12px}.bad{color:#b3261e;font-weight:600}";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// 0 for nothing, else 1 to `most`, by the logarithm.
fn shade(value: u64, largest: u64, most: u32) -> u32 {
    if value == 0 {
        return 0;
    }
    let bits = |value: u64| u64::BITS - value.leading_zeros();
    (bits(value) * most)
        .div_ceil(bits(largest).max(1))
        .clamp(1, most)
}

/// Renders the page. `title` names the recording, `subtitle` says what it is of.
pub fn render(
    title: &str,
    subtitle: &str,
    seen: &Seen,
    registers: &Report,
    generation: &Generation,
) -> String {
    let mut out = String::new();
    let title = escaped(title);
    // Fails for no String, here and below.
    let _ = write!(
        out,
        "<!DOCTYPE html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1><p>{}</p>",
        escaped(subtitle)
    );
    let kinds: Vec<_> = seen
        .kinds
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let _ = write!(out, "<p>{}</p>", escaped(&kinds.join(" \u{b7} ")));
    lanes(&mut out, seen, generation);
    latencies(&mut out, seen);
    heat(&mut out, registers);
    events(&mut out, seen);
    out
}

fn lane_name(key: LaneKey, generation: &Generation) -> String {
    match key {
        Some((engine, queue)) => format!("e{engine}.q{queue} {}", generation.engine_name(engine)),
        None => "other queues".to_owned(),
    }
}

fn lanes(out: &mut String, seen: &Seen, generation: &Generation) {
    let _ = write!(
        out,
        "<h2>Time line</h2><p>Bytes copied by each queue, a column is {}; below them batches (markers), red: aborts</p>",
        time(seen.width)
    );
    if seen.lanes.is_empty() {
        out.push_str("<p>No queue copied anything.</p>");
        return;
    }
    let used = seen
        .lanes
        .values()
        .filter_map(|lane| lane.iter().rposition(|cell| *cell != Cell::default()))
        .max()
        .map_or(1, |last| last + 1);
    let first = seen
        .lanes
        .values()
        .filter_map(|lane| lane.iter().position(|cell| *cell != Cell::default()))
        .min()
        .unwrap_or(0);
    // A short session fills the page as well; a guest that boots for a minute first does not push it aside.
    let used = used - first;
    let column = (COLUMNS * COLUMN / used).clamp(COLUMN, 40);
    let largest = seen.lanes.values().flatten().map(|cell| cell.bytes).max();
    let largest = largest.unwrap_or(0);
    let (width, right) = (column * used, 130);
    let height = LINE * seen.lanes.len() + 24;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {} {height}\" width=\"{0}\" role=img>",
        LEFT + width + right
    );
    for (line, (key, lane)) in seen.lanes.iter().enumerate() {
        let y = line * LINE;
        let _ = write!(
            out,
            "<text x=0 y={}>{}</text><rect x={LEFT} y={y} width={width} height={BAR} fill=\"#f0f3f6\"/>",
            y + 11,
            escaped(&lane_name(*key, generation))
        );
        let mut paths = vec![String::new(); SHADES.len()];
        let (mut marks, mut trouble) = (String::new(), String::new());
        for (nth, cell) in lane.iter().skip(first).take(used).enumerate() {
            let x = LEFT + nth * column;
            let count = u32::try_from(SHADES.len()).unwrap_or(1);
            let level = shade(cell.bytes, largest, count);
            if let Some(path) = usize::try_from(level)
                .ok()
                .and_then(|level| paths.get_mut(level.wrapping_sub(1)))
            {
                let _ = write!(path, "M{x} {y}h{column}v10h-{column}z");
            }
            if cell.markers > 0 {
                let _ = write!(marks, "M{x} {}h{column}v3h-{column}z", y + 11);
            }
            if cell.trouble > 0 {
                let _ = write!(trouble, "M{x} {y}h{column}v{BAR}h-{column}z");
            }
        }
        for (path, fill) in paths.iter().zip(SHADES) {
            if !path.is_empty() {
                let _ = write!(out, "<path d=\"{path}\" fill=\"{fill}\"/>");
            }
        }
        for (path, fill) in [(marks, "#2e9e5b"), (trouble, "#d93025")] {
            if !path.is_empty() {
                let _ = write!(out, "<path d=\"{path}\" fill=\"{fill}\"/>");
            }
        }
        let (bytes, batches) = lane.iter().fold((0, 0), |(bytes, markers), cell| {
            (bytes + cell.bytes, markers + cell.markers)
        });
        let _ = write!(
            out,
            "<text x={} y={}>{}, {batches} batches</text>",
            LEFT + width + 6,
            y + 11,
            size(bytes)
        );
    }
    let y = LINE * seen.lanes.len() + 12;
    let axis = |part: usize| seen.width.saturating_mul((first + used * part / 4) as u64);
    for part in 0..=4 {
        let anchor = ["start", "middle", "middle", "middle", "end"][part];
        let _ = write!(
            out,
            "<text x={} y={y} text-anchor={anchor}>{}</text>",
            LEFT + width * part / 4,
            time(axis(part))
        );
    }
    out.push_str("</svg>");
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

fn latencies(out: &mut String, seen: &Seen) {
    out.push_str(
        "<h2>Doorbell to marker</h2><p>Device time from a batch's first doorbell to its marker. The device is told the \
         time when it wakes: what ends in the wake-up in which it began took less than one</p>",
    );
    let used = |(bucket, count): (usize, &u64)| (*count > 0).then_some(bucket);
    let first = seen.latencies.iter().enumerate().skip(1).find_map(used);
    let last = seen.latencies.iter().enumerate().rev().find_map(used);
    let Some(last) = last else {
        out.push_str("<p>No batch was completed.</p>");
        return;
    };
    let most = seen.latencies.iter().max().copied().unwrap_or(1).max(1);
    // Nothing takes so few nanoseconds that the buckets between the first two matter.
    let shown: Vec<_> = seen
        .latencies
        .first()
        .filter(|count| **count > 0)
        .map(|_| 0)
        .into_iter()
        .chain(
            first
                .into_iter()
                .flat_map(|first| first..=last.min(BUCKETS - 1)),
        )
        .collect();
    let lines = shown.len();
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 760 {0}\" width=760 role=img>",
        lines * LINE
    );
    for (line, bucket) in shown.into_iter().enumerate() {
        let (y, count) = (line * LINE, seen.latencies[bucket]);
        let name = match bucket {
            0 => "one wake-up".to_owned(),
            _ => format!("under {}", time(1 << bucket)),
        };
        let width = (count * 500).div_ceil(most);
        let _ = write!(
            out,
            "<text x=0 y={}>{name}</text><rect x={LEFT} y={y} width={width} height={BAR} fill=\"#3582cb\"/>\
             <text x={} y={0}>{count}</text>",
            y + 11,
            LEFT as u64 + width + 6
        );
    }
    out.push_str("</svg>");
}

fn heat(out: &mut String, report: &Report) {
    let rows = &report.registers;
    let largest = rows.iter().map(|row| row.reads.max(row.writes)).max();
    let largest = largest.unwrap_or(0);
    let _ = write!(
        out,
        "<h2>Registers</h2><p>{} kinds; darker is more often. * stands for any engine, queue, core. Italics: only reads \
         back, no behaviour in the model</p><div class=scroll><table><tr><th>register<th>registers<th>reads<th>writes",
        rows.len()
    );
    for row in rows {
        let name = escaped(&row.name);
        let name = if row.modelled {
            name
        } else {
            format!("<i>{name}</i>")
        };
        let _ = write!(out, "<tr><td>{name}<td>{}", row.registers);
        for count in [row.reads, row.writes] {
            let level = shade(count, largest, 6);
            let colour = usize::try_from(level)
                .ok()
                .and_then(|level| SHADES.get(level.wrapping_sub(1)))
                .unwrap_or(&"#fff");
            let ink = if level > 3 { "#fff" } else { "#1c2733" };
            let _ = write!(out, "<td style=\"background:{colour};color:{ink}\">{count}");
        }
    }
    out.push_str("</table></div>");
}

fn events(out: &mut String, seen: &Seen) {
    let _ = write!(
        out,
        "<h2>Events</h2><p>All but those of every batch{}</p><div class=scroll><table class=e>",
        if seen.left_out > 0 {
            format!(
                "; {} between the first and the last are left out",
                seen.left_out
            )
        } else {
            String::new()
        }
    );
    for (at, text) in seen.first.iter().chain(&seen.last) {
        let class = if text.contains("abort") {
            " class=bad"
        } else {
            ""
        };
        let _ = write!(
            out,
            "<tr{class}><td>{:.6} s<td>{}",
            at.as_secs_f64(),
            escaped(text)
        );
    }
    out.push_str("</table></div></html>\n");
}

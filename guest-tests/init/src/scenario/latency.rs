//! How long a small copy takes, as a distribution: many of them, each timed, the last one compared.
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::PATIENCE;
use crate::job::stage;
use crate::ring::{Marker, Place, Ring};

const COPIES: usize = 2000;
/// Stop after this, whatever the count.
const LONG_ENOUGH: Duration = Duration::from_secs(8);

/// The driver's own cycle with 4 bytes and 64 KiB, and a user ring's doorbell to a marker that is seen.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let source = Canvas::paint(device, "source", device.host(65_536)?, context.pattern(1))?;
    let mut target = Canvas::paint(device, "target", device.device(65_536)?, context.pattern(2))?;
    for (name, bytes) in [("copy_4b", 4), ("copy_64k", 65_536)] {
        stage(name);
        let times = sample(|_| device.copy((source.chunk, 0), (target.chunk, 0), bytes))?;
        target.expect(0, source.model(0, bytes)?)?;
        target.check()?;
        publish(context, name, &times);
    }
    stage("doorbell to marker");
    let mut ring = Ring::new(device, 14, 0, 64, Place::Host)?;
    let marker = Marker::new(device, Place::Host)?;
    let mut waited = Vec::new();
    let begin = Instant::now();
    while waited.len() < COPIES && begin.elapsed() < LONG_ENOUGH {
        marker.stage(&mut ring)?;
        let start = Instant::now();
        ring.start(1, 1)?;
        while marker.read()? == 0 {
            ensure!(start.elapsed() < PATIENCE, "no marker");
        }
        waited.push(start.elapsed());
        marker.arm()?;
        ring.ack(1)?;
    }
    publish(context, "doorbell_to_marker", &waited);
    Ok(Outcome::Pass)
}

fn sample(mut once: impl FnMut(usize) -> Result<()>) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(COPIES);
    let begin = Instant::now();
    for nth in 0..COPIES {
        let start = Instant::now();
        once(nth)?;
        times.push(start.elapsed());
        if begin.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    Ok(times)
}

/// `latency_NAME_p10` .. `p99`, `max` in microseconds, and the count.
fn publish(context: &Context, name: &str, times: &[Duration]) {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let Some(last) = sorted.len().checked_sub(1) else {
        return;
    };
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    for (label, percent) in [("p10", 10), ("p50", 50), ("p99", 99)] {
        context.metric(
            &format!("latency_{name}_{label}"),
            micros(sorted[last * percent / 100]),
            "us",
        );
    }
    context.metric(&format!("latency_{name}_max"), micros(sorted[last]), "us");
    context.note(format_args!("latency {name}: {} samples", sorted.len()));
}

//! Closing with queues owned and work armed, then opening again (contract §8.7, §10): the driver
//! re-initialises each queue onto a dummy ring, chunks are gone, and the next life starts clean.
use anyhow::{Context as _, Result, ensure};

use super::{Context, Outcome, Setup};
use crate::canvas::Canvas;
use crate::job::stage;
use crate::ring::{Marker, Place, Ring};

const QUEUES: [(u32, u32); 3] = [(11, 0), (11, 9), (12, 2)];

/// Three lives of the same process; each leaves descriptors armed that must never run.
pub fn run(setup: Setup) -> Result<Outcome> {
    let mut old_handle = None;
    let mut old_bases = Vec::new();
    for life in 0..3 {
        stage(format_args!("life {life}: open"));
        let context = Context::open(setup)?;
        let device = &context.device;
        if let Some(chunk) = old_handle {
            ensure!(
                device.read_vec(chunk, 0, 16).is_err(),
                "a chunk of the last life can still be read"
            );
        }
        let mut rings = Vec::new();
        for (nth, (engine, queue)) in QUEUES.into_iter().enumerate() {
            if let Some(base) = old_bases.get(nth) {
                let (tx, _) = crate::ioctl::queue_state(device.file(), engine, queue)?;
                ensure!(
                    tx.base_addr != *base,
                    "engine {engine} queue {queue} still points at the freed ring"
                );
            }
            let mut ring = Ring::new(
                device,
                engine,
                queue,
                32,
                if nth == 2 { Place::Device } else { Place::Host },
            )?;
            let marker = Marker::new(device, Place::Host)?;
            let source = Canvas::paint(
                device,
                "source",
                device.host(8192)?,
                setup.pattern(setup.index, 1),
            )?;
            let mut target = Canvas::paint(
                device,
                "target",
                device.device(8192)?,
                setup.pattern(setup.index, 2),
            )?;
            ring.stage(&[(source.address(1), 5000)], &[(target.address(3), 5000)])?;
            marker.stage(&mut ring)?;
            ring.start(2, 2)?;
            marker
                .wait()
                .with_context(|| format!("life {life}, engine {engine} queue {queue}"))?;
            target.expect(3, source.model(1, 5000)?)?;
            target
                .check()
                .with_context(|| format!("life {life}, engine {engine} queue {queue}"))?;
            // Left behind: staged, the receive side armed, the transmit doorbell never rung.
            ring.stage(
                &[(source.address(100), 700)],
                &[(target.address(6000), 700)],
            )?;
            ring.start(0, 1)?;
            old_handle = Some(target.chunk);
            rings.push(ring);
        }
        old_bases = rings.iter().map(|ring| ring.tx_chunk.address).collect();
        stage(format_args!("life {life}: close"));
    }
    stage("copies after the last close");
    let context = Context::open(setup)?;
    let mut canvas = Canvas::paint(
        &context.device,
        "chunk",
        context.device.device(65_536)?,
        context.pattern(5),
    )?;
    canvas.copy_within(0, 32_768, 30_001)?;
    canvas.check()?;
    Ok(Outcome::Pass)
}

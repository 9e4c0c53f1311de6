//! Every queue of an engine at once, and engines of every core.
use anyhow::{Context as _, Result};
use neuron_protocol::generation::QUEUES_PER_ENGINE;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::Device;
use crate::job::stage;
use crate::pattern::Pattern;
use crate::ring::{Marker, Place, Ring};

/// Left alone: the driver does not reset it when the process ends (contract §8.7).
const NX_QUEUE: u32 = 14;
const SIZE: u32 = 32;
const BYTES: u32 = 9001;

struct Lane<'d> {
    ring: Ring<'d>,
    marker: Marker<'d>,
    source: Canvas<'d>,
    target: Canvas<'d>,
}

impl<'d> Lane<'d> {
    fn new(device: &'d Device, engine: u32, queue: u32, patterns: [Pattern; 2]) -> Result<Self> {
        let core = engine / u32::from(device.generation.engines_per_core);
        Ok(Self {
            ring: Ring::new(device, engine, queue, SIZE, Place::Host)?,
            marker: Marker::new(device, Place::Host)?,
            source: Canvas::paint(
                device,
                "source",
                device.host_of(core, 16 << 10)?,
                patterns[0],
            )?,
            target: Canvas::paint(
                device,
                "target",
                device.device_of(core, 16 << 10)?,
                patterns[1],
            )?,
        })
    }

    fn stage(&mut self, round: u64) -> Result<()> {
        let (at, to) = (round * 5 + 1, round * 7 + 3);
        self.ring.stage(
            &[(self.source.address(at), BYTES)],
            &[
                (self.target.address(to), 9000),
                (self.target.address(to + 9000), 1),
            ],
        )?;
        self.marker.stage(&mut self.ring)?;
        self.target
            .expect(to, self.source.model(at, u64::from(BYTES))?)
    }

    fn finish(&self) -> Result<()> {
        self.marker.wait()?;
        self.target.check()
    }
}

/// All queues of one engine in flight together, then two engines of each core.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let patterns = |n: u64| [context.pattern(n * 2), context.pattern(n * 2 + 1)];
    let mut lanes = Vec::new();
    for queue in (0..u32::from(QUEUES_PER_ENGINE)).filter(|q| *q != NX_QUEUE) {
        lanes.push(Lane::new(device, 5, queue, patterns(u64::from(queue)))?);
    }
    for round in 0..12 {
        stage(format_args!("all queues, round {round}"));
        for lane in &mut lanes {
            lane.stage(round)?;
        }
        // Rung in an order of its own, so that queue numbers and time differ.
        for lane in lanes.iter().rev() {
            lane.ring.start(2, 3)?;
        }
        for lane in &lanes {
            lane.finish()
                .with_context(|| format!("queue {} in round {round}", lane.ring.queue))?;
        }
    }
    let per_core = u32::from(device.generation.engines_per_core);
    for core in 0..device.cores {
        for engine in [core * per_core, core * per_core + per_core - 1] {
            stage(format_args!("engine {engine}"));
            let mut lane = Lane::new(device, engine, 0, patterns(100 + u64::from(engine)))?;
            lane.stage(0)?;
            lane.ring.start(2, 3)?;
            lane.finish().with_context(|| format!("engine {engine}"))?;
        }
    }
    Ok(Outcome::Pass)
}

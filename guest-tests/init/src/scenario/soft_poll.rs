//! The userspace software poll (seed §4): descriptors and marker copied in, the poll slot copied out
//! every 10 us until it holds the marker, both words reset by copy-in.
use anyhow::{Context as _, Result, ensure};

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::job::stage;
use crate::ring::{Marker, Place, Ring};

const ROUNDS: u64 = 100;
const CHUNK: u64 = 512 << 10;

/// With the words in guest RAM (a poll is a memory read) and in device memory (a poll is a DMA).
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    for (place, engine) in [(Place::Host, 6), (Place::Device, 7)] {
        let mut ring = Ring::new(device, engine, 1, 64, place)?;
        ring.by_copy_in = true;
        let marker = Marker::new(device, place)?;
        let source = Canvas::paint(device, "source", device.host(CHUNK)?, context.pattern(1))?;
        let mut target =
            Canvas::paint(device, "target", device.device(CHUNK)?, context.pattern(2))?;
        let mut polls = 0;
        for round in 0..ROUNDS {
            stage(format_args!(
                "words and rings in {place:?} memory, round {round}"
            ));
            let (at, to, bytes) = (round * 31, round * 1013, 65_536 - u32::try_from(round)?);
            ring.stage(
                &[(source.address(at), bytes)],
                &[(target.address(to), bytes)],
            )?;
            marker.stage(&mut ring)?;
            ensure!(
                marker.read()? == 0,
                "the marker is there before the doorbell"
            );
            ring.start(2, 2)?;
            polls += marker
                .wait()
                .with_context(|| format!("{place:?} memory, round {round}"))?;
            target.expect(to, source.model(at, u64::from(bytes))?)?;
            target.check_part(to, u64::from(bytes))?;
        }
        target.check()?;
        context.note(format_args!(
            "software poll in {place:?} memory: {polls} copy-outs for {ROUNDS} markers"
        ));
    }
    Ok(Outcome::Pass)
}

//! Semaphores and events written by descriptors: the completion signal of the runtime's execution
//! rings (seed §4 note; contract §6.1; facts §1.7).
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use neuron_protocol::ioctl as abi;
use neuron_protocol::registers::semaphore::{CORE_OFFSET, DECREMENT, INCREMENT, READ, SET};

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::{Device, PATIENCE};
use crate::job::stage;
use crate::ring::{Marker, Piece, Place, Ring};

const SEMAPHORE: u32 = 42;

/// Set, increment, decrement and read by 4-byte descriptors; a semaphore as the end of a transfer; events.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::SEMAPHORE_READ) {
        return Ok(Outcome::NotOffered(
            "the driver has no semaphore requests".into(),
        ));
    }
    for core in [0, device.cores - 1] {
        stage(format_args!("core {core}"));
        core_semaphores(context, core).with_context(|| format!("core {core}"))?;
    }
    Ok(Outcome::Pass)
}

/// One core's queue, marker and a page of words to copy from.
struct Lane<'d> {
    device: &'d Device,
    core: u32,
    ring: Ring<'d>,
    marker: Marker<'d>,
    words: Canvas<'d>,
}

impl<'d> Lane<'d> {
    fn new(context: &'d Context, core: u32) -> Result<Self> {
        let device = &context.device;
        let engine = core * u32::from(device.generation.engines_per_core) + 8;
        Ok(Self {
            device,
            core,
            ring: Ring::new(device, engine, 4, 64, Place::Host)?,
            marker: Marker::new(device, Place::Host)?,
            words: Canvas::paint(
                device,
                "words",
                device.host_of(core, 4096)?,
                context.pattern(1),
            )?,
        })
    }

    /// Device-side address in the core's block of events and semaphores.
    fn tile(&self, offset: u32) -> Result<u64> {
        let address = self
            .device
            .tile_address(self.core, u64::from(CORE_OFFSET + offset));
        address.with_context(|| {
            format!(
                "no device-side address leads to core {}'s semaphores",
                self.core
            )
        })
    }

    /// The semaphore's word in one of its four windows.
    fn word(&self, window: u32) -> Result<Piece> {
        Ok((self.tile(window + 4 * SEMAPHORE)?, 4))
    }

    fn read(&self) -> Result<u32> {
        Ok(self
            .device
            .semaphore(abi::SEMAPHORE_READ, self.core, SEMAPHORE, 0)?)
    }

    /// Writes words to addresses, one descriptor each, in order, and waits for the marker.
    fn apply(&mut self, steps: &[(Piece, u32)]) -> Result<()> {
        for (nth, (target, word)) in steps.iter().enumerate() {
            let at = u64::try_from(nth)? * 4;
            self.words.write(at, &word.to_le_bytes())?;
            self.ring
                .stage(&[(self.words.address(at), 4)], &[*target])?;
        }
        self.run(u32::try_from(steps.len())?)
    }

    /// Rings for `staged` descriptors and the marker, and waits for it.
    fn run(&mut self, staged: u32) -> Result<()> {
        self.marker.stage(&mut self.ring)?;
        self.ring.start(staged + 1, staged + 1)?;
        self.marker.wait()?;
        self.ring.ack(staged + 1)
    }
}

fn core_semaphores(context: &Context, core: u32) -> Result<()> {
    let mut lane = Lane::new(context, core)?;
    arithmetic(&mut lane)?;
    completion(context, &mut lane)?;
    events(&mut lane)?;
    lane.ring.release()
}

fn arithmetic(lane: &mut Lane<'_>) -> Result<()> {
    let (set, up, down) = (
        lane.word(SET)?,
        lane.word(INCREMENT)?,
        lane.word(DECREMENT)?,
    );
    lane.device
        .semaphore(abi::SEMAPHORE_WRITE, lane.core, SEMAPHORE, 5)?;
    lane.apply(&[(up, 1)])?;
    ensure!(
        lane.read()? == 6,
        "5 and one increment by descriptor make {}",
        lane.read()?
    );
    lane.apply(&[(set, 100), (up, 11), (down, 1), (up, 30)])?;
    ensure!(
        lane.read()? == 140,
        "set 100, +11, -1, +30 by descriptors make {}",
        lane.read()?
    );
    let neighbour = lane
        .device
        .semaphore(abi::SEMAPHORE_READ, lane.core, SEMAPHORE + 1, 0)?;
    ensure!(
        neighbour == 0,
        "semaphore {} became {neighbour}",
        SEMAPHORE + 1
    );

    // Read by descriptor: from the tile to guest RAM.
    lane.ring
        .stage(&[lane.word(READ)?], &[(lane.words.address(64), 4)])?;
    lane.run(1)?;
    lane.words.expect(64, &140_u32.to_le_bytes())?;
    lane.words.check().context("semaphore read by descriptor")
}

/// As execution rings use it: data, then an increment as the last destination of the same doorbell.
fn completion(context: &Context, lane: &mut Lane<'_>) -> Result<()> {
    let Lane { device, core, .. } = *lane;
    let up = lane.word(INCREMENT)?;
    let source = Canvas::paint(
        device,
        "source",
        device.host_of(core, 256 << 10)?,
        context.pattern(2),
    )?;
    let mut target = Canvas::paint(
        device,
        "target",
        device.device_of(core, 256 << 10)?,
        context.pattern(3),
    )?;
    lane.words.write(128, &1_u32.to_le_bytes())?;
    device.semaphore(abi::SEMAPHORE_WRITE, core, SEMAPHORE, 0)?;
    for round in 1..=20_u32 {
        let (at, to) = (u64::from(round) * 17, u64::from(round) * 3001);
        lane.ring.stage(
            &[(source.address(at), 65_536)],
            &[(target.address(to), 65_536)],
        )?;
        lane.ring.stage(&[(lane.words.address(128), 4)], &[up])?;
        lane.ring.start(2, 2)?;
        target.expect(to, source.model(at, 65_536)?)?;
        let deadline = Instant::now() + PATIENCE;
        while lane.read()? != round {
            if Instant::now() > deadline {
                bail!("semaphore {} after transfer {round}", lane.read()?);
            }
        }
        lane.ring.ack(2)?;
        target
            .check()
            .with_context(|| format!("transfer {round}"))?;
    }
    device.semaphore(abi::SEMAPHORE_WRITE, core, SEMAPHORE, 0)?;
    Ok(())
}

fn events(lane: &mut Lane<'_>) -> Result<()> {
    const EVENT: u32 = 17;
    if !lane.device.offers(abi::EVENT_GET) {
        return Ok(());
    }
    let address = lane.tile(4 * EVENT)?;
    for value in [1_u32, 0, 1, 0] {
        lane.apply(&[((address, 4), value)])?;
        let found = lane.device.event(abi::EVENT_GET, lane.core, EVENT, 77)?;
        ensure!(
            found == value,
            "event {EVENT} is {found} after a descriptor wrote {value}"
        );
    }
    Ok(())
}

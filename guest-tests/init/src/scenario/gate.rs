//! The write gate: user space cannot ring a doorbell or move a ring (seed §3). The driver must refuse;
//! that none of these writes reached the device is for the launcher to see at the device.
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::generation::{Block, QUEUES_PER_ENGINE};
use neuron_protocol::ioctl as abi;
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::engine::queue_register;
use neuron_protocol::registers::queue::{
    BLOCKED, CRHP, DRBP_HIGH, DRBP_LOW, DRHP, DRL, DRTP, RLIMIT_MASK, STATUS,
};
use rustix::io::Errno;

use super::{Context, Outcome};
use crate::ioctl;
use crate::job::stage;
use crate::ring::{Marker, Place, Ring};

/// The high half of every value that must not arrive; the low half numbers the attempts.
const FORBIDDEN: u32 = 0x6a7e_0000;
/// What the driver itself writes to the neighbour that stays writable (contract §5.2).
const RLIMIT_VALUE: u32 = 3;

/// Five registers, every queue, both directions, first and last engine of the first and last core.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::BAR_WRITE) || !device.offers(abi::BAR_READ) {
        return Ok(Outcome::NotOffered(
            "the driver has no BAR_READ and BAR_WRITE".into(),
        ));
    }
    let (bar, size) = device.register_bar()?;
    let per_core = u32::from(device.generation.engines_per_core);
    let engines = [
        0,
        per_core - 1,
        (device.cores - 1) * per_core,
        device.cores * per_core - 1,
    ];
    let mut attempts = 0;
    for engine in engines {
        let base = device
            .generation
            .block_base(Block::Udma, u8::try_from(engine)?)
            .context("engine base")?;
        let register = |direction, queue, offset| -> Result<u64> {
            let at = u64::from(base + queue_register(direction, queue, offset));
            // The real driver does not check reads: an address past the BAR would fault in the kernel.
            ensure!(
                at + 4 <= size,
                "register {at:#x} past the BAR's end {size:#x}"
            );
            Ok(bar + at)
        };
        // Something to protect: a live ring, whose next copy must still work.
        let mut ring = Ring::new(device, engine, 0, 32, Place::Host)?;
        let marker = Marker::new(device, Place::Host)?;
        for queue in 0..QUEUES_PER_ENGINE {
            for direction in Direction::BOTH {
                stage(format_args!(
                    "engine {engine} queue {queue} {}",
                    direction.name()
                ));
                let readable = [DRBP_LOW, DRBP_HIGH, DRL, DRHP, DRTP, CRHP, STATUS]
                    .into_iter()
                    .map(|r| register(direction, queue, r))
                    .collect::<Result<Vec<u64>>>()?;
                let read = || -> Result<Vec<u32>> {
                    let mut values = vec![0; readable.len()];
                    ioctl::bar_read(device.file(), &readable, &mut values)?;
                    Ok(values)
                };
                let before = read()?;
                for gated in BLOCKED {
                    let answer = ioctl::bar_write(
                        device.file(),
                        register(direction, queue, gated)?,
                        FORBIDDEN | attempts,
                    );
                    attempts += 1;
                    ensure!(
                        matches!(answer, Err(r) if r.is(Errno::INVAL)),
                        "engine {engine} {} queue {queue} register {gated:#x}: a write is answered {answer:?}",
                        direction.name()
                    );
                }
                let after = read()?;
                ensure!(
                    before == after,
                    "engine {engine} {} queue {queue}: registers {before:x?} became {after:x?}",
                    direction.name()
                );
            }
            // The gate is those five, not the block.
            let neighbour = register(Direction::M2s, queue, RLIMIT_MASK)?;
            ioctl::bar_write(device.file(), neighbour, RLIMIT_VALUE)
                .with_context(|| format!("engine {engine} queue {queue}: an ungated neighbour"))?;
        }
        marker.stage(&mut ring)?;
        ring.start(1, 1)?;
        marker
            .wait()
            .with_context(|| format!("engine {engine}: the ring after the refused writes"))?;
        ring.ack(1)?;
        let mut base_low = [0];
        ioctl::bar_read(
            device.file(),
            &[register(Direction::M2s, 0, DRBP_LOW)?],
            &mut base_low,
        )?;
        ensure!(
            u64::from(base_low[0]) == ring.tx_chunk.address & 0xffff_ffff,
            "engine {engine}: drbp_low reads {:#x}, the ring is at {:#x}",
            base_low[0],
            ring.tx_chunk.address
        );
    }
    context.note(format_args!(
        "gate: {attempts} writes refused, values {FORBIDDEN:#010x} and up must not reach the device"
    ));
    Ok(Outcome::Pass)
}

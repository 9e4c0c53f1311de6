//! Engine state by ioctl (contract §5.3).
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome};
use crate::ioctl;
use crate::job::stage;
use crate::ring::{Marker, Place, Ring};

/// The driver's number for "normal".
const NORMAL: u32 = 2;
/// The driver's number for "abort".
const ABORT: u32 = 3;

/// First engine of each core: constants, no abort, and still copying after `SET_STATE` normal.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::DMA_ENG_GET_STATE) {
        return Ok(Outcome::NotOffered(
            "the driver has no DMA_ENG_GET_STATE".into(),
        ));
    }
    let per_core = u32::from(device.generation.engines_per_core);
    let settable = device.offers(abi::DMA_ENG_SET_STATE);
    for core in 0..device.cores {
        let engine = core * per_core + 10;
        stage(format_args!("engine {engine}"));
        let state = ioctl::engine_state(device.file(), engine)?;
        ensure!(
            (state.revision_id, state.max_queues) == (4, 16),
            "engine {engine}: revision {} with {} queues",
            state.revision_id,
            state.max_queues
        );
        ensure!(
            state.num_queues <= state.max_queues,
            "engine {engine}: {} queues in use",
            state.num_queues
        );
        ensure!(
            state.tx_state != ABORT && state.rx_state != ABORT,
            "engine {engine} is in abort (tx {} rx {}): an earlier copy failed on it",
            state.tx_state,
            state.rx_state
        );
        if settable {
            let mut argument = abi::DmaEngSetState {
                eng_id: engine,
                state: NORMAL,
            };
            ioctl::plain(device.file(), abi::DMA_ENG_SET_STATE, &mut argument)?;
        }
        let mut ring = Ring::new(device, engine, 0, 32, Place::Host)?;
        let marker = Marker::new(device, Place::Host)?;
        marker.stage(&mut ring)?;
        ring.start(1, 1)?;
        marker
            .wait()
            .with_context(|| format!("engine {engine} set to normal"))?;
        ring.ack(1)?;
        let now = ioctl::engine_state(device.file(), engine)?;
        if core == 0 {
            context.note(format_args!(
                "engine {engine}: tx {} rx {} before, {} {} after SET_STATE normal and a copy",
                state.tx_state, state.rx_state, now.tx_state, now.rx_state
            ));
        }
        ensure!(
            now.tx_state != ABORT && now.rx_state != ABORT,
            "engine {engine} went to abort"
        );
    }
    Ok(Outcome::Pass)
}

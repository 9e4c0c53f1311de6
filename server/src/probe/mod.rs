//! `probe`: a copy through a running device, without QEMU and without a guest.
//!
//! The peer is the `vfio_user` crate's client, which shares no code with our server, and the driver's half is
//! `neuron_protocol::cycle`. It identifies the device from configuration space alone, resets it, copies on every queue
//! that the kernel driver uses and to every HBM stack, and compares contents.
mod findings;
mod memory;
mod peer;
mod steps;

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use thiserror::Error;

pub use findings::{Copy, Findings, Latency, Throughput};
pub use memory::{GuestRam, RamError};
pub use peer::{ConnectError, Peer};

/// Why a probe did not pass.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// There is no device to probe.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// A step did not come to an end. The client has no time limit of its own.
    #[error("{step}: no answer within {} s; the device thread is stuck, or refused a request (its log says which)", .patience.as_secs())]
    Stuck {
        /// What was being done.
        step: String,
        /// How long.
        patience: Duration,
    },
    /// A step failed.
    #[error("{step}: {reason}")]
    Failed {
        /// What was being done.
        step: String,
        /// What was found.
        reason: String,
    },
}

/// Probes the device behind `socket`. Each step has `patience`. The device is reset.
///
/// # Errors
/// See [`ProbeError`].
pub fn probe(socket: &Path, patience: Duration) -> Result<Findings, ProbeError> {
    let (steps, watched) = channel();
    let socket = socket.to_owned();
    let worker = std::thread::Builder::new()
        .name("probe".to_owned())
        .spawn(move || steps::run(&socket, patience, &steps))
        .map_err(|error| ProbeError::Failed {
            step: "starting".to_owned(),
            reason: error.to_string(),
        })?;
    let step = watch(&watched, patience)?;
    worker.join().unwrap_or_else(|_| {
        // The client crate asserts on some malformed replies.
        let reason = "the client gave up on a malformed reply (message above)".to_owned();
        Err(ProbeError::Failed { step, reason })
    })
}

/// Follows the worker from step to step until it ends.
fn watch(steps: &Receiver<String>, patience: Duration) -> Result<String, ProbeError> {
    let mut step = "connecting".to_owned();
    loop {
        // Longer than the worker's own limits, so that its better words come first.
        match steps.recv_timeout(patience * 2) {
            Ok(next) => step = next,
            Err(RecvTimeoutError::Disconnected) => return Ok(step),
            Err(RecvTimeoutError::Timeout) => {
                return Err(ProbeError::Stuck {
                    step,
                    patience: patience * 2,
                });
            }
        }
    }
}

//! Both halves of a copy on one clock: a time line of the device and an ftrace of the driver.
//!
//! The clocks are joined by what must be so: a driver rings a doorbell before the device sees it, and sees a marker after
//! the device has written it. Nothing else is assumed, so the uncertainty stated is all there is.
mod ftrace;
mod pair;
mod solve;
mod write;

use std::fmt;

pub use ftrace::{Ftrace, FtraceError, GuestEvent, Meaning, Place};
pub use pair::{DeviceHalf, GuestHalf, Pairing};
pub use solve::{Bound, Fit, MAX_DRIFT, NoFit, solve};

use super::proto::BadTrace;

/// Why two files cannot be put together.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages")]
pub enum MergeError {
    #[error("the time line is no Perfetto trace: {0}")]
    Trace(#[from] BadTrace),
    #[error("the ftrace: {0}")]
    Ftrace(#[from] FtraceError),
    #[error(
        "the time line has no doorbell of {0}; is it one that `serve --timeline` wrote, and was the driver at work meanwhile?"
    )]
    NoDoorbells(String),
    #[error(
        "the time line has the devices {0}; say whose driver the ftrace is of with --device ID"
    )]
    SeveralDevices(String),
    #[error(
        "the ftrace has no doorbell: neither the driver's dma_queue_copy_start (which only user queues and zero-copy pass) nor the three probes of docs/timeline.md"
    )]
    NoStarts,
    #[error(
        "the ftrace is of several devices ({0}), which its probes do not tell apart; trace a guest with one device"
    )]
    SeveralNodes(String),
    #[error(
        "no queue has the same sequence of batches in both files: {0}; they are of different runs, or one lost events"
    )]
    NoMatch(String),
    #[error(
        "the files fit together in several ways ({0}), since their batches are too much alike; begin both before the driver loads"
    )]
    Ambiguous(String),
    #[error(
        "no pair bounds the clock from {0}; the ftrace needs doorbells and acknowledgements (dma_ack_completed, or the probes)"
    )]
    Unbounded(&'static str),
    #[error("{0}")]
    Contradiction(String),
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The merged trace.
    pub bytes: Vec<u8>,
    /// How the clocks stand to each other.
    pub fit: Fit,
    /// Driver batches found in both, and of them those whose end is known.
    pub paired: (usize, usize),
    /// Driver batches in the ftrace.
    pub batches: usize,
    /// The guest's kernel lost events.
    pub guest_lost: bool,
    /// The time line has gaps.
    pub device_lost: bool,
}

impl fmt::Display for Merged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "clocks: {}", Statement(&self.fit))?;
        let (paired, ended) = self.paired;
        writeln!(
            f,
            "batches: {paired} of the driver's {} found in both halves, {ended} of them from doorbell to acknowledgement",
            self.batches
        )?;
        if self.guest_lost {
            writeln!(
                f,
                "note: the guest's ftrace buffer overflowed, so its half has gaps"
            )?;
        }
        if self.device_lost {
            writeln!(f, "note: the device's half has gaps")?;
        }
        Ok(())
    }
}

/// A fit in words.
struct Statement<'a>(&'a Fit);

impl fmt::Display for Statement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fit {
            offset,
            drift,
            drift_range: (least, most),
            uncertainty,
            ..
        } = *self.0;
        let sign = if offset < 0 { '-' } else { '+' };
        let (seconds, rest) = (
            offset.unsigned_abs() / 1_000_000_000,
            offset.unsigned_abs() % 1_000_000_000,
        );
        let (whole, tenth) = (uncertainty / 1000, uncertainty % 1000 / 100);
        write!(
            f,
            "device = guest {sign} {seconds}.{rest:09} s, within {whole}.{tenth} us either way; drift {:+.1} ppm ({:+.1} to {:+.1} possible)",
            drift * 1e6,
            least * 1e6,
            most * 1e6
        )
    }
}

/// Puts them together. `device` is the routing id whose driver the ftrace is of; not needed for the only one.
///
/// # Errors
/// See [`MergeError`].
pub fn merge(timeline: &[u8], ftrace: &str, device: Option<u8>) -> Result<Merged, MergeError> {
    let device_half = DeviceHalf::read(timeline, device)?;
    let ftrace = Ftrace::parse(ftrace)?;
    let guest_half = GuestHalf::read(&ftrace)?;
    let pairing = Pairing::find(&guest_half, &device_half)?;
    let mut bytes = timeline[..device_half.whole].to_vec();
    write::append(&mut bytes, &ftrace, &guest_half, &pairing);
    let ended = |(start, batch): &(usize, pair::Batch)| {
        guest_half.starts[*start].done.is_some() && batch.marker.is_some()
    };
    Ok(Merged {
        bytes,
        fit: pairing.fit,
        paired: (
            pairing.pairs.len(),
            pairing.pairs.iter().filter(|pair| ended(pair)).count(),
        ),
        batches: guest_half.starts.len(),
        guest_lost: ftrace.lost,
        device_lost: device_half.lost,
    })
}

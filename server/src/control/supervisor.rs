//! Signals, the devices' threads, the control socket: everything that outlives a client.
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};

use super::device::{Device, Ended};
use super::metrics::{self, Endpoint, Measured};
use super::operator::Operator;
use super::server;
use crate::observe::render;
use crate::observe::report::Detail;
use crate::vfio::Listener;

/// How long devices have to stop. Their threads work in short slices.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How long a device has for its last account.
const SUMMARY_PATIENCE: Duration = Duration::from_secs(1);

/// How it all ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By signal, every device healthy to the end.
    Stopped,
    /// At least one device died before.
    DeviceDied,
    /// No device died, but at least one was ended because its driver broke a rule.
    RuleBroken,
    /// A device thread did not stop when asked.
    Stuck,
}

/// Runs until a signal, or until no device is left. `ready` is called when signals are handled and the control socket
/// is served.
///
/// # Errors
/// The runtime or the signal handlers cannot be had.
pub fn run(
    operator: &Arc<Operator>,
    control: &Listener,
    metrics: Option<(&Endpoint, Measured)>,
    ready: impl FnOnce(),
) -> std::io::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("control")
        // One per client, one for the summary at the end.
        .max_blocking_threads(server::MAX_CLIENTS + metrics::MAX_CLIENTS + 1)
        .build()?;
    let outcome = runtime.block_on(supervise(operator, control, metrics, ready));
    // A device thread that is stuck may still hold a blocking call: do not wait for it.
    runtime.shutdown_background();
    outcome
}

async fn supervise(
    operator: &Arc<Operator>,
    control: &Listener,
    metrics: Option<(&Endpoint, Measured)>,
    ready: impl FnOnce(),
) -> std::io::Result<Outcome> {
    let devices = &operator.devices[..];
    let mut signals = Signals::new()?;
    let mut ends = watch(devices)?;
    let mut worst = Outcome::Stopped;
    let mut left = devices.len();
    tokio::spawn(server::serve(
        server::accepting(control)?,
        Arc::clone(operator),
    ));
    if let Some((endpoint, measured)) = metrics {
        metrics::serve(endpoint, measured)?;
    }
    ready();
    while left > 0 {
        tokio::select! {
            name = signals.next() => {
                info!("{name}: stopping");
                break;
            }
            () = operator.stop.notified() => {
                info!("stopping on request");
                break;
            }
            end = ends.recv() => match end {
                Some((device, end)) => {
                    left -= 1;
                    worse(&mut worst, report_end(device, &end, left));
                }
                None => break,
            },
        }
    }
    summarise(devices).await;
    for device in devices {
        device.stop();
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    while left > 0 {
        tokio::select! {
            end = ends.recv() => match end {
                Some((device, end)) => {
                    left -= 1;
                    worse(&mut worst, report_end(device, &end, left));
                }
                None => break,
            },
            name = signals.next() => {
                warn!("{name} again: not waiting for {left} device threads");
                return Ok(Outcome::Stuck);
            }
            () = sleep_until(deadline) => {
                error!("{left} device threads did not stop within {} s", STOP_PATIENCE.as_secs());
                return Ok(Outcome::Stuck);
            }
        }
    }
    Ok(worst)
}

/// Our own faults come before the driver's.
fn worse(worst: &mut Outcome, outcome: Outcome) {
    let rank = |outcome| match outcome {
        Outcome::Stopped => 0,
        Outcome::RuleBroken => 1,
        Outcome::DeviceDied | Outcome::Stuck => 2,
    };
    if rank(outcome) > rank(*worst) {
        *worst = outcome;
    }
}

/// Logs how a device ended.
fn report_end(device: u8, end: &Ended, left: usize) -> Outcome {
    match end {
        Ended::Stopped => Outcome::Stopped,
        Ended::Died(why) => {
            error!(device, "the device died: {why}; {left} devices go on");
            Outcome::DeviceDied
        }
        Ended::Condemned(why) => {
            error!(
                device,
                "the device was ended by --sanitize=fatal: {why}; {left} devices go on"
            );
            Outcome::RuleBroken
        }
    }
}

/// One thread per device that waits for the device's own.
fn watch(devices: &[Arc<dyn Device>]) -> std::io::Result<mpsc::UnboundedReceiver<(u8, Ended)>> {
    // One message per device at most.
    let (sender, receiver) = mpsc::unbounded_channel();
    for device in devices {
        let (device, sender) = (Arc::clone(device), sender.clone());
        std::thread::Builder::new()
            .name(format!("watch-{}", device.routing_id()))
            .spawn(move || {
                // The receiver is gone only when the process is ending.
                let _ = sender.send((device.routing_id(), device.wait()));
            })?;
    }
    Ok(receiver)
}

async fn summarise(devices: &[Arc<dyn Device>]) {
    for device in devices {
        let asked = Arc::clone(device);
        let report =
            tokio::task::spawn_blocking(move || asked.report(Detail::Status, SUMMARY_PATIENCE))
                .await;
        if let Some(report) = report.ok().flatten() {
            info!(device = device.routing_id(), "{}", render::summary(&report));
        } else {
            warn!(
                device = device.routing_id(),
                "no summary: the device thread does not answer"
            );
        }
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

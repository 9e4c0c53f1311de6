//! What the control plane needs of a running device.
use std::time::Duration;

use crate::observe::report::DeviceReport;

/// How much a report holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Queues, counters, maps.
    Status,
    /// Also decoded rings, flight recorders, registers.
    Dump,
}

/// How a device's thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop.
    Stopped,
    /// It panicked, or its socket failed for good: why.
    Died(String),
}

/// A device with a thread of its own.
pub trait Device: Send + Sync + 'static {
    /// Routing id.
    fn routing_id(&self) -> u8;

    /// Asks the device thread for its account. Blocks for `patience` at most; `None` if the thread did not answer.
    fn report(&self, detail: Detail, patience: Duration) -> Option<DeviceReport>;

    /// Asks the thread to end. Returns at once; may be called again.
    fn stop(&self);

    /// Blocks until the thread has ended. Called once, from a thread that does nothing else.
    fn wait(&self) -> Ended;
}

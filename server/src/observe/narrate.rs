//! Events told in the log.
use super::event::{Event, EventKind, Observer, Scope};

/// Writes events to the log: what a driver developer must see loudly, the rest at debug level.
#[derive(Debug, Default)]
pub struct Narrator;

impl Observer for Narrator {
    fn event(&mut self, event: &Event) {
        let kind = &event.kind;
        match (event.scope, kind) {
            (Scope::Queue { engine, .. }, EventKind::Abort(fault)) => {
                tracing::error!(engine, queue = fault.queue, "engine aborted: {fault}");
            }
            (Scope::Queue { engine, queue }, EventKind::QueueReset { dropped: 1.., .. }) => {
                tracing::warn!(engine, queue, "{kind}");
            }
            (Scope::Queue { engine, queue }, EventKind::Recovered) => {
                tracing::info!(engine, queue, "{kind}");
            }
            (Scope::Queue { engine, queue }, _) => tracing::debug!(engine, queue, "{kind}"),
            (Scope::Device, EventKind::Reset { .. }) => tracing::info!("{kind}"),
            (Scope::Device, _) => tracing::debug!("{kind}"),
        }
    }
}

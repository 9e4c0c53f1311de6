//! A running device as the control plane sees it.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::observe::event::Observers;
use crate::observe::log::thread_name;
use crate::observe::report::{Account, Detail, DeviceReport, WireReport};
use crate::policy::fault::Order;
use crate::policy::{Notify, Operate, Posted};
use crate::record::{Begins, Journal, Record};
use crate::vfio::{Handle, Listener, PciFunction, ServeError, Server, Settings};

/// Requests that may wait for one device thread. Half of what its queue takes, since each asks twice: so asking never
/// blocks.
const MAX_WAITING: usize = 8;

/// How a device's thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop.
    Stopped,
    /// It panicked, or its socket failed for good: why.
    Died(String),
    /// It was ended because its driver broke a rule: which.
    Condemned(String),
}

/// Adds or removes consumers of events.
pub type Change = Box<dyn FnOnce(&mut Observers) + Send>;

/// What is said of a device that does not answer.
pub const GONE: &str = "the device thread does not answer; the log may say why";

/// A device with a thread of its own.
pub trait Device: Send + Sync + 'static {
    /// Routing id.
    fn routing_id(&self) -> u8;

    /// Asks the device thread for its account. Blocks for `patience` at most; `None` if the thread did not answer.
    fn report(&self, detail: Detail, patience: Duration) -> Option<DeviceReport>;

    /// Has the device post a notification. Blocks for `patience` at most.
    ///
    /// # Errors
    /// Why not.
    fn notify(&self, notify: Notify, patience: Duration) -> Result<Posted, String>;

    /// Has the device change or show its faults on purpose. Blocks for `patience` at most.
    ///
    /// # Errors
    /// Why not.
    fn fault(&self, order: Order, patience: Duration) -> Result<String, String>;

    /// Puts the device into power-on state, mappings kept. Blocks for `patience` at most.
    ///
    /// # Errors
    /// The thread does not answer.
    fn reset(&self, patience: Duration) -> Result<(), String>;

    /// Runs `change` on the device thread, between two slices. Blocks for `patience` at most.
    ///
    /// # Errors
    /// The thread does not answer; `change` may still be run.
    fn observers(&self, change: Change, patience: Duration) -> Result<(), String>;

    /// Records, from the next moment that a replay can begin with, into what `start` makes, which is called on this
    /// thread if the device can be recorded. Blocks for twice `patience` at most, and for `start`.
    ///
    /// # Errors
    /// Why not.
    fn record(
        &self,
        start: &mut dyn FnMut() -> Result<Arc<Journal>, String>,
        patience: Duration,
    ) -> Result<Begins, String>;

    /// Takes what is recorded into, and whether the recording had begun. Blocks for `patience` at most.
    ///
    /// # Errors
    /// Nothing is, or the thread does not answer.
    fn stop_recording(&self, patience: Duration) -> Result<(Arc<Journal>, bool), String>;

    /// Asks the thread to end. Returns at once; may be called again.
    fn stop(&self);

    /// Blocks until the thread has ended. Called once, from a thread that does nothing else.
    fn wait(&self) -> Ended;
}

/// A function that is being served.
pub struct Running<F> {
    routing_id: u8,
    handle: Handle<F>,
    waiting: Arc<AtomicUsize>,
    thread: Mutex<Option<JoinHandle<Result<(), ServeError>>>>,
    condemned: Arc<OnceLock<String>>,
}

impl<F: PciFunction + Account + Send + 'static> Running<F> {
    /// Starts a thread that serves `function`.
    ///
    /// # Errors
    /// No thread or descriptor left.
    pub fn start(
        routing_id: u8,
        listener: Listener,
        function: F,
        settings: Settings,
    ) -> Result<Self, ServeError> {
        let (server, handle) = Server::new(listener, function, settings)?;
        let thread = Mutex::new(Some(server.spawn(&thread_name(routing_id))?));
        Ok(Self {
            routing_id,
            handle,
            waiting: Arc::default(),
            thread,
            condemned: Arc::default(),
        })
    }

    /// What ends the device, with the reason, from any thread: its own ends when it is through with what it is doing.
    pub fn condemn(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (handle, condemned) = (self.handle.clone(), Arc::clone(&self.condemned));
        move |why| {
            condemned.get_or_init(|| why.to_owned());
            handle.stop();
        }
    }
}

impl<F: 'static> Running<F> {
    /// Has the device thread do something, and waits for the result.
    fn ask<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut F) -> R + Send + 'static,
        patience: Duration,
    ) -> Result<R, String> {
        let waiting = Waiting::new(&self.waiting);
        let waiting = waiting.ok_or("too many requests wait for the device")?;
        let (sender, receiver) = sync_channel(1);
        let answer = move |function: &mut F| {
            // Fails only if nobody waits any more.
            let _ = sender.send(call(function));
            drop(waiting);
        };
        self.handle.send(answer).map_err(|_| GONE)?;
        receiver.recv_timeout(patience).map_err(|_| GONE.to_owned())
    }
}

/// Counts a request from when it is made until the device thread has dealt with it, or dropped it.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(count: &Arc<AtomicUsize>) -> Option<Self> {
        // From here on a drop gives the place back.
        let waiting = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < MAX_WAITING).then_some(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<F: PciFunction + Account + Operate + Record + Send + 'static> Device for Running<F> {
    fn routing_id(&self) -> u8 {
        self.routing_id
    }

    fn report(&self, detail: Detail, patience: Duration) -> Option<DeviceReport> {
        let waiting = Waiting::new(&self.waiting)?;
        let (sender, receiver) = sync_channel(1);
        let answer = move |function: &mut F| {
            // Fails only if nobody waits any more.
            let _ = sender.send(function.report(detail));
            drop(waiting);
        };
        self.handle.send(answer).ok()?;
        let mut report = receiver.recv_timeout(patience).ok()?;
        // It answered just now, so it will answer this as well.
        let wire = self.handle.status().ok()?;
        report.connected = wire.connected;
        report.wire = WireReport {
            connections: wire.connections,
            turned_away: wire.turned_away,
            messages: wire.counters.messages,
            posted_writes: wire.counters.posted_writes,
            refused: wire.counters.refused,
            receives: wire.calls.receive,
            sends: wire.calls.send,
            polls: wire.polls,
        };
        Some(report)
    }

    fn notify(&self, notify: Notify, patience: Duration) -> Result<Posted, String> {
        self.ask(move |function| function.notify(&notify), patience)?
    }

    fn fault(&self, order: Order, patience: Duration) -> Result<String, String> {
        self.ask(move |function| function.fault(&order), patience)?
    }

    fn reset(&self, patience: Duration) -> Result<(), String> {
        self.ask(PciFunction::reset, patience)
    }

    fn observers(&self, change: Change, patience: Duration) -> Result<(), String> {
        self.ask(|function| change(function.observers_mut()), patience)
    }

    fn record(
        &self,
        start: &mut dyn FnMut() -> Result<Arc<Journal>, String>,
        patience: Duration,
    ) -> Result<Begins, String> {
        self.ask(|function| function.may_record(), patience)??;
        let journal = start()?;
        self.ask(|function| function.record(journal), patience)?
    }

    fn stop_recording(&self, patience: Duration) -> Result<(Arc<Journal>, bool), String> {
        self.ask(Record::stop_recording, patience)?
            .ok_or_else(|| "the device is not being recorded".to_owned())
    }

    fn stop(&self) {
        self.handle.stop();
    }

    fn wait(&self) -> Ended {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match thread.map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => match self.condemned.get() {
                Some(why) => Ended::Condemned(why.clone()),
                None => Ended::Stopped,
            },
            Some(Ok(Err(error))) => Ended::Died(error.to_string()),
            // The thread catches panics, so this is one in its last steps.
            Some(Err(_)) => Ended::Died("a panic while ending".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use rustix::io::Errno;

    use super::*;
    use crate::vfio::{DmaMap, DmaReply, DmaRequest, DmaUnmap, FunctionInfo, IrqSet, Progress};

    /// Answers for itself, and panics when a client leaves.
    #[derive(Default)]
    struct Fragile {
        info: FunctionInfo,
        observers: Observers,
    }

    impl Account for Fragile {
        fn report(&self, _detail: Detail) -> DeviceReport {
            DeviceReport::default()
        }
    }

    impl Operate for Fragile {
        fn notify(&mut self, _notify: &Notify) -> Result<Posted, String> {
            Err("nowhere".to_owned())
        }

        fn fault(&mut self, _order: &Order) -> Result<String, String> {
            Err("nowhere".to_owned())
        }

        fn observers_mut(&mut self) -> &mut Observers {
            &mut self.observers
        }
    }

    impl Record for Fragile {
        fn may_record(&self) -> Result<(), String> {
            Err("nowhere".to_owned())
        }

        fn record(&mut self, _journal: Arc<Journal>) -> Result<Begins, String> {
            Err("nowhere".to_owned())
        }

        fn stop_recording(&mut self) -> Option<(Arc<Journal>, bool)> {
            None
        }
    }

    impl PciFunction for Fragile {
        fn info(&self) -> &FunctionInfo {
            &self.info
        }

        fn region_read(
            &mut self,
            _region: u32,
            _offset: u64,
            _data: &mut [u8],
        ) -> Result<(), Errno> {
            Err(Errno::INVAL)
        }

        fn region_write(&mut self, _region: u32, _offset: u64, _data: &[u8]) -> Result<(), Errno> {
            Err(Errno::INVAL)
        }

        fn dma_map(&mut self, _map: DmaMap) -> Result<(), Errno> {
            Ok(())
        }

        fn dma_unmap(&mut self, _unmap: DmaUnmap) -> Result<(), Errno> {
            Ok(())
        }

        fn set_irqs(&mut self, _irqs: IrqSet) -> Result<(), Errno> {
            Ok(())
        }

        fn reset(&mut self) {}

        fn disconnect(&mut self) {
            panic!("a fault of ours");
        }

        fn run(&mut self) -> Progress {
            Progress::Idle
        }

        fn next_dma(&mut self) -> Option<(u64, DmaRequest)> {
            None
        }

        fn dma_reply(&mut self, _id: u64, _reply: DmaReply) {}
    }

    fn start(path: &Path, id: u8) -> Running<Fragile> {
        let listener = Listener::bind(path).unwrap();
        Running::start(id, listener, Fragile::default(), Settings::default()).unwrap()
    }

    #[test]
    fn a_device_that_panics_dies_alone_and_says_why() {
        const PATIENCE: Duration = Duration::from_secs(10);
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("0"), directory.path().join("1"));
        let (fragile, healthy) = (start(&first, 0), start(&second, 1));
        assert!(fragile.report(Detail::Status, PATIENCE).is_some());
        let mut client = UnixStream::connect(&first).unwrap();
        client.write_all(b"nonsense").unwrap();
        drop(client);
        let Ended::Died(why) = fragile.wait() else {
            panic!("it lives")
        };
        assert!(why.contains("a fault of ours"), "{why}");
        assert!(fragile.report(Detail::Status, PATIENCE).is_none());
        assert!(!first.exists(), "a dead device still takes clients");
        assert!(healthy.report(Detail::Status, PATIENCE).is_some());
        healthy.stop();
        assert_eq!(healthy.wait(), Ended::Stopped);
    }
}

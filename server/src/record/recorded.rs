//! A function whose calls are recorded, if somebody asked for it.
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::Payload;
use super::content::SHORT;
use super::entry::{Entry, Irqs, nanoseconds};
use super::journal::{Journal, Witness};
use crate::function::NeuronFunction;
use crate::observe::event::{ObserverId, Observers};
use crate::observe::report::{Account, Detail, DeviceReport};
use crate::policy::fault::Order;
use crate::policy::{Notify, Operate, Posted};
use crate::vfio::{
    DmaMap, DmaReply, DmaRequest, DmaUnmap, FunctionInfo, IrqAction, IrqSet, PciFunction, Progress,
};

/// When a recording begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// No client has done anything yet.
    Now,
    /// A client is in the middle of something, which a replay could not begin with.
    WithTheNextClient,
}

/// A device that can be recorded from some moment on.
pub trait Record {
    /// Whether [`Self::record`] would record, to be asked before a file is touched.
    ///
    /// # Errors
    /// It is being recorded already, or does what a recording does not hold.
    fn may_record(&self) -> Result<(), String>;

    /// Records into `journal`, from the next moment at which the device is as after power-on.
    ///
    /// # Errors
    /// See [`Self::may_record`].
    fn record(&mut self, journal: Arc<Journal>) -> Result<Begins, String>;

    /// Takes no more entries. Whoever asked sees to the end of the file, which may take a while. Also tells whether the
    /// recording ever began.
    fn stop_recording(&mut self) -> Option<(Arc<Journal>, bool)>;
}

/// A function, and where its calls are recorded. Without a recording each call costs one branch.
#[derive(Debug)]
pub struct Recorded {
    function: NeuronFunction,
    journal: Option<Arc<Journal>>,
    /// A recording that waits for the client to leave.
    waiting: Option<Arc<Journal>>,
    /// Shows events to the recording.
    witness: Option<ObserverId>,
    /// No client has done anything since power-on, or since the last one left.
    fresh: bool,
    /// Device time of the last tick, or of none that the recording has.
    now: Duration,
}

impl Recorded {
    /// A function just made, and a recording of it.
    pub fn new(function: NeuronFunction, journal: Option<Arc<Journal>>) -> Self {
        let mut recorded = Self {
            function,
            journal: None,
            waiting: None,
            witness: None,
            fresh: true,
            now: Duration::ZERO,
        };
        if let Some(journal) = journal {
            recorded.begin(journal);
        }
        recorded
    }

    /// The device is as after power-on: from here on everything is recorded.
    fn begin(&mut self, journal: Arc<Journal>) {
        self.function.set_tap(Arc::clone(&journal) as _);
        let witness = Box::new(Witness(Arc::clone(&journal)));
        self.witness = Some(self.function.observers_mut().add(witness));
        // The first tick brings a replay to the device's time.
        self.now = Duration::ZERO;
        self.journal = Some(journal);
    }

    /// The function itself. What is done to it in this way is not recorded.
    pub fn function_mut(&mut self) -> &mut NeuronFunction {
        &mut self.function
    }

    /// Ends the recording, if there is one; the device goes on.
    pub fn end(&mut self, end: super::entry::End) -> bool {
        let taken = self.stop_recording();
        if let Some((journal, _)) = &taken {
            journal.end(end);
        }
        taken.is_some()
    }

    /// What to record of a call, if anything.
    fn input(&self, entry: impl FnOnce() -> Entry) -> Option<Entry> {
        let open = self
            .journal
            .as_ref()
            .is_some_and(|journal| journal.is_open());
        open.then(entry)
    }

    /// Makes a call between its entry and that of its result.
    fn call<R>(
        &mut self,
        input: Option<Entry>,
        call: impl FnOnce(&mut NeuronFunction) -> R,
        output: impl FnOnce(&R) -> Entry,
    ) -> R {
        let Some((journal, input)) = self.journal.as_deref().zip(input) else {
            return call(&mut self.function);
        };
        journal.call(&input);
        let result = call(&mut self.function);
        journal.entry(&output(&result));
        result
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(journal) = &self.journal {
            journal.end(super::entry::End::Stopped);
        }
    }
}

/// A result without bytes.
pub fn outcome(result: &Result<(), Errno>) -> Entry {
    match result {
        Ok(()) => Entry::Done,
        Err(errno) => Entry::Failed(*errno),
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "results are passed by reference"
)]
fn done(_: &()) -> Entry {
    Entry::Done
}

/// The entry of a map; the bytes that its file has decide where the device finds holes.
fn of_map(map: &DmaMap) -> Entry {
    let present = |(file, offset): &(std::os::fd::OwnedFd, u64)| {
        let size = rustix::fs::fstat(file).map_or(0, |stat| stat.st_size);
        u64::try_from(size)
            .unwrap_or(0)
            .saturating_sub(*offset)
            .min(map.size)
    };
    Entry::Map {
        iova: map.iova,
        size: map.size,
        protection: map.protection,
        file: map.file.as_ref().map(present),
    }
}

fn of_irqs(irqs: &IrqSet) -> Entry {
    let (action, flags) = match &irqs.action {
        IrqAction::Eventfds(fds) => (0, fds.iter().map(Option::is_some).collect()),
        IrqAction::Mask(flags) => (1, flags.clone()),
        IrqAction::Unmask(flags) => (2, flags.clone()),
        IrqAction::Trigger(flags) => (3, flags.clone()),
    };
    Entry::SetIrqs(Irqs {
        index: irqs.index,
        start: irqs.start,
        action,
        flags,
    })
}

/// What the device asks of its client. Where payload is left out, a replay writes bytes that it made up, and only their
/// number can be compared.
pub fn of_request(request: Option<(u64, DmaRequest)>, payload: Payload) -> Entry {
    Entry::Request(request.map(|(id, request)| match request {
        DmaRequest::Write { iova, data } if payload == Payload::None && data.len() > SHORT => {
            let data = vec![0; data.len()];
            (id, DmaRequest::Write { iova, data })
        }
        other => (id, other),
    }))
}

/// An answer to an order.
pub fn of_answer(result: &Result<Posted, String>) -> Entry {
    Entry::Answer(match result {
        Ok(posted) => format!("{:#x}, head {:#x}", posted.offset, posted.head),
        Err(error) => error.clone(),
    })
}

impl PciFunction for Recorded {
    fn info(&self) -> &FunctionInfo {
        self.function.info()
    }

    fn tick(&mut self, now: Duration) {
        let delta = now.saturating_sub(self.now);
        self.now = now;
        let input = self.input(|| Entry::Tick(nanoseconds(delta)));
        self.call(input, |function| function.tick(now), done);
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.fresh = false;
        let Some(journal) = self.journal.as_deref().filter(|journal| journal.is_open()) else {
            return self.function.region_read(region, offset, data);
        };
        let len = data.len();
        journal.call(&Entry::Read {
            region,
            offset,
            len,
        });
        let result = self.function.region_read(region, offset, data);
        match result {
            Ok(()) => journal.data(data),
            Err(errno) => journal.entry(&Entry::Failed(errno)),
        }
        result
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.fresh = false;
        let input = self.input(|| Entry::Write {
            region,
            offset,
            data: data.to_vec(),
        });
        self.call(
            input,
            |function| function.region_write(region, offset, data),
            outcome,
        )
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        self.fresh = false;
        let input = self.input(|| of_map(&map));
        self.call(input, |function| function.dma_map(map), outcome)
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        self.fresh = false;
        let input = self.input(|| Entry::Unmap(unmap));
        self.call(input, |function| function.dma_unmap(unmap), outcome)
    }

    fn set_irqs(&mut self, irqs: IrqSet) -> Result<(), Errno> {
        self.fresh = false;
        let input = self.input(|| of_irqs(&irqs));
        self.call(input, |function| function.set_irqs(irqs), outcome)
    }

    fn reset(&mut self) {
        self.fresh = false;
        let input = self.input(|| Entry::Reset);
        self.call(input, NeuronFunction::reset, done);
    }

    fn disconnect(&mut self) {
        let input = self.input(|| Entry::Disconnect);
        self.call(input, NeuronFunction::disconnect, done);
        self.fresh = true;
        if let Some(journal) = self.waiting.take() {
            self.begin(journal);
        }
    }

    fn run(&mut self) -> Progress {
        let input = self.input(|| Entry::Run);
        self.call(input, NeuronFunction::run, |progress| {
            Entry::Progress(*progress)
        })
    }

    fn next_dma(&mut self) -> Option<(u64, DmaRequest)> {
        let input = self.input(|| Entry::NextDma);
        let payload = self.journal.as_ref().map(|journal| journal.payload());
        self.call(input, NeuronFunction::next_dma, |request| {
            of_request(request.clone(), payload.unwrap_or_default())
        })
    }

    fn masters_bus(&self) -> bool {
        self.function.masters_bus()
    }

    fn wants_dma(&self, id: u64) -> bool {
        self.function.wants_dma(id)
    }

    fn leaves(&self) -> bool {
        self.function.leaves()
    }

    fn dma_reply(&mut self, id: u64, reply: DmaReply) {
        self.fresh = false;
        let input = self.input(|| Entry::DmaReply {
            id,
            reply: reply.clone(),
        });
        self.call(input, |function| function.dma_reply(id, reply), done);
    }

    fn last_words(&self) -> String {
        self.function.last_words()
    }
}

impl Record for Recorded {
    fn may_record(&self) -> Result<(), String> {
        if self.journal.is_some() || self.waiting.is_some() {
            return Err("the device is being recorded already; stop that first".to_owned());
        }
        let policies = self.function.policies();
        if !policies.is_empty() {
            return Err("the device has faults, and a recording holds none: its replay would differ; `ctl fault clear` first".to_owned());
        }
        if policies.adversary().is_some() {
            return Err("the device has an adversary whose past decisions a recording would lack; serve with --record".to_owned());
        }
        Ok(())
    }

    fn record(&mut self, journal: Arc<Journal>) -> Result<Begins, String> {
        self.may_record()?;
        if self.fresh {
            self.begin(journal);
            return Ok(Begins::Now);
        }
        self.waiting = Some(journal);
        Ok(Begins::WithTheNextClient)
    }

    fn stop_recording(&mut self) -> Option<(Arc<Journal>, bool)> {
        if let Some(journal) = self.waiting.take() {
            return Some((journal, false));
        }
        let journal = self.journal.take()?;
        self.function.clear_tap();
        if let Some(witness) = self.witness.take() {
            self.function.observers_mut().remove(witness);
        }
        Some((journal, true))
    }
}

impl Account for Recorded {
    fn report(&self, detail: Detail) -> DeviceReport {
        self.function.report(detail)
    }
}

impl Operate for Recorded {
    fn notify(&mut self, notify: &Notify) -> Result<Posted, String> {
        self.fresh = false;
        let input = self.input(|| Entry::Order(notify.to_string()));
        self.call(input, |function| function.notify(notify), of_answer)
    }

    fn fault(&mut self, order: &Order) -> Result<String, String> {
        if (self.journal.is_some() || self.waiting.is_some()) && *order != Order::List {
            return Err(
                "the device is being recorded, and a recording holds no faults: its replay would differ; `ctl record stop` first, or serve without --record"
                    .to_owned(),
            );
        }
        self.function.fault(order)
    }

    fn observers_mut(&mut self) -> &mut Observers {
        self.function.observers_mut()
    }
}

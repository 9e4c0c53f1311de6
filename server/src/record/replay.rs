//! Drives a device by a recording, without QEMU, and compares.
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use super::entry::{Content, End, Entry, Irqs};
use super::file::{FileError, Reader, Tail};
use super::header::NoDevice;
use super::journal::Journal;
use super::recorded::{Recorded, of_answer, of_request, outcome};
use super::script::{Counts, Judge, Layered, Script};
use super::words::Words;
use super::{Header, Payload};
use crate::function::NeuronFunction;
use crate::observe::event::Observer;
use crate::observe::report::{Account, Detail};
use crate::policy::Operate;
use crate::vfio::{DmaMap, DmaRequest, DmaUnmap, IrqAction, IrqSet, PciFunction};

/// Device memory that a replay may fill.
pub const MAX_MEMORY: u64 = 8 << 30;
/// Between two looks at it: what a call can fill is a small part of the limit.
const LOOK: u64 = 256;
/// The page that maps are made of.
const PAGE: u64 = 4096;

/// The first difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Number of the entry, from 0.
    pub number: u64,
    /// What the recording has.
    pub expected: String,
    /// What the device did.
    pub actual: String,
    /// Entries before it.
    pub before: Vec<(u64, String)>,
    /// Entries after it.
    pub after: Vec<(u64, String)>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the device does something else at entry {}", self.number)?;
        for (number, text) in &self.before {
            writeln!(f, "  {number:>8}  {text}")?;
        }
        writeln!(f, "  recorded  {}", self.expected)?;
        writeln!(f, "  now       {}", self.actual)?;
        for (number, text) in &self.after {
            writeln!(f, "  {number:>8}  {text}")?;
        }
        f.write_str("  (what comes after it may differ only because of it)")
    }
}

/// Why a replay cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The device that it describes.
    #[error("the head describes no device: {0}")]
    Device(#[from] NoDevice),
    /// An input that no client could give.
    #[error("entry {number}: {rule}")]
    Rule {
        /// Number of the entry, from 0.
        number: u64,
        /// What ought to hold.
        rule: &'static str,
    },
    /// The kernel.
    #[error("no memory for the device: {0}; see ulimit -v")]
    System(#[from] Errno),
    /// The new recording.
    #[error("the new recording: {0}")]
    Write(#[from] io::Error),
    /// Too much.
    #[error(
        "entry {number}: the recording fills more than {} GiB of device memory",
        MAX_MEMORY >> 30
    )]
    Memory {
        /// Number of the entry, from 0.
        number: u64,
    },
    /// A difference.
    #[error("{0}")]
    Diverged(Box<Divergence>),
}

/// How a replay went that found no difference.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What it did.
    pub counts: Counts,
    /// Why the recording ended, if it says so.
    pub end: Option<End>,
    /// How the file ends.
    pub tail: Tail,
    /// Time in the recording.
    pub recorded: Duration,
    /// Time it took.
    pub elapsed: Duration,
}

/// A device and the recording that drives it.
pub struct Replay {
    function: Recorded,
    script: Arc<Script>,
    header: Header,
    now: Duration,
    /// Accesses that the device wants answered: how many bytes.
    asked: HashMap<u64, usize>,
}

impl Replay {
    /// Builds the device that a recording is of.
    ///
    /// # Errors
    /// The file is none, or describes no device.
    pub fn new(file: Vec<u8>) -> Result<Self, ReplayError> {
        Self::build(file, None, false)
    }

    /// The same, for those who watch: events, replies and bytes written are not compared.
    ///
    /// # Errors
    /// The file is none, or describes no device.
    pub fn tolerant(file: Vec<u8>) -> Result<Self, ReplayError> {
        Self::build(file, None, true)
    }

    /// The same, and records anew what the device does now. Only what goes in must fit.
    ///
    /// # Errors
    /// As above, or `out` cannot be written.
    pub fn rewriting<W: io::Write + Send + 'static>(
        file: Vec<u8>,
        out: W,
    ) -> Result<Self, ReplayError> {
        let header = Reader::new(file.clone())?.header().clone();
        let fresh = Header {
            timing: header.timing,
            adversary: header.adversary.clone(),
            ..Header::new(&header.config()?, header.payload)
        };
        let journal = Journal::start(out, &fresh, u64::MAX, "(rewritten)")?;
        Self::build(file, Some(journal), true)
    }

    fn build(
        file: Vec<u8>,
        journal: Option<Arc<Journal>>,
        lenient: bool,
    ) -> Result<Self, ReplayError> {
        let reader = Reader::new(file)?;
        let header = reader.header().clone();
        let config = header.config()?;
        let words = Words {
            generation: config.product.generation(),
        };
        let script = Arc::new(Script::new(reader, words, lenient));
        let mut function = NeuronFunction::new(config)?;
        function.policies_mut().set_timing(header.timing()?);
        if let Some(adversary) = header.adversary()? {
            function.policies_mut().set_adversary(adversary);
        }
        let mut function = Recorded::new(function, journal.clone());
        let inner = Arc::clone(&script);
        function.function_mut().set_tap(match journal {
            Some(outer) => Arc::new(Layered { outer, inner }),
            None => inner,
        });
        let judge = Judge(Arc::clone(&script));
        function.function_mut().observers_mut().add(Box::new(judge));
        Ok(Self {
            function,
            script,
            header,
            now: Duration::ZERO,
            asked: HashMap::new(),
        })
    }

    /// What the recording says of the device.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Shows the device's events to somebody.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.function.function_mut().observers_mut().add(observer);
    }

    /// The device, for those who break it on purpose.
    pub fn function_mut(&mut self) -> &mut NeuronFunction {
        self.function.function_mut()
    }

    /// Payload was left out.
    pub fn is_partial(&self) -> bool {
        self.header.payload == Payload::None
    }

    /// Goes through all of it.
    ///
    /// # Errors
    /// The first difference, or what is wrong with the file.
    pub fn run(mut self) -> Result<Outcome, ReplayError> {
        let start = Instant::now();
        let mut calls = 0_u64;
        while let Some(entry) = self.script.call() {
            self.step(&entry)?;
            if self.script.is_over() {
                break;
            }
            calls += 1;
            if calls.is_multiple_of(LOOK) {
                self.check_memory()?;
            }
        }
        self.script.failure()?;
        let (counts, end, tail) = self.script.outcome();
        self.function.end(end.unwrap_or(End::Stopped));
        Ok(Outcome {
            counts,
            end,
            tail,
            recorded: self.now,
            elapsed: start.elapsed(),
        })
    }

    fn check_memory(&self) -> Result<(), ReplayError> {
        let report = self.function.report(Detail::Status);
        if report.hbm_resident > MAX_MEMORY {
            return Err(self.memory());
        }
        Ok(())
    }

    fn memory(&self) -> ReplayError {
        ReplayError::Memory {
            number: self.script.position(),
        }
    }

    fn rule(&self, rule: &'static str) -> ReplayError {
        ReplayError::Rule {
            number: self.script.position().saturating_sub(1),
            rule,
        }
    }

    /// Makes one call, checked as the wire checks it.
    fn step(&mut self, entry: &Entry) -> Result<(), ReplayError> {
        match entry {
            Entry::Tick(delta) => {
                self.now = self.now.saturating_add(Duration::from_nanos(*delta));
                self.function.tick(self.now);
                self.script.result(&Entry::Done, None);
            }
            Entry::Read {
                region,
                offset,
                len,
            } => {
                self.check_access(*region, *offset, *len)?;
                let mut data = vec![0; *len];
                match self.function.region_read(*region, *offset, &mut data) {
                    Ok(()) => {
                        let actual = Entry::Data(Content::digest(&data));
                        self.script.result(&actual, Some(&data));
                    }
                    Err(errno) => self.script.result(&Entry::Failed(errno), None),
                }
            }
            Entry::Write {
                region,
                offset,
                data,
            } => {
                self.check_access(*region, *offset, data.len())?;
                let result = self.function.region_write(*region, *offset, data);
                self.script.result(&outcome(&result), None);
            }
            Entry::Map { .. } => self.map(entry)?,
            Entry::Unmap(unmap) => {
                if let DmaUnmap::Range { iova, size } = *unmap
                    && (size == 0 || iova.checked_add(size).is_none())
                {
                    return Err(self.rule("an unmap has bytes, within the address space"));
                }
                let result = self.function.dma_unmap(*unmap);
                self.script.result(&outcome(&result), None);
            }
            Entry::SetIrqs(irqs) => self.set_irqs(irqs)?,
            Entry::Reset => {
                self.function.reset();
                self.script.result(&Entry::Done, None);
            }
            Entry::Disconnect => {
                self.function.disconnect();
                self.asked.clear();
                self.script.result(&Entry::Done, None);
            }
            Entry::Run => {
                let progress = self.function.run();
                self.script.result(&Entry::Progress(progress), None);
            }
            Entry::NextDma => {
                let request = self.function.next_dma();
                if let Some((id, request)) = &request {
                    let len = match request {
                        DmaRequest::Read { len, .. } => *len,
                        DmaRequest::Write { .. } => 0,
                    };
                    self.asked.insert(*id, len);
                }
                self.script
                    .result(&of_request(request, self.header.payload), None);
            }
            Entry::DmaReply { id, reply } => {
                let Some(len) = self.asked.remove(id) else {
                    return Err(self.rule("an answer belongs to an access that was asked for"));
                };
                if reply.as_ref().is_ok_and(|data| data.len() != len) {
                    return Err(self.rule("an answer has the bytes that were asked for"));
                }
                self.function.dma_reply(*id, reply.clone());
                self.script.result(&Entry::Done, None);
            }
            Entry::Order(text) => {
                let Ok(notify) = text.parse() else {
                    return Err(self.rule("an order is one of the control socket's"));
                };
                let result = self.function.notify(&notify);
                self.script.result(&of_answer(&result), None);
            }
            _ => {
                return Err(self.rule("a call comes first, then what it did, then its result"));
            }
        }
        Ok(())
    }

    fn check_access(&self, region: u32, offset: u64, len: usize) -> Result<(), ReplayError> {
        let known = usize::try_from(region)
            .ok()
            .and_then(|index| self.function.info().regions.get(index));
        let size = known.map_or(0, |region| region.size);
        let inside = offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= size);
        if !inside || len == 0 {
            return Err(self.rule("an access has bytes, all of them inside its region"));
        }
        Ok(())
    }

    fn map(&mut self, entry: &Entry) -> Result<(), ReplayError> {
        let Entry::Map {
            iova,
            size,
            protection,
            file,
        } = *entry
        else {
            return Ok(());
        };
        if size == 0 || iova.checked_add(size).is_none() || (iova | size) % PAGE != 0 {
            return Err(self.rule("a mapping is made of whole pages, within the address space"));
        }
        let failed = matches!(self.script.peek().as_deref(), Some(Entry::Failed(_)));
        if file.is_some() && failed {
            // Memory that the host could not map then; here it could.
            self.script.skip();
            return Ok(());
        }
        let file = match file {
            Some(present) if present > size => {
                return Err(self.rule("a mapping has no more bytes than its size"));
            }
            Some(present) => Some((self.memory_of(present)?, 0)),
            None => None,
        };
        let result = self.function.dma_map(DmaMap {
            iova,
            size,
            protection,
            file,
        });
        self.script.result(&outcome(&result), None);
        Ok(())
    }

    /// A file of that size that nobody ever touches.
    fn memory_of(&self, size: u64) -> Result<OwnedFd, ReplayError> {
        let file = rustix::fs::memfd_create("replayed", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size)
            .map_err(|_| self.rule("the file behind a mapping has a possible size"))?;
        Ok(file)
    }

    fn set_irqs(&mut self, irqs: &Irqs) -> Result<(), ReplayError> {
        let known = usize::try_from(irqs.index)
            .ok()
            .and_then(|index| self.function.info().irqs.get(index));
        let count = known.map_or(0, |irq| irq.count);
        let wanted = u32::try_from(irqs.flags.len()).unwrap_or(u32::MAX);
        if irqs.start.checked_add(wanted).is_none_or(|end| end > count) {
            return Err(self.rule("interrupt vectors exist"));
        }
        let action = match irqs.action {
            0 => {
                let fds: Result<Vec<_>, Errno> = irqs
                    .flags
                    .iter()
                    .map(|attached| {
                        attached
                            .then(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
                            .transpose()
                    })
                    .collect();
                IrqAction::Eventfds(fds?)
            }
            1 => IrqAction::Mask(irqs.flags.clone()),
            2 => IrqAction::Unmask(irqs.flags.clone()),
            _ => IrqAction::Trigger(irqs.flags.clone()),
        };
        let result = self.function.set_irqs(IrqSet {
            index: irqs.index,
            start: irqs.start,
            action,
        });
        self.script.result(&outcome(&result), None);
        Ok(())
    }
}

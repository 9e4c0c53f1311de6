//! The PCI function: what a Neuron device is to the bus.
//!
//! A state machine without clock, socket or thread: accesses and replies go in, replies, messages and events come out.
//! The path of an access is `region_write` -> `registers` -> the block that owns the register -> an engine's queue, and
//! of the work it starts `run` -> [`crate::udma`] -> [`crate::memory`].
mod config_space;
mod firmware;
mod held;
mod mailbox;
mod messages;
mod misc_ram;
mod msix;
mod notifications;
mod operate;
mod privacy;
mod register_file;
mod registers;
mod report;
mod requests;
mod reset;
mod semaphores;
mod shape;

use std::time::Duration;

use neuron_protocol::generation::{Generation, Platform, Product};
use rustix::io::Errno;

use crate::memory::{Backing, HbmGeometry, Mapping, Memory};
use crate::observe::budget::Budget;
use crate::observe::event::{EventKind, Observers, Scope};
use crate::observe::render;
use crate::observe::report::{Account, Detail, DeviceReport};
use crate::policy::adversary::Kind;
use crate::policy::{Loss, Policies};
use crate::udma::{Context, LateWrites, Request, Slice, Totals, Udma};
use crate::vfio::{
    DmaMap, DmaReply, DmaRequest, DmaUnmap, FunctionInfo, IrqAction, IrqSet, PciFunction, Progress,
};
use config_space::ConfigSpace;
pub use firmware::{Ecc, Firmware, HbmRepair, MAX_API_VERSION, MAX_POWER, MAX_SERVER_ID};
use held::Held;
use mailbox::Mailbox;
use messages::{Asker, Messages};
use misc_ram::MiscRam;
use msix::Msix;
use notifications::Notifications;
pub use notifications::PostError;
use register_file::RegisterFile;
use semaphores::Semaphores;

/// Bytes copied between two looks at the socket: a read is answered after at most this much work.
pub const SLICE_BYTES: u64 = 4 << 20;

/// vfio region of configuration space (`VFIO_PCI_CONFIG_REGION_INDEX`).
const CONFIG_REGION: u32 = 7;
/// vfio interrupt index of fatal errors (`VFIO_PCI_ERR_IRQ_INDEX`).
const ERR_IRQ: u32 = 3;
/// The register window.
const REGISTER_BAR: usize = 0;
/// The register window again, on platform qemu: drivers up to 2.24.7 look there (contract §13.1).
const REGISTER_BAR_ALIAS: usize = 2;
/// HBM.
const HBM_BAR: usize = 4;

/// What a device is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which product.
    pub product: Product,
    /// What the driver takes its surroundings to be.
    pub platform: Platform,
    /// Position in its server, 0 to 63: the driver refuses more (contract §3).
    pub routing_id: u8,
    /// Serial number, not 0: the driver prints an error for that (contract §4).
    pub serial: u64,
    /// What firmware says of the card.
    pub firmware: Firmware,
    /// Sizes and places of HBM.
    pub hbm: HbmGeometry,
    /// Let the client map HBM. Every register write is then synchronous (qemu client "MMIO").
    pub mmap_hbm: bool,
    /// Offer MSI-X, which no public driver of the real part uses.
    pub msix: bool,
}

impl Config {
    /// The first device of a server, as it is unless told otherwise.
    pub fn new(product: Product, platform: Platform) -> Self {
        Self {
            product,
            platform,
            routing_id: 0,
            serial: 1,
            firmware: Firmware::default(),
            hbm: HbmGeometry::standard(product.generation(), platform),
            mmap_hbm: false,
            msix: false,
        }
    }
}

/// Totals that are not the engines'.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    register_reads: u64,
    register_writes: u64,
    resets: u64,
    slices: u64,
}

/// A Neuron device.
#[derive(Debug)]
pub struct NeuronFunction {
    config: Config,
    generation: &'static Generation,
    info: FunctionInfo,
    identity: config_space::Identity,
    pci: ConfigSpace,
    memory: Memory,
    udma: Udma,
    misc_ram: MiscRam,
    mailbox: Mailbox,
    settings: firmware::Settings,
    semaphores: Semaphores,
    notifications: Notifications,
    msix: Option<Msix>,
    file: RegisterFile,
    observers: Observers,
    budget: Option<Budget>,
    policies: Policies,
    late: LateWrites,
    held: Held,
    totals: Totals,
    counters: Counters,
    now: Duration,
    messages: Messages,
    /// A reset is done but for what the client still has of before.
    reset_pending: bool,
    privacy: privacy::Privacy,
    /// Told the state that a client leaves behind.
    parting: Option<Parting>,
}

/// Takes the state that a client leaves behind.
pub struct Parting(Box<dyn FnMut(DeviceReport) + Send>);

impl std::fmt::Debug for Parting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parting")
    }
}

impl NeuronFunction {
    /// A device as after power-on.
    ///
    /// # Errors
    /// The kernel refuses memory.
    pub fn new(config: Config) -> Result<Self, Errno> {
        let generation = config.product.generation();
        let memory = Memory::new(generation, config.hbm)?;
        let identity = shape::identity(&config);
        let msix = config
            .msix
            .then(|| Msix::new(generation.engines, generation.register_bar_size));
        let info = shape::info(&config, &identity, &memory, msix.as_ref());
        let misc_ram = MiscRam::new(misc_ram::Identity {
            firmware: config.firmware,
            routing_id: config.routing_id,
            serial: config.serial,
        });
        Ok(Self {
            pci: ConfigSpace::new(&identity),
            udma: Udma::new(generation),
            mailbox: Mailbox::default(),
            settings: firmware::Settings::default(),
            semaphores: Semaphores::new(generation),
            notifications: Notifications::default(),
            msix,
            file: RegisterFile::default(),
            observers: Observers::default(),
            budget: None,
            policies: Policies::default(),
            late: LateWrites::default(),
            held: Held::default(),
            totals: Totals::default(),
            counters: Counters::default(),
            now: Duration::ZERO,
            messages: Messages::default(),
            reset_pending: false,
            parting: None,
            privacy: privacy::Privacy::default(),
            config,
            generation,
            info,
            identity,
            memory,
            misc_ram,
        })
    }

    /// Its consumers of events.
    pub fn observers_mut(&mut self) -> &mut Observers {
        &mut self.observers
    }

    /// Has books kept of how much of the driver's patience each batch uses; they are part of its account.
    pub fn keep_budget(&mut self, budget: Budget) {
        self.observers.add(budget.observer());
        self.budget = Some(budget);
    }

    /// Has its accesses to memory go through `tap`.
    pub fn set_tap(&mut self, tap: std::sync::Arc<dyn crate::memory::Tap>) {
        self.memory.set_tap(tap);
    }

    /// Has its accesses to memory go straight there again.
    pub fn clear_tap(&mut self) {
        self.memory.clear_tap();
    }

    /// What may change its outcomes.
    pub const fn policies(&self) -> &Policies {
        &self.policies
    }

    /// The same, to change.
    pub fn policies_mut(&mut self) -> &mut Policies {
        &mut self.policies
    }

    /// Has `parting` told the whole state whenever a client leaves, before it is forgotten.
    pub fn on_disconnect(&mut self, parting: Box<dyn FnMut(DeviceReport) + Send>) {
        self.parting = Some(Parting(parting));
    }

    /// What it was made of.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Splits the device into its engines and what they work with.
    fn engines(&mut self) -> (&mut Udma, Context<'_>) {
        let context = Context {
            memory: &self.memory,
            observers: &mut self.observers,
            policies: &mut self.policies,
            late: &mut self.late,
            now: self.now,
            totals: &mut self.totals,
        };
        (&mut self.udma, context)
    }

    /// Whether the device may touch memory at all.
    fn may_access_memory(&self) -> bool {
        self.pci.bus_master() && !self.is_lost()
    }

    /// What of configuration space holds interrupts back.
    fn interrupt_gate(&self) -> msix::Gate {
        let (enabled, masked) = self.pci.msix_control();
        msix::Gate {
            enabled,
            masked,
            bus_master: self.pci.bus_master(),
        }
    }

    /// Sends the interrupts that engines have raised; what they are about has landed.
    fn interrupt(&mut self) {
        let raised = self.udma.take_raised();
        if raised.is_empty() {
            return;
        }
        let gate = self.interrupt_gate();
        if let Some(msix) = &mut self.msix {
            for engine in raised {
                msix.raise(engine, gate);
            }
        }
    }

    /// Hardware does not wait for the messages that the wire has yet to look at: an adversary may let it work at once.
    fn work_eagerly(&mut self) {
        let adversary = self.policies.adversary_mut();
        if adversary.is_some_and(|adversary| adversary.device_deviates(Kind::Eager).is_some()) {
            self.run();
        }
    }

    /// Runs the mailbox until it waits for somebody.
    fn run_mailbox(&mut self) {
        while self.mailbox.can_step() {
            match self.mailbox.step(&self.memory) {
                Ok(mailbox::Step::Idle) => return,
                Ok(mailbox::Step::Execute(request)) => self.execute(&request),
                Ok(mailbox::Step::Transfer(Request::ReadGuest { iova, len })) => {
                    let id = self.ask(Asker::Mailbox { len }, DmaRequest::Read { iova, len });
                    return self.mailbox.wait_for(id);
                }
                Ok(mailbox::Step::Transfer(Request::WriteGuest { iova, data })) => {
                    let len = data.len();
                    let id = self.ask(Asker::Mailbox { len }, DmaRequest::Write { iova, data });
                    return self.mailbox.wait_for(id);
                }
                Ok(mailbox::Step::Transfer(_)) => return,
                Err(error) => {
                    tracing::warn!(%error, "mailbox request not answered; the driver will time out and try again");
                    if let Some(fault) = error.fault() {
                        self.observers
                            .emit(Scope::Device, EventKind::MailboxRefused(fault));
                    }
                    if let mailbox::Unanswered::Malformed(_) = error {
                        self.suspect_mailbox();
                    }
                    return;
                }
            }
        }
    }

    /// A slice of the engines' work.
    fn run_engines(&mut self) -> Progress {
        let mut slice = SLICE_BYTES;
        loop {
            let (udma, mut context) = self.engines();
            let step = udma.run(&mut slice, &mut context);
            self.interrupt();
            match step {
                Slice::Idle => return self.next_release(),
                Slice::Again => return Progress::Again,
                Slice::Request { id, request } => {
                    let resets = self.counters.resets;
                    self.serve(id, request);
                    // A reset that a descriptor asks for costs thousands of times what a register does.
                    if self.counters.resets != resets {
                        return Progress::Again;
                    }
                }
            }
        }
    }
}

impl PciFunction for NeuronFunction {
    fn info(&self) -> &FunctionInfo {
        &self.info
    }

    fn tick(&mut self, now: Duration) {
        self.now = now;
        self.observers.tick(now);
        self.misc_ram.tick(now);
        self.release_reset();
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if self.is_lost() {
            data.fill(0xff);
            return Ok(());
        }
        match usize::try_from(region) {
            Ok(REGISTER_BAR | REGISTER_BAR_ALIAS) => self.read_registers(offset, data),
            Ok(HBM_BAR) => self.read_hbm(offset, data),
            _ if region == CONFIG_REGION => self.pci.read(offset, data),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if self.is_lost() {
            return Ok(());
        }
        match usize::try_from(region) {
            Ok(REGISTER_BAR | REGISTER_BAR_ALIAS) => {
                let result = self.write_registers(offset, data);
                self.work_eagerly();
                self.interrupt();
                result
            }
            Ok(HBM_BAR) => {
                self.write_hbm(offset, data);
                Ok(())
            }
            _ if region == CONFIG_REGION => {
                let before = self.pci.bus_master();
                self.pci.write(offset, data);
                let on = self.pci.bus_master();
                if on != before {
                    self.observers
                        .emit(Scope::Device, EventKind::BusMaster { on });
                }
                if on && !before {
                    self.udma.wake_all();
                }
                // Bus master and function mask hold interrupts back.
                let gate = self.interrupt_gate();
                if let Some(msix) = &mut self.msix {
                    msix.deliver(gate);
                }
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        let DmaMap {
            iova,
            size,
            protection,
            file,
        } = map;
        if let Some((file, offset)) = file {
            let present = self
                .memory
                .guest
                .map_file(iova, size, protection, &file, offset)?;
            if present < size {
                tracing::warn!(
                    "the file behind guest memory {iova:#x}+{size:#x} ends after {present:#x} bytes; DMA to the rest fails"
                );
            }
            self.observers
                .emit(Scope::Device, EventKind::Map { iova, size });
            return Ok(());
        }
        let bar = self.pci.bar_address(HBM_BAR);
        let inside = iova.checked_sub(bar).filter(|offset| {
            bar != 0
                && offset
                    .checked_add(size)
                    .is_some_and(|end| end <= self.config.hbm.bar_size())
        });
        let backing = match inside {
            Some(bar_offset) => Backing::OwnHbm { bar_offset },
            None if protection.write => Backing::Message,
            // ROM: nothing to write, and nothing an engine has to read there.
            None => Backing::Hole,
        };
        self.memory.guest.insert(
            iova,
            Mapping {
                size,
                protection,
                backing,
            },
        )?;
        self.observers
            .emit(Scope::Device, EventKind::Map { iova, size });
        Ok(())
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        let (iova, size) = match unmap {
            DmaUnmap::All => {
                self.memory.guest.clear();
                (0, u64::MAX)
            }
            DmaUnmap::Range { iova, size } => {
                self.memory.guest.remove(iova, size)?;
                (iova, size)
            }
        };
        self.observers
            .emit(Scope::Device, EventKind::Unmap { iova, size });
        self.fail_unmapped(unmap);
        Ok(())
    }

    fn set_irqs(&mut self, irqs: IrqSet) -> Result<(), Errno> {
        match (irqs.index, irqs.action) {
            // QEMU wants to hear of fatal errors. None ends the function while its process lives, so nothing is sent.
            (ERR_IRQ, IrqAction::Eventfds(_)) => Ok(()),
            (msix::INDEX, action) if self.msix.is_some() => {
                let gate = self.interrupt_gate();
                self.msix
                    .as_mut()
                    .map_or(Ok(()), |msix| msix.set(irqs.start, action, gate))
            }
            // Nothing else interrupts: an eventfd would never be signalled.
            (_, IrqAction::Eventfds(fds)) if fds.iter().any(Option::is_some) => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    fn reset(&mut self) {
        self.policies.restore();
        self.power_on();
        // Nobody is left who could answer one of before, so that the next client finds a device like the first one did.
        self.messages = Messages::default();
        self.observers
            .emit(Scope::Device, EventKind::Reset { map: None });
    }

    fn disconnect(&mut self) {
        if let Some(mut parting) = self.parting.take() {
            (parting.0)(self.report(Detail::Dump));
            self.parting = Some(parting);
        }
        self.policies.restore();
        self.power_on();
        if let Some(msix) = &mut self.msix {
            msix.disconnect();
        }
        self.privacy = privacy::Privacy::default();
        self.memory.guest.clear();
        self.memory.clear_device();
        self.observers.emit(Scope::Device, EventKind::Disconnect);
    }

    fn run(&mut self) -> Progress {
        // Without bus mastering nothing may touch memory; work waits for it.
        if self.is_lost() {
            return Progress::Idle;
        }
        if !self.may_access_memory() {
            return self.next_release();
        }
        self.release();
        self.run_mailbox();
        self.counters.slices += u64::from(self.udma.has_work());
        let aborts = self.totals.aborts;
        let progress = self.run_engines();
        if self.totals.aborts != aborts {
            self.suspect_rings();
        }
        progress
    }

    fn masters_bus(&self) -> bool {
        self.may_access_memory()
    }

    fn leaves(&self) -> bool {
        self.policies.loss() == Some(Loss::Disconnected)
    }

    fn last_words(&self) -> String {
        render::dump(&self.report(Detail::Dump))
    }

    fn next_dma(&mut self) -> Option<(u64, DmaRequest)> {
        self.next_message()
    }

    fn wants_dma(&self, id: u64) -> bool {
        self.awaits(id)
    }

    fn dma_reply(&mut self, id: u64, reply: DmaReply) {
        self.complete(id, reply);
    }
}

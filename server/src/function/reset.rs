//! Resets: what each forgets, and when it is acknowledged.
use super::held::Held;
use super::mailbox::Mailbox;
use super::semaphores::Semaphores;
use super::{ConfigSpace, NeuronFunction, firmware};
use crate::observe::event::{EventKind, Scope};

impl NeuronFunction {
    /// Does the work of a reset and says so; what acknowledges it comes after.
    ///
    /// `map` is what [`Generation::reset_covers`] takes; `None` is the whole device. Returns whether to acknowledge.
    ///
    /// [`Generation::reset_covers`]: neuron_protocol::generation::Generation::reset_covers
    pub(super) fn reset_cores(&mut self, map: Option<u64>) -> bool {
        if !self.admit_reset(map) {
            return false;
        }
        let generation = self.generation;
        match map {
            None => {
                self.udma.reset(|_| true);
                self.semaphores = Semaphores::new(generation);
                self.mailbox = Mailbox::default();
                self.held.answer = None;
                self.late.forget(|_, _| true);
                self.notifications.reset();
                self.messages.drop_askers();
            }
            Some(map) => {
                self.udma
                    .reset(|engine| generation.resets_engine(map, engine));
                // The engines of the driver's own copies are shared: of those only the cores' queues (contract §7).
                for core in generation.reset_cores(map) {
                    if let Some((engine, queue)) = generation.h2t_queue(core) {
                        self.udma.reset_queue(engine, queue);
                    }
                }
                self.late
                    .forget(|engine, queue| generation.reset_covers(Some(map), engine, queue));
            }
        }
        self.withdraw_unwanted();
        self.counters.resets += 1;
        self.observers.emit(Scope::Device, EventKind::Reset { map });
        true
    }

    /// Acknowledges a reset once nothing of before can be written any more.
    pub(super) fn finish_reset(&mut self) {
        if self.reset_pending && !self.drains() && self.held.reset.is_none() {
            self.reset_pending = false;
            self.misc_ram.acknowledge_reset();
        }
    }

    /// Power-on state of everything but memory maps and the account.
    pub(super) fn power_on(&mut self) {
        if self.pci.bus_master() {
            let kind = EventKind::BusMaster { on: false };
            self.observers.emit(Scope::Device, kind);
        }
        self.pci = ConfigSpace::new(&self.identity);
        self.udma.reset(|_| true);
        self.misc_ram.reset();
        self.misc_ram.tick(self.now);
        self.settings = firmware::Settings::default();
        self.mailbox = Mailbox::default();
        self.semaphores = Semaphores::new(self.generation);
        self.notifications.reset();
        if let Some(msix) = &mut self.msix {
            msix.reset();
        }
        self.file.reset();
        self.messages.clear();
        self.reset_pending = false;
        self.late.forget(|_, _| true);
        self.held = Held::default();
    }
}

//! MSI-X, for drivers that want interrupts: off by default, and where table and vectors are is this project's choice.
//!
//! No source shows the real part's capability: no public driver uses one (contract §1). Here each engine has the vector of
//! its number, and table and PBA lie in the last 64 KiB of the register BAR, where no block of any generation is.
//!
//! As in vfio, delivery is by eventfd and masking by `SET_IRQS` and the capability's function mask. The table in the BAR is
//! the client's: QEMU keeps it to itself and attaches or detaches eventfds as the guest masks, so that what another client
//! writes into it is kept but decides nothing.
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::vfio::{Irq, IrqAction};

/// vfio interrupt index of MSI-X (`VFIO_PCI_MSIX_IRQ_INDEX`).
pub const INDEX: u32 = 2;

/// Bytes at the end of the register BAR that table and PBA have to themselves.
pub const WINDOW: u64 = 0x1_0000;
/// The PBA's offset in there; the table is at 0.
pub const PBA: u64 = 0x8000;
/// Bytes of a table entry: address, upper address, data, control.
const ENTRY: u64 = 16;
/// Control word of an entry after a reset: masked.
const MASKED: u32 = 1;

/// What became of interrupts since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Eventfds written.
    pub sent: u64,
    /// Raised while MSI-X was off, or through an eventfd that takes no more: nobody will ever hear of them.
    pub lost: u64,
}

/// What of PCI configuration decides over delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The capability's enable bit.
    pub enabled: bool,
    /// The capability's function mask bit.
    pub masked: bool,
    /// An interrupt is a write to memory.
    pub bus_master: bool,
}

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<OwnedFd>,
    masked: bool,
    pending: bool,
}

/// The vectors of a function.
#[derive(Debug)]
pub struct Msix {
    vectors: Vec<Vector>,
    table: Vec<u32>,
    /// First byte of the window in the register BAR.
    window: u64,
    /// See [`Counters`].
    pub counters: Counters,
}

impl Msix {
    /// One vector for each engine of a function with a register BAR of `bar` bytes.
    pub fn new(engines: u8, bar: u64) -> Self {
        let vectors = usize::from(engines);
        Self {
            vectors: (0..vectors).map(|_| Vector::default()).collect(),
            table: [0, 0, 0, MASKED].repeat(vectors),
            window: bar.saturating_sub(WINDOW),
            counters: Counters::default(),
        }
    }

    /// What the client is told of the interrupt index.
    pub fn irq(&self) -> Irq {
        Irq {
            count: u32::try_from(self.vectors.len()).unwrap_or(0),
            eventfd: true,
            maskable: true,
            noresize: false,
        }
    }

    /// Reads a word of table or PBA; `None` outside of the window.
    pub fn read(&self, offset: u64) -> Option<u32> {
        let at = offset.checked_sub(self.window)?;
        let Some(word) = at.checked_sub(PBA) else {
            return Some(self.table_word(at).map_or(0, |at| self.table[at]));
        };
        let first = usize::try_from(word / 4).ok()?.checked_mul(32)?;
        let pending = self.vectors.iter().skip(first).take(32).zip(0u32..);
        Some(pending.fold(0, |word, (vector, bit)| {
            word | u32::from(vector.pending) << bit
        }))
    }

    /// Writes a word of the table; `false` outside of the window. The PBA is read-only.
    pub fn write(&mut self, offset: u64, value: u32) -> bool {
        let Some(at) = offset.checked_sub(self.window) else {
            return false;
        };
        if let Some(at) = self.table_word(at) {
            self.table[at] = value;
        }
        true
    }

    fn table_word(&self, at: u64) -> Option<usize> {
        (at < ENTRY * self.vectors.len() as u64)
            .then(|| usize::try_from(at / 4).ok())
            .flatten()
    }

    /// A `SET_IRQS` on the index, from vector `start` on.
    ///
    /// # Errors
    /// A vector that does not exist, which the wire has checked already, or what is no eventfd.
    pub fn set(&mut self, start: u32, action: IrqAction, gate: Gate) -> Result<(), Errno> {
        let start = usize::try_from(start).map_err(|_| Errno::INVAL)?;
        let vectors = self.vectors.get_mut(start..).ok_or(Errno::INVAL)?;
        match action {
            IrqAction::Eventfds(fds) if fds.is_empty() => {
                self.vectors.fill_with(Vector::default);
                return Ok(());
            }
            IrqAction::Eventfds(fds) => {
                fds.iter().flatten().try_for_each(prepare)?;
                for (vector, fd) in vectors.iter_mut().zip(fds) {
                    vector.eventfd = fd;
                }
            }
            IrqAction::Mask(which) => {
                for (vector, chosen) in vectors.iter_mut().zip(which) {
                    vector.masked |= chosen;
                }
            }
            IrqAction::Unmask(which) => {
                for (vector, chosen) in vectors.iter_mut().zip(which) {
                    vector.masked &= !chosen;
                }
            }
            IrqAction::Trigger(which) => {
                for (vector, chosen) in vectors.iter_mut().zip(which) {
                    vector.pending |= chosen;
                }
            }
        }
        self.deliver(gate);
        Ok(())
    }

    /// An engine wants to interrupt.
    pub fn raise(&mut self, engine: u8, gate: Gate) {
        let Some(vector) = self.vectors.get_mut(usize::from(engine)) else {
            return;
        };
        if !gate.enabled && vector.eventfd.is_none() {
            if self.counters.lost == 0 {
                tracing::info!(
                    engine,
                    "an engine interrupts, but the guest has not enabled MSI-X: lost, as further ones are"
                );
            }
            self.counters.lost += 1;
            return;
        }
        vector.pending = true;
        self.deliver(gate);
    }

    /// Sends what is pending and may be sent.
    pub fn deliver(&mut self, gate: Gate) {
        if gate.enabled && gate.masked || !gate.bus_master {
            return;
        }
        for (number, vector) in self.vectors.iter_mut().enumerate() {
            let Some(eventfd) = vector
                .eventfd
                .as_ref()
                .filter(|_| vector.pending && !vector.masked)
            else {
                continue;
            };
            vector.pending = false;
            match signal(eventfd) {
                Ok(()) => self.counters.sent += 1,
                Err(error) => {
                    self.counters.lost += 1;
                    tracing::warn!(
                        number,
                        "the eventfd of an interrupt vector cannot be written: {error}"
                    );
                }
            }
        }
    }

    /// Power-on state but for the eventfds, which a `DEVICE_RESET` leaves as vfio does.
    pub fn reset(&mut self) {
        for vector in &mut self.vectors {
            vector.pending = false;
            vector.masked = false;
        }
        self.table = [0, 0, 0, MASKED].repeat(self.vectors.len());
    }

    /// The client is gone, and its eventfds with it.
    pub fn disconnect(&mut self) {
        self.vectors.fill_with(Vector::default);
    }

    /// Vectors that wait to be sent.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.vectors.iter().filter(|vector| vector.pending).count()
    }
}

/// Makes sure that [`signal`] never blocks the device's thread: neither by an eventfd that the client has filled up, nor
/// by a file of a file system that the client serves.
fn prepare(fd: &OwnedFd) -> Result<(), Errno> {
    // Eventfds and their like have no file type, and all of them heed the flag.
    let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    if kind != FileType::Unknown {
        return Err(Errno::INVAL);
    }
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

/// Adds one to an eventfd.
fn signal(eventfd: &OwnedFd) -> Result<(), Errno> {
    rustix::io::write(eventfd, &1u64.to_ne_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::Product;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const OPEN: Gate = Gate {
        enabled: true,
        masked: false,
        bus_master: true,
    };
    const BAR: u64 = 1 << 32;

    fn pair() -> (OwnedFd, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        (fd.try_clone().unwrap(), fd)
    }

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(fd, &mut bytes) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }

    fn attached(vector: u32) -> (Msix, OwnedFd) {
        let mut msix = Msix::new(132, BAR);
        let (ours, theirs) = pair();
        msix.set(vector, IrqAction::Eventfds(vec![Some(ours)]), OPEN)
            .unwrap();
        (msix, theirs)
    }

    fn pba(msix: &Msix, vector: u64) -> bool {
        let word = msix.read(BAR - WINDOW + PBA + vector / 32 * 4).unwrap();
        word >> (vector % 32) & 1 != 0
    }

    /// The window is free on every generation: neither a block nor what a DMA engine takes for one is there.
    #[test]
    fn no_block_of_any_generation_is_in_the_window() {
        for product in Product::ALL {
            let generation = product.generation();
            let bar = generation.register_bar_size;
            assert!(u64::from(generation.engines) * ENTRY <= PBA);
            for offset in (bar - WINDOW..bar).step_by(4) {
                assert_eq!(generation.decode(offset), None, "{product} {offset:#x}");
            }
        }
    }

    #[test]
    fn a_full_eventfd_blocks_nobody_and_what_is_none_is_refused() {
        let mut msix = Msix::new(132, BAR);
        // Blocking, and as full as it can be.
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        msix.set(2, IrqAction::Eventfds(vec![Some(fd)]), OPEN)
            .unwrap();
        msix.raise(2, OPEN);
        assert_eq!((msix.counters.sent, msix.counters.lost), (0, 1));
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let file = rustix::fs::memfd_create("no-eventfd", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for other in [reader, writer, file] {
            let refused = msix.set(3, IrqAction::Eventfds(vec![Some(other)]), OPEN);
            assert_eq!(refused, Err(Errno::INVAL));
        }
    }

    #[test]
    fn a_masked_vector_is_pending_and_comes_when_it_is_unmasked() {
        let (mut msix, fd) = attached(40);
        msix.raise(40, OPEN);
        assert_eq!((count(&fd), pba(&msix, 40)), (1, false));
        msix.set(40, IrqAction::Mask(vec![true]), OPEN).unwrap();
        msix.raise(40, OPEN);
        msix.raise(40, OPEN);
        assert_eq!(
            (count(&fd), pba(&msix, 40), pba(&msix, 41)),
            (0, true, false)
        );
        msix.set(39, IrqAction::Unmask(vec![true, true]), OPEN)
            .unwrap();
        assert_eq!((count(&fd), pba(&msix, 40)), (1, false));
    }

    #[test]
    fn the_function_mask_and_a_lost_bus_hold_interrupts_back() {
        let (mut msix, fd) = attached(3);
        let masked = Gate {
            masked: true,
            ..OPEN
        };
        let off_the_bus = Gate {
            bus_master: false,
            ..OPEN
        };
        for gate in [masked, off_the_bus] {
            msix.raise(3, gate);
            assert_eq!((count(&fd), pba(&msix, 3)), (0, true), "{gate:?}");
            msix.deliver(OPEN);
            assert_eq!((count(&fd), pba(&msix, 3)), (1, false));
        }
    }

    #[test]
    fn without_eventfd_an_interrupt_waits_or_without_msix_is_lost() {
        let mut msix = Msix::new(132, BAR);
        let off = Gate {
            enabled: false,
            ..OPEN
        };
        msix.raise(5, off);
        assert_eq!((msix.counters.lost, msix.pending()), (1, 0));
        msix.raise(5, OPEN);
        assert_eq!((msix.counters.lost, msix.pending()), (1, 1));
        let (ours, fd) = pair();
        msix.set(5, IrqAction::Eventfds(vec![Some(ours)]), OPEN)
            .unwrap();
        assert_eq!((count(&fd), msix.pending()), (1, 0));
    }

    #[test]
    fn a_trigger_by_the_client_signals_and_disabling_drops_everything() {
        let (mut msix, fd) = attached(7);
        msix.set(6, IrqAction::Trigger(vec![false, true]), OPEN)
            .unwrap();
        assert_eq!(count(&fd), 1);
        msix.set(7, IrqAction::Mask(vec![true]), OPEN).unwrap();
        msix.raise(7, OPEN);
        msix.set(0, IrqAction::Eventfds(Vec::new()), OPEN).unwrap();
        assert_eq!((msix.pending(), count(&fd)), (0, 0));
    }

    /// An eventfd that is full, and a pipe in its place: the thread goes on at once.
    #[test]
    fn the_table_keeps_what_is_written_and_the_pba_does_not() {
        let mut msix = Msix::new(34, 0x4000_0000);
        let base = 0x4000_0000 - WINDOW;
        assert_eq!(msix.read(base + 12), Some(MASKED));
        assert!(msix.write(base + 33 * ENTRY, 0xfee0_0000));
        assert_eq!(msix.read(base + 33 * ENTRY), Some(0xfee0_0000));
        assert!(msix.write(base + 34 * ENTRY, 1));
        assert_eq!(msix.read(base + 34 * ENTRY), Some(0));
        assert!(msix.write(base + PBA, 1));
        assert_eq!(msix.read(base + PBA), Some(0));
        assert_eq!(msix.read(base - 4), None);
        assert!(!msix.write(base - 4, 1));
        msix.reset();
        assert_eq!(msix.read(base + 33 * ENTRY), Some(0));
    }
}

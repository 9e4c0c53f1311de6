//! The driver's half of the cycle: stage, trigger, poll, ack (seed §2 to §6).
//!
//! Generic over register access, host memory and time, so that the same code drives a running
//! device over a socket, a device in a test, and a simulation that steps both sides:
//!
//! * [`QueuePair`] is one queue: its two rings, its registers, doorbells and acks. Rings whose
//!   descriptors the caller makes (several per packet, unequal counts) need nothing more.
//! * [`CopyQueue`] is the kernel's host-to-device queue on top of it: batches with a marker,
//!   synchronous, asynchronous and filling copies.
//! * [`SoftwarePoll`] is the user runtime's wait, which reaches its marker only by copies.
//! * [`init_engine`] readies a device that no driver has touched.
//!
//! ```text
//!  stage    tx and rx descriptor per chunk, then one pair that copies the marker
//!  trigger  barrier, rx doorbell, barrier, tx doorbell
//!  poll     first wait, then one look per microsecond at the marker's destination
//!  ack      re-arm the marker, give the slots back: rx, then tx
//! ```
//!
//! A copy on a fresh device, from host memory into its own:
//!
//! ```
//! use neuron_protocol::cycle::{
//!     CopyQueue, Delay, Device, ErrorOf, HostMemory, QueuePair, Registers, Settings, init_engine,
//! };
//! use neuron_protocol::generation::Platform;
//! use neuron_protocol::ring::RingSize;
//!
//! fn copy_4k<R: Registers, M: HostMemory, D: Delay>(
//!     device: &mut Device<R, M, D>,
//! ) -> Result<(), ErrorOf<R, M>> {
//!     let (engine, queue) = device.generation.h2t_queue(0).unwrap_or_default();
//!     init_engine(device, engine)?;
//!     let rings = QueuePair::new(device, engine, queue, RingSize::new(8192)?, 0x10_0000, 0x20_0000)?;
//!     let settings = Settings::new(device.generation, Platform::Silicon);
//!     let mut copies = CopyQueue::new(device, rings, 0x30_0000, settings)?;
//!     copies.init(device)?;
//!     let source = device.host_to_device(0x40_0000)?;
//!     copies.copy(device, source, device.generation.hbm.soc_bases[0], 4096)
//! }
//! ```

mod batch;
mod copy;
mod engine;
mod queue;
mod software;

pub use batch::{Batch, Transfer};
pub use copy::{CopyQueue, Pending, Settings};
pub use engine::init_engine;
pub use queue::{QueueLocation, QueuePair};
pub use software::{CopyBuffer, SoftwarePoll, SoftwarePollError};

use core::ops::ControlFlow;

use thiserror::Error;

use crate::budget::BudgetError;
use crate::generation::Generation;
use crate::registers::Direction;
use crate::ring::RingError;

/// Access to the register BAR.
pub trait Registers {
    /// Why an access failed.
    type Error;

    /// Reads the register at `offset` of the register BAR.
    ///
    /// # Errors
    /// The access did not reach the device.
    fn read32(&mut self, offset: u32) -> Result<u32, Self::Error>;

    /// Writes it. Accesses reach the device in program order.
    ///
    /// # Errors
    /// The access did not reach the device.
    fn write32(&mut self, offset: u32, value: u32) -> Result<(), Self::Error>;
}

/// Access to host memory, shared with the device. Addresses are guest-physical, without the bits
/// that mark host memory for the device.
pub trait HostMemory {
    /// Why an access failed.
    type Error;

    /// Fills `bytes` from memory at `address`.
    ///
    /// # Errors
    /// Not all of it is memory.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes `bytes` to memory at `address`; they need not be visible before
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    /// Not all of it is memory.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Loads an aligned little-endian word in one access that later reads cannot overtake: what
    /// the device wrote before this word is seen after it (`READ_ONCE`, seed §4).
    ///
    /// # Errors
    /// It is not memory.
    fn load_word(&mut self, address: u64) -> Result<u32, Self::Error>;

    /// Stores an aligned little-endian word in one access (`WRITE_ONCE`, seed §2).
    ///
    /// # Errors
    /// It is not memory.
    fn store_word(&mut self, address: u64, word: u32) -> Result<(), Self::Error>;

    /// Full barrier: all writes so far are visible to the device before any register write that
    /// follows (`mb()`, seed §3).
    fn publish(&mut self);
}

/// Passing time.
pub trait Delay {
    /// Lets `microseconds` pass, or longer. [`ControlFlow::Break`] ends the wait at once: for a
    /// caller's own time limit, since budgets reach hours on an emulator.
    fn delay(&mut self, microseconds: u64) -> ControlFlow<()>;
}

impl<T: Registers + ?Sized> Registers for &mut T {
    type Error = T::Error;

    fn read32(&mut self, offset: u32) -> Result<u32, Self::Error> {
        (**self).read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) -> Result<(), Self::Error> {
        (**self).write32(offset, value)
    }
}

impl<T: HostMemory + ?Sized> HostMemory for &mut T {
    type Error = T::Error;

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Self::Error> {
        (**self).read(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        (**self).write(address, bytes)
    }

    fn load_word(&mut self, address: u64) -> Result<u32, Self::Error> {
        (**self).load_word(address)
    }

    fn store_word(&mut self, address: u64, word: u32) -> Result<(), Self::Error> {
        (**self).store_word(address, word)
    }

    fn publish(&mut self) {
        (**self).publish();
    }
}

impl<T: Delay + ?Sized> Delay for &mut T {
    fn delay(&mut self, microseconds: u64) -> ControlFlow<()> {
        (**self).delay(microseconds)
    }
}

/// One device as its driver reaches it.
#[derive(Debug)]
pub struct Device<R, M, D> {
    /// The register BAR.
    pub registers: R,
    /// Memory that both sides see.
    pub memory: M,
    /// Time.
    pub delay: D,
    /// What the device is: where its engines are, and how host addresses are told apart.
    pub generation: &'static Generation,
}

impl<R: Registers, M: HostMemory, D> Device<R, M, D> {
    /// The address the device knows host memory at `address` by.
    ///
    /// # Errors
    /// [`CycleError::HostAddress`].
    pub fn host_to_device(&self, address: u64) -> Result<u64, ErrorOf<R, M>> {
        self.generation
            .host_to_soc(address)
            .ok_or(CycleError::HostAddress(address))
    }

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), ErrorOf<R, M>> {
        self.registers
            .write32(offset, value)
            .map_err(CycleError::Register)
    }

    fn read_register(&mut self, offset: u32) -> Result<u32, ErrorOf<R, M>> {
        self.registers.read32(offset).map_err(CycleError::Register)
    }
}

/// The error of a cycle over these registers and this memory.
pub type ErrorOf<R, M> = CycleError<<R as Registers>::Error, <M as HostMemory>::Error>;

/// Why a step of the cycle failed. Nothing here panics: where the driver has a BUG there is an
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CycleError<R, M> {
    /// A register access failed.
    #[error("register access failed: {0}")]
    Register(R),
    /// Ring, marker or buffer memory could not be reached.
    #[error("host memory access failed: {0}")]
    Memory(M),
    /// A ring cannot be made or used like this.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// No wait exists for a batch like this.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// No such engine or queue.
    #[error("{generation} has no engine {engine} queue {queue}")]
    NoSuchQueue {
        /// Name of the generation.
        generation: &'static str,
        /// Engine asked for.
        engine: u8,
        /// Queue asked for.
        queue: u8,
    },
    /// Host memory the device has no address for.
    #[error("host address {0:#x} is beyond what the device can address")]
    HostAddress(u64),
    /// A completion buffer the device cannot write words to.
    #[error(
        "completion buffer at {0:#x}: must be 4-byte aligned host memory that the device can address"
    )]
    Completion(u64),
    /// A chunk that is not 1..=65,536 bytes.
    #[error("a descriptor cannot move {0} bytes: 1..=65536")]
    Length(u64),
    /// A copy of nothing. (The driver would copy 64 KiB: its length field is 0, contract §8.1.)
    #[error("a copy of 0 bytes")]
    Empty,
    /// Source or destination passes the end of the address space.
    #[error("{length} bytes at {address:#x} pass the end of the address space")]
    Range {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// A doorbell of 0 or of more descriptors than the ring has (seed §3).
    #[error("{direction} doorbell of {count} descriptors: must be 1..={size}")]
    Doorbell {
        /// Ring.
        direction: Direction,
        /// Value asked for.
        count: u32,
        /// Ring length.
        size: u32,
    },
    /// An asynchronous copy larger than one batch (seed §6, facts §4.3).
    #[error("an asynchronous copy of {length} bytes: at most {limit}, one batch")]
    TooLargeForAsync {
        /// Bytes asked for.
        length: u64,
        /// Most there can be.
        limit: u64,
    },
    /// The marker slot is still in use by a batch that nobody waited for.
    #[error("the marker slot of this copy still belongs to an earlier one: wait for that first")]
    ContextBusy,
    /// A batch staged before the queue was initialised again.
    #[error("this batch was dropped when its queue was initialised again")]
    Stale,
    /// An earlier failure left the rings in an unknown state.
    #[error("an earlier copy on this queue failed half-way: initialise the queue again")]
    NeedsInit,
    /// The marker did not come.
    #[error(
        "no completion marker after {waited} us for a batch of {count} descriptors (poll word {found:#010x}): \
         the device did not run the batch to its end; look at the queue's head, tail and error state"
    )]
    Timeout {
        /// Descriptors in the batch, its marker included.
        count: u32,
        /// Nominal time waited, in microseconds.
        waited: u64,
        /// What the poll word held instead.
        found: u32,
    },
    /// The caller's [`Delay`] ended the wait.
    #[error(
        "wait for a batch of {count} descriptors given up after {waited} us, before its budget"
    )]
    Stopped {
        /// Descriptors in the batch, its marker included.
        count: u32,
        /// Nominal time waited, in microseconds.
        waited: u64,
    },
}

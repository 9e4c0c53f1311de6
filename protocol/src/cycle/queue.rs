//! One queue of an engine: two rings, their registers, doorbells and acks.

use zerocopy::IntoBytes;

use super::{CycleError, Device, ErrorOf, HostMemory, Registers};
use crate::descriptor::{
    Barrier, DESCRIPTOR_SIZE, MAX_DESCRIPTOR_LENGTH, RxDescriptor, TxDescriptor,
};
use crate::generation::{Block, Generation, QUEUES_PER_ENGINE};
use crate::registers::{Direction, engine, queue};
use crate::ring::{DriverRing, RingError, RingId, RingSize};

/// `cfg` of a queue while its base and length change (contract §5.4).
const PAUSED: queue::Cfg = queue::Cfg::RESET;

/// `cfg` of a running queue (contract §5.4: 0x03030000).
const RUNNING: queue::Cfg = queue::Cfg::RESET.with_prefetch(true).with_schedule(true);

/// `rlimit.mask` with bit 2 clear, so that a DMB pauses the queue (contract §5.4, facts §3.2).
const RLIMIT_DMB_ENABLED: u32 = 3;

/// Where a queue's registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLocation {
    engine_base: u32,
    queue: u8,
}

impl QueueLocation {
    /// Queue `queue` of engine `engine`; `None` where the generation has none.
    pub fn new(generation: &Generation, engine: u8, queue: u8) -> Option<Self> {
        let engine_base = generation.block_base(Block::Udma, engine)?;
        (queue < QUEUES_PER_ENGINE).then_some(Self { engine_base, queue })
    }

    /// Queue number in its engine.
    pub const fn queue(self) -> u8 {
        self.queue
    }

    /// Register-BAR offset of a register of this queue.
    pub const fn register(self, direction: Direction, register: u32) -> u32 {
        self.engine_base + engine::queue_register(direction, self.queue, register)
    }
}

#[derive(Debug)]
struct Ring {
    cursors: DriverRing,
    base: u64,
    device_base: u64,
}

/// A queue with both its rings in host memory.
#[derive(Debug)]
pub struct QueuePair {
    location: QueueLocation,
    size: RingSize,
    tx: Ring,
    rx: Ring,
}

impl QueuePair {
    /// Rings of `size` descriptors in host memory at `tx_base` and `rx_base`, for a queue that
    /// [`init`](Self::init) is still to be called for.
    ///
    /// # Errors
    /// A queue, size or base the hardware cannot take; `size` must be a power of two.
    pub fn new<R: Registers, M: HostMemory, D>(
        device: &Device<R, M, D>,
        engine: u8,
        queue: u8,
        size: RingSize,
        tx_base: u64,
        rx_base: u64,
    ) -> Result<Self, ErrorOf<R, M>> {
        let location = QueueLocation::new(device.generation, engine, queue).ok_or(
            CycleError::NoSuchQueue {
                generation: device.generation.name,
                engine,
                queue,
            },
        )?;
        let ring = |base: u64| {
            size.check_base(base)?;
            device.host_to_device(base + size.bytes() - 1)?;
            Ok::<_, ErrorOf<R, M>>(Ring {
                cursors: DriverRing::new(size)?,
                base,
                device_base: device.host_to_device(base)?,
            })
        };
        Ok(Self {
            location,
            size,
            tx: ring(tx_base)?,
            rx: ring(rx_base)?,
        })
    }

    /// Where its registers are.
    pub const fn location(&self) -> QueueLocation {
        self.location
    }

    /// Length of each ring.
    pub const fn size(&self) -> RingSize {
        self.size
    }

    /// Cursors of one ring.
    pub const fn ring(&self, direction: Direction) -> &DriverRing {
        match direction {
            Direction::M2s => &self.tx.cursors,
            Direction::S2m => &self.rx.cursors,
        }
    }

    /// Resets the queue and programs its rings: 15 writes, m2s before s2m (contract §5.4).
    ///
    /// Both rings are empty afterwards, whatever was pending; descriptors still in ring memory
    /// are stale and the device must not run them.
    ///
    /// # Errors
    /// [`CycleError::Register`]; call it again.
    pub fn init<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
    ) -> Result<(), ErrorOf<R, M>> {
        let limiter = self.location.register(Direction::M2s, queue::RLIMIT_MASK);
        device.write_register(limiter, RLIMIT_DMB_ENABLED)?;
        for direction in Direction::BOTH {
            let size = self.size;
            let location = self.location;
            let ring = self.half_mut(direction);
            let [low, high] = words(ring.device_base);
            for (register, value) in [
                (queue::CFG, PAUSED.into_bits()),
                (
                    queue::sw_ctrl(direction),
                    queue::SwCtrl::new().with_reset_queue(true).into_bits(),
                ),
                (queue::DRBP_LOW, low),
                (queue::DRBP_HIGH, high),
                (queue::DRL, size.descriptors()),
                (queue::comp_cfg(direction), 0),
                (queue::CFG, RUNNING.into_bits()),
            ] {
                device.write_register(location.register(direction, register), value)?;
            }
            ring.cursors = DriverRing::new(size)?;
        }
        Ok(())
    }

    /// Free slots of the fuller ring: pairs that can be staged now.
    pub fn available(&self) -> u32 {
        self.tx
            .cursors
            .cursors()
            .available()
            .min(self.rx.cursors.cursors().available())
    }

    /// Stages one tx and one rx descriptor that copy `length` bytes (1..=65,536) between
    /// device-side addresses (seed §2 `ndma_memcpy64k`).
    ///
    /// # Errors
    /// [`RingError::Full`] and [`CycleError::Length`] before anything moved;
    /// [`CycleError::Memory`] when a slot was taken that now holds a stale descriptor.
    pub fn stage<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
        source: u64,
        destination: u64,
        length: u32,
        barrier: Barrier,
    ) -> Result<(), ErrorOf<R, M>> {
        if length == 0 || length > MAX_DESCRIPTOR_LENGTH {
            return Err(CycleError::Length(length.into()));
        }
        // Both rings are asked before either moves: half a pair would put them out of step.
        if self.available() == 0 {
            return Err(RingError::Full.into());
        }
        self.push_rx(device, |id| {
            RxDescriptor::new(destination, length, id, barrier)
        })?;
        self.push_tx(device, |id| TxDescriptor::copy(source, length, id, barrier))
    }

    /// Writes one tx descriptor made for the phase of its slot. For packets of several.
    ///
    /// # Errors
    /// [`RingError::Full`]; [`CycleError::Length`] if `make` refuses, with the slot taken.
    pub fn push_tx<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
        make: impl FnOnce(RingId) -> Option<TxDescriptor>,
    ) -> Result<(), ErrorOf<R, M>> {
        push(&mut self.tx, device, make)
    }

    /// Writes one rx descriptor made for the phase of its slot.
    ///
    /// # Errors
    /// As [`push_tx`](Self::push_tx).
    pub fn push_rx<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
        make: impl FnOnce(RingId) -> Option<RxDescriptor>,
    ) -> Result<(), ErrorOf<R, M>> {
        push(&mut self.rx, device, make)
    }

    /// Rings both doorbells, rx first; with `tx_count` 0 only the rx one, which arms the
    /// destination ahead of a later launch (seed §3 `udma_m2m_copy_start`).
    ///
    /// # Errors
    /// [`CycleError::Doorbell`] for a count no ring takes, before any write; an `rx_count` of 0
    /// is one (a BUG in the driver, contract §5.5).
    pub fn trigger<R: Registers, M: HostMemory, D>(
        &self,
        device: &mut Device<R, M, D>,
        tx_count: u32,
        rx_count: u32,
    ) -> Result<(), ErrorOf<R, M>> {
        let size = self.size.descriptors();
        let check = |direction, count, least| {
            if (least..=size).contains(&count) {
                Ok(())
            } else {
                Err(CycleError::Doorbell {
                    direction,
                    count,
                    size,
                })
            }
        };
        check(Direction::M2s, tx_count, 0)?;
        check(Direction::S2m, rx_count, 1)?;
        self.doorbell(device, Direction::S2m, rx_count)?;
        if tx_count > 0 {
            self.doorbell(device, Direction::M2s, tx_count)?;
        }
        Ok(())
    }

    /// Gives finished descriptors back: rx ring first, then tx ring, by the same count (seed §5).
    ///
    /// # Errors
    /// [`RingError::AckBeyondProducer`]; if only the tx ring has fewer, the rx ring has moved.
    pub fn ack(&self, count: u32) -> Result<(), RingError> {
        self.rx.cursors.cursors().ack(count)?;
        self.tx.cursors.cursors().ack(count)
    }

    fn doorbell<R: Registers, M: HostMemory, D>(
        &self,
        device: &mut Device<R, M, D>,
        direction: Direction,
        count: u32,
    ) -> Result<(), ErrorOf<R, M>> {
        // The hinge of the cycle: descriptors are visible before the device is told (seed §3).
        device.memory.publish();
        device.write_register(self.location.register(direction, queue::DRTP_INC), count)
    }

    fn half_mut(&mut self, direction: Direction) -> &mut Ring {
        match direction {
            Direction::M2s => &mut self.tx,
            Direction::S2m => &mut self.rx,
        }
    }
}

fn push<R: Registers, M: HostMemory, D, T: IntoBytes + zerocopy::Immutable>(
    ring: &mut Ring,
    device: &mut Device<R, M, D>,
    make: impl FnOnce(RingId) -> Option<T>,
) -> Result<(), ErrorOf<R, M>> {
    let slot = ring.cursors.take()?;
    let descriptor = make(slot.ring_id).ok_or(CycleError::Length(0))?;
    let address = ring.base + u64::from(slot.index) * DESCRIPTOR_SIZE as u64;
    device
        .memory
        .write(address, descriptor.as_bytes())
        .map_err(CycleError::Memory)
}

/// Low and high word.
fn words(address: u64) -> [u32; 2] {
    let halves: [[u8; 4]; 2] = zerocopy::transmute!(address.to_le_bytes());
    halves.map(u32::from_le_bytes)
}

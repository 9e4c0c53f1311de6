//! A device in this process, with guest RAM and a driver's reach into both.
#![allow(dead_code, reason = "each test binary uses a part")]
use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use neuron_protocol::cycle::{
    CopyQueue, Delay, Device, HostMemory, QueueLocation, QueuePair, Registers, Settings,
};
use neuron_protocol::generation::{Block, Generation, Platform, Product};
use neuron_protocol::registers::{Direction, misc_ram};
use neuron_protocol::ring::RingSize;
use neuron_vfio_user::function::{Config, Firmware, NeuronFunction};
use neuron_vfio_user::observe::event::{Event, EventKind, Observer};
use neuron_vfio_user::vfio::{DmaMap, DmaRequest, PciFunction, Progress, Protection};
use rustix::fs::MemfdFlags;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

pub const RAM_BASE: u64 = 0x10_0000;
pub const RAM_SIZE: u64 = 64 << 20;
pub const RW: Protection = Protection {
    read: true,
    write: true,
};

/// Keeps every event.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<EventKind>>>);

impl Observer for Log {
    fn event(&mut self, event: &Event) {
        self.0.lock().unwrap().push(event.kind);
    }
}

impl Log {
    pub fn take(&self) -> Vec<EventKind> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub struct Rig {
    pub function: NeuronFunction,
    pub generation: &'static Generation,
    pub log: Log,
    ram: MmapRegion,
    /// Guest RAM is reached by messages, which this client answers at once.
    by_message: bool,
}

/// Everything a driver needs, three times the same rig.
pub type Driver = Device<Shared, Shared, Shared>;

#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Rig>>);

pub fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest-ram", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

impl Rig {
    /// A device that may master the bus, with RAM mapped.
    pub fn new(product: Product, platform: Platform) -> Self {
        Self::build(product, platform, Firmware::default(), false, None)
    }

    /// The same with one more observer, which sees everything from power-on.
    pub fn watched(product: Product, platform: Platform, observer: Box<dyn Observer>) -> Self {
        Self::seen_by(product, platform, vec![Box::new(Log::default()), observer])
    }

    /// The same with these observers alone: for measurements.
    pub fn seen_by(
        product: Product,
        platform: Platform,
        observers: Vec<Box<dyn Observer>>,
    ) -> Self {
        let firmware = Firmware::default();
        Self::build(product, platform, firmware, false, Some(observers))
    }

    /// The same with RAM behind messages.
    pub fn by_message(product: Product, platform: Platform) -> Self {
        Self::build(product, platform, Firmware::default(), true, None)
    }

    /// One with firmware that says something, RAM mapped or behind messages.
    pub fn with_firmware(
        product: Product,
        platform: Platform,
        firmware: Firmware,
        by_message: bool,
    ) -> Self {
        Self::build(product, platform, firmware, by_message, None)
    }

    fn build(
        product: Product,
        platform: Platform,
        firmware: Firmware,
        by_message: bool,
        observers: Option<Vec<Box<dyn Observer>>>,
    ) -> Self {
        let generation = product.generation();
        let config = Config {
            firmware,
            ..Config::new(product, platform)
        };
        let mut function = NeuronFunction::new(config).unwrap();
        let log = Log::default();
        for observer in observers.unwrap_or_else(|| vec![Box::new(log.clone())]) {
            function.observers_mut().add(observer);
        }
        let fd = memfd(RAM_SIZE);
        let file = FileOffset::new(fd.try_clone().unwrap().into(), 0);
        let ram = MmapRegion::from_file(file, usize::try_from(RAM_SIZE).unwrap()).unwrap();
        let file = (!by_message).then_some((fd, 0));
        function
            .dma_map(DmaMap {
                iova: RAM_BASE,
                size: RAM_SIZE,
                protection: RW,
                file,
            })
            .unwrap();
        function.region_write(7, 4, &6u16.to_le_bytes()).unwrap();
        Self {
            function,
            generation,
            log,
            ram,
            by_message,
        }
    }

    pub fn ram(&self, address: u64, len: usize) -> VolatileSlice<'_> {
        self.ram
            .get_slice(usize::try_from(address - RAM_BASE).unwrap(), len)
            .unwrap()
    }

    pub fn fill(&self, address: u64, bytes: &[u8]) {
        self.ram(address, bytes.len())
            .write_slice(bytes, 0)
            .unwrap();
    }

    pub fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram(address, len).read_slice(&mut bytes, 0).unwrap();
        bytes
    }

    /// The file behind guest RAM.
    pub fn file(&self) -> &std::fs::File {
        self.ram.file_offset().unwrap().file()
    }

    /// Cuts guest RAM short, as a client can at any time. From then on only what is below may be looked at.
    pub fn truncate(&self, end: u64) {
        let file = self.ram.file_offset().unwrap().file();
        file.set_len(end - RAM_BASE).unwrap();
    }

    pub fn host(&self, address: u64) -> u64 {
        self.generation.host_to_soc(address).unwrap()
    }

    pub fn read(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.function
            .region_read(0, u64::from(offset), &mut bytes)
            .unwrap();
        u32::from_le_bytes(bytes)
    }

    pub fn write(&mut self, offset: u32, value: u32) {
        self.function
            .region_write(0, u64::from(offset), &value.to_le_bytes())
            .unwrap();
    }

    /// Asks firmware: the request is at `from`, the response goes to `to`, both in guest memory (contract §4.1).
    pub fn ask_firmware(&mut self, from: u64, to: u64) {
        let (from, to) = (self.host(from), self.host(to));
        for (register, value) in [
            (misc_ram::REQUEST_LOW, from),
            (misc_ram::REQUEST_HIGH, from >> 32),
            (misc_ram::RESPONSE_LOW, to),
            (misc_ram::RESPONSE_HIGH, to >> 32),
            (misc_ram::TRIGGER, 1),
        ] {
            let word = u32::try_from(value & 0xffff_ffff).unwrap();
            self.write(self.generation.misc_ram + register, word);
        }
    }

    pub fn register(&self, engine: u8, queue: u8, direction: Direction, register: u32) -> u32 {
        QueueLocation::new(self.generation, engine, queue)
            .unwrap()
            .register(direction, register)
    }

    pub fn engine(&self, engine: u8, register: u32) -> u32 {
        self.generation.block_base(Block::Udma, engine).unwrap() + register
    }

    /// Lets the device work until it has nothing to do, as its thread would.
    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            let progress = self.function.run();
            let answered = self.answer_messages();
            if progress == Progress::Idle && !answered {
                return;
            }
        }
        panic!("the device never becomes idle");
    }

    pub fn answer_messages(&mut self) -> bool {
        let mut any = false;
        while let Some((id, request)) = self.function.next_dma() {
            // A descriptor's bytes are asked for where the device suspects that memory is not shared.
            let suspicion = matches!(request, DmaRequest::Read { len: 16, .. });
            assert!(
                self.by_message || suspicion,
                "a message for mapped memory: {request:?}"
            );
            any = true;
            let reply = match request {
                DmaRequest::Read { iova, len } => self.bytes(iova, len),
                DmaRequest::Write { iova, data } => {
                    self.fill(iova, &data);
                    Vec::new()
                }
            };
            self.function.dma_reply(id, Ok(reply));
        }
        any
    }

    pub fn driver(self) -> (Shared, Driver) {
        let generation = self.generation;
        let rig = Shared(Rc::new(RefCell::new(self)));
        let device = Device {
            registers: rig.clone(),
            memory: rig.clone(),
            delay: rig.clone(),
            generation,
        };
        (rig, device)
    }
}

impl Shared {
    pub fn with<R>(&self, f: impl FnOnce(&mut Rig) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

impl Registers for Shared {
    type Error = Infallible;

    fn read32(&mut self, offset: u32) -> Result<u32, Infallible> {
        Ok(self.with(|rig| rig.read(offset)))
    }

    fn write32(&mut self, offset: u32, value: u32) -> Result<(), Infallible> {
        self.with(|rig| rig.write(offset, value));
        Ok(())
    }
}

impl HostMemory for Shared {
    type Error = Infallible;

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.with(|rig| bytes.copy_from_slice(&rig.bytes(address, bytes.len())));
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.with(|rig| rig.fill(address, bytes));
        Ok(())
    }

    fn load_word(&mut self, address: u64) -> Result<u32, Infallible> {
        Ok(self.with(|rig| rig.ram(address, 4).load(0, Ordering::Acquire).unwrap()))
    }

    fn store_word(&mut self, address: u64, word: u32) -> Result<(), Infallible> {
        self.with(|rig| {
            rig.ram(address, 4)
                .store(word, 0, Ordering::Release)
                .unwrap();
        });
        Ok(())
    }

    fn publish(&mut self) {}
}

impl Delay for Shared {
    fn delay(&mut self, _microseconds: u64) -> ControlFlow<()> {
        self.with(Rig::run);
        ControlFlow::Continue(())
    }
}

/// Where the tests put things in RAM.
pub const TX_RING: u64 = RAM_BASE;
pub const RX_RING: u64 = RAM_BASE + 0x10_0000;
pub const MARKERS: u64 = RAM_BASE + 0x20_0000;
pub const DATA: u64 = RAM_BASE + 0x100_0000;
pub const RESULT: u64 = RAM_BASE + 0x200_0000;

/// A queue with rings of `size` descriptors in RAM, initialised.
pub fn queue(device: &mut Driver, engine: u8, number: u8, size: u32) -> QueuePair {
    let size = RingSize::new(size).unwrap();
    let mut pair = QueuePair::new(device, engine, number, size, TX_RING, RX_RING).unwrap();
    neuron_protocol::cycle::init_engine(device, engine).unwrap();
    pair.init(device).unwrap();
    pair
}

/// The driver's own copy queue of core 0, initialised.
pub fn copy_queue(device: &mut Driver, platform: Platform) -> CopyQueue {
    let generation = device.generation;
    let (engine, number) = generation.h2t_queue(0).unwrap();
    let pair = queue(device, engine, number, 8192);
    let mut copies =
        CopyQueue::new(device, pair, MARKERS, Settings::new(generation, platform)).unwrap();
    copies.init(device).unwrap();
    copies
}

/// Bytes that tell their position.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..u32::try_from(len).unwrap())
        .map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13).to_le_bytes()[0])
        .collect()
}

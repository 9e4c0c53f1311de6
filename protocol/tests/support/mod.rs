//! A device to test the driver half against: memory with a store buffer, one engine, virtual time.
//!
//! Written apart from the code under test: it reads raw bytes and knows the formats by itself.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::rc::Rc;

use neuron_protocol::cycle::{Delay, Device, HostMemory, Registers};
use neuron_protocol::generation::Generation;

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;

/// Page and offset in it of the byte `done` after `address`.
fn locate(address: u64, done: usize) -> (u64, usize) {
    let at = address + u64::try_from(done).unwrap();
    (at / PAGE, usize::try_from(at % PAGE).unwrap())
}

/// Sparse bytes.
#[derive(Default)]
pub struct Sparse(HashMap<u64, Box<[u8; PAGE_BYTES]>>);

impl Sparse {
    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, start) = locate(address, done);
            let length = (PAGE_BYTES - start).min(bytes.len() - done);
            let part = &mut bytes[done..done + length];
            match self.0.get(&page) {
                Some(page) => part.copy_from_slice(&page[start..start + length]),
                None => part.fill(0),
            }
            done += length;
        }
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, start) = locate(address, done);
            let length = (PAGE_BYTES - start).min(bytes.len() - done);
            let page = self
                .0
                .entry(page)
                .or_insert_with(|| Box::new([0; PAGE_BYTES]));
            page[start..start + length].copy_from_slice(&bytes[done..done + length]);
            done += length;
        }
    }

    pub fn word(&self, address: u64) -> u32 {
        let mut word = [0; 4];
        self.read(address, &mut word);
        u32::from_le_bytes(word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read(u32),
    Write(u32, u32),
}

/// How the device misbehaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Doorbells are lost.
    Deaf,
    /// Descriptors run, data do not move except in 4-byte descriptors: for counting large batches.
    CountOnly,
}

struct Launch {
    queue: u8,
    count: u32,
    ready_at: u64,
}

#[derive(Default)]
struct QueueState {
    tx_head: u64,
    rx_head: u64,
    rx_tail: u64,
    tx_tail: u64,
}

pub struct World {
    pub cpu: Sparse,
    dev: Sparse,
    store_buffer: Vec<(u64, Vec<u8>)>,
    pub hbm: Sparse,
    pub registers: HashMap<u32, u32>,
    pub log: Vec<Access>,
    queues: HashMap<u8, QueueState>,
    work: VecDeque<Launch>,
    pub now: u64,
    pub latency: u64,
    pub time_limit: u64,
    pub fault: Fault,
    /// Launches that overlapped another one.
    pub most_in_flight: usize,
    generation: &'static Generation,
    pub engine_base: u32,
}

#[derive(Clone)]
pub struct Handle(pub Rc<RefCell<World>>);

pub type MockDevice = Device<Handle, Handle, Handle>;

pub fn device(generation: &'static Generation, engine_base: u32) -> (MockDevice, Handle) {
    let world = World {
        cpu: Sparse::default(),
        dev: Sparse::default(),
        store_buffer: Vec::new(),
        hbm: Sparse::default(),
        registers: HashMap::new(),
        log: Vec::new(),
        queues: HashMap::new(),
        work: VecDeque::new(),
        now: 0,
        latency: 0,
        time_limit: u64::MAX,
        fault: Fault::None,
        most_in_flight: 0,
        generation,
        engine_base,
    };
    let handle = Handle(Rc::new(RefCell::new(world)));
    let device = Device {
        registers: handle.clone(),
        memory: handle.clone(),
        delay: handle.clone(),
        generation,
    };
    (device, handle)
}

impl World {
    /// Value and mask of the host aperture, restated: bit 44 on V2, bit 46 later.
    fn host_bit(&self) -> u64 {
        if self.generation.name == "V2" {
            1 << 44
        } else {
            1 << 46
        }
    }

    fn device_read(&self, address: u64, bytes: &mut [u8]) {
        if address & self.host_bit() != 0 {
            self.dev.read(address & !self.host_bit(), bytes);
        } else {
            self.hbm.read(address, bytes);
        }
    }

    fn device_write(&mut self, address: u64, bytes: &[u8]) {
        if address & self.host_bit() != 0 {
            let address = address & !self.host_bit();
            self.dev.write(address, bytes);
            self.cpu.write(address, bytes);
        } else {
            self.hbm.write(address, bytes);
        }
    }

    fn register(&self, offset: u32) -> u32 {
        self.registers
            .get(&(self.engine_base + offset))
            .copied()
            .unwrap_or(0)
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        self.log.push(Access::Write(offset, value));
        self.registers.insert(offset, value);
        let Some(local) = offset.checked_sub(self.engine_base) else {
            return;
        };
        let (s2m, local) = if local >= 0x2_0000 {
            (true, local - 0x2_0000)
        } else {
            (false, local)
        };
        if !(0x1000..0x1_1000).contains(&local) {
            return;
        }
        let queue = u8::try_from((local - 0x1000) / 0x1000).unwrap();
        match (s2m, local % 0x1000) {
            (false, 0xb0) if value & 0x100 != 0 => {
                let state = self.queues.entry(queue).or_default();
                (state.tx_head, state.tx_tail) = (0, 0);
                self.work.retain(|launch| launch.queue != queue);
            }
            (true, 0x64) if value & 0x100 != 0 => {
                let state = self.queues.entry(queue).or_default();
                (state.rx_head, state.rx_tail) = (0, 0);
            }
            (_, 0x38) if self.fault == Fault::Deaf => {}
            (true, 0x38) => self.queues.entry(queue).or_default().rx_tail += u64::from(value),
            (false, 0x38) => {
                let state = self.queues.entry(queue).or_default();
                state.tx_tail += u64::from(value);
                assert!(
                    state.rx_tail >= state.tx_tail,
                    "source launched before its destination was armed"
                );
                let ready_at = self.now + self.latency;
                self.work.push_back(Launch {
                    queue,
                    count: value,
                    ready_at,
                });
                self.most_in_flight = self.most_in_flight.max(self.work.len());
                self.run();
            }
            _ => {}
        }
    }

    fn run(&mut self) {
        while self
            .work
            .front()
            .is_some_and(|launch| launch.ready_at <= self.now)
        {
            let launch = self.work.pop_front().unwrap();
            for _ in 0..launch.count {
                self.packet(launch.queue);
            }
        }
    }

    fn fetch(&self, queue: u8, s2m: bool) -> ([u32; 2], u64) {
        let state = &self.queues[&queue];
        let (unit, head, tail) = if s2m {
            (0x2_0000, state.rx_head, state.rx_tail)
        } else {
            (0, state.tx_head, state.tx_tail)
        };
        assert!(head < tail, "ran past the doorbell");
        let block = unit + 0x1000 + 0x1000 * u32::from(queue);
        let base =
            u64::from(self.register(block + 0x28)) | u64::from(self.register(block + 0x2c)) << 32;
        let length = u64::from(self.register(block + 0x30));
        let mut bytes = [0; 16];
        self.device_read(base + head % length * 16, &mut bytes);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let phase = u64::from(word(0) >> 24 & 3);
        assert_eq!(
            phase,
            (1 + head / length) % 4,
            "stale descriptor at {head}, s2m {s2m}"
        );
        (
            [word(0), word(4)],
            u64::from(word(8)) | u64::from(word(12)) << 32,
        )
    }

    /// Descriptor length; 0 only means 64 KiB once `cfg_len` says so.
    fn length(&self, len_ctrl: u32) -> usize {
        match len_ctrl & 0xffff {
            0 => {
                assert!(
                    self.register(0x254) & 1 << 24 != 0,
                    "length 0 on an engine that was not initialised"
                );
                0x1_0000
            }
            n => usize::try_from(n).unwrap(),
        }
    }

    /// One tx descriptor, which must be a whole packet, and the rx descriptors it fills.
    fn packet(&mut self, queue: u8) {
        let (tx, source) = self.fetch(queue, false);
        assert_eq!(tx[0] >> 26 & 3, 3, "FIRST and LAST");
        self.queues.get_mut(&queue).unwrap().tx_head += 1;
        let mut bytes = vec![0; self.length(tx[0])];
        let move_data = self.fault != Fault::CountOnly || bytes.len() == 4;
        if move_data {
            self.device_read(source, &mut bytes);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (rx, destination) = self.fetch(queue, true);
            self.queues.get_mut(&queue).unwrap().rx_head += 1;
            let (part, after) = rest.split_at(self.length(rx[0]).min(rest.len()));
            if move_data {
                self.device_write(destination, part);
            }
            rest = after;
        }
    }

    /// Doorbell writes so far: (is s2m, value).
    pub fn doorbells(&self) -> Vec<(bool, u32)> {
        let base = self.engine_base;
        self.log
            .iter()
            .filter_map(|access| match *access {
                Access::Write(offset, value) if offset >= base && offset & 0xfff == 0x38 => {
                    Some((offset - base >= 0x2_0000, value))
                }
                _ => None,
            })
            .collect()
    }
}

impl Registers for Handle {
    type Error = Infallible;

    fn read32(&mut self, offset: u32) -> Result<u32, Infallible> {
        let mut world = self.0.borrow_mut();
        world.log.push(Access::Read(offset));
        Ok(world.registers.get(&offset).copied().unwrap_or(0))
    }

    fn write32(&mut self, offset: u32, value: u32) -> Result<(), Infallible> {
        self.0.borrow_mut().write_register(offset, value);
        Ok(())
    }
}

impl HostMemory for Handle {
    type Error = Infallible;

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.borrow().cpu.read(address, bytes);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Infallible> {
        let mut world = self.0.borrow_mut();
        world.cpu.write(address, bytes);
        world.store_buffer.push((address, bytes.to_vec()));
        Ok(())
    }

    fn load_word(&mut self, address: u64) -> Result<u32, Infallible> {
        assert_eq!(address % 4, 0);
        Ok(self.0.borrow().cpu.word(address))
    }

    fn store_word(&mut self, address: u64, word: u32) -> Result<(), Infallible> {
        assert_eq!(address % 4, 0);
        self.write(address, &word.to_le_bytes())
    }

    fn publish(&mut self) {
        let mut world = self.0.borrow_mut();
        for (address, bytes) in std::mem::take(&mut world.store_buffer) {
            world.dev.write(address, &bytes);
        }
    }
}

impl Delay for Handle {
    fn delay(&mut self, microseconds: u64) -> ControlFlow<()> {
        let mut world = self.0.borrow_mut();
        if world.now + microseconds > world.time_limit {
            return ControlFlow::Break(());
        }
        world.now += microseconds;
        world.run();
        ControlFlow::Continue(())
    }
}

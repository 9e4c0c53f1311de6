//! A driver's CPU beside an adversary: its stores are as late as a weakly ordered one's, time passes as it likes.
use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use neuron_protocol::cycle::{Delay, Device, HostMemory, Registers};
use neuron_protocol::generation::{Platform, Product};
use neuron_vfio_user::policy::Adversary;
use neuron_vfio_user::policy::adversary::Script;
use neuron_vfio_user::vfio::PciFunction;

use crate::rig::Rig;

/// `splitmix64`.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// The device, memory and time, as both sides share them.
pub struct World {
    pub rig: Rig,
    pub random: Random,
    now: Duration,
    /// Stores that are not visible to the device.
    stores: Vec<(u64, Vec<u8>)>,
    /// Full barriers that the driver has lost, by their number in a launch: before the rx and the tx doorbell.
    pub lost_publish: [bool; 2],
    publishes: usize,
}

/// What a driver holds.
#[derive(Clone)]
pub struct Cpu(pub Rc<RefCell<World>>);

pub type Driver = Device<Cpu, Cpu, Cpu>;

impl Cpu {
    /// A driver of a device that may have an adversary.
    pub fn new(product: Product, seed: u64, script: Option<&Script>) -> (Self, Driver) {
        let mut rig = Rig::new(product, Platform::Silicon);
        if let Some(script) = script {
            let adversary = Adversary::new(script.clone());
            rig.function.policies_mut().set_adversary(adversary);
        }
        let generation = rig.generation;
        let world = World {
            rig,
            random: Random(seed),
            now: Duration::ZERO,
            stores: Vec::new(),
            lost_publish: [false; 2],
            publishes: 0,
        };
        let cpu = Self(Rc::new(RefCell::new(world)));
        let device = Device {
            registers: cpu.clone(),
            memory: cpu.clone(),
            delay: cpu.clone(),
            generation,
        };
        (cpu, device)
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }

    /// What the device remembers of its deviations.
    pub fn taken(&self) -> Vec<u64> {
        self.with(|world| {
            let adversary = world.rig.function.policies_mut().adversary();
            adversary.map_or_else(Vec::new, |adversary| adversary.taken().to_vec())
        })
    }

    /// Device memory as the CPU sees it through its BAR.
    pub fn hbm(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.with(|world| {
            world
                .rig
                .function
                .region_read(4, offset, &mut bytes)
                .unwrap();
        });
        bytes
    }
}

impl World {
    /// One store becomes visible: any that has no older one for the same bytes.
    fn drain_one(&mut self) {
        if self.stores.is_empty() {
            return;
        }
        let nth = usize::try_from(self.random.below(self.stores.len() as u64)).unwrap();
        let end = |(at, data): &(u64, Vec<u8>)| at + data.len() as u64;
        let store = &self.stores[nth];
        let free = !self.stores[..nth]
            .iter()
            .any(|older| older.0 < end(store) && store.0 < end(older));
        if free {
            let (at, data) = self.stores.remove(nth);
            self.rig.fill(at, &data);
        }
    }

    fn drain(&mut self) {
        for (at, data) in std::mem::take(&mut self.stores) {
            self.rig.fill(at, &data);
        }
    }

    /// The device gets a turn.
    pub fn turn(&mut self) {
        self.now += Duration::from_micros(self.random.below(20));
        self.rig.function.tick(self.now);
        self.rig.function.run();
        if self.random.below(4) == 0 {
            self.drain_one();
        }
    }
}

impl Registers for Cpu {
    type Error = Infallible;

    fn read32(&mut self, offset: u32) -> Result<u32, Infallible> {
        Ok(self.with(|world| world.rig.read(offset)))
    }

    fn write32(&mut self, offset: u32, value: u32) -> Result<(), Infallible> {
        self.with(|world| {
            world.rig.write(offset, value);
            // The device may get to work before the next access comes.
            if world.random.below(3) == 0 {
                world.turn();
            }
        });
        Ok(())
    }
}

impl HostMemory for Cpu {
    type Error = Infallible;

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.with(|world| {
            bytes.copy_from_slice(&world.rig.bytes(address, bytes.len()));
            // Its own stores it sees.
            for (at, data) in &world.stores {
                for (byte, place) in data.iter().zip(*at..) {
                    if let Some(to) = place
                        .checked_sub(address)
                        .and_then(|nth| bytes.get_mut(usize::try_from(nth).unwrap()))
                    {
                        *to = *byte;
                    }
                }
            }
        });
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.with(|world| world.stores.push((address, bytes.to_vec())));
        Ok(())
    }

    fn load_word(&mut self, address: u64) -> Result<u32, Infallible> {
        let mut word = [0; 4];
        self.read(address, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn store_word(&mut self, address: u64, word: u32) -> Result<(), Infallible> {
        self.write(address, &word.to_le_bytes())
    }

    fn publish(&mut self) {
        self.with(|world| {
            // A launch has two: before the rx doorbell, before the tx doorbell.
            let nth = world.publishes % 2;
            world.publishes += 1;
            if !world.lost_publish[nth] {
                world.drain();
            }
        });
    }
}

impl Delay for Cpu {
    fn delay(&mut self, _microseconds: u64) -> ControlFlow<()> {
        self.with(World::turn);
        ControlFlow::Continue(())
    }
}

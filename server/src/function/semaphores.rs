//! Events and semaphores of cores and `TopSP`s.
use neuron_protocol::generation::{Block, Generation, Location};
use neuron_protocol::registers::semaphore::{self, Access, COUNT};

/// One block: 256 of each.
#[derive(Clone, Debug)]
struct Bank {
    events: Vec<bool>,
    semaphores: Vec<u32>,
}

impl Default for Bank {
    fn default() -> Self {
        Self {
            events: vec![false; COUNT as usize],
            semaphores: vec![0; COUNT as usize],
        }
    }
}

/// All blocks of a device.
#[derive(Debug)]
pub struct Semaphores {
    cores: Vec<Bank>,
    top_sps: Vec<Bank>,
}

impl Semaphores {
    /// All zero.
    pub fn new(generation: &Generation) -> Self {
        let count = |block| {
            let windows = generation
                .windows
                .iter()
                .filter(|window| window.block == block);
            windows.map(|window| usize::from(window.count)).sum()
        };
        Self {
            cores: vec![Bank::default(); count(Block::CoreTile)],
            top_sps: vec![Bank::default(); count(Block::TopSp)],
        }
    }

    fn locate(&mut self, at: Location) -> Option<(&mut Bank, Access, usize)> {
        let (banks, start) = match at.block {
            Block::CoreTile => (&mut self.cores, semaphore::CORE_OFFSET),
            Block::TopSp => (&mut self.top_sps, semaphore::TOP_SP_OFFSET),
            _ => return None,
        };
        let (access, nth) = semaphore::locate(at.offset.checked_sub(start)?)?;
        Some((banks.get_mut(usize::from(at.index))?, access, nth as usize))
    }

    /// Reads; every window of a semaphore reads its value. `None` where neither stands.
    pub fn read(&mut self, at: Location) -> Option<u32> {
        let (bank, access, nth) = self.locate(at)?;
        Some(match access {
            Access::Event => u32::from(bank.events[nth]),
            _ => bank.semaphores[nth],
        })
    }

    /// Writes; arithmetic wraps (semaphores are 32-bit counters). `false` where neither stands.
    pub fn write(&mut self, at: Location, value: u32) -> bool {
        let Some((bank, access, nth)) = self.locate(at) else {
            return false;
        };
        let semaphore = &mut bank.semaphores[nth];
        match access {
            Access::Event => bank.events[nth] = value & 1 != 0,
            Access::Read => {}
            Access::Set => *semaphore = value,
            Access::Increment => *semaphore = semaphore.wrapping_add(value),
            Access::Decrement => *semaphore = semaphore.wrapping_sub(value),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::V3;

    use super::*;

    #[test]
    fn each_window_does_its_thing() {
        let mut semaphores = Semaphores::new(&V3);
        let at = |window: u32, nth: u32| Location {
            block: Block::CoreTile,
            index: 7,
            offset: semaphore::CORE_OFFSET + window + nth * 4,
        };
        semaphores.write(at(semaphore::SET, 3), 10);
        semaphores.write(at(semaphore::INCREMENT, 3), 5);
        semaphores.write(at(semaphore::DECREMENT, 3), 16);
        semaphores.write(at(semaphore::READ, 3), 99);
        assert_eq!(semaphores.read(at(semaphore::READ, 3)), Some(u32::MAX));
        assert_eq!(semaphores.read(at(semaphore::READ, 4)), Some(0));
        semaphores.write(at(0, 255), 3);
        assert_eq!(semaphores.read(at(0, 255)), Some(1));
        assert_eq!(semaphores.read(at(0x400, 0)), None);
    }
}

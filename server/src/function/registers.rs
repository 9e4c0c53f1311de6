//! Accesses to the register BAR and to HBM through its BAR.
use neuron_protocol::generation::Block;
use neuron_protocol::registers::engine::EngineLocation;
use neuron_protocol::registers::{RegisterName, engine};
use rustix::io::Errno;
use tracing::Level;

use super::NeuronFunction;
use super::misc_ram::Command;
use crate::observe::event::{EventKind, Scope};
use crate::observe::log::REGISTERS;
use crate::udma::Engine;

impl NeuronFunction {
    /// Reads any stretch of the register BAR: memory as bytes, registers as the words that hold them.
    pub(super) fn read_registers(&mut self, offset: u64, data: &mut [u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let left = &mut data[done..];
            if let Some(slice) = self.memory.tiles.at(at, left.len()) {
                self.memory.read_own(&slice, &mut left[..slice.len()]);
                done += slice.len();
                continue;
            }
            let skip = usize::try_from(at % 4).unwrap_or(0);
            let word = self.read_register(at - at % 4).to_le_bytes();
            let len = left.len().min(4 - skip);
            left[..len].copy_from_slice(&word[skip..skip + len]);
            done += len;
        }
    }

    /// Writes any stretch of the register BAR.
    ///
    /// # Errors
    /// Part of a register: the bus has no such access (contract head), and merging would invent one. What came before
    /// it is written.
    pub(super) fn write_registers(&mut self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let left = &data[done..];
            if let Some(slice) = self.memory.tiles.at(at, left.len()) {
                self.memory.write_own(&left[..slice.len()], &slice);
                done += slice.len();
                continue;
            }
            let Some(word) = left.first_chunk().filter(|_| at.is_multiple_of(4)) else {
                let name = RegisterName {
                    generation: self.generation,
                    offset: at - at % 4,
                };
                tracing::warn!(
                    "write of {} bytes at {at:#x} ignored: {name} takes whole aligned words",
                    left.len()
                );
                return Err(Errno::INVAL);
            };
            self.write_register(at, u32::from_le_bytes(*word));
            done += 4;
        }
        Ok(())
    }

    /// A register's value, if it is more than what was written last.
    fn modelled(&mut self, offset: u64) -> Option<u32> {
        self.generation
            .decode(offset)
            .and_then(|at| match at.block {
                Block::Udma => self.udma.read(at.index, engine::locate(at.offset)?),
                Block::MiscRam => self.misc_ram.read(at.offset),
                Block::CoreTile | Block::TopSp => self.semaphores.read(at),
                Block::SdmaNotification | Block::CoreNotification | Block::TopSpNotification => {
                    self.notifications.read(at)
                }
                // Done is 0 (contract §7): resets take no time but for what the client still has of before.
                Block::Reset if offset == u64::from(self.generation.reset_flag.offset) => {
                    Some((self.drains() || self.held.reset.is_some()).into())
                }
                _ => None,
            })
    }

    /// Whether a register means something here; others only read back. May have a read's effects: ask a spare device.
    pub fn has_behaviour(&mut self, offset: u64) -> bool {
        let at = self.generation.decode(offset);
        let kept = at
            .filter(|at| at.block == Block::Udma)
            .and_then(|at| engine::locate(at.offset));
        match kept {
            Some(EngineLocation::Unit { direction, offset })
                if Engine::obeys(direction, offset) =>
            {
                true
            }
            _ => self.modelled(offset).is_some(),
        }
    }

    fn read_register(&mut self, offset: u64) -> u32 {
        self.counters.register_reads += 1;
        if let Some(value) = self.msix.as_ref().and_then(|msix| msix.read(offset)) {
            self.tell(offset, value, false);
            return value;
        }
        let known = self.modelled(offset);
        let value = known.unwrap_or_else(|| {
            self.account(offset, false);
            self.file.read(offset)
        });
        let value = if self.policies.is_empty() {
            value
        } else {
            self.judged_read(offset, value)
        };
        self.tell(offset, value, false);
        value
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        self.counters.register_writes += 1;
        self.tell(offset, value, true);
        if self
            .msix
            .as_mut()
            .is_some_and(|msix| msix.write(offset, value))
        {
            return;
        }
        let Some(at) = self.generation.decode(offset) else {
            return self.keep(offset, value);
        };
        match at.block {
            Block::Udma => {
                let Some(location) = engine::locate(at.offset) else {
                    return self.keep(offset, value);
                };
                let (udma, mut context) = self.engines();
                if udma.write(at.index, location, value, &mut context) {
                    self.keep(offset, value);
                }
            }
            Block::MiscRam => match self.misc_ram.write(at.offset, value) {
                Some(command) => self.command(command),
                None => self.keep(offset, value),
            },
            Block::CoreTile | Block::TopSp => {
                if !self.semaphores.write(at, value) {
                    self.keep(offset, value);
                }
            }
            Block::SdmaNotification | Block::CoreNotification | Block::TopSpNotification => {
                if !self.notifications.write(at, value) {
                    self.keep(offset, value);
                }
            }
            Block::Reset if offset == u64::from(self.generation.reset_flag.offset) => {
                self.reset_flag(value);
            }
            _ => self.keep(offset, value),
        }
    }

    /// A register without behaviour: it reads back.
    fn keep(&mut self, offset: u64, value: u32) {
        self.account(offset, true);
        self.file.write(offset, value);
    }

    fn account(&mut self, offset: u64, write: bool) {
        let name = RegisterName {
            generation: self.generation,
            offset,
        };
        if !name.is_known() && self.file.touch(offset, write) {
            tracing::debug!("register without behaviour: {name} at {offset:#x}");
        }
    }

    /// Tells of an access: a read after its value is known, a write before its effects.
    fn tell(&mut self, offset: u64, value: u32, write: bool) {
        let listeners = self.observers.interest().registers;
        let traced = tracing::enabled!(target: REGISTERS, Level::TRACE);
        if !listeners && !traced {
            return;
        }
        let name = RegisterName {
            generation: self.generation,
            offset,
        };
        if traced {
            let what = if write { "write" } else { "read " };
            tracing::trace!(target: REGISTERS, "{what} {value:#010x} {name}");
        }
        if listeners {
            let kind = EventKind::Register {
                offset,
                value,
                write,
                known: name.is_known(),
            };
            self.observers.emit(Scope::Device, kind);
        }
    }

    /// The reset doorbell of platform qemu. Where firmware takes part it does the reset (contract §7).
    fn reset_flag(&mut self, value: u32) {
        if self.generation.reset_flag.with_firmware {
            return;
        }
        // A whole-device reset is 0 in drivers up to 2.25.4.0 and all ones in 2.30.2.0 (contract §12.3).
        let map = (value != 0 && value != u32::MAX).then_some(value);
        self.reset_cores(map.map(u64::from));
    }

    fn command(&mut self, command: Command) {
        if command != Command::None {
            self.held.answer = None;
        }
        match command {
            Command::None => {}
            Command::Reset(map) => {
                if self.reset_cores(map) {
                    self.reset_pending = true;
                    self.finish_reset();
                }
            }
            Command::LegacyMailbox { request, response } => self.mailbox.start(request, response),
            Command::RegisterMailbox => self.register_mailbox(),
        }
    }

    /// Reads HBM through its BAR; the gaps between stacks read 0.
    pub(super) fn read_hbm(&self, offset: u64, data: &mut [u8]) {
        let mut done = 0;
        while done < data.len() {
            let left = &mut data[done..];
            done += match self.memory.hbm.stretch(offset + done as u64, left.len()) {
                Ok(slice) => {
                    self.memory.read_own(&slice, &mut left[..slice.len()]);
                    slice.len()
                }
                Err(gap) => {
                    left[..gap].fill(0);
                    gap
                }
            };
        }
    }

    /// Writes HBM through its BAR; the gaps between stacks take nothing.
    pub(super) fn write_hbm(&self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let (at, left) = (offset + done as u64, &data[done..]);
            done += match self.memory.hbm.stretch(at, left.len()) {
                Ok(slice) => {
                    self.memory.write_own(&left[..slice.len()], &slice);
                    slice.len()
                }
                Err(gap) => {
                    tracing::warn!("write of {gap} bytes to BAR4+{at:#x}, where no HBM is");
                    gap
                }
            };
        }
    }
}

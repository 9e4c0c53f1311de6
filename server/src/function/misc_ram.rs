//! The firmware window: identity, health, the two mailboxes' registers, the reset handshake of silicon.
use std::time::Duration;

use neuron_protocol::registers::misc_ram::{
    self, ACK, RESET, RESET_CORES, RESET_MAP, RESET_MAP_HIGH, RESPONSE_HIGH, RESPONSE_LOW,
    ROUTING_ID, SERIAL_HIGH, SERIAL_LOW, SIZE, TRIGGER,
};

use super::firmware::Firmware;

/// What firmware tells about itself.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The rest of what firmware says.
    pub firmware: Firmware,
    /// Routing id.
    pub routing_id: u8,
    /// Serial number.
    pub serial: u64,
}

/// What a write asks firmware to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Nothing.
    None,
    /// Reset these cores; `None` is the whole device.
    Reset(Option<u64>),
    /// Answer the request in host memory.
    LegacyMailbox {
        /// Device-side address of the request.
        request: u64,
        /// Device-side address of the response.
        response: u64,
    },
    /// Answer the request in the registers.
    RegisterMailbox,
}

/// The window's registers.
#[derive(Debug)]
pub struct MiscRam {
    identity: Identity,
    words: Vec<u32>,
}

impl MiscRam {
    /// Power-on state.
    pub fn new(identity: Identity) -> Self {
        let mut ram = Self {
            identity,
            words: vec![0; SIZE as usize / 4],
        };
        let serial = identity.serial.to_le_bytes();
        let half = |at: usize| {
            u32::from_le_bytes([serial[at], serial[at + 1], serial[at + 2], serial[at + 3]])
        };
        for (offset, value) in identity.firmware.registers() {
            ram.set(offset, value);
        }
        ram.set(ROUTING_ID, u32::from(identity.routing_id));
        ram.set(SERIAL_LOW, half(0));
        ram.set(SERIAL_HIGH, half(4));
        ram
    }

    /// Power-on state again.
    pub fn reset(&mut self) {
        *self = Self::new(self.identity);
    }

    /// Tells the time: the power samples follow it. Without this they are those of the start.
    pub fn tick(&mut self, now: Duration) {
        let words = self.identity.firmware.power_at(now);
        for (offset, word) in (misc_ram::POWER..).step_by(4).zip(words) {
            self.set(offset, word);
        }
    }

    /// Reads an aligned register; `None` past the window.
    pub fn read(&self, offset: u32) -> Option<u32> {
        self.words.get(offset as usize / 4).copied()
    }

    /// Writes an aligned register; `None` past the window.
    pub fn write(&mut self, offset: u32, value: u32) -> Option<Command> {
        let word = self.words.get_mut(offset as usize / 4)?;
        if misc_ram::is_read_only(offset) {
            return Some(Command::None);
        }
        *word = value;
        Some(if offset == TRIGGER && value != 0 {
            self.triggered()
        } else {
            Command::None
        })
    }

    /// Sets a register, past the rules for software.
    pub fn set(&mut self, offset: u32, value: u32) {
        if let Some(word) = self.words.get_mut(offset as usize / 4) {
            *word = value;
        }
    }

    /// Contract §4, §7: one trigger serves resets and both mailboxes; what is set tells which is meant.
    fn triggered(&self) -> Command {
        let get = |offset| self.read(offset).unwrap_or(0);
        let address = |high, low| u64::from(get(high)) << 32 | u64::from(get(low));
        match get(RESET) {
            0 => {}
            RESET_CORES => return Command::Reset(Some(address(RESET_MAP_HIGH, RESET_MAP))),
            _ => return Command::Reset(None),
        }
        let response = address(RESPONSE_HIGH, RESPONSE_LOW);
        if response == 0 && get(ACK) != 0 {
            return Command::RegisterMailbox;
        }
        Command::LegacyMailbox {
            request: address(misc_ram::REQUEST_HIGH, misc_ram::REQUEST_LOW),
            response,
        }
    }

    /// The reset is done (contract §7: the driver polls for 0).
    pub fn acknowledge_reset(&mut self) {
        self.set(RESET, 0);
        self.set(TRIGGER, 0);
    }

    /// Registers that hold something: offset and value.
    pub fn values(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..)
            .step_by(4)
            .zip(&self.words)
            .filter(|(_, value)| **value != 0)
            .map(|(offset, value)| (offset, *value))
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::registers::misc_ram::API_VERSION;

    use super::*;

    fn ram() -> MiscRam {
        MiscRam::new(Identity {
            firmware: Firmware::default(),
            routing_id: 5,
            serial: 0x1_0000_0002,
        })
    }

    #[test]
    fn identity_is_there_and_version_read_only() {
        let mut ram = ram();
        ram.write(API_VERSION, 9);
        let read = |offset| ram.read(offset).unwrap();
        assert_eq!(
            (
                read(API_VERSION),
                read(ROUTING_ID),
                read(SERIAL_LOW),
                read(SERIAL_HIGH)
            ),
            (0, 5, 2, 1)
        );
        assert_eq!(ram.read(SIZE), None);
    }

    #[test]
    fn one_trigger_three_meanings() {
        let mut ram = ram();
        ram.write(RESET_MAP, 0x0101_0101);
        ram.write(RESET, RESET_CORES);
        assert_eq!(
            ram.write(TRIGGER, 1),
            Some(Command::Reset(Some(0x0101_0101)))
        );
        ram.write(RESET, 1);
        assert_eq!(ram.write(TRIGGER, 1), Some(Command::Reset(None)));
        ram.acknowledge_reset();
        assert_eq!((ram.read(RESET), ram.read(TRIGGER)), (Some(0), Some(0)));
        for (offset, value) in [
            (0x1f4, 0x2000),
            (0x1f0, 0x1000),
            (0x1fc, 0x3000),
            (0x1f8, 0x1000),
        ] {
            assert_eq!(ram.write(offset, value), Some(Command::None));
        }
        let legacy = Command::LegacyMailbox {
            request: 0x1000_0000_2000,
            response: 0x1000_0000_3000,
        };
        assert_eq!(ram.write(TRIGGER, 1), Some(legacy));
        for (offset, value) in [(0x1f8, 0), (0x1fc, 0), (ACK, 1)] {
            ram.write(offset, value);
        }
        assert_eq!(ram.write(TRIGGER, 1), Some(Command::RegisterMailbox));
        assert_eq!(ram.write(TRIGGER, 0), Some(Command::None));
    }
}

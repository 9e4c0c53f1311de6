//! Names of registers for people.
use core::fmt;

use super::engine::{self, EngineLocation};
use super::{iofic, misc_ram, notification, queue, semaphore};
use crate::generation::{Block, Generation, Location};

/// Writes the name of a register-BAR offset: `eng 128 (D2H_0) m2s q0 drtp_inc`, or the offset where none is known.
#[derive(Clone, Copy, Debug)]
pub struct RegisterName<'a> {
    /// Whose tables to use.
    pub generation: &'a Generation,
    /// Offset in the register BAR.
    pub offset: u64,
}

impl RegisterName<'_> {
    /// A register that the contract names; the others are counted as unmodelled when touched.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let Some(Location { block, offset, .. }) = self.generation.decode(self.offset) else {
            return false;
        };
        match block {
            Block::Udma => match engine::locate(offset) {
                Some(EngineLocation::Queue {
                    direction, offset, ..
                }) => queue::name(direction, offset).is_some(),
                Some(EngineLocation::Iofic { offset, .. }) => iofic::name(offset).is_some(),
                Some(EngineLocation::Unit { direction, offset }) => {
                    engine::unit_name(direction, offset).is_some()
                }
                Some(EngineLocation::General { offset }) => engine::general_name(offset).is_some(),
                None => false,
            },
            Block::Sdma => engine::sdma_name(offset).is_some(),
            // Groups of causes like those of the interrupt fabric (udma §6).
            Block::ErrorTrigger => {
                offset < 0x100 && iofic::name(offset % iofic::GROUP_STRIDE).is_some()
            }
            Block::MiscRam => misc_ram::name(offset).is_some(),
            Block::SdmaNotification | Block::CoreNotification | Block::TopSpNotification => {
                notification::locate(offset)
                    .is_some_and(|(_, register)| notification::name(register).is_some())
            }
            Block::CoreTile | Block::TopSp => true,
            // Activity counters, three pairs of words per array element (contract §9); they read 0 on an idle array.
            Block::Activity => offset >= 0x100,
            Block::Reset => self.offset == u64::from(self.generation.reset_flag.offset),
        }
    }
}

impl fmt::Display for RegisterName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Location {
            block,
            index,
            offset,
        }) = self.generation.decode(self.offset)
        else {
            return write!(f, "{:#010x}", self.offset);
        };
        match block {
            Block::Udma => {
                write!(f, "eng {index} ({}) ", self.generation.engine_name(index))?;
                udma(f, offset)
            }
            Block::Sdma => {
                write!(f, "eng {index} ({}) ", self.generation.engine_name(index))?;
                named(f, "sdma", engine::sdma_name(offset), offset)
            }
            Block::ErrorTrigger => {
                write!(
                    f,
                    "eng {index} ({}) {}+{offset:#x}",
                    self.generation.engine_name(index),
                    block.name()
                )
            }
            Block::MiscRam => named(f, "misc_ram", misc_ram::name(offset), offset),
            Block::SdmaNotification | Block::CoreNotification | Block::TopSpNotification => {
                write!(f, "{} {index} ", block.name())?;
                match notification::locate(offset) {
                    Some((nq, register)) => {
                        write!(f, "nq{nq} ")?;
                        named(f, "nq", notification::name(register), register)
                    }
                    None => write!(f, "+{offset:#x}"),
                }
            }
            Block::CoreTile => tile(f, "core", index, offset, semaphore::CORE_OFFSET),
            Block::TopSp => tile(f, "topsp", index, offset, semaphore::TOP_SP_OFFSET),
            Block::Activity | Block::Reset => write!(f, "{} {index}+{offset:#x}", block.name()),
        }
    }
}

fn named(f: &mut fmt::Formatter<'_>, block: &str, name: Option<&str>, offset: u32) -> fmt::Result {
    match name {
        Some(name) => write!(f, "{block}.{name}"),
        None => write!(f, "{block}+{offset:#x}"),
    }
}

fn udma(f: &mut fmt::Formatter<'_>, offset: u32) -> fmt::Result {
    match engine::locate(offset) {
        Some(EngineLocation::Queue {
            direction,
            queue,
            offset,
        }) => match queue::name(direction, offset) {
            Some(name) => write!(f, "{direction} q{queue} {name}"),
            None => write!(f, "{direction} q{queue}+{offset:#x}"),
        },
        Some(EngineLocation::Iofic { group, offset }) => {
            let (level, nth) = match group {
                iofic::Group::Primary(nth) => ("primary", nth),
                iofic::Group::Secondary(nth) => ("secondary", nth),
            };
            write!(f, "iofic {level} {} ", char::from(b'A' + nth))?;
            named(f, "iofic", iofic::name(offset), offset)
        }
        Some(EngineLocation::Unit { direction, offset }) => named(
            f,
            direction.name(),
            engine::unit_name(direction, offset),
            offset,
        ),
        Some(EngineLocation::General { offset }) => match engine::general_name(offset) {
            Some(name) => f.write_str(name),
            None => write!(f, "gen+{:#x}", offset - engine::GEN),
        },
        None => write!(f, "+{offset:#x}"),
    }
}

fn tile(
    f: &mut fmt::Formatter<'_>,
    kind: &str,
    index: u8,
    offset: u32,
    semaphores: u32,
) -> fmt::Result {
    match offset.checked_sub(semaphores).and_then(semaphore::locate) {
        Some((access, nth)) => write!(f, "{kind} {index} {}[{nth}]", access.name()),
        None => write!(f, "{kind} {index}+{offset:#x}"),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;
    use crate::generation::{V2, V3};

    #[test]
    fn names_say_engine_queue_and_register() {
        let name = |generation, offset| RegisterName { generation, offset }.to_string();
        assert_eq!(name(&V3, 0x0680_1038), "eng 128 (D2H_0) m2s q0 drtp_inc");
        assert_eq!(name(&V3, 0x8212_2064), "eng 1 (NC0/1) s2m q1 q_sw_ctrl");
        assert_eq!(
            name(&V2, 0x3063_a030),
            "eng 32 (D2H) iofic secondary A iofic.abort_mask"
        );
        assert_eq!(name(&V2, 0x3060_0254), "eng 32 (D2H) m2s.cfg_len");
        assert_eq!(name(&V2, 0x30fa_0024), "misc_ram.device_id");
        assert_eq!(name(&V2, 0x0270_1808), "core 0 semaphore_inc[2]");
        assert_eq!(name(&V3, 0x2000_0000), "0x20000000");
    }
}

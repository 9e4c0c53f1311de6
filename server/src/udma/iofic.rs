//! The interrupt fabric controller: where software finds what went wrong, and says what may abort the engine.
use neuron_protocol::registers::iofic::{self, GROUPS, Group, primary_d};

/// One group of causes.
#[derive(Clone, Copy, Debug, Default)]
struct Registers {
    cause: u32,
    mask: u32,
    control: u32,
    abort_mask: u32,
    log_mask: u32,
}

/// All groups of an engine.
#[derive(Clone, Debug, Default)]
pub struct Iofic {
    groups: [Registers; GROUPS],
}

impl Iofic {
    /// Reads a register. Reading a cause clears it where control bit 0 asks for that.
    pub fn read(&mut self, group: Group, offset: u32) -> Option<u32> {
        let registers = &mut self.groups[group.index()];
        Some(match offset {
            iofic::CAUSE => {
                let cause = registers.cause;
                if registers.control & iofic::CONTROL_CLEAR_ON_READ != 0 {
                    registers.cause = 0;
                }
                cause
            }
            iofic::STATUS => registers.cause,
            iofic::MASK => registers.mask,
            iofic::CONTROL => registers.control,
            iofic::ABORT_MASK => registers.abort_mask,
            iofic::LOG_MASK => registers.log_mask,
            iofic::CAUSE_SET | iofic::MASK_CLEAR => 0,
            _ => return None,
        })
    }

    /// Writes a register; `false` where none stands.
    ///
    /// Zeros clear causes and, in `mask_clear`, mask bits (udma §9: the driver writes complements).
    pub fn write(&mut self, group: Group, offset: u32, value: u32) -> bool {
        let registers = &mut self.groups[group.index()];
        match offset {
            iofic::CAUSE => registers.cause &= value,
            iofic::CAUSE_SET => registers.cause |= value,
            iofic::MASK => registers.mask = value,
            iofic::MASK_CLEAR => registers.mask &= value,
            iofic::CONTROL => registers.control = value,
            iofic::ABORT_MASK => registers.abort_mask = value,
            iofic::LOG_MASK => registers.log_mask = value,
            iofic::STATUS => {}
            _ => return false,
        }
        true
    }

    /// Latches causes and their summary.
    pub fn latch(&mut self, group: Group, causes: u32) {
        self.groups[group.index()].cause |= causes;
        let summary = match group {
            Group::M2S => primary_d::M2S,
            Group::S2M => primary_d::S2M,
            _ => return,
        };
        if causes != 0 {
            self.groups[Group::Primary(3).index()].cause |= 1 << summary;
        }
    }

    /// The causes of a group that stop the engine.
    pub fn aborting(&self, group: Group) -> u32 {
        !self.groups[group.index()].abort_mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complement_writes_clear_and_causes_latch() {
        let mut iofic = Iofic::default();
        iofic.write(Group::M2S, iofic::MASK, 0xffff_ffff);
        iofic.write(Group::M2S, iofic::MASK_CLEAR, !0x3f);
        assert_eq!(iofic.read(Group::M2S, iofic::MASK), Some(0xffff_ffc0));
        iofic.latch(Group::M2S, 1 << 8);
        assert_eq!(iofic.read(Group::M2S, iofic::CAUSE), Some(1 << 8));
        assert_eq!(iofic.read(Group::Primary(3), iofic::CAUSE), Some(1 << 8));
        iofic.write(Group::M2S, iofic::CONTROL, 0x29);
        assert_eq!(iofic.read(Group::M2S, iofic::CAUSE), Some(1 << 8));
        assert_eq!(iofic.read(Group::M2S, iofic::CAUSE), Some(0));
    }

    #[test]
    fn the_abort_mask_tells_what_stops_the_engine() {
        let mut iofic = Iofic::default();
        iofic.write(Group::S2M, iofic::ABORT_MASK, 1 << 11);
        assert_eq!(iofic.aborting(Group::S2M), !(1 << 11));
        assert_eq!(iofic.aborting(Group::M2S), u32::MAX);
    }
}

//! The interrupt fabric controller: where software finds what went wrong, and says what may abort the engine.
use neuron_protocol::registers::iofic::{self, GROUPS, Group, primary_a, primary_d};

/// One group of causes.
#[derive(Clone, Copy, Debug, Default)]
struct Registers {
    cause: u32,
    mask: u32,
    control: u32,
    abort_mask: u32,
    log_mask: u32,
    /// Causes whose interrupt has been raised and that still stand.
    raised: u32,
}

impl Registers {
    const fn unmasked(&self) -> u32 {
        self.cause & !self.mask
    }
}

/// All groups of an engine.
#[derive(Clone, Debug, Default)]
pub struct Iofic {
    groups: [Registers; GROUPS],
    /// The engine interrupts; taken by [`Self::interrupts`].
    interrupt: bool,
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
                    registers.raised = 0;
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
            iofic::CAUSE_SET => {
                self.latch(group, value);
                return true;
            }
            iofic::MASK => registers.mask = value,
            iofic::MASK_CLEAR => registers.mask &= value,
            iofic::CONTROL => registers.control = value,
            iofic::ABORT_MASK => registers.abort_mask = value,
            iofic::LOG_MASK => registers.log_mask = value,
            iofic::STATUS => {}
            _ => return false,
        }
        self.settle();
        true
    }

    /// Latches causes and their summary.
    pub fn latch(&mut self, group: Group, causes: u32) {
        if causes == 0 {
            return;
        }
        self.groups[group.index()].cause |= causes;
        let summary = match group {
            Group::M2S => Some(primary_d::M2S),
            Group::S2M => Some(primary_d::S2M),
            _ => None,
        };
        if let Some(bit) = summary {
            self.groups[Group::MISC.index()].cause |= 1 << bit;
        }
        self.settle();
    }

    /// Finds the causes that interrupt and have not yet: latched, masked at neither level, in a group that may.
    fn settle(&mut self) {
        for (group, sum) in [
            (Group::RX, Some(primary_a::RX)),
            (Group::TX, Some(primary_a::TX)),
            (Group::MISC, Some(primary_a::MISC)),
            // Last, for it sums up the others.
            (Group::SUMMARY, None),
        ] {
            let mut line = self.groups[group.index()].unmasked();
            if group == Group::MISC {
                for (secondary, bit) in [(Group::M2S, primary_d::M2S), (Group::S2M, primary_d::S2M)]
                {
                    let registers = &self.groups[secondary.index()];
                    // Software may set the summary without a cause behind it; a masked cause holds it back.
                    if registers.cause != 0 && registers.unmasked() == 0 {
                        line &= !(1 << bit);
                    }
                }
            }
            let registers = &mut self.groups[group.index()];
            let new = line & !registers.raised;
            registers.raised = line;
            if new == 0 {
                continue;
            }
            if registers.control & iofic::CONTROL_MASK_MSIX == 0 {
                self.interrupt = true;
                if registers.control & iofic::CONTROL_AUTO_MASK != 0 {
                    registers.mask |= new;
                }
                if registers.control & iofic::CONTROL_AUTO_CLEAR != 0 {
                    registers.cause &= !new;
                }
                registers.raised &= registers.unmasked();
            }
            if let Some(bit) = sum {
                self.groups[Group::SUMMARY.index()].cause |= 1 << bit;
            }
        }
    }

    /// Whether the engine has begun to interrupt since the last call.
    pub fn interrupts(&mut self) -> bool {
        std::mem::take(&mut self.interrupt)
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

    #[test]
    fn a_cause_interrupts_once_until_it_is_cleared() {
        let mut iofic = Iofic::default();
        iofic.latch(Group::RX, 1 << 3);
        assert!(iofic.interrupts());
        assert_eq!(iofic.read(Group::SUMMARY, iofic::CAUSE), Some(1));
        iofic.latch(Group::RX, 1 << 3);
        assert!(!iofic.interrupts());
        // The summary stands: it would interrupt no second time, the group itself does.
        iofic.write(Group::RX, iofic::CAUSE, !(1 << 3));
        assert!(!iofic.interrupts());
        iofic.latch(Group::RX, 1 << 3);
        assert!(iofic.interrupts());
    }

    #[test]
    fn masks_at_either_level_hold_an_error_back_until_they_are_cleared() {
        let mut iofic = Iofic::default();
        iofic.write(Group::M2S, iofic::MASK, 1 << 17);
        iofic.latch(Group::M2S, 1 << 17);
        assert!(!iofic.interrupts());
        assert_eq!(iofic.read(Group::MISC, iofic::CAUSE), Some(1 << 8));
        iofic.write(Group::M2S, iofic::MASK_CLEAR, !(1 << 17));
        assert!(iofic.interrupts());
        let mut iofic = Iofic::default();
        iofic.write(Group::MISC, iofic::MASK, 1 << 9);
        iofic.write(Group::S2M, iofic::CAUSE_SET, 1 << 1);
        assert!(!iofic.interrupts());
        iofic.write(Group::MISC, iofic::MASK_CLEAR, !(1 << 9));
        assert!(iofic.interrupts());
    }

    #[test]
    fn control_bits_mask_the_group_or_its_causes() {
        let mut iofic = Iofic::default();
        // As the driver leaves group D: nothing of it interrupts, and A is masked here.
        iofic.write(Group::SUMMARY, iofic::MASK, u32::MAX);
        iofic.write(Group::MISC, iofic::CONTROL, 0x28);
        iofic.latch(Group::M2S, 1 << 8);
        assert!(!iofic.interrupts());
        iofic.write(Group::TX, iofic::CONTROL, iofic::CONTROL_AUTO_MASK);
        iofic.latch(Group::TX, 1);
        assert!(iofic.interrupts());
        assert_eq!(iofic.read(Group::TX, iofic::MASK), Some(1));
        iofic.write(Group::RX, iofic::CONTROL, iofic::CONTROL_AUTO_CLEAR);
        for _ in 0..2 {
            iofic.latch(Group::RX, 1);
            assert!(iofic.interrupts());
            assert_eq!(iofic.read(Group::RX, iofic::CAUSE), Some(0));
        }
    }
}

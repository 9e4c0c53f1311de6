//! The interrupt fabric controller of an engine (udma §9, facts §3.4).
//!
//! Its registers are where software finds the cause of an error, whether or not interrupts leave the device.

/// Bytes of a group's block.
pub const GROUP_STRIDE: u32 = 0x40;
/// Offset of the secondary controller in the general unit.
pub const SECONDARY: u32 = 0x2000;

/// Latched causes.
pub const CAUSE: u32 = 0x00;
/// Write 1 to set a cause.
pub const CAUSE_SET: u32 = 0x08;
/// Causes that do not interrupt.
pub const MASK: u32 = 0x10;
/// Write **0** bits to clear mask bits: the driver writes the complement.
pub const MASK_CLEAR: u32 = 0x18;
/// Read-only: causes before the latch.
pub const STATUS: u32 = 0x20;
/// Control; bit 0 clears the cause on read.
pub const CONTROL: u32 = 0x28;
/// Causes that do **not** abort the engine.
pub const ABORT_MASK: u32 = 0x30;
/// Causes that are not logged.
pub const LOG_MASK: u32 = 0x38;

/// [`CONTROL`] bit 0: reading the cause clears it.
pub const CONTROL_CLEAR_ON_READ: u32 = 1;
/// [`CONTROL`] bit 1: a cause masks itself once it has interrupted.
pub const CONTROL_AUTO_MASK: u32 = 1 << 1;
/// [`CONTROL`] bit 2: a cause clears itself once it has interrupted.
pub const CONTROL_AUTO_CLEAR: u32 = 1 << 2;
/// [`CONTROL`] bit 5: the group sends no MSI-X. The driver sets it in each group that it programs (contract §5.3).
pub const CONTROL_MASK_MSIX: u32 = 1 << 5;

/// A group of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Summaries; 0 to 3 are A to D.
    Primary(u8),
    /// 0: m2s errors, 1: s2m errors, 2: FIFO parity.
    Secondary(u8),
}

/// Groups in the two controllers of an engine.
pub const GROUPS: usize = 7;

impl Group {
    /// Which of the three groups below interrupts.
    pub const SUMMARY: Self = Self::Primary(0);
    /// A bit for each queue: an rx descriptor with `INT_EN` is done.
    pub const RX: Self = Self::Primary(1);
    /// A bit for each queue: a tx descriptor with `INT_EN` is done.
    pub const TX: Self = Self::Primary(2);
    /// Summaries of errors, bits in [`primary_d`].
    pub const MISC: Self = Self::Primary(3);
    /// m2s errors.
    pub const M2S: Self = Self::Secondary(0);
    /// s2m errors.
    pub const S2M: Self = Self::Secondary(1);

    /// A dense index below [`GROUPS`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Primary(n) => n as usize,
            Self::Secondary(n) => 4 + n as usize,
        }
    }
}

/// Splits an offset of the general unit into group and register.
#[must_use]
pub fn locate(offset: u32) -> Option<(Group, u32)> {
    let nth = |from: u32| u8::try_from((offset - from) / GROUP_STRIDE).ok();
    let group = match offset {
        0..0x100 => Group::Primary(nth(0)?),
        SECONDARY..0x20c0 => Group::Secondary(nth(SECONDARY)?),
        _ => return None,
    };
    Some((group, offset % GROUP_STRIDE))
}

/// Bits of secondary group A (udma §9).
pub mod m2s {
    /// Response error on a data read.
    pub const DATA_AXI_RESPONSE: u8 = 8;
    /// Response error on a descriptor prefetch.
    pub const PREFETCH_AXI_RESPONSE: u8 = 11;
    /// Packet longer than programmed.
    pub const PACKET_LENGTH: u8 = 13;
    /// More descriptors in a packet than programmed.
    pub const MAX_DESCRIPTORS: u8 = 14;
    /// FIRST inside a packet.
    pub const FIRST_IN_PACKET: u8 = 15;
    /// A packet that begins without FIRST.
    pub const LAST_WITHOUT_FIRST: u8 = 16;
    /// Ring id of a fetched descriptor is not the lap's.
    pub const RING_ID: u8 = 17;
}

/// Bits of secondary group B (udma §9).
pub mod s2m {
    /// Response error on a data write.
    pub const DATA_AXI_RESPONSE: u8 = 1;
    /// No descriptor for the stream: a hint, not an error.
    pub const NO_DESCRIPTOR_HINT: u8 = 7;
    /// Response error on a descriptor prefetch.
    pub const PREFETCH_AXI_RESPONSE: u8 = 9;
    /// Ring id of a fetched descriptor is not the lap's.
    pub const RING_ID: u8 = 11;
}

/// Bits of primary group A that summarise the others (the Alpine HAL's numbers).
pub mod primary_a {
    /// Group B: rx completions.
    pub const RX: u8 = 0;
    /// Group C: tx completions.
    pub const TX: u8 = 1;
    /// Group D.
    pub const MISC: u8 = 2;
}

/// Bits of primary group D that summarise the secondary groups (udma §9).
pub mod primary_d {
    /// Secondary A: m2s.
    pub const M2S: u8 = 8;
    /// Secondary B: s2m.
    pub const S2M: u8 = 9;
}

/// Name of a register in a group.
#[must_use]
pub const fn name(offset: u32) -> Option<&'static str> {
    Some(match offset {
        CAUSE => "cause",
        CAUSE_SET => "cause_set",
        MASK => "mask",
        MASK_CLEAR => "mask_clear",
        STATUS => "status",
        CONTROL => "control",
        ABORT_MASK => "abort_mask",
        LOG_MASK => "log_mask",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_the_init_trace() {
        assert_eq!(locate(0x2030), Some((Group::M2S, ABORT_MASK)));
        assert_eq!(locate(0x2058), Some((Group::S2M, MASK_CLEAR)));
        assert_eq!(locate(0xd8), Some((Group::Primary(3), MASK_CLEAR)));
        assert_eq!(locate(0xe8), Some((Group::Primary(3), CONTROL)));
        assert_eq!(locate(0x100), None);
        assert_eq!(locate(0x20c0), None);
    }
}

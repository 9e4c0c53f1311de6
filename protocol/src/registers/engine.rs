//! The register block of one engine: m2s, s2m, general and extended units (contract §5.2, udma §3, §4, §9).
use bitfield_struct::bitfield;

use super::queue::{QUEUE_STRIDE, QUEUES};
use super::{Direction, iofic};
use crate::generation::QUEUES_PER_ENGINE;

/// The s2m unit; the m2s unit is at 0.
pub const S2M: u32 = 0x2_0000;
/// The general unit.
pub const GEN: u32 = 0x3_8000;
/// The extended unit.
pub const GEN_EX: u32 = 0x3_c000;

/// Offsets in the m2s and in the s2m unit.
pub mod unit {
    /// Read-only: four (five) state machines; [`super::state`].
    pub const STATE: u32 = 0x200;
    /// Write: [`super::ChangeState`].
    pub const CHANGE_STATE: u32 = 0x204;
    /// Errors that leave the log alone.
    pub const ERR_LOG_MASK: u32 = 0x20c;
    /// Header of the packet that failed, four words.
    pub const LOG_0: u32 = 0x214;
    /// Last of the four.
    pub const LOG_3: u32 = 0x220;
    /// Write bit 0: forget the log.
    pub const CLEAR_ERR_LOG: u32 = 0x224;
}

/// m2s: longest packet and the meaning of length 0; [`CfgLen`].
pub const M2S_CFG_LEN: u32 = 0x254;
/// m2s: descriptors per packet and scheduling; [`DescPrefCfg2`].
pub const M2S_DESC_PREF_CFG_2: u32 = 0x304;
/// s2m: bit 0 disables the stream, bit 4 flushes it, bit 8 stops prefetch.
pub const S2M_STREAM_CFG: u32 = S2M + 0x250;
/// m2s: packets sent.
pub const M2S_TX_PKT: u32 = 0x504;
/// m2s: bytes sent, low word; reading it latches the high one.
pub const M2S_TX_BYTES_LOW: u32 = 0x508;
/// m2s: bytes sent, high word.
pub const M2S_TX_BYTES_HIGH: u32 = 0x50c;
/// m2s: descriptors prefetched.
pub const M2S_PREFETCHED: u32 = 0x510;

/// [`M2S_CFG_LEN`] (contract §5.3).
#[bitfield(u32)]
pub struct CfgLen {
    /// Longest packet, bytes.
    #[bits(20)]
    pub max_packet: u32,
    #[bits(4)]
    reserved: u8,
    /// A descriptor length of 0 means 64 KiB.
    pub encode_64k: bool,
    #[bits(7)]
    rest: u8,
}

/// [`M2S_DESC_PREF_CFG_2`] (contract §5.3 step 6: 65 on every generation).
#[bitfield(u32)]
pub struct DescPrefCfg2 {
    /// Most descriptors in a packet.
    pub max_descriptors: u8,
    reserved: u8,
    /// Force round robin.
    pub force_rr: bool,
    #[bits(15)]
    rest: u16,
}

/// One state machine of [`unit::STATE`] (udma §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Machine {
    /// Enabled, no task pending.
    Idle = 0,
    /// Tasks pending.
    Normal = 1,
    /// Stopped by an error or by request.
    Abort = 2,
}

/// The value of [`unit::STATE`] when all machines of a unit agree (udma §5): fields 1:0, 5:4, 9:8, 13:12, s2m also 17:16.
#[must_use]
pub const fn state(machine: Machine, direction: Direction) -> u32 {
    let one = machine as u32;
    let four = one | one << 4 | one << 8 | one << 12;
    match direction {
        Direction::M2s => four,
        Direction::S2m => four | one << 16,
    }
}

/// [`unit::CHANGE_STATE`] (udma §5).
#[bitfield(u32)]
pub struct ChangeState {
    /// Run.
    pub normal: bool,
    /// Stop taking work.
    pub disable: bool,
    /// Stop prefetch, scheduling, completion and stream.
    pub abort: bool,
    #[bits(29)]
    rest: u32,
}

/// Where an offset of the engine block leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineLocation {
    /// A queue's register.
    Queue {
        /// Of this unit.
        direction: Direction,
        /// Queue number.
        queue: u8,
        /// Offset in the queue's block.
        offset: u32,
    },
    /// A register of the interrupt fabric.
    Iofic {
        /// Its group.
        group: iofic::Group,
        /// Offset in the group.
        offset: u32,
    },
    /// A register of the m2s or s2m unit itself.
    Unit {
        /// Which unit.
        direction: Direction,
        /// Offset in the unit.
        offset: u32,
    },
    /// A register of the general or extended unit.
    General {
        /// Offset in the engine's block.
        offset: u32,
    },
}

/// Splits an offset of the engine block. `None` past its end.
#[must_use]
pub fn locate(offset: u32) -> Option<EngineLocation> {
    let unit = |direction, offset: u32| {
        let queue = offset
            .checked_sub(QUEUES)
            .and_then(|rest| u8::try_from(rest / QUEUE_STRIDE).ok());
        match queue.filter(|queue| *queue < QUEUES_PER_ENGINE) {
            Some(queue) => EngineLocation::Queue {
                direction,
                queue,
                offset: offset % QUEUE_STRIDE,
            },
            None => EngineLocation::Unit { direction, offset },
        }
    };
    match offset {
        0..S2M => Some(unit(Direction::M2s, offset)),
        S2M..GEN => Some(unit(Direction::S2m, offset - S2M)),
        GEN..0x4_0000 => Some(match iofic::locate(offset - GEN) {
            Some((group, offset)) => EngineLocation::Iofic { group, offset },
            None => EngineLocation::General { offset },
        }),
        _ => None,
    }
}

/// Offset in the engine block of a queue's register.
#[must_use]
pub const fn queue_register(direction: Direction, queue: u8, register: u32) -> u32 {
    let unit = match direction {
        Direction::M2s => 0,
        Direction::S2m => S2M,
    };
    unit + QUEUES + QUEUE_STRIDE * queue as u32 + register
}

/// Name of a register of the m2s or s2m unit, if it is known (udma §3, §4).
#[must_use]
pub const fn unit_name(direction: Direction, offset: u32) -> Option<&'static str> {
    use Direction::{M2s, S2m};
    Some(match (direction, offset) {
        (_, 0x118) => "axi.data_rd_cfg",
        (_, 0x11c) => "axi.desc_rd_cfg_3",
        (_, 0x120) => "axi.desc_wr_cfg_1",
        (M2s, 0x124) => "axi.ostand_cfg",
        (S2m, 0x124) => "axi.ostand_cfg_rd",
        (S2m, 0x128) => "axi.ostand_cfg_wr",
        (S2m, 0x12c) => "axi.ostand_cfg_wr_2",
        (_, unit::STATE) => "state",
        (_, unit::CHANGE_STATE) => "change_state",
        (_, unit::ERR_LOG_MASK) => "err_log_mask",
        (_, unit::LOG_0) => "log_0",
        (_, 0x218) => "log_1",
        (_, 0x21c) => "log_2",
        (_, unit::LOG_3) => "log_3",
        (_, unit::CLEAR_ERR_LOG) => "clear_err_log",
        (S2m, 0x250) => "stream_cfg",
        (M2s, M2S_CFG_LEN) => "cfg_len",
        (M2s, 0x258) => "stream_cfg",
        (_, 0x300) => "rd.desc_pref_cfg_1",
        (_, M2S_DESC_PREF_CFG_2) => "rd.desc_pref_cfg_2",
        (_, 0x308) => "rd.desc_pref_cfg_3",
        (M2s, 0x310) => "rd.data_cfg",
        (S2m, 0x380) => "comp.cfg_1c",
        (S2m, 0x38c) => "comp.cfg_application_ack",
        (M2s, 0x400) => "comp.cfg_1c",
        (M2s, 0x404) => "comp.cfg_coal",
        (M2s, 0x408) => "comp.cfg_application_ack",
        (M2s, M2S_TX_PKT) => "stat.tx_pkt",
        (M2s, M2S_TX_BYTES_LOW) => "stat.tx_bytes_low",
        (M2s, M2S_TX_BYTES_HIGH) => "stat.tx_bytes_high",
        (M2s, M2S_PREFETCHED) => "stat.prefetched",
        (_, 0x600) => "feature.reg_1",
        (_, 0x604) => "feature.dma_version",
        _ => return None,
    })
}

/// Name of a register of the general or extended unit outside the interrupt fabric, if it is known (udma §9).
#[must_use]
pub fn general_name(offset: u32) -> Option<&'static str> {
    Some(match offset {
        0x3_a300 => "gen.axi.cfg_1",
        0x3_a900..0x3_aac0 => "gen.axi_error_detection",
        0x3_ab00..0x3_ab38 => "gen.axi_error_control",
        0x3_ac00..0x3_acc0 => "gen.axi_queue",
        0x3_ad00..0x3_b400 => "gen.axi_iofic",
        0x3_b460 => "gen.spare.zeroes0",
        GEN_EX..0x4_0000 if (0x3_c400..0x3_c800).contains(&offset) => match offset % 0x40 {
            0 => "gen_ex.vmpr.tx_sel",
            4 | 8 | 0xc => "gen_ex.vmpr.rx_sel",
            _ => return None,
        },
        _ => return None,
    })
}

/// Name of a register of the SDMA wrapper, if it is known (contract §5.3, facts §3.5).
#[must_use]
pub const fn sdma_name(offset: u32) -> Option<&'static str> {
    Some(match offset {
        0x00 => "event_accel",
        0x1c => "rob",
        0x20 => "wob",
        0x100 => "group_mask",
        0x104 => "last_node",
        0x800 => "cfg_800",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::queue;
    use super::*;

    #[test]
    fn offsets_of_contract_5_2() {
        assert_eq!(queue_register(Direction::M2s, 0, queue::DRTP_INC), 0x1038);
        assert_eq!(
            queue_register(Direction::S2m, 15, queue::DRTP_INC),
            0x3_0038
        );
        assert_eq!(
            locate(0x3_0038),
            Some(EngineLocation::Queue {
                direction: Direction::S2m,
                queue: 15,
                offset: 0x38
            })
        );
        assert_eq!(
            locate(0x204),
            Some(EngineLocation::Unit {
                direction: Direction::M2s,
                offset: 0x204
            })
        );
        assert_eq!(
            locate(0x2_0250),
            Some(EngineLocation::Unit {
                direction: Direction::S2m,
                offset: 0x250
            })
        );
        assert_eq!(
            locate(0x1_1000),
            Some(EngineLocation::Unit {
                direction: Direction::M2s,
                offset: 0x1_1000
            })
        );
        assert_eq!(
            locate(0x3_b460),
            Some(EngineLocation::General { offset: 0x3_b460 })
        );
        assert_eq!(locate(0x4_0000), None);
    }

    #[test]
    fn states_agree_in_every_field() {
        assert_eq!(state(Machine::Abort, Direction::M2s), 0x2222);
        assert_eq!(state(Machine::Normal, Direction::S2m), 0x1_1111);
    }
}

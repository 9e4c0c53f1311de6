//! Why an engine stops.
use std::fmt;

use neuron_protocol::registers::iofic::{m2s, s2m};
use neuron_protocol::registers::{Direction, iofic};
use rustix::io::Errno;

use crate::memory::Unmapped;

/// An error that aborts an engine: what, where, why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Queue whose descriptor failed.
    pub queue: u8,
    /// Ring of that descriptor.
    pub direction: Direction,
    /// Its index.
    pub index: u32,
    /// The address concerned, as the engine sees it.
    pub address: u64,
    /// The rule broken.
    pub kind: FaultKind,
}

/// The rules whose breach aborts an engine.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum FaultKind {
    /// A ring leads nowhere.
    #[error("descriptor fetch: {0}")]
    Fetch(Unmapped),
    /// A buffer leads nowhere.
    #[error("data: {0}")]
    Data(Unmapped),
    /// The client refused the access.
    #[error("the client answered the DMA message with {0}")]
    Client(Errno),
    /// A fault was asked for.
    #[error("response error made on purpose")]
    Injected,
    /// A fault was asked for.
    #[error("descriptor fetch: response error made on purpose")]
    InjectedFetch,
    /// Part of a register.
    #[error("a DMA write to registers must be whole aligned words")]
    PartialRegister,
    /// A ring lies in registers.
    #[error("a ring cannot lie in registers")]
    RingInRegisters,
    /// A ring was rung that has no length.
    #[error("doorbell on a ring that was never initialised (length 0)")]
    RingUnset,
    /// The tail overtook the head.
    #[error(
        "doorbell of {count} with {outstanding} of {length} descriptors outstanding: the tail passes the head"
    )]
    TailOverrun {
        /// Written.
        count: u32,
        /// Rung for and not done.
        outstanding: u32,
        /// Of the ring.
        length: u32,
    },
    /// Stale or wrong phase.
    #[error(
        "ring id {found} where this lap has {expected}: a stale descriptor or a phase not advanced at the wrap"
    )]
    RingId {
        /// Of the lap.
        expected: u8,
        /// In the descriptor.
        found: u8,
    },
    /// FIRST inside a packet.
    #[error("FIRST inside a packet whose LAST has not come")]
    FirstInPacket,
    /// A packet that begins without FIRST.
    #[error("a packet begins without FIRST")]
    WithoutFirst,
    /// Too many descriptors.
    #[error("more than {limit} descriptors in a packet (desc_pref_cfg_2)")]
    TooManyDescriptors {
        /// As programmed.
        limit: u8,
    },
    /// A packet longer than programmed.
    #[error("a packet of {bytes} bytes or more, where cfg_len allows {limit}")]
    PacketTooLong {
        /// So far.
        bytes: u32,
        /// As programmed.
        limit: u32,
    },
    /// A ring off its boundary.
    #[error("base or end of the ring ({length} descriptors) is not on a 256-byte boundary")]
    RingMisaligned {
        /// Of the ring.
        length: u32,
    },
    /// An operation that is not modelled.
    #[error("{operation} (second word {word:#010x}) is not modelled, only plain copies are")]
    Operation {
        /// Its name.
        operation: &'static str,
        /// The descriptor's second word.
        word: u32,
    },
    /// Software wrote the abort bit.
    #[error("abort requested through change_state")]
    Requested,
}

impl FaultKind {
    /// Software may mask it and the queue goes on: bytes are lost or a rule is waived.
    pub const fn can_go_on(&self) -> bool {
        matches!(
            self,
            Self::Data(_)
                | Self::RingId { .. }
                | Self::FirstInPacket
                | Self::WithoutFirst
                | Self::TooManyDescriptors { .. }
                | Self::PacketTooLong { .. }
        )
    }
}

impl Fault {
    /// Where the interrupt controller shows it, if it has a bit for it.
    pub fn cause(&self) -> Option<(iofic::Group, u8)> {
        let m2s_side = self.direction == Direction::M2s;
        let (m2s_bit, s2m_bit) = match self.kind {
            FaultKind::Fetch(_)
            | FaultKind::InjectedFetch
            | FaultKind::RingInRegisters
            | FaultKind::RingUnset
            | FaultKind::RingMisaligned { .. } => {
                (m2s::PREFETCH_AXI_RESPONSE, s2m::PREFETCH_AXI_RESPONSE)
            }
            FaultKind::Data(_)
            | FaultKind::Client(_)
            | FaultKind::Injected
            | FaultKind::PartialRegister => (m2s::DATA_AXI_RESPONSE, s2m::DATA_AXI_RESPONSE),
            FaultKind::RingId { .. } => (m2s::RING_ID, s2m::RING_ID),
            FaultKind::PacketTooLong { .. } => (m2s::PACKET_LENGTH, m2s::PACKET_LENGTH),
            FaultKind::FirstInPacket => (m2s::FIRST_IN_PACKET, m2s::FIRST_IN_PACKET),
            FaultKind::WithoutFirst => (m2s::LAST_WITHOUT_FIRST, m2s::LAST_WITHOUT_FIRST),
            FaultKind::TooManyDescriptors { .. } => (m2s::MAX_DESCRIPTORS, m2s::MAX_DESCRIPTORS),
            FaultKind::TailOverrun { .. } | FaultKind::Operation { .. } | FaultKind::Requested => {
                return None;
            }
        };
        Some(if m2s_side {
            (iofic::Group::M2S, m2s_bit)
        } else {
            (iofic::Group::S2M, s2m_bit)
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            queue,
            direction,
            index,
            address,
            kind,
        } = self;
        write!(
            f,
            "q{queue} {direction} descriptor {index}, address {address:#x}: {kind}"
        )
    }
}

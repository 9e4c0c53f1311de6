//! The 16-byte UDMA descriptor, in its two forms.
//!
//! ```text
//!           m2s (tx)          s2m (rx)
//! 0   u32   len_ctrl          len_ctrl
//! 4   u32   meta_ctrl         buf2 pointer low, 0
//! 8   u64   source address    destination address
//! ```
//! Little-endian (contract §8.1, udma §6). The same on V2, V3 and V4.
use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian};

use crate::ring::RingId;

/// Bytes in one descriptor of either direction (contract §8.1).
pub const DESCRIPTOR_SIZE: usize = 16;

/// Most bytes one descriptor can move: the length field's 0 (seed §2 "len0 trick", contract §5.3 `cfg_len` bit 24).
pub const MAX_DESCRIPTOR_LENGTH: u32 = 0x1_0000;

/// First word of a descriptor of either direction (contract §8.1, facts §2.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct LenCtrl {
    /// Bytes to move; 0 means 64 KiB.
    pub length: u16,
    #[bits(7)]
    reserved: u8,
    /// tx: a meta descriptor, whose other words are not a buffer. User runtime only.
    pub meta: bool,
    /// Phase: the ring id of the lap in which this was written.
    #[bits(2)]
    pub ring_id_bits: u8,
    /// tx: first descriptor of a packet.
    pub first: bool,
    /// tx: last descriptor of a packet.
    pub last: bool,
    /// Interrupt on completion. No supported driver sets it.
    pub interrupt: bool,
    /// rx, V3 and later: strong-order write.
    pub strong_order: bool,
    /// tx: data memory barrier.
    pub dmb: bool,
    /// tx: continues the packet of an earlier descriptor. User runtime only. rx: of two buffers (udma §6).
    pub concat: bool,
}

impl LenCtrl {
    /// The two phase bits as a [`RingId`].
    #[must_use]
    pub const fn ring_id(self) -> RingId {
        RingId::from_bits(self.ring_id_bits())
    }

    /// Sets the phase bits.
    #[must_use]
    pub const fn with_ring_id(self, id: RingId) -> Self {
        self.with_ring_id_bits(id.bits())
    }

    /// Bytes to move: 1 ..= 65,536.
    #[must_use]
    pub const fn byte_length(self) -> u32 {
        match self.length() {
            0 => MAX_DESCRIPTOR_LENGTH,
            n => n as u32,
        }
    }

    /// Sets the length field for `bytes`; `None` unless 1 ..= 65,536.
    #[must_use]
    pub fn with_byte_length(self, bytes: u32) -> Option<Self> {
        match bytes {
            0 => None,
            MAX_DESCRIPTOR_LENGTH => Some(self.with_length(0)),
            n => u16::try_from(n).ok().map(|n| self.with_length(n)),
        }
    }
}

/// Second word of a tx descriptor (contract §8.1, facts §2.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct MetaCtrl {
    /// Last block of the CRC/copy operation.
    pub last_block: bool,
    /// First block of the CRC/copy operation.
    pub first_block: bool,
    #[bits(1)]
    reserved2: u8,
    /// Index of the stored CRC initial value.
    #[bits(3)]
    pub crc_iv_index: u8,
    /// Byte and bit swaps of result, intermediate, source and initial value.
    pub swaps: u8,
    /// Compare the CRC with one in the stream.
    pub validate_crc: bool,
    /// Start from a stored CRC initial value.
    pub use_stored_crc_iv: bool,
    /// Append the CRC to the destination.
    pub send_crc: bool,
    /// Keep the CRC as a stored initial value.
    pub store_crc: bool,
    /// Keep the source CRC.
    pub store_source_crc: bool,
    /// Copy source bytes to the destination.
    pub copy_source: bool,
    /// Operation subtype.
    #[bits(3)]
    pub op_type: u8,
    /// Operation; 2 is copy.
    #[bits(3)]
    pub op: u8,
    /// All earlier writes land before later ones.
    pub write_barrier: bool,
    #[bits(1)]
    reserved27: u8,
    /// Suppress the notification (user runtime, V4).
    pub notification_mask: bool,
    #[bits(3)]
    reserved29: u8,
}

impl MetaCtrl {
    /// What the kernel driver writes for every plain copy (facts §2.2).
    pub const COPY: Self = Self::from_bits(0x0108_0003);
}

/// [`MetaCtrl::op`] of a plain copy (facts §2.2 `ssmae_op`).
pub const OP_COPY: u8 = 2;

/// How a descriptor is ordered against others (facts §2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Barrier {
    /// Unordered.
    #[default]
    None,
    /// tx `len_ctrl` bit 30: the queue stops until earlier descriptors are done.
    Dmb,
    /// tx `meta_ctrl` bit 26: earlier writes land first. What kernels set on the last data descriptor of a batch.
    Write,
    /// rx `len_ctrl` bit 29, V3 and later: this write lands after all earlier ones.
    StrongOrder,
}

/// What a tx descriptor asks the engine to do, as far as `meta_ctrl` tells (facts §2.2, §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Move bytes unchanged.
    Copy,
    /// An operation this project names but does not model.
    Unsupported(&'static str),
}

/// A descriptor of the memory-to-stream direction: a source.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TxDescriptor {
    len_ctrl: little_endian::U32,
    meta_ctrl: little_endian::U32,
    source: little_endian::U64,
}

impl TxDescriptor {
    /// A one-descriptor packet as the kernel writes it: FIRST, LAST, plain copy.
    ///
    /// `None` unless `bytes` is 1 ..= 65,536. [`Barrier::StrongOrder`] has no tx bit and changes nothing here.
    #[must_use]
    pub fn copy(source: u64, bytes: u32, ring_id: RingId, barrier: Barrier) -> Option<Self> {
        let len_ctrl = LenCtrl::new()
            .with_byte_length(bytes)?
            .with_ring_id(ring_id)
            .with_first(true)
            .with_last(true)
            .with_dmb(barrier == Barrier::Dmb);
        let meta = MetaCtrl::COPY.with_write_barrier(barrier == Barrier::Write);
        Some(Self::from_words(len_ctrl, meta, source))
    }

    /// Assembles the three fields.
    #[must_use]
    pub const fn from_words(len_ctrl: LenCtrl, meta_ctrl: MetaCtrl, source: u64) -> Self {
        Self {
            len_ctrl: little_endian::U32::new(len_ctrl.into_bits()),
            meta_ctrl: little_endian::U32::new(meta_ctrl.into_bits()),
            source: little_endian::U64::new(source),
        }
    }

    /// First word.
    #[must_use]
    pub const fn len_ctrl(&self) -> LenCtrl {
        LenCtrl::from_bits(self.len_ctrl.get())
    }

    /// Second word.
    #[must_use]
    pub const fn meta_ctrl(&self) -> MetaCtrl {
        MetaCtrl::from_bits(self.meta_ctrl.get())
    }

    /// Device-side address of the first source byte.
    #[must_use]
    pub const fn source(&self) -> u64 {
        self.source.get()
    }

    /// What the engine is asked to do.
    ///
    /// Everything but a plain copy is named, so that it can be refused by name.
    #[must_use]
    pub fn operation(&self) -> Operation {
        let meta = self.meta_ctrl();
        if self.len_ctrl().meta() {
            return Operation::Unsupported("CRC/CME meta descriptor");
        }
        match (meta.op(), meta.op_type()) {
            (OP_COPY, 0)
                if meta.validate_crc()
                    || meta.send_crc()
                    || meta.store_crc()
                    || meta.use_stored_crc_iv() =>
            {
                Operation::Unsupported("CRC")
            }
            (OP_COPY, 0) if meta.swaps() != 0 => Operation::Unsupported("byte or bit swap"),
            (OP_COPY, 0) if meta.copy_source() => Operation::Copy,
            (OP_COPY, 0) => Operation::Unsupported("CRC without copy"),
            (1, 0) => Operation::Unsupported("SDMA striding split"),
            (1, 1) => Operation::Unsupported("SDMA transpose"),
            (1, 2) => Operation::Unsupported("SDMA replication"),
            (4, 0) => Operation::Unsupported("CCE add or min/max"),
            (4, 1) => Operation::Unsupported("CCE fma"),
            (4, 4) => Operation::Unsupported("CCE extended"),
            (4, 5) => Operation::Unsupported("CCE gradient"),
            _ => Operation::Unsupported("unknown operation"),
        }
    }
}

/// A descriptor of the stream-to-memory direction: a destination.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RxDescriptor {
    len_ctrl: little_endian::U32,
    word: little_endian::U32,
    destination: little_endian::U64,
}

impl RxDescriptor {
    /// A destination as the kernel writes it: neither FIRST nor LAST (facts §8.1).
    ///
    /// `None` unless `bytes` is 1 ..= 65,536. Only [`Barrier::StrongOrder`] has an rx bit.
    #[must_use]
    pub fn new(destination: u64, bytes: u32, ring_id: RingId, barrier: Barrier) -> Option<Self> {
        let len_ctrl = LenCtrl::new()
            .with_byte_length(bytes)?
            .with_ring_id(ring_id)
            .with_strong_order(barrier == Barrier::StrongOrder);
        Some(Self::from_words(len_ctrl, destination))
    }

    /// Assembles the fields; the second word stays 0.
    #[must_use]
    pub const fn from_words(len_ctrl: LenCtrl, destination: u64) -> Self {
        Self {
            len_ctrl: little_endian::U32::new(len_ctrl.into_bits()),
            word: little_endian::U32::ZERO,
            destination: little_endian::U64::new(destination),
        }
    }

    /// First word.
    #[must_use]
    pub const fn len_ctrl(&self) -> LenCtrl {
        LenCtrl::from_bits(self.len_ctrl.get())
    }

    /// Second word, 0 in what kernels write (contract §8.1).
    #[must_use]
    pub const fn word(&self) -> u32 {
        self.word.get()
    }

    /// What the engine is asked to do.
    ///
    /// The user runtime has it increment a semaphore with the last destination of a packet; how is not public (seed §5).
    /// A kernel's descriptor has nothing where that, or the second buffer of other UDMA parts, could be.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        if self.word() == 0 && !self.len_ctrl().concat() {
            Operation::Copy
        } else {
            Operation::Unsupported("embedded semaphore or second buffer")
        }
    }

    /// Device-side address of the first destination byte.
    #[must_use]
    pub const fn destination(&self) -> u64 {
        self.destination.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_zero_is_64_kib() {
        assert_eq!(LenCtrl::new().byte_length(), 0x1_0000);
        assert_eq!(
            LenCtrl::new().with_byte_length(0x1_0000),
            Some(LenCtrl::new())
        );
        assert_eq!(LenCtrl::new().with_byte_length(0), None);
        assert_eq!(LenCtrl::new().with_byte_length(0x1_0001), None);
        assert_eq!(
            LenCtrl::new()
                .with_byte_length(0xffff)
                .map(LenCtrl::byte_length),
            Some(0xffff)
        );
    }

    #[test]
    fn each_barrier_has_its_own_bit() {
        let tx = |b| TxDescriptor::copy(0, 4, RingId::INITIAL, b).unwrap();
        let rx = |b| RxDescriptor::new(0, 4, RingId::INITIAL, b).unwrap();
        assert_eq!(
            tx(Barrier::Dmb).len_ctrl().into_bits() ^ tx(Barrier::None).len_ctrl().into_bits(),
            1 << 30
        );
        assert_eq!(tx(Barrier::Write).meta_ctrl().into_bits(), 0x0508_0003);
        assert_eq!(tx(Barrier::StrongOrder), tx(Barrier::None));
        assert_eq!(
            rx(Barrier::StrongOrder).len_ctrl().into_bits()
                ^ rx(Barrier::None).len_ctrl().into_bits(),
            1 << 29
        );
        assert_eq!(rx(Barrier::Write), rx(Barrier::None));
    }

    #[test]
    fn only_a_plain_copy_is_a_copy() {
        let with = |meta| {
            TxDescriptor::from_words(LenCtrl::new(), MetaCtrl::from_bits(meta), 0).operation()
        };
        assert_eq!(with(0x0108_0003), Operation::Copy);
        assert_eq!(with(0x0508_0003), Operation::Copy);
        assert_eq!(
            with(0x0080_0000),
            Operation::Unsupported("SDMA striding split")
        );
        assert_eq!(with(0x0090_0000), Operation::Unsupported("SDMA transpose"));
        assert_eq!(
            with(0x00a0_0000),
            Operation::Unsupported("SDMA replication")
        );
        assert_eq!(with(0x0210_0000), Operation::Unsupported("CCE fma"));
        assert_eq!(with(0x0108_0003 | 1 << 16), Operation::Unsupported("CRC"));
        assert_eq!(
            with(0x0108_0003 | 1 << 6),
            Operation::Unsupported("byte or bit swap")
        );
        let meta = TxDescriptor::from_words(LenCtrl::from_bits(0x0480_0000), MetaCtrl::COPY, 0);
        assert!(matches!(meta.operation(), Operation::Unsupported(_)));
    }
}

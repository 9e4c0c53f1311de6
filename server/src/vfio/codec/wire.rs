//! The bytes: message layouts, command numbers and flags of vfio-user 0.0.
//!
//! Every field is little endian and unaligned, so that a message can be read where it lies in the receive buffer. The
//! structures that vfio-user borrows from `linux/vfio.h` keep that header's field order.
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a message asks for. Numbers from the vfio-user specification; 14 is QEMU's `DIRTY_PAGES`, since withdrawn.
pub mod command {
    /// Negotiates version and limits; the first message of a connection.
    pub const VERSION: u16 = 1;
    /// Adds a range of client memory.
    pub const DMA_MAP: u16 = 2;
    /// Removes ranges of client memory.
    pub const DMA_UNMAP: u16 = 3;
    /// Counts regions and interrupts.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Describes one region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Asks for ioeventfds; none are offered.
    pub const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    /// Describes one interrupt index.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Configures or signals interrupts.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Reads a region.
    pub const REGION_READ: u16 = 9;
    /// Writes a region.
    pub const REGION_WRITE: u16 = 10;
    /// Server to client: reads client memory.
    pub const DMA_READ: u16 = 11;
    /// Server to client: writes client memory.
    pub const DMA_WRITE: u16 = 12;
    /// Returns the function to its power-on state.
    pub const DEVICE_RESET: u16 = 13;
    /// Dirty page tracking, for migration.
    pub const DIRTY_PAGES: u16 = 14;
    /// Several small region writes in one message.
    pub const REGION_WRITE_MULTI: u16 = 15;
    /// Probes, reads or sets an optional feature.
    pub const DEVICE_FEATURE: u16 = 16;
    /// Reads migration data.
    pub const MIG_DATA_READ: u16 = 17;
    /// Writes migration data.
    pub const MIG_DATA_WRITE: u16 = 18;

    /// The name for logs.
    pub fn name(code: u16) -> &'static str {
        match code {
            VERSION => "VERSION",
            DMA_MAP => "DMA_MAP",
            DMA_UNMAP => "DMA_UNMAP",
            DEVICE_GET_INFO => "DEVICE_GET_INFO",
            DEVICE_GET_REGION_INFO => "DEVICE_GET_REGION_INFO",
            DEVICE_GET_REGION_IO_FDS => "DEVICE_GET_REGION_IO_FDS",
            DEVICE_GET_IRQ_INFO => "DEVICE_GET_IRQ_INFO",
            DEVICE_SET_IRQS => "DEVICE_SET_IRQS",
            REGION_READ => "REGION_READ",
            REGION_WRITE => "REGION_WRITE",
            DMA_READ => "DMA_READ",
            DMA_WRITE => "DMA_WRITE",
            DEVICE_RESET => "DEVICE_RESET",
            DIRTY_PAGES => "DIRTY_PAGES",
            REGION_WRITE_MULTI => "REGION_WRITE_MULTI",
            DEVICE_FEATURE => "DEVICE_FEATURE",
            MIG_DATA_READ => "MIG_DATA_READ",
            MIG_DATA_WRITE => "MIG_DATA_WRITE",
            _ => "unknown command",
        }
    }
}

/// Bits of [`Header::flags`].
pub mod flags {
    /// Mask of the message type.
    pub const TYPE: u32 = 0xf;
    /// Type: a command.
    pub const COMMAND: u32 = 0;
    /// Type: the reply to the command with the same id.
    pub const REPLY: u32 = 1;
    /// The sender wants no reply, not even an error.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The command failed; [`super::Header::error`] says why.
    pub const ERROR: u32 = 1 << 5;
}

/// Bits of [`DmaMap::flags`].
pub mod map_flags {
    /// The device may read.
    pub const READ: u32 = 1 << 0;
    /// The device may write.
    pub const WRITE: u32 = 1 << 1;
    /// The descriptor is meant to be mapped.
    pub const MMAP: u32 = 1 << 2;
    /// The descriptor is meant for `pread` and `pwrite`.
    pub const FILE_IO: u32 = 1 << 3;
}

/// Bits of [`DmaUnmap::flags`].
pub mod unmap_flags {
    /// Return the dirty page bitmap as well.
    pub const GET_DIRTY_BITMAP: u32 = 1 << 0;
    /// Remove every mapping; address and size are zero.
    pub const ALL: u32 = 1 << 1;
}

/// Bits of [`DeviceInfo::flags`].
pub mod device_flags {
    /// `DEVICE_RESET` works.
    pub const RESET: u32 = 1 << 0;
    /// A PCI function.
    pub const PCI: u32 = 1 << 1;
}

/// Bits of [`RegionInfo::flags`].
pub mod region_flags {
    /// May be read.
    pub const READ: u32 = 1 << 0;
    /// May be written.
    pub const WRITE: u32 = 1 << 1;
    /// May be mapped, in part or whole.
    pub const MMAP: u32 = 1 << 2;
    /// A capability list follows.
    pub const CAPS: u32 = 1 << 3;
}

/// Bits of [`IrqInfo::flags`].
pub mod irq_flags {
    /// Signalled by eventfd.
    pub const EVENTFD: u32 = 1 << 0;
    /// May be masked.
    pub const MASKABLE: u32 = 1 << 1;
    /// Vectors cannot be added while the index is enabled.
    pub const NORESIZE: u32 = 1 << 3;
}

/// Bits of [`IrqSet::flags`].
pub mod irq_set_flags {
    /// No data: the action applies to every vector named.
    pub const DATA_NONE: u32 = 1 << 0;
    /// One byte per vector.
    pub const DATA_BOOL: u32 = 1 << 1;
    /// One descriptor per vector, beside the message.
    pub const DATA_EVENTFD: u32 = 1 << 2;
    /// Mask.
    pub const ACTION_MASK: u32 = 1 << 3;
    /// Unmask.
    pub const ACTION_UNMASK: u32 = 1 << 4;
    /// Signal, or connect what will be signalled.
    pub const ACTION_TRIGGER: u32 = 1 << 5;
}

/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
pub const CAP_SPARSE_MMAP: u16 = 1;

/// What begins every message.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of a command, echoed by its reply.
    pub id: U16,
    /// See [`command`].
    pub command: U16,
    /// Length of the whole message, this header included.
    pub size: U32,
    /// See [`flags`].
    pub flags: U32,
    /// An errno, in replies with [`flags::ERROR`].
    pub error: U32,
}

/// Payload of `VERSION`, both ways; NUL-terminated JSON may follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Version {
    /// Incompatible between different values.
    pub major: U16,
    /// Compatible with every smaller value.
    pub minor: U16,
}

/// Payload of `DMA_MAP`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DmaMap {
    /// Size of this structure.
    pub argsz: U32,
    /// See [`map_flags`].
    pub flags: U32,
    /// Offset in the file passed along.
    pub offset: U64,
    /// First I/O virtual address.
    pub iova: U64,
    /// Bytes.
    pub size: U64,
}

/// Payload of `DMA_UNMAP`, both ways.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DmaUnmap {
    /// Size of this structure.
    pub argsz: U32,
    /// See [`unmap_flags`].
    pub flags: U32,
    /// First I/O virtual address.
    pub iova: U64,
    /// Bytes.
    pub size: U64,
}

/// Payload of `DEVICE_GET_INFO`, both ways.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DeviceInfo {
    /// Room for the reply; in the reply, the room needed.
    pub argsz: U32,
    /// See [`device_flags`].
    pub flags: U32,
    /// Number of regions.
    pub num_regions: U32,
    /// Number of interrupt indices.
    pub num_irqs: U32,
}

/// Payload of `DEVICE_GET_REGION_INFO`, both ways; capabilities may follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RegionInfo {
    /// Room for the reply; in the reply, the room needed.
    pub argsz: U32,
    /// See [`region_flags`].
    pub flags: U32,
    /// Which region.
    pub index: U32,
    /// Offset of the first capability from the start of this structure.
    pub cap_offset: U32,
    /// Bytes.
    pub size: U64,
    /// Offset of the region in the file passed along.
    pub offset: U64,
}

/// The sparse-mmap capability up to its areas.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SparseMmapCap {
    /// [`CAP_SPARSE_MMAP`].
    pub id: U16,
    /// 1.
    pub version: U16,
    /// Offset of the next capability from the start of the region information; 0 at the last.
    pub next: U32,
    /// Number of [`SparseMmapArea`] that follow.
    pub nr_areas: U32,
    /// 0.
    pub reserved: U32,
}

/// One mappable range of a region.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SparseMmapArea {
    /// Offset in the region.
    pub offset: U64,
    /// Bytes.
    pub size: U64,
}

/// Payload of `DEVICE_GET_IRQ_INFO`, both ways.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IrqInfo {
    /// Size of this structure.
    pub argsz: U32,
    /// See [`irq_flags`].
    pub flags: U32,
    /// Which index.
    pub index: U32,
    /// Number of vectors.
    pub count: U32,
}

/// Payload of `DEVICE_SET_IRQS`; one byte per vector may follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IrqSet {
    /// Size of this structure and of what follows.
    pub argsz: U32,
    /// See [`irq_set_flags`].
    pub flags: U32,
    /// Which index.
    pub index: U32,
    /// First vector.
    pub start: U32,
    /// Number of vectors.
    pub count: U32,
}

/// Payload of `REGION_READ` and `REGION_WRITE`, both ways; data follow in a read's reply and in a write.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RegionAccess {
    /// Offset in the region.
    pub offset: U64,
    /// Which region.
    pub region: U32,
    /// Bytes.
    pub count: U32,
}

/// One write of `REGION_WRITE_MULTI`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct MultiWrite {
    /// Where, and how many of the bytes count.
    pub access: RegionAccess,
    /// The bytes.
    pub data: [u8; 8],
}

/// Payload of `DMA_READ` and `DMA_WRITE`; data follow in a read's reply and in a write.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DmaAccess {
    /// First I/O virtual address.
    pub iova: U64,
    /// Bytes.
    pub count: U64,
}

/// Payload of `DMA_READ` and `DMA_WRITE` as some older QEMU has it (its sources; 11.1.3 follows the specification): the
/// count is half as wide, and the data begin right after it, four bytes early. The message is as long as the
/// specification says, with four unused bytes at its end.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NarrowDmaAccess {
    /// First I/O virtual address.
    pub iova: U64,
    /// Bytes.
    pub count: U32,
}

/// Payload of `DEVICE_FEATURE`; data follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DeviceFeature {
    /// Room for the reply.
    pub argsz: U32,
    /// Feature number and operation.
    pub flags: U32,
}

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<DmaMap>() == 32);
    assert!(size_of::<DmaUnmap>() == 24);
    assert!(size_of::<DeviceInfo>() == 16);
    assert!(size_of::<RegionInfo>() == 32);
    assert!(size_of::<SparseMmapCap>() == 16);
    assert!(size_of::<IrqInfo>() == 16);
    assert!(size_of::<IrqSet>() == 20);
    assert!(size_of::<RegionAccess>() == 16);
    assert!(size_of::<MultiWrite>() == 24);
    assert!(size_of::<DmaAccess>() == 16);
};

//! Replies: typed values to bytes and, for the replies that a server receives, back.
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{self, command, device_flags, flags, irq_flags, region_flags};
use super::{begin_message, end_message, size_field};
use crate::vfio::{Irq, Region};

/// What answers a command. `REGION_READ` is answered by [`region_read_reply`], in place.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// The command failed.
    Error {
        /// Of the command.
        command: u16,
        /// Why.
        errno: Errno,
    },
    /// Done, nothing to say: `DMA_MAP`, `SET_IRQS`, `DEVICE_RESET`, `REGION_WRITE_MULTI`.
    Done {
        /// Of the command.
        command: u16,
    },
    /// Version 0.0 and JSON with its NUL.
    Version {
        /// Not longer than the request's.
        data: &'a [u8],
    },
    /// The request, echoed.
    DmaUnmap(wire::DmaUnmap),
    /// A resettable PCI device.
    DeviceInfo {
        /// Number of regions.
        regions: u32,
        /// Number of interrupt indices.
        irqs: u32,
    },
    /// One region; its mappable areas only if `argsz` has room for them.
    RegionInfo {
        /// Room that the client has.
        argsz: u32,
        /// Which.
        index: u32,
        /// Itself.
        region: &'a Region,
    },
    /// One interrupt index.
    IrqInfo {
        /// Which.
        index: u32,
        /// Itself.
        irq: Irq,
    },
    /// The access, echoed without data.
    RegionWrite {
        /// As sent.
        region: u32,
        /// As sent.
        offset: u64,
        /// Bytes written.
        count: u32,
    },
    /// Client to server: the access, echoed, and the bytes.
    DmaRead {
        /// As asked.
        iova: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Client to server: the access, echoed.
    DmaWrite {
        /// As asked.
        iova: u64,
        /// Bytes written.
        count: u64,
    },
}

impl Reply<'_> {
    /// The number of the command that this answers.
    pub fn code(&self) -> u16 {
        match self {
            Self::Error { command, .. } | Self::Done { command } => *command,
            Self::Version { .. } => command::VERSION,
            Self::DmaUnmap(_) => command::DMA_UNMAP,
            Self::DeviceInfo { .. } => command::DEVICE_GET_INFO,
            Self::RegionInfo { .. } => command::DEVICE_GET_REGION_INFO,
            Self::IrqInfo { .. } => command::DEVICE_GET_IRQ_INFO,
            Self::RegionWrite { .. } => command::REGION_WRITE,
            Self::DmaRead { .. } => command::DMA_READ,
            Self::DmaWrite { .. } => command::DMA_WRITE,
        }
    }

    /// Appends the whole message to `out`. True: the region's file is to be passed along.
    pub fn encode(&self, id: u16, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let (bits, error) = match self {
            Self::Error { errno, .. } => (
                flags::REPLY | flags::ERROR,
                u32::try_from(errno.raw_os_error()).unwrap_or_default(),
            ),
            _ => (flags::REPLY, 0),
        };
        begin_message(out, id, self.code(), bits, error);
        let mut pass_file = false;
        match *self {
            Self::Error { .. } | Self::Done { .. } => {}
            Self::Version { data } => {
                out.extend_from_slice(
                    wire::Version {
                        major: 0.into(),
                        minor: 0.into(),
                    }
                    .as_bytes(),
                );
                out.extend_from_slice(data);
            }
            Self::DmaUnmap(unmap) => out.extend_from_slice(unmap.as_bytes()),
            Self::DeviceInfo { regions, irqs } => {
                let info = wire::DeviceInfo {
                    argsz: size_field(size_of::<wire::DeviceInfo>()).into(),
                    flags: (device_flags::PCI | device_flags::RESET).into(),
                    num_regions: regions.into(),
                    num_irqs: irqs.into(),
                };
                out.extend_from_slice(info.as_bytes());
            }
            Self::RegionInfo {
                argsz,
                index,
                region,
            } => pass_file = encode_region_info(argsz, index, region, out),
            Self::IrqInfo { index, irq } => {
                let bits = [
                    (irq.eventfd, irq_flags::EVENTFD),
                    (irq.maskable, irq_flags::MASKABLE),
                    (irq.noresize, irq_flags::NORESIZE),
                ];
                let info = wire::IrqInfo {
                    argsz: size_field(size_of::<wire::IrqInfo>()).into(),
                    flags: union(&bits).into(),
                    index: index.into(),
                    count: irq.count.into(),
                };
                out.extend_from_slice(info.as_bytes());
            }
            Self::RegionWrite {
                region,
                offset,
                count,
            } => {
                let access = wire::RegionAccess {
                    offset: offset.into(),
                    region: region.into(),
                    count: count.into(),
                };
                out.extend_from_slice(access.as_bytes());
            }
            Self::DmaRead { iova, data } => {
                let count = u64::from(size_field(data.len()));
                out.extend_from_slice(
                    wire::DmaAccess {
                        iova: iova.into(),
                        count: count.into(),
                    }
                    .as_bytes(),
                );
                out.extend_from_slice(data);
            }
            Self::DmaWrite { iova, count } => {
                out.extend_from_slice(
                    wire::DmaAccess {
                        iova: iova.into(),
                        count: count.into(),
                    }
                    .as_bytes(),
                );
            }
        }
        end_message(out, start);
        pass_file
    }
}

fn union(bits: &[(bool, u32)]) -> u32 {
    bits.iter()
        .filter(|(set, _)| *set)
        .map(|(_, bit)| bit)
        .sum()
}

/// The reply carries the capabilities, and the file with them, only if the client has room: QEMU's first request never
/// has (qemu client). It reads the needed size from `argsz` and asks again; the capability flag without an offset would
/// make it give up.
fn encode_region_info(argsz: u32, index: u32, region: &Region, out: &mut Vec<u8>) -> bool {
    let mut bits = union(&[
        (region.read, region_flags::READ),
        (region.write, region_flags::WRITE),
        (region.mmap.is_some(), region_flags::MMAP),
    ]);
    let fixed = size_field(size_of::<wire::RegionInfo>());
    let areas = region.mmap.as_ref().map_or(&[][..], |mmap| &mmap.areas[..]);
    let caps = if areas.is_empty() {
        0
    } else {
        size_field(size_of::<wire::SparseMmapCap>() + size_of_val(areas))
    };
    let need = fixed + caps;
    let with_caps = caps > 0 && argsz >= need;
    if with_caps {
        bits |= region_flags::CAPS;
    }
    let info = wire::RegionInfo {
        argsz: need.into(),
        flags: bits.into(),
        index: index.into(),
        cap_offset: if with_caps { fixed } else { 0 }.into(),
        size: region.size.into(),
        offset: 0.into(),
    };
    out.extend_from_slice(info.as_bytes());
    if with_caps {
        let cap = wire::SparseMmapCap {
            id: wire::CAP_SPARSE_MMAP.into(),
            version: 1.into(),
            next: 0.into(),
            nr_areas: size_field(areas.len()).into(),
            reserved: 0.into(),
        };
        out.extend_from_slice(cap.as_bytes());
        for area in areas {
            let area = wire::SparseMmapArea {
                offset: area.offset.into(),
                size: area.size.into(),
            };
            out.extend_from_slice(area.as_bytes());
        }
    }
    with_caps
}

/// Appends the reply to a `REGION_READ` and lets `fill` write the data in place; on its error the reply is taken back.
///
/// # Errors
/// That of `fill`.
pub fn region_read_reply<E>(
    id: u16,
    (region, offset, count): (u32, u64, u32),
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let start = out.len();
    begin_message(out, id, command::REGION_READ, flags::REPLY, 0);
    let access = wire::RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: count.into(),
    };
    out.extend_from_slice(access.as_bytes());
    let data = out.len();
    out.resize(data + usize::try_from(count).unwrap_or_default(), 0);
    let result = fill(&mut out[data..]);
    match result {
        Ok(()) => end_message(out, start),
        Err(_) => out.truncate(start),
    }
    result
}

/// The reply to a `DMA_READ` or `DMA_WRITE` as a server receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaReplyBody;

impl DmaReplyBody {
    /// The errno of an error reply. A client that sets the flag without a number still failed.
    pub fn error(header: &wire::Header) -> Option<Errno> {
        if header.flags.get() & flags::ERROR == 0 {
            return None;
        }
        match i32::try_from(header.error.get()) {
            // The kernel's own bound for an errno.
            Ok(raw @ 1..=4095) => Some(Errno::from_raw_os_error(raw)),
            _ => Some(Errno::IO),
        }
    }

    /// The data of a read reply, if it is exactly the reply to `count` bytes at `iova`.
    pub fn read(payload: &[u8], iova: u64, count: usize) -> Option<&[u8]> {
        let (access, data) = wire::DmaAccess::ref_from_prefix(payload).ok()?;
        let announced = usize::try_from(access.count.get()).ok()?;
        (access.iova.get() == iova && announced == count && data.len() == count).then_some(data)
    }

    /// The same in the layout of [`wire::NarrowDmaAccess`].
    pub fn narrow_read(payload: &[u8], iova: u64, count: usize) -> Option<&[u8]> {
        let (access, data) = wire::NarrowDmaAccess::ref_from_prefix(payload).ok()?;
        let announced = usize::try_from(access.count.get()).ok()?;
        let whole = access.iova.get() == iova && announced == count && data.len() == count + 4;
        data.get(..count).filter(|_| whole)
    }
}

//! Commands: typed values to bytes. A server sends only the DMA commands; the rest is for clients and tests.
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U32, U64};

use super::command::widen;
use super::wire::{self, command, flags, irq_set_flags};
use super::{Command, IrqData, IrqVerb, begin_message, end_message, size_field};

const ZERO: U32 = U32::ZERO;

impl Command<'_> {
    /// The command's number.
    pub fn code(&self) -> u16 {
        match self {
            Self::Version { .. } => command::VERSION,
            Self::DmaMap(_) => command::DMA_MAP,
            Self::DmaUnmap(_) => command::DMA_UNMAP,
            Self::DeviceGetInfo { .. } => command::DEVICE_GET_INFO,
            Self::DeviceGetRegionInfo { .. } => command::DEVICE_GET_REGION_INFO,
            Self::DeviceGetIrqInfo { .. } => command::DEVICE_GET_IRQ_INFO,
            Self::SetIrqs { .. } => command::DEVICE_SET_IRQS,
            Self::RegionRead { .. } => command::REGION_READ,
            Self::RegionWrite { .. } => command::REGION_WRITE,
            Self::RegionWriteMulti(_) => command::REGION_WRITE_MULTI,
            Self::DeviceReset => command::DEVICE_RESET,
            Self::DeviceFeature { .. } => command::DEVICE_FEATURE,
            Self::DmaRead { .. } => command::DMA_READ,
            Self::DmaWrite { .. } => command::DMA_WRITE,
        }
    }

    /// Appends the whole message to `out`. `no_reply` asks the peer not to answer.
    pub fn encode(&self, id: u16, no_reply: bool, out: &mut Vec<u8>) {
        let start = out.len();
        let bits = flags::COMMAND | if no_reply { flags::NO_REPLY } else { 0 };
        begin_message(out, id, self.code(), bits, 0);
        match *self {
            Self::Version { major, minor, data } => {
                out.extend_from_slice(
                    wire::Version {
                        major: major.into(),
                        minor: minor.into(),
                    }
                    .as_bytes(),
                );
                out.extend_from_slice(data);
            }
            Self::DmaMap(map) => out.extend_from_slice(map.as_bytes()),
            Self::DmaUnmap(unmap) => out.extend_from_slice(unmap.as_bytes()),
            Self::DeviceGetInfo { .. }
            | Self::DeviceGetRegionInfo { .. }
            | Self::DeviceGetIrqInfo { .. } => {
                self.encode_question(out);
            }
            Self::SetIrqs { .. } => self.encode_set_irqs(out),
            Self::RegionRead {
                region,
                offset,
                count,
            } => encode_access(region, offset, count, &[], out),
            Self::RegionWrite {
                region,
                offset,
                data,
            } => {
                encode_access(region, offset, size_field(data.len()), data, out);
            }
            Self::RegionWriteMulti(writes) => {
                out.extend_from_slice(U64::new(widen(writes.0.len())).as_bytes());
                out.extend_from_slice(writes.0.as_bytes());
            }
            Self::DeviceReset => {}
            Self::DeviceFeature { argsz, flags, data } => {
                let feature = wire::DeviceFeature {
                    argsz: argsz.into(),
                    flags: flags.into(),
                };
                out.extend_from_slice(feature.as_bytes());
                out.extend_from_slice(data);
            }
            Self::DmaRead { iova, count } => {
                out.extend_from_slice(
                    wire::DmaAccess {
                        iova: iova.into(),
                        count: count.into(),
                    }
                    .as_bytes(),
                );
            }
            Self::DmaWrite { iova, data } => {
                let count = widen(data.len()).into();
                out.extend_from_slice(
                    wire::DmaAccess {
                        iova: iova.into(),
                        count,
                    }
                    .as_bytes(),
                );
                out.extend_from_slice(data);
            }
        }
        end_message(out, start);
    }

    /// Three commands send the structure that they ask for, nearly empty.
    fn encode_question(&self, out: &mut Vec<u8>) {
        match *self {
            Self::DeviceGetInfo { argsz } => {
                let info = wire::DeviceInfo {
                    argsz: argsz.into(),
                    flags: ZERO,
                    num_regions: ZERO,
                    num_irqs: ZERO,
                };
                out.extend_from_slice(info.as_bytes());
            }
            Self::DeviceGetRegionInfo { argsz, index } => {
                let info = wire::RegionInfo {
                    argsz: argsz.into(),
                    flags: ZERO,
                    index: index.into(),
                    cap_offset: ZERO,
                    size: U64::ZERO,
                    offset: U64::ZERO,
                };
                out.extend_from_slice(info.as_bytes());
            }
            Self::DeviceGetIrqInfo { argsz, index } => {
                let info = wire::IrqInfo {
                    argsz: argsz.into(),
                    flags: ZERO,
                    index: index.into(),
                    count: ZERO,
                };
                out.extend_from_slice(info.as_bytes());
            }
            _ => {}
        }
    }

    fn encode_set_irqs(&self, out: &mut Vec<u8>) {
        let Self::SetIrqs {
            index,
            start,
            count,
            verb,
            data,
        } = *self
        else {
            return;
        };
        let action = match verb {
            IrqVerb::Mask => irq_set_flags::ACTION_MASK,
            IrqVerb::Unmask => irq_set_flags::ACTION_UNMASK,
            IrqVerb::Trigger => irq_set_flags::ACTION_TRIGGER,
        };
        let (kind, bytes): (u32, &[u8]) = match data {
            IrqData::None => (irq_set_flags::DATA_NONE, &[]),
            IrqData::Bool(bytes) => (irq_set_flags::DATA_BOOL, bytes),
            IrqData::Eventfd => (irq_set_flags::DATA_EVENTFD, &[]),
        };
        let set = wire::IrqSet {
            argsz: size_field(size_of::<wire::IrqSet>() + bytes.len()).into(),
            flags: (action | kind).into(),
            index: index.into(),
            start: start.into(),
            count: count.into(),
        };
        out.extend_from_slice(set.as_bytes());
        out.extend_from_slice(bytes);
    }
}

fn encode_access(region: u32, offset: u64, count: u32, data: &[u8], out: &mut Vec<u8>) {
    let access = wire::RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: count.into(),
    };
    out.extend_from_slice(access.as_bytes());
    out.extend_from_slice(data);
}

/// Appends a `DMA_WRITE` in the layout of [`wire::NarrowDmaAccess`].
pub fn narrow_dma_write(id: u16, iova: u64, data: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    begin_message(out, id, command::DMA_WRITE, flags::COMMAND, 0);
    let count = size_field(data.len()).into();
    out.extend_from_slice(
        wire::NarrowDmaAccess {
            iova: iova.into(),
            count,
        }
        .as_bytes(),
    );
    out.extend_from_slice(data);
    out.extend_from_slice(ZERO.as_bytes());
    end_message(out, start);
}

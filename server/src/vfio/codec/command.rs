//! Commands: payload bytes to typed values and back.
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::wire::{self, command, irq_set_flags};
use super::{HEADER_SIZE, MAX_TRANSFER, Refusal, size_field};

/// What a `SET_IRQS` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqVerb {
    /// Mask vectors.
    Mask,
    /// Unmask vectors.
    Unmask,
    /// Signal vectors, or connect eventfds.
    Trigger,
}

/// What a `SET_IRQS` says about each vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData<'a> {
    /// All alike.
    None,
    /// One byte each; non-zero: act.
    Bool(&'a [u8]),
    /// One descriptor each beside the message, or none at all to detach them.
    Eventfd,
}

/// The writes of a `REGION_WRITE_MULTI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiWrites<'a>(pub(super) &'a [wire::MultiWrite]);

impl<'a> MultiWrites<'a> {
    /// In order: region, offset, bytes. A count above 8 is an error of that write alone.
    pub fn iter(&self) -> impl Iterator<Item = Result<(u32, u64, &'a [u8]), Refusal>> + use<'a> {
        self.0.iter().map(|write| {
            let count = write.access.count.get();
            let data = usize::try_from(count)
                .ok()
                .and_then(|count| write.data.get(..count))
                .ok_or(Refusal::TooLarge {
                    what: "a write of REGION_WRITE_MULTI",
                    got: count.into(),
                    limit: 8,
                })?;
            Ok((write.access.region.get(), write.access.offset.get(), data))
        })
    }
}

/// A command with its payload, checked for size but not against any device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Version and the raw JSON, NUL included.
    Version {
        /// Must be equal.
        major: u16,
        /// The smaller counts.
        minor: u16,
        /// JSON and its NUL, or nothing.
        data: &'a [u8],
    },
    /// See [`wire::DmaMap`].
    DmaMap(wire::DmaMap),
    /// See [`wire::DmaUnmap`].
    DmaUnmap(wire::DmaUnmap),
    /// Asks for [`wire::DeviceInfo`].
    DeviceGetInfo {
        /// Room for the reply's payload.
        argsz: u32,
    },
    /// Asks for [`wire::RegionInfo`].
    DeviceGetRegionInfo {
        /// Room for the reply's payload.
        argsz: u32,
        /// Which region.
        index: u32,
    },
    /// Asks for [`wire::IrqInfo`].
    DeviceGetIrqInfo {
        /// Room for the reply's payload.
        argsz: u32,
        /// Which interrupt index.
        index: u32,
    },
    /// Configures or signals interrupts.
    SetIrqs {
        /// Which interrupt index.
        index: u32,
        /// First vector.
        start: u32,
        /// Number of vectors.
        count: u32,
        /// What to do.
        verb: IrqVerb,
        /// To which.
        data: IrqData<'a>,
    },
    /// Reads a region.
    RegionRead {
        /// Which.
        region: u32,
        /// Where.
        offset: u64,
        /// Bytes, within [`MAX_TRANSFER`].
        count: u32,
    },
    /// Writes a region.
    RegionWrite {
        /// Which.
        region: u32,
        /// Where.
        offset: u64,
        /// What.
        data: &'a [u8],
    },
    /// Writes regions several times.
    RegionWriteMulti(MultiWrites<'a>),
    /// Resets the function.
    DeviceReset,
    /// Probes, reads or sets a feature.
    DeviceFeature {
        /// Room for the reply's payload.
        argsz: u32,
        /// Feature number and operation.
        flags: u32,
        /// The feature's own.
        data: &'a [u8],
    },
    /// Server to client: reads client memory.
    DmaRead {
        /// Where.
        iova: u64,
        /// Bytes.
        count: u64,
    },
    /// Server to client: writes client memory.
    DmaWrite {
        /// Where.
        iova: u64,
        /// What.
        data: &'a [u8],
    },
}

/// The fixed part of a payload and what follows it.
fn fixed<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    payload: &[u8],
) -> Result<(&T, &[u8]), Refusal> {
    T::ref_from_prefix(payload).map_err(|_| Refusal::Short {
        need: widen(size_of::<T>()),
        got: widen(payload.len()),
    })
}

pub(super) fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// `data` must be exactly `count` bytes.
fn exactly(data: &[u8], count: u64) -> Result<&[u8], Refusal> {
    let got = widen(data.len());
    match got.cmp(&count) {
        std::cmp::Ordering::Less => Err(Refusal::Short { need: count, got }),
        std::cmp::Ordering::Greater => Err(Refusal::Trailing { extra: got - count }),
        std::cmp::Ordering::Equal => Ok(data),
    }
}

fn within_limit(what: &'static str, got: u64) -> Result<(), Refusal> {
    let limit = u64::from(MAX_TRANSFER);
    if got > limit {
        Err(Refusal::TooLarge { what, got, limit })
    } else {
        Ok(())
    }
}

fn room<T>(argsz: u32) -> Result<(), Refusal> {
    let need = size_field(size_of::<T>());
    if argsz < need {
        Err(Refusal::Argsz { argsz, need })
    } else {
        Ok(())
    }
}

impl<'a> Command<'a> {
    /// Decodes the payload of command number `code`.
    ///
    /// # Errors
    /// Payloads that are too short, contradict themselves or exceed [`MAX_TRANSFER`]; commands that are unknown or that
    /// this server never offers.
    pub fn decode(code: u16, payload: &'a [u8]) -> Result<Self, Refusal> {
        match code {
            command::REGION_WRITE => {
                let (access, data) = fixed::<wire::RegionAccess>(payload)?;
                let count = u64::from(access.count.get());
                within_limit("write", count)?;
                let data = exactly(data, count)?;
                Ok(Self::RegionWrite {
                    region: access.region.get(),
                    offset: access.offset.get(),
                    data,
                })
            }
            command::REGION_READ => {
                let (access, _) = fixed::<wire::RegionAccess>(payload)?;
                let count = access.count.get();
                within_limit("read", count.into())?;
                Ok(Self::RegionRead {
                    region: access.region.get(),
                    offset: access.offset.get(),
                    count,
                })
            }
            command::VERSION => {
                let (version, data) = fixed::<wire::Version>(payload)?;
                Ok(Self::Version {
                    major: version.major.get(),
                    minor: version.minor.get(),
                    data,
                })
            }
            command::DMA_MAP => {
                let (map, _) = fixed::<wire::DmaMap>(payload)?;
                room::<wire::DmaMap>(map.argsz.get())?;
                Ok(Self::DmaMap(*map))
            }
            command::DMA_UNMAP => {
                let (unmap, _) = fixed::<wire::DmaUnmap>(payload)?;
                room::<wire::DmaUnmap>(unmap.argsz.get())?;
                Ok(Self::DmaUnmap(*unmap))
            }
            command::DEVICE_GET_INFO => {
                let (info, _) = fixed::<wire::DeviceInfo>(payload)?;
                room::<wire::DeviceInfo>(info.argsz.get())?;
                Ok(Self::DeviceGetInfo {
                    argsz: info.argsz.get(),
                })
            }
            command::DEVICE_GET_REGION_INFO => {
                let (info, _) = fixed::<wire::RegionInfo>(payload)?;
                room::<wire::RegionInfo>(info.argsz.get())?;
                Ok(Self::DeviceGetRegionInfo {
                    argsz: info.argsz.get(),
                    index: info.index.get(),
                })
            }
            command::DEVICE_GET_IRQ_INFO => {
                let (info, _) = fixed::<wire::IrqInfo>(payload)?;
                room::<wire::IrqInfo>(info.argsz.get())?;
                Ok(Self::DeviceGetIrqInfo {
                    argsz: info.argsz.get(),
                    index: info.index.get(),
                })
            }
            command::DEVICE_SET_IRQS => Self::decode_set_irqs(payload),
            command::REGION_WRITE_MULTI => Self::decode_write_multi(payload),
            command::DEVICE_RESET => Ok(Self::DeviceReset),
            command::DEVICE_FEATURE => {
                let (feature, data) = fixed::<wire::DeviceFeature>(payload)?;
                Ok(Self::DeviceFeature {
                    argsz: feature.argsz.get(),
                    flags: feature.flags.get(),
                    data,
                })
            }
            command::DMA_READ => {
                let (access, _) = fixed::<wire::DmaAccess>(payload)?;
                within_limit("read", access.count.get())?;
                Ok(Self::DmaRead {
                    iova: access.iova.get(),
                    count: access.count.get(),
                })
            }
            command::DMA_WRITE => {
                let (access, data) = fixed::<wire::DmaAccess>(payload)?;
                within_limit("write", access.count.get())?;
                Ok(Self::DmaWrite {
                    iova: access.iova.get(),
                    data: exactly(data, access.count.get())?,
                })
            }
            command::DEVICE_GET_REGION_IO_FDS => Err(Refusal::Unsupported(
                "ioeventfds carry no data, and doorbells here are increments that must all arrive",
            )),
            command::DIRTY_PAGES | command::MIG_DATA_READ | command::MIG_DATA_WRITE => {
                Err(Refusal::Unsupported("migration"))
            }
            _ => Err(Refusal::UnknownCommand(code)),
        }
    }

    fn decode_set_irqs(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (set, data) = fixed::<wire::IrqSet>(payload)?;
        room::<wire::IrqSet>(set.argsz.get())?;
        let (bits, count) = (set.flags.get(), set.count.get());
        let bad_flags = Refusal::Flags {
            what: "SET_IRQS",
            flags: bits,
        };
        let actions = irq_set_flags::ACTION_MASK
            | irq_set_flags::ACTION_UNMASK
            | irq_set_flags::ACTION_TRIGGER;
        let verb = match bits & actions {
            irq_set_flags::ACTION_MASK => IrqVerb::Mask,
            irq_set_flags::ACTION_UNMASK => IrqVerb::Unmask,
            irq_set_flags::ACTION_TRIGGER => IrqVerb::Trigger,
            _ => return Err(bad_flags),
        };
        let data = match bits & !actions {
            irq_set_flags::DATA_NONE => IrqData::None,
            irq_set_flags::DATA_BOOL => {
                let got = widen(data.len());
                let bytes = usize::try_from(count)
                    .ok()
                    .and_then(|count| data.get(..count))
                    .ok_or(Refusal::Short {
                        need: count.into(),
                        got,
                    })?;
                IrqData::Bool(bytes)
            }
            irq_set_flags::DATA_EVENTFD => IrqData::Eventfd,
            _ => return Err(bad_flags),
        };
        Ok(Self::SetIrqs {
            index: set.index.get(),
            start: set.start.get(),
            count,
            verb,
            data,
        })
    }

    fn decode_write_multi(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (count, rest) = fixed::<U64>(payload)?;
        let one = widen(size_of::<wire::MultiWrite>());
        let need = count
            .get()
            .checked_mul(one)
            .ok_or(Refusal::Invalid("REGION_WRITE_MULTI count overflows"))?;
        // Clients may send the whole array with only the first entries filled.
        let got = widen(rest.len());
        let writes = usize::try_from(need).ok().and_then(|need| rest.get(..need));
        let writes = writes.ok_or(Refusal::Short { need, got })?;
        let writes = <[wire::MultiWrite]>::ref_from_bytes(writes)
            .map_err(|_| Refusal::Short { need, got })?;
        Ok(Self::RegionWriteMulti(MultiWrites(writes)))
    }
}

/// Bytes of a message that carry no data of their own: header and access structure.
pub const ACCESS_OVERHEAD: usize = HEADER_SIZE + size_of::<wire::DmaAccess>();

//! Commands against the device and the connection's limits: what a function may rely on.
use super::codec::wire::{self, map_flags, unmap_flags};
use super::codec::{IrqData, IrqVerb, Limits, MAX_FDS, Refusal};
use super::inbox::Descriptors;
use super::session::MIN_IRQS;
use super::{DmaMap, DmaUnmap, Irq, IrqAction, PciFunction, Protection};

/// The granularity of mappings, bytes: what `pgsizes` announces.
const PAGE: u64 = 4096;

/// Whether the region may be read and written; an access must lie inside it.
pub(super) fn check_access<F: PciFunction + ?Sized>(
    function: &F,
    limits: Limits,
    region: u32,
    offset: u64,
    count: u64,
) -> Result<(bool, bool), Refusal> {
    let limit = u64::from(limits.max_transfer);
    if count > limit {
        return Err(Refusal::TooLarge {
            what: "access",
            got: count,
            limit,
        });
    }
    let known = usize::try_from(region)
        .ok()
        .and_then(|index| function.info().regions.get(index));
    let (size, read, write) = known.map_or((0, false, false), |region| {
        (region.size, region.read, region.write)
    });
    match offset.checked_add(count) {
        Some(end) if end <= size && size > 0 => Ok((read, write)),
        _ => Err(Refusal::OutOfRegion {
            region,
            offset,
            count,
            size,
        }),
    }
}

pub(super) fn irq<F: PciFunction + ?Sized>(function: &F, index: u32) -> Result<Irq, Refusal> {
    let at = usize::try_from(index).unwrap_or(usize::MAX);
    match function.info().irqs.get(at) {
        Some(irq) => Ok(*irq),
        None if at < MIN_IRQS => Ok(Irq::default()),
        None => Err(Refusal::NoSuchIndex {
            what: "interrupt index",
            index,
        }),
    }
}

pub(super) fn checked_map(map: &wire::DmaMap, descriptors: Descriptors) -> Result<DmaMap, Refusal> {
    let (bits, offset, iova, size) = (
        map.flags.get(),
        map.offset.get(),
        map.iova.get(),
        map.size.get(),
    );
    if descriptors.lost {
        return Err(Refusal::LostDescriptors { limit: MAX_FDS });
    }
    let known = map_flags::READ | map_flags::WRITE | map_flags::MMAP | map_flags::FILE_IO;
    let protection = Protection {
        read: bits & map_flags::READ != 0,
        write: bits & map_flags::WRITE != 0,
    };
    if bits & !known != 0 || !(protection.read || protection.write) {
        return Err(Refusal::Flags {
            what: "DMA_MAP",
            flags: bits,
        });
    }
    let got = descriptors.fds.len();
    if got > 1 {
        return Err(Refusal::Descriptors { got, want: 1 });
    }
    if got == 0 && bits & (map_flags::MMAP | map_flags::FILE_IO) != 0 {
        return Err(Refusal::Descriptors { got, want: 1 });
    }
    if size == 0 {
        return Err(Refusal::Invalid("a mapping of no bytes"));
    }
    if iova.checked_add(size).is_none() {
        return Err(Refusal::Invalid(
            "the mapping ends beyond the address space",
        ));
    }
    if (iova | size) % PAGE != 0 {
        return Err(Refusal::Invalid(
            "the mapping is not made of whole 4 KiB pages",
        ));
    }
    let file = descriptors.fds.into_iter().next().map(|fd| (fd, offset));
    if file.is_some() && (offset % PAGE != 0 || offset.checked_add(size).is_none()) {
        return Err(Refusal::Invalid(
            "the offset in the file is not a whole number of 4 KiB pages, or overflows",
        ));
    }
    Ok(DmaMap {
        iova,
        size,
        protection,
        file,
    })
}

pub(super) fn checked_unmap(unmap: &wire::DmaUnmap) -> Result<DmaUnmap, Refusal> {
    let (bits, iova, size) = (unmap.flags.get(), unmap.iova.get(), unmap.size.get());
    match bits {
        unmap_flags::ALL if iova == 0 && size == 0 => Ok(DmaUnmap::All),
        unmap_flags::ALL => Err(Refusal::Invalid(
            "an unmap of everything that names a range",
        )),
        unmap_flags::GET_DIRTY_BITMAP => {
            Err(Refusal::Unsupported("dirty page tracking, for migration"))
        }
        0 if size == 0 => Err(Refusal::Invalid("an unmap of no bytes")),
        0 => {
            // A range may end where the address space does; the last byte cannot have been mapped.
            let room = u64::MAX - iova;
            if room == 0 || size - 1 > room {
                return Err(Refusal::Invalid("the range ends beyond the address space"));
            }
            Ok(DmaUnmap::Range {
                iova,
                size: size.min(room),
            })
        }
        _ => Err(Refusal::Flags {
            what: "DMA_UNMAP",
            flags: bits,
        }),
    }
}

pub(super) fn checked_irqs(
    irq: Irq,
    start: u32,
    count: u32,
    verb: IrqVerb,
    data: IrqData<'_>,
    descriptors: Descriptors,
) -> Result<IrqAction, Refusal> {
    if descriptors.lost {
        return Err(Refusal::LostDescriptors { limit: MAX_FDS });
    }
    if start.checked_add(count).is_none_or(|end| end > irq.count) {
        return Err(Refusal::Invalid(
            "vectors past the last of this interrupt index",
        ));
    }
    if count == 0 {
        // The one meaning of no vectors: disable the index (linux/vfio.h).
        return match (verb, data) {
            (IrqVerb::Trigger, IrqData::None) if start == 0 => Ok(IrqAction::Eventfds(Vec::new())),
            _ => Err(Refusal::Invalid("SET_IRQS of no vectors")),
        };
    }
    if verb != IrqVerb::Trigger && !irq.maskable {
        return Err(Refusal::Invalid("this interrupt index cannot be masked"));
    }
    // At most `irq.count` of them, which is the function's own number.
    let vectors = usize::try_from(count).unwrap_or_default();
    let which = match data {
        IrqData::None => vec![true; vectors],
        IrqData::Bool(bytes) => bytes.iter().map(|byte| *byte != 0).collect(),
        IrqData::Eventfd => {
            if verb != IrqVerb::Trigger || !irq.eventfd {
                return Err(Refusal::Invalid(
                    "this interrupt index takes no eventfd for that action",
                ));
            }
            let got = descriptors.fds.len();
            // QEMU sends a descriptor for each vector or, to detach all of them, none (qemu client).
            return match got {
                0 => Ok(IrqAction::Eventfds(
                    std::iter::repeat_with(|| None).take(vectors).collect(),
                )),
                _ if got == vectors => Ok(IrqAction::Eventfds(
                    descriptors.fds.into_iter().map(Some).collect(),
                )),
                _ => Err(Refusal::Descriptors { got, want: vectors }),
            };
        }
    };
    Ok(match verb {
        IrqVerb::Mask => IrqAction::Mask(which),
        IrqVerb::Unmask => IrqAction::Unmask(which),
        IrqVerb::Trigger => IrqAction::Trigger(which),
    })
}

//! The guest's memory as the client maps it: an interval map in which the latest mapping wins.
//!
//! Firmware makes QEMU map, overlap, split and unmap a few dozen ranges while it boots, some of them never mapped at all
//! (qemu client "Connect order"). None of that is an error.
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

use super::Unmapped;
use super::quota::{Quota, Share};
use super::sigbus::Registration;
use crate::vfio::Protection;

/// Most mappings at a time: the `max_dma_maps` that QEMU announces (qemu client "Connect order").
pub const MAX_MAPPINGS: usize = 65_535;

/// The smallest page, and the grain of `DMA_MAP`.
const PAGE: u64 = 4 << 10;
/// The largest huge page.
const MAX_PAGE: u64 = 1 << 30;

/// A mapped file of the client's, which may cut it short at any time. The descriptor is closed once it is mapped: a
/// client may map more files than a process may have open.
#[derive(Debug)]
struct ClientFile {
    /// Dropped first: what is unmapped is no longer ours to rescue.
    registration: Registration,
    /// Does not own the mapping.
    region: MmapRegion,
    _mapping: Mapped,
}

/// A mapping, unmapped when dropped.
#[derive(Debug)]
struct Mapped {
    start: *mut c_void,
    len: usize,
    _share: Share,
}

// SAFETY: an address range belongs to the process; this only unmaps it.
unsafe impl Send for Mapped {}
// SAFETY: shared references do nothing.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `ClientFile::map`, and everything that reaches it borrows from its owner.
        let result = unsafe { rustix::mm::munmap(self.start, self.len) };
        if let Err(error) = result {
            tracing::error!(%error, "client memory stays mapped");
        }
    }
}

impl ClientFile {
    fn map(
        file: &OwnedFd,
        offset: u64,
        len: usize,
        prot: ProtFlags,
        share: Share,
    ) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { rustix::mm::mmap(null_mut(), len, prot, flags, file, offset) }?;
        let mapping = Mapped {
            start,
            len,
            _share: share,
        };
        let (prot, flags) = (prot.bits().cast_signed(), flags.bits().cast_signed());
        // SAFETY: the range was mapped just now and is unmapped after the region is gone.
        let region = unsafe { MmapRegion::build_raw(start.cast(), len, prot, flags) }
            .map_err(|_| Errno::INVAL)?;
        // SAFETY: the mapping outlives the registration (field order); its slices are volatile.
        let registration = unsafe { Registration::new(start.cast(), len) };
        Ok(Self {
            registration,
            region,
            _mapping: mapping,
        })
    }
}

/// What offsets and lengths of a mapping must be multiples of, going by a file's block size.
fn granule(block: u64) -> u64 {
    // Larger than any huge page, or no power of two: not a page.
    if block.is_power_of_two() && (PAGE..=MAX_PAGE).contains(&block) {
        block
    } else {
        PAGE
    }
}

/// A part of a mapped file.
#[derive(Clone, Debug)]
pub struct Shared {
    file: Arc<ClientFile>,
    offset: u64,
}

impl Shared {
    /// Up to `len` bytes from `offset` on, at least one.
    ///
    /// # Errors
    /// The first byte is lost.
    pub(super) fn slice(&self, offset: u64, len: usize) -> Result<VolatileSlice<'_>, Unmapped> {
        let ClientFile {
            registration,
            region,
            ..
        } = &*self.file;
        let offset = usize::try_from(self.offset.saturating_add(offset)).unwrap_or(usize::MAX);
        let left = registration
            .lost_from()
            .min(region.size())
            .saturating_sub(offset);
        if left == 0 {
            return Err(Unmapped::Truncated);
        }
        region
            .get_slice(offset, len.min(left))
            .map_err(|_| Unmapped::Truncated)
    }
}

/// What is behind a mapping.
#[derive(Clone, Debug)]
pub enum Backing {
    /// A file shared with the client.
    Shared(Shared),
    /// RAM that only the client can reach.
    Message,
    /// This device's own HBM, which the client mapped and now offers back.
    OwnHbm {
        /// Offset in BAR4.
        bar_offset: u64,
    },
    /// Nothing: read-only memory without a file, or the part of a mapping past its file's end.
    Hole,
}

/// A range with one backing.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Bytes.
    pub size: u64,
    /// Permitted accesses.
    pub protection: Protection,
    /// What is behind it.
    pub backing: Backing,
}

impl Mapping {
    /// The part from `offset` on, `size` bytes long.
    fn part(&self, offset: u64, size: u64) -> Self {
        let backing = match &self.backing {
            Backing::Shared(shared) => Backing::Shared(Shared {
                file: Arc::clone(&shared.file),
                offset: shared.offset + offset,
            }),
            Backing::OwnHbm { bar_offset } => Backing::OwnHbm {
                bar_offset: bar_offset + offset,
            },
            other => other.clone(),
        };
        Self {
            size,
            protection: self.protection,
            backing,
        }
    }
}

/// The interval map.
#[derive(Debug, Default)]
pub struct GuestMap {
    mappings: BTreeMap<u64, Mapping>,
    quota: Arc<Quota>,
}

impl GuestMap {
    /// Adds a range backed by a file, from `offset` of it. Returns the bytes that the file really has; the rest is a
    /// hole. Overlapped parts of earlier mappings go.
    ///
    /// `size` is not 0 and `iova + size` does not overflow.
    ///
    /// # Errors
    /// The file cannot be mapped, or there are too many mappings.
    pub fn map_file(
        &mut self,
        iova: u64,
        size: u64,
        protection: Protection,
        file: &OwnedFd,
        offset: u64,
    ) -> Result<u64, Errno> {
        let stat = rustix::fs::fstat(file)?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        let present = length.saturating_sub(offset).min(size);
        if present == 0 {
            self.insert(
                iova,
                Mapping {
                    size,
                    protection,
                    backing: Backing::Hole,
                },
            )?;
            return Ok(0);
        }
        let mut prot = ProtFlags::empty();
        prot.set(ProtFlags::READ, protection.read);
        prot.set(ProtFlags::WRITE, protection.write);
        // Huge pages of hugetlbfs are mapped and unmapped whole, and QEMU cuts guest RAM at the edges of ROM.
        let page = granule(u64::try_from(stat.st_blksize).unwrap_or(0));
        let skipped = offset % page;
        let len = skipped
            .checked_add(present)
            .and_then(|len| len.checked_next_multiple_of(page))
            .and_then(|len| usize::try_from(len).ok())
            .ok_or(Errno::NOMEM)?;
        // Before the kernel is asked: what it would give is taken from all devices.
        let share = self.quota.take(u64::try_from(len).unwrap_or(u64::MAX))?;
        let file = ClientFile::map(file, offset - skipped, len, prot, share)?;
        let shared = Shared {
            file: Arc::new(file),
            offset: skipped,
        };
        self.insert(
            iova,
            Mapping {
                size: present,
                protection,
                backing: Backing::Shared(shared),
            },
        )?;
        if present < size {
            let rest = Mapping {
                size: size - present,
                protection,
                backing: Backing::Hole,
            };
            self.insert(iova + present, rest)?;
        }
        Ok(present)
    }

    /// Adds a range; overlapped parts of earlier mappings go.
    ///
    /// # Errors
    /// There are too many mappings.
    pub fn insert(&mut self, iova: u64, mapping: Mapping) -> Result<(), Errno> {
        let end = iova.saturating_add(mapping.size);
        if self.mappings.len() >= MAX_MAPPINGS {
            // Unless one of the others goes, there is no room: then nothing must be lost by trying.
            let mut inside = self.mappings.range(iova..end);
            if !inside.any(|(start, other)| start + other.size <= end) {
                return Err(Errno::NOSPC);
            }
        }
        self.remove(iova, mapping.size)?;
        self.mappings.insert(iova, mapping);
        Ok(())
    }

    /// Removes a range: whole mappings and parts of mappings.
    ///
    /// # Errors
    /// It would leave too many mappings, as a hole in one makes two: nothing is removed.
    pub fn remove(&mut self, iova: u64, size: u64) -> Result<(), Errno> {
        let end = iova.saturating_add(size);
        let full = self.mappings.len() >= MAX_MAPPINGS;
        if let Some((&start, mapping)) = self.mappings.range_mut(..iova).next_back() {
            let left = iova - start;
            let old_size = mapping.size;
            if old_size > left {
                if full && start + old_size > end {
                    return Err(Errno::NOSPC);
                }
                let tail = (start + old_size > end)
                    .then(|| mapping.part(end - start, start + old_size - end));
                *mapping = mapping.part(0, left);
                if let Some(tail) = tail {
                    self.mappings.insert(end, tail);
                    return Ok(());
                }
            }
        }
        while let Some((&start, mapping)) = self.mappings.range(iova..end).next() {
            let tail = (start + mapping.size > end)
                .then(|| mapping.part(end - start, start + mapping.size - end));
            self.mappings.remove(&start);
            if let Some(tail) = tail {
                self.mappings.insert(end, tail);
            }
        }
        Ok(())
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.mappings.clear();
    }

    /// The mapping that holds an address, and the offset in it.
    pub fn find(&self, iova: u64) -> Option<(&Mapping, u64)> {
        let (start, mapping) = self.mappings.range(..=iova).next_back()?;
        let offset = iova - start;
        (offset < mapping.size).then_some((mapping, offset))
    }

    /// All of it, by address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.mappings.iter().map(|(iova, mapping)| (*iova, mapping))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const RW: Protection = Protection {
        read: true,
        write: true,
    };

    /// `OwnHbm` remembers where its first byte came from, which is what splits must keep right.
    fn tagged(size: u64, tag: u64) -> Mapping {
        Mapping {
            size,
            protection: RW,
            backing: Backing::OwnHbm { bar_offset: tag },
        }
    }

    proptest! {
        #[test]
        fn splits_and_overlaps_keep_every_byte_right(
            steps in proptest::collection::vec((any::<bool>(), 0u64..64, 1u64..32), 1..40)
        ) {
            let mut map = GuestMap::default();
            let mut model = BTreeMap::new();
            for (step, (insert, iova, size)) in (0u64..).zip(steps) {
                if insert {
                    map.insert(iova, tagged(size, step * 1000)).unwrap();
                    model.extend((0..size).map(|n| (iova + n, step * 1000 + n)));
                } else {
                    map.remove(iova, size).unwrap();
                    (iova..iova + size).for_each(|at| { model.remove(&at); });
                }
                for at in 0..100 {
                    let found = map.find(at).map(|(mapping, offset)| match mapping.backing {
                        Backing::OwnHbm { bar_offset } => bar_offset + offset,
                        _ => unreachable!(),
                    });
                    prop_assert_eq!(found, model.get(&at).copied(), "at {}", at);
                }
            }
        }
    }

    /// Every sequence of three changes, of every range, in a space of six bytes.
    #[test]
    fn every_three_changes_of_a_small_space() {
        const SPACE: u64 = 6;
        let ranges: Vec<_> = (0..SPACE)
            .flat_map(|from| (1..=SPACE - from).map(move |size| (from, size)))
            .collect();
        let changes: Vec<_> = [true, false]
            .into_iter()
            .flat_map(|insert| ranges.iter().map(move |range| (insert, *range)))
            .collect();
        let apply =
            |map: &mut GuestMap, model: &mut [u64], step: u64, change: (bool, (u64, u64))| {
                let (insert, (from, size)) = change;
                if insert {
                    map.insert(from, tagged(size, step * 100)).unwrap();
                } else {
                    map.remove(from, size).unwrap();
                }
                for at in from..from + size {
                    let tag = if insert { step * 100 + at - from } else { 0 };
                    model[usize::try_from(at).unwrap()] = tag;
                }
            };
        for first in &changes {
            for second in &changes {
                for third in &changes {
                    let (mut map, mut model) = (GuestMap::default(), [0; 6]);
                    for (step, change) in (1..).zip([first, second, third]) {
                        apply(&mut map, &mut model, step, *change);
                    }
                    for (at, tag) in (0..).zip(model) {
                        let found = map.find(at).map_or(0, |(mapping, offset)| {
                            let Backing::OwnHbm { bar_offset } = mapping.backing else {
                                unreachable!()
                            };
                            bar_offset + offset
                        });
                        assert_eq!(found, tag, "{first:?} {second:?} {third:?} at {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_file_shorter_than_its_mapping_leaves_a_hole() {
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let mut map = GuestMap::default();
        assert_eq!(map.map_file(0x1_0000, 8192, RW, &file, 0), Ok(4096));
        assert!(matches!(
            map.find(0x1_0fff).unwrap().0.backing,
            Backing::Shared(_)
        ));
        assert!(matches!(
            map.find(0x1_1000).unwrap().0.backing,
            Backing::Hole
        ));
        assert!(map.find(0x1_2000).is_none());
    }

    /// QEMU with `-object memory-backend-memfd,hugetlb=on`: RAM below and above the ROMs at 640 KiB. A page may not be
    /// there; the mapping must be, and must go away.
    #[test]
    fn parts_of_huge_pages_are_mapped() {
        const HUGE: u64 = 2 << 20;
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::HUGETLB;
        let Ok(file) = rustix::fs::memfd_create("huge-client-ram", flags) else {
            eprintln!("this kernel has no hugetlbfs");
            return;
        };
        rustix::fs::ftruncate(&file, 2 * HUGE).unwrap();
        let mapped = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .matches("huge-client-ram")
                .count()
        };
        let mut map = GuestMap::default();
        for (iova, size, offset) in [
            (0, 0xa_0000, 0),
            (0xc_0000, 2 * HUGE - 0xc_0000, 0xc_0000),
            (1 << 32, 0x1000, 2 * HUGE - 0x1000),
        ] {
            assert_eq!(map.map_file(iova, size, RW, &file, offset), Ok(size));
        }
        assert_eq!(mapped(), 3);
        let at = |iova, len| {
            let (mapping, offset) = map.find(iova).unwrap();
            let Backing::Shared(shared) = &mapping.backing else {
                panic!("{mapping:?}")
            };
            shared.slice(offset, len).unwrap()
        };
        // One page of the file by two ways, if the kernel has pages to give.
        let (first, last) = (at(2 * HUGE - 0x1000, 4), at(1 << 32, 4));
        if crate::memory::copy::write_bytes(&[1, 2, 3, 4], &first).is_ok() {
            let mut read = [0; 4];
            crate::memory::copy::read_bytes(&last, &mut read).unwrap();
            assert_eq!(read, [1, 2, 3, 4]);
        } else {
            eprintln!("no huge pages (vm.nr_hugepages): contents not compared");
        }
        map.clear();
        assert_eq!(mapped(), 0, "parts of huge pages stay mapped");
    }

    #[test]
    fn ranges_at_the_end_of_the_address_space_are_safe() {
        let mut map = GuestMap::default();
        map.insert(u64::MAX - 4096, tagged(4096, 0)).unwrap();
        assert!(map.find(u64::MAX - 1).is_some());
        assert!(map.find(u64::MAX).is_none());
        map.remove(u64::MAX - 10, u64::MAX).unwrap();
        assert!(map.find(u64::MAX - 1).is_none());
        assert!(map.find(u64::MAX - 11).is_some());
    }
}

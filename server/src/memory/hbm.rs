//! Device DRAM: one sparse file, laid out as BAR4 shows it, reached by device address as well.
use std::fs::File;
use std::sync::Arc;

use neuron_protocol::generation::{Generation, Platform};
use rustix::io::Errno;

use super::{Place, Sparse, Stretch, Unmapped};

/// Sizes and places of the stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HbmGeometry {
    /// Device-side address of each stack.
    pub soc_bases: &'static [u64],
    /// Populated bytes of a stack.
    pub stack_size: u64,
    /// Distance between stacks in BAR4, bytes.
    pub bar_stride: u64,
}

/// Why a requested HBM size is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HbmSizeError {
    /// This product and platform have one size.
    #[error(
        "the driver takes the size of HBM from BAR4 only on platform qemu of trn2 and trn3; elsewhere it is fixed at \
         {} GiB per stack (untouched pages cost nothing, so there is no need to shrink it)",
        fixed >> 30
    )]
    Fixed {
        /// Bytes per stack.
        fixed: u64,
    },
    /// Not a power of two, or out of range.
    #[error("the size of HBM must be a power of two from 256 MiB to 256 GiB: BAR4 holds it whole")]
    Size,
}

/// The driver carves 16 MiB out of each stack (contract §3); below this nothing useful is left.
const MIN: u64 = 256 << 20;
/// The window of a stack is 64 GiB (contract §1.1).
const MAX: u64 = 256 << 30;
/// In all: each stack then stays below the 24 GiB at which the driver takes it to end, whatever the BAR's size (facts §1.4).
const DEFAULT: u64 = 64 << 30;

impl HbmGeometry {
    /// The stacks of a product on a platform, of the size that they have unless told.
    pub fn standard(generation: &Generation, platform: Platform) -> Self {
        let hbm = &generation.hbm;
        if Self::is_sized(generation, platform) {
            return Self::of_size(generation, DEFAULT);
        }
        Self {
            soc_bases: hbm.soc_bases,
            stack_size: hbm.stack_size,
            bar_stride: hbm.bar_stride,
        }
    }

    /// The same; `size` is the total asked for, if any.
    ///
    /// # Errors
    /// A size that this combination cannot have.
    pub fn new(
        generation: &Generation,
        platform: Platform,
        size: Option<u64>,
    ) -> Result<Self, HbmSizeError> {
        let Some(size) = size else {
            return Ok(Self::standard(generation, platform));
        };
        if !Self::is_sized(generation, platform) {
            return Err(HbmSizeError::Fixed {
                fixed: generation.hbm.stack_size,
            });
        }
        if !size.is_power_of_two() || !(MIN..=MAX).contains(&size) {
            return Err(HbmSizeError::Size);
        }
        Ok(Self::of_size(generation, size))
    }

    /// Whether the driver takes the size from BAR4.
    fn is_sized(generation: &Generation, platform: Platform) -> bool {
        generation.hbm.sized_by_bar && platform == Platform::Qemu
    }

    fn of_size(generation: &Generation, size: u64) -> Self {
        let soc_bases = generation.hbm.soc_bases;
        let stack_size = size / u64::try_from(soc_bases.len()).unwrap_or(u64::MAX);
        Self {
            soc_bases,
            stack_size,
            bar_stride: stack_size,
        }
    }

    /// Bytes of BAR4.
    pub fn bar_size(&self) -> u64 {
        self.bar_stride * u64::try_from(self.soc_bases.len()).unwrap_or(0)
    }
}

/// Device DRAM.
#[derive(Debug)]
pub struct Hbm {
    geometry: HbmGeometry,
    memory: Sparse,
}

impl Hbm {
    pub(super) fn new(geometry: HbmGeometry) -> Result<Self, Errno> {
        Ok(Self {
            geometry,
            memory: Sparse::new("neuron-hbm", geometry.bar_size())?,
        })
    }

    /// Sizes and places of the stacks.
    pub fn geometry(&self) -> HbmGeometry {
        self.geometry
    }

    /// The file behind BAR4, same offsets.
    pub fn file(&self) -> &Arc<File> {
        self.memory.file()
    }

    /// Up to `len` bytes at a device-side address; `None` outside every stack's window.
    pub(super) fn at_soc(&self, address: u64, len: usize) -> Option<Result<Stretch<'_>, Unmapped>> {
        let HbmGeometry {
            soc_bases,
            stack_size,
            bar_stride,
        } = self.geometry;
        // A stack's window is as wide as the distance in BAR4, and never less than the stack.
        let window = bar_stride.max(stack_size);
        let (stack, distance) = soc_bases
            .iter()
            .enumerate()
            .filter_map(|(stack, base)| Some((stack, address.checked_sub(*base)?)))
            .find(|(_, distance)| *distance < window)?;
        let past = Unmapped::PastStack {
            stack,
            size: stack_size,
        };
        let Some(left) = stack_size.checked_sub(distance).filter(|left| *left > 0) else {
            return Some(Err(past));
        };
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let offset = bar_stride * u64::try_from(stack).unwrap_or(0) + distance;
        Some(self.slice(offset, len).ok_or(past))
    }

    /// `len` bytes at an offset of BAR4, if they are populated.
    pub fn at_bar(&self, offset: u64, len: usize) -> Option<Stretch<'_>> {
        let in_stack = offset % self.geometry.bar_stride;
        let end = in_stack.checked_add(u64::try_from(len).ok()?)?;
        if end > self.geometry.stack_size {
            return None;
        }
        self.slice(offset, len)
    }

    /// Up to `len` bytes from an offset of BAR4 on that are all populated (the slice) or all not (how many).
    #[expect(
        clippy::missing_errors_doc,
        reason = "the error is one of two kinds of stretch"
    )]
    pub fn stretch(&self, offset: u64, len: usize) -> Result<Stretch<'_>, usize> {
        let HbmGeometry {
            stack_size,
            bar_stride,
            ..
        } = self.geometry;
        let up_to = |end: u64| len.min(usize::try_from(end).unwrap_or(usize::MAX));
        let in_stack = offset % bar_stride;
        match stack_size.checked_sub(in_stack).filter(|left| *left > 0) {
            Some(left) => self.slice(offset, up_to(left)).ok_or(len),
            None => Err(up_to(bar_stride - in_stack)),
        }
    }

    fn slice(&self, offset: u64, len: usize) -> Option<Stretch<'_>> {
        let slice = self.memory.slice(offset, len)?;
        Some(Stretch::new(slice, Place::Hbm(offset)))
    }

    /// Bytes behind touched pages.
    pub fn resident(&self) -> u64 {
        self.memory.resident()
    }

    pub(super) fn clear(&self) {
        self.memory.clear();
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::{V2, V3, V4};
    use vm_memory::Bytes;

    use super::*;

    #[test]
    fn bar4_sizes_of_contract_1_1() {
        let bar = |generation, platform, size| {
            HbmGeometry::new(generation, platform, size).map(|geometry| geometry.bar_size())
        };
        assert_eq!(bar(&V2, Platform::Silicon, None), Ok(32 << 30));
        assert_eq!(bar(&V2, Platform::Qemu, None), Ok(32 << 30));
        assert_eq!(bar(&V3, Platform::Silicon, None), Ok(256 << 30));
        assert_eq!(bar(&V4, Platform::Emulator, None), Ok(256 << 30));
        assert_eq!(bar(&V3, Platform::Qemu, Some(4 << 30)), Ok(4 << 30));
        assert_eq!(
            bar(&V3, Platform::Qemu, Some(3 << 30)),
            Err(HbmSizeError::Size)
        );
        assert_eq!(
            bar(&V3, Platform::Qemu, Some(1 << 20)),
            Err(HbmSizeError::Size)
        );
        assert!(matches!(
            bar(&V3, Platform::Silicon, Some(4 << 30)),
            Err(HbmSizeError::Fixed { .. })
        ));
    }

    #[test]
    fn bar4_and_engines_see_the_same_bytes() {
        let hbm = Hbm::new(HbmGeometry::standard(&V3, Platform::Silicon)).unwrap();
        let device = hbm.at_soc(0x8000_0000_0000 + 0x1000, 8).unwrap().unwrap();
        device.write_obj(0x1234_5678u32, 0).unwrap();
        assert_eq!(
            hbm.at_bar((128 << 30) + 0x1000, 4)
                .unwrap()
                .read_obj::<u32>(0)
                .unwrap(),
            0x1234_5678
        );
        assert!(hbm.at_bar((24 << 30) - 2, 4).is_none());
        assert!(hbm.at_soc(0x4000_0000_0000, 4).is_none());
    }
}

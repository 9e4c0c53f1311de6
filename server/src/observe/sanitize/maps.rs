//! The guest map as the events tell it: where RAM is, to say why an address leads nowhere.
use std::collections::BTreeMap;

/// Ranges kept; a client may have that many (`memory::guest`).
const MAX_RANGES: usize = 65_535;
/// From this size on a mapping is a piece of RAM. What a guest lets through an IOMMU comes in pages, or in buffers.
const RAM: u64 = 16 << 20;

/// The mapped ranges. Later mappings win where they overlap, as in the device.
#[derive(Debug, Default)]
pub struct Maps(BTreeMap<u64, u64>);

impl Maps {
    /// A range was mapped.
    pub fn map(&mut self, iova: u64, size: u64) {
        self.unmap(iova, size);
        if self.0.len() < MAX_RANGES {
            self.0.insert(iova, size);
        }
    }

    /// A range was unmapped; parts of mappings as well.
    pub fn unmap(&mut self, iova: u64, size: u64) {
        let end = iova.saturating_add(size);
        if iova == 0 && size == u64::MAX {
            return self.0.clear();
        }
        let before = self.0.range(..iova).next_back();
        let first = before.map_or(iova, |(start, _)| *start);
        let touched: Vec<_> = self
            .0
            .range(first..end)
            .map(|(start, len)| (*start, *len))
            .filter(|(start, len)| start.saturating_add(*len) > iova)
            .collect();
        for (start, len) in touched {
            self.0.remove(&start);
            if start < iova {
                self.0.insert(start, iova - start);
            }
            let old_end = start.saturating_add(len);
            if old_end > end {
                self.0.insert(end, old_end - end);
            }
        }
    }

    /// An address is mapped.
    pub fn contains(&self, address: u64) -> bool {
        self.0
            .range(..=address)
            .next_back()
            .is_some_and(|(start, len)| address - start < *len)
    }

    /// The client maps only small pieces: what an IOMMU of the guest lets through.
    pub fn only_pieces(&self) -> bool {
        !self.0.is_empty() && self.0.values().all(|size| *size < RAM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_and_parts_stay() {
        let mut maps = Maps::default();
        maps.map(0x1000, 0x4000);
        maps.unmap(0x2000, 0x1000);
        let at = |maps: &Maps| {
            [0xfff, 0x1000, 0x2000, 0x3000, 0x4fff, 0x5000].map(|at| maps.contains(at))
        };
        assert_eq!(at(&maps), [false, true, false, true, true, false]);
        maps.map(0x1800, 0x2000);
        assert_eq!(at(&maps), [false, true, true, true, true, false]);
        maps.unmap(0, u64::MAX);
        assert_eq!(at(&maps), [false; 6]);
    }

    #[test]
    fn pieces_are_told_from_ram() {
        let mut maps = Maps::default();
        assert!(!maps.only_pieces());
        maps.map(0xffff_f000, 0x1000);
        assert!(maps.only_pieces());
        maps.map(0, 1 << 30);
        assert!(!maps.only_pieces());
    }
}

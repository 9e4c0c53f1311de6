//! Which device memory holds bytes that a recording left out: a replay does not have them either.
use std::collections::BTreeMap;

use crate::memory::Place;

/// Most ranges; then they are joined into one, which is safe: more is kept than would be needed.
const MAX_RANGES: usize = 1 << 16;

/// Ranges of device memory.
#[derive(Debug, Default)]
pub struct Taint {
    /// Start to end, disjoint; tiles come after all of HBM.
    ranges: BTreeMap<u64, u64>,
}

/// One line of numbers for both kinds; guest memory has none.
fn position(place: Place) -> Option<u64> {
    match place {
        Place::Guest(_) => None,
        Place::Hbm(at) => Some(at),
        Place::Tile(at) => Some(1 << 60 | at),
    }
}

impl Taint {
    /// Any of the bytes is one of them.
    pub fn touches(&self, place: Place, len: usize) -> bool {
        let Some(start) = position(place) else {
            return false;
        };
        let end = start + len as u64;
        let before = self.ranges.range(..end).next_back();
        before.is_some_and(|(_, last)| *last > start)
    }

    /// The bytes are written: now they are known, or not.
    pub fn set(&mut self, place: Place, len: usize, unknown: bool) {
        let Some(mut start) = position(place) else {
            return;
        };
        let mut end = start + len as u64;
        while let Some((&from, &to)) = self.ranges.range(..end).next_back() {
            if to <= start {
                break;
            }
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, start);
            }
            if to > end {
                self.ranges.insert(end, to);
            }
        }
        if !unknown {
            return;
        }
        let before = self.ranges.range(..start).next_back();
        if let Some((&from, &to)) = before
            && to == start
        {
            self.ranges.remove(&from);
            start = from;
        }
        if let Some(to) = self.ranges.remove(&end) {
            end = to;
        }
        self.ranges.insert(start, end);
        if self.ranges.len() > MAX_RANGES {
            self.join();
        }
    }

    fn join(&mut self) {
        let first = self.ranges.first_key_value().map(|(from, _)| *from);
        let last = self.ranges.last_key_value().map(|(_, to)| *to);
        if let (Some(first), Some(last)) = (first, last) {
            self.ranges.clear();
            self.ranges.insert(first, last);
        }
    }

    /// All of device memory was cleared.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_know_every_byte(steps in proptest::collection::vec((0_u64..64, 1_usize..32, any::<bool>()), 1..40)) {
            let mut taint = Taint::default();
            let mut model = [false; 100];
            for (at, len, unknown) in steps {
                taint.set(Place::Hbm(at), len, unknown);
                let start = usize::try_from(at).unwrap();
                model[start..start + len].fill(unknown);
                for (at, expected) in (0..).zip(model) {
                    prop_assert_eq!(taint.touches(Place::Hbm(at), 1), expected, "at {}", at);
                }
            }
            prop_assert!(!taint.touches(Place::Tile(0), 100));
            prop_assert_eq!(taint.touches(Place::Hbm(0), 100), model.contains(&true));
        }
    }

    #[test]
    fn too_many_ranges_become_one() {
        let mut taint = Taint::default();
        for n in 0..=MAX_RANGES as u64 {
            taint.set(Place::Hbm(n * 256), 128, true);
        }
        assert_eq!(taint.ranges.len(), 1);
        assert!(taint.touches(Place::Hbm(200), 1));
    }
}

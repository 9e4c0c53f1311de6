//! Registers that only keep what was written, and the account of those nobody knows.
use std::collections::{BTreeMap, HashMap};

const PAGE: u64 = 4096;
const WORDS: usize = 1024;
/// Pages kept: the driver's own initialisation of all engines touches about 1,100. A guest that writes elsewhere all
/// over must not make the process grow.
const MAX_PAGES: usize = 4096;
/// Unknown registers listed one by one; beyond, only counted.
const MAX_UNKNOWN: usize = 4096;

/// Accesses to one unknown register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touches {
    /// Reads so far.
    pub reads: u64,
    /// Writes so far.
    pub writes: u64,
}

/// A sparse register file.
#[derive(Debug, Default)]
pub struct RegisterFile {
    pages: HashMap<u64, Box<[u32]>>,
    unknown: BTreeMap<u64, Touches>,
    unlisted: Touches,
}

impl RegisterFile {
    /// The value last written at an aligned offset, 0 if none.
    pub fn read(&self, offset: u64) -> u32 {
        self.pages
            .get(&(offset / PAGE))
            .map_or(0, |page| page[word(offset)])
    }

    /// Keeps a value. Beyond the limit of pages it is lost; the account below still counts the access.
    pub fn write(&mut self, offset: u64, value: u32) {
        let number = offset / PAGE;
        if value == 0 && !self.pages.contains_key(&number) {
            return;
        }
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&number) {
            return;
        }
        let page = self
            .pages
            .entry(number)
            .or_insert_with(|| vec![0; WORDS].into_boxed_slice());
        page[word(offset)] = value;
    }

    /// Forgets all values. The account goes on: it is about the driver.
    pub fn reset(&mut self) {
        self.pages.clear();
    }

    /// Counts an access to an unknown register. True the first time that register is listed.
    pub fn touch(&mut self, offset: u64, write: bool) -> bool {
        let room = self.unknown.len() < MAX_UNKNOWN;
        let (touches, first) = match self.unknown.get_mut(&offset) {
            Some(touches) => (touches, false),
            None if room => (self.unknown.entry(offset).or_default(), true),
            None => (&mut self.unlisted, false),
        };
        if write {
            touches.writes += 1;
        } else {
            touches.reads += 1;
        }
        first
    }

    /// Unknown registers touched so far, by offset.
    pub fn unknown(&self) -> impl Iterator<Item = (u64, Touches)> + '_ {
        self.unknown
            .iter()
            .map(|(offset, touches)| (*offset, *touches))
    }

    /// Accesses to unknown registers beyond those listed.
    pub fn unlisted(&self) -> Touches {
        self.unlisted
    }

    /// Registers that hold something, by no particular order.
    pub fn values(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.pages.iter().flat_map(|(number, page)| {
            (0..)
                .zip(page.iter())
                .filter(|(_, value)| **value != 0)
                .map(move |(word, value)| (number * PAGE + word * 4, *value))
        })
    }
}

const fn word(offset: u64) -> usize {
    (offset % PAGE / 4) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_give_what_was_written() {
        let mut file = RegisterFile::default();
        file.write(0x1_0004, 7);
        assert_eq!(
            (file.read(0x1_0004), file.read(0x1_0000), file.read(0)),
            (7, 0, 0)
        );
        assert_eq!(file.values().collect::<Vec<_>>(), [(0x1_0004, 7)]);
        file.reset();
        assert_eq!(file.read(0x1_0004), 0);
    }

    #[test]
    fn a_guest_that_writes_everywhere_costs_a_bounded_amount() {
        let mut file = RegisterFile::default();
        for page in 0..20_000 {
            file.write(page * PAGE, 1);
            file.touch(page * PAGE, true);
        }
        assert_eq!(file.pages.len(), MAX_PAGES);
        assert_eq!(file.unknown().count(), MAX_UNKNOWN);
        assert_eq!(file.unlisted().writes, 20_000 - 4096);
    }
}

//! Which registers software touches: the part of the hardware contract that a driver uses.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use neuron_protocol::registers::RegisterName;
use serde::{Deserialize, Serialize};

use super::event::{Event, EventKind, Interest, Observer};
use crate::function::Config;

/// Most registers told apart; a guest can touch any number.
const MAX_REGISTERS: usize = 1 << 16;

/// How often a register was touched.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    reads: u64,
    writes: u64,
}

#[derive(Debug, Default)]
struct Map {
    registers: BTreeMap<u64, Touched>,
    left_out: u64,
}

/// Counts accesses; clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Coverage(Arc<Mutex<Map>>);

impl Observer for Coverage {
    fn event(&mut self, event: &Event) {
        let EventKind::Register { offset, write, .. } = event.kind else {
            return;
        };
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if map.registers.len() >= MAX_REGISTERS && !map.registers.contains_key(&offset) {
            map.left_out += 1;
            return;
        }
        let touched = map.registers.entry(offset).or_default();
        if write {
            touched.writes += 1;
        } else {
            touched.reads += 1;
        }
    }

    fn interest(&self) -> Interest {
        Interest {
            registers: true,
            ..Interest::default()
        }
    }
}

/// Registers of one name, in all engines and queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The name with `*` for what counts engines, queues, cores.
    pub name: String,
    /// Different registers touched.
    pub registers: u64,
    /// Reads of all of them.
    pub reads: u64,
    /// Writes of all of them.
    pub writes: u64,
    /// The model gives it a meaning; others only read back what was written.
    pub modelled: bool,
}

impl Row {
    const fn access(&self) -> &'static str {
        match (self.reads > 0, self.writes > 0) {
            (true, true) => "rw",
            (true, false) => "r",
            (false, true) => "w",
            (false, false) => "-",
        }
    }
}

/// What was touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Of which product.
    pub product: String,
    /// On which platform.
    pub platform: String,
    /// By name.
    pub registers: Vec<Row>,
    /// Accesses to further registers, which are not told apart.
    pub left_out: u64,
}

impl Coverage {
    /// What was touched so far; `behaves` says of an offset whether it means something in the model.
    pub fn report(&self, config: &Config, mut behaves: impl FnMut(u64) -> bool) -> Report {
        let generation = config.product.generation();
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = BTreeMap::<String, Row>::new();
        for (offset, touched) in &map.registers {
            let name = RegisterName {
                generation,
                offset: *offset,
            };
            let name = general(&name.to_string());
            let row = rows.entry(name.clone()).or_insert_with(|| Row {
                name,
                modelled: true,
                ..Row::default()
            });
            row.registers += 1;
            row.reads += touched.reads;
            row.writes += touched.writes;
            row.modelled &= behaves(*offset);
        }
        Report {
            product: config.product.name().to_owned(),
            platform: config.platform.name().to_owned(),
            registers: rows.into_values().collect(),
            left_out: map.left_out,
        }
    }
}

/// A register's name without what counts engines, queues, cores and array elements.
fn general(name: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in name.split(' ') {
        let number = word.bytes().all(|byte| byte.is_ascii_digit());
        if word.starts_with('(') {
            // The engine's name, which may have spaces in it no longer.
            continue;
        }
        let counted = word
            .strip_prefix("nq")
            .map(|rest| ("nq", rest))
            .or_else(|| word.strip_prefix('q').map(|rest| ("q", rest)));
        let element = word
            .strip_suffix(']')
            .and_then(|word| word.rsplit_once('['));
        words.push(match (counted, element) {
            _ if number && !words.is_empty() => "*".to_owned(),
            (Some((kind, rest)), _) => {
                // `q3` counts, as in `q3+0x40`; `q_sw_ctrl` is a name.
                let digits =
                    rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                if digits == 0 {
                    word.to_owned()
                } else {
                    format!("{kind}*{}", &rest[digits..])
                }
            }
            (None, Some((array, _))) => format!("{array}[*]"),
            _ => word.to_owned(),
        });
    }
    words.join(" ")
}

impl Report {
    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} on platform {}: {} kinds of registers touched, {} without behaviour\n{:<48}{:>10}{:>12}{:>12}\n",
            self.product,
            self.platform,
            self.registers.len(),
            self.registers.iter().filter(|row| !row.modelled).count(),
            "register",
            "registers",
            "reads",
            "writes"
        );
        for row in &self.registers {
            // Fails for no String.
            let _ = writeln!(
                text,
                "{:<48}{:>10}{:>12}{:>12}{}",
                row.name,
                row.registers,
                row.reads,
                row.writes,
                if row.modelled { "" } else { "  no behaviour" }
            );
        }
        if self.left_out > 0 {
            let _ = writeln!(text, "{} accesses to further registers", self.left_out);
        }
        text
    }
}

/// What one uses and the other does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Only in the first.
    pub removed: Vec<Row>,
    /// Only in the second.
    pub added: Vec<Row>,
    /// In both, in another number of places: first and second.
    pub resized: Vec<(Row, Row)>,
    /// In both, but read or written by one alone: first and second.
    pub changed: Vec<(Row, Row)>,
    /// In both, in the same way.
    pub same: usize,
}

impl Diff {
    /// Compares two.
    pub fn new(first: &Report, second: &Report) -> Self {
        let by_name = |report: &Report| -> BTreeMap<String, Row> {
            let rows = report.registers.iter();
            rows.map(|row| (row.name.clone(), row.clone())).collect()
        };
        let (first, mut second) = (by_name(first), by_name(second));
        let mut diff = Self::default();
        for (name, row) in first {
            match second.remove(&name) {
                None => diff.removed.push(row),
                Some(other) if other.access() != row.access() => diff.changed.push((row, other)),
                Some(other) if other.registers != row.registers => diff.resized.push((row, other)),
                Some(_) => diff.same += 1,
            }
        }
        diff.added = second.into_values().collect();
        diff
    }

    /// Lines for people: `-` only in the first, `+` only in the second, `~` in both but differently.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let note = |row: &Row| if row.modelled { "" } else { ", no behaviour" };
        let places = |row: &Row| format!("{} in {}", row.access(), row.registers);
        for (sign, rows) in [('-', &self.removed), ('+', &self.added)] {
            for row in rows {
                // Fails for no String.
                let _ = writeln!(text, "{sign} {:<48}{}{}", row.name, places(row), note(row));
            }
        }
        for (first, second) in &self.changed {
            let _ = writeln!(
                text,
                "~ {:<48}{} -> {}{}",
                first.name,
                places(first),
                places(second),
                note(second)
            );
        }
        // Another number of engines or queues shows in many registers: one line for each pair of numbers.
        let mut sizes = BTreeMap::<(u64, u64), Vec<&str>>::new();
        for (first, second) in &self.resized {
            let names = sizes
                .entry((first.registers, second.registers))
                .or_default();
            names.push(&second.name);
        }
        for ((first, second), names) in sizes {
            let _ = writeln!(
                text,
                "~ in {first} -> {second} places: {}",
                names.join(", ")
            );
        }
        let _ = writeln!(text, "{} kinds of registers are used alike", self.same);
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::event::Scope;
    use super::*;

    fn touch(coverage: &mut Coverage, offset: u64, write: bool) {
        coverage.event(&Event {
            at: Duration::ZERO,
            scope: Scope::Device,
            kind: EventKind::Register {
                offset,
                value: 0,
                write,
                known: true,
            },
        });
    }

    fn report(coverage: &Coverage) -> Report {
        let header = crate::record::Header {
            version: String::new(),
            product: "trn2".to_owned(),
            platform: "qemu".to_owned(),
            routing_id: 0,
            serial: 1,
            hbm: 64 << 30,
            firmware: crate::function::Firmware::default(),
            payload: crate::record::Payload::Full,
            timing: None,
            msix: false,
            adversary: None,
        };
        let config = header.config().unwrap();
        let mut spare = crate::function::NeuronFunction::new(config).unwrap();
        coverage.report(&config, |offset| spare.has_behaviour(offset))
    }

    #[test]
    fn names_lose_their_numbers_and_keep_their_words() {
        for (name, expected) in [
            ("eng 128 (D2H_0) m2s q0 drtp_inc", "eng * m2s q* drtp_inc"),
            ("eng 1 (NC0/1) s2m q1 q_sw_ctrl", "eng * s2m q* q_sw_ctrl"),
            ("eng 1 (NC0/1) s2m q11+0x40", "eng * s2m q*+0x40"),
            ("core 0 semaphore_inc[2]", "core * semaphore_inc[*]"),
            ("core_notific 3 nq9 nq.head", "core_notific * nq* nq.head"),
            ("misc_ram.device_id", "misc_ram.device_id"),
            ("0x20000000", "0x20000000"),
        ] {
            assert_eq!(general(name), expected);
        }
    }

    #[test]
    fn a_difference_is_what_is_used_otherwise() {
        let (mut first, mut second) = (Coverage::default(), Coverage::default());
        let doorbell = 0x0680_1038;
        for coverage in [&mut first, &mut second] {
            touch(coverage, doorbell, true);
        }
        touch(&mut first, 0x10, false);
        touch(&mut second, 0x20, true);
        touch(&mut second, doorbell, false);
        assert!(report(&first).registers.iter().any(|row| !row.modelled));
        let diff = Diff::new(&report(&first), &report(&second));
        assert_eq!((diff.removed.len(), diff.added.len(), diff.same), (1, 1, 0));
        assert_eq!(diff.changed[0].1.access(), "rw");
        let table = diff.table();
        assert!(table.contains("~ eng * m2s q* drtp_inc"), "{table}");
        assert!(table.contains("w in 1 -> rw in 1"), "{table}");
        let text = serde_json::to_string(&report(&first)).unwrap();
        assert_eq!(
            serde_json::from_str::<Report>(&text).unwrap(),
            report(&first)
        );
        assert_eq!(Diff::new(&report(&first), &report(&first)).same, 2);
    }

    #[test]
    fn a_guest_that_touches_everything_costs_no_more() {
        let mut coverage = Coverage::default();
        for n in 0..MAX_REGISTERS as u64 + 10 {
            touch(&mut coverage, n * 4, false);
        }
        assert_eq!(report(&coverage).left_out, 10);
    }
}

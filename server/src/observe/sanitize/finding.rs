//! Findings, repeats folded.
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use neuron_protocol::registers::Direction;
use serde::{Serialize, Serializer};

use super::rule::{Rule, Severity};

/// Different findings kept per device; what comes after is only counted. A guest must not make the process grow.
pub const MAX_FINDINGS: usize = 1024;

/// Where a rule was broken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Engine and queue; none for what concerns the whole device.
    pub queue: Option<(u8, u8)>,
    /// Which ring.
    pub direction: Option<Direction>,
    /// Descriptor in that ring.
    pub index: Option<u32>,
    /// What is at stake, each with its name: device-side addresses, or offsets in the register BAR.
    pub addresses: Vec<(&'static str, u64)>,
}

/// One finding and its repeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was broken.
    pub rule: Rule,
    /// How sure that is.
    pub severity: Severity,
    /// Routing id of the device.
    pub device: u8,
    /// Engine number.
    pub engine: Option<u8>,
    /// Queue of that engine.
    pub queue: Option<u8>,
    /// Ring.
    #[serde(serialize_with = "direction_name")]
    pub direction: Option<Direction>,
    /// Descriptor in it.
    pub index: Option<u32>,
    /// Addresses by name.
    #[serde(serialize_with = "hexadecimal")]
    pub addresses: Vec<(&'static str, u64)>,
    /// What happened, in words.
    pub detail: String,
    /// Device time of the first, microseconds.
    pub first_us: u64,
    /// Device time of the last, microseconds.
    pub last_us: u64,
    /// How often in all.
    pub count: u64,
    /// The queue's last events before the first, oldest first.
    pub events: Vec<String>,
}

#[expect(
    clippy::ref_option,
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde calls"
)]
fn direction_name<S: Serializer>(
    direction: &Option<Direction>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    direction.map(Direction::name).serialize(serializer)
}

fn hexadecimal<S: Serializer>(
    addresses: &[(&'static str, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        addresses
            .iter()
            .map(|(name, address)| (name, format!("{address:#x}"))),
    )
}

impl Finding {
    /// Where, in the words of the log: `e128 q0 m2s 17, source 0x400000001000`.
    pub fn place(&self) -> String {
        // Writing to a String does not fail.
        let mut text = match (self.engine, self.queue) {
            (Some(engine), Some(queue)) => format!("e{engine} q{queue}"),
            _ => "device".to_owned(),
        };
        if let Some(direction) = self.direction {
            let _ = write!(text, " {direction}");
        }
        if let Some(index) = self.index {
            let _ = write!(text, " descriptor {index}");
        }
        for (name, address) in &self.addresses {
            let _ = write!(text, ", {name} {address:#x}");
        }
        text
    }
}

type Key = (Rule, Option<(u8, u8)>, u64);

/// Whether a finding was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The first of its kind at its place.
    New,
    /// One more; how many by now.
    Repeat(u64),
    /// There are too many to keep.
    Lost,
}

/// The findings of one device, in order of their first occurrence.
#[derive(Debug, Default)]
pub struct Ledger {
    device: u8,
    findings: Vec<Finding>,
    index: HashMap<Key, usize>,
    /// Findings beyond [`MAX_FINDINGS`].
    lost: u64,
    /// Launches and descriptors that were too many at a time to be followed.
    untracked: u64,
}

impl Ledger {
    /// None yet.
    pub fn new(device: u8) -> Self {
        Self {
            device,
            ..Self::default()
        }
    }

    /// Takes a finding in. `fold` tells findings of a rule at one place apart (the offset of a register); 0 elsewhere.
    pub fn note(
        &mut self,
        at: Duration,
        rule: Rule,
        place: Place,
        fold: u64,
        detail: impl FnOnce() -> String,
        events: impl FnOnce() -> Vec<String>,
    ) -> Noted {
        let now = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let key = (rule, place.queue, fold);
        if let Some(finding) = self
            .index
            .get(&key)
            .and_then(|nth| self.findings.get_mut(*nth))
        {
            finding.count += 1;
            finding.last_us = now;
            return Noted::Repeat(finding.count);
        }
        if self.findings.len() >= MAX_FINDINGS {
            self.lost += 1;
            return Noted::Lost;
        }
        self.index.insert(key, self.findings.len());
        self.findings.push(Finding {
            rule,
            severity: rule.severity(),
            device: self.device,
            engine: place.queue.map(|(engine, _)| engine),
            queue: place.queue.map(|(_, queue)| queue),
            direction: place.direction,
            index: place.index,
            addresses: place.addresses,
            detail: detail(),
            first_us: now,
            last_us: now,
            count: 1,
            events: events(),
        });
        Noted::New
    }

    /// Something was too much to be followed: rules about it were not checked.
    pub const fn untracked(&mut self) {
        self.untracked += 1;
    }

    /// All of them.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Routing id of the device.
    pub const fn device(&self) -> u8 {
        self.device
    }

    /// Different findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    }

    /// Findings that could not be kept, and things that could not be followed.
    pub const fn gaps(&self) -> (u64, u64) {
        (self.lost, self.untracked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(ledger: &mut Ledger, queue: u8, fold: u64) -> Noted {
        let place = Place {
            queue: Some((1, queue)),
            ..Place::default()
        };
        ledger.note(
            Duration::from_micros(fold),
            Rule::DoorbellZero,
            place,
            fold,
            String::new,
            Vec::new,
        )
    }

    #[test]
    fn repeats_fold_and_places_do_not() {
        let mut ledger = Ledger::new(3);
        assert_eq!(note(&mut ledger, 0, 0), Noted::New);
        assert_eq!(note(&mut ledger, 0, 0), Noted::Repeat(2));
        assert_eq!(note(&mut ledger, 1, 0), Noted::New);
        assert_eq!(note(&mut ledger, 0, 8), Noted::New);
        assert_eq!(ledger.findings()[0].count, 2);
        assert_eq!(ledger.count(Severity::Error), 3);
        assert_eq!(ledger.count(Severity::Suspicion), 0);
    }

    #[test]
    fn a_guest_cannot_make_it_grow() {
        let mut ledger = Ledger::new(0);
        for fold in 0..5000 {
            note(&mut ledger, 0, fold);
        }
        assert_eq!(ledger.findings().len(), MAX_FINDINGS);
        assert_eq!(ledger.gaps(), (5000 - 1024, 0));
    }
}

//! Deciding: rules against points, with counts and a seeded random number for each rule.
use std::fmt::Write as _;
use std::time::Duration;

use neuron_protocol::generation::Generation;
use neuron_protocol::registers::RegisterName;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use super::rule::{Occurrence, On, Outcome, Rule};
use crate::policy::{Corruption, Point, Policy, Verdict};

/// Most rules of a device.
pub const MAX_RULES: usize = 64;
/// Hits logged one by one; then only those whose number is a power of two.
const LOGGED: u64 = 8;

/// A rule and what came of it.
#[derive(Debug)]
struct Active {
    rule: Rule,
    /// Of its own, so that a rule's luck does not depend on its neighbours.
    random: ChaCha8Rng,
    seen: u64,
    fired: u64,
}

/// The account of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fired {
    /// The rule's name.
    pub name: String,
    /// Events that matched it.
    pub seen: u64,
    /// Of those, how many it hit.
    pub fired: u64,
}

/// The faults of a device.
#[derive(Debug)]
pub struct Faults {
    generation: &'static Generation,
    seed: u64,
    rules: Vec<Active>,
    added: u64,
}

impl Faults {
    /// None yet. The same seed, rules and events give the same faults.
    #[must_use]
    pub const fn new(generation: &'static Generation, seed: u64) -> Self {
        Self {
            generation,
            seed,
            rules: Vec::new(),
            added: 0,
        }
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// There are [`MAX_RULES`].
    pub fn add(&mut self, rule: Rule) -> Result<(), String> {
        if self.rules.len() >= MAX_RULES {
            return Err(format!(
                "a device takes {MAX_RULES} fault rules at most; clear some first"
            ));
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(self.added);
        self.added += 1;
        self.rules.push(Active {
            rule,
            random,
            seen: 0,
            fired: 0,
        });
        Ok(())
    }

    /// Forgets all rules.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// No rule, nothing goes wrong.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What came of each rule.
    #[must_use]
    pub fn fired(&self) -> Vec<Fired> {
        let account = |active: &Active| Fired {
            name: active.rule.name.clone(),
            seen: active.seen,
            fired: active.fired,
        };
        self.rules.iter().map(account).collect()
    }

    /// The rules in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for active in &self.rules {
            let Rule {
                name,
                on,
                action,
                occurrence,
                ..
            } = &active.rule;
            // Fails for no String.
            let _ = writeln!(
                text,
                "  {name}: {} on {}, {occurrence}: {} of {} events hit",
                action.fit().name,
                on.name(),
                active.fired,
                active.seen
            );
        }
        text
    }
}

impl Policy for Faults {
    /// Every rule counts what it matches; the first that hits decides.
    fn judge(&mut self, _now: Duration, point: &Point) -> Verdict {
        let generation = self.generation;
        let mut verdict = Verdict::Proceed;
        for active in &mut self.rules {
            if !matches(&active.rule, point, generation) {
                continue;
            }
            let hit = active.hits();
            if hit && verdict == Verdict::Proceed {
                active.fired += 1;
                verdict = active.verdict();
                active.log(point);
            }
        }
        verdict
    }
}

impl Active {
    fn hits(&mut self) -> bool {
        self.seen += 1;
        match self.rule.occurrence {
            Occurrence::Always => true,
            Occurrence::Nth(n) => self.seen == n,
            Occurrence::Every(n) => self.seen.is_multiple_of(n),
            Occurrence::First(n) => self.seen <= n,
            Occurrence::Chance(probability) => {
                f64::from(self.random.next_u32()) < probability * (f64::from(u32::MAX) + 1.0)
            }
        }
    }

    fn verdict(&mut self) -> Verdict {
        match self.rule.outcome {
            Outcome::Fixed(verdict) => verdict,
            Outcome::Corrupt { byte, mask } => {
                // Drawn even if given, so that giving one does not change the other.
                let (offset, random) = (self.random.next_u32(), self.random.next_u32());
                Verdict::Corrupt(Corruption {
                    offset: byte.unwrap_or(offset),
                    // 0 would change nothing.
                    mask: mask.unwrap_or(random.max(1)),
                })
            }
        }
    }

    fn log(&self, point: &Point) {
        let Self { rule, fired, .. } = self;
        if *fired <= LOGGED || fired.is_power_of_two() {
            let queue = point.queue();
            tracing::info!(
                engine = queue.map(|(engine, _)| engine),
                queue = queue.map(|(_, queue)| queue),
                "fault {}: {} at {point} (hit {fired})",
                rule.name,
                rule.action.fit().name
            );
        }
    }
}

fn matches(rule: &Rule, point: &Point, generation: &'static Generation) -> bool {
    let on = match point {
        Point::Doorbell { .. } => On::Doorbell,
        Point::Fetch { .. } => On::Fetch,
        Point::Copy { .. } => On::Copy,
        Point::Marker { .. } => On::Marker,
        Point::Reset { .. } => On::Reset,
        Point::Mailbox { .. } => On::Mailbox,
        Point::Register { .. } => On::Register,
    };
    if rule.on != on {
        return false;
    }
    if let Some((engine, queue)) = point.queue()
        && (rule.engine.is_some_and(|wanted| wanted != engine)
            || rule.queue.is_some_and(|wanted| wanted != queue))
    {
        return false;
    }
    if rule.direction.is_some() && rule.direction != point.direction() {
        return false;
    }
    match point {
        Point::Mailbox { command, .. } => rule.command.is_none_or(|wanted| wanted == *command),
        Point::Register { offset, .. } => rule
            .register
            .as_ref()
            .is_none_or(|wanted| is_named(generation, *offset, wanted)),
        _ => true,
    }
}

/// The register's name ends with these words, or its offset is the number.
fn is_named(generation: &'static Generation, offset: u64, wanted: &str) -> bool {
    if let Some(number) = wanted.strip_prefix("0x") {
        return u64::from_str_radix(number, 16) == Ok(offset);
    }
    let name = RegisterName { generation, offset }
        .to_string()
        .replace(' ', ".");
    name.strip_suffix(wanted)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::V3;
    use neuron_protocol::registers::misc_ram;

    use super::*;
    use crate::policy::fault::inline;

    const MARKER: Point = Point::Marker {
        engine: 1,
        queue: 2,
        tx: 3,
        address: 4,
    };

    fn hits(text: &str, seed: u64, points: &[Point]) -> Vec<usize> {
        let mut faults = Faults::new(&V3, seed);
        for rule in inline(text).unwrap() {
            faults.add(rule).unwrap();
        }
        let hit =
            |(_, point): &(usize, &Point)| faults.judge(Duration::ZERO, point) != Verdict::Proceed;
        points
            .iter()
            .enumerate()
            .filter(hit)
            .map(|(n, _)| n + 1)
            .collect()
    }

    #[test]
    fn occurrences() {
        let ten = [MARKER; 10];
        for (when, expected) in [
            ("", vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
            ("nth=3", vec![3]),
            ("every=4", vec![4, 8]),
            ("first=2", vec![1, 2]),
            ("chance=1.0", vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ] {
            assert_eq!(
                hits(&format!("on=marker action=drop {when}"), 1, &ten),
                expected,
                "{when}"
            );
        }
    }

    #[test]
    fn chance_repeats_with_its_seed_only() {
        let many = vec![MARKER; 1000];
        let of = |seed| hits("on=marker action=drop chance=0.1", seed, &many);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        assert!((50..200).contains(&of(7).len()), "{}", of(7).len());
    }

    #[test]
    fn places() {
        let register = Point::Register {
            offset: (V3.misc_ram + misc_ram::TRIGGER).into(),
            value: 0,
        };
        let hex = format!("register={:#x}", V3.misc_ram + misc_ram::TRIGGER);
        for (text, point, hit) in [
            ("on=marker action=drop engine=1 queue=2", MARKER, true),
            ("on=marker action=drop engine=2", MARKER, false),
            ("on=marker action=drop queue=1", MARKER, false),
            ("on=copy action=drop", MARKER, false),
            (
                "on=register action=value value=1 register=trigger",
                register,
                true,
            ),
            (
                "on=register action=value value=1 register=misc_ram.trigger",
                register,
                true,
            ),
            (
                "on=register action=value value=1 register=rigger",
                register,
                false,
            ),
            (
                &format!("on=register action=value value=1 {hex}"),
                register,
                true,
            ),
            (
                "on=mailbox action=drop command=5",
                Point::Mailbox {
                    command: 5,
                    sequence: 1,
                },
                true,
            ),
            (
                "on=mailbox action=drop command=4",
                Point::Mailbox {
                    command: 5,
                    sequence: 1,
                },
                false,
            ),
        ] {
            assert_eq!(!hits(text, 0, &[point]).is_empty(), hit, "{text}");
        }
    }
}

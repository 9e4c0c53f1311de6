//! Decisions of a legal machine that is as unhelpful as it may be, all from one seed.
//!
//! The engine asks at every point where hardware has a choice ([`Kind`]). The answer is *in order* (what a device without
//! adversary does) or a deviation, with some entropy for how. Decisions are numbered; a [`Plan`] can forbid deviations,
//! so that a failing seed can be cut down to the few that matter ([`shrink`]). What the choices are, and why each is legal,
//! is in `docs/adversary.md`.
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Deviations whose numbers are kept for [`shrink`]; a longer run can be cut to these only.
const MAX_TAKEN: usize = 1 << 16;

/// A choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Go on although writes have not landed.
    Hold,
    /// Land another than the oldest write that may land.
    Reorder,
    /// Cut a write into runs of beats.
    Cut,
    /// Fetch descriptors although some are here.
    FetchEarly,
    /// Fetch fewer descriptors than there are.
    FetchFew,
    /// Work at once after a register write, before the next message is looked at.
    Eager,
    /// Do nothing for a while.
    Nap,
    /// Let the heads stay where they were.
    LagHeads,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 8] = [
        Self::Hold,
        Self::Reorder,
        Self::Cut,
        Self::FetchEarly,
        Self::FetchFew,
        Self::Eager,
        Self::Nap,
        Self::LagHeads,
    ];

    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "writes held",
            Self::Reorder => "writes reordered",
            Self::Cut => "writes cut into beats",
            Self::FetchEarly => "early fetches",
            Self::FetchFew => "short fetches",
            Self::Eager => "eager turns",
            Self::Nap => "naps",
            Self::LagHeads => "late heads",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// Which of the decisions may deviate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// All.
    #[default]
    All,
    /// The first so many.
    First(u64),
    /// Those in these ranges, in ascending order.
    Only(Vec<RangeInclusive<u64>>),
}

impl Plan {
    /// Only these, which are in ascending order.
    #[must_use]
    pub fn only(numbers: &[u64]) -> Self {
        let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
        for &number in numbers {
            match ranges.last_mut() {
                Some(last) if last.end() + 1 == number => *last = *last.start()..=number,
                _ => ranges.push(number..=number),
            }
        }
        Self::Only(ranges)
    }

    fn allows(&self, number: u64) -> bool {
        match self {
            Self::All => true,
            Self::First(count) => number < *count,
            Self::Only(ranges) => {
                let after = ranges.partition_point(|range| *range.start() <= number);
                after > 0 && ranges[after - 1].contains(&number)
            }
        }
    }
}

/// What `--adversary` takes: a seed, and perhaps a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The seed.
    pub seed: u64,
    /// What of it is done.
    pub plan: Plan,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        match &self.plan {
            Plan::All => Ok(()),
            Plan::First(count) => write!(f, ":{count}"),
            Plan::Only(ranges) => {
                for (nth, range) in ranges.iter().enumerate() {
                    f.write_str(if nth == 0 { ":+" } else { "," })?;
                    write!(f, "{}", range.start())?;
                    if range.start() != range.end() {
                        write!(f, "-{}", range.end())?;
                    }
                }
                if ranges.is_empty() {
                    f.write_str(":0")?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| format!("{text:?} is no number"))
        };
        let (seed, plan) = match text.trim().split_once(':') {
            None => (text.trim(), Plan::All),
            Some((seed, rest)) => match rest.strip_prefix('+') {
                None => (seed, Plan::First(number(rest)?)),
                Some(parts) => {
                    let range = |part: &str| {
                        let (first, last) = part.split_once('-').unwrap_or((part, part));
                        Ok(number(first)?..=number(last)?)
                    };
                    let ranges: Vec<_> =
                        parts.split(',').map(range).collect::<Result<_, String>>()?;
                    let rising = ranges.iter().all(|range| range.start() <= range.end())
                        && ranges
                            .windows(2)
                            .all(|pair| pair[0].end() < pair[1].start());
                    if !rising {
                        return Err("the list of decisions must rise: 3,17-20,40".to_owned());
                    }
                    (seed, Plan::Only(ranges))
                }
            },
        };
        let seed = number(seed)?;
        Ok(Self { seed, plan })
    }
}

/// The entropy of one queue since its last reset.
#[derive(Debug)]
pub struct Stream(u64);

impl Stream {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// `splitmix64`'s finaliser.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The decider of one device.
#[derive(Debug)]
pub struct Adversary {
    script: Script,
    /// Of each kind, how many of 256 decisions deviate. A seed has its own taste, so that a few choices taken often get
    /// their chance beside all taken sometimes.
    chances: [u8; Kind::ALL.len()],
    /// Resets of each queue that made a decision; bounded by the queues there are.
    streams: BTreeMap<(u8, u8), u64>,
    device: Stream,
    asked: u64,
    counts: [u64; Kind::ALL.len()],
    taken: Vec<u64>,
}

impl Adversary {
    /// A decider.
    #[must_use]
    pub fn new(script: Script) -> Self {
        let mut taste = Stream(mix(script.seed ^ 0x005e_ed0f_7a57_e000));
        let mut chances = Kind::ALL.map(|kind| {
            let choices: [u8; 4] = match kind {
                Kind::Hold => [40, 160, 220, 248],
                Kind::Reorder | Kind::Cut => [0, 100, 180, 240],
                Kind::FetchEarly | Kind::FetchFew | Kind::LagHeads => [0, 40, 128, 220],
                Kind::Eager => [0, 20, 128, 240],
                // Time is what a budget counts.
                Kind::Nap => [0, 2, 6, 12],
            };
            choices[usize::from(taste.word().to_le_bytes()[0] & 3)]
        });
        // Half of the seeds do all of it.
        if script.seed % 2 == 1 {
            chances = chances.map(|chance| chance.max(8));
        }
        Self {
            device: Stream(mix(script.seed)),
            script,
            chances,
            streams: BTreeMap::new(),
            asked: 0,
            counts: [0; Kind::ALL.len()],
            taken: Vec::new(),
        }
    }

    /// What it follows.
    #[must_use]
    pub const fn script(&self) -> &Script {
        &self.script
    }

    /// Decisions so far.
    #[must_use]
    pub const fn asked(&self) -> u64 {
        self.asked
    }

    /// The numbers of those that deviated, from the first on.
    #[must_use]
    pub fn taken(&self) -> &[u64] {
        &self.taken
    }

    /// In words.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = format!("seed {}: {} decisions", self.script, self.asked);
        for kind in Kind::ALL {
            let count = self.counts[kind.index()];
            if count > 0 {
                // Writing to a String does not fail.
                let _ = write!(text, ", {count} {}", kind.name());
            }
        }
        text
    }

    /// The entropy of a queue from its reset on. It does not depend on what other queues do.
    pub fn stream(&mut self, engine: u8, queue: u8) -> Stream {
        let life = self.streams.entry((engine, queue)).or_default();
        *life += 1;
        let place = u64::from(engine) << 8 | u64::from(queue);
        Stream(mix(self.script.seed ^ mix(place << 32 | *life)))
    }

    /// Decides: `None` is in order, else entropy for the deviation.
    pub fn deviates(&mut self, stream: &mut Stream, kind: Kind) -> Option<u64> {
        let word = stream.word();
        self.decide(kind, word)
    }

    /// Decides for the whole device.
    pub fn device_deviates(&mut self, kind: Kind) -> Option<u64> {
        let word = self.device.word();
        self.decide(kind, word)
    }

    fn decide(&mut self, kind: Kind, word: u64) -> Option<u64> {
        let number = self.asked;
        self.asked += 1;
        let [draw, ..] = word.to_le_bytes();
        if draw >= self.chances[kind.index()] || !self.script.plan.allows(number) {
            return None;
        }
        self.counts[kind.index()] += 1;
        if self.taken.len() < MAX_TAKEN {
            self.taken.push(number);
        }
        Some(word >> 8)
    }
}

/// Cuts a failing seed down to few deviations: removes them in ever smaller portions as long as what is left still fails.
///
/// `fails` runs a script from the beginning, and tells whether it failed and the decisions that deviated
/// ([`Adversary::taken`]). It is run at most `runs` times.
pub fn shrink(seed: u64, runs: u32, mut fails: impl FnMut(&Script) -> (bool, Vec<u64>)) -> Script {
    let (failed, mut taken) = fails(&Script {
        seed,
        plan: Plan::All,
    });
    let script = |numbers: &[u64]| Script {
        seed,
        plan: Plan::only(numbers),
    };
    if !failed {
        return script(&[]);
    }
    let mut runs = runs.saturating_sub(1);
    let mut portion = taken.len().div_ceil(2).max(1);
    while runs > 0 && !taken.is_empty() {
        let mut at = 0;
        let mut removed = false;
        while at < taken.len() && runs > 0 {
            let mut fewer = taken.clone();
            fewer.drain(at..(at + portion).min(taken.len()));
            runs -= 1;
            let (failed, used) = fails(&script(&fewer));
            if failed {
                // What was allowed and no longer asked is not needed either.
                fewer.retain(|number| used.binary_search(number).is_ok());
                taken = fewer;
                removed = true;
            } else {
                at += portion;
            }
        }
        if portion == 1 && !removed {
            break;
        }
        portion = portion.div_ceil(2);
    }
    script(&taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_read_back_and_bad_ones_say_why() {
        for text in ["0", "7:120", "7:+3", "18446744073709551615:+1,4-9,11"] {
            assert_eq!(text.parse::<Script>().unwrap().to_string(), text);
        }
        for bad in ["", "x", "1:", "1:+", "1:+5,3", "1:+5-3", "1:-2", "-1"] {
            assert!(bad.parse::<Script>().is_err(), "{bad}");
        }
        let plan = Plan::only(&[1, 2, 3, 7]);
        assert_eq!(plan, Plan::Only(vec![1..=3, 7..=7]));
        let allowed: Vec<_> = (0..10).filter(|number| plan.allows(*number)).collect();
        assert_eq!(allowed, [1, 2, 3, 7]);
    }

    fn run(script: &Script) -> Vec<bool> {
        let mut adversary = Adversary::new(script.clone());
        let mut stream = adversary.stream(3, 4);
        let ask = |_| adversary.deviates(&mut stream, Kind::Hold).is_some();
        (0..1000).map(ask).collect()
    }

    #[test]
    fn a_seed_decides_the_same_every_time_and_a_plan_only_forbids() {
        let all = run(&"5".parse().unwrap());
        assert_eq!(all, run(&"5".parse().unwrap()));
        assert_ne!(all, run(&"6".parse().unwrap()));
        assert!(all.contains(&true) && all.contains(&false));
        let first = run(&"5:300".parse().unwrap());
        assert_eq!(first[..300], all[..300]);
        assert!(!first[300..].contains(&true));
    }

    #[test]
    fn other_queues_and_resets_change_a_stream_not_each_other() {
        let words = |engine, queue, life| {
            let mut adversary = Adversary::new(Script::default());
            adversary.stream(9, 9);
            (1..life).for_each(|_| _ = adversary.stream(engine, queue));
            adversary.stream(engine, queue).word()
        };
        let all = [
            words(0, 0, 1),
            words(0, 1, 1),
            words(1, 0, 1),
            words(0, 0, 2),
        ];
        for (nth, word) in all.iter().enumerate() {
            assert!(!all[..nth].contains(word));
        }
    }

    #[test]
    fn shrinking_finds_the_few_that_matter() {
        // It fails if decisions 40 and 777 deviate.
        let mut seed = 0;
        loop {
            let all = run(&Script {
                seed,
                plan: Plan::All,
            });
            if all[40] && all[777] {
                break;
            }
            seed += 1;
        }
        let fails = |script: &Script| {
            let all = run(script);
            let taken = (0..).zip(&all).filter(|(_, taken)| **taken);
            (all[40] && all[777], taken.map(|(nth, _)| nth).collect())
        };
        let script = shrink(seed, 500, fails);
        assert_eq!(script.plan, Plan::only(&[40, 777]));
        assert_eq!(script.to_string(), format!("{seed}:+40,777"));
    }
}

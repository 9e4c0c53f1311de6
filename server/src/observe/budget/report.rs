//! What the books say: plain data and its words.
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// Bounds of the histogram's buckets but the last, in parts per million of the budget.
pub const BUCKETS: [u64; 9] = [
    0, 1_000, 10_000, 50_000, 100_000, 250_000, 500_000, 750_000, 1_000_000,
];

/// A share, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u64);

impl Percent {
    /// The share that `part` is of `whole`; of nothing, everything is too much.
    #[must_use]
    pub fn of(part: Duration, whole: Duration) -> Self {
        let ppm = (part.as_nanos().saturating_mul(1_000_000))
            .checked_div(whole.as_nanos())
            .unwrap_or(u128::MAX);
        Self(u64::try_from(ppm).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02} %", self.0 / 10_000, self.0 % 10_000 / 100)
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
        if !(0.0..=1e6).contains(&number) {
            return Err("a share of the budget in percent, 0 to 1000000".to_owned());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked just before"
        )]
        Ok(Self((number * 10_000.0).round() as u64))
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "for people and scripts")]
        serializer.serialize_f64(self.0 as f64 / 10_000.0)
    }
}

/// A time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        match us {
            0..10_000 => write!(f, "{us} us"),
            10_000..10_000_000 => write!(f, "{}.{:02} ms", us / 1000, us % 1000 / 10),
            _ => write!(f, "{} s", us / 1_000_000),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_secs_f64() * 1e6)
    }
}

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchReport {
    /// When its doorbell rang, since the process began to serve.
    pub rung_at_us: Span,
    /// Descriptors, its marker included.
    pub descriptors: u32,
    /// Nothing of its data was the host's: a driver may grant it the short budget.
    pub device_to_device: bool,
    /// Time that passed in the model.
    pub model_us: Span,
    /// Time that passed on the host, from when the device saw the doorbell: the guest waited longer.
    pub wall_us: Span,
    /// How long the driver waits before its first look.
    pub first_wait_us: Span,
    /// What the driver grants on silicon, first wait included.
    pub silicon_budget_us: Span,
    /// What it grants at least on this platform.
    pub platform_budget_us: Span,
    /// `model_us` of `silicon_budget_us`.
    pub model_percent: Percent,
    /// `wall_us` of `platform_budget_us`.
    pub wall_percent: Percent,
}

/// One queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueBudget {
    /// Engine number.
    pub engine: u8,
    /// Queue number.
    pub queue: u8,
    /// Batches that ended with a marker.
    pub batches: u64,
    /// Of them without a budget: too short, or markers inside of what one doorbell rang.
    pub without_budget: u64,
    /// Doorbells whose work was dropped by a reset, an abort or the client's end before their marker.
    pub unfinished: u64,
    /// Batches that wait for their marker.
    pub waiting: u64,
    /// Doorbells that could not be kept apart: too many at a time.
    pub untracked: u64,
    /// Device-to-device among the batches.
    pub device_to_device: u64,
    /// Batches beyond the limit.
    pub exceeded: u64,
    /// Batches by share of silicon's budget in model time, see [`BudgetReport::buckets_percent`].
    pub model_histogram: [u64; BUCKETS.len() + 1],
    /// Batches by share of the platform's budget in wall time.
    pub wall_histogram: [u64; BUCKETS.len() + 1],
    /// The worst batches: by share in model time, then in wall time.
    pub worst: Vec<BatchReport>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BudgetReport {
    /// Share of silicon's budget beyond which a batch is too slow.
    pub limit_percent: Option<Percent>,
    /// Batches beyond it.
    pub exceeded: u64,
    /// Upper bounds of the histograms' buckets; the last bucket has none.
    pub buckets_percent: [Percent; BUCKETS.len()],
    /// Queues that ended a batch or lost one, worst first.
    pub queues: Vec<QueueBudget>,
}

impl BudgetReport {
    /// The first few queues in a few lines; empty if there was no batch.
    #[must_use]
    pub fn text(&self) -> String {
        /// Queues told of; JSON has all.
        const SHOWN: usize = 8;
        let mut out = String::new();
        // Writing to a String does not fail.
        let mut told = 0;
        for queue in self.queues.iter().take(SHOWN) {
            let QueueBudget {
                engine,
                queue: number,
                batches,
                unfinished,
                waiting,
                exceeded,
                ..
            } = queue;
            let _ = write!(out, "  e{engine}.q{number}: {batches} batches");
            if let Some(worst) = queue.worst.first() {
                let kind = if worst.device_to_device {
                    ", device to device"
                } else {
                    ""
                };
                let _ = write!(
                    out,
                    ", worst {} of silicon's {} in model time ({} descriptors{kind}); in wall time at least {} of what this platform's driver grants",
                    worst.model_percent,
                    worst.silicon_budget_us,
                    worst.descriptors,
                    queue
                        .worst
                        .iter()
                        .map(|batch| batch.wall_percent)
                        .max()
                        .unwrap_or_default(),
                );
            }
            if *exceeded > 0 {
                let _ = write!(out, "; {exceeded} BEYOND THE LIMIT");
            }
            if *waiting > 0 {
                let _ = write!(out, "; {waiting} not finished yet");
            }
            if *unfinished > 0 {
                let _ = write!(out, "; {unfinished} never finished");
            }
            out.push('\n');
            told += 1;
        }
        if self.queues.len() > told {
            let _ = writeln!(out, "  and {} more queues", self.queues.len() - told);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_read_and_print() {
        assert_eq!("12.5".parse(), Ok(Percent(125_000)));
        assert_eq!("100".parse::<Percent>().unwrap().to_string(), "100.00 %");
        assert_eq!(Percent(123_456).to_string(), "12.34 %");
        for bad in ["-1", "x", "nan", "1e9"] {
            assert!(bad.parse::<Percent>().is_err(), "{bad}");
        }
        let us = Duration::from_micros;
        assert_eq!(Percent::of(us(1), us(4)), Percent(250_000));
        assert_eq!(Percent::of(us(1), us(0)), Percent(u64::MAX));
    }
}

//! How long work takes: the driver's own estimate, in model time.
//!
//! Nothing sleeps. A descriptor gets a time at which its work is done, its queue is ready again then, and the device
//! thread waits in its socket like ever. The queues of an engine share it and queue up; engines run side by side.
use std::str::FromStr;
use std::time::Duration;

use neuron_protocol::budget::Estimate;
use neuron_protocol::marker::MARKER_SIZE;

/// Slowest factor: a descriptor of 64 KiB then takes 4 s, and a batch of the driver more than two hours.
const MAX_FACTOR: f64 = 1e6;

/// What `--timing` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Speed {
    /// Work takes no time.
    #[default]
    Instant,
    /// Work takes this many times the driver's estimate; 1 is silicon.
    Factor(f64),
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "instant" => Ok(Self::Instant),
            "silicon" => Ok(Self::Factor(1.0)),
            _ => match text.parse() {
                Ok(factor) if factor > 0.0 && factor <= MAX_FACTOR => Ok(Self::Factor(factor)),
                Ok(_) => Err(format!(
                    "the factor is more than 0 and at most {MAX_FACTOR}; for no delay say instant"
                )),
                Err(_) => Err(
                    "say instant, silicon, or a factor of silicon's time: 2.5 is that much slower"
                        .to_owned(),
                ),
            },
        }
    }
}

/// How long descriptors take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    per_descriptor: Duration,
}

impl Timing {
    /// The estimate of a generation at a speed; `None` if work takes no time.
    #[must_use]
    pub fn new(estimate: Estimate, speed: Speed) -> Option<Self> {
        let Speed::Factor(factor) = speed else {
            return None;
        };
        let silicon = Duration::from_micros(estimate.microseconds_per_descriptor);
        // The parser's limits keep the product finite; others get the slowest there is.
        let per_descriptor = Duration::try_from_secs_f64(silicon.as_secs_f64() * factor)
            .unwrap_or(Duration::from_secs(3600));
        Some(Self { per_descriptor })
    }

    /// Time for a tx descriptor of that many bytes.
    ///
    /// The driver counts descriptors, whatever their length, and leaves the marker out (`count - 1`, contract §8.4).
    #[must_use]
    pub const fn cost(self, bytes: u32) -> Duration {
        if bytes == MARKER_SIZE {
            Duration::ZERO
        } else {
            self.per_descriptor
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_read_as_documented() {
        assert_eq!("instant".parse(), Ok(Speed::Instant));
        assert_eq!("silicon".parse(), Ok(Speed::Factor(1.0)));
        assert_eq!("0.25".parse(), Ok(Speed::Factor(0.25)));
        for bad in ["0", "-1", "nan", "inf", "1e7", "fast", ""] {
            assert!(bad.parse::<Speed>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_descriptor_takes_what_the_driver_estimates() {
        let cost = |estimate, factor, bytes| {
            let timing = Timing::new(estimate, Speed::Factor(factor));
            timing.unwrap().cost(bytes)
        };
        assert_eq!(cost(Estimate::V2, 1.0, 65536), Duration::from_micros(4));
        assert_eq!(cost(Estimate::V3, 1.0, 100), Duration::from_micros(2));
        assert_eq!(cost(Estimate::V3, 2.5, 100), Duration::from_micros(5));
        assert_eq!(cost(Estimate::V3, 1.0, MARKER_SIZE), Duration::ZERO);
        assert_eq!(Timing::new(Estimate::V2, Speed::Instant), None);
    }
}

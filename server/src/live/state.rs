//! What is known of the devices: the last two reports, and what is chosen.
use std::time::Duration;

use serde::Deserialize;

use crate::observe::report::{Counters, DeviceReport};

/// One device's answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    /// Its thread does not answer.
    Silent {
        /// Why.
        error: String,
    },
    /// Its account.
    Report(Box<DeviceReport>),
}

/// All devices at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was taken, on the asker's clock.
    pub at: Duration,
    /// In the server's order.
    pub devices: Vec<Answer>,
}

impl Sample {
    /// Reads an answer of the control socket.
    ///
    /// # Errors
    /// It is of another version.
    pub fn parse(answer: &str, at: Duration) -> Result<Self, String> {
        let devices = serde_json::from_str(answer).map_err(|error| {
            format!(
                "the answer is not understood ({error}); is the server of version {}?",
                env!("CARGO_PKG_VERSION")
            )
        })?;
        Ok(Self { at, devices })
    }
}

/// What a device did per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Doorbells per second.
    pub doorbells: u64,
    /// Descriptors done per second, both directions.
    pub descriptors: u64,
    /// Markers written per second.
    pub batches: u64,
    /// Bytes moved per second.
    pub bytes: u64,
}

impl Rates {
    fn between(before: &Counters, after: &Counters, time: Duration) -> Option<Self> {
        // A server that was started anew counts from zero.
        let rate = |value: fn(&Counters) -> u64| {
            let more = u128::from(value(after).checked_sub(value(before))?);
            let per_second = (more * 1_000_000).checked_div(time.as_micros())?;
            u64::try_from(per_second).ok()
        };
        Some(Self {
            doorbells: rate(|counters| counters.doorbells)?,
            descriptors: rate(|counters| counters.descriptors)?,
            batches: rate(|counters| counters.batches)?,
            bytes: rate(|counters| counters.bytes)?,
        })
    }
}

/// Everything that is drawn.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Where the reports come from.
    pub source: String,
    before: Option<Sample>,
    last: Option<Sample>,
    /// Why there is no newer one, and since when.
    lost: Option<(String, Duration)>,
    /// The device whose queues are shown, in the server's order.
    chosen: usize,
    now: Duration,
}

impl State {
    /// Nothing is known yet.
    pub fn new(source: String) -> Self {
        Self {
            source,
            ..Self::default()
        }
    }

    /// Takes what came of asking at `now`.
    pub fn take(&mut self, result: Result<Sample, String>, now: Duration) {
        self.now = now;
        match result {
            Ok(sample) => {
                self.before = self.last.take();
                self.last = Some(sample);
                self.lost = None;
                self.chosen = self.chosen.min(self.devices().len().saturating_sub(1));
            }
            Err(error) => {
                // Rates over a gap would be of work that nobody saw.
                self.before = None;
                let since = self.lost.as_ref().map_or(now, |(_, since)| *since);
                self.lost = Some((error, since));
            }
        }
    }

    /// The last known devices.
    pub fn devices(&self) -> &[Answer] {
        self.last.as_ref().map_or(&[], |sample| &sample.devices)
    }

    /// Why the server does not answer, and for how long it has not.
    pub fn lost(&self) -> Option<(&str, Duration)> {
        let (why, since) = self.lost.as_ref()?;
        Some((why, self.now.saturating_sub(*since)))
    }

    /// What a device did lately; none without two reports in a row.
    pub fn rates(&self, index: usize) -> Option<Rates> {
        if self.lost.is_some() {
            return None;
        }
        let (before, last) = (self.before.as_ref()?, self.last.as_ref()?);
        match (before.devices.get(index)?, last.devices.get(index)?) {
            (Answer::Report(old), Answer::Report(new)) if old.routing_id == new.routing_id => {
                let time = last.at.saturating_sub(before.at);
                Rates::between(&old.counters, &new.counters, time)
            }
            _ => None,
        }
    }

    /// The device whose queues are shown.
    pub const fn chosen(&self) -> usize {
        self.chosen
    }

    /// Shows another: so many further down.
    pub fn choose(&mut self, by: isize) {
        let last = self.devices().len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::report::{Direction, Doorbell, QueueReport, RingReport, Wait};

    fn report(bytes: u64) -> DeviceReport {
        DeviceReport {
            counters: Counters {
                bytes,
                batches: bytes / 4096,
                ..Counters::default()
            },
            ..DeviceReport::default()
        }
    }

    fn sample(bytes: u64, at: u64) -> Sample {
        Sample {
            at: Duration::from_millis(at),
            devices: vec![Answer::Report(Box::new(report(bytes)))],
        }
    }

    #[test]
    fn rates_are_of_two_reports_in_a_row() {
        let mut state = State::new(String::new());
        state.take(Ok(sample(0, 0)), Duration::ZERO);
        assert_eq!(state.rates(0), None);
        state.take(Ok(sample(8192, 500)), Duration::from_millis(500));
        let rates = state.rates(0).unwrap();
        assert_eq!((rates.bytes, rates.batches), (16384, 4));
        state.take(Err("gone".to_owned()), Duration::from_secs(1));
        state.take(Err("gone".to_owned()), Duration::from_secs(4));
        assert_eq!(state.lost(), Some(("gone", Duration::from_secs(3))));
        assert_eq!(state.rates(0), None);
        // Another server: it counts from zero.
        state.take(Ok(sample(10, 5000)), Duration::from_secs(5));
        assert_eq!((state.lost(), state.rates(0)), (None, None));
        state.take(Ok(sample(0, 6000)), Duration::from_secs(6));
        assert_eq!(state.rates(0), None);
    }

    #[test]
    fn a_report_survives_the_socket() {
        let report = DeviceReport {
            product: "trn2".to_owned(),
            aborted: vec![(3, "why".to_owned())],
            queues: vec![QueueReport {
                engine: 1,
                queue: 2,
                wait: Wait::RingSetup {
                    direction: Direction::S2m,
                },
                last_doorbell: Some(Doorbell {
                    direction: Direction::M2s,
                    count: 3,
                    age_us: None,
                }),
                m2s: RingReport::default(),
                s2m: RingReport {
                    head: 7,
                    ..RingReport::default()
                },
                m2s_descriptors: Vec::new(),
                s2m_descriptors: Vec::new(),
                events: vec!["1.0 x".to_owned()],
            }],
            ..DeviceReport::default()
        };
        let text = serde_json::to_string(&serde_json::json!([report, { "error": "stuck" }]));
        let sample = Sample::parse(&text.unwrap(), Duration::ZERO).unwrap();
        let [Answer::Report(back), Answer::Silent { error }] = &sample.devices[..] else {
            panic!("{sample:?}")
        };
        assert_eq!((&**back, error.as_str()), (&report, "stuck"));
        assert!(Sample::parse("[{}]", Duration::ZERO).is_err());
    }
}

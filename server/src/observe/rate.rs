//! A limit on log lines that a guest can cause at will.
//!
//! The device has no clock, so the limit lives here, in the log's consumer. Lines of level INFO and
//! above are counted per place in the source and per device; what is over the limit is dropped,
//! counted, and reported once a second. DEBUG and TRACE were asked for and pass.
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use super::log::device_of_thread;

/// Lines one place may log at once.
const BURST: u32 = 20;
/// One more line is allowed each time this passes.
const REFILL: Duration = Duration::from_millis(500);
/// How long suppressed lines gather before they are reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Target of the report, which is itself never suppressed.
const TARGET: &str = "log";

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    tokens: u32,
    refilled: Instant,
    suppressed: u64,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self {
            tokens: BURST,
            refilled: now,
            suppressed: 0,
        }
    }

    fn admit(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.refilled).as_nanos() / REFILL.as_nanos();
        if elapsed > 0 {
            let refills = u32::try_from(elapsed).unwrap_or(BURST);
            self.tokens = self.tokens.saturating_add(refills).min(BURST);
            self.refilled = now;
        }
        if let Some(left) = self.tokens.checked_sub(1) {
            self.tokens = left;
            true
        } else {
            self.suppressed += 1;
            false
        }
    }
}

/// A place in the source, and the device whose thread was there.
type Site = (Identifier, Option<u8>);

#[derive(Debug, Default)]
struct Sites {
    buckets: HashMap<Site, (&'static Metadata<'static>, Bucket)>,
    suppressed: bool,
}

/// One place whose lines were dropped.
#[derive(Debug)]
struct Suppressed {
    metadata: &'static Metadata<'static>,
    device: Option<u8>,
    lines: u64,
}

/// The limiter: one per process, shared by the filter and the thread that reports.
#[derive(Debug, Default)]
pub struct Limiter {
    sites: Mutex<Sites>,
    wake: Condvar,
}

impl Limiter {
    /// Starts the thread that reports. It sleeps while nothing is suppressed.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let limiter = Arc::new(Self::default());
        let reporter = Arc::clone(&limiter);
        std::thread::Builder::new()
            .name("log-rate".to_owned())
            .spawn(move || {
                loop {
                    reporter.wait();
                    std::thread::sleep(REPORT_AFTER);
                    reporter.report();
                }
            })?;
        Ok(limiter)
    }

    /// Logs what was suppressed since the last time.
    pub fn report(&self) {
        for Suppressed {
            metadata,
            device,
            lines,
        } in self.drain()
        {
            tracing::warn!(
                target: TARGET,
                device,
                suppressed = lines,
                "{lines} more lines like those of {}:{} were suppressed",
                metadata.file().unwrap_or("?"),
                metadata.line().unwrap_or(0),
            );
        }
    }

    fn admit(
        &self,
        metadata: &'static Metadata<'static>,
        device: Option<u8>,
        now: Instant,
    ) -> bool {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, bucket) = sites
            .buckets
            .entry((metadata.callsite(), device))
            .or_insert_with(|| (metadata, Bucket::new(now)));
        let admitted = bucket.admit(now);
        if !admitted && !std::mem::replace(&mut sites.suppressed, true) {
            self.wake.notify_one();
        }
        admitted
    }

    fn wait(&self) {
        let sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.wake.wait_while(sites, |sites| !sites.suppressed));
    }

    fn drain(&self) -> Vec<Suppressed> {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.suppressed = false;
        let take =
            |(site, (metadata, bucket)): (&Site, &mut (&'static Metadata<'static>, Bucket))| {
                let lines = std::mem::take(&mut bucket.suppressed);
                (lines > 0).then_some(Suppressed {
                    metadata,
                    device: site.1,
                    lines,
                })
            };
        sites.buckets.iter_mut().filter_map(take).collect()
    }
}

/// The limiter as a per-layer filter.
#[derive(Debug)]
pub struct RateFilter(pub Arc<Limiter>);

impl<S: Subscriber> Filter<S> for RateFilter {
    fn enabled(&self, _metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Level orders by verbosity: greater is more verbose.
        if *metadata.level() > Level::INFO || metadata.target() == TARGET {
            return true;
        }
        self.0.admit(metadata, device_of_thread(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::prelude::*;

    use super::*;

    #[test]
    fn a_burst_passes_then_one_per_refill() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        assert_eq!((0..100).filter(|_| bucket.admit(start)).count(), 20);
        assert_eq!(bucket.suppressed, 80);
        assert!(bucket.admit(start + REFILL));
        assert!(!bucket.admit(start + REFILL));
        assert!(bucket.admit(start + REFILL * 1_000_000));
        assert_eq!(bucket.tokens, BURST - 1);
    }

    #[test]
    fn a_flood_does_not_silence_another_place() {
        let limiter = Arc::new(Limiter::default());
        let (sink, lines) = crate::observe::log::tests::capture();
        let layer = sink.with_filter(RateFilter(Arc::clone(&limiter)));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for n in 0..1000 {
                tracing::warn!(n, "flood");
            }
            tracing::warn!("quiet");
            limiter.report();
        });
        let lines = lines();
        assert_eq!(
            lines.iter().filter(|line| line.contains("flood")).count(),
            20
        );
        assert_eq!(
            lines.iter().filter(|line| line.contains("quiet")).count(),
            1
        );
        assert!(
            lines
                .last()
                .unwrap()
                .contains("980 more lines like those of "),
            "{lines:?}"
        );
    }
}

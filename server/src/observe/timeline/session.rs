//! One time line file: its writer, and the observers that feed it.
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use neuron_protocol::generation::Generation;
use rustix::time::{ClockId, clock_gettime};

use super::channel::{Batch, Bell, CAPACITY, Channel, Stamped};
use super::encode::Encoder;
use super::proto::{self, ClockSnapshot, Data, TracePacket, clock};
use crate::observe::event::{Event, Interest, Observer};
use crate::outputs;

/// What gathers before it is looked at again: a wake-up per event would cost more than the event.
const PAUSE: Duration = Duration::from_millis(5);
/// Left for ends and last words below the size limit.
const RESERVE: u64 = 256 << 10;
/// Encoded bytes that are written at once.
const CHUNK: usize = 1 << 20;

/// Whose time the events carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The host's `CLOCK_BOOTTIME`, read at each event: Perfetto's own.
    #[default]
    Host,
    /// The device's, told at each wake-up: the same in every run of the same inputs.
    Device,
}

impl Clock {
    fn stamp(self, event: &Event) -> u64 {
        match self {
            Self::Host => host(ClockId::Boottime),
            Self::Device => u64::try_from(event.at.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

fn host(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec)
        .saturating_mul(1_000_000_000)
        .saturating_add(part(time.tv_nsec))
}

/// How a time line is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Largest file, bytes.
    pub limit: u64,
    /// Every how many-th register access is drawn; none without.
    pub registers: Option<NonZeroU32>,
    /// Whose time.
    pub clock: Clock,
    /// Events that may wait per device; those beyond are lost.
    pub capacity: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limit: 1 << 30,
            registers: None,
            clock: Clock::Host,
            capacity: CAPACITY,
        }
    }
}

/// What became of a time line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes written.
    pub bytes: u64,
    /// Events taken in.
    pub events: u64,
    /// Events that found no room.
    pub lost: u64,
    /// It ended at its size limit.
    pub limited: bool,
    /// It ended because the file could not be written.
    pub error: Option<String>,
}

#[derive(Debug)]
struct Source {
    channel: Channel,
    encoder: Mutex<Encoder>,
}

#[derive(Debug, Default)]
struct Shared {
    bell: Bell,
    sources: Mutex<Vec<Arc<Source>>>,
    /// Finish, then end.
    stop: AtomicBool,
    /// Nothing is taken in any more.
    ended: AtomicBool,
    bytes: AtomicU64,
    events: AtomicU64,
    lost: AtomicU64,
    outcome: Mutex<(bool, Option<String>)>,
}

/// A time line being written.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    options: Options,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Session {
    /// Starts the thread that writes to `file`.
    ///
    /// # Errors
    /// No thread to be had, or the first bytes cannot be written.
    pub fn start(mut file: impl Write + Send + 'static, options: Options) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut head = Vec::new();
        if options.clock == Clock::Host {
            proto::append(&mut head, &clocks());
        }
        file.write_all(&head)?;
        shared.bytes.store(head.len() as u64, Ordering::Relaxed);
        let mut writer = Writer {
            shared: Arc::clone(&shared),
            file,
            limit: options.limit,
            spare: Batch::default(),
            bytes: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("timeline".to_owned())
            .spawn(move || writer.run())?;
        Ok(Self {
            shared,
            options,
            writer: Mutex::new(Some(thread)),
        })
    }

    /// A consumer for the events of one device, which the trace calls `title`.
    pub fn observer(
        &self,
        device: u8,
        title: String,
        generation: &'static Generation,
    ) -> TimelineObserver {
        let encoder = Encoder::new(device, title, generation, self.options.registers);
        let source = Arc::new(Source {
            channel: Channel::new(self.options.capacity),
            encoder: Mutex::new(encoder),
        });
        let mut sources = self.shared.sources.lock();
        sources
            .as_mut()
            .unwrap_or_else(|error| error.get_mut())
            .push(Arc::clone(&source));
        TimelineObserver {
            shared: Arc::clone(&self.shared),
            source,
            clock: self.options.clock,
            registers: self.options.registers.is_some(),
        }
    }

    /// What there is so far.
    pub fn summary(&self) -> Summary {
        let outcome = &self.shared.outcome;
        let (limited, error) = outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        Summary {
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            events: self.shared.events.load(Ordering::Relaxed),
            lost: self.shared.lost.load(Ordering::Relaxed),
            limited,
            error,
        }
    }

    /// Writes what has gathered and ends. Blocks for as long as the file takes. May be called again.
    pub fn finish(&self) -> Summary {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.bell.ring();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = writer.take()
            && thread.join().is_err()
        {
            let mut outcome = self.shared.outcome.lock();
            let outcome = outcome.as_mut().unwrap_or_else(|error| error.get_mut());
            outcome.1 = Some("the writer panicked; please report this".to_owned());
        }
        self.summary()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Feeds a time line with the events of one device.
#[derive(Debug)]
pub struct TimelineObserver {
    shared: Arc<Shared>,
    source: Arc<Source>,
    clock: Clock,
    registers: bool,
}

impl Observer for TimelineObserver {
    fn event(&mut self, event: &Event) {
        if self.shared.ended.load(Ordering::Relaxed) {
            return;
        }
        let stamped = Stamped {
            at: self.clock.stamp(event),
            event: *event,
        };
        if self.source.channel.push(stamped) {
            self.shared.bell.ring();
        }
    }

    fn interest(&self) -> Interest {
        Interest {
            registers: self.registers,
            descriptors: true,
            ..Interest::default()
        }
    }
}

struct Writer<W> {
    shared: Arc<Shared>,
    file: W,
    limit: u64,
    spare: Batch,
    bytes: Vec<u8>,
}

impl<W: Write> Writer<W> {
    fn run(&mut self) {
        let result = self.write_until_stopped();
        self.shared.ended.store(true, Ordering::Relaxed);
        let outcome = match result {
            Ok(limited) => (limited, None),
            Err(error) => (false, Some(error.to_string())),
        };
        match &outcome {
            (true, _) => tracing::warn!(
                limit = self.limit,
                "the time line ends: it has reached its size limit (--timeline-limit)"
            ),
            (_, Some(error)) => {
                tracing::error!("the time line ends: its file cannot be written: {error}");
                outputs::lost();
            }
            (false, None) => {}
        }
        let mut place = self.shared.outcome.lock();
        **place.as_mut().unwrap_or_else(|error| error.get_mut()) = outcome;
    }

    /// True: the limit was reached.
    fn write_until_stopped(&mut self) -> io::Result<bool> {
        loop {
            self.shared.bell.wait();
            // What comes now comes in numbers.
            if !self.shared.stop.load(Ordering::Acquire) {
                std::thread::sleep(PAUSE);
            }
            let last = self.shared.stop.load(Ordering::Acquire);
            let sources = self
                .shared
                .sources
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            for source in &sources {
                if !self.drain(source)? {
                    self.shared.ended.store(true, Ordering::Relaxed);
                    self.finish(&sources, true)?;
                    return Ok(true);
                }
            }
            if last {
                self.finish(&sources, false)?;
                return Ok(false);
            }
        }
    }

    /// Writes what a device has said. False: the limit is reached.
    fn drain(&mut self, source: &Source) -> io::Result<bool> {
        source.channel.swap(&mut self.spare);
        let batch = std::mem::take(&mut self.spare);
        let mut encoder = source
            .encoder
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut within = true;
        for stamped in &batch.events {
            encoder.event(stamped);
            if encoder.waiting() >= CHUNK {
                encoder.take(&mut self.bytes);
                self.flush()?;
            }
            let ahead = self.shared.bytes.load(Ordering::Relaxed) + encoder.waiting() as u64;
            if ahead >= self.limit.saturating_sub(RESERVE) {
                within = false;
                break;
            }
        }
        self.shared
            .events
            .fetch_add(batch.events.len() as u64, Ordering::Relaxed);
        if batch.lost > 0 {
            self.shared.lost.fetch_add(batch.lost, Ordering::Relaxed);
            encoder.lost(batch.lost);
            tracing::warn!(
                lost = batch.lost,
                "the time line has a gap: events came faster than the file could be written"
            );
        } else {
            encoder.settle();
        }
        encoder.take(&mut self.bytes);
        drop(encoder);
        self.spare = batch;
        self.flush()?;
        Ok(within)
    }

    fn finish(&mut self, sources: &[Arc<Source>], limited: bool) -> io::Result<()> {
        for source in sources {
            let mut encoder = source
                .encoder
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            encoder.finish(limited);
            encoder.take(&mut self.bytes);
        }
        self.flush()?;
        self.file.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.bytes)?;
        let written = self.bytes.len() as u64;
        self.shared.bytes.fetch_add(written, Ordering::Relaxed);
        self.bytes.clear();
        Ok(())
    }
}

/// How the host's clocks stood at the beginning.
fn clocks() -> TracePacket {
    let clock = |number, id| proto::Clock {
        clock_id: Some(number),
        timestamp: Some(host(id)),
    };
    TracePacket {
        trusted_packet_sequence_id: Some(proto::HEAD_SEQUENCE),
        data: Some(Data::ClockSnapshot(ClockSnapshot {
            clocks: vec![
                clock(clock::BOOTTIME, ClockId::Boottime),
                clock(clock::MONOTONIC, ClockId::Monotonic),
                clock(clock::REALTIME, ClockId::Realtime),
            ],
            primary_trace_clock: Some(clock::BOOTTIME),
        })),
        ..TracePacket::default()
    }
}

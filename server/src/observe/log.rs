//! The log: lines for people, or JSON. Every line says which device, and which engine and queue where
//! that is known.
//!
//! A device thread is named `nd<routing id>`; that is how a line finds its device. Events carry engine
//! and queue as fields `engine` and `queue`.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::rate::{Limiter, RateFilter};
use super::writer::LineWriter;

/// Target of the register trace.
pub const REGISTERS: &str = "registers";

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Time, level, device, engine and queue, text, other fields.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// Refuses a bare word that is no level: to `tracing` it is a module that nothing is in, and the log falls silent.
fn check_words(filter: &str) -> Result<(), String> {
    let words = filter
        .split(',')
        .map(str::trim)
        .filter(|word| !word.contains(['=', '[']));
    for word in words {
        let module = word.starts_with(env!("CARGO_CRATE_NAME")) || word == REGISTERS;
        if !module && word.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "--log '{filter}': '{word}' is no level; levels are error, warn, info, debug, trace and off"
            ));
        }
    }
    Ok(())
}

fn parse(filter: &str, trace_registers: bool) -> Result<EnvFilter, String> {
    check_words(filter)?;
    let parsed = EnvFilter::builder().parse(filter).map_err(|error| {
        format!("--log '{filter}': {error}; write a level such as debug, or module=level pairs")
    })?;
    if !trace_registers {
        return Ok(parsed);
    }
    let directive = format!("{REGISTERS}=trace").parse();
    Ok(parsed.add_directive(directive.map_err(|error| format!("{error}"))?))
}

/// Keeps the log going; ask it to flush before the process ends.
#[derive(Debug)]
pub struct Log {
    limiter: Arc<Limiter>,
    writer: LineWriter,
    filter: reload::Handle<EnvFilter, Registry>,
    trace_registers: bool,
}

impl Log {
    /// Sends the process's log to stderr. `filter` is in `tracing` syntax.
    ///
    /// # Errors
    /// A filter that cannot be read, no thread to be had, or a log that was set up before.
    pub fn start(filter: &str, format: Format, trace_registers: bool) -> Result<Self, String> {
        let (filter, handle) = reload::Layer::new(parse(filter, trace_registers)?);
        let failed = |error: std::io::Error| format!("cannot start the log: {error}");
        let limiter = Limiter::start().map_err(failed)?;
        let writer = LineWriter::start(std::io::stderr()).map_err(failed)?;
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Lines(format))
            .with_writer(writer.clone())
            .with_filter(RateFilter(Arc::clone(&limiter)));
        tracing_subscriber::registry()
            .with(filter)
            .with(layer)
            .try_init()
            .map_err(|error| format!("cannot start the log: {error}"))?;
        Ok(Self {
            limiter,
            writer,
            filter: handle,
            trace_registers,
        })
    }

    /// Changes what is logged from now on.
    ///
    /// # Errors
    /// A filter that cannot be read; the old one stays.
    pub fn set(&self, filter: &str) -> Result<(), String> {
        let filter = parse(filter, self.trace_registers)?;
        self.filter
            .reload(filter)
            .map_err(|error| format!("the log is gone: {error}"))
    }

    /// Writes what is left, including what was suppressed.
    pub fn flush(&self) {
        self.limiter.report();
        self.writer.flush(Duration::from_secs(2));
    }
}

/// Name of the thread of the device with this routing id.
pub fn thread_name(routing_id: u8) -> String {
    format!("nd{routing_id}")
}

/// Routing id of the device that this thread runs.
pub fn device_of_thread() -> Option<u8> {
    thread_local! {
        static DEVICE: Option<u8> = {
            let thread = std::thread::current();
            thread.name().and_then(|name| name.strip_prefix("nd")?.parse().ok())
        };
    }
    DEVICE.with(|device| *device)
}

/// The fields of an event, sorted out.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    device: Option<Value>,
    engine: Option<Value>,
    queue: Option<Value>,
    other: Vec<(&'static str, Value)>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match field.name() {
            "device" => self.device = Some(value),
            "engine" => self.engine = Some(value),
            "queue" => self.queue = Some(value),
            name => self.other.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.put(field, Value::from(format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.put(field, Value::from(value));
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::from(value));
    }
}

/// Our line formats.
#[derive(Clone, Copy, Debug)]
struct Lines(Format);

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.device.is_none() {
            fields.device = device_of_thread().map(Value::from);
        }
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        match self.0 {
            Format::Human => human(&mut out, &time, event, &fields),
            Format::Json => json(&mut out, time, event, fields),
        }
    }
}

fn human(out: &mut Writer<'_>, time: &str, event: &Event<'_>, fields: &Fields) -> fmt::Result {
    write!(out, "{time} {:>5} ", event.metadata().level())?;
    if let Some(device) = &fields.device {
        write!(out, "nd{device} ")?;
    }
    match (&fields.engine, &fields.queue) {
        (Some(engine), Some(queue)) => write!(out, "e{engine}.q{queue} ")?,
        (Some(engine), None) => write!(out, "e{engine} ")?,
        (None, Some(queue)) => write!(out, "q{queue} ")?,
        (None, None) => {}
    }
    one_line(out, &fields.message)?;
    for (name, value) in &fields.other {
        write!(out, " {name}=")?;
        match value.as_str() {
            Some(text) => one_line(out, text)?,
            None => write!(out, "{value}")?,
        }
    }
    out.write_char('\n')
}

fn json(out: &mut Writer<'_>, time: String, event: &Event<'_>, fields: Fields) -> fmt::Result {
    let mut object = Map::new();
    for (name, value) in fields.other {
        object.insert(name.to_owned(), value);
    }
    // After the others: a field cannot pose as one of these.
    object.insert("time".to_owned(), time.into());
    object.insert("level".to_owned(), event.metadata().level().as_str().into());
    object.insert("target".to_owned(), event.metadata().target().into());
    object.insert("message".to_owned(), fields.message.into());
    for (name, value) in [
        ("device", fields.device),
        ("engine", fields.engine),
        ("queue", fields.queue),
    ] {
        if let Some(value) = value {
            object.insert(name.to_owned(), value);
        }
    }
    writeln!(out, "{}", Value::Object(object))
}

/// A line stays one line, and a terminal gets no control sequences. Multi-line reports are indented.
fn one_line(out: &mut Writer<'_>, text: &str) -> fmt::Result {
    for c in text.trim_end().chars() {
        match c {
            '\n' => out.write_str("\n    ")?,
            c if c.is_control() => write!(out, "{}", c.escape_default())?,
            c => out.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Mutex, PoisonError};

    use tracing_subscriber::Layer;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn capture_as<S>(format: Format) -> (impl Layer<S>, impl Fn() -> Vec<String>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let sink = Sink::default();
        let lines = sink.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Lines(format))
            .with_writer(move || sink.clone());
        let read = move || {
            let bytes = lines
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            String::from_utf8(bytes)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect()
        };
        (layer, read)
    }

    pub fn capture<S>() -> (impl Layer<S>, impl Fn() -> Vec<String>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        capture_as(Format::Human)
    }

    fn one_event(format: Format) -> String {
        let (layer, lines) = capture_as(format);
        std::thread::Builder::new()
            .name(thread_name(7))
            .spawn(move || {
                tracing::subscriber::with_default(
                    tracing_subscriber::registry().with(layer),
                    || {
                        tracing::warn!(
                            engine = 128_u64,
                            queue = 1_u64,
                            address = "0x10\x1b[2J",
                            "copy\nfailed"
                        );
                    },
                );
                lines().join("|")
            })
            .unwrap()
            .join()
            .unwrap()
    }

    #[test]
    fn a_line_names_device_engine_and_queue() {
        let line = one_event(Format::Human);
        let (_, text) = line.split_once("WARN ").unwrap();
        assert_eq!(text, "nd7 e128.q1 copy|    failed address=0x10\\u{1b}[2J");
    }

    #[test]
    fn json_has_the_same_as_fields() {
        let value: Value = serde_json::from_str(&one_event(Format::Json)).unwrap();
        assert_eq!(value["device"], 7);
        assert_eq!(value["engine"], 128);
        assert_eq!(value["queue"], 1);
        assert_eq!(value["message"], "copy\nfailed");
        assert_eq!(value["level"], "WARN");
        assert_eq!(value["address"], "0x10\u{1b}[2J");
    }

    #[test]
    fn other_threads_are_no_device() {
        assert_eq!(device_of_thread(), None);
    }
}

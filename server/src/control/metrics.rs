//! The metrics endpoint: `OpenMetrics` text over HTTP, on loopback or a unix socket.
use std::collections::VecDeque;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, oneshot};
use tracing::{debug, warn};

use super::device::Device;
use super::http::{self, Page};
use super::resident::Resident;
use crate::observe::metrics::{EngineCounters, Engines, LATENCY_BOUNDS};
use crate::observe::report::{Detail, DeviceReport};
use crate::vfio::Listener;

/// Scrapers at a time. One more, and the oldest is let go: it has had its chance, and silent ones must keep out nobody.
pub const MAX_CLIENTS: usize = 16;
/// Pages made at a time: each asks every device.
const MAX_PAGES: usize = 4;
/// How long a device may take for its part; without an answer it is down.
const DEVICE_PATIENCE: Duration = Duration::from_secs(1);

const PAGE: Page = Page {
    path: "/metrics",
    media_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
};

/// Where to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(std::path::PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(address: &str) -> Result<Self, String> {
        if let Some(path) = address.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path, such as unix:/run/neuron/metrics".to_owned());
            }
            return Ok(Self::Unix(path.into()));
        }
        let form = "write 127.0.0.1:9464, [::1]:9464 or unix:PATH";
        let socket: SocketAddr = address
            .parse()
            .map_err(|_| format!("{address:?} is no address with a port; {form}"))?;
        if socket.ip().is_loopback() {
            Ok(Self::Tcp(socket))
        } else {
            Err(format!(
                "{socket} can be reached from other machines, and there is no password; {form}, and let a proxy serve others"
            ))
        }
    }
}

/// A bound endpoint.
#[derive(Debug)]
pub enum Endpoint {
    /// On loopback.
    Tcp(TcpListener),
    /// A socket file, accessible to the user alone.
    Unix(Listener),
}

impl Endpoint {
    /// Binds it, which must happen before the process gives up its rights.
    ///
    /// # Errors
    /// A sentence with address and reason.
    pub fn bind(address: &Address) -> Result<Self, String> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| Self::Tcp(listener)))
                .map_err(|error| format!("{address}: {error}")),
            Address::Unix(path) => Listener::bind(path)
                .map(Self::Unix)
                .map_err(|error| error.to_string()),
        }
    }

    /// The directory of its socket file, if it has one to remove at the end.
    pub fn directory(&self) -> Option<std::path::PathBuf> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(listener) => listener.directory(),
        }
    }
}

/// What is measured.
#[derive(Clone)]
pub struct Measured {
    /// The devices, each with its engines.
    pub devices: Arc<[(Arc<dyn Device>, Engines)]>,
    /// The process.
    pub resident: Arc<Resident>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An endpoint as tokio takes it.
enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Accepting {
    fn new(endpoint: &Endpoint) -> std::io::Result<Self> {
        Ok(match endpoint {
            Endpoint::Tcp(listener) => {
                Self::Tcp(tokio::net::TcpListener::from_std(listener.try_clone()?)?)
            }
            Endpoint::Unix(listener) => Self::Unix(super::server::accepting(listener)?),
        })
    }

    async fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Serves scrapes in the background, for as long as the runtime lives.
///
/// # Errors
/// The runtime cannot take the socket.
pub fn serve(endpoint: &Endpoint, measured: Measured) -> std::io::Result<()> {
    tokio::spawn(scrapes(Accepting::new(endpoint)?, measured));
    Ok(())
}

async fn scrapes(endpoint: Accepting, measured: Measured) {
    let pages = Arc::new(Semaphore::new(MAX_PAGES));
    // Whoever is dropped here has to go; those that are done have dropped the other end.
    let mut clients: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    loop {
        match endpoint.accept().await {
            Ok(stream) => {
                clients.retain(|client| !client.is_closed());
                if clients.len() >= MAX_CLIENTS {
                    debug!("a silent metrics client makes room for the next");
                    clients.pop_front();
                }
                let (stay, go) = oneshot::channel();
                clients.push_back(stay);
                let (measured, pages) = (measured.clone(), Arc::clone(&pages));
                tokio::spawn(async move {
                    let make = || async move {
                        // The semaphore is never closed.
                        let _turn = pages.acquire().await;
                        tokio::task::spawn_blocking(move || page(&measured))
                            .await
                            .map_err(|error| error.to_string())?
                    };
                    tokio::select! {
                        result = http::answer(stream, PAGE, make) => {
                            if let Err(error) = result {
                                debug!("metrics client: {error}");
                            }
                        }
                        _ = go => {}
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: it passes, and must not spin.
                warn!("metrics: cannot accept: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The page now. Blocks while devices answer.
fn page(measured: &Measured) -> Result<String, String> {
    let devices = measured
        .devices
        .iter()
        .map(|(device, engines)| Sample {
            id: device.routing_id().to_string(),
            report: device.report(Detail::Status, DEVICE_PATIENCE),
            engines: Arc::clone(engines),
        })
        .collect();
    let mut registry = Registry::with_prefix("neuron");
    registry.register_collector(Box::new(Samples(devices, measured.resident.bytes())));
    let mut page = String::new();
    text::encode(&mut page, &registry).map_err(|error| error.to_string())?;
    Ok(page)
}

#[derive(Debug)]
struct Sample {
    id: String,
    report: Option<DeviceReport>,
    engines: Engines,
}

#[derive(Debug)]
struct Samples(Vec<Sample>, Option<u64>);

type Result0 = Result<(), fmt::Error>;
type OfReport = fn(&DeviceReport) -> u64;
type OfEngine = fn(&EngineCounters) -> &AtomicU64;
type OfDirections = fn(&EngineCounters) -> &[AtomicU64; 2];

/// Counters of a device.
const COUNTERS: [(&str, &str, OfReport); 9] = [
    ("errors", "Times that an engine aborted on an error", |r| {
        r.counters.errors
    }),
    ("resets", "Device and core resets acknowledged", |r| {
        r.counters.resets
    }),
    ("slices", "Slices of engine work", |r| r.counters.slices),
    ("register_reads", "Register reads served", |r| {
        r.counters.register_reads
    }),
    ("register_writes", "Register writes served", |r| {
        r.counters.register_writes
    }),
    (
        "notifications",
        "Entries written into notification queues",
        |r| r.counters.notifications,
    ),
    (
        "notifications_lost",
        "Entries that had nowhere to go",
        |r| r.counters.notifications_lost,
    ),
    ("clients", "Clients so far", |r| r.wire.connections),
    (
        "clients_turned_away",
        "Clients turned away because another was connected",
        |r| r.wire.turned_away,
    ),
];

/// Gauges of a device.
const GAUGES: [(&str, &str, OfReport); 5] = [
    ("connected", "A client is connected", |r| {
        u64::from(r.connected)
    }),
    ("bus_master", "The guest allows DMA", |r| {
        u64::from(r.bus_master)
    }),
    ("maps", "Entries of the guest map", |r| r.maps.len() as u64),
    (
        "queues_active",
        "Queues that were ever rung or initialised",
        |r| r.queues.len() as u64,
    ),
    ("engines_aborted", "Engines stopped on an error", |r| {
        r.aborted.len() as u64
    }),
];

/// Gauges of a device in bytes.
const BYTES: [(&str, &str, OfReport); 2] = [
    ("mapped", "Guest memory mapped", |r| {
        r.maps
            .iter()
            .map(|map| map.size)
            .fold(0, u64::saturating_add)
    }),
    (
        "hbm_resident",
        "Memory behind HBM pages that were touched",
        |r| r.hbm_resident,
    ),
];

/// Counters of an engine.
const ENGINE: [(&str, &str, OfEngine); 3] = [
    ("batches", "Completion markers written", |e| &e.batches),
    ("aborts", "Times the engine stopped on an error", |e| {
        &e.aborts
    }),
    ("copied_bytes", "Bytes landed", |e| &e.bytes),
];

/// Counters of an engine, m2s and s2m.
const DIRECTED: [(&str, &str, OfDirections); 2] = [
    ("doorbells", "Doorbell writes", |e| &e.doorbells),
    ("descriptors", "Descriptors fetched", |e| &e.descriptors),
];

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result0 {
        let Self(samples, resident) = self;
        let mut metric =
            encoder.encode_descriptor("device", "What it is", None, MetricType::Info)?;
        for (id, report) in samples
            .iter()
            .filter_map(|s| Some((&s.id, s.report.as_ref()?)))
        {
            let labels = [
                ("device", id.as_str()),
                ("product", report.product.as_str()),
                ("platform", report.platform.as_str()),
            ];
            metric.encode_info(&labels)?;
        }
        let mut metric = encoder.encode_descriptor(
            "up",
            "The device thread answers",
            None,
            MetricType::Gauge,
        )?;
        for sample in samples {
            gauge(&mut metric, &sample.id, u64::from(sample.report.is_some()))?;
        }
        for (name, help, value) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (id, report) in samples
                .iter()
                .filter_map(|s| Some((&s.id, s.report.as_ref()?)))
            {
                counter(&mut metric, &[("device", id)], value(report))?;
            }
        }
        let gauges = GAUGES.iter().map(|gauge| (gauge, None));
        let bytes = BYTES.iter().map(|gauge| (gauge, Some(&Unit::Bytes)));
        for ((name, help, value), unit) in gauges.chain(bytes) {
            let mut metric = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for (id, report) in samples
                .iter()
                .filter_map(|s| Some((&s.id, s.report.as_ref()?)))
            {
                gauge(&mut metric, id, value(report))?;
            }
        }
        for (name, help, value) in ENGINE {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (id, number, engine) in active(samples) {
                let labels = [("device", id), ("engine", number.as_str())];
                counter(&mut metric, &labels, value(engine).load(Ordering::Relaxed))?;
            }
        }
        for (name, help, values) in DIRECTED {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (id, number, engine) in active(samples) {
                for (direction, value) in ["m2s", "s2m"].into_iter().zip(values(engine)) {
                    let labels = [
                        ("device", id),
                        ("engine", number.as_str()),
                        ("direction", direction),
                    ];
                    counter(&mut metric, &labels, value.load(Ordering::Relaxed))?;
                }
            }
        }
        let help = "From the m2s doorbell to the marker";
        let mut metric = encoder.encode_descriptor(
            "batch_latency",
            help,
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (id, number, engine) in active(samples) {
            histogram(
                &mut metric,
                &[("device", id), ("engine", number.as_str())],
                engine,
            )?;
        }
        if let Some(resident) = resident {
            let help = "Memory of the process, guest memory it touched included";
            let mut metric = encoder.encode_descriptor(
                "resident",
                help,
                Some(&Unit::Bytes),
                MetricType::Gauge,
            )?;
            metric.encode_gauge(resident)?;
        }
        Ok(())
    }
}

/// Engines that did anything, with device and number.
fn active(samples: &[Sample]) -> impl Iterator<Item = (&str, String, &EngineCounters)> {
    samples.iter().flat_map(|sample| {
        let engines = sample.engines.iter().enumerate();
        engines
            .filter(|(_, engine)| engine.is_active())
            .map(|(number, engine)| (sample.id.as_str(), number.to_string(), engine))
    })
}

fn gauge(metric: &mut MetricEncoder<'_>, id: &str, value: u64) -> Result0 {
    metric
        .encode_family(&[("device", id)])?
        .encode_gauge(&value)
}

fn counter<const N: usize>(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    value: u64,
) -> Result0 {
    metric
        .encode_family(labels)?
        .encode_counter::<[(&str, &str); 0], u64, u64>(&value, None)
}

fn histogram(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); 2],
    engine: &EngineCounters,
) -> Result0 {
    let bounds = LATENCY_BOUNDS.into_iter().chain([f64::MAX]);
    let buckets: Vec<_> = bounds
        .zip(&engine.latency)
        .map(|(bound, count)| (bound, count.load(Ordering::Relaxed)))
        .collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    let sum = Duration::from_nanos(engine.latency_sum.load(Ordering::Relaxed)).as_secs_f64();
    metric
        .encode_family(labels)?
        .encode_histogram::<[(&str, &str); 0]>(sum, count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        for good in ["127.0.0.1:9464", "[::1]:9464", "unix:/run/x", "127.8.8.8:0"] {
            assert!(good.parse::<Address>().is_ok(), "{good}");
        }
        for (bad, why) in [
            ("0.0.0.0:9464", "other machines"),
            ("[::]:9464", "other machines"),
            ("10.0.0.1:9464", "other machines"),
            ("9464", "no address"),
            ("localhost:9464", "no address"),
            ("unix:", "path"),
        ] {
            let error = bad.parse::<Address>().unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}

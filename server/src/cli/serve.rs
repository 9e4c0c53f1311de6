//! `serve`: be the device.
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tracing::{debug, error, info, warn};

use super::adversary::AdversaryArgs;
use super::clock::ClockArgs;
use super::coverage::{self, Coverages, LiveCoverageArgs};
use super::device::{DeviceArgs, DeviceSpec};
use super::exit::Exit;
use super::faults::{FaultArgs, Plans};
use super::firmware::FirmwareArgs;
use super::interrupts::InterruptArgs;
use super::metrics::MetricsArgs;
use super::record::{self, RecordArgs, Recordings};
use super::report::ReportArgs;
use super::sanitize::{SanitizeArgs, add_to};
use super::timeline::TimelineArgs;
use super::timing::{Budgets, TimingArgs};
use super::wire::WireArgs;
use crate::confine::{self, Confinement};
use crate::control::activation::Activation;
use crate::control::device::{Device, Running};
use crate::control::metrics::{Endpoint, Measured};
use crate::control::operator::Operator;
use crate::control::ready::{Notify, ReadyFd};
use crate::control::report::{Parts, Reporter, to_json};
use crate::control::resident::Resident;
use crate::control::supervisor::{self, Outcome};
use crate::control::timeline::{self, Drawn, Timeline};
use crate::function::{Config, Firmware, NeuronFunction};
use crate::observe::log::{Format, Log};
use crate::observe::metrics::{self, Counter, Engines};
use crate::observe::narrate::Narrator;
use crate::observe::report::{Account, Detail};
use crate::observe::sanitize::{self, Findings};
use crate::outputs;
use crate::record::{Header, Recorded};
use crate::vfio::Listener;

/// Serial number of the device with routing id 0. Any number does but 0, which the driver takes for none (contract §4).
const FIRST_SERIAL: u64 = 0x4e56_0001_0000_0000;

/// Below the options in `serve --help`.
pub const NOTES: &str = "\
The socket is created at start and removed at the end. A stale one is replaced; one that is being listened on is an \
error. Sockets that a service manager passes (LISTEN_FDS) are used for the paths they are bound to and left alone at the \
end; NOTIFY_SOCKET is told READY=1. QEMU must find the server listening when it starts, and never reconnects; the next \
QEMU finds a fresh device.

Once its sockets are bound the process gives up opening files, making sockets and starting programs (landlock, seccomp); \
--no-sandbox keeps them, for debuggers and profilers inside the process.

SIGINT and SIGTERM stop the server; the log ends with what was done and which registers were touched that are not \
modelled.";

/// Options of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Serial number of the first device; further devices count up [default: made from the routing id]
    #[arg(long, value_name = "N", value_parser = serial)]
    serial: Option<u64>,

    #[command(flatten)]
    firmware: FirmwareArgs,

    #[command(flatten)]
    timing: TimingArgs,

    #[command(flatten)]
    clock: ClockArgs,

    #[command(flatten)]
    sanitize: SanitizeArgs,

    #[command(flatten)]
    report: ReportArgs,

    #[command(flatten)]
    adversary: AdversaryArgs,

    #[command(flatten)]
    faults: FaultArgs,

    /// Let the guest map device memory (BAR4). Costs latency: with any mappable BAR, QEMU makes every register write wait
    /// for an answer, doorbells included
    #[arg(long)]
    mmap_hbm: bool,

    #[command(flatten)]
    record: RecordArgs,

    #[command(flatten)]
    coverage: LiveCoverageArgs,

    #[command(flatten)]
    wire: WireArgs,

    #[command(flatten)]
    interrupts: InterruptArgs,

    /// What to log: a level (error, warn, info, debug, trace), or module=level pairs separated by commas
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,

    /// How to log
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    log_format: Format,

    /// Log every register access by name
    #[arg(long)]
    trace_registers: bool,

    #[command(flatten)]
    timeline: TimelineArgs,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Socket for `ctl`, accessible to you alone [default: the --socket path with .ctl appended, or DIR/control.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Write "READY\n" to this inherited file descriptor when QEMU may connect, then close it
    #[arg(long, value_name = "FD")]
    ready_fd: Option<i32>,

    /// Keep all rights of the process instead of giving up what a device does not need
    #[arg(long)]
    no_sandbox: bool,
}

/// Whom to tell that QEMU may connect.
struct Ready {
    fd: Option<ReadyFd>,
    notify: Option<Notify>,
}

/// What outlives the devices.
struct Around {
    reporter: Option<Reporter>,
    findings: Vec<Findings>,
    budgets: Budgets,
    recordings: Recordings,
    headers: Vec<Option<Header>>,
    plans: Plans,
    coverages: Coverages,
    timeline: Arc<Timeline>,
    /// Counters of the engines of each device, if they are served.
    engines: Option<Vec<Engines>>,
}

impl Around {
    /// Says what is left to say, once the devices have ended. Returns whether a budget's limit was passed.
    fn finish(self) -> bool {
        let over_budget = self.budgets.close();
        self.coverages.close();
        if let Ok((_, summary)) = self.timeline.stop() {
            info!("time line: {}", timeline::words(&summary));
        }
        for findings in self.findings {
            let ledger = findings.ledger();
            for line in sanitize::words(&ledger) {
                info!(device = ledger.device(), "{line}");
            }
        }
        if let Some(reporter) = self.reporter {
            reporter.finish();
        }
        over_budget
    }
}

/// What the control plane needs beside the devices.
struct Services {
    control: Listener,
    metrics: Option<Endpoint>,
    resident: Arc<Resident>,
    log: Arc<Log>,
}

/// A serial number; the driver reads 0 as "none" and prints an error (contract §4).
fn serial(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(0) => Err(
            "0 means `no serial number` to the driver, which then reports an error; use 1 or more"
                .to_owned(),
        ),
        Ok(number) => Ok(number),
        Err(_) => Err("not a number of 64 bits: write 1234 or 0x4d2".to_owned()),
    }
}

impl ServeArgs {
    /// Serves until a signal.
    pub fn run(self) -> Exit {
        self.prepare_and_serve()
            .unwrap_or_else(|Refusal(exit, error)| {
                eprintln!("error: {error}");
                exit
            })
    }

    fn prepare_and_serve(&self) -> Result<Exit, Refusal> {
        // First of all: the numbers must not be reused by files of ours.
        let (mut passed, ready) = self.inherited().map_err(usage)?;
        let specs = self.device.specs().map_err(usage)?;
        let firmware = self.firmware.firmware().map_err(usage)?;
        let clock = self.clock.clock();
        let plans = self.faults.plans(&specs, clock).map_err(usage)?;
        self.timing.check(clock).map_err(usage)?;
        let budgets = self.timing.budgets().map_err(failed)?;
        let coverages = self.coverage.open(specs.len()).map_err(failed)?;
        let recordings = self.record.open(specs.len()).map_err(failed)?;
        let place = &self.device.place;
        // clap has seen to it that one of them is given.
        let control_path = self.control.clone().or_else(|| place.control());
        let control_path = control_path.ok_or_else(|| usage("give --socket or --socket-dir"))?;
        place.make_dir().map_err(failed)?;
        let mut listeners = Vec::new();
        for spec in &specs {
            let listener = passed.listen(&spec.socket);
            listeners
                .push(listener.map_err(|error| failed(format!("--{}: {error}", place.option())))?);
        }
        let control = passed
            .listen(&control_path)
            .map_err(|error| failed(format!("--control: {error}")))?;
        passed.finish().map_err(usage)?;
        let reports = self.report.open().map_err(failed)?;
        // Like everything that is opened: before the rights to do so are gone.
        let timeline = self.timeline.open().map_err(failed)?;
        let metrics = self.metrics.bind().map_err(failed)?;
        outputs::empty()
            .map_err(|error| failed(format!("an output cannot be emptied: {error}")))?;
        let resident = Arc::new(Resident::open());
        // Before the first thread, so that all of them are confined.
        let files = listeners
            .iter()
            .chain([&control])
            .filter_map(Listener::directory)
            .chain(metrics.as_ref().and_then(Endpoint::directory));
        let confined = self
            .confine(&files.collect::<Vec<_>>(), reports.as_ref())
            .map_err(failed)?;
        let log = Log::start(&self.log, self.log_format, self.trace_registers);
        let log = Arc::new(log.map_err(usage)?);
        say(confined);
        let reporter = reports.map(ReportArgs::start).transpose();
        let reporter = reporter.map_err(failed)?;
        let timeline = Timeline::begin(self.timeline.options(), timeline)
            .map_err(|error| failed(format!("--timeline: {error}")))?;
        let around = Around {
            reporter,
            findings: Vec::new(),
            budgets,
            recordings,
            headers: Vec::new(),
            plans,
            coverages,
            timeline: Arc::new(timeline),
            engines: metrics.is_some().then(Vec::new),
        };
        let services = Services {
            control,
            metrics,
            resident,
            log: Arc::clone(&log),
        };
        let exit = self.serve(&specs, firmware, listeners, services, ready, around);
        log.flush();
        Ok(exit)
    }

    /// Gives up rights, unless told not to. Files in `directories` can still be removed.
    fn confine(
        &self,
        directories: &[PathBuf],
        reports: Option<&impl AsFd>,
    ) -> Result<Option<Confinement>, String> {
        if self.no_sandbox {
            return Ok(None);
        }
        let directories = directories.iter().map(AsRef::as_ref);
        confine::confine(directories, reports.map(AsFd::as_fd))
            .map(Some)
            .map_err(|error| error.to_string())
    }

    /// What whoever started us passes on.
    fn inherited(&self) -> Result<(Activation, Ready), String> {
        let passed = Activation::inherit(self.ready_fd)?;
        let fd = self.ready_fd.map(ReadyFd::inherit).transpose()?;
        let notify = Notify::from_environment()?;
        Ok((passed, Ready { fd, notify }))
    }

    fn serve(
        &self,
        specs: &[DeviceSpec],
        firmware: Firmware,
        listeners: Vec<Listener>,
        services: Services,
        ready: Ready,
        mut around: Around,
    ) -> Exit {
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        for ((n, spec), listener) in (0..).zip(specs).zip(listeners) {
            match self.start(n, spec, firmware, listener, &mut around) {
                Ok(device) => devices.push(device),
                Err(error) => {
                    error!(device = spec.routing_id, "cannot start: {error}");
                    return Exit::Failed;
                }
            }
        }
        let engines = around.engines.take().unwrap_or_default();
        let measured = Measured {
            devices: devices.iter().cloned().zip(engines).collect(),
            resident: services.resident,
        };
        let operator = Arc::new(Operator {
            devices,
            drawn: specs.iter().map(drawn).collect(),
            headers: std::mem::take(&mut around.headers),
            timeline: Arc::clone(&around.timeline),
            log: Some(services.log),
            ..Operator::bare(Vec::new())
        });
        let metrics = services
            .metrics
            .as_ref()
            .map(|endpoint| (endpoint, measured));
        let outcome = supervisor::run(&operator, &services.control, metrics, || {
            announce(specs, ready);
        });
        let over_budget = around.finish();
        match outcome {
            // It comes first: what is not there cannot have said that no batch was slow.
            Ok(Outcome::Stopped) if outputs::any_lost() => Exit::Failed,
            Ok(Outcome::Stopped) if over_budget => Exit::OverBudget,
            Ok(Outcome::Stopped) => Exit::Ok,
            Ok(Outcome::RuleBroken) => Exit::RuleBroken,
            Ok(Outcome::DeviceDied) => Exit::DeviceDied,
            Ok(Outcome::Stuck) => Exit::Failed,
            Err(error) => {
                error!("the control plane cannot run: {error}");
                Exit::Failed
            }
        }
    }

    fn start(
        &self,
        n: u8,
        spec: &DeviceSpec,
        firmware: Firmware,
        listener: Listener,
        around: &mut Around,
    ) -> Result<Arc<dyn Device>, String> {
        let config = Config {
            product: spec.product,
            platform: spec.platform,
            routing_id: spec.routing_id,
            serial: match self.serial {
                // Wrapping to 0 would mean none.
                Some(first) => first.checked_add(n.into()).unwrap_or(FIRST_SERIAL),
                None => FIRST_SERIAL + u64::from(spec.routing_id),
            },
            firmware,
            hbm: spec.hbm,
            mmap_hbm: self.mmap_hbm,
            msix: self.interrupts.msix,
        };
        let mut function = NeuronFunction::new(config)
            .map_err(|error| format!("no memory for the device: {error}; see ulimit -v"))?;
        let timing = self.timing.timing(spec.product.generation());
        function.policies_mut().set_timing(timing);
        if let Some(adversary) = self.adversary.adversary(n) {
            info!(
                device = spec.routing_id,
                "adversary: seed {}",
                adversary.script()
            );
            function.policies_mut().set_adversary(adversary);
        }
        let budget = self.timing.book(spec, &mut around.budgets);
        function.keep_budget(budget.clone());
        function
            .policies_mut()
            .set_faults(around.plans.faults(spec));
        function.policies_mut().set_ground(around.plans.ground());
        function.observers_mut().add(Box::new(Narrator));
        around
            .timeline
            .attach(&drawn(spec), function.observers_mut());
        if let Some(all) = &mut around.engines {
            let generation = spec.product.generation();
            let engines = metrics::engines(generation);
            let counter = Counter::new(generation, Arc::clone(&engines));
            function.observers_mut().add(Box::new(counter));
            all.push(engines);
        }
        let mut parts = Parts::new(spec.routing_id);
        parts.add("budget.json", move || to_json(&budget.report()));
        let sanitizer = self
            .sanitize
            .sanitizer(spec.product.generation(), spec.routing_id);
        let findings = sanitizer.map(|(sanitizer, findings)| {
            function.observers_mut().add(Box::new(sanitizer));
            add_to(&mut parts, &findings);
            around.findings.push(findings.clone());
            findings
        });
        let reported = around.reporter.is_some();
        if let Some(coverage) = around.coverages.start(&config, reported) {
            coverage::add_to(&mut parts, &coverage, config);
            function.observers_mut().add(Box::new(coverage));
        }
        if let Some(reporter) = &around.reporter {
            reporter.add(parts, function.report(Detail::Dump));
            function.on_disconnect(Box::new(reporter.left()));
        }
        let policies = function.policies_mut();
        if around.recordings.is_wanted() && !policies.is_empty() {
            return Err(
                "--record cannot be combined with faults: a replay could not decide alike"
                    .to_owned(),
            );
        }
        let adversary = policies
            .adversary()
            .map(|adversary| adversary.script().to_string());
        let header = record::header(&config, self.timing.speed());
        // What the guest does to mapped device memory is not seen.
        around.headers.push((!self.mmap_hbm).then_some(header));
        let journal = around
            .recordings
            .start(&config, self.timing.speed(), adversary)?;
        let function = Recorded::new(function, journal);
        let running = Running::start(spec.routing_id, listener, function, self.wire.settings())
            .map_err(|error| error.to_string())?;
        if let Some(findings) = findings {
            findings.on_fatal(running.condemn());
        }
        Ok(Arc::new(running))
    }
}

/// What a time line needs to know of a device.
fn drawn(spec: &DeviceSpec) -> Drawn {
    Drawn {
        routing_id: spec.routing_id,
        title: format!("nd{} {}", spec.routing_id, spec.product),
        generation: spec.product.generation(),
    }
}

fn announce(specs: &[DeviceSpec], ready: Ready) {
    for spec in specs {
        info!(
            device = spec.routing_id,
            "{} on platform {}, /dev/neuron{} in the guest, listening on {}",
            spec.product,
            spec.platform,
            spec.product.node(spec.routing_id),
            spec.socket.display()
        );
    }
    if let Some(Err(error)) = ready.notify.map(Notify::ready) {
        warn!("NOTIFY_SOCKET: nobody reads it: {error}");
    }
    if let Some(Err(error)) = ready.fd.map(ReadyFd::signal) {
        warn!("--ready-fd: nobody reads it: {error}");
    }
}

/// Logs what is in force; none was asked for with --no-sandbox.
fn say(confined: Option<Confinement>) {
    match confined {
        Some(Confinement { landlock: true }) => debug!("confined by landlock and seccomp"),
        Some(Confinement { landlock: false }) => {
            debug!("confined by seccomp alone: this kernel has no landlock");
        }
        None => debug!("not confined (--no-sandbox)"),
    }
}

/// Why it does not serve, and the status to say so.
struct Refusal(Exit, String);

fn usage(error: impl Into<String>) -> Refusal {
    Refusal(Exit::Usage, error.into())
}

fn failed(error: impl Into<String>) -> Refusal {
    Refusal(Exit::Failed, error.into())
}

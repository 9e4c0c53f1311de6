//! What is tried, one file each. Every scenario runs in a process of its own on one device, and leaves
//! the device as usable as it found it.
mod abort_one;
mod all_devices;
mod allocate;
mod async_copy;
mod bandwidth;
mod batch;
mod buffer_copy;
mod cores;
mod device_copy;
mod engine_state;
mod gate;
mod h2t_queues;
mod hotplug;
mod info;
mod interrupts;
mod latency;
mod mailbox;
mod memset;
mod notifications;
mod queues;
mod reopen;
mod reset;
mod self_test;
mod semaphore;
mod semaphore_dma;
mod soft_poll;
mod state_buffer;
mod sysfs;
mod user_ring;
mod zero_copy;
mod zero_copy_batch;
mod zero_copy_many;

use std::time::Duration;

use anyhow::Result;

use crate::device::Device;
pub use crate::job::Outcome;
use crate::pattern::Pattern;
use crate::report;

/// What a scenario is told.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// N of its device; of the first one where it drives all.
    pub index: u32,
    /// How many devices the guest was told to expect.
    pub devices: u32,
    /// Seed of the run.
    pub seed: u64,
}

impl Setup {
    /// A pattern of this run; `purpose` tells buffers of a scenario apart, devices never share data.
    pub fn pattern(&self, device: u32, purpose: u64) -> Pattern {
        Pattern::new(self.seed ^ u64::from(device) << 32, purpose)
    }
}

/// What most scenarios work with.
pub struct Context {
    /// The device, already open.
    pub device: Device,
    /// The rest.
    pub setup: Setup,
}

impl Context {
    /// Opens the device of a setup.
    pub fn open(setup: Setup) -> Result<Self> {
        Ok(Self {
            device: Device::open(setup.index)?,
            setup,
        })
    }

    /// A pattern of this run and device.
    pub fn pattern(&self, purpose: u64) -> Pattern {
        self.setup.pattern(self.device.index, purpose)
    }

    /// Prints a `metric` line of this device.
    pub fn metric(&self, name: &str, value: f64, unit: &str) {
        report::metric(self.device.index, name, value, unit);
    }

    /// Prints a `note` line of this device.
    pub fn note(&self, text: impl std::fmt::Display) {
        report::note(self.device.index, text);
    }
}

/// How a scenario is run.
#[derive(Clone, Copy)]
pub enum Body {
    /// Once for every device, which is open.
    Open(fn(&Context) -> Result<Outcome>),
    /// Once for every device, which it opens and closes itself.
    Closed(fn(Setup) -> Result<Outcome>),
    /// Once, on all devices together.
    All(fn(Setup) -> Result<Outcome>),
    /// Once, by PID 1: the module goes and comes back.
    Reload,
}

/// One scenario.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Name on the command line and in results.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Its own time limit, where the default is too short.
    pub limit: Option<Duration>,
    /// What it does.
    pub body: Body,
}

const fn each(
    name: &'static str,
    about: &'static str,
    run: fn(&Context) -> Result<Outcome>,
) -> Scenario {
    Scenario {
        name,
        about,
        limit: None,
        body: Body::Open(run),
    }
}

const fn slow(seconds: u64, scenario: Scenario) -> Scenario {
    Scenario {
        limit: Some(Duration::from_secs(seconds)),
        ..scenario
    }
}

/// All scenarios, in the order of `all`: what later ones rest on comes first.
pub const ALL: &[Scenario] = &[
    each(
        "info",
        "what the driver says about itself and the device",
        info::run,
    ),
    each(
        "allocate",
        "sizes, alignments, channels, cores; exhaustion is answered",
        allocate::run,
    ),
    each(
        "buffer_copy",
        "user memory to device memory and back, sizes and offsets",
        buffer_copy::run,
    ),
    each(
        "device_copy",
        "chunk to chunk: device, host, across channels and cores",
        device_copy::run,
    ),
    slow(
        180,
        each(
            "batch",
            "one copy longer than a ring's batch (127 MiB)",
            batch::run,
        ),
    ),
    each("memset", "fills, with every byte around them", memset::run),
    each(
        "async_copy",
        "two copies in flight, wait handles, order",
        async_copy::run,
    ),
    each(
        "user_ring",
        "a process's own rings in host memory",
        user_ring::run_host,
    ),
    each(
        "user_ring_device",
        "a process's own rings in device memory",
        user_ring::run_device,
    ),
    each(
        "user_ring_odd",
        "a ring whose size is not a power of two",
        user_ring::run_odd,
    ),
    each(
        "ring_past_chunk",
        "descriptors for a place behind a ring's memory are refused",
        user_ring::run_past_chunk,
    ),
    each(
        "queues",
        "every queue of an engine, and engines of every core",
        queues::run,
    ),
    each(
        "soft_poll",
        "marker copied in, polled by copy-out every 10 us",
        soft_poll::run,
    ),
    each(
        "zero_copy",
        "scattered user pages pinned and copied directly",
        zero_copy::run,
    ),
    each(
        "zero_copy_batch",
        "many zero copies in one call, now and with completions posted to a mapped ring",
        zero_copy_batch::run,
    ),
    slow(
        180,
        each(
            "zero_copy_many",
            "a full completion ring in flight, processes that end with copies in flight, two at once",
            zero_copy_many::run,
        ),
    ),
    each(
        "h2t_queues",
        "extra driver queues, allocated, used and freed",
        h2t_queues::run,
    ),
    each(
        "semaphore",
        "semaphores and events by ioctl",
        semaphore::run,
    ),
    each(
        "semaphore_dma",
        "semaphores and events written by descriptors",
        semaphore_dma::run,
    ),
    each(
        "state_buffer",
        "a core's state buffer as source and destination",
        state_buffer::run,
    ),
    each(
        "gate",
        "the five gated registers of a queue refuse writes",
        gate::run,
    ),
    each(
        "engine_state",
        "engine state read, stopped and started",
        engine_state::run,
    ),
    each(
        "notifications",
        "a notification queue created, its memory and registers read back",
        notifications::run,
    ),
    each(
        "interrupts",
        "MSI-X, where the device has it: a vector for each copy that asks for one",
        interrupts::run,
    ),
    each(
        "mailbox",
        "requests through the firmware mailbox",
        mailbox::run,
    ),
    slow(
        180,
        each(
            "sysfs",
            "what the driver tells of the card: serial, ECC counts, power that moves",
            sysfs::run,
        ),
    ),
    Scenario {
        name: "reopen",
        about: "close with queues owned, then open again",
        limit: None,
        body: Body::Closed(reopen::run),
    },
    slow(
        120,
        each(
            "core_reset",
            "each core reset between copies",
            reset::run_cores,
        ),
    ),
    slow(
        120,
        each(
            "device_reset",
            "the whole device reset between copies",
            reset::run_device,
        ),
    ),
    each("cores", "one thread per core, copying at once", cores::run),
    slow(
        120,
        each(
            "latency",
            "small copies: distribution of their time",
            latency::run,
        ),
    ),
    slow(
        120,
        each(
            "bandwidth",
            "large copies: megabytes per second",
            bandwidth::run,
        ),
    ),
    Scenario {
        name: "all_devices",
        about: "every device copying at once",
        limit: Some(Duration::from_secs(180)),
        body: Body::All(all_devices::run),
    },
    Scenario {
        name: "hotplug",
        about: "each device pulled out of its slot and plugged in again, with nothing open",
        limit: Some(Duration::from_secs(240)),
        body: Body::All(hotplug::run_idle),
    },
    Scenario {
        name: "hotplug_busy",
        about: "the same with copies in flight",
        limit: Some(Duration::from_secs(240)),
        body: Body::All(hotplug::run_busy),
    },
    Scenario {
        name: "reload",
        about: "the module unloaded and loaded again",
        limit: Some(Duration::from_secs(180)),
        body: Body::Reload,
    },
];

const fn on_purpose(
    name: &'static str,
    about: &'static str,
    run: fn(Setup) -> Result<Outcome>,
) -> Scenario {
    Scenario {
        name,
        about,
        limit: None,
        body: Body::All(run),
    }
}

/// Only by name: they end badly, whatever the driver does, or are of use behind others that do.
pub const SELF_TESTS: &[Scenario] = &[
    slow(
        120,
        each(
            "self_recovery",
            "the whole device reset, then copies on every core: behind a fault, what it left is gone",
            reset::run_recovery,
        ),
    ),
    on_purpose("self_fail", "fails on purpose", self_test::fail),
    on_purpose("self_panic", "panics on purpose", self_test::panic),
    on_purpose("self_crash", "dies on purpose", self_test::crash),
    on_purpose("self_hang", "hangs on purpose", self_test::hang),
    on_purpose(
        "self_bug",
        "puts the line of a kernel BUG into the kernel's log on purpose, and fails",
        self_test::bug,
    ),
    on_purpose(
        "self_abort",
        "aborts an engine of the last device on purpose, while the others copy",
        abort_one::run,
    ),
    on_purpose(
        zero_copy_many::PEER,
        "the other process of zero_copy_many",
        zero_copy_many::peer,
    ),
    on_purpose(
        zero_copy_many::LEAVER,
        "dies on purpose with copies in flight",
        zero_copy_many::leave,
    ),
];

/// The scenario of a name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().chain(SELF_TESTS).find(|s| s.name == name)
}

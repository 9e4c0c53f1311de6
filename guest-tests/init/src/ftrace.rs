//! The driver's trace of itself, for `neuron-vfio-user merge`: its own events, and probes for the copies that pass none.
//!
//! Probes are set before the module loads, events exist only afterwards. The text leaves by the second serial port, since
//! the guest has no disk; the kernel's buffer keeps the newest events if there are too many.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use crate::report;

const ROOT: &str = "/sys/kernel/tracing";
/// Of each CPU. An event takes some 100 bytes.
const BUFFER_KIB: &str = "16384";
/// Where the text goes.
const PORT: &str = "/dev/ttyS1";
/// docs/timeline.md explains them; `merge` knows them by name.
const PROBES: [&str; 3] = [
    "p:neuron_doorbell neuron:udma_m2m_copy_start name=+0(%di):string qid=%si:u32 tx=%dx:u32 rx=%cx:u32",
    // Registers, not $argN, which the kernel only takes for a function that is loaded. The engine's number lies behind a struct mutex of 32 bytes.
    "p:neuron_wait neuron:ndma_memcpy_wait_for_completion eng=+40(%di):u32 count=%dx:u32",
    "r:neuron_done neuron:ndma_memcpy_wait_for_completion ret=$retval:s32",
];

fn place(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

fn set(name: &str, value: &str) -> io::Result<()> {
    OpenOptions::new()
        .append(true)
        .open(place(name))?
        .write_all(format!("{value}\n").as_bytes())
}

/// Sets clock, buffer and probes; before the module loads.
pub fn prepare() {
    if let Err(error) = mount("tracefs", ROOT, "tracefs", MountFlags::empty(), None)
        && error != rustix::io::Errno::BUSY
    {
        return report::line(format_args!("note ftrace: no tracefs: {error}"));
    }
    for (name, value) in [("trace_clock", "mono"), ("buffer_size_kb", BUFFER_KIB)] {
        if let Err(error) = set(name, value) {
            report::line(format_args!("note ftrace: {name} {value}: {error}"));
        }
    }
    for probe in PROBES {
        if let Err(error) = set("kprobe_events", probe) {
            report::line(format_args!(
                "note ftrace: no probe {:?}: {error}",
                probe.split(' ').next().unwrap_or(probe)
            ));
        }
    }
}

/// Switches events and probes on; once the module is loaded.
pub fn start() {
    for system in ["kprobes", "neuron"] {
        match set(&format!("events/{system}/enable"), "1") {
            Ok(()) => report::line(format_args!("note ftrace: events of {system} are on")),
            // Of this project's own driver, and of old ones.
            Err(error) => report::line(format_args!(
                "note ftrace: the driver has no events {system}: {error}"
            )),
        }
    }
}

/// Brings the text out.
pub fn finish() {
    let written = set("tracing_on", "0")
        .and_then(|()| fs::read(place("trace")))
        .and_then(|text| {
            // Closing waits until all of it has gone.
            File::options().write(true).open(PORT)?.write_all(&text)?;
            Ok(text.len())
        });
    match written {
        Ok(len) => report::line(format_args!("note ftrace: {len} bytes")),
        Err(error) => report::line(format_args!("note ftrace: nothing comes out: {error}")),
    }
}

//! PID 1 of the test guest: loads a driver, runs the scenarios over `/dev/neuronN`, says how each ended,
//! and powers off. One program for both drivers, the real `neuron.ko` (2.19 and up) and `guest-tests/driver`:
//! it asks the driver which requests exist and answers NOT OFFERED for the rest.
//!
//! # Building it
//! A static glibc executable, so that the initramfs needs nothing else:
//! ```text
//! cargo rustc -p neuron-guest-init --release -- -C target-feature=+crt-static -C relocation-model=static
//! ```
//! gives `target/release/neuron-guest-init`; only this crate is compiled in its own way, so the normal
//! `target/` stays warm. It becomes `/init` of the initramfs, with the module beside it (`/neuron.ko`),
//! and nothing else is needed: no busybox, no libraries, no device nodes except what the kernel makes
//! (a `/dev/console` node gives panics of this program somewhere to go).
//!
//! # Speaking to it
//! Parameters on the kernel command line: [`cmdline`]. Result lines on the console: [`report`].
//! A guest with 512 MiB of RAM runs everything (`mempool_host_memory_size` of the real driver takes up to
//! 128 MiB of it per device); 1 GiB is comfortable; each further device wants 160 MiB more. `-smp 2` keeps
//! the watchdog alive while the driver spins in the kernel.
//!
//! Outside a guest: `neuron-guest-init list` names the scenarios, and `neuron-guest-init run NAME... [--device N]`
//! runs them as root on a machine whose driver is already loaded.
//!
//! # Inside
//! [`job`] gives each scenario a process and a time limit. [`device`] knows the requests, [`ioctl`] is the
//! only place with `unsafe`. [`canvas`] compares every byte, [`pattern`] makes bytes that tell where they
//! belong, [`ring`] drives a user queue. One file per scenario under [`scenario`].
mod boot;
mod canvas;
mod cmdline;
mod completions;
mod device;
mod ftrace;
mod ioctl;
mod job;
mod module;
mod pattern;
mod pci;
mod report;
mod ring;
mod scenario;
mod supervisor;
mod tasks;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(job::ARGUMENT) => tasks::child(&arguments[1..]),
        _ if std::process::id() == 1 => supervisor::guest(),
        Some("list") => {
            for scenario in scenario::ALL.iter().chain(scenario::SELF_TESTS) {
                println!("{:<18} {}", scenario.name, scenario.about);
            }
            ExitCode::SUCCESS
        }
        Some("run") => supervisor::here(&arguments[1..]),
        _ => {
            eprintln!(
                "usage: neuron-guest-init list | run NAME... [--device N]\n\
                 As process 1 of a guest it takes neuron.* parameters from the kernel command line instead."
            );
            ExitCode::from(2)
        }
    }
}

//! Starts device servers and QEMU, runs scenarios in the guest, and judges both sides.
//!
//! [`options`] turns what the user asked for into a [`lane::Lane`], with everything checked that can be checked before a
//! boot. [`lane::run`] starts the servers, waits until each says that it is ready, starts QEMU, reads the guest's console
//! ([`guest_line`] for what `init` says, [`judge`] for what the kernel says, [`bars`] for the PCI scan), takes the
//! devices' own [`account`] while QEMU is still connected, and takes everything down. [`outcome`] holds the exit codes.
//! [`matrix`] runs many lanes and joins what came out of them.
pub mod accel;
pub mod account;
pub mod artifacts;
pub mod bars;
pub mod capture;
pub mod coverage;
pub mod cpio;
pub mod demo;
pub mod dev;
pub mod guest_line;
pub mod initramfs;
pub mod judge;
pub mod known;
pub mod lane;
pub mod matrix;
pub mod module;
pub mod options;
pub mod outcome;
pub mod print;
pub mod process;
pub mod progress;
pub mod qemu;
mod qmp;
pub mod report;
pub mod rundir;
pub mod sanitizer;
mod supervise;
pub mod vmlinux;
pub mod watch;

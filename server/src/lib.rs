//! An AWS Neuron accelerator served to QEMU over vfio-user.
//!
//! # Architecture
//! The hardware contract is the crate `neuron_protocol`. This crate makes a device of it:
//!
//! | module | is | knows |
//! |---|---|---|
//! | [`memory`] | where a device address leads: guest RAM, HBM, tiles, a register | protocol |
//! | [`observe`], [`policy`] | events and reports that leave; verdicts that come in | protocol |
//! | [`udma`] | engines, queues, the stream between two rings | memory, events, verdicts |
//! | [`function`] | the PCI function: configuration space, registers, firmware, resets | udma |
//! | [`record`] | all that goes into a function and comes out, in a file; and back | function, vfio's trait |
//! | [`vfio`] | the wire: a vfio-user server for any [`vfio::PciFunction`] | that trait |
//! | [`control`], [`cli`], [`live`], [`probe`] | processes, sockets, people | all of it |
//!
//! The function is a state machine without clock, thread or socket: accesses, maps and replies go in; replies, messages
//! and events come out. One thread owns one function, so that no lock exists and an unmap cannot race a copy.
//!
//! # How a doorbell travels
//! [`vfio::Server`] wakes, frames messages and hands a posted write to
//! [`region_write`](vfio::PciFunction::region_write). The register BAR's decode table finds engine and queue; the tail
//! moves by exactly what was written and the queue becomes ready. [`run`](vfio::PciFunction::run) then works in slices
//! of bounded size: descriptors are fetched, the bytes of tx descriptors flow into rx buffers, pointers move after the
//! data has landed. Between slices the socket is served, so that no read waits behind a long transfer.
//!
//! # What it does not implement
//! Compute, links between devices, completion rings, and DMA operations other than copies. The README has
//! the list for users; [`observe::report`] names what a driver touched of it.
pub mod cli;
pub mod confine;
pub mod control;
pub mod function;
pub mod live;
pub mod memory;
pub mod observe;
pub mod outputs;
pub mod policy;
pub mod probe;
pub mod record;
pub mod udma;
pub mod vfio;

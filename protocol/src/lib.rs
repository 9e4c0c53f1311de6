//! The hardware contract of an AWS Neuron PCI function, as both halves must agree on it.
//!
//! What the *device* must honour: [`descriptor`], [`registers`], [`generation`]. What the *driver* does with it:
//! [`cycle`], [`ring`], [`marker`], [`budget`], [`ioctl`]. Both: [`mailbox`]. Nothing here does I/O, allocates, or knows which half it serves.
//!
//! Sources are named on each constant: "seed" is the description of the ring cycle that the project began with, "contract" the register-level
//! contract read from the driver and checked by runs, "facts" the digest of notes on driver 2.27.4.0, "udma" the
//! register facts of the DMA block.
#![no_std]
#![forbid(unsafe_code)]

pub mod budget;
pub mod cycle;
pub mod descriptor;
pub mod generation;
pub mod ioctl;
pub mod mailbox;
pub mod marker;
pub mod registers;
pub mod ring;

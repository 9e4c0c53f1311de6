//! The hardware contract of an AWS Neuron PCI function, as both halves must agree on it.
#![no_std]
#![forbid(unsafe_code)]

pub mod budget;
pub mod ioctl;
pub mod mailbox;
pub mod marker;
pub mod ring;

//! An AWS Neuron accelerator served to QEMU over vfio-user.
pub mod cli;
pub mod control;
pub mod function;
pub mod memory;
pub mod observe;
pub mod policy;
pub mod probe;
pub mod udma;
pub mod vfio;

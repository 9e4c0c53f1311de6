//! An AWS Neuron accelerator served to QEMU over vfio-user.
pub mod observe;
pub mod vfio;

//! `neuron-vfio-user`: see `--help`.
fn main() {}

//! `neuron-vfio-user`: see `--help`.
use std::process::ExitCode;

fn main() -> ExitCode {
    neuron_vfio_user::cli::main()
}

//! The command line.
mod adversary;
mod clock;
mod coverage;
mod ctl;
mod device;
mod exit;
mod faults;
mod firmware;
mod interrupts;
mod merge;
mod metrics;
mod probe;
mod qemu_args;
mod record;
mod replay;
mod report;
mod sanitize;
mod serve;
mod show;
mod size;
mod target;
mod timeline;
mod timing;
mod wire;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const ABOUT: &str = "\
An AWS Neuron accelerator (Trainium 1, 2, 3, Inferentia 2) as a PCI function for QEMU.

The process serves the function over vfio-user; a stock QEMU (10.1 or newer) puts it on the PCI bus of a guest with \
-device vfio-user-pci, and the guest's unmodified neuron driver loads on it, resets it and copies through it.";

const EXAMPLES: &str = "\
Examples:
  Serve one Trn2, then boot a guest on it:
    neuron-vfio-user serve --socket /tmp/nd0.sock &
    eval qemu-system-x86_64 $(neuron-vfio-user qemu-args --socket /tmp/nd0.sock --memory 4G) \\
        -kernel vmlinux -append console=ttyS0 -nographic

  Copy through it without QEMU, to see that it works:
    neuron-vfio-user probe /tmp/nd0.sock

  Why is my copy stuck?
    neuron-vfio-user ctl --socket /tmp/nd0.sock status

  The tight budgets of real hardware, and every register access in the log:
    neuron-vfio-user serve --socket /tmp/nd0.sock --product trn1 --platform silicon --trace-registers";

/// See `--help`.
#[derive(Debug, Parser)]
#[command(
    name = "neuron-vfio-user",
    version,
    about = "An AWS Neuron accelerator as a PCI function for QEMU"
)]
#[command(long_about = ABOUT, after_help = exit::HELP, after_long_help = long_help())]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 110
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Be the device: serve it on a unix socket until SIGINT or SIGTERM
    #[command(after_help = serve::NOTES)]
    Serve(Box<serve::ServeArgs>),
    /// Print the QEMU arguments that go with the same options, quoted for a shell
    QemuArgs(qemu_args::QemuArgs),
    /// Ask a running server: why is my copy stuck?
    Ctl(ctl::CtlArgs),
    /// Put a time line and the guest's ftrace on one clock: both halves of each copy in one picture
    #[command(after_help = merge::NOTES)]
    Merge(merge::MergeArgs),
    /// Copy through a running device without QEMU, compare contents, and print what was found; resets the device
    Probe(probe::ProbeArgs),
    /// Drive the device by a recording (serve --record), without QEMU, and compare all it does; exit status 1 at the first difference
    Replay(replay::ReplayArgs),
    /// Draw a recording, as one HTML page that needs no network; or, with --live, a running device in this terminal
    #[command(after_help = show::NOTES)]
    Show(show::ShowArgs),
    /// Which registers the driver used, how often, and which of them have no behaviour here; `coverage diff A B` compares two
    Coverage(coverage::CoverageArgs),
}

fn long_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::HELP)
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let exit = match Cli::parse().command {
        Command::Serve(args) => args.run(),
        Command::QemuArgs(args) => args.run(),
        Command::Ctl(args) => args.run(),
        Command::Merge(args) => args.run(),
        Command::Probe(args) => args.run(),
        Command::Replay(args) => args.run(),
        Command::Coverage(args) => args.run(),
        Command::Show(args) => args.run(),
    };
    exit.into()
}

/// Prints on stdout; a reader that has seen enough (`| head`) is no error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_has_examples_and_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("ctl --socket /tmp/nd0.sock status"));
        assert!(help.contains("Exit codes:"));
    }
}

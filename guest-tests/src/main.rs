//! `neuron-guest`: see `--help`.
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Parser, Subcommand};
use neuron_guest_tests::demo::DemoOptions;
use neuron_guest_tests::dev::DevOptions;
use neuron_guest_tests::matrix::cli::MatrixOptions;
use neuron_guest_tests::options::GuestOptions;
use neuron_guest_tests::outcome::{EXIT_CODES, Failure, exit_code};
use neuron_guest_tests::progress::Progress;
use neuron_guest_tests::{demo, dev, lane, matrix};

/// Boots a QEMU guest with emulated Neuron devices, loads a driver, runs scenarios, and judges guest and devices
#[derive(Parser)]
#[command(name = "neuron-guest", version, after_help = EXIT_CODES, after_long_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One run (scripts/guest)
    #[command(after_help = EXIT_CODES)]
    Run(GuestOptions),
    /// The inner loop of a driver developer (scripts/dev)
    #[command(after_help = EXIT_CODES)]
    Dev(DevOptions),
    /// One run, and a table of what it measured (scripts/demo)
    #[command(after_help = EXIT_CODES)]
    Demo(DemoOptions),
    /// Many runs, one result (scripts/matrix)
    #[command(after_help = matrix::EXIT_CODES)]
    Matrix(MatrixOptions),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = handle_signals() {
        eprintln!("setup error: cannot handle signals: {error}");
        return ExitCode::from(Failure::Setup.code());
    }
    let mut progress = Progress::new(false);
    let result = match &cli.command {
        Command::Run(options) => options
            .lane(&mut progress)
            .and_then(|lane| dev::run_and_print(&lane, &mut progress))
            .map(code),
        Command::Dev(options) => dev::run(options, &mut progress).map(code),
        Command::Demo(options) => demo::run(options, &mut progress).map(code),
        Command::Matrix(options) => matrix::cli::main(options, &mut progress),
    };
    progress.clear();
    let interrupted = lane::INTERRUPTED
        .load(Ordering::Relaxed)
        .then_some(Failure::Interrupted);
    match result {
        Ok(_) if interrupted.is_some() => exit_code(interrupted),
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("setup error: {error:#}");
            exit_code(interrupted.or(Some(Failure::Setup)))
        }
    }
}

fn code(verdict: Option<Failure>) -> u8 {
    verdict.map_or(0, Failure::code)
}

/// The first SIGINT, SIGTERM or SIGHUP ends the run in order; a second one of the same kind ends the launcher, and the
/// kernel then kills its children.
fn handle_signals() -> std::io::Result<()> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(Failure::Interrupted.code()),
            Arc::clone(&raised),
        )?;
        signal_hook::flag::register(signal, Arc::clone(&raised))?;
    }
    // The loop looks at a plain static; this thread carries the flag there.
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while !raised.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            lane::INTERRUPTED.store(true, Ordering::Relaxed);
        })?;
    Ok(())
}

//! `show`: a recording as a page, or a running device in the terminal.
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::coverage;
use super::exit::Exit;
use super::target::Target;
use crate::live;
use crate::observe::coverage::Coverage;
use crate::record::show::Watcher;
use crate::record::{Replay, page};

/// Printed after the help.
pub const NOTES: &str = "\
The live view asks the server's control socket; the device does not notice. Up and down choose a device, q ends. Of a \
ring it shows head, tail, size and the descriptors left, and a bar with the head as a dot and the work after it. If \
stdout is not a terminal, one frame is printed as plain text. If the server goes away, the last frame stays, and the \
view goes on when it is back.

  neuron-vfio-user show --live --socket /tmp/nd0.sock";

/// Options of `show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// The recording, as --record made it
    #[arg(required_unless_present = "live", conflicts_with_all = ["live", "server"])]
    file: Option<PathBuf>,

    /// Where to write the page [default: the recording's path with .html appended]
    #[arg(long, short, value_name = "PATH", conflicts_with = "live")]
    output: Option<PathBuf>,

    /// Show a running server: rings with head and tail, rates, last events
    #[arg(long, requires = "server")]
    live: bool,

    /// Time between two looks, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u16).range(50..), requires = "live")]
    interval: u16,

    #[command(flatten)]
    target: Target,
}

impl ShowArgs {
    /// Writes the page and names it.
    pub fn run(self) -> Exit {
        let Some(file) = self.file else {
            return live(self.target, Duration::from_millis(self.interval.into()));
        };
        match page_of(file, self.output) {
            Ok(path) => {
                super::print(&format!("{}\n", path.display()));
                Exit::Ok
            }
            Err(error) => {
                eprintln!("error: {error}");
                Exit::Failed
            }
        }
    }
}

/// Shows a running server.
fn live(target: Target, interval: Duration) -> Exit {
    let Some(control) = target.control() else {
        eprintln!("error: give --control, --socket or --socket-dir");
        return Exit::Usage;
    };
    match live::run(&control, interval) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!(
                "error: {}: {error}; is `serve` running, with this control socket?",
                control.display()
            );
            Exit::Unreachable
        }
    }
}

fn page_of(file: PathBuf, output: Option<PathBuf>) -> Result<PathBuf, String> {
    let name = file.display().to_string();
    let fail = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    let content = std::fs::read(&file).map_err(|error| fail(&error))?;
    let mut replay = Replay::tolerant(content).map_err(|error| fail(&error))?;
    let header = replay.header().clone();
    let config = header.config().map_err(|error| fail(&error))?;
    let (watcher, registers) = (Watcher::default(), Coverage::default());
    replay.observe(Box::new(watcher.clone()));
    replay.observe(Box::new(registers.clone()));
    if let Err(error) = replay.run() {
        eprintln!("note: {name}: only up to there: {error}");
    }
    let seen = watcher.seen();
    let report = coverage::report(&registers, &config).map_err(|error| fail(&error))?;
    let subtitle = format!(
        "{} on platform {}, {:.3} s of device time, recorded by version {}",
        header.product,
        header.platform,
        seen.end.as_secs_f64(),
        header.version
    );
    let page = page::render(
        &name,
        &subtitle,
        &seen,
        &report,
        config.product.generation(),
    );
    let path = output.unwrap_or_else(|| {
        let mut path = file.into_os_string();
        path.push(".html");
        path.into()
    });
    std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

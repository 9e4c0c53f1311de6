//! `coverage`: which registers a driver used.
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tracing::error;

use super::exit::Exit;
use crate::control::report::Parts;
use crate::function::{Config, NeuronFunction};
use crate::observe::coverage::{Coverage, Diff, Report};
use crate::record::Replay;

/// Options of `coverage`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CoverageArgs {
    #[command(subcommand)]
    command: Option<Command>,

    /// A recording (serve --record), or what serve --coverage wrote
    #[arg(required = true)]
    file: Option<PathBuf>,

    /// Print JSON, which `coverage` reads as well
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What changed between two driver versions or products
    Diff {
        /// The first: a recording or coverage
        a: PathBuf,
        /// The second
        b: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl CoverageArgs {
    /// Prints what was asked for.
    pub fn run(self) -> Exit {
        let text = match (&self.command, &self.file) {
            (Some(Command::Diff { a, b, json }), _) => diff(a, b, *json),
            (None, Some(file)) => read(file).map(|report| {
                if self.json {
                    json_of(&report)
                } else {
                    report.table()
                }
            }),
            (None, None) => Err("name a recording".to_owned()),
        };
        match text {
            Ok(text) => {
                super::print(&text);
                Exit::Ok
            }
            Err(error) => {
                eprintln!("error: {error}");
                Exit::Failed
            }
        }
    }
}

fn diff(a: &Path, b: &Path, json: bool) -> Result<String, String> {
    let (first, second) = (read(a)?, read(b)?);
    let diff = Diff::new(&first, &second);
    if json {
        return Ok(json_of(&diff));
    }
    Ok(format!(
        "- {} ({} on {})\n+ {} ({} on {})\n{}",
        a.display(),
        first.product,
        first.platform,
        b.display(),
        second.product,
        second.platform,
        diff.table()
    ))
}

fn json_of<T: serde::Serialize>(value: &T) -> String {
    let text = serde_json::to_string_pretty(value);
    text.unwrap_or_else(|error| error.to_string()) + "\n"
}

fn read(path: &Path) -> Result<Report, String> {
    let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = std::fs::read(path).map_err(|error| fail(&error))?;
    if file.first() == Some(&b'{') {
        return serde_json::from_slice(&file).map_err(|error| fail(&error));
    }
    let mut replay = Replay::tolerant(file).map_err(|error| fail(&error))?;
    let config = replay.header().config().map_err(|error| fail(&error))?;
    let coverage = Coverage::default();
    replay.observe(Box::new(coverage.clone()));
    if let Err(error) = replay.run() {
        eprintln!("note: {}: only up to there: {error}", path.display());
    }
    report(&coverage, &config).map_err(|error| fail(&error))
}

/// What was touched, held against a spare device.
///
/// # Errors
/// No memory for it.
pub fn report(coverage: &Coverage, config: &Config) -> std::io::Result<Report> {
    let mut spare = NeuronFunction::new(*config)?;
    Ok(coverage.report(config, |offset| spare.has_behaviour(offset)))
}

/// Has it written into reports.
pub fn add_to(parts: &mut Parts, coverage: &Coverage, config: Config) {
    let coverage = coverage.clone();
    parts.add("coverage.json", move || {
        // Without memory for a spare device there is nothing to hold it against.
        let written = report(&coverage, &config).map(|report| json_of(&report));
        written
            .unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}\n"))
            .into_bytes()
    });
}

/// `--coverage` of `serve`.
#[derive(Args, Clone, Debug)]
pub struct LiveCoverageArgs {
    /// At the end, write which registers the driver used to FILE, as JSON for `coverage`. With --devices N > 1 the files
    /// are FILE.0 to FILE.(N-1)
    #[arg(long, value_name = "FILE")]
    coverage: Option<PathBuf>,
}

/// The files and what goes into them.
#[derive(Debug, Default)]
pub struct Coverages {
    files: Vec<(PathBuf, File)>,
    running: Vec<(PathBuf, File, Coverage, Config)>,
}

impl LiveCoverageArgs {
    /// Opens the files of `devices` devices.
    ///
    /// # Errors
    /// A sentence that names the option, the file and the reason.
    pub fn open(&self, devices: usize) -> Result<Coverages, String> {
        let Some(path) = &self.coverage else {
            return Ok(Coverages::default());
        };
        Ok(Coverages {
            files: super::record::open("coverage", path, devices)?,
            running: Vec::new(),
        })
    }
}

impl Coverages {
    /// The counter of the next device, if it has a file or is `wanted` all the same.
    pub fn start(&mut self, config: &Config, wanted: bool) -> Option<Coverage> {
        if self.files.is_empty() {
            return wanted.then(Coverage::default);
        }
        let (path, file) = self.files.remove(0);
        let coverage = Coverage::default();
        self.running.push((path, file, coverage.clone(), *config));
        Some(coverage)
    }

    /// Writes all of them.
    pub fn close(self) {
        for (path, mut file, coverage, config) in self.running {
            let written = report(&coverage, &config)
                .and_then(|report| file.write_all(json_of(&report).as_bytes()));
            if let Err(error) = written {
                error!("--coverage {}: {error}", path.display());
                crate::outputs::lost();
            }
        }
    }
}

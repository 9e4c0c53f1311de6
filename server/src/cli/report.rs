//! `--report`: what each device has to say, in files.
use std::path::PathBuf;

use clap::Args;

use crate::control::report::{ReportDir, Reporter};

/// Where reports go.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Write reports into this directory, made if it is missing: for each device status, dump, budget, register coverage
    /// and findings, whenever a client leaves and at the end (docs/ci.md has the list). Each file is replaced at once, never half written
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

impl ReportArgs {
    /// Opens the directory, while the process still may.
    ///
    /// # Errors
    /// A sentence that names the option and the reason.
    pub fn open(&self) -> Result<Option<ReportDir>, String> {
        let open = |path| ReportDir::open(path).map_err(|error| format!("--report {error}"));
        self.report.as_deref().map(open).transpose()
    }

    /// Starts what writes into it.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(directory: ReportDir) -> Result<Reporter, String> {
        Reporter::start(directory).map_err(|error| format!("--report: {error}"))
    }
}

//! What is known about each cell, as it is kept in `results.json`.
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use crate::guest_line::Verdict;
use crate::outcome::{Failure, Finding};
use crate::report::Report;

/// Changed when an older launcher could misread the file.
const FORMAT: u32 = 1;
/// A results file of a sensible matrix has a few megabytes.
const MAX_FILE: u64 = 256 << 20;

/// How a cell stands.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Every attempt passed.
    Passed,
    /// Every attempt passed, but for scenarios that ended by a known defect of the driver, which was seen.
    KnownDefect,
    /// Every attempt failed.
    Failed,
    /// Some attempts passed and some failed: not a pass.
    Flaky,
    /// The driver itself does not drive this product; the cause is given.
    NotSupported,
    /// Wanted, and there is no result; the cause is given.
    NotRun,
}

impl Status {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::KnownDefect => "known defect",
            Self::Failed => "FAIL",
            Self::Flaky => "FLAKY",
            Self::NotSupported => "not supported",
            Self::NotRun => "NOT RUN",
        }
    }
}

/// One scenario on one device.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct ScenarioRecord {
    /// Name.
    pub name: String,
    /// Device number or `all`.
    pub device: String,
    /// `pass`, `fail`, `hang`, `not-offered` or `known-defect`.
    pub result: String,
    /// Why, if not passed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Milliseconds.
    pub millis: f64,
}

/// The result of a scenario that passed.
pub const PASS: &str = "pass";
/// The result of a scenario for which the driver has no ioctl.
pub const NOT_OFFERED: &str = "not-offered";
/// The result of a scenario that ended by a known defect of the driver.
pub const KNOWN_DEFECT: &str = "known-defect";

/// Something that went wrong.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct FindingRecord {
    /// The kind, as in `scripts/guest`.
    pub kind: String,
    /// Exit code of `scripts/guest` for it.
    pub code: u8,
    /// The evidence.
    pub text: String,
}

impl From<&Finding> for FindingRecord {
    fn from(finding: &Finding) -> Self {
        Self {
            kind: finding.failure.to_string(),
            code: finding.failure.code(),
            text: finding.text.clone(),
        }
    }
}

/// One boot of a cell.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct Attempt {
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// What went wrong, most telling first; empty: it passed.
    pub findings: Vec<FindingRecord>,
    /// Results in the order of their end.
    pub scenarios: Vec<ScenarioRecord>,
    /// Warnings of the guest's kernel that were passed over, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// `uname -r` of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Version that the loaded driver stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// Logs, relative to the results; kept if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
}

impl Attempt {
    /// From a run.
    pub fn of(report: &Report, started: String, release: Option<String>) -> Self {
        let mut findings: Vec<&Finding> = report.findings.iter().collect();
        findings.sort_by_key(|f| f.failure);
        let scenarios = report.scenarios.iter().map(|s| ScenarioRecord {
            name: s.name.clone(),
            device: s.device.clone(),
            result: match s.verdict {
                Verdict::Pass => PASS,
                Verdict::Fail => "fail",
                Verdict::Hang => "hang",
                Verdict::NotOffered => NOT_OFFERED,
                Verdict::KnownDefect => KNOWN_DEFECT,
            }
            .to_owned(),
            reason: s.reason.clone(),
            millis: s.millis,
        });
        Self {
            started,
            seconds: report.elapsed.as_secs_f64(),
            findings: findings.into_iter().map(Into::into).collect(),
            scenarios: scenarios.collect(),
            ignored: report.harmless.clone(),
            release,
            driver_version: report.driver_version.clone(),
            logs: None,
        }
    }

    /// It could not be run.
    pub fn setup_error(error: &anyhow::Error, started: String, seconds: f64) -> Self {
        let finding = Finding::new(Failure::Setup, format!("{error:#}"));
        Self {
            started,
            seconds,
            findings: vec![(&finding).into()],
            ..Self::default()
        }
    }

    /// Nothing went wrong.
    pub fn passed(&self) -> bool {
        self.findings.is_empty()
    }

    /// It was stopped by a signal, which says nothing about the cell.
    pub fn interrupted(&self) -> bool {
        self.findings
            .iter()
            .any(|f| f.code == Failure::Interrupted.code())
    }

    /// How many scenario results are of a kind.
    pub fn count(&self, result: &str) -> usize {
        self.scenarios.iter().filter(|s| s.result == result).count()
    }

    /// Scenarios with this result and the reason, each once.
    pub fn with_result(&self, result: &str) -> BTreeMap<&str, &str> {
        self.scenarios
            .iter()
            .filter(|s| s.result == result)
            .map(|s| (s.name.as_str(), s.reason.as_str()))
            .collect()
    }
}

/// One cell.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct CellRecord {
    /// Its name, by which `--cell` runs it again.
    pub name: String,
    /// How it stands.
    pub status: Status,
    /// Why it is not supported or was not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Device model.
    pub product: String,
    /// Platform.
    pub platform: String,
    /// Name of the guest kernel.
    pub kernel: String,
    /// Driver version, or `own`.
    pub driver: String,
    /// Devices in the guest.
    pub devices: u8,
    /// Scenario set.
    pub scenarios: String,
    /// Every boot, in order: a retry never replaces what came before it.
    pub attempts: Vec<Attempt>,
}

impl CellRecord {
    /// A cell without a result.
    pub fn new(cell: &Cell) -> Self {
        let mut record = Self {
            name: cell.name(),
            status: Status::NotRun,
            cause: Some("the matrix ended before it".to_owned()),
            product: cell.product.to_string(),
            platform: cell.platform.to_string(),
            kernel: cell.kernel.name.clone(),
            driver: cell.driver.label.clone(),
            devices: cell.devices,
            scenarios: cell.scenarios.clone(),
            attempts: Vec::new(),
        };
        if let Some(cause) = cell.unsupported() {
            record.status = Status::NotSupported;
            record.cause = Some(cause);
        }
        record
    }

    /// Takes further attempts in.
    pub fn add(&mut self, attempts: impl IntoIterator<Item = Attempt>) {
        self.attempts.extend(attempts);
        let passed = self.attempts.iter().filter(|a| a.passed()).count();
        self.status = match (passed, self.attempts.len()) {
            (_, 0) => return,
            (0, _) => Status::Failed,
            (passed, all) if passed == all => {
                if self.attempts.iter().any(|a| a.count(KNOWN_DEFECT) > 0) {
                    Status::KnownDefect
                } else {
                    Status::Passed
                }
            }
            _ => Status::Flaky,
        };
        self.cause = None;
    }

    /// It has no result, and why.
    pub fn not_run(&mut self, cause: impl Into<String>) {
        self.status = Status::NotRun;
        self.cause = Some(cause.into());
    }
}

/// With what and when.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Made {
    /// First start, RFC 3339, UTC.
    pub started: String,
    /// Last end.
    pub ended: String,
    /// Revision of this project.
    pub revision: String,
    /// QEMU's version.
    pub qemu: String,
    /// `kvm` or `tcg`.
    pub accel: String,
}

/// A whole matrix, or a shard of one.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Results {
    /// `FORMAT`.
    pub format: u32,
    /// `I/N`, if it is a part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// With what and when.
    pub made: Vec<Made>,
    /// Every cell of the matrix, those of other shards too, so that a lost shard is noticed.
    pub planned: Vec<String>,
    /// The cells of this part.
    pub cells: Vec<CellRecord>,
}

/// Name of the file in `--out`.
pub const RESULTS: &str = "results.json";

impl Results {
    /// Cells that wait to be run.
    pub fn new(shard: Option<String>, made: Made, planned: Vec<String>, cells: &[Cell]) -> Self {
        Self {
            format: FORMAT,
            shard,
            made: vec![made],
            planned,
            cells: cells.iter().map(CellRecord::new).collect(),
        }
    }

    /// How many cells stand so.
    pub fn count(&self, status: Status) -> usize {
        self.cells.iter().filter(|c| c.status == status).count()
    }

    /// The failure that the exit code tells; see [`super::EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        let failed = self.cells.iter().filter(|c| c.status == Status::Failed);
        let only_setup = |cell: &CellRecord| {
            cell.attempts
                .last()
                .and_then(|a| a.findings.first())
                .is_some_and(|f| f.code == Failure::Setup.code())
        };
        let (setup, real): (Vec<_>, Vec<_>) = failed.partition(|c| only_setup(c));
        if !real.is_empty() {
            Failure::Scenario.code()
        } else if !setup.is_empty() || self.count(Status::NotRun) > 0 {
            Failure::Setup.code()
        } else if self.count(Status::Flaky) > 0 {
            super::FLAKY
        } else {
            0
        }
    }

    /// Reads a results file.
    ///
    /// # Errors
    /// No such file, not one of ours, or one of a newer launcher.
    pub fn read(file: &Path) -> Result<Self> {
        let size = std::fs::metadata(file)
            .with_context(|| format!("{} cannot be read", file.display()))?
            .len();
        if size > MAX_FILE {
            bail!("{} has {size} bytes: no results file", file.display());
        }
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("{} cannot be read", file.display()))?;
        let results: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no results file of scripts/matrix", file.display()))?;
        if results.format != FORMAT {
            bail!(
                "{} has format {}, this launcher reads {FORMAT}: use launchers of one version",
                file.display(),
                results.format
            );
        }
        Ok(results)
    }
}

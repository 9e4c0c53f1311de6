//! `neuron-guest matrix`: its options, and what people see of it.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use neuron_protocol::generation::{Platform, Product};

use super::cell::{ALL_SCENARIOS, Cell};
use super::drivers::{self, Folder};
use super::plan::{self, Dimensions, Shard};
use super::record::{
    Attempt, CellRecord, KNOWN_DEFECT, NOT_OFFERED, PASS, RESULTS, Results, Status,
};
use super::run::{self, Event, How};
use super::{boot, junit, merge, table};
use crate::accel::Choice;
use crate::artifacts;
use crate::lane::INTERRUPTED;
use crate::progress::Progress;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct MatrixOptions {
    #[command(subcommand)]
    command: Option<MatrixCommand>,
    /// Drivers: one folder per kernel with module files, such as DIR/6.1/neuron-2.25.4.0.ko. A folder of another name
    /// holds its kernel as vmlinux or bzImage too. Without it, the module of this project
    #[arg(long, value_name = "DIR")]
    driver_dir: Option<PathBuf>,
    /// Products [default: trn1,inf2,trn2,trn3]
    #[arg(long, value_delimiter = ',')]
    product: Vec<Product>,
    /// Platforms [default: silicon,qemu,emulator]
    #[arg(long, value_delimiter = ',')]
    platform: Vec<Platform>,
    /// Kernels [default: every folder, or 6.1,6.12]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    kernel: Vec<String>,
    /// Scenarios of one boot, as for `run`; given several times, each makes cells of its own [default: all]
    #[arg(long, value_name = "A,B|all")]
    scenario: Vec<String>,
    /// Devices in each guest
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    devices: u8,
    /// Only cells of this name or pattern, such as 'trn1/*' (repeatable)
    #[arg(long, value_name = "NAME")]
    cell: Vec<String>,
    /// Only the cells of a named part; `ci` takes under three minutes
    #[arg(long, value_name = "NAME")]
    subset: Option<String>,
    /// Only every Nth part of the work; every machine must be given the same other options
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Print the cells and run nothing
    #[arg(long)]
    list: bool,
    /// Start nothing new after a cell has failed
    #[arg(long)]
    fail_fast: bool,
    /// Defects that drivers are known to have (docs/testing.md), as for `run`
    #[arg(long, value_name = "FILE.toml")]
    known: Option<PathBuf>,
    /// Guests at a time. Drivers' budgets are real time: with more guests than half the CPUs expect timeouts
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Further attempts for a cell that failed; one that passes then is shown as flaky
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    retries: u32,
    /// Where results.json, table.md, junit.xml and the logs of failed cells go [default: target/matrix]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Virtualisation
    #[arg(long, value_enum, default_value_t)]
    accel: Choice,
    /// Let guests live in virtual time (emulation only): what they sleep costs no time
    #[arg(long)]
    virtual_time: bool,
    /// Limit of one boot in seconds [default: 420, and 30 more for each further device]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
    /// Options of the device server (see `neuron-vfio-user serve --help`)
    #[arg(last = true, value_name = "SERVER OPTIONS")]
    server_args: Vec<OsString>,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum MatrixCommand {
    /// Join the results of shards or re-runs; cells that no part has are told as not run
    Merge {
        /// What `--out` was
        #[arg(required = true, value_name = "DIR")]
        dirs: Vec<PathBuf>,
        /// Where the joined results go [default: target/matrix]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Runs, lists or merges. Returns the exit code, see [`super::EXIT_CODES`].
///
/// # Errors
/// Setup errors.
pub fn main(options: &MatrixOptions, progress: &mut Progress) -> Result<u8> {
    if let Some(MatrixCommand::Merge { dirs, out }) = &options.command {
        let results = merge::directories(dirs)?;
        let out = out_dir(out.as_ref())?;
        save(&out, &results)?;
        for cell in &results.cells {
            println!("{}", cell_line(cell));
        }
        closing(&results, &out);
        return Ok(results.exit_code());
    }
    let planned = options.cells()?;
    let mine = match options.shard {
        Some(shard) => plan::shard(planned.clone(), shard),
        None => planned.clone(),
    };
    if options.list {
        for cell in &mine {
            match cell.unsupported() {
                Some(cause) => println!("{}\tnot supported: {cause}", cell.name()),
                None => println!("{}", cell.name()),
            }
        }
        return Ok(0);
    }
    options.run(&planned, &mine, progress)
}

impl MatrixOptions {
    fn folders(&self) -> Result<Vec<Folder>> {
        let mut folders = match &self.driver_dir {
            Some(dir) => drivers::discover(dir)?,
            None => drivers::own(),
        };
        for name in &self.kernel {
            if !folders.iter().any(|f| f.kernel.name == *name) {
                let known: Vec<&str> = folders.iter().map(|f| f.kernel.name.as_str()).collect();
                bail!(
                    "--kernel {name}: no drivers for it; there are {}",
                    known.join(", ")
                );
            }
        }
        if !self.kernel.is_empty() {
            folders.retain(|f| self.kernel.contains(&f.kernel.name));
        }
        Ok(folders)
    }

    /// The cells that the options name, those of other shards too.
    fn cells(&self) -> Result<Vec<Cell>> {
        let or = |given: &[String]| match given {
            [] => vec![ALL_SCENARIOS.to_owned()],
            some => unique(some),
        };
        let products = match &self.product[..] {
            [] => Product::ALL.to_vec(),
            some => unique(some),
        };
        let platforms = match &self.platform[..] {
            [] => Platform::ALL.to_vec(),
            some => unique(some),
        };
        let scenarios = or(&self.scenario);
        if let Some(bad) = scenarios.iter().find(|s| s.contains(['/', ' ', '\t'])) {
            bail!("--scenario {bad:?}: names with commas between, no spaces or slashes");
        }
        let dimensions = Dimensions {
            products: &products,
            platforms: &platforms,
            scenarios: &scenarios,
            devices: self.devices,
        };
        let mut cells = plan::enumerate(&self.folders()?, &dimensions);
        if let Some(name) = &self.subset {
            cells = plan::subset(cells, name)?;
        }
        cells = plan::select(cells, &self.cell)?;
        if cells.is_empty() {
            bail!("these options leave no cell; --list shows what there is");
        }
        Ok(cells)
    }

    fn run(&self, planned: &[Cell], mine: &[Cell], progress: &mut Progress) -> Result<u8> {
        let out = out_dir(self.out.as_ref())?;
        let (todo, excused): (Vec<Cell>, Vec<Cell>) = mine
            .iter()
            .cloned()
            .partition(|c| c.unsupported().is_none());
        let booter = boot::Booter::prepare(
            &todo,
            &boot::BootOptions {
                accel: self.accel,
                virtual_time: self.virtual_time,
                timeout: self.timeout,
                known: self.known.clone(),
                server_args: self.server_args.clone(),
                out: out.clone(),
            },
            progress,
        )?;
        let names: Vec<String> = planned.iter().map(Cell::name).collect();
        let shard = self.shard.map(|s| s.to_string());
        let mut results = Results::new(shard, booter.made(now()), names, mine);
        save(&out, &results)?;
        for cell in &excused {
            println!("{}", cell_line(&CellRecord::new(cell)));
        }
        let how = How {
            jobs: usize::from(self.jobs),
            retries: self.retries,
            fail_fast: self.fail_fast,
        };
        let mut board = Board::new(&todo);
        let mut trouble: Option<anyhow::Error> = None;
        run::all(
            &todo,
            how,
            &|cell, number, step| booter.boot(cell, number, step),
            &mut |event| {
                board.take(&event);
                match event {
                    Event::Ended(at, attempts) => {
                        let name = todo[at].name();
                        if let Some(cell) = results.cells.iter_mut().find(|c| c.name == name) {
                            if attempts.is_empty() {
                                cell.not_run("interrupted");
                            }
                            cell.add(attempts);
                            progress.clear();
                            println!("{}  {}", board.counter(), cell_line(cell));
                            self.explain(cell, &out);
                        }
                        if let Some(made) = results.made.last_mut() {
                            made.ended = now();
                        }
                        // A killed matrix keeps what it knows.
                        trouble = save(&out, &results).err().or(trouble.take());
                    }
                    Event::Started(at) => {
                        progress.step(format!("{}  {}", board.counter(), todo[at].name()));
                    }
                    Event::Step(..) => progress.rename(board.line(&todo)),
                    Event::Tick => progress.tick(),
                }
            },
        );
        progress.clear();
        let cause = if INTERRUPTED.load(Ordering::Relaxed) {
            "interrupted"
        } else {
            "--fail-fast: a cell before it failed"
        };
        for cell in results
            .cells
            .iter_mut()
            .filter(|c| c.status == Status::NotRun)
        {
            cell.not_run(cause);
            println!("{}", cell_line(cell));
        }
        save(&out, &results)?;
        if let Some(error) = trouble {
            return Err(error);
        }
        closing(&results, &out);
        Ok(results.exit_code())
    }

    /// What went wrong with a cell, and how to run it again.
    fn explain(&self, cell: &CellRecord, out: &Path) {
        if !matches!(cell.status, Status::Failed | Status::Flaky) {
            return;
        }
        for attempt in &cell.attempts {
            for finding in attempt.findings.iter().take(5) {
                println!("        {}: {}", finding.kind, finding.text);
            }
            if let Some(logs) = &attempt.logs {
                println!("        logs: {}", out.join(logs).display());
            }
        }
        println!("        run it again: {}", self.again(cell));
    }

    fn again(&self, cell: &CellRecord) -> String {
        let mut words = vec!["scripts/matrix".to_owned()];
        if let Some(dir) = &self.driver_dir {
            words.extend(["--driver-dir".to_owned(), quote(&dir.to_string_lossy())]);
        }
        if let Some(file) = &self.known {
            words.extend(["--known".to_owned(), quote(&file.to_string_lossy())]);
        }
        if cell.devices != 1 {
            words.extend(["--devices".to_owned(), cell.devices.to_string()]);
        }
        if cell.scenarios != ALL_SCENARIOS {
            words.extend(["--scenario".to_owned(), quote(&cell.scenarios)]);
        }
        if self.virtual_time {
            words.push("--virtual-time".to_owned());
        }
        words.extend(["--cell".to_owned(), quote(&cell.name)]);
        if !self.server_args.is_empty() {
            words.push("--".to_owned());
            words.extend(self.server_args.iter().map(|a| quote(&a.to_string_lossy())));
        }
        words.join(" ")
    }
}

fn unique<T: Clone + PartialEq>(given: &[T]) -> Vec<T> {
    let mut list: Vec<T> = Vec::new();
    for item in given {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
    list
}

/// How far the list is.
struct Board {
    start: Instant,
    costs: Vec<u32>,
    steps: BTreeMap<usize, String>,
    done: usize,
    done_cost: u64,
}

impl Board {
    fn new(todo: &[Cell]) -> Self {
        Self {
            start: Instant::now(),
            costs: todo.iter().map(Cell::cost).collect(),
            steps: BTreeMap::new(),
            done: 0,
            done_cost: 0,
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Started(at) => {
                self.steps.insert(*at, "starting".to_owned());
            }
            Event::Step(at, text) => {
                self.steps.insert(*at, text.clone());
            }
            Event::Ended(at, _) => {
                self.steps.remove(at);
                self.done += 1;
                self.done_cost += u64::from(self.costs[*at]);
            }
            Event::Tick => {}
        }
    }

    fn counter(&self) -> String {
        let eta = eta(
            self.start.elapsed(),
            self.done_cost,
            self.costs.iter().map(|c| u64::from(*c)).sum(),
        );
        format!("[{}/{}, ETA {}]", self.done, self.costs.len(), minutes(eta))
    }

    fn line(&self, todo: &[Cell]) -> String {
        let running: Vec<String> = self
            .steps
            .iter()
            .map(|(at, step)| format!("{}: {step}", todo[*at].name()))
            .collect();
        format!("{}  {}", self.counter(), running.join(" | "))
    }
}

/// Remaining time: the estimates, scaled by how right they were so far.
fn eta(elapsed: Duration, done: u64, total: u64) -> Duration {
    let left = total.saturating_sub(done);
    if done == 0 {
        return Duration::from_secs(left).saturating_sub(elapsed);
    }
    elapsed.saturating_mul(u32::try_from(left).unwrap_or(u32::MAX))
        / u32::try_from(done).unwrap_or(u32::MAX)
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

fn cell_line(cell: &CellRecord) -> String {
    let rest = match (cell.status, cell.attempts.last()) {
        (Status::NotSupported | Status::NotRun, _) | (_, None) => {
            cell.cause.clone().unwrap_or_default()
        }
        (_, Some(last)) => {
            let absent = match last.count(NOT_OFFERED) {
                0 => String::new(),
                n => format!(", {n} not offered by the driver"),
            };
            let known = match last.count(KNOWN_DEFECT) {
                0 => String::new(),
                n => format!(", {n} by a known defect of the driver"),
            };
            let tries = match cell.attempts.len() {
                1 => String::new(),
                n => format!(
                    ", {} of {n} attempts failed",
                    cell.attempts.iter().filter(|a| !a.passed()).count()
                ),
            };
            format!(
                "{:6.1} s  {} passed{known}{absent}{tries}",
                seconds(cell),
                last.count(PASS)
            )
        }
    };
    format!("{:<13} {:<34} {rest}", cell.status.word(), cell.name)
}

fn seconds(cell: &CellRecord) -> f64 {
    cell.attempts.iter().map(|a: &Attempt| a.seconds).sum()
}

fn closing(results: &Results, out: &Path) {
    println!("\n{}", table::write(results));
    println!(
        "results   {}/{{table.md,junit.xml,{RESULTS}}}",
        out.display()
    );
    println!(
        "matrix result: {} passed; {} with a known defect; {} failed; {} flaky; {} not supported; {} not run",
        results.count(Status::Passed),
        results.count(Status::KnownDefect),
        results.count(Status::Failed),
        results.count(Status::Flaky),
        results.count(Status::NotSupported),
        results.count(Status::NotRun)
    );
}

fn out_dir(given: Option<&PathBuf>) -> Result<PathBuf> {
    let out = given.map_or_else(|| artifacts::target().join("matrix"), PathBuf::clone);
    std::fs::create_dir_all(&out)
        .with_context(|| format!("--out {} cannot be made", out.display()))?;
    Ok(out)
}

fn save(out: &Path, results: &Results) -> Result<()> {
    let json = serde_json::to_string_pretty(results)?;
    for (name, text) in [
        (RESULTS, json),
        ("table.md", table::write(results)),
        ("junit.xml", junit::write(results)?),
    ] {
        // A reader never finds half a file.
        let file = out.join(name);
        let new = out.join(format!(".{name}.new"));
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &file))
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}

/// The time in UTC to the second.
pub(super) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./,+:=@~".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::matrix::samples;
    use crate::module::tests::module_file;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        matrix: MatrixOptions,
    }

    fn parse(line: &str) -> MatrixOptions {
        Line::try_parse_from(std::iter::once("matrix").chain(line.split_whitespace()))
            .unwrap()
            .matrix
    }

    fn names(line: &str) -> Vec<String> {
        parse(line)
            .cells()
            .unwrap()
            .iter()
            .map(Cell::name)
            .collect()
    }

    #[test]
    fn options_narrow_the_grid() {
        assert_eq!(names("").len(), 4 * 3 * 2);
        assert_eq!(
            names("--product trn1,trn3 --platform qemu --kernel 6.12"),
            ["trn1/qemu/6.12/own", "trn3/qemu/6.12/own"]
        );
        assert_eq!(
            names("--product trn1 --platform qemu --kernel 6.1 --scenario info --scenario all"),
            ["trn1/qemu/6.1/own/info", "trn1/qemu/6.1/own"]
        );
        let error = |line| parse(line).cells().unwrap_err().to_string();
        assert!(error("--kernel 5.10").contains("6.1, 6.12"));
        assert!(error("--subset ci --cell trn1/qemu/6.1/own").contains("--list"));
    }

    #[test]
    fn a_failed_cell_is_run_again_by_what_is_printed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("6.1");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("n.ko"), module_file("2.24.7.0", &[0x7164])).unwrap();
        let options = parse(&format!(
            "--driver-dir {} --scenario info --devices 2 --product trn1 --platform qemu",
            dir.path().display()
        ));
        let cells = options.cells().unwrap();
        let line = options.again(&CellRecord::new(&cells[0]));
        let again = parse(line.strip_prefix("scripts/matrix").unwrap());
        assert_eq!(again.cells().unwrap(), cells);
    }

    #[test]
    fn time_left_follows_the_work_left() {
        let second = Duration::from_secs(1);
        assert_eq!(eta(second * 60, 30, 90), second * 120);
        assert_eq!(eta(second * 5, 0, 90), second * 85);
        assert_eq!(eta(second * 60, 90, 90), Duration::ZERO);
        assert_eq!(minutes(second * 125), "2:05");
    }

    #[test]
    fn exit_code_tells_the_worst_and_flaky_is_no_success() {
        let mut results = samples::every_status();
        assert_eq!(results.exit_code(), 1);
        results.cells.retain(|c| c.status != Status::Failed);
        assert_eq!(results.exit_code(), 2);
        results.cells.retain(|c| c.status != Status::NotRun);
        assert_eq!(results.exit_code(), super::super::FLAKY);
        results.cells.retain(|c| c.status != Status::Flaky);
        assert_eq!(results.exit_code(), 0);
    }

    #[test]
    fn results_are_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let results = samples::every_status();
        save(dir.path(), &results).unwrap();
        assert_eq!(Results::read(&dir.path().join(RESULTS)).unwrap(), results);
        assert!(dir.path().join("table.md").is_file() && dir.path().join("junit.xml").is_file());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}

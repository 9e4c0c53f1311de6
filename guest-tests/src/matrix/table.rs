//! The Markdown table: a row per driver, product and scenario set, a column per kernel and platform, causes below.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::cell::{ALL_SCENARIOS, OWN};
use super::record::{Attempt, CellRecord, KNOWN_DEFECT, NOT_OFFERED, PASS, Results, Status};

/// Longest text of a note; the results file has all of it.
const MAX_NOTE: usize = 300;

/// Notes below the table, each text once.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn mark(&mut self, text: String) -> String {
        let at = self.0.iter().position(|n| *n == text).unwrap_or_else(|| {
            self.0.push(text);
            self.0.len() - 1
        });
        format!("[{}]", at + 1)
    }
}

/// The table with its legend and provenance.
pub fn write(results: &Results) -> String {
    let mut columns: Vec<(String, String)> = Vec::new();
    let mut rows: Vec<(&str, String, &str)> = Vec::new();
    let mut cells: BTreeMap<(usize, usize), &CellRecord> = BTreeMap::new();
    for cell in &results.cells {
        let column = position(&mut columns, (cell.kernel.clone(), cell.platform.clone()));
        let row = position(&mut rows, (&cell.driver, model(cell), &cell.scenarios));
        cells.insert((row, column), cell);
    }
    let sets: BTreeSet<&str> = rows.iter().map(|r| r.2).collect();
    let with_scenarios = sets.iter().any(|s| *s != ALL_SCENARIOS);
    let mut notes = Notes::default();
    let mut out = String::new();
    let mut line = |cells: &[String]| {
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    };
    let mut head = vec!["driver".to_owned(), "product".to_owned()];
    if with_scenarios {
        head.push("scenarios".to_owned());
    }
    let fixed = head.len();
    head.extend(
        columns
            .iter()
            .map(|(kernel, platform)| format!("{kernel} {platform}")),
    );
    line(&head);
    let rule = (0..head.len()).map(|n| if n < fixed { "---" } else { "---:" }.to_owned());
    line(&rule.collect::<Vec<_>>());
    for (at, (driver, model, scenarios)) in rows.iter().enumerate() {
        let driver = if *driver == OWN {
            "this project's"
        } else {
            driver
        };
        let mut fields = vec![plain(driver), model.clone()];
        if with_scenarios {
            fields.push(plain(scenarios));
        }
        fields.extend((0..columns.len()).map(|column| {
            // A combination that was not part of the matrix.
            cells
                .get(&(at, column))
                .map_or_else(|| "-".to_owned(), |cell| field(cell, &mut notes))
        }));
        line(&fields);
    }
    out.push('\n');
    out.push_str("Numbers are scenario results that passed; `n/o` are scenarios for which the driver has no ioctl.\n");
    for (number, note) in (1..).zip(&notes.0) {
        let _ = writeln!(out, "\n[{number}] {note}");
    }
    out.push_str(&provenance(results));
    out
}

fn position<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|i| *i == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

fn model(cell: &CellRecord) -> String {
    match cell.devices {
        1 => plain(&cell.product),
        n => format!("{n} x {}", plain(&cell.product)),
    }
}

fn field(cell: &CellRecord, notes: &mut Notes) -> String {
    let cause = || plain(cell.cause.as_deref().unwrap_or("no cause given"));
    match (cell.status, cell.attempts.last()) {
        (Status::NotSupported, _) => {
            format!(
                "not supported {}",
                notes.mark(format!("not supported: {}", cause()))
            )
        }
        (Status::NotRun, _) | (_, None) => {
            format!(
                "**not run** {}",
                notes.mark(format!("not run: {}", cause()))
            )
        }
        (Status::Passed | Status::KnownDefect, Some(last)) => counts(last, notes),
        (Status::Failed, Some(last)) => {
            format!(
                "**FAIL** {}",
                notes.mark(format!("{}: {}", cell.name, what(last)))
            )
        }
        (Status::Flaky, Some(_)) => {
            let failed = cell.attempts.iter().filter(|a| !a.passed());
            let texts: Vec<String> = failed.map(what).collect();
            let text = format!(
                "{}: {} of {} attempts failed: {}",
                cell.name,
                texts.len(),
                cell.attempts.len(),
                texts.join("; ")
            );
            format!("**flaky** {}", notes.mark(text))
        }
    }
}

fn counts(attempt: &Attempt, notes: &mut Notes) -> String {
    let passed = attempt.count(PASS);
    let mut text = passed.to_string();
    for (result, short, long) in [
        (KNOWN_DEFECT, "known defect", "known defect of the driver"),
        (NOT_OFFERED, "n/o", "not offered by the driver"),
    ] {
        let absent = attempt.with_result(result);
        if absent.is_empty() {
            continue;
        }
        let names: Vec<String> = absent
            .iter()
            .map(|(name, reason)| format!("`{}` ({})", plain(name), plain(reason)))
            .collect();
        let note = notes.mark(format!("{long}: {}", names.join(", ")));
        let _ = write!(text, ", {} {short} {note}", absent.len());
    }
    if !attempt.ignored.is_empty() {
        let known: BTreeSet<String> = attempt.ignored.iter().map(|w| cause_of(w)).collect();
        let known: Vec<String> = known.into_iter().collect();
        let note = notes.mark(format!(
            "warning of the guest's kernel, not ours: {}",
            known.join(", ")
        ));
        let _ = write!(text, " {note}");
    }
    text
}

/// The reason for which a warning is passed over, without its address.
fn cause_of(warning: &str) -> String {
    plain(warning.split(": ").next().unwrap_or(warning))
}

fn what(attempt: &Attempt) -> String {
    let texts: Vec<String> = attempt
        .findings
        .iter()
        .map(|f| format!("{}: {}", f.kind, plain(&f.text)))
        .collect();
    let mut text = texts.join("; ");
    if let Some((cut, _)) = text.char_indices().nth(MAX_NOTE) {
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

/// What a guest printed must not make a column or a line of its own.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '|' => '/',
            '<' => '(',
            '>' => ')',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect()
}

fn provenance(results: &Results) -> String {
    let mut out = String::new();
    for made in &results.made {
        let _ = writeln!(
            out,
            "\nRun {} to {}, revision {}, QEMU {} ({}).",
            made.started, made.ended, made.revision, made.qemu, made.accel
        );
    }
    let releases: BTreeSet<String> = results
        .cells
        .iter()
        .flat_map(|c| {
            c.attempts
                .iter()
                .filter_map(|a| Some(format!("{} is {}", c.kernel, a.release.as_deref()?)))
        })
        .collect();
    if !releases.is_empty() {
        let releases: Vec<String> = releases.into_iter().collect();
        let _ = writeln!(out, "\nKernels: {}.", releases.join(", "));
    }
    let total = |status| results.count(status);
    let _ = writeln!(
        out,
        "\n{} cells: {} passed, {} with a known defect, {} failed, {} flaky, {} not supported, {} not run.",
        results.cells.len(),
        total(Status::Passed),
        total(Status::KnownDefect),
        total(Status::Failed),
        total(Status::Flaky),
        total(Status::NotSupported),
        total(Status::NotRun)
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::samples;

    #[test]
    fn every_cell_is_in_the_table_and_every_cause_below_it() {
        let text = write(&samples::every_status());
        let row = |start: &str| {
            text.lines()
                .find(|l| l.starts_with(start))
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(row("| driver"), "| driver | product | 6.1 qemu |");
        assert!(row("| 2.24.7.0 | trn1").contains("1, 1 n/o [1]"), "{text}");
        assert!(row("| 2.24.7.0 | inf2").contains("**FAIL** [2]"));
        assert!(row("| 2.24.7.0 | trn2").contains("**flaky** [3]"));
        assert!(row("| 2.24.7.0 | trn3").contains("not supported [4]"));
        assert!(row("| 2.25.4.0 | trn1").contains("**not run** [5]"));
        assert!(row("| 2.19.64.0 | trn1").contains("1, 1 known defect [6]"));
        assert!(row("[6]").contains("`past` (it frees what it never had)"));
        assert!(row("[1]").contains("`zero_copy` (ioctl 124: ENOTTY)"));
        assert!(row("[3]").contains("1 of 2 attempts failed"));
        assert!(row("[4]").contains("1d0f:7564"));
        assert!(text.contains("6 cells: 1 passed, 1 with a known defect, 1 failed, 1 flaky, 1 not supported, 1 not run."));
        assert!(text.contains("revision abc1234, QEMU 10.1.0 (tcg)"));
        assert!(text.contains("Kernels: 6.1 is 6.1.0-test."));
    }

    #[test]
    fn every_row_has_the_same_columns() {
        let mut results = samples::every_status();
        results.cells[1].scenarios = "info".into();
        results.cells[1].kernel = "6.12".into();
        let text = write(&results);
        let widths: BTreeSet<usize> = text
            .lines()
            .filter(|l| l.starts_with('|'))
            .map(|l| l.matches('|').count())
            .collect();
        assert_eq!(widths.len(), 1, "{text}");
        assert!(text.contains("| scenarios |"));
    }
}

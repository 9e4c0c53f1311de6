//! `JUnit` XML for CI systems: a suite per cell, a case per scenario and device, and one case for the run as a whole.
use std::time::Duration;

use anyhow::Result;
use quick_junit::{
    NonSuccessKind, Property, Report, TestCase, TestCaseStatus, TestRerun, TestSuite,
};

use super::record::{
    Attempt, CellRecord, KNOWN_DEFECT, NOT_OFFERED, PASS, Results, ScenarioRecord, Status,
};
use crate::outcome::Failure;

/// Case of what belongs to no scenario: oopses, the device's complaints, setup errors.
const WHOLE: &str = "run";

/// The report.
///
/// # Errors
/// The writer failed, which only a fault of ours can cause.
pub fn write(results: &Results) -> Result<String> {
    let mut report = Report::new("neuron-vfio-user matrix");
    let total: f64 = results
        .cells
        .iter()
        .flat_map(|c| &c.attempts)
        .map(|a| a.seconds)
        .sum();
    report.set_time(seconds(total));
    for cell in &results.cells {
        report.add_test_suite(suite(cell));
    }
    Ok(report.to_string()?)
}

fn suite(cell: &CellRecord) -> TestSuite {
    let mut suite = TestSuite::new(cell.name.as_str());
    for (name, value) in [
        ("product", &cell.product),
        ("platform", &cell.platform),
        ("kernel", &cell.kernel),
        ("driver", &cell.driver),
        ("scenarios", &cell.scenarios),
    ] {
        suite.add_property(Property::new(name, value.as_str()));
    }
    let mut whole = TestCase::new(WHOLE, status(cell));
    whole.set_classname(cell.name.as_str());
    if let Some(last) = cell.attempts.last() {
        suite.set_time(seconds(cell.attempts.iter().map(|a| a.seconds).sum()));
        whole.set_time(seconds(last.seconds));
        for scenario in &last.scenarios {
            suite.add_test_case(case(cell, scenario));
        }
    }
    suite.add_test_case(whole);
    suite
}

fn status(cell: &CellRecord) -> TestCaseStatus {
    let cause = cell.cause.as_deref().unwrap_or_default();
    match (cell.status, cell.attempts.split_last()) {
        (Status::NotSupported, _) => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(format!("not supported: {cause}"));
            status
        }
        (Status::NotRun, _) | (_, None) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
            status.set_message(format!("not run: {cause}"));
            status
        }
        (_, Some((last, before))) if last.passed() => {
            let mut status = TestCaseStatus::success();
            for failed in before.iter().filter(|a| !a.passed()) {
                status.add_rerun(rerun(failed));
            }
            status
        }
        (_, Some((last, before))) => {
            let mut status = TestCaseStatus::non_success(kind(last));
            status
                .set_message(headline(last))
                .set_description(details(last));
            for failed in before.iter().filter(|a| !a.passed()) {
                status.add_rerun(rerun(failed));
            }
            status
        }
    }
}

fn rerun(attempt: &Attempt) -> TestRerun {
    let mut rerun = TestRerun::new(kind(attempt));
    rerun
        .set_message(headline(attempt))
        .set_description(details(attempt))
        .set_time(seconds(attempt.seconds));
    rerun
}

/// A setup error says nothing about the driver.
fn kind(attempt: &Attempt) -> NonSuccessKind {
    match attempt.findings.first() {
        Some(first) if first.code == Failure::Setup.code() => NonSuccessKind::Error,
        _ => NonSuccessKind::Failure,
    }
}

fn headline(attempt: &Attempt) -> String {
    attempt
        .findings
        .first()
        .map(|f| clean(&format!("{}: {}", f.kind, f.text)))
        .unwrap_or_default()
}

fn details(attempt: &Attempt) -> String {
    let mut lines: Vec<String> = attempt
        .findings
        .iter()
        .map(|f| format!("{}: {}", f.kind, f.text))
        .collect();
    lines.extend(attempt.logs.iter().map(|logs| format!("logs: {logs}")));
    clean(&lines.join("\n"))
}

fn case(cell: &CellRecord, scenario: &ScenarioRecord) -> TestCase {
    let reason = clean(&scenario.reason);
    let status = match scenario.result.as_str() {
        PASS => TestCaseStatus::success(),
        NOT_OFFERED | KNOWN_DEFECT => {
            let mut status = TestCaseStatus::skipped();
            let why = match scenario.result.as_str() {
                NOT_OFFERED => "not offered by the driver",
                _ => "known defect of the driver",
            };
            status.set_message(format!("{why}: {reason}"));
            status
        }
        other => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_type(other).set_message(reason);
            status
        }
    };
    let mut case = TestCase::new(
        clean(&format!("{} nd{}", scenario.name, scenario.device)),
        status,
    );
    case.set_classname(cell.name.as_str())
        .set_time(seconds(scenario.millis / 1000.0));
    case
}

/// XML has no place for these two; the writer takes away the other characters that it has none for.
fn clean(text: &str) -> String {
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

/// A results file may hold any number.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::samples;

    #[test]
    fn it_is_xml_with_every_cell_and_the_counts_that_readers_add_up() {
        let results = samples::every_status();
        let text = write(&results).unwrap();
        let xml = roxmltree::Document::parse(&text).unwrap();
        let root = xml.root_element();
        assert_eq!(root.tag_name().name(), "testsuites");
        let suites: Vec<_> = root
            .children()
            .filter(|n| n.has_tag_name("testsuite"))
            .collect();
        let names: Vec<_> = suites.iter().filter_map(|s| s.attribute("name")).collect();
        let expected: Vec<_> = results.cells.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, expected);
        let count = |tag: &str| xml.descendants().filter(|n| n.has_tag_name(tag)).count();
        assert_eq!(
            root.attribute("tests").unwrap(),
            count("testcase").to_string()
        );
        assert_eq!(
            root.attribute("failures").unwrap(),
            count("failure").to_string()
        );
        assert_eq!(
            root.attribute("errors").unwrap(),
            count("error").to_string()
        );
        for (tag, least) in [
            ("failure", 2),
            ("flakyFailure", 1),
            ("skipped", 3),
            ("error", 1),
        ] {
            assert!(count(tag) >= least, "{tag}:\n{text}");
        }
    }

    #[test]
    fn what_guests_print_cannot_break_it() {
        let mut results = samples::every_status();
        let bad = "a <b> & \"c\" ]]> \u{1b}[31m\u{0}\u{fffe} é";
        for attempt in results.cells.iter_mut().flat_map(|c| &mut c.attempts) {
            for finding in &mut attempt.findings {
                finding.text = bad.to_owned();
            }
            for scenario in &mut attempt.scenarios {
                scenario.reason = bad.to_owned();
                scenario.name = bad.to_owned();
                scenario.millis = f64::NAN;
            }
        }
        let text = write(&results).unwrap();
        let xml = roxmltree::Document::parse(&text).unwrap();
        let failure = xml
            .descendants()
            .find(|n| n.has_tag_name("failure"))
            .unwrap();
        assert!(
            failure
                .attribute("message")
                .unwrap()
                .contains("a <b> & \"c\" ]]>")
        );
    }
}

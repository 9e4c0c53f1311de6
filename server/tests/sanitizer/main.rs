//! The sanitizer against mistakes planted in a driver half, one at a time, and against the half without any.
mod bugs;
mod half;
#[path = "../rig/mod.rs"]
mod rig;

use std::fmt::Write as _;
use std::path::Path;

use bugs::BUGS;
use half::Half;
use neuron_protocol::generation::Product;
use neuron_vfio_user::observe::sanitize::{Rule, Severity};

/// Where bare host addresses are not device memory as well.
const PRODUCT: Product = Product::Trn2;

#[test]
fn each_planted_bug_is_found_first_and_nothing_else_but_its_consequences() {
    let mut failures = String::new();
    for (bug, name, _, first, then) in BUGS {
        let found = Half::new(Some(*bug), PRODUCT).play();
        let expected: Vec<_> = [first].into_iter().chain(*then).copied().collect();
        if found != expected {
            writeln!(failures, "{name}: expected {expected:?}, found {found:?}").unwrap();
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn a_half_without_bugs_gives_no_finding() {
    for product in Product::ALL {
        assert_eq!(Half::new(None, product).play(), [""; 0], "{product}");
    }
}

/// What is not planted is not known to be found.
#[test]
fn every_rule_has_a_bug() {
    let planted = |rule: &Rule| {
        BUGS.iter()
            .any(|(.., first, then)| *first == rule.name() || then.contains(&rule.name()))
    };
    let missing: Vec<_> = Rule::ALL.iter().filter(|rule| !planted(rule)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(BUGS.len() >= 30);
}

fn documentation() -> (std::path::PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sanitizer.md");
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

/// Every rule has its section, every section its rule, with the severity and the statement of the table in the code.
#[test]
fn every_rule_is_documented_and_nothing_else() {
    let (_, text) = documentation();
    let sections: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    let rules: Vec<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(sections, rules, "sections of docs/sanitizer.md");
    for rule in Rule::ALL {
        let start = text.find(&format!("\n### {rule}\n")).unwrap();
        let section = &text[start + 5..];
        let section = &section[..section.find("\n#").unwrap_or(section.len())];
        let severity = match rule.severity() {
            Severity::Error => "*Error.*",
            Severity::Suspicion => "*Suspicion.*",
        };
        let head = format!("{severity} {}", rule.statement());
        let flat = section.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            flat.contains(&head),
            "{rule}: the section must begin with\n{head}"
        );
        for part in ["Why: ", "Example:", "Source: "] {
            assert!(section.contains(part), "{rule}: no {part:?}");
        }
    }
}

/// The table in the documentation is the one tested above. `UPDATE_DOCS=1` writes it.
#[test]
fn the_documented_table_of_bugs_is_the_tested_one() {
    const BEGIN: &str = "<!-- planted bugs: written by `UPDATE_DOCS=1 cargo test -p neuron-vfio-user --test sanitizer` -->\n";
    const END: &str = "<!-- end of planted bugs -->";
    let mut table =
        "\n| bug | the driver half | found first | as its consequences |\n|---|---|---|---|\n"
            .to_owned();
    for (_, name, what, first, then) in BUGS {
        let then: Vec<_> = then.iter().map(|rule| format!("`{rule}`")).collect();
        writeln!(
            table,
            "| {name} | {what} | `{first}` | {} |",
            then.join(", ")
        )
        .unwrap();
    }
    table.push('\n');
    let (path, text) = documentation();
    let begin = text.find(BEGIN).expect("the table's beginning") + BEGIN.len();
    let end = text.find(END).expect("the table's end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let new = format!("{}{table}{}", &text[..begin], &text[end..]);
        std::fs::write(path, new).unwrap();
    } else {
        assert_eq!(text[begin..end], table, "run with UPDATE_DOCS=1");
    }
}

//! Findings for people, for programs, and for CI.
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::finding::{Finding, Ledger};
use super::rule::{Rule, Severity};

/// The summary for the log: one line, or one per finding after it.
pub fn words(ledger: &Ledger) -> Vec<String> {
    let (errors, suspicions) = (
        ledger.count(Severity::Error),
        ledger.count(Severity::Suspicion),
    );
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut head = if errors + suspicions == 0 {
        "sanitizer: no finding".to_owned()
    } else {
        format!(
            "sanitizer: {}, {}",
            plural(errors, "error"),
            plural(suspicions, "suspicion")
        )
    };
    let (lost, untracked) = ledger.gaps();
    if lost > 0 {
        // Writing to a String does not fail, here and below.
        let _ = write!(head, "; {lost} more are not listed");
    }
    if untracked > 0 {
        let _ = write!(
            head,
            "; {untracked} times too much was outstanding to be followed"
        );
    }
    let line = |finding: &Finding| {
        format!(
            "sanitizer: {} {} x{}: {} [{}]",
            finding.severity.name(),
            finding.rule,
            finding.count,
            finding.detail,
            finding.place()
        )
    };
    [head]
        .into_iter()
        .chain(ledger.findings().iter().map(line))
        .collect()
}

/// Everything, for programs.
pub fn json(ledger: &Ledger) -> Value {
    let (lost, untracked) = ledger.gaps();
    json!({
        "device": ledger.device(),
        "errors": ledger.count(Severity::Error),
        "suspicions": ledger.count(Severity::Suspicion),
        "not_listed": lost,
        "not_followed": untracked,
        "findings": ledger.findings(),
    })
}

/// One test case per rule: an error fails it, a suspicion is printed.
pub fn junit(ledger: &Ledger) -> String {
    let of = |rule: Rule| {
        ledger
            .findings()
            .iter()
            .filter(move |finding| finding.rule == rule)
    };
    let failed = Rule::ALL
        .iter()
        .filter(|rule| rule.severity() == Severity::Error && of(**rule).next().is_some());
    let device = ledger.device();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"sanitizer.nd{device}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"0\">\n",
        Rule::ALL.len(),
        failed.count(),
    );
    for rule in Rule::ALL {
        let mut body = String::new();
        for finding in of(*rule) {
            let _ = writeln!(
                body,
                "x{} {}: {}",
                finding.count,
                finding.place(),
                finding.detail
            );
            for event in &finding.events {
                let _ = writeln!(body, "  before it: {event}");
            }
        }
        let head = format!("  <testcase classname=\"sanitizer.nd{device}\" name=\"{rule}\"");
        if body.is_empty() {
            let _ = writeln!(text, "{head}/>");
            continue;
        }
        let (body, statement) = (escape(&body), escape(rule.statement()));
        let inside = match rule.severity() {
            Severity::Error => {
                format!("<failure type=\"{rule}\" message=\"{statement}\">{body}</failure>")
            }
            Severity::Suspicion => format!("<system-out>{statement}\n{body}</system-out>"),
        };
        let _ = write!(text, "{head}>\n    {inside}\n  </testcase>\n");
    }
    text + "</testsuite>\n"
}

/// Text that may stand in an element or attribute. Control characters are not allowed in XML at all.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::sanitize::Place;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(5);
        for rule in [Rule::RxShort, Rule::RxShort, Rule::NoBarrier] {
            let place = Place {
                queue: Some((128, 1)),
                addresses: vec![("source", 0x4000)],
                ..Place::default()
            };
            ledger.note(
                Duration::from_micros(7),
                rule,
                place,
                0,
                || "a < b & \"c\"".to_owned(),
                || vec!["0.1 s event".to_owned()],
            );
        }
        ledger
    }

    #[test]
    fn words_say_what_and_how_often() {
        let words = words(&ledger());
        assert_eq!(words[0], "sanitizer: 1 error, 1 suspicion");
        assert!(words[1].contains("error rx-short x2: "), "{words:?}");
        assert!(words[1].contains("[e128 q1, source 0x4000]"), "{words:?}");
        assert_eq!(words.len(), 3);
        assert_eq!(super::words(&Ledger::new(0)), ["sanitizer: no finding"]);
    }

    #[test]
    fn json_has_stable_names() {
        let value = json(&ledger());
        assert_eq!(value["errors"], 1);
        let finding = &value["findings"][0];
        assert_eq!(finding["rule"], "rx-short");
        assert_eq!(finding["severity"], "error");
        assert_eq!(finding["count"], 2);
        assert_eq!(finding["addresses"]["source"], "0x4000");
    }

    #[test]
    fn junit_has_a_case_for_each_rule_and_fails_for_errors_alone() {
        let text = junit(&ledger());
        assert_eq!(text.matches("<testcase ").count(), Rule::ALL.len());
        assert_eq!(text.matches("<failure ").count(), 1);
        assert!(text.contains("failures=\"1\""));
        assert!(text.contains("a &lt; b &amp; &quot;c&quot;"));
        assert!(text.contains("<system-out>"));
    }
}

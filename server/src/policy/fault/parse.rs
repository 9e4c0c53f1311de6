//! Reading rules: TOML files, and rules in one line. Nothing wrong gets past here.
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use neuron_protocol::registers::Direction;
use serde::Deserialize;
use toml::Spanned;

use super::MAX_RULES;
use super::library;
use super::rule::{Action, Given, Occurrence, On, Param, Rule};

/// Longest file, bytes.
const MAX_FILE: usize = 64 << 10;
/// Longest time a rule may name: a device that is later than this is dead.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// Why rules are refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Cause and remedy.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.line, self.column, self.message
        )
    }
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Of the random numbers.
    pub seed: Option<u64>,
    /// In order.
    pub rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seed: Option<u64>,
    #[serde(default)]
    fault: Vec<Spanned<Raw>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    name: Option<String>,
    on: Spanned<On>,
    action: Spanned<Action>,
    engine: Option<Spanned<u8>>,
    queue: Option<Spanned<u8>>,
    direction: Option<Spanned<Ring>>,
    command: Option<Spanned<u8>>,
    register: Option<Spanned<String>>,
    nth: Option<Spanned<u64>>,
    every: Option<Spanned<u64>>,
    first: Option<Spanned<u64>>,
    chance: Option<Spanned<f64>>,
    by: Option<Spanned<String>>,
    descriptors: Option<Spanned<u32>>,
    byte: Option<Spanned<u32>>,
    mask: Option<Spanned<u32>>,
    shift: Option<Spanned<i32>>,
    value: Option<Spanned<u32>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Ring {
    M2s,
    S2m,
}

type Wrong = (Range<usize>, String);

/// Reads a file.
///
/// # Errors
/// The first thing wrong with it.
pub fn plan(text: &str) -> Result<Plan, ParseError> {
    let place = |(span, message): Wrong| {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        ParseError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        }
    };
    if text.len() > MAX_FILE {
        let message = format!(
            "the file has {} bytes, at most {MAX_FILE} are read",
            text.len()
        );
        return Err(place((0..0, message)));
    }
    let file: File = toml::from_str(text).map_err(|error| {
        let message = error.message().trim_end().replace('\n', "; ");
        place((error.span().unwrap_or(0..0), message))
    })?;
    if let Some(extra) = file.fault.get(MAX_RULES) {
        let message = format!("more than {MAX_RULES} rules: drop some");
        return Err(place((extra.span(), message)));
    }
    let rules = file.fault.into_iter().map(|raw| rule(raw.into_inner()));
    Ok(Plan {
        seed: file.seed,
        rules: rules.collect::<Result<_, _>>().map_err(place)?,
    })
}

/// Reads the name of a scenario, or one rule in a line: `on=marker action=drop nth=1`.
///
/// # Errors
/// What is wrong, with the remedy.
pub fn inline(text: &str) -> Result<Vec<Rule>, String> {
    let text = text.trim();
    if let Some(scenario) = library::find(text) {
        let mut rules = inline(scenario.rule)?;
        for rule in &mut rules {
            scenario.name.clone_into(&mut rule.name);
        }
        return Ok(rules);
    }
    if !text.contains('=') {
        return Err(format!(
            "{text:?} is no scenario; `--fault list` prints them, and a rule is written as on=marker action=drop nth=1"
        ));
    }
    let mut file = String::from("[[fault]]\n");
    for word in text.split_ascii_whitespace() {
        let Some((key, value)) = word.split_once('=') else {
            return Err(format!("{word:?} is not KEY=VALUE"));
        };
        if !key.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(format!("{key:?} is no key: {KEYS}"));
        }
        if value.contains(|c: char| c == '\'' || c.is_control()) {
            return Err(format!("{value:?} has characters that no value has"));
        }
        let number = value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
            && toml::from_str::<toml::Table>(&format!("v = {value}")).is_ok_and(|table| {
                table
                    .get("v")
                    .is_some_and(|value| value.is_integer() || value.is_float())
            });
        // A register's offset is a number to people and text to us.
        let quote = if number && key != "register" { "" } else { "'" };
        file.extend([key, " = ", quote, value, quote, "\n"]);
    }
    plan(&file)
        .map(|plan| plan.rules)
        .map_err(|error| error.message)
}

const KEYS: &str = "on, action, name, engine, queue, direction, command, register, nth, every, first, chance, by, descriptors, byte, mask, shift and value are";

fn rule(raw: Raw) -> Result<Rule, Wrong> {
    let (on, action) = (*raw.on.get_ref(), *raw.action.get_ref());
    let fit = action.fit();
    if !fit.on.contains(&on) {
        let events: Vec<_> = fit.on.iter().map(|on| on.name()).collect();
        let actions: Vec<_> = super::rule::ACTIONS
            .iter()
            .filter(|fit| fit.on.contains(&on))
            .map(|fit| fit.name)
            .collect();
        return Err((
            raw.action.span(),
            format!(
                "{} does not fit {}: it fits {}; {} takes {}",
                fit.name,
                on.name(),
                events.join(", "),
                on.name(),
                actions.join(", ")
            ),
        ));
    }
    selects(&raw, on)?;
    let occurrence = occurrence(&raw)?;
    let given = given(&raw, fit.needs, fit.takes)?;
    let name = raw
        .name
        .unwrap_or_else(|| format!("{}-{}", on.name(), fit.name));
    if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
        return Err((
            raw.on.span(),
            "a name has 1 to 64 printable characters".to_owned(),
        ));
    }
    Ok(Rule {
        name,
        on,
        engine: raw.engine.map(Spanned::into_inner),
        queue: raw.queue.map(Spanned::into_inner),
        direction: raw.direction.map(|ring| match ring.into_inner() {
            Ring::M2s => Direction::M2s,
            Ring::S2m => Direction::S2m,
        }),
        command: raw.command.map(Spanned::into_inner),
        register: raw.register.map(Spanned::into_inner),
        occurrence,
        action,
        outcome: given.outcome(action),
    })
}

/// What narrows an event down has to have a meaning for it.
fn selects(raw: &Raw, on: On) -> Result<(), Wrong> {
    let dma = [On::Doorbell, On::Fetch, On::Copy, On::Marker];
    let span = |field: &Option<Spanned<u8>>| field.as_ref().map(Spanned::span);
    let selectors = [
        ("engine", span(&raw.engine), &dma[..]),
        ("queue", span(&raw.queue), &dma),
        (
            "direction",
            raw.direction.as_ref().map(Spanned::span),
            &[On::Doorbell, On::Fetch],
        ),
        ("command", span(&raw.command), &[On::Mailbox]),
        (
            "register",
            raw.register.as_ref().map(Spanned::span),
            &[On::Register],
        ),
    ];
    for (key, span, events) in selectors {
        if let Some(span) = span
            && !events.contains(&on)
        {
            let events: Vec<_> = events.iter().map(|on| on.name()).collect();
            return Err((
                span,
                format!(
                    "{key} says nothing about {}: it is for {}; remove it",
                    on.name(),
                    events.join(", ")
                ),
            ));
        }
    }
    Ok(())
}

fn occurrence(raw: &Raw) -> Result<Occurrence, Wrong> {
    let counts = [
        (&raw.nth, Occurrence::Nth as fn(u64) -> Occurrence),
        (&raw.every, Occurrence::Every),
        (&raw.first, Occurrence::First),
    ];
    let mut found: Option<Occurrence> = None;
    for (field, make) in counts {
        let Some(field) = field else { continue };
        if *field.get_ref() == 0 {
            return Err((field.span(), "events are counted from 1".to_owned()));
        }
        if found.replace(make(*field.get_ref())).is_some() {
            return Err((field.span(), ONE_OF.to_owned()));
        }
    }
    if let Some(chance) = &raw.chance {
        let probability = *chance.get_ref();
        if !(probability > 0.0 && probability <= 1.0) {
            return Err((
                chance.span(),
                format!("{probability} is no probability: more than 0, at most 1"),
            ));
        }
        if found.replace(Occurrence::Chance(probability)).is_some() {
            return Err((chance.span(), ONE_OF.to_owned()));
        }
    }
    Ok(found.unwrap_or(Occurrence::Always))
}

const ONE_OF: &str = "nth, every, first and chance exclude each other: keep one";

fn given(raw: &Raw, needs: &[Param], takes: &[Param]) -> Result<Given, Wrong> {
    let name = raw.action.get_ref().fit().name;
    let numbers = |field: &Option<Spanned<u32>>| field.as_ref().map(Spanned::span);
    let fields = [
        (Param::By, raw.by.as_ref().map(Spanned::span)),
        (Param::Descriptors, numbers(&raw.descriptors)),
        (Param::Byte, numbers(&raw.byte)),
        (Param::Mask, numbers(&raw.mask)),
        (Param::Shift, raw.shift.as_ref().map(Spanned::span)),
        (Param::Value, numbers(&raw.value)),
    ];
    for (param, span) in fields {
        let key = param.name();
        match span {
            None if needs.contains(&param) => {
                return Err((
                    raw.action.span(),
                    format!("{name} needs {key}: {}", example(param)),
                ));
            }
            Some(span) if !needs.contains(&param) && !takes.contains(&param) => {
                return Err((span, format!("{name} takes no {key}: remove it")));
            }
            _ => {}
        }
    }
    if let Some(mask) = raw.mask.as_ref().filter(|mask| *mask.get_ref() == 0) {
        return Err((mask.span(), "a mask of 0 changes nothing".to_owned()));
    }
    let number = |field: &Option<Spanned<u32>>| field.as_ref().map(|field| *field.get_ref());
    Ok(Given {
        by: raw.by.as_ref().map(time).transpose()?,
        descriptors: number(&raw.descriptors),
        byte: number(&raw.byte),
        mask: number(&raw.mask),
        shift: raw.shift.as_ref().map(|shift| *shift.get_ref()),
        value: number(&raw.value),
    })
}

const fn example(param: Param) -> &'static str {
    match param {
        Param::By => "by = \"5ms\"",
        Param::Descriptors => "descriptors = 3",
        Param::Byte => "byte = 0",
        Param::Mask => "mask = 0xff",
        Param::Shift => "shift = -1",
        Param::Value => "value = 0xdeadbeef",
    }
}

fn time(text: &Spanned<String>) -> Result<Duration, Wrong> {
    let wrong = |message| (text.span(), message);
    let time = humantime::parse_duration(text.get_ref())
        .map_err(|error| wrong(format!("{error}; write 50us, 5ms or 2s")))?;
    if time > MAX_TIME {
        return Err(wrong("a time is one hour at most".to_owned()));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Verdict;
    use crate::policy::fault::rule::{ACTIONS, Outcome};

    #[test]
    fn a_file_reads_as_written() {
        let plan = plan(
            "seed = 7\n\n[[fault]]\nname = \"late\"\non = \"marker\"\naction = \"delay\"\nby = \"5ms\"\nengine = 3\nnth = 2\n\
             [[fault]]\non = \"register\"\naction = \"value\"\nvalue = 0xdeadbeef\nregister = \"drhp\"\n",
        )
        .unwrap();
        assert_eq!(plan.seed, Some(7));
        let [late, register] = &plan.rules[..] else {
            panic!("{plan:?}")
        };
        assert_eq!(
            (late.name.as_str(), late.engine, late.occurrence),
            ("late", Some(3), Occurrence::Nth(2))
        );
        assert_eq!(
            late.outcome,
            Outcome::Fixed(Verdict::Delay(Duration::from_millis(5)))
        );
        assert_eq!(
            register.outcome,
            Outcome::Fixed(Verdict::Value(0xdead_beef))
        );
        assert_eq!(register.name, "register-value");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_remedy() {
        for (text, line, column, words) in [
            (
                "[[fault]]\non = \"marker\"\naction = \"value\"\nvalue = 1\n",
                3,
                10,
                "value does not fit marker: it fits register; marker takes drop, delay",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"drp\"\n",
                3,
                10,
                "unknown variant `drp`, expected one of `drop`",
            ),
            (
                "[[fault]]\non = \"mark\"\naction = \"drop\"\n",
                2,
                6,
                "expected one of `doorbell`",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"drop\"\nnht = 1\n",
                4,
                1,
                "unknown field `nht`",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"delay\"\n",
                3,
                10,
                "delay needs by: by = \"5ms\"",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"delay\"\nby = \"5\"\n",
                4,
                6,
                "write 50us",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"delay\"\nby = \"2h\"\n",
                4,
                6,
                "one hour",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"drop\"\nby = \"5ms\"\n",
                4,
                6,
                "drop takes no by",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"drop\"\nnth = 0\n",
                4,
                7,
                "from 1",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"drop\"\nnth = 1\nfirst = 2\n",
                5,
                9,
                "exclude",
            ),
            (
                "[[fault]]\non = \"marker\"\naction = \"drop\"\nchance = 1.5\n",
                4,
                10,
                "no probability",
            ),
            (
                "[[fault]]\non = \"reset\"\naction = \"drop\"\nengine = 1\n",
                4,
                10,
                "engine says nothing about reset",
            ),
            (
                "[[fault]]\non = \"fetch\"\naction = \"corrupt\"\nmask = 0\n",
                4,
                8,
                "changes nothing",
            ),
            ("[[fault]]\naction = \"drop\"\n", 1, 1, "missing field `on`"),
            ("seed = 1\nfault = 3\n", 2, 9, "invalid type"),
            ("[[fault]\n", 1, 9, ""),
        ] {
            let error = plan(text).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{text}{error}");
            assert!(error.message.contains(words), "{text}{error}");
        }
        let many = "[[fault]]\non = \"marker\"\naction = \"drop\"\n".repeat(MAX_RULES + 1);
        assert_eq!(plan(&many).unwrap_err().line, 3 * MAX_RULES + 1);
        assert!(
            plan(&" ".repeat(MAX_FILE + 1))
                .unwrap_err()
                .message
                .contains("bytes")
        );
    }

    /// Every action on every event: accepted exactly where the table says so.
    #[test]
    fn the_table_decides_what_fits() {
        for fit in &ACTIONS {
            for on in On::ALL {
                let params: Vec<_> = fit.needs.iter().map(|param| example(*param)).collect();
                let params = params.join(
                    "
",
                );
                let text = format!(
                    "[[fault]]\non = \"{}\"\naction = \"{}\"\n{params}",
                    on.name(),
                    fit.name
                );
                assert_eq!(plan(&text).is_ok(), fit.on.contains(&on), "{text}");
            }
        }
    }

    #[test]
    fn a_line_is_a_rule_or_a_scenario() {
        let rules = inline("on=register action=value value=0xdeadbeef register=0x10").unwrap();
        assert_eq!(rules[0].register.as_deref(), Some("0x10"));
        assert_eq!(
            inline("marker-drop-once").unwrap()[0].name,
            "marker-drop-once"
        );
        for (text, words) in [
            ("marker-dorp", "--fault list"),
            ("on=marker drop", "KEY=VALUE"),
            ("on=marker action=drop x\"y=1", "is no key"),
            ("on=marker action=drop nth=one", "invalid type"),
        ] {
            let error = inline(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

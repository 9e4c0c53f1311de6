//! Faults on purpose: rules that say which event of a device goes wrong, and how.
//!
//! [`rule`] is what a rule can say and which actions fit which events, as data; `parse` reads rules and says where one is
//! wrong; `engine` decides; [`library`] has named scenarios with what a driver is expected to do; [`risk`] knows
//! which rules would keep a guest waiting for minutes.
mod engine;
pub mod library;
mod parse;
pub mod risk;
pub mod rule;

pub use engine::{Faults, Fired, MAX_RULES};
pub use parse::{ParseError, Plan, inline, plan};
pub use rule::Rule;

/// What the faults of a device rest on, whether they are given at the start or later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    /// Of what they leave to chance.
    pub seed: u64,
    /// The guest's.
    pub clock: risk::Clock,
}

/// What can be done to the faults of a running device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Add the rules of a scenario, or one rule written as `on=marker action=drop nth=1`.
    Add {
        /// The name or the rule.
        text: String,
        /// Even if it makes a guest wait for minutes.
        allow_hangs: bool,
    },
    /// Say which there are and how often each happened.
    List,
    /// Forget all; a removed device is there again.
    Clear,
}

impl Order {
    /// Longest rule in an [`Self::Add`], bytes.
    pub const MAX_TEXT: usize = 512;

    /// An [`Self::Add`] that is taken even if it makes a guest wait for minutes.
    #[must_use]
    pub fn allowing_hangs(mut self, allow: bool) -> Self {
        if let Self::Add { allow_hangs, .. } = &mut self {
            *allow_hangs |= allow;
        }
        self
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Add { text, allow_hangs } => {
                let force = if *allow_hangs { "allow-hangs " } else { "" };
                write!(f, "add {force}{text}")
            }
            Self::List => f.write_str("list"),
            Self::Clear => f.write_str("clear"),
        }
    }
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        match (verb, rest.trim()) {
            ("list", "") => Ok(Self::List),
            ("clear", "") => Ok(Self::Clear),
            ("add", rest) if !rest.is_empty() => {
                let forced = rest.strip_prefix("allow-hangs ");
                let text = forced.unwrap_or(rest).trim();
                if text.is_empty() || text.len() > Self::MAX_TEXT {
                    return Err(format!("a rule has 1 to {} bytes", Self::MAX_TEXT));
                }
                Ok(Self::Add {
                    text: text.to_owned(),
                    allow_hangs: forced.is_some(),
                })
            }
            _ => Err(
                "say add with a scenario or a rule (add marker-drop-once, add on=marker action=drop nth=2), list or clear"
                    .to_owned(),
            ),
        }
    }
}

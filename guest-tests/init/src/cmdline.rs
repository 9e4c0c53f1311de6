//! The kernel command line as this program reads it: `neuron.KEY=VALUE`.
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `neuron.module=FILE` | module file in the initramfs, with or without a path | `neuron.ko`; empty: load nothing |
//! | `neuron.module_args="A=1 B=2"` | parameters handed to the module; quote them when there are several | none |
//! | `neuron.devices=N` | `/dev/neuron0` .. `N-1` must appear and become ready | 1 |
//! | `neuron.scenario=a,b` | what to run, in this order; `all`; `none`; `-a` leaves one out of `all` | `all` |
//! | `neuron.timeout=S` | limit of one scenario in seconds, for scenarios that do not ask for more | 60 |
//! | `neuron.ready_timeout=S` | limit of load, probe and reset until READY | 150 |
//! | `neuron.seed=N` | seed of every data pattern | 1 |
//! | `neuron.ask=1` | whoever reads the console does what `@neuron ask` lines ask for | 0 |
//! | `neuron.shell=1` | a shell on the console after the scenarios, before power-off | 0 |
//! | `neuron.ftrace=1` | trace the driver, and write the text to the second serial port at the end | 0 |
//! | `neuron.poweroff=0` | stay up at the end (for a debugger) | 1 |
//!
//! The kernel hands dotted parameters it does not know to nobody, so these names clash with nothing
//! and do not reach `init` as arguments. Quoting follows the kernel: a double quote protects spaces.
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Largest `neuron.devices`: the driver knows 64 device ids (contract §4, MR+0x24).
pub const MAX_DEVICES: u32 = 64;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Every scenario but these.
    AllBut(Vec<String>),
    /// These, in this order.
    Only(Vec<String>),
}

/// The parsed command line; see the module documentation for each parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a parameter of its own"
)]
pub struct Options {
    /// `neuron.module`; `None` when empty.
    pub module: Option<String>,
    /// `neuron.module_args`.
    pub module_args: String,
    /// `neuron.devices`.
    pub devices: u32,
    /// `neuron.scenario`.
    pub scenarios: Selection,
    /// `neuron.timeout`.
    pub timeout: Duration,
    /// `neuron.ready_timeout`.
    pub ready_timeout: Duration,
    /// `neuron.seed`.
    pub seed: u64,
    /// `neuron.ask`.
    pub ask: bool,
    /// `neuron.shell`.
    pub shell: bool,
    /// `neuron.ftrace`.
    pub ftrace: bool,
    /// `neuron.poweroff`.
    pub poweroff: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            module: Some("neuron.ko".into()),
            module_args: String::new(),
            devices: 1,
            scenarios: Selection::AllBut(Vec::new()),
            timeout: Duration::from_secs(60),
            ready_timeout: Duration::from_secs(150),
            seed: 1,
            ask: false,
            shell: false,
            ftrace: false,
            poweroff: true,
        }
    }
}

impl Options {
    /// Reads `/proc/cmdline` text.
    ///
    /// # Errors
    /// An unknown `neuron.` key or a value out of range: a typing error must not pass as "ran nothing".
    pub fn parse(line: &str) -> Result<Self> {
        let mut options = Self::default();
        for word in words(line) {
            let Some(parameter) = word.strip_prefix("neuron.") else {
                continue;
            };
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, "1"));
            options
                .set(key, value)
                .with_context(|| format!("kernel command line: neuron.{key}={value}"))?;
        }
        Ok(options)
    }

    /// Whether somebody answers `@neuron ask` lines.
    pub fn answered() -> bool {
        let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
        Self::parse(&line).is_ok_and(|options| options.ask)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "module" => self.module = (!value.is_empty()).then(|| value.to_owned()),
            "module_args" => value.clone_into(&mut self.module_args),
            "devices" => {
                self.devices = value.parse().context("not a number")?;
                if self.devices > MAX_DEVICES {
                    bail!("at most {MAX_DEVICES} devices");
                }
            }
            "scenario" => self.scenarios = selection(value)?,
            "timeout" => self.timeout = seconds(value)?,
            "ready_timeout" => self.ready_timeout = seconds(value)?,
            "seed" => self.seed = value.parse().context("not a number")?,
            "ask" => self.ask = flag(value)?,
            "shell" => self.shell = flag(value)?,
            "ftrace" => self.ftrace = flag(value)?,
            "poweroff" => self.poweroff = flag(value)?,
            _ => bail!(
                "unknown parameter; known: module, module_args, devices, scenario, timeout, ready_timeout, \
                 seed, ask, shell, ftrace, poweroff"
            ),
        }
        Ok(())
    }
}

fn selection(value: &str) -> Result<Selection> {
    let names: Vec<&str> = value
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .collect();
    if names == ["none"] {
        return Ok(Selection::Only(Vec::new()));
    }
    let (out, only): (Vec<&str>, Vec<&str>) = names.iter().partition(|n| n.starts_with('-'));
    match (only.as_slice(), out.as_slice()) {
        ([] | ["all"], _) => Ok(Selection::AllBut(
            out.iter().map(|n| n[1..].to_owned()).collect(),
        )),
        (_, []) if !only.contains(&"all") => Ok(Selection::Only(
            only.iter().map(|n| (*n).to_owned()).collect(),
        )),
        _ => bail!("either names, or `all` with `-name` to leave some out"),
    }
}

fn seconds(value: &str) -> Result<Duration> {
    let seconds: u64 = value
        .trim_end_matches('s')
        .parse()
        .context("not a number of seconds")?;
    if !(1..=86_400).contains(&seconds) {
        bail!("1 to 86400 seconds");
    }
    Ok(Duration::from_secs(seconds))
}

fn flag(value: &str) -> Result<bool> {
    match value {
        "1" | "yes" | "on" | "true" => Ok(true),
        "0" | "no" | "off" | "false" => Ok(false),
        _ => bail!("1 or 0"),
    }
}

/// Splits as the kernel's `next_arg` does: at spaces outside double quotes, quotes dropped.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_parameters_are_left_alone() {
        assert_eq!(
            Options::parse("console=ttyS0 panic=-1 root=/dev/ram0\n").unwrap(),
            Options::default()
        );
    }

    #[test]
    fn every_parameter_is_read() {
        let options = Options::parse(
            "quiet neuron.module=/lib/own.ko neuron.module_args=\"a=1 b=2\" neuron.devices=16 neuron.scenario=info,memset \
             neuron.timeout=5 neuron.ready_timeout=300 neuron.seed=77 neuron.shell neuron.ftrace neuron.poweroff=0",
        )
        .unwrap();
        assert_eq!(
            options,
            Options {
                module: Some("/lib/own.ko".into()),
                module_args: "a=1 b=2".into(),
                devices: 16,
                scenarios: Selection::Only(vec!["info".into(), "memset".into()]),
                timeout: Duration::from_secs(5),
                ready_timeout: Duration::from_secs(300),
                seed: 77,
                ask: false,
                shell: true,
                ftrace: true,
                poweroff: false,
            }
        );
    }

    #[test]
    fn scenarios_are_chosen_or_left_out() {
        let of = |v: &str| Options::parse(&format!("neuron.scenario={v}")).map(|o| o.scenarios);
        assert_eq!(of("all").unwrap(), Selection::AllBut(vec![]));
        assert_eq!(
            of("all,-reset").unwrap(),
            Selection::AllBut(vec!["reset".into()])
        );
        assert_eq!(
            of("-reset").unwrap(),
            Selection::AllBut(vec!["reset".into()])
        );
        assert_eq!(of("none").unwrap(), Selection::Only(vec![]));
        assert!(of("info,-reset").is_err());
        assert!(of("info,all").is_err());
    }

    #[test]
    fn mistakes_are_refused() {
        for bad in [
            "neuron.device=1",
            "neuron.devices=65",
            "neuron.devices=x",
            "neuron.timeout=0",
            "neuron.shell=maybe",
        ] {
            assert!(Options::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_module_loads_nothing() {
        assert_eq!(Options::parse("neuron.module=").unwrap().module, None);
    }
}

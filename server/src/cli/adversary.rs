//! `--adversary`: hardware that does what it is free to do.
use std::fs::File;
use std::io::Read;

use clap::Args;

use crate::policy::Adversary;
use crate::policy::adversary::Script;

/// Bytes of a file that are looked at; the longest script has fewer.
const MAX_READ: u64 = 2 << 20;

/// Whether hardware is as unhelpful as it may be.
#[derive(Args, Clone, Debug)]
pub struct AdversaryArgs {
    /// Be legal hardware that is as unhelpful as it may be: writes land late, apart and in any order that no barrier forbids,
    /// descriptors are fetched early or late, heads lag. SEED decides; SEED:K deviates from the usual only in the first K
    /// decisions, SEED:+LIST only in those of a list such as 3,17-20. @FILE reads it from a file, where # begins a comment
    #[arg(long, value_name = "SEED[:K|:+LIST]|@FILE", value_parser = script)]
    adversary: Option<Script>,
}

/// A script, or the file that holds one: the list of a seed that was cut down may be long.
fn script(text: &str) -> Result<Script, String> {
    let Some(path) = text.strip_prefix('@') else {
        return text.parse();
    };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_READ).read_to_string(&mut text));
    read.map_err(|error| format!("{path}: {error}"))?;
    let of_line = |line: &str| line.split('#').next().unwrap_or("").trim().to_owned();
    let text: String = text.lines().map(of_line).collect();
    text.parse().map_err(|error| format!("{path}: {error}"))
}

impl AdversaryArgs {
    /// The adversary of the nth device, if there is one: each has a seed of its own, counting up.
    pub fn adversary(&self, nth: u8) -> Option<Adversary> {
        let mut script = self.adversary.clone()?;
        script.seed = script.seed.wrapping_add(nth.into());
        Some(Adversary::new(script))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_comes_from_a_file_as_well() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "# cut down\n7:+76,\n85-87 # two of them\n").unwrap();
        let at = format!("@{}", file.path().display());
        assert_eq!(script(&at), script("7:+76,85-87"));
        assert!(script("7").is_ok());
        std::fs::write(&file, "7:+9,3\n").unwrap();
        assert!(script(&at).unwrap_err().contains("must rise"));
        assert!(script("@nowhere").unwrap_err().contains("nowhere"));
    }
}

//! What the device's sanitizer says of the driver, from the reports that the server leaves in files.
use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::outcome::{Failure, Finding};

/// The options that a server is given for it, unless the user has given them.
pub fn server_args(user: &[OsString], report: &Path, wanted: bool) -> Vec<OsString> {
    let given = |option: &str| {
        user.iter().any(|word| {
            let word = word.to_string_lossy();
            word == option || word.starts_with(&format!("{option}="))
        })
    };
    let mut args = Vec::new();
    if wanted && !given("--sanitize") {
        args.push(OsString::from("--sanitize=warn"));
    }
    if !given("--report") {
        args.push(OsString::from("--report"));
        args.push(report.as_os_str().to_owned());
    }
    args
}

/// The part of a findings file that a run is judged by. Fields the server adds later are ignored.
#[derive(Deserialize)]
struct File {
    device: u8,
    findings: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    rule: String,
    severity: String,
    count: u64,
    detail: String,
    engine: Option<u16>,
    queue: Option<u8>,
    direction: Option<String>,
    index: Option<u32>,
}

impl Found {
    /// Where it was first seen: the same words of two queues are two findings.
    fn place(&self) -> String {
        let engine = self.engine.map(|engine| format!(" e{engine}"));
        let queue = self.queue.map(|queue| format!(".q{queue}"));
        let descriptor = self.direction.as_ref().zip(self.index);
        let descriptor = descriptor.map(|(direction, index)| format!(" {direction} {index}"));
        [engine, queue, descriptor].into_iter().flatten().collect()
    }
}

/// What was found: errors, and suspicions in words. A server without a sanitizer has left no file.
///
/// # Errors
/// A file that is none of ours.
pub fn read(directory: &Path) -> Result<(Vec<Finding>, Vec<String>)> {
    let (mut errors, mut suspicions) = (Vec::new(), Vec::new());
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_findings(path.file_name().unwrap_or_default()))
        .collect();
    paths.sort();
    for path in paths {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let file: File = serde_json::from_str(&text)
            .with_context(|| format!("{} holds no findings", path.display()))?;
        for found in file.findings {
            let text = format!(
                "nd{}{}: sanitizer: {} x{}: {}",
                file.device,
                found.place(),
                found.rule,
                found.count,
                found.detail
            );
            if found.severity == "error" {
                errors.push(Finding::new(Failure::Device, text));
            } else {
                suspicions.push(text);
            }
        }
    }
    Ok((errors, suspicions))
}

fn is_findings(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("nd") && name.ends_with("-findings.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_gave_is_not_given_again() {
        let args = |user: &[&str], wanted| {
            let user: Vec<OsString> = user.iter().map(OsString::from).collect();
            server_args(&user, Path::new("r"), wanted)
        };
        assert_eq!(args(&[], true), ["--sanitize=warn", "--report", "r"]);
        assert_eq!(args(&[], false), ["--report", "r"]);
        assert_eq!(args(&["--sanitize=fatal"], true), ["--report", "r"]);
        assert_eq!(
            args(&["--sanitize", "--report", "x"], true),
            Vec::<OsString>::new()
        );
    }

    #[test]
    fn errors_are_findings_and_suspicions_are_words() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), (vec![], vec![]));
        let text = r#"{"device":3,"errors":1,"findings":[
            {"rule":"rx-short","severity":"error","count":2,"detail":"a","events":[]},
            {"rule":"no-barrier","severity":"suspicion","count":1,"detail":"b",
             "engine":128,"queue":3,"direction":"m2s","index":17}]}"#;
        std::fs::write(directory.path().join("nd3-findings.json"), text).unwrap();
        let (errors, suspicions) = read(directory.path()).unwrap();
        assert_eq!(
            errors,
            [Finding::new(
                Failure::Device,
                "nd3: sanitizer: rx-short x2: a"
            )]
        );
        assert_eq!(
            suspicions,
            ["nd3 e128.q3 m2s 17: sanitizer: no-barrier x1: b"]
        );
        std::fs::write(directory.path().join("nd4-findings.json"), "{}").unwrap();
        assert!(read(directory.path()).is_err());
    }
}

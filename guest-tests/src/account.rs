//! The device's own account of a run, as `neuron-vfio-user ctl` gives it.
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::outcome::{Failure, Finding};

/// A control socket that does not answer in this time belongs to a stuck server.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Totals since the server started.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Counters {
    /// Doorbell writes.
    pub doorbells: u64,
    /// Descriptors completed.
    pub descriptors: u64,
    /// Batches: completion markers written.
    pub batches: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Times that an engine aborted.
    pub errors: u64,
    /// Device and core resets.
    pub resets: u64,
    /// BAR reads.
    pub register_reads: u64,
    /// BAR writes.
    pub register_writes: u64,
}

/// The parts of a device's report that a run is judged by. Fields the server adds later are ignored.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Account {
    /// Routing id, to tell devices apart.
    pub routing_id: u8,
    /// QEMU is connected.
    pub connected: bool,
    /// The guest works on a private copy of its memory.
    #[serde(default)]
    pub private_memory: bool,
    /// Totals.
    pub counters: Counters,
    /// Engines that stand aborted, with the cause.
    pub aborted: Vec<(u16, String)>,
}

impl Account {
    /// What the device complains about.
    pub fn complaints(&self) -> Vec<Finding> {
        let device =
            |text: String| Finding::new(Failure::Device, format!("nd{}: {text}", self.routing_id));
        let mut found: Vec<_> = self
            .aborted
            .iter()
            .map(|(engine, cause)| device(format!("engine {engine} is aborted: {cause}")))
            .collect();
        if self.private_memory {
            found.push(device(
                "guest memory is private: nothing the device writes arrives; start QEMU with share=on".to_owned(),
            ));
        }
        if self.counters.errors > 0 {
            found.push(device(format!(
                "engines aborted {} times (bad descriptors, unmapped addresses); the server's log names each",
                self.counters.errors
            )));
        }
        found
    }
}

/// Asks a running server for its account.
///
/// # Errors
/// No server there, no answer in time, or an answer that is none.
pub fn status(server: &Path, dir: &Path, control: &str) -> Result<Vec<Account>> {
    let text = ctl(server, dir, control, &["status", "--json"])?;
    parse(&text)
}

/// One report, or a list of them for a server with several devices.
fn parse(text: &str) -> Result<Vec<Account>> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Reply {
        Many(Vec<Account>),
        One(Account),
    }
    Ok(
        match serde_json::from_str(text)
            .context("the answer of `ctl status --json` is not a device report")?
        {
            Reply::Many(all) => all,
            Reply::One(one) => vec![one],
        },
    )
}

/// Makes a device post a notification. `words` are those of `ctl notify`; `device` is its routing id, needed if there are
/// several.
///
/// # Errors
/// As [`status`], and what the server refuses.
pub fn notify(
    server: &Path,
    dir: &Path,
    control: &str,
    device: Option<u8>,
    words: &[String],
) -> Result<()> {
    let device = device.map(|id| id.to_string());
    let mut what = vec!["notify"];
    if let Some(id) = &device {
        what.extend(["--device", id]);
    }
    // A word of the guest's is never taken for an option.
    what.push("--");
    what.extend(words.iter().map(String::as_str));
    ctl(server, dir, control, &what).map(drop)
}

/// Everything the server knows, as text for people.
///
/// # Errors
/// As [`status`].
pub fn dump(server: &Path, dir: &Path, control: &str) -> Result<String> {
    ctl(server, dir, control, &["dump"])
}

fn ctl(server: &Path, dir: &Path, control: &str, what: &[&str]) -> Result<String> {
    let mut output = tempfile::tempfile()?;
    let mut errors = tempfile::tempfile()?;
    let mut command = Command::new(server);
    command
        .current_dir(dir)
        .arg("ctl")
        .args(["--control", control])
        .args(what)
        .stdin(Stdio::null());
    // Files and not pipes: a dump is larger than a pipe holds, and nobody reads while the time limit is watched.
    command
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?);
    let mut child =
        crate::process::Watched::spawn("ctl", &mut command, crate::process::Group::Own)?;
    let end = Instant::now() + ANSWER_TIME;
    let status = loop {
        match child.ended() {
            Some(status) => break status,
            None if Instant::now() > end => bail!(
                "the server does not answer `ctl {}` within {ANSWER_TIME:?}",
                what[0]
            ),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let read = |file: &mut std::fs::File| -> Result<String> {
        use std::io::{Read, Seek};
        file.rewind()?;
        let mut text = String::new();
        file.take(16 << 20).read_to_string(&mut text)?;
        Ok(text)
    };
    if !status.success() {
        bail!(
            "`ctl {}` failed ({status}): {}",
            what.join(" "),
            read(&mut errors)?.trim()
        );
    }
    read(&mut output)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"product":"trn2","routing_id":3,"connected":true,"hbm_resident":0,
        "counters":{"doorbells":8,"descriptors":4,"batches":2,"bytes":4096,"errors":0,"resets":1,"register_reads":9,"register_writes":7},
        "aborted":[],"queues":[]}"#;

    #[test]
    fn content_device_has_no_complaint() {
        let account = parse(REPORT).unwrap();
        assert_eq!(account.len(), 1);
        assert_eq!(account[0].counters.bytes, 4096);
        assert!(account[0].complaints().is_empty());
        assert_eq!(parse(&format!("[{REPORT},{REPORT}]")).unwrap().len(), 2);
    }

    #[test]
    fn errors_and_aborts_are_complaints() {
        let bad = REPORT
            .replace("\"errors\":0", "\"errors\":2")
            .replace("\"aborted\":[]", "\"aborted\":[[33,\"no map at 0x10\"]]");
        let complaints = parse(&bad).unwrap()[0].complaints();
        assert_eq!(complaints.len(), 2);
        assert!(complaints[0].text.contains("engine 33") && complaints[0].text.contains("0x10"));
    }

    #[test]
    fn a_report_without_counters_is_no_report() {
        assert!(parse("{}").is_err());
        assert!(parse("no device").is_err());
    }
}

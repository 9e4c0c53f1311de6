//! Commands to a running QEMU: a device pulled out, and plugged in again.
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The guest presses no button itself: its kernel waits 5 s for a change of mind, and then asks the driver to let go.
const PATIENCE: Duration = Duration::from_secs(60);

/// A QMP session.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    /// Devices that have gone since they were last asked about.
    deleted: Vec<String>,
}

impl Qmp {
    /// Connects to the socket `name` in `dir`.
    ///
    /// # Errors
    /// QEMU does not listen there, or does not speak QMP.
    pub fn connect(dir: &Path, name: &str) -> Result<Self> {
        // The path of the directory may be longer than a socket's may be (107 bytes).
        let dir = std::fs::File::open(dir)?;
        let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
        let stream = UnixStream::connect(path).context("QEMU's command socket")?;
        Self::over(stream)
    }

    fn over(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut qmp = Self {
            reader: BufReader::new(stream),
            deleted: Vec::new(),
        };
        if qmp.next()?.get("QMP").is_none() {
            bail!("QEMU's command socket does not greet");
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Asks the guest to let go of a device; returns at once.
    ///
    /// # Errors
    /// QEMU refuses.
    pub fn remove(&mut self, id: &str) -> Result<()> {
        self.deleted.retain(|gone| gone != id);
        self.execute("device_del", &json!({ "id": id }))
    }

    /// Plugs a device in, once the one before it is gone.
    ///
    /// # Errors
    /// The old one does not go, or QEMU refuses the new one.
    pub fn add(&mut self, id: &str, device: &Value) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !self.deleted.iter().any(|gone| gone == id) {
            let line = self
                .next()
                .with_context(|| format!("waiting until QEMU has let go of {id}"))?;
            self.event(&line);
            if Instant::now() > end {
                bail!("QEMU has not let go of {id} in {} s", PATIENCE.as_secs());
            }
        }
        self.execute("device_add", device)
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string();
        self.reader
            .get_mut()
            .write_all(format!("{text}\n").as_bytes())
            .context("QEMU's command socket")?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let line = self.next().with_context(|| command.to_owned())?;
            if let Some(error) = line.get("error") {
                bail!("QEMU refuses {command}: {error}");
            }
            if line.get("return").is_some() {
                return Ok(());
            }
            self.event(&line);
        }
        bail!(
            "QEMU has not answered {command} in {} s",
            PATIENCE.as_secs()
        )
    }

    fn event(&mut self, line: &Value) {
        if line["event"] == "DEVICE_DELETED"
            && let Some(id) = line["data"]["device"].as_str()
        {
            self.deleted.push(id.to_owned());
        }
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self
            .reader
            .read_line(&mut line)
            .context("QEMU's command socket")?;
        if read == 0 {
            bail!("QEMU closed its command socket");
        }
        serde_json::from_str(&line).context("QEMU's command socket")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that says these lines, each after a line of ours from the second on; returns what it heard.
    fn qemu(says: &'static [&'static str]) -> (UnixStream, std::thread::JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut heard = Vec::new();
            let mut reader = BufReader::new(theirs);
            for text in says {
                if text.starts_with("{\"return\"") || text.starts_with("{\"error\"") {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    heard.push(line);
                }
                writeln!(reader.get_mut(), "{text}").unwrap();
            }
            heard
        });
        (ours, thread)
    }

    #[test]
    fn a_device_is_added_only_after_the_old_one_has_gone() {
        let (stream, thread) = qemu(&[
            r#"{"QMP": {}}"#,
            r#"{"return": {}}"#,
            r#"{"return": {}}"#,
            r#"{"event": "DEVICE_DELETED", "data": {"path": "/machine/x"}}"#,
            r#"{"event": "DEVICE_DELETED", "data": {"device": "nd0"}}"#,
            r#"{"return": {}}"#,
        ]);
        let mut qmp = Qmp::over(stream).unwrap();
        qmp.remove("nd0").unwrap();
        qmp.add("nd0", &json!({ "id": "nd0" })).unwrap();
        let heard = thread.join().unwrap();
        assert!(heard[1].contains("device_del") && heard[2].contains("device_add"));
    }

    #[test]
    fn refusals_are_passed_on() {
        let (stream, thread) = qemu(&[
            r#"{"QMP": {}}"#,
            r#"{"return": {}}"#,
            r#"{"error": {"desc": "Device 'nd7' not found"}}"#,
        ]);
        let mut qmp = Qmp::over(stream).unwrap();
        let error = qmp.remove("nd7").unwrap_err().to_string();
        assert!(error.contains("not found"), "{error}");
        thread.join().unwrap();
    }
}

//! A running server, and a minimal client that posts its writes as QEMU does.
//!
//! Shared by tests and the benchmark; each uses a part.
#![allow(dead_code, reason = "every test binary uses a part of it")]

pub mod raw;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_neuron-vfio-user");

/// `neuron-vfio-user serve` with a directory of its own, killed at the latest when dropped.
pub struct Served {
    pub directory: TempDir,
    socket: PathBuf,
    child: Child,
    stderr: Option<std::process::ChildStderr>,
}

impl Served {
    /// Starts it and waits until it is ready.
    pub fn start(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        Self::launch(directory, socket, options)
    }

    /// The same at a path of the caller's.
    pub fn start_at(socket: &Path, options: &[&str]) -> Self {
        Self::launch(tempfile::tempdir().unwrap(), socket.to_owned(), options)
    }

    /// Several devices with their sockets in a directory that is not there yet; `socket` is that of the first.
    pub fn start_many(devices: u8, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("sockets");
        let count = devices.to_string();
        let mut all = vec!["--devices", &count];
        all.extend(options);
        let socket = place.join("neuron0.sock");
        Self::launch_at(
            directory,
            socket,
            ["--socket-dir".as_ref(), place.as_os_str()],
            &all,
        )
    }

    fn launch(directory: TempDir, socket: PathBuf, options: &[&str]) -> Self {
        let path = socket.clone();
        Self::launch_at(
            directory,
            socket,
            ["--socket".as_ref(), path.as_os_str()],
            options,
        )
    }

    fn launch_at(
        directory: TempDir,
        socket: PathBuf,
        place: [&std::ffi::OsStr; 2],
        options: &[&str],
    ) -> Self {
        // The shell makes descriptor 3 from the pipe that std can give it.
        let mut child = Command::new("sh")
            .args([
                "-c",
                r#"exec "$0" "$@" 3>&1 >/dev/null"#,
                BINARY,
                "serve",
                "--ready-fd",
                "3",
            ])
            .args(place)
            .args(options)
            // The symbols that it would load are not what is measured.
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // To its end: the server has closed it by then, and no count of descriptors has it in it.
        let ready = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
        let stderr = child.stderr.take();
        let mut served = Self {
            directory,
            socket,
            child,
            stderr,
        };
        if ready != "READY\n" {
            let status = served.child.wait().unwrap();
            panic!("serve did not get ready ({status}): {}", served.log());
        }
        served
    }

    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal and waits for the end; panics if it takes long.
    pub fn end(&mut self, signal: Signal) -> (ExitStatus, String) {
        kill_process(self.pid(), signal).unwrap();
        self.wait()
    }

    /// Waits for the end; panics if it takes long.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "serve did not end"
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        (status, self.log())
    }

    /// What it wrote to stderr; waits for its end.
    fn log(&mut self) -> String {
        let mut log = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        log
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the binary to its end: exit code, stdout, stderr.
pub fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

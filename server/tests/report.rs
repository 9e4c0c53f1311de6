//! `--sanitize` and `--report` as a user meets them, sandbox and all.
mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::raw::RawClient;
use common::{Served, text};
use neuron_protocol::cycle::{QueueLocation, Registers};
use neuron_protocol::generation::V3;
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::DRTP_INC;
use rustix::process::Signal;
use serde_json::Value;

/// A driver that rings a queue nobody programmed. The answer to the read says that the device has seen it, or is gone.
fn misbehave(socket: &Path) -> RawClient {
    let mut client = RawClient::connect(socket).unwrap();
    client.enable().unwrap();
    let location = QueueLocation::new(&V3, 128, 0).unwrap();
    let doorbell = location.register(Direction::S2m, DRTP_INC);
    client.write32(doorbell, 4).unwrap();
    let _ = client.read32(doorbell);
    client
}

fn json(directory: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(directory.join(name)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"))
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_report_is_there_when_the_client_leaves_and_at_the_end() {
    let place = tempfile::tempdir().unwrap();
    let reports = place.path().join("reports");
    let mut served = Served::start(&["--sanitize", "--report", text(&reports)]);
    let findings = || json(&reports, "nd0-findings.json");
    wait_until("no report at the start", || {
        reports.join("nd0-findings-junit.xml").exists()
    });
    assert_eq!(findings()["errors"], 0);
    drop(misbehave(&served.socket()));
    wait_until("no report of the client", || findings()["errors"] == 1);
    let status = json(&reports, "nd0-status.json");
    assert_eq!(status["aborted"][0][0], 128, "state of before it left");
    let (exit, log) = served.end(Signal::TERM);
    assert_eq!(exit.code(), Some(0), "warn changes no exit status: {log}");
    assert!(log.contains("doorbell-uninitialised"), "{log}");
    assert!(
        log.contains("sanitizer: 1 error, 0 suspicions"),
        "no summary: {log}"
    );
    let finding = &findings()["findings"][0];
    assert_eq!(finding["rule"], "doorbell-uninitialised");
    assert_eq!(
        (&finding["engine"], &finding["queue"]),
        (&128.into(), &0.into())
    );
    // The end says nothing of the state that the client left: that stays.
    assert_eq!(json(&reports, "nd0-status.json")["aborted"][0][0], 128);
    let junit = std::fs::read_to_string(reports.join("nd0-findings-junit.xml")).unwrap();
    assert!(junit.contains("failures=\"1\""), "{junit}");
    assert!(reports.join("nd0-dump.txt").exists() && reports.join("nd0-budget.json").exists());
    let coverage = std::fs::read_to_string(reports.join("nd0-coverage.json")).unwrap();
    assert!(coverage.contains("drtp_inc"), "{coverage}");
    let hidden = std::fs::read_dir(&reports).unwrap();
    let hidden = hidden.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str().unwrap().starts_with('.')
    });
    assert_eq!(hidden.count(), 0, "half-written files");
}

#[test]
fn fatal_ends_the_device_and_the_process_when_it_was_the_last() {
    let mut served = Served::start(&["--sanitize=fatal"]);
    let _client = misbehave(&served.socket());
    wait_until("it goes on", || !served.socket().exists());
    let (exit, log) = served.wait();
    assert_eq!(exit.code(), Some(5), "{log}");
    assert!(
        log.contains("ended by --sanitize=fatal: doorbell-uninitialised"),
        "{log}"
    );
}

#[test]
fn fatal_spares_the_other_devices() {
    let mut served = Served::start_many(2, &["--sanitize=fatal"]);
    let _client = misbehave(&served.socket());
    wait_until("it goes on", || !served.socket().exists());
    let other = served.socket().with_file_name("neuron1.sock");
    let mut client = RawClient::connect(&other).unwrap();
    client.enable().unwrap();
    assert!(client.read32(0).is_ok());
    drop(client);
    let (exit, log) = served.end(Signal::TERM);
    assert_eq!(exit.code(), Some(5), "{log}");
    assert!(log.contains("1 devices go on"), "{log}");
}

#[test]
fn without_the_option_nothing_is_judged() {
    let mut served = Served::start(&[]);
    drop(misbehave(&served.socket()));
    let (exit, log) = served.end(Signal::TERM);
    assert_eq!(exit.code(), Some(0));
    assert!(!log.contains("sanitizer"), "{log}");
}

#[test]
fn a_report_directory_that_cannot_be_had_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let socket = place.path().join("s");
    let arguments = ["serve", "--socket", text(&socket), "--report", text(&file)];
    let (code, _, stderr) = common::run(&arguments);
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("--report") && stderr.contains("no directory"),
        "{stderr}"
    );
    assert!(!socket.exists(), "it left its socket");
}

//! `probe` end to end: an independent client, the driver's half of the cycle, our server.
mod common;

use common::{Served, run, text};
use rustix::process::Signal;

fn passes(options: &[&str], words: &str) {
    let mut served = Served::start(options);
    let (code, stdout, stderr) = run(&["probe", text(&served.socket())]);
    let (status, log) = served.end(Signal::TERM);
    assert_eq!(code, 0, "{options:?}: {stdout}{stderr}\n{log}");
    assert!(stdout.contains(words), "{options:?}: {stdout}");
    assert!(stdout.ends_with("PASS\n"), "{stdout}");
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains(" 0 errors"), "{log}");
}

#[test]
fn every_product_passes() {
    passes(
        &["--product", "trn1"],
        "1d0f:7164 revision 255 (platform qemu)",
    );
    passes(&["--product", "inf2"], "inf2 (V2)");
    passes(
        &["--product", "trn2", "--hbm", "4G"],
        "8 copy: e128.q0 e128.q1",
    );
    passes(&["--product", "trn3"], "4 HBM stacks");
}

#[test]
fn every_platform_passes() {
    passes(&["--platform", "silicon"], "revision 0 (platform silicon)");
    passes(
        &["--product", "trn1", "--platform", "silicon"],
        "2 copy: e32.q0 e33.q0",
    );
    passes(
        &["--platform", "emulator"],
        "revision 240 (platform emulator)",
    );
}

#[test]
fn mapped_device_memory_passes() {
    passes(&["--mmap-hbm"], "trn2 (V3)");
}

#[test]
fn identity_is_what_was_asked_for() {
    passes(
        &["--routing-id", "5", "--serial", "0xabc"],
        "routing id 5 (/dev/neuron15), serial 0xabc",
    );
}

#[test]
fn the_next_client_finds_a_fresh_device() {
    let served = Served::start(&[]);
    for _ in 0..2 {
        let (code, stdout, stderr) = run(&["probe", text(&served.socket()), "--json"]);
        assert_eq!(code, 0, "{stderr}");
        let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(value["product"], "trn2");
        assert_eq!(value["copies"].as_array().unwrap().len(), 8 * 8 + 4);
    }
}

#[test]
fn a_second_client_is_told_why() {
    let served = Served::start(&[]);
    let _first = common::raw::RawClient::connect(&served.socket()).unwrap();
    let (code, _, stderr) = run(&["probe", text(&served.socket())]);
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("another client"), "{stderr}");
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (code, _, stderr) = run(&["probe", text(&socket), "--timeout", "1"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("connecting: no answer"), "{stderr}");
}

//! What people do with a running server: `ctl`, metrics, time lines, logs.
#![expect(clippy::float_cmp, reason = "whole numbers, as the parser gives them")]
mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::raw::RawClient;
use common::{BINARY, Served, text};
use neuron_protocol::cycle::{Device, QueueLocation, QueuePair, Registers};
use neuron_protocol::generation::Product;
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::DRTP_INC;
use neuron_protocol::ring::RingSize;
use neuron_vfio_user::observe::timeline::proto::Packets;
use neuron_vfio_user::probe::GuestRam;
use prometheus_parse::{Scrape, Value};
use rustix::process::Signal;

fn ctl(served: &Served, words: &[&str]) -> Output {
    Command::new(BINARY)
        .arg("ctl")
        .arg("--socket")
        .arg(served.socket())
        .args(words)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn stderr(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_command_has_its_own_help_and_words() {
    let help = |words: &[&str]| {
        let output = Command::new(BINARY)
            .arg("ctl")
            .args(words)
            .arg("--help")
            .output()
            .unwrap();
        stdout(&output)
    };
    assert!(!help(&["status"]).contains("hexadecimal"));
    assert!(help(&["notify"]).contains("hexadecimal"));
    assert!(help(&["timeline", "start"]).contains("FILE"));
    let served = Served::start(&[]);
    stderr(&ctl(&served, &["status", "core"]), 2);
    stderr(&ctl(&served, &["notify", "core", "0", "3"]), 2);
    stderr(&ctl(&served, &["notify", "gpu", "0", "3", "00"]), 2);
    // Refused, which loses nothing.
    let error = stderr(&ctl(&served, &["notify", "core", "0", "3", "00ff"]), 1);
    assert!(error.contains("nd0"), "{error}");
    let report: serde_json::Value =
        serde_json::from_str(&stdout(&ctl(&served, &["status", "--json"]))).unwrap();
    assert_eq!(report[0]["counters"]["notifications_lost"], 0);
}

#[test]
fn reset_drain_log_and_stop_do_what_they_say() {
    let mut served = Served::start_many(2, &[]);
    let directory = served.socket().parent().unwrap().to_owned();
    let ask = |words: &[&str]| {
        Command::new(BINARY)
            .arg("ctl")
            .arg("--socket-dir")
            .arg(&directory)
            .args(words)
            .output()
            .unwrap()
    };
    let error = stderr(&ask(&["reset"]), 1);
    assert!(error.contains("--device ID"), "{error}");
    stderr(&ask(&["reset", "--device", "63"]), 1);
    let status = |ask: &dyn Fn(&[&str]) -> Output| stdout(&ask(&["status"]));
    let ids: Vec<String> = status(&ask)
        .lines()
        .filter_map(|line| line.strip_prefix("nd"))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 2);
    assert!(stdout(&ask(&["reset", "--device", &ids[1]])).contains("reset"));
    assert_eq!(
        stdout(&ask(&["drain", "--timeout", "0"]))
            .matches(": idle")
            .count(),
        2
    );

    let error = stderr(&ask(&["log", "loud"]), 1);
    assert!(error.contains("no level"), "{error}");
    assert!(stdout(&ask(&["log", "debug"])).contains("debug"));
    assert!(stdout(&ask(&["stop"])).contains("stopping"));
    // It ends by itself; the signal only makes sure.
    std::thread::sleep(Duration::from_millis(300));
    let (status, log) = served.end(Signal::TERM);
    assert_eq!(status.code(), Some(0));
    assert!(
        log.contains("log filter is now debug") && log.contains("stopping on request"),
        "{log}"
    );
}

#[test]
fn drain_names_the_queue_that_is_not_idle() {
    let served = Served::start(&["--product", "trn2"]);
    // A doorbell before the guest allows DMA.
    let mut neuron = Device {
        registers: RawClient::connect(&served.socket()).unwrap(),
        memory: GuestRam::new(1 << 32, 1 << 20).unwrap(),
        delay: (),
        generation: Product::Trn2.generation(),
    };
    let size = RingSize::new(64).unwrap();
    let mut pair = QueuePair::new(&neuron, 3, 1, size, 1 << 32, (1 << 32) + 4096).unwrap();
    pair.init(&mut neuron).unwrap();
    let doorbell = QueueLocation::new(neuron.generation, 3, 1)
        .unwrap()
        .register(Direction::M2s, DRTP_INC);
    neuron.registers.write32(doorbell, 1).unwrap();
    // Writes are posted: a read tells that it has arrived.
    neuron.registers.read32(doorbell).unwrap();
    let begun = Instant::now();
    let error = stderr(&ctl(&served, &["drain", "--timeout", "1"]), 1);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(
        error.contains("after 1 s nd0 is not idle: engine 3 queue 1 has 1 m2s"),
        "{error}"
    );
    // More of them than are answered at a time hold up nobody else.
    let mut patient: Vec<_> = (0..6)
        .map(|_| {
            Command::new(BINARY)
                .args(["ctl", "--socket"])
                .arg(served.socket())
                .args(["drain", "--timeout", "600"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    stdout(&ctl(&served, &["status"]));
    stdout(&ctl(&served, &["stop"]));
    for drain in &mut patient {
        assert!(!drain.wait().unwrap().success());
    }
}

#[test]
fn time_lines_start_and_stop_while_confined() {
    let served = Served::start(&[]);
    let file = served.directory.path().join("t.perfetto-trace");
    let path = file.to_str().unwrap();
    let error = stderr(&ctl(&served, &["timeline", "stop"]), 1);
    assert!(error.contains("no time line"), "{error}");
    for _ in 0..2 {
        stdout(&ctl(&served, &["timeline", "start", path]));
        let other = served.directory.path().join("u");
        let error = stderr(&ctl(&served, &["timeline", "start", text(&other)]), 1);
        assert!(error.contains("stop it first"), "{error}");
        stdout(&ctl(&served, &["reset"]));
        let words = stdout(&ctl(&served, &["timeline", "stop"]));
        assert!(words.contains("1 events,"), "{words}");
        let mut events = 0;
        Packets(&std::fs::read(&file).unwrap())
            .each(|packet| events += u32::from(packet.timestamp.is_some()))
            .unwrap();
        assert_eq!(events, 1);
    }
    // Whoever does not read a pipe would decide when the device's threads may end.
    for what in [&["timeline", "start"][..], &["record", "start"]] {
        let error = stderr(&ctl(&served, &[what, &["/dev/stdout"]].concat()), 1);
        assert!(error.contains("write to a file"), "{error}");
    }
    let error = stderr(&ctl(&served, &["timeline", "start", "/nowhere/t"]), 1);
    assert!(error.contains("/nowhere/t"), "{error}");
}

/// A page taken apart by a parser that is not ours: simple samples by name and labels.
fn parse(page: &str) -> BTreeMap<String, f64> {
    assert!(page.ends_with("# EOF\n"), "{page}");
    let scrape = Scrape::parse(page.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let mut samples = BTreeMap::new();
    for sample in scrape.samples {
        let mut labels: Vec<_> = sample
            .labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{value}\""))
            .collect();
        labels.sort();
        let name = format!("{}{{{}}}", sample.metric, labels.join(","));
        match sample.value {
            Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => {
                samples.insert(name, value);
            }
            Value::Histogram(buckets) => {
                // Its count and sum are samples of their own.
                assert!(!buckets.is_empty(), "{page}");
            }
            Value::Summary(_) => panic!("{page}"),
        }
    }
    samples
}

fn get(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Silent clients hold their places until others come, not until their time is over.
#[test]
fn silent_scrapers_keep_out_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("metrics");
    let address = format!("unix:{}", socket.display());
    let _served = Served::start(&["--metrics", &address]);
    let start = std::time::Instant::now();
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.extend((0..40).map(|_| UnixStream::connect(&socket).unwrap()));
        let (head, _) = get(UnixStream::connect(&socket).unwrap(), GET);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    }
    // With places that are only given up in time, each round waits for seconds.
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn metrics_tell_what_each_engine_did() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("metrics");
    let address = format!("unix:{}", socket.display());
    let mut served = Served::start(&["--product", "trn2", "--metrics", &address]);
    let scrape = || {
        let (head, body) = get(UnixStream::connect(&socket).unwrap(), GET);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())),
            "{head}"
        );
        parse(&body)
    };
    let before = scrape();
    assert_eq!(before[r#"neuron_up{device="0"}"#], 1.0);
    assert_eq!(
        before[r#"neuron_device_info{device="0",platform="qemu",product="trn2"}"#],
        1.0
    );
    assert!(before["neuron_resident_bytes{}"] > 1e6);
    assert!(
        !before.keys().any(|name| name.contains("engine=")),
        "{before:?}"
    );

    let output = Command::new(BINARY)
        .arg("probe")
        .arg(served.socket())
        .output()
        .unwrap();
    stdout(&output);
    let after = scrape();
    let engine = |name: &str| {
        let prefix = format!("neuron_{name}{{");
        after
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && key.contains("engine="))
            .map(|(_, value)| value)
            .sum::<f64>()
    };
    let report: serde_json::Value =
        serde_json::from_str(&stdout(&ctl(&served, &["status", "--json"]))).unwrap();
    let counter = |name: &str| report[0]["counters"][name].as_f64().unwrap();
    assert!(counter("batches") > 0.0);
    assert_eq!(engine("doorbells_total"), counter("doorbells"));
    assert_eq!(engine("descriptors_total"), counter("descriptors"));
    assert_eq!(engine("copied_bytes_total"), counter("bytes"));
    assert_eq!(engine("batches_total"), counter("batches"));
    assert_eq!(engine("batch_latency_seconds_count"), counter("batches"));
    assert!(engine("batch_latency_seconds_sum") > 0.0);
    assert!(after[r#"neuron_slices_total{device="0"}"#] > 0.0);
    served.end(Signal::TERM);
    assert!(!socket.exists(), "the socket file is left behind");
}

#[test]
fn the_endpoint_is_strict_and_bounded() {
    let refused = Command::new(BINARY)
        .args([
            "serve",
            "--socket",
            "/nowhere/s",
            "--metrics",
            "0.0.0.0:9464",
        ])
        .output()
        .unwrap();
    assert!(stderr(&refused, 2).contains("other machines"));
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let served = Served::start(&["--metrics", &free]);
    let ask = |request: &str| get(TcpStream::connect(&free).unwrap(), request);
    let (head, body) = ask("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty());
    assert!(ask("GET / HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 404"));
    assert!(
        ask("POST /metrics HTTP/1.1\r\n\r\n")
            .0
            .starts_with("HTTP/1.1 405")
    );
    assert!(ask("nonsense \x01\r\n\r\n").0.starts_with("HTTP/1.1 400"));
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(8 << 10));
    assert!(ask(&long).0.starts_with("HTTP/1.1 431"));
    // Clients that say nothing hold up others only for a while.
    let silent: Vec<_> = (0..6).map(|_| TcpStream::connect(&free).unwrap()).collect();
    let begun = Instant::now();
    assert!(ask(GET).0.starts_with("HTTP/1.1 200"));
    assert!(begun.elapsed() < Duration::from_secs(12));
    drop(silent);
    drop(served);
}

#[test]
fn a_time_line_file_that_cannot_be_made_is_named() {
    let output = Command::new(BINARY)
        .args(["serve", "--timeline", "/nowhere/t", "--socket"])
        .arg(tempfile::tempdir().unwrap().path().join("s"))
        .output()
        .unwrap();
    let error = stderr(&output, 1);
    assert!(error.contains("--timeline /nowhere/t"), "{error}");
}

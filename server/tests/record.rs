//! Recordings end to end: the server records, `replay` finds the same, and finds what is not.
mod common;

use std::path::Path;

use common::{Served, run, text};
use neuron_vfio_user::policy::{Point, Policy, Verdict};
use neuron_vfio_user::record::{Replay, ReplayError};
use rustix::process::Signal;

/// A session of `probe`, recorded.
fn recorded(file: &Path, options: &[&str], signal: Signal) {
    let mut all = vec!["--record", text(file)];
    all.extend(options);
    let mut served = Served::start(&all);
    let (code, stdout, stderr) = run(&["probe", text(&served.socket())]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    // What is not written 200 ms after it happened is lost with a killed process.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let (_, log) = served.end(signal);
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn a_session_replays_the_same() {
    let directory = tempfile::tempdir().unwrap();
    for (name, options) in [
        ("full", &["--product", "trn1"][..]),
        ("none", &["--product", "trn2", "--record-payload", "none"]),
        ("adverse", &["--product", "trn1", "--adversary", "7"]),
        (
            "timed",
            &[
                "--product",
                "inf2",
                "--timing",
                "2.5",
                "--record-payload",
                "none",
            ],
        ),
    ] {
        let file = directory.path().join(name);
        recorded(&file, options, Signal::TERM);
        let (code, stdout, stderr) = run(&["replay", text(&file)]);
        assert_eq!(code, 0, "{name}: {stdout}{stderr}");
        assert!(stdout.contains(": the same: "), "{stdout}");
        assert!(!stdout.contains("end mark"), "{stdout}");
    }
    let size = |name| {
        std::fs::metadata(directory.path().join(name))
            .unwrap()
            .len()
    };
    assert!(size("none") < 1 << 20, "{}", size("none"));
    // What the device does now, recorded: the same once more.
    let (old, new) = (directory.path().join("none"), directory.path().join("new"));
    let (code, stdout, stderr) = run(&["replay", "--rewrite", text(&new), text(&old)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let (code, stdout, stderr) = run(&["replay", text(&new)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

/// `ctl` on a served device: exit code and all that it said.
fn ctl(served: &Served, arguments: &[&str]) -> (i32, String) {
    let socket = served.socket();
    let mut all = vec!["ctl", "--socket", text(&socket)];
    all.extend(arguments);
    let (code, stdout, stderr) = run(&all);
    (code, stdout + &stderr)
}

#[test]
fn a_recording_that_is_asked_for_later_replays_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("later.rec");
    let served = Served::start(&["--product", "trn1"]);
    let probe = || {
        let (code, stdout, stderr) = run(&["probe", text(&served.socket())]);
        assert_eq!(code, 0, "{stdout}{stderr}");
    };
    // A session that leaves counters, registers and device time behind.
    probe();
    let (code, said) = ctl(&served, &["record", "start", text(&file)]);
    assert_eq!((code, said.as_str()), (0, "nd0: recording\n"));
    probe();
    // A second request must not cost the first one's file.
    let (code, said) = ctl(&served, &["record", "start", text(&file)]);
    assert!(code == 1 && said.contains("recorded already"), "{said}");
    let (code, said) = ctl(&served, &["fault", "add", "marker-drop-once"]);
    assert!(code == 1 && said.contains("record stop"), "{said}");
    let (code, said) = ctl(&served, &["record", "stop"]);
    assert!(code == 0 && said.contains(" bytes recorded\n"), "{said}");
    let (code, said) = ctl(&served, &["record", "stop"]);
    assert!(code == 1 && said.contains("not being recorded"), "{said}");
    // What comes later is not in it.
    probe();
    let (code, stdout, stderr) = run(&["replay", text(&file)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.contains("the recording was ended by order"),
        "{stdout}"
    );
    let (code, stdout, stderr) = run(&["coverage", text(&file), "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.len() > 1000, "{stdout}");
}

#[test]
fn a_recording_waits_for_a_client_that_is_in_the_middle() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("waits.rec");
    let served = Served::start(&["--product", "trn2"]);
    let mut client = common::raw::RawClient::connect(&served.socket()).unwrap();
    client.enable().unwrap();
    let (code, said) = ctl(
        &served,
        &["record", "start", text(&file), "--payload", "none"],
    );
    assert!(code == 0 && said.contains("with the next client"), "{said}");
    let (_, said) = ctl(&served, &["record", "stop"]);
    assert!(said.contains("and empty"), "{said}");
    let (_, said) = ctl(
        &served,
        &["record", "start", text(&file), "--payload", "none"],
    );
    assert!(said.contains("with the next client"), "{said}");
    drop(client);
    let (code, stdout, stderr) = run(&["probe", text(&served.socket())]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let (code, said) = ctl(&served, &["record", "stop"]);
    assert!(code == 0 && said.contains(" bytes recorded\n"), "{said}");
    let (code, stdout, stderr) = run(&["replay", text(&file)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

#[test]
fn a_killed_server_leaves_a_good_recording() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("killed");
    recorded(&file, &["--record-payload", "none"], Signal::KILL);
    let (code, stdout, stderr) = run(&["replay", text(&file)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("no end mark"), "{stdout}");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 7]).unwrap();
    let (code, stdout, stderr) = run(&["replay", text(&file)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("within a block"), "{stdout}");
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let serve = |options: &[&str]| {
        let mut all = vec!["serve", "--socket", text(&socket)];
        all.extend(options);
        run(&all)
    };
    let (code, _, stderr) = serve(&["--record", "/no/such/file"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("--record /no/such/file: "), "{stderr}");
    let file = directory.path().join("f");
    let (code, _, stderr) = serve(&["--record", text(&file), "--mmap-hbm"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("cannot be used with"), "{stderr}");
    std::fs::write(&file, "no recording").unwrap();
    let (code, _, stderr) = run(&["replay", text(&file)]);
    assert_eq!(code, 1);
    assert!(stderr.contains("not a recording"), "{stderr}");
}

/// The recordings of real drivers that are kept.
fn kept() -> Vec<std::path::PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-tests/recordings");
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rec"))
        .collect();
    files.sort();
    files
}

#[test]
fn real_drivers_sessions_replay_the_same() {
    let files = kept();
    for product in ["trn1", "inf2", "trn2", "trn3"] {
        assert!(
            files.iter().any(|file| file
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(product)),
            "no recording of {product}"
        );
    }
    for file in files {
        let outcome = Replay::new(std::fs::read(&file).unwrap()).unwrap().run();
        let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(outcome.counts.events > 100 && outcome.counts.written > 0);
        assert!(outcome.end.is_some(), "{}", file.display());
        assert!(outcome.elapsed < outcome.recorded, "{outcome:?}");
    }
}

/// Loses one copy, and nobody is told.
struct LoseOne(u32);

impl Policy for LoseOne {
    fn judge(&mut self, _now: std::time::Duration, point: &Point) -> Verdict {
        let Point::Copy { .. } = point else {
            return Verdict::Proceed;
        };
        self.0 = self.0.saturating_sub(1);
        if self.0 == 1 {
            Verdict::Drop
        } else {
            Verdict::Proceed
        }
    }
}

#[test]
fn a_device_that_loses_a_copy_is_found_out() {
    for file in kept() {
        let mut replay = Replay::new(std::fs::read(&file).unwrap()).unwrap();
        replay
            .function_mut()
            .policies_mut()
            .add(Box::new(LoseOne(2)));
        let Err(ReplayError::Diverged(divergence)) = replay.run() else {
            panic!("{}: nothing found", file.display());
        };
        let words = divergence.to_string();
        assert!(
            divergence.expected.contains("guest") || divergence.actual.contains("guest"),
            "{words}"
        );
        assert!(words.contains("as descriptors ["), "{words}");
        assert!(words.contains("drtp_inc = "), "{words}");
        assert!(divergence.before.len() > 5 && divergence.after.len() > 3);
    }
}

#[test]
fn coverage_is_the_same_live_and_recorded_and_differs_between_products() {
    let directory = tempfile::tempdir().unwrap();
    let [recording, live] = ["r", "c"].map(|name| directory.path().join(name));
    recorded(
        &recording,
        &["--coverage", text(&live), "--record-payload", "none"],
        Signal::TERM,
    );
    let table = |file: &Path| {
        let (code, stdout, stderr) = run(&["coverage", text(file)]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        stdout
    };
    let expected = table(&live);
    assert!(expected.contains("eng * m2s q* drtp_inc"), "{expected}");
    assert_eq!(table(&recording), expected);
    let trn1 = kept().into_iter().find(|file| text(file).contains("trn1"));
    let (code, stdout, _) = run(&["coverage", "diff", text(&trn1.unwrap()), text(&recording)]);
    assert_eq!(code, 0);
    assert!(stdout.contains("\n- misc_ram.reset"), "{stdout}");
}

#[test]
fn a_page_needs_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("page.html");
    for file in kept() {
        let (code, stdout, stderr) = run(&["show", text(&file), "--output", text(&page)]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        let html = std::fs::read_to_string(&page).unwrap();
        for part in [
            "Time line",
            "batches</text>",
            "drtp_inc",
            "bus mastering on",
            "</html>",
        ] {
            assert!(html.contains(part), "{part}: {}", file.display());
        }
        for foreign in ["http", "<script", "<link", "url("] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        assert!(html.len() < 1 << 20);
    }
}

/// From memory with a file to memory without one, with payload left out: what the client is asked to write is then known by
/// its length alone.
#[test]
fn left_out_payload_that_leaves_by_message_is_no_difference() {
    use neuron_protocol::cycle::QueueLocation;
    use neuron_protocol::descriptor::{Barrier, RxDescriptor, TxDescriptor};
    use neuron_protocol::generation::{Platform, Product};
    use neuron_protocol::registers::{Direction, queue};
    use neuron_protocol::ring::RingId;
    use neuron_vfio_user::function::{Config, NeuronFunction};
    use neuron_vfio_user::record::{Header, Journal, Payload, Recorded};
    use neuron_vfio_user::vfio::{DmaMap, DmaRequest, PciFunction, Protection};
    use rustix::fs::MemfdFlags;
    use zerocopy::IntoBytes;

    const LENGTH: u32 = 4096;
    for payload in [Payload::Full, Payload::None] {
        let config = Config::new(Product::Trn2, Platform::Silicon);
        let generation = Product::Trn2.generation();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let header = Header::new(&config, payload);
        let out = std::fs::File::create(&path).unwrap();
        let journal = Journal::start(out, &header, u64::MAX, "test").unwrap();
        let mut device = Recorded::new(NeuronFunction::new(config).unwrap(), Some(journal));
        let file = rustix::fs::memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
        let bytes: Vec<u8> = (0..LENGTH)
            .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
            .collect();
        let host = |address| generation.host_to_soc(address).unwrap();
        let ring_id = RingId::INITIAL;
        let (source, tx_ring, rx_ring, target) = (0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000);
        let tx = TxDescriptor::copy(host(source), LENGTH, ring_id, Barrier::None).unwrap();
        let rx = RxDescriptor::new(host(target), LENGTH, ring_id, Barrier::None).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        for (at, what) in [
            (source, bytes.as_slice()),
            (tx_ring, tx.as_bytes()),
            (rx_ring, rx.as_bytes()),
        ] {
            rustix::io::pwrite(&file, what, at).unwrap();
        }
        for (iova, file) in [(0, Some((file, 0))), (target, None)] {
            let protection = Protection {
                read: true,
                write: true,
            };
            let map = DmaMap {
                iova,
                size: 1 << 20,
                protection,
                file,
            };
            device.dma_map(map).unwrap();
        }
        device.region_write(7, 4, &[6, 0]).unwrap();
        let at = QueueLocation::new(generation, 0, 0).unwrap();
        for (direction, ring) in [(Direction::S2m, rx_ring), (Direction::M2s, tx_ring)] {
            let base = host(ring);
            for (register, value) in [
                (queue::DRBP_LOW, base & 0xffff_ffff),
                (queue::DRBP_HIGH, base >> 32),
                (queue::DRL, 64),
                (queue::CFG, 0x3_0000),
                (queue::DRTP_INC, 1),
            ] {
                let value = u32::try_from(value).unwrap().to_le_bytes();
                let offset = u64::from(at.register(direction, register));
                device.region_write(0, offset, &value).unwrap();
            }
        }
        let mut written = Vec::new();
        for _ in 0..20 {
            device.run();
            while let Some((id, request)) = device.next_dma() {
                let DmaRequest::Write { iova, data } = request else {
                    panic!("{request:?}")
                };
                assert_eq!(iova, target + written.len() as u64);
                written.extend(data);
                device.dma_reply(id, Ok(Vec::new()));
            }
        }
        assert_eq!(written, bytes);
        drop(device);
        let replay = Replay::new(std::fs::read(&path).unwrap()).unwrap();
        replay.run().unwrap();
    }
}

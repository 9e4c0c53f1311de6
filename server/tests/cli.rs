//! The command line as a user meets it: clear answers to bad input, sockets that come and go.
mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use common::{Served, run, text};
use rustix::process::Signal;

/// Exit code, and what stderr says.
fn refused(arguments: &[&str]) -> (i32, String) {
    let (code, _, stderr) = run(arguments);
    (code, stderr)
}

#[test]
fn unknown_names_list_the_known_ones() {
    let (code, stderr) = refused(&["serve", "--socket", "s", "--product", "trn9"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("'trn9'") && stderr.contains("trn1, inf2, trn2, trn3"),
        "{stderr}"
    );
    let (code, stderr) = refused(&["serve", "--socket", "s", "--platform", "kvm"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("silicon, qemu, emulator"), "{stderr}");
}

#[test]
fn options_out_of_range_say_what_is_in_it() {
    for (option, value, words) in [
        ("--routing-id", "64", "0..=63"),
        ("--devices", "17", "1..=16"),
        ("--serial", "0", "no serial number"),
        ("--firmware-api", "8", "0..=7"),
        ("--firmware", "power=5", "add --firmware-api 3"),
        ("--firmware", "volts=1", "the keys are power=PERCENT"),
        ("--firmware", "hbm-repair=maybe", "none, pending or failed"),
        ("--hbm", "lots", "4G or 512M"),
        ("--hbm", "128M", "256 MiB"),
        ("--hbm", "3G", "power of two"),
        ("--log", "a=b=c", "--log 'a=b=c'"),
        ("--ready-fd", "77", "not open"),
        ("--ready-fd", "1", "0, 1 and 2 are taken"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let (code, stderr) = refused(&["serve", "--socket", text(&socket), option, value]);
        assert_eq!(code, 2, "{option} {value}: {stderr}");
        assert!(stderr.contains(words), "{option} {value}: {stderr}");
        assert!(!socket.exists(), "{option} {value} left its socket");
    }
}

#[test]
fn hbm_is_refused_where_the_driver_would_not_see_it() {
    for options in [["trn1", "qemu"], ["trn2", "silicon"], ["trn3", "emulator"]] {
        let (code, stderr) = refused(&[
            "serve",
            "--socket",
            "s",
            "--product",
            options[0],
            "--platform",
            options[1],
            "--hbm",
            "8G",
        ]);
        assert_eq!(code, 2);
        assert!(
            stderr.contains("--hbm 8G: the driver takes the size of HBM from BAR4 only"),
            "{stderr}"
        );
    }
}

#[test]
fn sockets_that_cannot_be_had_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("no/s");
    let (code, stderr) = refused(&["serve", "--socket", text(&missing)]);
    assert_eq!(code, 1);
    assert!(stderr.contains("no such directory"), "{stderr}");

    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let (code, stderr) = refused(&["serve", "--socket", text(&file)]);
    assert_eq!(code, 1);
    assert!(stderr.contains("not a socket"), "{stderr}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");

    let (code, stderr) = refused(&[
        "serve",
        "--socket",
        text(&directory.path().join("x".repeat(120))),
    ]);
    assert_eq!(code, 1);
    assert!(stderr.contains("107 bytes"), "{stderr}");

    // Not even root creates files here.
    let (code, stderr) = refused(&["serve", "--socket", "/proc/self/s"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("/proc/self"), "{stderr}");
}

#[test]
fn a_live_socket_is_refused_and_a_stale_one_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let live = UnixListener::bind(&socket).unwrap();
    let (code, stderr) = refused(&["serve", "--socket", text(&socket)]);
    assert_eq!(code, 1);
    assert!(stderr.contains("another process"), "{stderr}");
    drop(live);
    assert!(
        socket.exists(),
        "the refused server removed a socket that is not its own"
    );

    let control = directory.path().join("s.ctl");
    drop(UnixListener::bind(&control).unwrap());
    let mut served = Served::start_at(&socket, &[]);
    served.end(Signal::TERM);
}

#[test]
fn a_live_control_socket_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let control = directory.path().join("c");
    let _live = UnixListener::bind(&control).unwrap();
    let (code, stderr) = refused(&[
        "serve",
        "--socket",
        text(&socket),
        "--control",
        text(&control),
    ]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("--control") && stderr.contains("another process"),
        "{stderr}"
    );
    assert!(!socket.exists());
    assert!(control.exists());
}

#[test]
fn signals_end_it_cleanly_with_a_summary() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut served = Served::start(&[]);
        let (socket, control) = (served.socket(), served.directory.path().join("s.ctl"));
        assert!(socket.exists() && control.exists());
        // A client that is connected does not hold it up.
        let _client = UnixStream::connect(&socket).unwrap();
        let (status, log) = served.end(signal);
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!socket.exists() && !control.exists());
        assert!(log.contains("nd0 trn2/qemu: 0 doorbells"), "{log}");
    }
}

#[test]
fn the_control_socket_is_private() {
    let served = Served::start(&[]);
    let mode = std::fs::metadata(served.directory.path().join("s.ctl"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn several_devices_have_sockets_and_ids_of_their_own() {
    let mut served = Served::start(&["--devices", "2", "--product", "inf2", "--routing-id", "4"]);
    let socket = served.socket();
    for n in ["s.0", "s.1"] {
        assert!(served.directory.path().join(n).exists());
    }
    let (code, stdout, stderr) = run(&["ctl", "--socket", text(&socket), "status"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.contains("nd4 inf2/qemu") && stdout.contains("nd5 inf2/qemu"),
        "{stdout}"
    );
    let (_, log) = served.end(Signal::TERM);
    assert!(
        log.contains("nd5 inf2 on platform qemu, /dev/neuron5"),
        "{log}"
    );
    assert!(!served.directory.path().join("s.1").exists());
}

#[test]
fn ctl_answers_in_text_and_json() {
    let served = Served::start(&["--serial", "0x1234"]);
    let socket = served.socket();
    let (code, stdout, _) = run(&["ctl", "--socket", text(&socket), "status"]);
    assert_eq!(code, 0);
    assert!(
        stdout.starts_with("nd0 trn2/qemu serial 0x1234: no client yet"),
        "{stdout}"
    );
    assert!(
        stdout
            .lines()
            .nth(1)
            .unwrap()
            .contains("no queue was ever set up"),
        "{stdout}"
    );
    let (code, stdout, _) = run(&["ctl", "--socket", text(&socket), "dump", "--json"]);
    assert_eq!(code, 0);
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(value[0]["serial"], 0x1234);
}

#[test]
fn the_live_view_is_one_plain_frame_where_there_is_no_terminal() {
    let served = Served::start(&["--product", "trn1"]);
    let socket = served.socket();
    let (code, _, stderr) = run(&["probe", text(&socket)]);
    assert_eq!(code, 0, "{stderr}");
    let (code, stdout, stderr) = run(&["show", "--live", "--socket", text(&socket)]);
    assert_eq!(code, 0, "{stderr}");
    assert!(!stdout.contains('\u{1b}'), "{stdout:?}");
    for part in ["nd0  trn1/qemu ", "queue ", "last events of nd0", "marker"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let (code, _, stderr) = run(&["show", "--live", "--socket", "/no/such"]);
    assert!(
        code == 4 && stderr.contains("is `serve` running"),
        "{stderr}"
    );
    for wrong in [
        &["show"][..],
        &["show", "--live"],
        &["show", "f", "--socket", "s"],
    ] {
        assert_eq!(run(wrong).0, 2, "{wrong:?}");
    }
}

#[test]
fn a_device_slower_than_the_limit_has_an_exit_code_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("budget.json");
    for (timing, code) in [("silicon", 0), ("200", 6)] {
        // 4 us of the 39.9 ms for one descriptor on silicon, 2 % of them at 200 times its time.
        let mut served = Served::start(&[
            "--product",
            "trn1",
            "--timing",
            timing,
            "--budget-limit",
            "2.4",
            "--budget",
            text(&file),
        ]);
        let socket = served.socket();
        let (probed, _, stderr) = run(&["probe", text(&socket)]);
        assert_eq!(probed, 0, "{stderr}");
        let (_, stdout, _) = run(&["ctl", "--socket", text(&socket), "status"]);
        assert!(stdout.contains("of silicon's"), "{stdout}");
        let (status, log) = served.end(Signal::TERM);
        assert_eq!(status.code(), Some(code), "{timing}: {log}");
        assert_eq!(log.contains("--budget-limit"), code == 6, "{log}");
        let json = std::fs::read_to_string(&file).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value[0]["exceeded"].as_u64() > Some(0), code == 6, "{json}");
    }
    let (code, stderr) = refused(&[
        "serve",
        "--socket",
        text(&directory.path().join("s")),
        "--budget",
        "/nonexistent/file",
    ]);
    assert_eq!(code, 1);
    assert!(stderr.contains("--budget /nonexistent/file"), "{stderr}");
}

#[test]
fn ctl_and_probe_say_when_nobody_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    for arguments in [
        vec!["ctl", "--socket", text(&socket), "status"],
        vec!["probe", text(&socket)],
    ] {
        let (code, _, stderr) = run(&arguments);
        assert_eq!(code, 4, "{stderr}");
        assert!(stderr.contains("serve"), "{stderr}");
    }
    let (code, _, stderr) = run(&["ctl", "status"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--control"), "{stderr}");
}

#[test]
fn qemu_args_are_what_a_shell_and_a_program_can_use() {
    let (code, stdout, remarks) = run(&["qemu-args", "--socket", "/tmp/nd.sock", "--memory", "3G"]);
    assert_eq!(code, 0);
    assert_eq!(stdout.lines().count(), 1);
    assert!(
        stdout.contains("memory-backend-memfd,id=mem,size=3G,share=on"),
        "{stdout}"
    );
    assert!(stdout.contains(r#"'{"driver":"vfio-user-pci""#), "{stdout}");
    assert!(
        remarks.lines().all(|line| line.starts_with("# ")),
        "{remarks}"
    );

    let arguments = [
        "qemu-args",
        "--socket",
        "/tmp/nd.sock",
        "--devices",
        "2",
        "--platform",
        "silicon",
        "--json",
    ];
    let (_, stdout, _) = run(&arguments);
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let args: Vec<&str> = value["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect();
    assert!(args.contains(&"qemu64,phys-bits=46"), "{args:?}");
    let sockets = args
        .iter()
        .filter(|arg| arg.contains("/tmp/nd.sock."))
        .count();
    assert_eq!(sockets, 2);
}

#[test]
fn json_logs_are_json() {
    let mut served = Served::start(&["--log-format", "json"]);
    let (_, log) = served.end(Signal::TERM);
    for line in log.lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(
            value["message"].is_string() && value["level"].is_string(),
            "{line}"
        );
    }
    assert!(
        log.lines().any(|line| line.contains(r#""device":0"#)),
        "{log}"
    );
}

#[test]
fn version_and_help() {
    let (code, stdout, _) = run(&["--version"]);
    assert_eq!(
        (code, stdout.trim()),
        (0, concat!("neuron-vfio-user ", env!("CARGO_PKG_VERSION")))
    );
    let (code, stdout, _) = run(&["serve", "--help"]);
    assert_eq!(code, 0);
    for option in [
        "--product",
        "--platform",
        "--routing-id",
        "--serial",
        "--hbm",
        "--mmap-hbm",
        "--log",
        "--ready-fd",
    ] {
        assert!(stdout.contains(option), "{option}");
    }
}

/// A run whose output is not there has not done what was asked for, and says so with its exit code.
#[test]
fn a_lost_output_is_no_success() {
    for option in ["--budget", "--coverage"] {
        let mut served = Served::start(&[option, "/dev/full"]);
        let (status, log) = served.end(Signal::TERM);
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(
            log.contains(option) && log.contains("No space left"),
            "{log}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("one");
    let socket = directory.path().join("s");
    let [file, socket] = [file.as_path(), socket.as_path()].map(text);
    let (code, _, stderr) = run(&[
        "serve",
        "--socket",
        socket,
        "--record",
        file,
        "--timeline",
        file,
    ]);
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.contains("another option writes to the same file"),
        "{stderr}"
    );
    // What is refused leaves the last run's file alone.
    std::fs::write(file, "the last run").unwrap();
    let (code, _, stderr) = run(&["serve", "--socket", "/nowhere/s", "--record", file]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(std::fs::read(file).unwrap(), b"the last run");
}

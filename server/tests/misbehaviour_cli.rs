//! Faults on purpose from outside: options, files and `ctl fault`.
mod common;

use common::{Served, run, text};

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("faults.toml");
    std::fs::write(&file, "[[fault]]\non = \"marker\"\naction = \"value\"\n").unwrap();
    let socket = directory.path().join("s");
    let serve = |options: &[&str]| {
        let (code, _, stderr) = run(&[&["serve", "--socket", text(&socket)], options].concat());
        assert!(!socket.exists(), "{options:?}");
        (code, stderr)
    };
    for (options, words) in [
        (
            vec!["--faults", text(&file)],
            "line 3, column 10: value does not fit marker",
        ),
        (vec!["--faults", "nowhere.toml"], "No such file"),
        (vec!["--fault", "marker-dorp"], "--fault list"),
        // Platform qemu is the default.
        (vec!["--fault", "marker-drop-once"], "--platform silicon"),
        (
            vec!["--fault", "marker-drop-once", "--virtual-time"],
            "--platform silicon",
        ),
        (vec!["--fault", "reset-never"], "--virtual-time"),
        (
            vec!["--fault", "marker-late", "--virtual-time"],
            "by=15ms is the device's time",
        ),
        (vec!["--timing", "silicon", "--virtual-time"], "--timing"),
    ] {
        let (code, stderr) = serve(&options);
        assert_eq!(code, 2, "{options:?}: {stderr}");
        assert!(stderr.contains(words), "{options:?}: {stderr}");
    }
}

#[test]
fn the_scenarios_are_listed() {
    let (code, stdout, _) = run(&["serve", "--fault", "list"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("marker-drop-once\n    rule:"), "{stdout}");
}

#[test]
fn faults_come_and_go_while_a_device_is_served() {
    let served = Served::start(&["--fault", "data-drop-once"]);
    let socket = served.socket();
    let fault =
        |words: &[&str]| run(&[&["ctl", "--socket", text(&socket), "fault"], words].concat());
    let (code, stdout, _) = fault(&["list"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("data-drop-once: drop on copy, number 1: 0 of 0"),
        "{stdout}"
    );
    let (code, _, stderr) = fault(&["add", "marker-drop-once"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("--allow-hangs"), "{stderr}");
    let (code, stdout, _) = fault(&["add", "marker-drop-once", "--allow-hangs"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("marker-drop-once: drop on marker"),
        "{stdout}"
    );
    let (code, _, stderr) = fault(&["add", "on=mailbox", "action=tear-half"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("does not fit mailbox"), "{stderr}");
    let (code, stdout, _) = fault(&["clear"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("nothing goes wrong"), "{stdout}");
    // One whose data is lost: the probe compares.
    fault(&["add", "data-corrupt-once"]);
    let (code, stdout, _) = run(&["probe", text(&socket)]);
    assert_eq!(code, 1, "{stdout}");
    let (_, stdout, _) = fault(&["list"]);
    assert!(stdout.contains("1 of "), "{stdout}");
}

/// What the server was told of clock and chance holds for rules that come later, too.
#[test]
fn later_faults_rest_on_what_the_server_was_told() {
    let served = Served::start(&["--virtual-time", "--platform", "silicon"]);
    let socket = served.socket();
    let add = |rule| {
        run(&[
            "ctl",
            "--socket",
            text(&socket),
            "fault",
            "add",
            rule,
            "--allow-hangs",
        ])
    };
    let (code, _, stderr) = add("marker-late");
    assert_eq!(code, 1);
    assert!(stderr.contains("by=15ms is the device's time"), "{stderr}");
    assert_eq!(add("reset-never").0, 0);

    // The first byte of some copies is turned over: of which, the seed says.
    let hits = |options: &[&str], late: bool| {
        let rule = "on=copy action=corrupt byte=0 mask=1 chance=0.3";
        let at_start: &[&str] = if late { &[] } else { &["--fault", rule] };
        let served = Served::start(&[options, at_start].concat());
        let socket = served.socket();
        let ctl = |words: &[&str]| run(&[&["ctl", "--socket", text(&socket)], words].concat());
        if late {
            assert_eq!(ctl(&["fault", "add", rule]).0, 0);
        }
        run(&["probe", text(&socket)]);
        ctl(&["fault", "list"]).1
    };
    let seven = ["--platform", "silicon", "--fault-seed", "7"];
    let given = hits(&seven, false);
    assert_eq!(given, hits(&seven, true));
    assert_ne!(given, hits(&seven[..2], true));
}

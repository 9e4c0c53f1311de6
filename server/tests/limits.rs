//! The process under clients that come, go, map and leave: nothing grows, nothing is left behind.
#![allow(clippy::cast_possible_truncation, reason = "test code")]
mod common;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::raw::RawClient;
use common::{BINARY, Served, text};
use neuron_protocol::cycle::Registers;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(20);

fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("client-ram", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

fn proc_file(pid: Pid, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero())).unwrap()
}

fn descriptors(pid: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))
        .unwrap()
        .count()
}

/// Mappings of client files.
fn mappings(pid: Pid) -> usize {
    proc_file(pid, "maps").matches("client-ram").count()
}

/// Resident anonymous memory, KiB: what a leak would make grow.
fn resident(pid: Pid) -> u64 {
    let status = proc_file(pid, "status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// Connects when the last client's end has been seen: until then a second one is turned away.
fn connect(socket: &Path) -> RawClient {
    let start = Instant::now();
    loop {
        match RawClient::connect(socket) {
            Ok(client) => return client,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ten_thousand_mappings_are_held_and_freed() {
    const COUNT: u64 = 10_000;
    let served = Served::start(&[]);
    let pid = served.pid();
    let mut client = connect(&served.socket());
    let before = descriptors(pid);
    let file = memfd(1 << 20);
    for n in 0..COUNT {
        client.map_range(n << 13, 4096, Some(file.as_fd())).unwrap();
    }
    assert_eq!(mappings(pid), COUNT as usize);
    assert_eq!(
        descriptors(pid),
        before,
        "descriptors of mapped files are kept"
    );
    // Half of them one by one, in another order, the rest at once.
    for n in (0..COUNT).rev().step_by(2) {
        client.unmap(n << 13, 4096).unwrap();
    }
    assert_eq!(mappings(pid), COUNT as usize / 2);
    client.unmap(0, 0).unwrap();
    assert_eq!(mappings(pid), 0);
    // And by leaving.
    for n in 0..1000 {
        client.map_range(n << 13, 4096, Some(file.as_fd())).unwrap();
    }
    drop(client);
    eventually("a client that left keeps its memory mapped", || {
        mappings(pid) == 0 && descriptors(pid) == before - 1
    });
}

/// A client that maps all it can, files or bytes, takes nothing from the client of another device.
#[test]
fn one_client_leaves_the_others_their_part() {
    let served = Served::start_many(2, &[]);
    let mut greedy = connect(&served.socket());
    let other = served.socket().with_file_name("neuron1.sock");
    let mut modest = connect(&other);
    // 64 TiB that cost nothing.
    let huge = memfd(1 << 46);
    let big = memfd(1 << 30);
    let mut bytes = 0;
    for size in (30..47).rev().map(|power| 1_u64 << power) {
        let mut at = (1 << 62) + size;
        while greedy.map_range(at, size, Some(huge.as_fd())).is_ok() {
            bytes += size;
            at += 1 << 47;
        }
    }
    assert_eq!(bytes, 4 << 40);
    greedy.unmap(0, 0).unwrap();
    let small = memfd(4096);
    let held = (0..40_000_u64)
        .take_while(|n| greedy.map_range(n << 12, 4096, Some(small.as_fd())).is_ok())
        .count();
    assert!((10_000..30_000).contains(&held), "{held}");
    for n in 0..500 {
        modest
            .map_range(n << 30, 1 << 30, Some(big.as_fd()))
            .unwrap();
    }
    // And the process can still tell of itself, which takes a thread.
    let socket = served.socket();
    let directory = socket.parent().unwrap();
    let (code, _, stderr) = common::run(&["ctl", "--socket-dir", text(directory), "status"]);
    assert_eq!(code, 0, "{stderr}");
}

/// A look through all of them for each would show: the most that a device takes, by message and so without files.
#[test]
fn the_last_mapping_takes_no_longer_than_the_first() {
    const COUNT: u64 = 60_000;
    const BATCH: usize = 100;
    let served = Served::start(&[]);
    let mut client = connect(&served.socket());
    // The quickest of several batches: whoever else uses the machine is not in it.
    let mut quickest = |maps: std::ops::Range<u64>| {
        let batches = maps.clone().step_by(BATCH).map(|first| {
            let start = Instant::now();
            for n in (first..maps.end).take(BATCH) {
                client.map_range(n << 13, 4096, None).unwrap();
            }
            start.elapsed()
        });
        batches.min().unwrap()
    };
    let few = quickest(0..2000);
    quickest(2000..COUNT - 2000);
    let many = quickest(COUNT - 2000..COUNT);
    assert!(many < few * 4, "{few:?} grew to {many:?}");
}

#[test]
fn cycles_of_mappings_leave_no_growth() {
    let served = Served::start(&[]);
    let pid = served.pid();
    let mut client = connect(&served.socket());
    let file = memfd(16 << 20);
    let mut cycle = || {
        for n in 0..200 {
            client
                .map_range(n << 21, 1 << 20, Some(file.as_fd()))
                .unwrap();
            // Splits it.
            client.unmap((n << 21) + 0x4000, 0x1000).unwrap();
        }
        client.unmap(0, 0).unwrap();
    };
    for _ in 0..5 {
        cycle();
    }
    let (fds, rss) = (descriptors(pid), resident(pid));
    for _ in 0..50 {
        cycle();
    }
    assert_eq!((descriptors(pid), mappings(pid)), (fds, 0));
    let grown = resident(pid).saturating_sub(rss);
    // 10,000 mappings at 100 bytes each would be a megabyte.
    assert!(grown < 512, "{grown} KiB");
}

/// Connect, do something, vanish: with the reply unread, in the middle of a message, with memory mapped.
#[test]
fn a_thousand_clients_that_vanish() {
    let mut served = Served::start(&[]);
    let (pid, socket) = (served.pid(), served.socket());
    let file = memfd(1 << 20);
    let mut base = None;
    for n in 0..1000_u32 {
        let mut client = connect(&socket);
        client
            .map_range(0x10_0000, 1 << 20, Some(file.as_fd()))
            .unwrap();
        client.enable().unwrap();
        client.write32(0x1000 + n % 64 * 4, n).unwrap();
        match n % 4 {
            0 => client.vanish(&[7; 9]),
            1 => client.vanish(&[]),
            2 => client.reset().unwrap(),
            _ => {}
        }
        drop(client);
        if n == 100 {
            let client = connect(&socket);
            base = Some((descriptors(pid), resident(pid)));
            drop(client);
        }
    }
    let client = connect(&socket);
    let (fds, rss) = base.unwrap();
    assert_eq!((descriptors(pid), mappings(pid)), (fds, 0));
    let grown = resident(pid).saturating_sub(rss);
    assert!(grown < 1024, "{grown} KiB");
    // While one is here, the second is told to go, and the first does not notice.
    let error = RawClient::connect(&socket).err().expect("a second client");
    assert_eq!(error.raw_os_error(), Some(16), "{error}");
    let mut client = client;
    client.enable().unwrap();
    let (status, log) = served.end(Signal::TERM);
    assert!(status.success(), "{status}");
    assert!(log.contains("a second client was turned away"));
    assert!(!socket.exists());
}

/// As systemd starts a service with two sockets; the paths stay, for they are not ours.
#[test]
fn sockets_of_a_service_manager_and_its_notification() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (device, control) = (
        UnixListener::bind(at("s")).unwrap(),
        UnixListener::bind(at("s.ctl")).unwrap(),
    );
    let notify = UnixDatagram::bind(at("notify")).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let start = |sockets: &[&UnixListener], options: &[&str]| {
        let mut command = Command::new("sh");
        // The shell's process id is the server's: it is what LISTEN_PID has to hold.
        let script = r#"LISTEN_PID=$$ LISTEN_FDS=$0 exec "$@""#;
        command.args(["-c", script, &sockets.len().to_string()]);
        command.args([BINARY, "serve", "--socket", text(&at("s"))]);
        command.args(options).env("NOTIFY_SOCKET", at("notify"));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let fds: Vec<_> = sockets
            .iter()
            .map(|socket| {
                // Out of the way of the numbers wanted.
                rustix::io::fcntl_dupfd_cloexec(socket, 100).unwrap()
            })
            .collect();
        let pass = move || {
            for (number, fd) in (3..).zip(&fds) {
                // SAFETY: `fd` is open; `number` is of no use to the child but for this.
                if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: only dup2, which may be called between fork and exec.
        unsafe { command.pre_exec(pass) };
        command.spawn().unwrap()
    };
    let mut child = start(&[&device, &control], &[]);
    let mut told = [0; 64];
    let len = notify.recv(&mut told).unwrap();
    assert_eq!(&told[..len], b"READY=1");
    connect(&at("s")).enable().unwrap();
    let (code, stdout, stderr) = common::run(&["ctl", "--socket", text(&at("s")), "status"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(at("s").exists() && at("s.ctl").exists());

    // A socket for a path that nobody asked for.
    let stray = UnixListener::bind(at("stray")).unwrap();
    let child = start(&[&device, &stray], &["--control", text(&at("other"))]);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("stray") && stderr.contains("make the paths equal"),
        "{stderr}"
    );
}

/// What /proc says about the rights of every thread, and that the option takes them back.
#[test]
fn confined_by_default_and_not_on_request() {
    for (options, no_new_privs, seccomp) in [(&[][..], "1", "2"), (&["--no-sandbox"][..], "0", "0")]
    {
        let served = Served::start(options);
        let pid = served.pid();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
        let mut count = 0;
        for task in tasks {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().trim().to_owned()
            };
            assert_eq!(field("NoNewPrivs:"), no_new_privs, "{status}");
            assert_eq!(field("Seccomp:"), seccomp, "{status}");
            count += 1;
        }
        assert!(count >= 4, "{count} threads");
    }
}

/// Descriptors of the server do not reach programs, whatever it may one day start.
#[test]
fn every_descriptor_is_closed_on_exec() {
    let served = Served::start(&["--msix"]);
    let pid = served.pid();
    let before = descriptors(pid);
    let mut client = connect(&served.socket());
    let file = memfd(1 << 20);
    client
        .map_range(0x10_0000, 1 << 20, Some(file.as_fd()))
        .unwrap();
    // Mapped files are closed again; an eventfd stays.
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    client.set_eventfd(0, event.as_fd()).unwrap();
    // The connection and the eventfd.
    assert_eq!(descriptors(pid), before + 2);
    let directory = format!("/proc/{}/fdinfo", pid.as_raw_nonzero());
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let number: u32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let info = std::fs::read_to_string(&path).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
        // What the tests were started with is not the server's.
        let link = |directory: &str| std::fs::read_link(format!("{directory}/fd/{number}")).ok();
        let ours = link(&format!("/proc/{}", pid.as_raw_nonzero()));
        if link("/proc/self") == ours {
            continue;
        }
        let cloexec = flags & rustix::fs::OFlags::CLOEXEC.bits() != 0;
        assert!(
            number < 3 || cloexec,
            "descriptor {number}, {ours:?}: {info}"
        );
        count += 1;
    }
    assert!(count > 6, "{count} descriptors");
}

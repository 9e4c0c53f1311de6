//! The life of a server: sockets, clients that come and go, stopping, orders from other threads.
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use neuron_vfio_user::vfio::codec::Command;
use neuron_vfio_user::vfio::{Gone, ListenError, Listener, Server, Settings};

use crate::mock::{BAR0, BAR2, Event, Mock};
use crate::peer::{PATIENCE, Peer, Served};

#[test]
fn socket_is_private_and_removed_at_the_end() {
    let served = Served::new();
    let metadata = fs::metadata(&served.path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let path = served.path.clone();
    // The directory stays until the end of this test.
    let handle = served.handle.clone();
    served.peer().assert_silent();
    let keep = served;
    handle.stop();
    let start = Instant::now();
    while path.exists() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    keep.stop();
}

#[test]
fn socket_of_another_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let ours = Listener::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let theirs = UnixListener::bind(&path).unwrap();
    drop(ours);
    assert!(path.exists());
    drop(theirs);
}

#[test]
fn stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let live = Listener::bind(&path).unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::Live(_)), "{error}");
    assert!(
        error.to_string().contains("another process is serving"),
        "{error}"
    );
    drop(live);
    assert!(!path.exists());
}

#[test]
fn paths_that_cannot_be_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "precious").unwrap();
    let error = Listener::bind(&file).unwrap_err();
    assert!(matches!(error, ListenError::NotASocket(_)), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    let error = Listener::bind(directory.path().join("no/such/s")).unwrap_err();
    assert!(matches!(error, ListenError::NoDirectory(_)), "{error}");
    let error = Listener::bind(file.join("s")).unwrap_err();
    assert!(matches!(error, ListenError::NoDirectory(_)), "{error}");
    let error = Listener::bind(directory.path().join("x".repeat(120))).unwrap_err();
    assert!(matches!(error, ListenError::PathTooLong(_)), "{error}");
    let error = Listener::bind("/proc/s").unwrap_err().to_string();
    assert!(error.contains("/proc"), "{error}");
}

#[test]
fn a_socket_passed_in_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listening = UnixListener::bind(&path).unwrap();
    let listener = Listener::from_fd(OwnedFd::from(listening)).unwrap();
    let (server, handle) = Server::new(listener, Mock::default(), Settings::default()).unwrap();
    let thread = server.spawn("passed").unwrap();
    let mut peer = Peer::new(UnixStream::connect(&path).unwrap());
    peer.version(crate::peer::QEMU_VERSION);
    peer.assert_silent();
    handle.stop();
    thread.join().unwrap().unwrap();
    assert!(
        path.exists(),
        "the file belongs to whoever passed the socket"
    );
    let (a, _b) = UnixStream::pair().unwrap();
    assert!(matches!(
        Listener::from_fd(a.into()),
        Err(ListenError::BadDescriptor(_))
    ));
    let file = fs::File::open("/dev/null").unwrap();
    assert!(matches!(
        Listener::from_fd(file.into()),
        Err(ListenError::BadDescriptor(_))
    ));
}

#[test]
fn second_client_is_turned_away_and_the_first_not_disturbed() {
    let served = Served::new();
    let mut first = served.peer();
    let mut second = served.raw();
    // QEMU prints `version reply: Device or resource busy`.
    let version = Command::Version {
        major: 0,
        minor: 0,
        data: crate::peer::QEMU_VERSION,
    };
    assert_eq!(second.call(&version).errno(), 16);
    assert!(second.is_closed());
    first.assert_silent();
    // One that says it byte by byte, and hangs up with the rest unsaid.
    let mut slow = served.raw();
    let (_, bytes) = slow.encode(&version, false);
    for byte in &bytes[..16] {
        std::io::Write::write_all(&mut &slow.stream, &[*byte]).unwrap();
    }
    assert_eq!(slow.receive().errno(), 16);
    assert!(slow.is_closed());
    first.assert_silent();
    assert_eq!(served.handle.status().unwrap().turned_away, 2);
    // Silent ones wait for nothing, and not in any number; one that leaves is forgotten.
    let mut silent: Vec<_> = (0..6).map(|_| served.raw()).collect();
    served.wait_turned_away(8);
    assert!(silent[0].is_closed() && silent[1].is_closed());
    assert_eq!(silent[5].call(&version).errno(), 16);
    drop(silent);
    first.assert_silent();
    drop(first);
    served.wait_disconnected();
    served.peer().assert_silent();
}

/// While a client asks and asks, the thread waits for it alone; everybody else is to be heard all the same.
#[test]
fn a_client_that_never_pauses_keeps_nobody_waiting() {
    let served = Served::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (served, done) = (&served, &done);
        let busy = scope.spawn(move || {
            let mut peer = served.peer();
            let mut answers = 0_u64;
            while !done.load(Ordering::Acquire) {
                peer.assert_silent();
                answers += 1;
            }
            answers
        });
        let others = scope.spawn(move || {
            served.wait_connected();
            // Long after the last look at everything: whoever is to be heard now must be looked for.
            std::thread::sleep(Duration::from_millis(50));
            for _ in 0..5 {
                let mut second = served.raw();
                let version = Command::Version {
                    major: 0,
                    minor: 0,
                    data: crate::peer::QEMU_VERSION,
                };
                assert_eq!(second.call(&version).errno(), 16);
            }
            for _ in 0..50 {
                served.look(|mock| mock.writes += 1);
            }
        });
        let result = others.join();
        let polls = served.handle.status().unwrap().polls;
        done.store(true, Ordering::Release);
        let answers = busy.join().unwrap();
        result.unwrap();
        // Else this has not tested what it is about.
        assert!(polls < answers, "{polls} polls, {answers} answers");
    });
    served.stop();
}

/// A client that left with its last words unread is not in the way of the next.
#[test]
fn next_client_waits_for_the_last_words_of_the_old() {
    let served = Served::new();
    for _ in 0..200 {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut old = served.peer();
        served.handle.send(move |_| _ = wait.recv()).unwrap();
        old.post(&Command::RegionWrite {
            region: BAR2,
            offset: 0,
            data: &[1, 0, 0, 0],
        });
        drop(old);
        let mut new = served.raw();
        go.send(()).unwrap();
        new.version(crate::peer::QEMU_VERSION);
        new.assert_silent();
        drop(new);
        served.wait_disconnected();
    }
    assert_eq!(served.handle.status().unwrap().turned_away, 0);
}

#[test]
fn orders_run_on_the_device_thread() {
    let served = Served::new();
    let name = served.look(|_| std::thread::current().name().map(String::from));
    assert_eq!(name.as_deref(), Some("mock"));
    // Also while the device is busy, and many at once from many threads.
    served.look(|mock| (mock.work, mock.slice) = (u32::MAX, Duration::from_micros(100)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    served.look(|mock| mock.writes += 1);
                }
            });
        }
    });
    assert_eq!(served.look(|mock| mock.writes), 200);
}

#[test]
fn stop_is_honoured_in_any_state() {
    // Idle without a client; idle with one; busy; in the middle of a message; with a client that reads nothing.
    for state in 0..5 {
        let served = Served::new();
        let mut peer = (state > 0).then(|| served.peer());
        match (state, &mut peer) {
            (2, _) => {
                served.look(|mock| (mock.work, mock.slice) = (u32::MAX, Duration::from_millis(1)))
            }
            (3, Some(peer)) => peer.stream.write_all(&[1; 7]).unwrap(),
            (4, Some(peer)) => {
                let (_, bytes) = peer.encode(
                    &Command::RegionRead {
                        region: BAR0,
                        offset: 0,
                        count: 1 << 20,
                    },
                    false,
                );
                for _ in 0..8 {
                    peer.stream.write_all(&bytes).unwrap();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => {}
        }
        let handle = served.handle.clone();
        let start = Instant::now();
        served.stop();
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "state {state}: {:?}",
            start.elapsed()
        );
        assert_eq!(handle.call(|mock| mock.writes), Err(Gone));
    }
}

/// Posted writes in a row, then a read; and system calls that show several messages to a call.
#[test]
fn a_flood_of_posted_writes() {
    let served = Served::new();
    let mut peer = served.peer();
    let mut bytes = Vec::new();
    for _ in 0..200_000 {
        Command::RegionWrite {
            region: BAR2,
            offset: 0,
            data: &[1, 0, 0, 0],
        }
        .encode(0, true, &mut bytes);
    }
    peer.stream.write_all(&bytes).unwrap();
    assert_eq!(peer.read(BAR2, 0, 4), 200_000_u32.to_le_bytes());
    let status = served.handle.status().unwrap();
    assert_eq!(status.counters.posted_writes, 200_000);
    assert!(
        status.calls.receive < 20_000,
        "{} system calls",
        status.calls.receive
    );
    assert_eq!(status.calls.send, 2);
}

/// A client that sends without reading is held back, not buffered for without bound, and loses nothing.
#[test]
fn replies_wait_for_a_slow_client() {
    let served = Served::new();
    let mut peer = served.peer();
    let writer = peer.stream.try_clone().unwrap();
    let (_, bytes) = peer.encode(
        &Command::RegionRead {
            region: BAR0,
            offset: 0,
            count: 1 << 20,
        },
        false,
    );
    served.look(|mock| mock.bar0.fill(0x5a));
    let sender = std::thread::spawn(move || {
        for _ in 0..50 {
            (&writer).write_all(&bytes).unwrap();
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    let reads = served.look(|mock| mock.reads);
    assert!(
        reads <= 3,
        "{reads} MiB buffered for a client that reads nothing"
    );
    for _ in 0..50 {
        let reply = peer.receive();
        assert!(reply.data().len() == 1 << 20 && reply.data().iter().all(|byte| *byte == 0x5a));
    }
    sender.join().unwrap();
    peer.assert_silent();
}

#[test]
fn an_idle_server_uses_no_cpu() {
    let served = Served::new();
    let peer = served.peer();
    let before = served.look(|_| thread_cpu());
    std::thread::sleep(Duration::from_millis(300));
    let after = served.look(|_| thread_cpu());
    let used = after.saturating_sub(before);
    assert!(used < Duration::from_millis(5), "{used:?}");
    drop(peer);
}

fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap(),
        time.tv_nsec.try_into().unwrap(),
    )
}

#[test]
fn disconnect_reaches_the_function_once() {
    let served = Served::new();
    for _ in 0..3 {
        drop(served.peer());
        served.wait_disconnected();
    }
    assert_eq!(
        served.look(|mock| mock.events.clone()),
        vec![Event::Disconnect; 3]
    );
}

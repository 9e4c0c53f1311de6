//! Clients that mean harm, or are broken.
use std::io::Write;
use std::os::fd::AsFd;

use neuron_vfio_user::vfio::codec::{Command, MAX_MESSAGE, wire};
use rustix::io::Errno;

use crate::mock::{BAR0, CONFIG};
use crate::peer::{Peer, QEMU_VERSION, Served, dma_map, dma_unmap, memfd, open_descriptors};

fn header(code: u16, size: u32, flags: u32) -> Vec<u8> {
    let mut bytes = 7_u16.to_le_bytes().to_vec();
    bytes.extend(code.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn nothing_is_done_before_version() {
    let served = Served::new();
    let mut peer = served.raw();
    let eproto = Errno::PROTO.raw_os_error();
    assert_eq!(
        peer.call(&Command::RegionRead {
            region: CONFIG,
            offset: 0,
            count: 4
        })
        .errno(),
        eproto
    );
    assert_eq!(peer.call(&Command::DeviceReset).errno(), eproto);
    assert_eq!(peer.call(&dma_map(0, 0x1000)).errno(), eproto);
    peer.post(&Command::RegionWrite {
        region: BAR0,
        offset: 0,
        data: &[1],
    });
    peer.version(QEMU_VERSION);
    assert_eq!(peer.read(BAR0, 0, 1), [0]);
    assert!(served.look(|mock| mock.events.is_empty()));
}

#[test]
fn versions_that_cannot_be_are_refused_and_may_be_sent_again() {
    let served = Served::new();
    let mut peer = served.raw();
    let refused: [(u16, &[u8], Errno); 12] = [
        (1, QEMU_VERSION, Errno::PROTONOSUPPORT),
        (0, b"{}", Errno::INVAL),
        (0, b"{", Errno::INVAL),
        (0, b"\0", Errno::INVAL),
        (0, b"{}\0{}\0", Errno::INVAL),
        (0, b"1\0", Errno::INVAL),
        (0, b"{\"capabilities\":1}\0", Errno::INVAL),
        (
            0,
            b"{\"capabilities\":{\"max_msg_fds\":-1}}\0",
            Errno::INVAL,
        ),
        (
            0,
            b"{\"capabilities\":{\"max_data_xfer_size\":0}}\0",
            Errno::INVAL,
        ),
        (
            0,
            b"{\"capabilities\":{\"max_data_xfer_size\":\"1\"}}\0",
            Errno::INVAL,
        ),
        (
            0,
            b"{\"capabilities\":{\"max_msg_fds\":1e99}}\0",
            Errno::INVAL,
        ),
        (0, b"\xff\xfe\0", Errno::INVAL),
    ];
    for (major, data, errno) in refused {
        let reply = peer.call(&Command::Version {
            major,
            minor: 0,
            data,
        });
        assert_eq!(
            reply.errno(),
            errno.raw_os_error(),
            "{:?}",
            String::from_utf8_lossy(data)
        );
    }
    let deep = [b"[".repeat(4000), b"\0".to_vec()].concat();
    assert_eq!(
        peer.call(&Command::Version {
            major: 0,
            minor: 0,
            data: &deep
        })
        .errno(),
        22
    );
    let long = [b" ".repeat(5000), b"{}\0".to_vec()].concat();
    let e2big = Errno::TOOBIG.raw_os_error();
    assert_eq!(
        peer.call(&Command::Version {
            major: 0,
            minor: 0,
            data: &long
        })
        .errno(),
        e2big
    );
    let (_, mut short) = peer.encode(
        &Command::Version {
            major: 0,
            minor: 0,
            data: &[],
        },
        false,
    );
    short.truncate(18);
    short[4] = 18;
    peer.stream.write_all(&short).unwrap();
    assert_eq!(peer.receive().errno(), 22);
    // A newer minor version is brought down to ours; the reply is never longer than the request.
    let reply = peer.call(&Command::Version {
        major: 0,
        minor: 9,
        data: QEMU_VERSION,
    });
    assert_eq!(reply.payload[..4], [0; 4]);
    assert!(reply.payload.len() <= 4 + QEMU_VERSION.len());
    assert_eq!(reply.payload.last(), Some(&0));
    let text = String::from_utf8(reply.payload).unwrap();
    assert!(text.contains("max_data_xfer_size"), "{text}");
    assert!(
        !text.contains("write_multiple") && !text.contains("migration"),
        "{text}"
    );
}

#[test]
fn version_reply_is_never_longer_than_the_request() {
    let served = Served::new();
    for data in [&b""[..], b"{}\0", b"{\"capabilities\":{}}\0", QEMU_VERSION] {
        let mut peer = served.raw();
        let reply = peer.version(data);
        assert!(
            reply.payload.len() <= 4 + data.len(),
            "{} > {}",
            reply.payload.len(),
            4 + data.len()
        );
        peer.assert_silent();
        drop(peer);
        served.wait_disconnected();
    }
}

#[test]
fn unknown_and_oversized_messages_keep_the_framing() {
    let served = Served::new();
    let mut peer = served.peer();
    for (code, size, errno) in [
        (999, 16, Errno::NOSYS),
        (999, 1000, Errno::NOSYS),
        (wire::command::REGION_WRITE, 17, Errno::INVAL),
        (wire::command::REGION_WRITE, 4 << 20, Errno::TOOBIG),
        (wire::command::DMA_MAP, (4 << 20) + 1, Errno::TOOBIG),
        (1000, 70_000, Errno::NOSYS),
        (
            wire::command::REGION_READ,
            u32::try_from(MAX_MESSAGE).unwrap(),
            Errno::INVAL,
        ),
        (
            wire::command::REGION_READ,
            u32::try_from(MAX_MESSAGE).unwrap() + 1,
            Errno::TOOBIG,
        ),
    ] {
        let mut bytes = header(code, size, 0);
        // The body looks like headers of commands.
        while bytes.len() < usize::try_from(size).unwrap() {
            bytes.extend(header(wire::command::DEVICE_RESET, 16, 0));
        }
        bytes.truncate(usize::try_from(size).unwrap());
        if code == wire::command::REGION_READ {
            bytes[24] = 99;
        }
        peer.stream.write_all(&bytes).unwrap();
        let reply = peer.receive();
        assert_eq!(
            (reply.command(), reply.errno()),
            (code, errno.raw_os_error()),
            "size {size}"
        );
        peer.assert_silent();
    }
    assert!(
        served.look(|mock| mock.events.is_empty()),
        "a body was taken for a command"
    );
}

#[test]
fn a_header_shorter_than_a_header_ends_the_connection() {
    let served = Served::new();
    for size in [0, 1, 15] {
        let mut peer = served.peer();
        peer.stream
            .write_all(&header(wire::command::DEVICE_RESET, size, 0))
            .unwrap();
        assert!(peer.is_closed());
        served.wait_disconnected();
    }
    served.peer().assert_silent();
}

#[test]
fn replies_that_answer_nothing_are_dropped() {
    let served = Served::new();
    let mut peer = served.peer();
    for code in 0..20 {
        for flags in [1, 0x21] {
            peer.stream.write_all(&header(code, 16, flags)).unwrap();
        }
    }
    peer.assert_silent();
    // Neither command nor reply.
    peer.stream
        .write_all(&header(wire::command::DEVICE_RESET, 16, 5))
        .unwrap();
    assert_eq!(peer.receive().errno(), 22);
}

#[test]
fn maps_that_cannot_be_are_refused() {
    let served = Served::new();
    let mut peer = served.peer();
    let shared = memfd(0x10000);
    let map = |flags: u32, offset: u64, iova: u64, size: u64| {
        Command::DmaMap(wire::DmaMap {
            argsz: 32.into(),
            flags: flags.into(),
            offset: offset.into(),
            iova: iova.into(),
            size: size.into(),
        })
    };
    let fds = [shared.as_fd(), shared.as_fd()];
    let cases: [(Command<'_>, usize); 13] = [
        (map(3, 0, 0, 0), 0),
        (map(3, 0, 0x800, 0x1000), 0),
        (map(3, 0, 0, 0x1001), 0),
        (map(3, 0, u64::MAX - 0xfff, 0x1000), 0),
        (map(3, 0, u64::MAX - 0xfff, 0x2000), 0),
        (map(3, 0, 0x1000, u64::MAX - 0xfff), 0),
        (map(0, 0, 0, 0x1000), 0),
        (map(0x13, 0, 0, 0x1000), 0),
        (map(u32::MAX, 0, 0, 0x1000), 0),
        (map(7, 0, 0, 0x1000), 0),
        (map(3, 0x10, 0, 0x1000), 1),
        (map(3, u64::MAX - 0xfff, 0, 0x1000), 1),
        (map(3, 0, 0, 0x1000), 2),
    ];
    for (command, count) in cases {
        let reply = peer.call_with_fds(&command, &fds[..count]);
        assert_eq!(reply.errno(), 22, "{command:?} with {count} descriptors");
    }
    for (iova, size) in [(0, 0), (u64::MAX, 1), (u64::MAX, 2), (2, u64::MAX)] {
        assert_eq!(
            peer.call(&dma_unmap(iova, size)).errno(),
            22,
            "unmap {size:#x} at {iova:#x}"
        );
    }
    for (iova, size) in [(0x1000, 0), (0, 0x1000), (0x1000, 0x1000)] {
        let everything = Command::DmaUnmap(wire::DmaUnmap {
            argsz: 24.into(),
            flags: wire::unmap_flags::ALL.into(),
            iova: iova.into(),
            size: size.into(),
        });
        assert_eq!(
            peer.call(&everything).errno(),
            22,
            "unmap all with {size:#x} at {iova:#x}"
        );
    }
    // Half of the address space at a time, as some clients clear everything.
    assert_eq!(peer.call(&dma_unmap(0, 1 << 63)).errno(), 0);
    assert_eq!(peer.call(&dma_unmap(1 << 63, 1 << 63)).errno(), 0);
    assert!(served.look(|mock| mock.maps.is_empty()));
    assert_eq!(
        open_descriptors(&shared),
        1,
        "descriptors of refused maps leak"
    );
}

#[test]
fn descriptors_nobody_asked_for_are_closed() {
    let served = Served::new();
    let mut peer = served.peer();
    let shared = memfd(0x1000);
    let fds = [shared.as_fd(); 5];
    for _ in 0..100 {
        let read = Command::RegionRead {
            region: CONFIG,
            offset: 0,
            count: 4,
        };
        assert_eq!(peer.call_with_fds(&read, &fds).errno(), 0);
        assert_eq!(peer.call_with_fds(&Command::DeviceReset, &fds).errno(), 0);
    }
    // With half a message, then the end.
    let (_, bytes) = peer.encode(&dma_map(0, 0x1000), false);
    peer.send_bytes(&bytes[..20], &fds);
    drop(peer);
    served.wait_disconnected();
    assert_eq!(open_descriptors(&shared), 1);
}

/// Descriptors belong to the message they were sent with, whatever else one receive call returns, and wherever in its
/// bytes they come.
#[test]
fn descriptors_stay_with_their_message() {
    let served = Served::new();
    let mut peer = served.peer();
    let shared = memfd(0x1000);
    for cut in [1, 15, 16, 17, 47] {
        // All of this is in the socket before the server looks.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        served.handle.send(move |_| _ = wait.recv()).unwrap();
        let (_, without) = peer.encode(&dma_map(0x1000, 0x1000), false);
        let (_, with) = peer.encode(&dma_map(0x2000, 0x1000), false);
        let (_, after) = peer.encode(&dma_map(0x3000, 0x1000), false);
        peer.send_bytes(&without, &[]);
        peer.send_bytes(&with[..cut], &[shared.as_fd()]);
        peer.send_bytes(&with[cut..], &[]);
        peer.send_bytes(&after, &[]);
        peer.send_bytes(&without, &[]);
        peer.send_bytes(&with[..cut], &[]);
        peer.send_bytes(&with[cut..], &[shared.as_fd()]);
        peer.send_bytes(&after, &[]);
        go.send(()).unwrap();
        for _ in 0..6 {
            assert_eq!(peer.receive().errno(), 0);
        }
        let fds = served.look(|mock| {
            mock.maps
                .drain(..)
                .map(|map| map.2.is_some())
                .collect::<Vec<_>>()
        });
        assert_eq!(
            fds,
            [false, true, false, false, true, false],
            "cut at {cut}"
        );
    }
}

/// More descriptors than a message may have, a few at a time.
#[test]
fn a_message_collects_a_bounded_number_of_descriptors() {
    let served = Served::new();
    let mut peer = served.peer();
    let shared = memfd(0x1000);
    let (_, bytes) = peer.encode(&dma_map(0, 0x1000), false);
    for byte in &bytes {
        peer.send_bytes(&[*byte], &[shared.as_fd(); 10]);
    }
    assert_eq!(peer.receive().errno(), Errno::MFILE.raw_os_error());
    assert_eq!(open_descriptors(&shared), 1);
    peer.assert_silent();
}

/// Map cycles with descriptors leave nothing behind.
#[test]
fn map_cycles_do_not_leak() {
    let served = Served::new();
    let mut peer = served.peer();
    let shared = memfd(0x1000);
    for _ in 0..500 {
        assert_eq!(
            peer.call_with_fds(&dma_map(0x5000, 0x1000), &[shared.as_fd()])
                .errno(),
            0
        );
        assert_eq!(peer.call(&dma_unmap(0x5000, 0x1000)).errno(), 0);
    }
    assert_eq!(open_descriptors(&shared), 1);
}

/// Any bytes at all: the server outlives them.
#[test]
fn noise() {
    let served = Served::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..200 {
        let mut peer: Peer = if round % 2 == 0 {
            served.raw()
        } else {
            served.peer()
        };
        let mut bytes = Vec::new();
        for _ in 0..50 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend(state.to_le_bytes());
        }
        let _ = peer.stream.write_all(&bytes);
        drop(peer);
        served.wait_disconnected();
    }
    served.peer().assert_silent();
}

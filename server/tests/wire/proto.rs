//! Failure cases that other device servers and clients have shown in public, each as its smallest test. The name says
//! which; the comment says where.
use std::io::Write;
use std::time::{Duration, Instant};

use neuron_vfio_user::vfio::codec::{Command, wire};
use neuron_vfio_user::vfio::{DmaRequest, DmaUnmap};
use rustix::io::Errno;

use crate::mock::{BAR0, BAR0_SIZE, BAR2, CONFIG, Event, Mock, PANIC};
use crate::peer::{PATIENCE, Peer, Served, dma_map, dma_unmap, memfd};

fn write(region: u32, offset: u64, data: &[u8]) -> Command<'_> {
    Command::RegionWrite {
        region,
        offset,
        data,
    }
}

fn read(region: u32, offset: u64, count: u32) -> Command<'static> {
    Command::RegionRead {
        region,
        offset,
        count,
    }
}

/// rust-vmm/vfio#141.
#[test]
fn no_reply_is_never_answered() {
    let served = Served::new();
    let mut peer = served.peer();
    for _ in 0..3 {
        peer.post(&write(BAR2, 0, &[1, 0, 0, 0]));
    }
    let reply = peer.call(&read(BAR2, 0, 4));
    assert_eq!(reply.data(), [3, 0, 0, 0]);
    // Nor when it fails: outside the region, in a region that is not there, refused by the device, unknown.
    peer.post(&write(BAR2, 4093, &[1, 0, 0, 0]));
    peer.post(&write(99, 0, &[1, 0, 0, 0]));
    peer.post(&write(BAR2, crate::mock::FAILS, &[1, 0, 0, 0]));
    peer.post(&read(BAR2, 0, 4));
    peer.post(&dma_map(0, 0));
    peer.post(&dma_map(0x1000, 0x1000));
    peer.post(&Command::DeviceGetInfo { argsz: 16 });
    peer.post(&Command::DeviceGetRegionInfo {
        argsz: 32,
        index: 0,
    });
    peer.post(&Command::DeviceReset);
    let mut unknown = peer.encode(&Command::DeviceReset, true).1;
    unknown[2] = 200;
    peer.stream.write_all(&unknown).unwrap();
    peer.assert_silent();
}

/// rust-vmm/vfio#143, #144.
#[test]
fn error_reply_is_a_reply() {
    let served = Served::new();
    let mut peer = served.peer();
    let id = peer.send(&read(99, 0, 4));
    let reply = peer.receive();
    let mut wanted = Vec::new();
    wanted.extend(id.to_le_bytes());
    wanted.extend(wire::command::REGION_READ.to_le_bytes());
    wanted.extend(16_u32.to_le_bytes());
    wanted.extend(0x21_u32.to_le_bytes());
    wanted.extend(22_u32.to_le_bytes());
    assert_eq!(zerocopy::IntoBytes::as_bytes(&reply.header), wanted);
    // The device's own errno arrives as it is.
    assert_eq!(
        peer.call(&read(BAR2, crate::mock::FAILS, 4)).errno(),
        Errno::NXIO.raw_os_error()
    );
    assert_eq!(
        peer.call(&write(BAR2, crate::mock::FAILS, &[0; 4])).errno(),
        Errno::NXIO.raw_os_error()
    );
}

/// Receives the server's DMA commands and answers them from `memory`, which begins at I/O virtual address 0.
fn answer_dma(peer: &mut Peer, memory: &mut [u8], count: usize) {
    for _ in 0..count {
        let message = peer.receive();
        answer_one(peer, memory, &message);
    }
}

fn answer_one(peer: &mut Peer, memory: &mut [u8], message: &crate::peer::Message) {
    let mut out = Vec::new();
    match Command::decode(message.command(), &message.payload).unwrap() {
        Command::DmaRead { iova, count } => {
            let (at, count) = (
                usize::try_from(iova).unwrap(),
                usize::try_from(count).unwrap(),
            );
            let data = &memory[at..at + count];
            neuron_vfio_user::vfio::codec::Reply::DmaRead { iova, data }
                .encode(message.id(), &mut out);
        }
        Command::DmaWrite { iova, data } => {
            let at = usize::try_from(iova).unwrap();
            memory[at..at + data.len()].copy_from_slice(data);
            let count = u64::try_from(data.len()).unwrap();
            neuron_vfio_user::vfio::codec::Reply::DmaWrite { iova, count }
                .encode(message.id(), &mut out);
        }
        other => panic!("the server sent {other:?}"),
    }
    peer.stream.write_all(&out).unwrap();
}

/// rust-vmm/vfio#146.
#[test]
fn memory_without_descriptor_is_reached_by_messages() {
    let served = Served::new();
    let mut peer = served.plain_peer();
    assert_eq!(peer.call(&dma_map(0, 0x10000)).errno(), 0);
    let mut memory: Vec<u8> = (0..0x10000_u32)
        .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1])
        .collect();
    let wanted = memory[0x123..0x123 + 999].to_vec();
    served.look(|mock| {
        mock.requests.push_back((
            7,
            DmaRequest::Read {
                iova: 0x123,
                len: 999,
            },
        ))
    });
    answer_dma(&mut peer, &mut memory, 1);
    served.wait(|mock| !mock.replies.is_empty());
    let replies = served.look(|mock| std::mem::take(&mut mock.replies));
    assert_eq!(replies, [(7, Ok(wanted.clone()))]);
    let data = wanted.clone();
    served.look(move |mock| {
        mock.requests
            .push_back((8, DmaRequest::Write { iova: 0x2001, data }))
    });
    answer_dma(&mut peer, &mut memory, 1);
    served.wait(|mock| !mock.replies.is_empty());
    assert_eq!(
        served.look(|mock| std::mem::take(&mut mock.replies)),
        [(8, Ok(Vec::new()))]
    );
    assert_eq!(&memory[0x2001..0x2001 + 999], wanted);
}

/// nutanix/libvfio-user#279, #466.
#[test]
fn dma_reply_crossed_by_client_commands() {
    let served = Served::new();
    let mut peer = served.plain_peer();
    served.look(|mock| {
        mock.requests
            .push_back((1, DmaRequest::Read { iova: 0, len: 64 }))
    });
    let dma = peer.receive();
    assert_eq!(dma.command(), wire::command::DMA_READ);
    peer.post(&write(BAR2, 0, &[5, 0, 0, 0]));
    // The read is answered although the server waits for the DMA itself.
    assert_eq!(peer.call(&read(BAR2, 0, 4)).data(), [5, 0, 0, 0]);
    assert!(served.look(|mock| mock.replies.is_empty()));
    let mut memory = vec![0xab; 64];
    answer_one(&mut peer, &mut memory, &dma);
    served.wait(|mock| !mock.replies.is_empty());
    assert_eq!(
        served.look(|mock| mock.replies.clone()),
        [(1, Ok(vec![0xab; 64]))]
    );
}

/// oracle/qemu#10, #11.
#[test]
fn a_read_flushes_posted_writes() {
    let served = Served::new();
    let mut peer = served.peer();
    for i in 0..10_000_u32 {
        let value = i.to_le_bytes();
        let mut bytes = peer.encode(&write(BAR0, 64, &value), true).1;
        bytes.extend(peer.encode(&read(BAR0, 64, 4), false).1);
        peer.stream.write_all(&bytes).unwrap();
        assert_eq!(peer.receive().data(), value);
    }
}

/// One of each command, with the reply's errno.
fn every_command(peer: &mut Peer) -> Vec<(Vec<u8>, i32)> {
    let bytes = [1_u8, 2, 3, 4];
    let commands = [
        (dma_map(0x1000, 0x2000), 0),
        (dma_unmap(0x1000, 0x2000), 0),
        (Command::DeviceGetInfo { argsz: 16 }, 0),
        (
            Command::DeviceGetRegionInfo {
                argsz: 32,
                index: 0,
            },
            0,
        ),
        (
            Command::DeviceGetIrqInfo {
                argsz: 16,
                index: 2,
            },
            0,
        ),
        (read(BAR0, 0x10, 33), 0),
        (write(BAR0, 0x11, &bytes), 0),
        (
            Command::DeviceFeature {
                argsz: 8,
                flags: 0x1_0001,
                data: &[],
            },
            Errno::NOTTY.raw_os_error(),
        ),
        (Command::DeviceReset, 0),
    ];
    commands
        .iter()
        .map(|(command, errno)| (peer.encode(command, false).1, *errno))
        .collect()
}

/// nutanix/libvfio-user#422: one byte at a time.
#[test]
fn a_client_may_send_one_byte_at_a_time() {
    let served = Served::new();
    let mut peer = served.peer();
    for (bytes, errno) in every_command(&mut peer) {
        for byte in bytes {
            peer.stream.write_all(&[byte]).unwrap();
        }
        assert_eq!(peer.receive().errno(), errno);
    }
    peer.assert_silent();
}

/// nutanix/libvfio-user#422: the end at every offset.
#[test]
fn a_client_may_leave_at_any_byte() {
    let served = Served::new();
    let messages = every_command(&mut served.peer());
    for (bytes, _) in messages {
        for end in 0..bytes.len() {
            let mut peer = served.peer();
            peer.stream.write_all(&bytes[..end]).unwrap();
            drop(peer);
            served.wait_disconnected();
        }
    }
    served.peer().assert_silent();
}

/// nutanix/libvfio-user#185, #619; the mappable case is in `regions`.
#[test]
fn argsz_too_small() {
    let served = Served::new();
    let mut peer = served.peer();
    let einval = Errno::INVAL.raw_os_error();
    for (argsz, errno) in [(0, einval), (31, einval), (32, 0), (33, 0), (u32::MAX, 0)] {
        assert_eq!(
            peer.call(&Command::DeviceGetRegionInfo { argsz, index: 0 })
                .errno(),
            errno,
            "argsz {argsz}"
        );
    }
    for (argsz, errno) in [(0, einval), (15, einval), (16, 0), (u32::MAX, 0)] {
        assert_eq!(
            peer.call(&Command::DeviceGetInfo { argsz }).errno(),
            errno,
            "argsz {argsz}"
        );
        assert_eq!(
            peer.call(&Command::DeviceGetIrqInfo { argsz, index: 0 })
                .errno(),
            errno,
            "argsz {argsz}"
        );
    }
}

/// rust-vmm/vfio 669eb6b, 4721187.
#[test]
fn access_at_the_end_of_a_region() {
    let served = Served::new();
    let mut peer = served.peer();
    let einval = Errno::INVAL.raw_os_error();
    let cases = [
        (BAR0_SIZE - 1, 1, 0),
        (BAR0_SIZE - 8, 8, 0),
        (BAR0_SIZE - 7, 8, einval),
        (BAR0_SIZE, 1, einval),
        (BAR0_SIZE, 0, 0),
        (BAR0_SIZE + 1, 0, einval),
        (u64::MAX, 8, einval),
        (u64::MAX - 7, 8, einval),
        (u64::MAX, 0, einval),
        (0, 0, 0),
        (0, 1 << 20, 0),
    ];
    for (offset, count, errno) in cases {
        let data = vec![0xa5; usize::try_from(count).unwrap()];
        assert_eq!(
            peer.call(&write(BAR0, offset, &data)).errno(),
            errno,
            "write {count} at {offset:#x}"
        );
        let reply = peer.call(&read(BAR0, offset, count));
        assert_eq!(reply.errno(), errno, "read {count} at {offset:#x}");
        if errno == 0 {
            assert_eq!(reply.data(), data, "read {count} at {offset:#x}");
        }
    }
    let reply = peer.call(&read(BAR0, 0, (1 << 20) + 1));
    assert_eq!(reply.errno(), Errno::TOOBIG.raw_os_error());
    // A client that named a smaller limit is held to it.
    drop(peer);
    served.wait_disconnected();
    let mut peer = served.raw();
    peer.version(b"{\"capabilities\":{\"max_data_xfer_size\":4096}}\0");
    for (count, errno) in [(4096, 0), (4097, Errno::TOOBIG.raw_os_error())] {
        let data = vec![0x5a; usize::try_from(count).unwrap()];
        assert_eq!(peer.call(&read(BAR0, 0, count)).errno(), errno, "{count}");
        assert_eq!(peer.call(&write(BAR0, 0, &data)).errno(), errno, "{count}");
    }
    for absent in [1, 6, 8, 9, u32::MAX] {
        assert_eq!(
            peer.call(&read(absent, 0, 0)).errno(),
            einval,
            "region {absent}"
        );
    }
    assert_eq!(peer.read(CONFIG, 0, 4096).len(), 4096);
}

/// nutanix/libvfio-user#463.
#[test]
fn overlapping_maps_are_passed_on() {
    let served = Served::new();
    let mut peer = served.peer();
    assert_eq!(peer.call(&dma_map(0xc4000, 0xe0000 - 0xc4000)).errno(), 0);
    assert_eq!(peer.call(&dma_map(0xc4000, 0xe8000 - 0xc4000)).errno(), 0);
    // And a range that was never mapped goes as well as one that was.
    assert_eq!(peer.call(&dma_unmap(0xc4000, 0x1000)).errno(), 0);
    assert_eq!(peer.call(&dma_unmap(0x1234_5000, 0x1000)).errno(), 0);
    let sizes = served.look(|mock| mock.maps.iter().map(|map| map.1).collect::<Vec<_>>());
    assert_eq!(sizes, [0x1c000, 0x24000]);
}

/// nutanix/libvfio-user#588, #202; spdk/spdk#3121.
#[test]
fn ten_thousand_maps() {
    let served = Served::new();
    let mut peer = served.peer();
    let start = Instant::now();
    for round in 0..10_u64 {
        let mut bytes = Vec::new();
        for i in 0..1000 {
            bytes.extend(
                peer.encode(&dma_map((round * 1000 + i) << 12, 0x1000), false)
                    .1,
            );
        }
        peer.stream.write_all(&bytes).unwrap();
        for _ in 0..1000 {
            assert_eq!(peer.receive().errno(), 0);
        }
    }
    assert_eq!(served.look(|mock| mock.maps.len()), 10_000);
    let all = Command::DmaUnmap(wire::DmaUnmap {
        argsz: 24.into(),
        flags: wire::unmap_flags::ALL.into(),
        iova: 0.into(),
        size: 0.into(),
    });
    assert_eq!(peer.call(&all).errno(), 0);
    assert_eq!(
        served.look(|mock| (mock.maps.len(), mock.events.last().cloned())),
        (0, Some(Event::Unmap(DmaUnmap::All)))
    );
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

/// nutanix/libvfio-user#788.
#[test]
fn last_chunk_of_a_split_dma() {
    let served = Served::new();
    let mut peer = served.raw();
    peer.version(b"{\"capabilities\":{\"max_data_xfer_size\":4096}}\0");
    let max = 4096;
    let mut memory: Vec<u8> = (0..3_u32 * 4096)
        .map(|i| (i % 251).to_le_bytes()[0])
        .collect();
    for (len, messages) in [
        (1, 1),
        (max - 1, 1),
        (max, 1),
        (max + 1, 2),
        (2 * max + 13, 3),
    ] {
        let wanted = memory[5..5 + len].to_vec();
        served.look(move |mock| {
            mock.requests
                .push_back((1, DmaRequest::Read { iova: 5, len }))
        });
        answer_dma(&mut peer, &mut memory, messages);
        served.wait(|mock| !mock.replies.is_empty());
        assert_eq!(
            served.look(|mock| std::mem::take(&mut mock.replies)),
            [(1, Ok(wanted.clone()))],
            "read {len}"
        );
        let data: Vec<u8> = wanted.iter().map(|byte| !byte).collect();
        served.look({
            let data = data.clone();
            move |mock| {
                mock.requests
                    .push_back((2, DmaRequest::Write { iova: 7, data }))
            }
        });
        answer_dma(&mut peer, &mut memory, messages);
        served.wait(|mock| !mock.replies.is_empty());
        assert_eq!(
            served.look(|mock| std::mem::take(&mut mock.replies)),
            [(2, Ok(Vec::new()))],
            "write {len}"
        );
        assert_eq!(&memory[7..7 + len], data);
        peer.assert_silent();
    }
}

/// spdk/spdk#2074, as far as messages go: what had not been asked for when the range went is not asked for.
#[test]
fn unmap_with_a_message_transfer_under_way() {
    let served = Served::new();
    let mut peer = served.raw();
    peer.version(b"{\"capabilities\":{\"max_data_xfer_size\":4096}}\0");
    served.look(|mock| {
        mock.requests.push_back((
            1,
            DmaRequest::Write {
                iova: 0x10000,
                data: vec![1; 64 << 10],
            },
        ))
    });
    let under_way: Vec<_> = (0..4).map(|_| peer.receive()).collect();
    let other = peer.call(&dma_unmap(0x8_0000, 0x1000));
    assert_eq!(other.errno(), 0);
    assert_eq!(peer.call(&dma_unmap(0x1f000, 0x1000)).errno(), 0);
    let mut memory = vec![0; 0x20000];
    for message in &under_way {
        answer_one(&mut peer, &mut memory, message);
    }
    served.wait(|mock| !mock.replies.is_empty());
    peer.assert_silent();
    assert_eq!(
        served.look(|mock| mock.replies.clone()),
        [(1, Err(Errno::FAULT))]
    );
    let written: usize = memory.iter().map(|byte| usize::from(*byte)).sum();
    assert_eq!(written, 4 * 4096);
}

/// nutanix/libvfio-user#392, spdk/spdk#1813, #1922.
#[test]
fn a_new_client_finds_a_fresh_device() {
    let served = Served::new();
    let shared = memfd(0x1000);
    for round in 0..1000 {
        let mut peer = served.peer();
        assert_eq!(
            peer.call_with_fds(&dma_map(0, 0x1000), &[std::os::fd::AsFd::as_fd(&shared)])
                .errno(),
            0
        );
        peer.post(&write(BAR2, 0, &[1, 0, 0, 0]));
        assert_eq!(peer.read(BAR2, 0, 4), [1, 0, 0, 0], "round {round}");
        if round % 2 == 0 {
            // Half a message more.
            peer.stream.write_all(&[0; 9]).unwrap();
        }
        drop(peer);
        served.wait_disconnected();
    }
    let disconnects = served.look(|mock| {
        mock.events
            .iter()
            .filter(|event| **event == Event::Disconnect)
            .count()
    });
    assert_eq!(disconnects, 1000);
    assert_eq!(served.handle.status().unwrap().connections, 1000);
    assert_eq!(crate::peer::open_descriptors(&shared), 1);
}

/// nutanix/libvfio-user#859, #729.
#[test]
fn reset_while_busy() {
    let served = Served::new();
    let mut peer = served.raw();
    peer.version(b"{\"capabilities\":{\"max_data_xfer_size\":4096}}\0");
    served.look(|mock| {
        mock.requests.push_back((
            1,
            DmaRequest::Write {
                iova: 0,
                data: vec![1; 64 << 10],
            },
        ));
        mock.requests
            .push_back((2, DmaRequest::Read { iova: 0, len: 4 }));
        (mock.work, mock.slice) = (1_000_000, Duration::from_millis(1));
    });
    let under_way: Vec<_> = (0..4).map(|_| peer.receive()).collect();
    assert_eq!(peer.call(&Command::DeviceReset).errno(), 0);
    // Replies to what was asked before are swallowed; nothing more is asked; the device works.
    let mut memory = vec![0; 0x20000];
    for message in &under_way {
        answer_one(&mut peer, &mut memory, message);
    }
    peer.assert_silent();
    assert!(served.look(|mock| mock.replies.is_empty()));
    served.look(|mock| {
        mock.requests
            .push_back((1, DmaRequest::Read { iova: 0, len: 4 }))
    });
    answer_dma(&mut peer, &mut memory, 1);
    served.wait(|mock| !mock.replies.is_empty());
    assert_eq!(
        served.look(|mock| mock.replies.clone()),
        [(1, Ok(vec![1; 4]))]
    );
}

/// The poisoned lock: one device's panic is that device's end only.
#[test]
fn a_panic_ends_one_device() {
    let mut broken = Served::new();
    let other = Served::new();
    let mut other_peer = other.peer();
    let mut peer = broken.peer();
    peer.post(&write(BAR2, PANIC, &[0; 4]));
    assert!(peer.is_closed());
    let error = broken.join().unwrap_err().to_string();
    assert!(error.contains("planted panic"), "{error}");
    assert_eq!(
        broken.handle.call(|mock| mock.writes),
        Err(neuron_vfio_user::vfio::Gone)
    );
    assert_eq!(broken.handle.status(), Err(neuron_vfio_user::vfio::Gone));
    assert!(
        !broken.path.exists(),
        "the socket of a dead device is still there"
    );
    other_peer.assert_silent();
}

/// nutanix/libvfio-user#829: interrupt indices are all there and agree with themselves.
#[test]
fn every_interrupt_index_is_described() {
    let served = Served::new();
    let mut peer = served.peer();
    let info = peer.call(&Command::DeviceGetInfo { argsz: 16 });
    let [argsz, flags, regions, irqs] = words(&info.payload);
    assert_eq!((argsz, flags), (16, 3));
    assert!(
        regions >= 8 && irqs >= 3,
        "{regions} regions, {irqs} interrupt indices"
    );
    let wanted = [
        (0, 0b1011, 1),
        (1, 0, 0),
        (2, 0b1001, 32),
        (3, 0b1001, 1),
        (4, 0, 0),
    ];
    for (index, flags, count) in wanted {
        let reply = peer.call(&Command::DeviceGetIrqInfo { argsz: 16, index });
        assert_eq!(words(&reply.payload), [16, flags, index, count]);
    }
    for index in irqs..irqs + 2 {
        let reply = peer.call(&Command::DeviceGetIrqInfo { argsz: 16, index });
        assert_eq!(reply.errno(), Errno::INVAL.raw_os_error());
    }
    for index in 0..regions {
        let reply = peer.call(&Command::DeviceGetRegionInfo { argsz: 32, index });
        assert_eq!((reply.errno(), reply.payload.len()), (0, 32));
    }
    assert_eq!(
        peer.call(&Command::DeviceGetRegionInfo {
            argsz: 32,
            index: regions
        })
        .errno(),
        22
    );
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    assert_eq!(bytes.len(), 4 * N);
    std::array::from_fn(|i| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
}

/// A read never waits behind a long transfer: the client gives up after five seconds and the device is lost.
#[test]
fn a_read_is_answered_between_slices() {
    let served = Served::new();
    let mut peer = served.peer();
    served.look(|mock| (mock.work, mock.slice) = (u32::MAX, Duration::from_millis(2)));
    for _ in 0..20 {
        let start = Instant::now();
        assert_eq!(peer.read(BAR2, 0, 4), [0; 4]);
        assert!(start.elapsed() < PATIENCE / 20, "{:?}", start.elapsed());
    }
    assert!(served.look(|mock: &mut Mock| mock.work > 0));
}

//! DMA by message against clients that answer in every way.
use std::io::Write;

use neuron_vfio_user::vfio::DmaRequest;
use neuron_vfio_user::vfio::codec::{Command, Reply, wire};
use rustix::io::Errno;

use crate::peer::{Message, Peer, QEMU_VERSION, Served};

fn ask(served: &Served, id: u64, request: DmaRequest) {
    served.look(move |mock| mock.requests.push_back((id, request)));
}

fn reply(peer: &mut Peer, id: u16, reply: &Reply<'_>) {
    let mut bytes = Vec::new();
    reply.encode(id, &mut bytes);
    peer.stream.write_all(&bytes).unwrap();
}

fn refuse(peer: &mut Peer, message: &Message, errno: Errno) {
    reply(
        peer,
        message.id(),
        &Reply::Error {
            command: message.command(),
            errno,
        },
    );
}

fn result(served: &Served) -> (u64, Result<Vec<u8>, Errno>) {
    served.wait(|mock| !mock.replies.is_empty());
    served.look(|mock| mock.replies.remove(0))
}

#[test]
fn errors_arrive_as_they_are() {
    let served = Served::new();
    let mut peer = served.plain_peer();
    ask(&served, 1, DmaRequest::Read { iova: 0, len: 8 });
    let message = peer.receive();
    refuse(&mut peer, &message, Errno::PERM);
    assert_eq!(result(&served), (1, Err(Errno::PERM)));
    ask(
        &served,
        2,
        DmaRequest::Write {
            iova: 0,
            data: vec![1; 8],
        },
    );
    let message = peer.receive();
    refuse(&mut peer, &message, Errno::NODEV);
    assert_eq!(result(&served), (2, Err(Errno::NODEV)));
    // An error without a number, and with an impossible one.
    for number in [0_u32, 5000, u32::MAX] {
        ask(&served, 3, DmaRequest::Read { iova: 0, len: 8 });
        let message = peer.receive();
        let mut bytes = Vec::new();
        let answer = Reply::Error {
            command: message.command(),
            errno: Errno::PERM,
        };
        answer.encode(message.id(), &mut bytes);
        bytes[12..16].copy_from_slice(&number.to_le_bytes());
        peer.stream.write_all(&bytes).unwrap();
        assert_eq!(result(&served), (3, Err(Errno::IO)));
    }
}

#[test]
fn one_failed_part_fails_the_whole_and_stops_the_rest() {
    let served = Served::new();
    let mut peer = served.raw();
    peer.version(b"{\"capabilities\":{\"max_data_xfer_size\":4096}}\0");
    ask(
        &served,
        1,
        DmaRequest::Read {
            iova: 0,
            len: 10 * 4096,
        },
    );
    let parts: Vec<_> = (0..4).map(|_| peer.receive()).collect();
    refuse(&mut peer, &parts[1], Errno::FAULT);
    for part in [&parts[0], &parts[2], &parts[3]] {
        let Ok(Command::DmaRead { iova, .. }) = Command::decode(part.command(), &part.payload)
        else {
            panic!()
        };
        reply(
            &mut peer,
            part.id(),
            &Reply::DmaRead {
                iova,
                data: &[1; 4096],
            },
        );
    }
    assert_eq!(result(&served), (1, Err(Errno::FAULT)));
    peer.assert_silent();
}

#[test]
fn replies_may_come_in_any_order() {
    let served = Served::new();
    let mut peer = served.raw();
    peer.version(b"{\"capabilities\":{\"max_data_xfer_size\":16}}\0");
    ask(&served, 1, DmaRequest::Read { iova: 0, len: 40 });
    ask(&served, 2, DmaRequest::Read { iova: 100, len: 4 });
    let mut messages: Vec<_> = (0..4).map(|_| peer.receive()).collect();
    messages.reverse();
    for message in messages {
        let Ok(Command::DmaRead { iova, count }) =
            Command::decode(message.command(), &message.payload)
        else {
            panic!()
        };
        let data: Vec<u8> = (iova..iova + count)
            .map(|byte| u8::try_from(byte).unwrap())
            .collect();
        reply(
            &mut peer,
            message.id(),
            &Reply::DmaRead { iova, data: &data },
        );
    }
    assert_eq!(result(&served), (2, Ok((100..104).collect())));
    assert_eq!(result(&served), (1, Ok((0..40).collect())));
}

#[test]
fn replies_that_do_not_fit_the_request_fail_it() {
    let served = Served::new();
    let mut peer = served.plain_peer();
    let answers = [
        Reply::DmaRead {
            iova: 8,
            data: &[0; 8],
        },
        Reply::DmaRead {
            iova: 0,
            data: &[0; 7],
        },
        Reply::DmaRead {
            iova: 0,
            data: &[0; 9],
        },
        Reply::DmaRead { iova: 0, data: &[] },
        Reply::Done {
            command: wire::command::DMA_READ,
        },
    ];
    for answer in answers {
        ask(&served, 1, DmaRequest::Read { iova: 0, len: 8 });
        let id = peer.receive().id();
        // Of another id, or another command: not the answer.
        reply(&mut peer, id.wrapping_add(7), &answer);
        reply(&mut peer, id, &Reply::DmaWrite { iova: 0, count: 8 });
        peer.assert_silent();
        assert!(served.look(|mock| mock.replies.is_empty()));
        reply(&mut peer, id, &answer);
        assert_eq!(result(&served), (1, Err(Errno::IO)), "{answer:?}");
        // Answered twice.
        reply(&mut peer, id, &answer);
    }
    peer.assert_silent();
}

#[test]
fn requests_that_need_no_message_are_answered_at_once() {
    let served = Served::new();
    let mut peer = served.plain_peer();
    ask(&served, 1, DmaRequest::Read { iova: 0, len: 0 });
    assert_eq!(result(&served), (1, Ok(vec![])));
    ask(
        &served,
        2,
        DmaRequest::Write {
            iova: u64::MAX,
            data: vec![0; 2],
        },
    );
    assert_eq!(result(&served), (2, Err(Errno::FAULT)));
    ask(
        &served,
        3,
        DmaRequest::Read {
            iova: 0,
            len: usize::MAX,
        },
    );
    assert_eq!(result(&served), (3, Err(Errno::TOOBIG)));
    peer.assert_silent();
}

/// A client that never answers costs a bounded number of messages, and loses only its DMA.
#[test]
fn silence_is_bounded() {
    let served = Served::new();
    let mut peer = served.plain_peer();
    for id in 0..100 {
        ask(
            &served,
            id,
            DmaRequest::Write {
                iova: 0,
                data: vec![1; 8],
            },
        );
    }
    for _ in 0..4 {
        assert_eq!(peer.receive().command(), wire::command::DMA_WRITE);
    }
    peer.assert_silent();
    let status = served.handle.status().unwrap();
    assert_eq!((status.dma_in_flight, status.counters.dma_messages), (4, 4));
    // The next client starts afresh.
    drop(peer);
    served.wait_disconnected();
    served.look(|mock| mock.replies.clear());
    let mut peer = served.plain_peer();
    ask(&served, 1, DmaRequest::Read { iova: 0, len: 1 });
    let message = peer.receive();
    reply(
        &mut peer,
        message.id(),
        &Reply::DmaRead {
            iova: 0,
            data: &[9],
        },
    );
    assert_eq!(result(&served), (1, Ok(vec![9])));
}

/// Message ids wrap; ids in use are not used again.
#[test]
fn message_ids_wrap() {
    let served = Served::new();
    let mut peer = served.plain_peer();
    ask(&served, 0, DmaRequest::Read { iova: 0, len: 1 });
    let held = peer.receive();
    for id in 1..70_000_u64 {
        if id % 100 == 1 {
            served.look(move |mock| {
                mock.replies.clear();
                mock.requests
                    .extend((id..id + 100).map(|id| (id, DmaRequest::Read { iova: id, len: 1 })));
            });
        }
        let message = peer.receive();
        assert_ne!(message.id(), held.id());
        let Ok(Command::DmaRead { iova, .. }) =
            Command::decode(message.command(), &message.payload)
        else {
            panic!()
        };
        reply(
            &mut peer,
            message.id(),
            &Reply::DmaRead { iova, data: &[1] },
        );
    }
    reply(
        &mut peer,
        held.id(),
        &Reply::DmaRead {
            iova: 0,
            data: &[2],
        },
    );
    served.wait(|mock| mock.replies.contains(&(0, Ok(vec![2]))));
}

/// QEMU is asked once where it expects the data. QEMU 11.1.3 refuses the question; older ones read half of the count.
#[test]
fn qemu_is_asked_for_its_layout() {
    for narrow in [false, true] {
        let served = Served::new();
        let mut peer = served.raw();
        peer.version(QEMU_VERSION);
        ask(
            &served,
            1,
            DmaRequest::Write {
                iova: 0x1000,
                data: (1..=10).collect(),
            },
        );
        ask(
            &served,
            2,
            DmaRequest::Read {
                iova: 0x2000,
                len: 5,
            },
        );
        let question = peer.receive();
        assert_eq!(question.command(), wire::command::DMA_READ);
        assert_eq!(
            question.payload,
            [0_u64.to_le_bytes(), (1_u64 << 32).to_le_bytes()].concat()
        );
        // Meanwhile the device is served.
        peer.assert_silent();
        if narrow {
            reply(
                &mut peer,
                question.id(),
                &Reply::DmaWrite { iova: 0, count: 0 },
            );
            // As the one before, but for the command.
            assert!(served.look(|mock| mock.replies.is_empty()));
            reply(
                &mut peer,
                question.id(),
                &Reply::DmaRead { iova: 0, data: &[] },
            );
        } else {
            refuse(&mut peer, &question, Errno::TOOBIG);
        }
        let written = peer.receive();
        let mut wanted = 0x1000_u64.to_le_bytes().to_vec();
        if narrow {
            wanted.extend([10, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0, 0, 0]);
        } else {
            wanted.extend([10, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        }
        assert_eq!(written.payload, wanted);
        reply(
            &mut peer,
            written.id(),
            &Reply::Done {
                command: wire::command::DMA_WRITE,
            },
        );
        assert_eq!(result(&served), (1, Ok(vec![])));
        let read = peer.receive();
        let mut bytes = Vec::new();
        Reply::DmaRead {
            iova: 0x2000,
            data: &[5, 6, 7, 8, 9],
        }
        .encode(read.id(), &mut bytes);
        if narrow {
            bytes.drain(28..32);
            bytes.extend([0; 4]);
        }
        peer.stream.write_all(&bytes).unwrap();
        assert_eq!(result(&served), (2, Ok(vec![5, 6, 7, 8, 9])));
    }
}

/// A request in several messages stops between two of them when the guest forbids the device to master the bus.
#[test]
fn no_message_without_bus_master() {
    const PARTS: usize = 6;
    let served = Served::new();
    let mut peer = served.plain_peer();
    let part = 1 << 20;
    for n in 0..PARTS {
        let (id, iova) = (n as u64, (n * part) as u64);
        ask(&served, id, DmaRequest::Read { iova, len: part });
    }
    let first: Vec<_> = (0..4).map(|_| peer.receive()).collect();
    served.look(|mock| mock.no_bus = true);
    for message in &first {
        refuse(&mut peer, message, Errno::PERM);
    }
    served.wait(|mock| mock.replies.len() == 4);
    // The answer to this comes first, with nothing before it.
    let _ = peer.read(0, 0, 4);
    served.look(|mock| {
        assert_eq!(mock.replies.len(), 4);
        mock.no_bus = false;
    });
    for _ in 4..PARTS {
        let message = peer.receive();
        refuse(&mut peer, &message, Errno::PERM);
    }
    served.wait(|mock| mock.replies.len() == PARTS);
}

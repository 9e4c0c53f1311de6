//! A recorded QEMU session, cut and damaged in every way, through the session without a socket.
//!
//! The recording is what QEMU 11.1.3 sent while its firmware booted: records of a length and a number of descriptors
//! (both 32 bit, little endian) and the bytes of one message. It holds posted writes and the answers to three DMA messages.
use std::os::fd::OwnedFd;

use neuron_vfio_user::vfio::codec::wire::{Header, command, flags};
use neuron_vfio_user::vfio::codec::{HEADER_SIZE, MAX_MESSAGE};
use neuron_vfio_user::vfio::{DmaRequest, Inbox, Session};
use zerocopy::FromBytes;

use crate::mock::Mock;
use crate::peer::memfd;

const RECORDING: &[u8] = include_bytes!("qemu-11.1.3.session");

/// Messages, and whether a descriptor came along.
fn recording() -> Vec<(&'static [u8], bool)> {
    let mut rest = RECORDING;
    let mut messages = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (descriptors, after) = after.split_first_chunk::<4>().unwrap();
        let (message, after) =
            after.split_at(usize::try_from(u32::from_le_bytes(*length)).unwrap());
        messages.push((message, u32::from_le_bytes(*descriptors) > 0));
        rest = after;
    }
    messages
}

/// A session and its function, fed by hand.
struct Bench {
    mock: Mock,
    inbox: Inbox,
    session: Session,
    file: OwnedFd,
    sent: Vec<u8>,
    alive: bool,
    asked: bool,
}

impl Bench {
    fn new() -> Self {
        let mock = Mock::default();
        let (inbox, session) = (Inbox::default(), Session::default());
        Self {
            mock,
            inbox,
            session,
            file: memfd(256 << 20),
            sent: Vec::new(),
            alive: true,
            asked: false,
        }
    }

    fn feed(&mut self, mut bytes: &[u8], mut descriptor: bool) {
        while !bytes.is_empty() && self.alive {
            let space = self.inbox.space();
            let len = space.len().min(bytes.len());
            assert!(len > 0, "no room to receive");
            space[..len].copy_from_slice(&bytes[..len]);
            let fd = std::mem::take(&mut descriptor).then(|| self.file.try_clone().unwrap());
            self.inbox.filled(len, fd, false);
            bytes = &bytes[len..];
            self.alive = self.session.serve(&mut self.mock, &mut self.inbox).is_ok();
            if self.mock.doorbell == 0x77 && !std::mem::replace(&mut self.asked, true) {
                // What the device of the recording asked for.
                let write = DmaRequest::Write {
                    iova: 0x10_0000,
                    data: (1..=16).collect(),
                };
                let read = DmaRequest::Read {
                    iova: 0x20_0000,
                    len: 16,
                };
                self.mock.requests.extend([(1, write), (2, read)]);
            }
            self.session.pump_dma(&mut self.mock);
            loop {
                let outbox = self.session.outbox();
                let (out, file) = outbox.next();
                assert!(file.is_none());
                let len = out.len();
                if len == 0 {
                    break;
                }
                self.sent.extend_from_slice(out);
                outbox.advance(len);
            }
        }
    }

    /// What was sent, as messages; each must be well formed.
    fn messages(&self) -> Vec<Header> {
        let mut rest = &self.sent[..];
        let mut headers = Vec::new();
        while !rest.is_empty() {
            let header = Header::read_from_prefix(rest).expect("a whole header").0;
            let size = usize::try_from(header.size.get()).unwrap();
            assert!((HEADER_SIZE..=MAX_MESSAGE).contains(&size) && size <= rest.len());
            let bits = header.flags.get();
            let is_error = bits == flags::REPLY | flags::ERROR;
            assert!(
                bits == flags::COMMAND || bits == flags::REPLY || is_error,
                "flags {bits:#x}"
            );
            assert_eq!(is_error, header.error.get() != 0);
            assert!(!is_error || size == HEADER_SIZE);
            headers.push(header);
            rest = &rest[size..];
        }
        headers
    }

    fn replies(&self) -> Vec<Header> {
        self.messages()
            .into_iter()
            .filter(|header| header.flags.get() != flags::COMMAND)
            .collect()
    }
}

#[test]
fn recorded_session_is_served_without_an_error() {
    let mut bench = Bench::new();
    for (message, descriptor) in recording() {
        bench.feed(message, descriptor);
    }
    assert!(bench.alive);
    let counters = bench.session.counters();
    assert_eq!(
        (counters.messages, counters.posted_writes, counters.refused),
        (205, 101, 0)
    );
    assert!(
        bench
            .replies()
            .iter()
            .all(|reply| reply.flags.get() == flags::REPLY)
    );
    // Every command that wanted a reply got one, in order.
    let header = |message: &[u8]| Header::read_from_prefix(message).unwrap().0;
    let wanted: Vec<_> = recording()
        .iter()
        .map(|(message, _)| header(message))
        .collect();
    let wanted = wanted
        .iter()
        .filter(|header| header.flags.get() == flags::COMMAND);
    let wanted: Vec<_> = wanted
        .map(|header| (header.id.get(), header.command.get()))
        .collect();
    let got: Vec<_> = bench
        .replies()
        .iter()
        .map(|header| (header.id.get(), header.command.get()))
        .collect();
    assert_eq!(got, wanted);
    assert_eq!(
        bench.mock.replies,
        [(1, Ok(vec![])), (2, Ok((0xa0..0xb0).collect()))]
    );
    let asked: Vec<_> = bench
        .messages()
        .iter()
        .map(|header| (header.flags.get(), header.command.get()))
        .collect();
    let asked = asked
        .iter()
        .filter(|(bits, _)| *bits == flags::COMMAND)
        .map(|(_, code)| *code);
    assert!(asked.eq([command::DMA_READ, command::DMA_WRITE, command::DMA_READ]));
    assert_eq!(bench.mock.doorbell, 0x77);
}

#[test]
fn the_cut_of_the_stream_makes_no_difference() {
    let mut whole = Bench::new();
    for (message, descriptor) in recording() {
        whole.feed(message, descriptor);
    }
    for piece in [1, 2, 3, 7, 15, 16, 17, 31, 33, 100] {
        let mut bench = Bench::new();
        for (message, descriptor) in recording() {
            for (i, part) in message.chunks(piece).enumerate() {
                bench.feed(part, descriptor && i == 0);
            }
        }
        assert!(bench.sent == whole.sent, "pieces of {piece} bytes");
        assert_eq!(bench.mock.events, whole.mock.events);
    }
}

/// The same stream ended anywhere, with the next session begun at once.
#[test]
fn every_truncation() {
    let messages = recording();
    for (last, (message, descriptor)) in messages.iter().enumerate() {
        let mut bench = Bench::new();
        for (message, descriptor) in &messages[..last] {
            bench.feed(message, *descriptor);
        }
        let before = bench.sent.len();
        for byte in &message[..message.len() - 1] {
            bench.feed(&[*byte], *descriptor);
            assert_eq!(bench.sent.len(), before, "a reply to part of a message");
        }
        assert!(bench.alive && (message.len() == 1 || !bench.inbox.is_between_messages()));
    }
}

/// Damaged messages: no panic, no malformed message sent, no reply to what wanted none, and the session goes on unless
/// the size was damaged.
#[test]
fn many_mutations() {
    let messages = recording();
    // Neighbours of what matters, besides the bits themselves.
    let values = [0, 1, 2, 0x0f, 0x10, 0x20, 0x7f, 0x80, 0xff];
    let mut tried = 0;
    let mut seen = std::collections::HashSet::new();
    for (at, (message, descriptor)) in messages.iter().enumerate() {
        // One of each kind, length and flags.
        if !seen.insert((message[2], message.len(), message[8], *descriptor)) {
            continue;
        }
        for offset in 0..message.len().min(64) {
            for value in values {
                let mut bench = Bench::new();
                if at > 0 {
                    bench.feed(messages[0].0, false);
                }
                let mut damaged = message.to_vec();
                damaged[offset] = value;
                let before = bench.replies().len();
                bench.feed(&damaged, *descriptor);
                let header = Header::read_from_prefix(&damaged[..]).unwrap().0;
                let answered = bench.replies().len() - before;
                let silent = header.flags.get() & flags::NO_REPLY != 0
                    || header.flags.get() & flags::TYPE == 1;
                if header.size.get() == u32::try_from(damaged.len()).unwrap() {
                    assert_eq!(
                        answered,
                        usize::from(!silent),
                        "byte {offset} of message {at} made {value:#x}"
                    );
                    assert!(bench.alive && bench.inbox.is_between_messages());
                    bench.feed(messages[0].0, false);
                    assert_eq!(bench.replies().len(), before + answered + 1);
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 5000, "{tried}");
}

/// Random damage all over the stream.
#[test]
fn random_damage() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(below).unwrap()).unwrap()
    };
    let whole: Vec<u8> = recording()
        .iter()
        .flat_map(|(message, _)| message.iter().copied())
        .collect();
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(20) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes[at] = u8::try_from(random(256)).unwrap(),
                2 => drop(bytes.drain(at..(at + random(40)).min(bytes.len()))),
                _ => bytes.insert(at, u8::try_from(random(256)).unwrap()),
            }
        }
        let mut bench = Bench::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() && bench.alive {
            let (piece, after) = rest.split_at((1 + random(3000)).min(rest.len()));
            bench.feed(piece, random(3) == 0);
            rest = after;
        }
        bench.messages();
    }
}

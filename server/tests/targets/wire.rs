//! Socket bytes -> inbox -> session -> the device, and its messages back.
//!
//! The input is the choice of a product and then records: how (one byte), a length (16 bits), and that many bytes of the
//! stream. `how`: 1 a descriptor comes along; 2 the header's size is made right; 4 the device works first; 8 the bytes are
//! the data of the answer to the oldest DMA message; 16 the descriptor's file is cut short first.
use neuron_vfio_user::vfio::codec::wire::{Header, command, flags};
use neuron_vfio_user::vfio::codec::{HEADER_SIZE, MAX_MESSAGE};
use neuron_vfio_user::vfio::{Inbox, PciFunction, Session};
use zerocopy::{FromBytes, IntoBytes};

use super::bench::{Bench, Input, memfd};

/// As large as the guest of the recorded session needs.
const FILE: u64 = 256 << 20;
/// Replies that may wait: the high water of the outbox and one message of the largest size.
const MOST_WAITING: usize = (256 << 10) + MAX_MESSAGE + HEADER_SIZE;

struct Wire {
    bench: Bench,
    inbox: Inbox,
    session: Session,
    file: std::os::fd::OwnedFd,
    /// DMA messages that the client has not answered: id, command, the bytes of address and count, data wanted.
    pending: std::collections::VecDeque<(u16, u16, Vec<u8>)>,
}

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut wire = Wire {
        bench: Bench::new(input.byte()),
        inbox: Inbox::default(),
        session: Session::default(),
        file: memfd(FILE),
        pending: std::collections::VecDeque::new(),
    };
    while !input.is_empty() {
        let how = input.byte();
        let len = usize::from(u16::from_le_bytes(input.array()));
        let mut bytes = input.bytes(len).to_vec();
        if how & 4 != 0 {
            wire.work();
        }
        if how & 16 != 0 {
            rustix::fs::ftruncate(&wire.file, 4096).unwrap();
        }
        if how & 8 != 0 {
            let Some(answer) = wire.answer(&bytes) else {
                continue;
            };
            bytes = answer;
        } else if how & 2 != 0 && bytes.len() >= HEADER_SIZE {
            let size = u32::try_from(bytes.len()).unwrap();
            bytes[4..8].copy_from_slice(&size.to_le_bytes());
        }
        if !wire.feed(&bytes, how & 1 != 0) {
            break;
        }
    }
    wire.work();
    wire.bench.check();
    drop(wire.session);
    wire.bench.end();
}

impl Wire {
    fn feed(&mut self, mut bytes: &[u8], mut descriptor: bool) -> bool {
        while !bytes.is_empty() {
            let space = self.inbox.space();
            let len = space.len().min(bytes.len());
            assert!(len > 0, "no room to receive");
            space[..len].copy_from_slice(&bytes[..len]);
            let fd = std::mem::take(&mut descriptor).then(|| self.file.try_clone().unwrap());
            self.inbox.filled(len, fd, false);
            bytes = &bytes[len..];
            let result = self
                .session
                .serve(&mut self.bench.function, &mut self.inbox);
            self.sent();
            if result.is_err() {
                return false;
            }
        }
        true
    }

    fn work(&mut self) {
        for _ in 0..3 {
            let before = self.bench.bytes_moved();
            let _ = self.bench.function.run();
            let moved = self.bench.bytes_moved() - before;
            assert!(moved <= neuron_vfio_user::function::SLICE_BYTES + 65_536);
            self.session.pump_dma(&mut self.bench.function);
            self.sent();
        }
    }

    /// Takes what the session wants to send; every message must be well formed.
    fn sent(&mut self) {
        let outbox = self.session.outbox();
        assert!(outbox.pending() <= MOST_WAITING);
        let mut sent = Vec::new();
        loop {
            let (bytes, _) = outbox.next();
            if bytes.is_empty() {
                break;
            }
            sent.extend_from_slice(bytes);
            let len = bytes.len();
            outbox.advance(len);
        }
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let header = Header::read_from_prefix(rest).expect("a whole header").0;
            let size = usize::try_from(header.size.get()).unwrap();
            assert!((HEADER_SIZE..=MAX_MESSAGE).contains(&size) && size <= rest.len());
            let bits = header.flags.get();
            let is_error = bits == flags::REPLY | flags::ERROR;
            assert!(bits == flags::COMMAND || bits == flags::REPLY || is_error);
            assert_eq!(is_error, header.error.get() != 0);
            if bits == flags::COMMAND {
                let code = header.command.get();
                assert!([command::DMA_READ, command::DMA_WRITE].contains(&code));
                let body = &rest[HEADER_SIZE..size];
                self.pending.push_back((
                    header.id.get(),
                    code,
                    body[..16.min(body.len())].to_vec(),
                ));
                assert!(self.pending.len() <= 4096);
            }
            rest = &rest[size..];
        }
    }

    /// The answer of an honest client to the oldest DMA message, with data made from `bytes`.
    fn answer(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (id, code, body) = self.pending.pop_front()?;
        let mut answer = body.clone();
        if code == command::DMA_READ {
            let count = body.get(8..16).map_or(0, |count| {
                u64::from_le_bytes(count.try_into().unwrap_or_default())
            });
            let count = usize::try_from(count).unwrap_or(0).min(64 << 10);
            answer.extend(
                bytes
                    .iter()
                    .copied()
                    .chain(std::iter::repeat(0))
                    .take(count),
            );
        }
        let header = Header {
            id: id.into(),
            command: code.into(),
            size: u32::try_from(HEADER_SIZE + answer.len()).unwrap().into(),
            flags: flags::REPLY.into(),
            error: 0.into(),
        };
        let mut message = header.as_bytes().to_vec();
        message.extend(answer);
        Some(message)
    }
}

//! Clients that came while another is served: told so, in the words of the protocol.
//!
//! QEMU prints the reply to `VERSION` as the reason why it ends; a connection that is merely closed reads as a broken
//! server there.
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use zerocopy::FromBytes;

use super::codec::wire::Header;
use super::codec::{HEADER_SIZE, Reply};

/// Visitors that have not said anything yet. One more, and the oldest goes without an answer.
pub const MAX_VISITORS: usize = 4;

/// Bytes of a first message that are read, so that closing does not throw away the answer with them: as long as any
/// `VERSION` that is accepted.
const MOST: usize = 8 << 10;

#[derive(Debug)]
struct Visitor {
    socket: OwnedFd,
    header: [u8; HEADER_SIZE],
    filled: usize,
}

/// The visitors of one device.
#[derive(Debug, Default)]
pub struct Visitors(VecDeque<Visitor>);

impl Visitors {
    /// Takes a connection in until it says something.
    pub fn admit(&mut self, socket: OwnedFd) {
        if rustix::io::ioctl_fionbio(&socket, true).is_err() {
            return;
        }
        if self.0.len() >= MAX_VISITORS {
            self.0.pop_front();
        }
        self.0.push_back(Visitor {
            socket,
            header: [0; HEADER_SIZE],
            filled: 0,
        });
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their sockets.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|visitor| visitor.socket.as_fd())
    }

    /// Answers those who have spoken and lets them go.
    pub fn serve(&mut self) {
        self.0.retain_mut(Visitor::waits);
    }
}

impl Visitor {
    /// Reads what is there. False if this one is done with.
    fn waits(&mut self) -> bool {
        let mut bytes = [0; MOST];
        match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) => false,
            Ok((len, _)) => {
                let wanted = &mut self.header[self.filled..];
                let taken = len.min(wanted.len());
                wanted[..taken].copy_from_slice(&bytes[..taken]);
                self.filled += taken;
                if self.filled < HEADER_SIZE {
                    return true;
                }
                self.refuse();
                false
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    fn refuse(&self) {
        let Ok(header) = Header::read_from_bytes(&self.header) else {
            return;
        };
        let mut reply = Vec::new();
        Reply::Error {
            command: header.command.get(),
            errno: Errno::BUSY,
        }
        .encode(header.id.get(), &mut reply);
        // Whoever has left already needs no answer.
        let _ = rustix::net::send(&self.socket, &reply, SendFlags::NOSIGNAL);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }
}

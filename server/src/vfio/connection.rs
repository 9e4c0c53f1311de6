//! One client's socket: bytes and descriptors in and out, nothing of what they mean.
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::codec::MAX_FDS;
use super::inbox::Inbox;
use super::outbox::Outbox;

/// How long [`Patience::Short`] waits at most. The kernel rounds it up to its own ticks, of up to 10 ms.
const SHORT: Duration = Duration::from_millis(4);

/// Whether a receive call waits if there is nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It returns at once.
    None,
    /// It waits for a few milliseconds.
    Short,
}

/// What a receive call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes, and as far as known all there are.
    Some,
    /// As many bytes as there was room for: there probably are more.
    Full,
    /// Nothing for now.
    Nothing,
    /// The client has closed its side.
    End,
}

/// System calls made on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// `recvmsg`.
    pub receive: u64,
    /// `sendmsg`.
    pub send: u64,
}

/// A connected socket. It never blocks but in [`Self::receive`] when that is asked to wait.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    calls: Calls,
}

impl Connection {
    /// Takes over a connected stream socket.
    ///
    /// # Errors
    /// Its way of waiting could not be set.
    pub fn new(socket: OwnedFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&socket, false)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(SHORT))?;
        Ok(Self {
            socket,
            calls: Calls::default(),
        })
    }

    /// Receives once: as many messages as the kernel has and `inbox` has room for.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn receive(&mut self, inbox: &mut Inbox, patience: Patience) -> Result<Received, Errno> {
        let flags = match patience {
            Patience::None => RecvFlags::DONTWAIT,
            Patience::Short => RecvFlags::empty(),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (received, room) = loop {
            self.calls.receive += 1;
            let space = inbox.space();
            let room = space.len();
            let mut into = [IoSliceMut::new(space)];
            match rustix::net::recvmsg(
                &self.socket,
                &mut into,
                &mut control,
                RecvFlags::CMSG_CLOEXEC | flags,
            ) {
                Err(Errno::INTR) if patience == Patience::None => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
                other => break (other?, room),
            }
        };
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        inbox.filled(
            received.bytes,
            fds.flatten(),
            received.flags.contains(ReturnFlags::CTRUNC),
        );
        Ok(if received.bytes == 0 {
            Received::End
        } else if received.bytes == room {
            Received::Full
        } else {
            Received::Some
        })
    }

    /// Sends what waits until the kernel takes no more.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, outbox: &mut Outbox) -> Result<(), Errno> {
        loop {
            let (bytes, file) = outbox.next();
            if bytes.is_empty() {
                return Ok(());
            }
            self.calls.send += 1;
            match send_once(self.socket.as_fd(), bytes, file) {
                Ok(sent) => outbox.advance(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// System calls so far.
    pub fn calls(&self) -> Calls {
        self.calls
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_once(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    file: Option<&Arc<File>>,
) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let Some(file) = file else {
        return rustix::net::send(socket, bytes, flags);
    };
    let fds = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

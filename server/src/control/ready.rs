//! `--ready-fd` and `NOTIFY_SOCKET`: tell whoever started us that QEMU may connect.
//!
//! The only place that takes a file descriptor by number.
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that the parent left open for us. Call it once per number, before anything else opens files:
/// otherwise the number may be one of ours.
///
/// # Errors
/// It is not open.
pub(super) fn inherit(number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: borrowed only to ask whether it is open; the answer is all that is used.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(borrowed)?;
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and by this function's contract nothing in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The inherited descriptor.
#[derive(Debug)]
pub struct ReadyFd(File);

impl ReadyFd {
    /// Takes over a descriptor that the parent left open for us. Call it once, before anything else opens files:
    /// otherwise the number may be one of ours.
    ///
    /// # Errors
    /// It is one of the standard three, or not open.
    pub fn inherit(number: RawFd) -> Result<Self, String> {
        if number < 3 {
            return Err(format!(
                "--ready-fd {number}: 0, 1 and 2 are taken; open another one, such as 3>ready"
            ));
        }
        inherit(number)
            .map(|fd| Self(File::from(fd)))
            .map_err(|_| format!("--ready-fd {number} is not open; the parent must pass it on"))
    }

    /// Writes `READY` and closes it.
    ///
    /// # Errors
    /// The reader is gone.
    pub fn signal(mut self) -> std::io::Result<()> {
        self.0.write_all(b"READY\n")
    }
}

/// The service manager's socket (`sd_notify(3)`).
#[derive(Debug)]
pub struct Notify(UnixDatagram);

impl Notify {
    /// Connects to `NOTIFY_SOCKET`, if the environment has it.
    ///
    /// # Errors
    /// It is there and cannot be reached.
    pub fn from_environment() -> Result<Option<Self>, String> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address?)?;
            Ok(Self(socket))
        };
        connect().map(Some).map_err(|error: std::io::Error| {
            format!(
                "NOTIFY_SOCKET={}: {error}; unset it to start without",
                name.display()
            )
        })
    }

    /// Says that the service is up.
    ///
    /// # Errors
    /// The service manager is gone.
    pub fn ready(self) -> std::io::Result<()> {
        self.0.send(b"READY=1").map(drop)
    }
}

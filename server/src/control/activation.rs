//! Sockets that a service manager listens on for us (`LISTEN_FDS`, `LISTEN_PID`: `sd_listen_fds(3)`).
use std::ffi::OsStr;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::net::SocketAddrUnix;

use super::ready::inherit;
use crate::vfio::{ListenError, Listener};

/// `SD_LISTEN_FDS_START`.
const FIRST: RawFd = 3;
/// More than the devices and the control socket can use.
const MOST: RawFd = 64;

/// The sockets passed, by the path they are bound to.
#[derive(Debug, Default)]
pub struct Activation(Vec<(PathBuf, OwnedFd)>);

impl Activation {
    /// Takes over what the environment says was passed to this process; nothing if it says nothing, or speaks to
    /// another process. Call it once, before anything else opens files. `taken` is a descriptor that has an owner.
    ///
    /// # Errors
    /// The environment promises what is not there.
    pub fn inherit(taken: Option<RawFd>) -> Result<Self, String> {
        let number = |name| {
            let value = std::env::var(name).ok()?;
            Some(
                value
                    .parse::<RawFd>()
                    .map_err(|_| format!("{name}={value}: not a number")),
            )
        };
        let (Some(pid), Some(count)) = (number("LISTEN_PID"), number("LISTEN_FDS")) else {
            return Ok(Self::default());
        };
        let (pid, count) = (pid?, count?);
        if pid != rustix::process::getpid().as_raw_nonzero().get() {
            return Ok(Self::default());
        }
        if !(0..=MOST).contains(&count) {
            return Err(format!(
                "LISTEN_FDS={count}: from 0 to {MOST} sockets can be used"
            ));
        }
        if let Some(taken) = taken.filter(|taken| (FIRST..FIRST + count).contains(taken)) {
            return Err(format!(
                "--ready-fd {taken} is one of the {count} sockets of LISTEN_FDS; use NOTIFY_SOCKET or another number"
            ));
        }
        (FIRST..FIRST + count)
            .map(|number| {
                let fd = inherit(number)
                    .map_err(|_| format!("LISTEN_FDS={count}, but descriptor {number} is not open"))?;
                let path = rustix::net::getsockname(&fd)
                    .ok()
                    .and_then(|address| SocketAddrUnix::try_from(address).ok())
                    .and_then(|address| address.path().map(|path| absolute(Path::new(OsStr::from_bytes(path.to_bytes())))))
                    .ok_or_else(|| {
                        format!("descriptor {number} of LISTEN_FDS is not a unix socket with a path (ListenStream=/path)")
                    })?;
                Ok((path, fd))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Listens at `path`: on the socket that was passed for it, or else on one of our own.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(&mut self, path: &Path) -> Result<Listener, ListenError> {
        let wanted = absolute(path);
        match self.0.iter().position(|(bound, _)| *bound == wanted) {
            Some(at) => Listener::from_fd(self.0.swap_remove(at).1),
            None => Listener::bind(path),
        }
    }

    /// Says that nothing is left over.
    ///
    /// # Errors
    /// A socket nobody listens on: clients would wait for ever.
    pub fn finish(self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((path, _)) => Err(format!(
                "LISTEN_FDS passes a socket bound to {}, which is neither a --socket nor --control; make the paths equal",
                path.display()
            )),
        }
    }
}

/// By string alone: the file may be in a directory we cannot read.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

//! The socket that clients connect to, and the file that stands for it.
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Clients that may wait to be accepted, or refused.
const BACKLOG: i32 = 16;

/// Why a socket cannot be listened on. Each names what to do.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Someone accepts connections there.
    #[error("{}: another process is serving this socket; stop it or choose another path", .0.display())]
    Live(PathBuf),
    /// The path is taken by something that must not be deleted.
    #[error("{}: exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// Longer than a socket address can hold.
    #[error("{}: longer than the 107 bytes a socket path can have; choose a shorter one", .0.display())]
    PathTooLong(PathBuf),
    /// The directory is missing.
    #[error("{}: no such directory; create it first", .0.display())]
    NoDirectory(PathBuf),
    /// The directory does not let us create a file.
    #[error("{}: cannot create a socket in this directory: {errno}; choose a path you may write to", .directory.display())]
    NotWritable {
        /// The directory.
        directory: PathBuf,
        /// Why not.
        #[source]
        errno: Errno,
    },
    /// A descriptor from outside that is not a listening unix stream socket.
    #[error("descriptor passed to listen on: {0}")]
    BadDescriptor(&'static str),
    /// Anything else.
    #[error("{}: {what} failed: {errno}", .path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// The call.
        what: &'static str,
        /// Its error.
        #[source]
        errno: Errno,
    },
}

/// A listening unix socket. Dropping it removes its file, if that is still this socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    file: Option<SocketFile>,
}

/// Which file is ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listener {
    /// Listens at `path`. The file is private to the user. A socket that nobody serves any more is replaced.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, ListenError> {
        let path = path.as_ref();
        let system = |what| {
            move |errno| ListenError::System {
                path: path.into(),
                what,
                errno,
            }
        };
        let address = SocketAddrUnix::new(path).map_err(|errno| match errno {
            Errno::NAMETOOLONG => ListenError::PathTooLong(path.into()),
            errno => system("address")(errno),
        })?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open =
            || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = open().map_err(system("socket"))?;
        // bind(2) gives the file the mode of the socket, so that at no time anyone else can connect.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(system("fchmod"))?;
        let mut bound = rustix::net::bind(&socket, &address);
        if bound == Err(Errno::ADDRINUSE) {
            remove_stale(path, &open().map_err(system("socket"))?, &address)?;
            bound = rustix::net::bind(&socket, &address);
        }
        bound.map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::Live(path.into()),
            Errno::NOENT | Errno::NOTDIR => ListenError::NoDirectory(directory(path)),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => ListenError::NotWritable {
                directory: directory(path),
                errno,
            },
            errno => system("bind")(errno),
        })?;
        let stat = rustix::fs::lstat(path).map_err(system("stat"))?;
        let file = Some(SocketFile {
            path: path.into(),
            device: stat.st_dev,
            inode: stat.st_ino,
        });
        // From here on a failure removes the file.
        let listener = Self { socket, file };
        rustix::net::listen(&listener.socket, BACKLOG).map_err(system("listen"))?;
        Ok(listener)
    }

    /// Takes over a socket that listens already, as a service manager passes it. Its file is left alone.
    ///
    /// # Errors
    /// [`ListenError::BadDescriptor`] for anything but a listening unix stream socket.
    pub fn from_fd(socket: OwnedFd) -> Result<Self, ListenError> {
        let bad = |_| ListenError::BadDescriptor("not a socket");
        if sockopt::socket_domain(&socket).map_err(bad)? != AddressFamily::UNIX {
            return Err(ListenError::BadDescriptor("not a unix socket"));
        }
        if sockopt::socket_type(&socket).map_err(bad)? != SocketType::STREAM {
            return Err(ListenError::BadDescriptor("not a stream socket"));
        }
        if !sockopt::socket_acceptconn(&socket).map_err(bad)? {
            return Err(ListenError::BadDescriptor(
                "not listening: it must have been passed through listen(2)",
            ));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(bad)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(bad)?;
        Ok(Self { socket, file: None })
    }

    /// The next client that waits, if any.
    ///
    /// # Errors
    /// Those of accept(2) that do not just concern a client that has left again.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        loop {
            match rustix::net::accept_with(
                &self.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(client) => return Ok(Some(client)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The directory of the socket's file, if that is ours to remove.
    pub fn directory(&self) -> Option<PathBuf> {
        self.path().map(directory)
    }

    /// Where clients connect; `None` for a socket passed in.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let ours = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino) == (file.device, file.inode);
        if rustix::fs::lstat(&file.path).is_ok_and(ours) {
            // Failing is harmless: the next server replaces a stale socket.
            let _ = rustix::fs::unlink(&file.path);
        }
    }
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.into(),
        _ => PathBuf::from("."),
    }
}

/// Removes the socket at `path` if nobody listens on it.
fn remove_stale(path: &Path, probe: &OwnedFd, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let system = |what| {
        move |errno| ListenError::System {
            path: path.into(),
            what,
            errno,
        }
    };
    let found = rustix::fs::lstat(path).map_err(system("stat"))?;
    if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_socket() {
        return Err(ListenError::NotASocket(path.into()));
    }
    match rustix::net::connect(probe, address) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // A full backlog (EAGAIN) and another user's socket (EACCES) are as alive as a connection.
        Ok(()) | Err(_) => return Err(ListenError::Live(path.into())),
    }
    let now = rustix::fs::lstat(path).map_err(system("stat"))?;
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) {
        return Err(ListenError::Live(path.into()));
    }
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(ListenError::NotWritable {
            directory: directory(path),
            errno,
        }),
        Err(errno) => Err(system("unlink")(errno)),
    }
}

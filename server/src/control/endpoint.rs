//! Unix sockets with a path: a stale one is replaced, a live one refused, our own removed at the end.
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::umask;
use thiserror::Error;

/// Why a path cannot be listened on.
#[derive(Debug, Error)]
pub enum BindError {
    /// Somebody answers there.
    #[error("{0}: another process is listening there; stop it, or choose another path")]
    Live(PathBuf),
    /// The path is taken by something else.
    #[error("{0} exists and is not a socket; remove it, or choose another path")]
    NotASocket(PathBuf),
    /// `sockaddr_un` is 108 bytes.
    #[error(
        "{0}: the path is longer than the 107 bytes a unix socket may have; choose a shorter one"
    )]
    TooLong(PathBuf),
    /// The directory does not exist.
    #[error("{0}: the directory does not exist; create it first")]
    NoDirectory(PathBuf),
    /// The directory cannot be written.
    #[error("{0}: no permission to create a socket there; choose a directory that you may write")]
    NotWritable(PathBuf),
    /// Anything else.
    #[error("{path}: cannot listen: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl BindError {
    fn new(path: &Path, error: impl Into<io::Error>) -> Self {
        let (path, source) = (path.to_owned(), error.into());
        match source.kind() {
            ErrorKind::NotFound => Self::NoDirectory(path),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::NotWritable(path),
            ErrorKind::AddrInUse => Self::Live(path),
            _ => Self::Io { path, source },
        }
    }
}

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As the umask says.
    Umask,
    /// The owner.
    Private,
}

/// A bound path. Dropping it removes the path if it is still ours.
#[derive(Debug)]
pub struct Endpoint {
    path: PathBuf,
    inode: (u64, u64),
}

impl Endpoint {
    /// Listens on `path`. Call it before other threads start: [`Access::Private`] sets the umask for a moment.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(path: &Path, access: Access) -> Result<(Self, UnixListener), BindError> {
        let fail = |error: io::Error| BindError::new(path, error);
        let address = SocketAddrUnix::new(path).map_err(|_| BindError::TooLong(path.to_owned()))?;
        let _guard = lock_directory(path);
        remove_stale(path, &address)?;
        let socket = new_socket().map_err(fail)?;
        let mask = (access == Access::Private).then(|| umask(Mode::from_raw_mode(0o177)));
        let bound = bind(&socket, &address);
        if let Some(mask) = mask {
            umask(mask);
        }
        bound.map_err(|error| BindError::new(path, error))?;
        // From here on the path is ours to remove.
        let endpoint = Self {
            path: path.to_owned(),
            inode: inode(path).map_err(fail)?,
        };
        listen(&socket, 16).map_err(|error| BindError::new(path, error))?;
        Ok((endpoint, UnixListener::from(socket)))
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // Nothing to be done if it cannot be removed: the next start finds it stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.st_dev(), metadata.st_ino()))
}

/// Two processes that find the same stale socket must not remove each other's fresh one. No lock to be had (a
/// directory that may not be read) means no protection, not a failure.
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let directory = open(
        directory,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    for _ in 0..50 {
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Some(directory);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    None
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), BindError> {
    let fail = |error: io::Error| BindError::new(path, error);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    // Non-blocking: a live server with a full backlog would keep us waiting.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| BindError::new(path, error))?;
    match connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => fs::remove_file(path).map_err(fail),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(BindError::Live(path.to_owned())),
        Err(error) => Err(BindError::new(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let (endpoint, listener) = Endpoint::bind(&path, Access::Umask).unwrap();
        assert!(matches!(
            Endpoint::bind(&path, Access::Umask),
            Err(BindError::Live(_))
        ));
        drop(listener);
        drop(endpoint);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_server_with_a_full_backlog_is_live() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (_endpoint, _listener) = Endpoint::bind(&path, Access::Umask).unwrap();
        for _ in 0..40 {
            assert!(matches!(
                Endpoint::bind(&path, Access::Umask),
                Err(BindError::Live(_))
            ));
        }
    }

    #[test]
    fn only_our_own_path_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (endpoint, _listener) = Endpoint::bind(&path, Access::Umask).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "somebody else's").unwrap();
        drop(endpoint);
        assert!(path.exists());
        assert!(matches!(
            Endpoint::bind(&path, Access::Umask),
            Err(BindError::NotASocket(_))
        ));
    }

    #[test]
    fn private_is_private_and_the_umask_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let before = umask(Mode::from_raw_mode(0o022));
        umask(before);
        let (_endpoint, _listener) = Endpoint::bind(&path, Access::Private).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let after = umask(before);
        assert_eq!(after, before);
    }

    #[test]
    fn bad_paths_have_their_own_words() {
        let directory = tempfile::tempdir().unwrap();
        let bind = |path: &Path| Endpoint::bind(path, Access::Umask).unwrap_err().to_string();
        assert!(bind(&directory.path().join("a/b")).contains("does not exist"));
        assert!(bind(&directory.path().join("x".repeat(120))).contains("107 bytes"));
        assert!(bind(Path::new("/proc/s")).contains("/proc/s: "));
    }
}

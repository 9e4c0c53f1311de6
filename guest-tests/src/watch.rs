//! Waits for a file to change and to be whole again.
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use crate::lane::INTERRUPTED;

/// A linker writes a module in several steps; this long without a further one means that it is done.
const SETTLED: Duration = Duration::from_millis(400);

/// Watches the directory of a file, since builds replace files by renaming.
#[derive(Debug)]
pub struct FileWatch {
    fd: std::os::fd::OwnedFd,
    file: PathBuf,
}

impl FileWatch {
    /// Starts to watch; changes from now on are seen.
    ///
    /// # Errors
    /// The directory does not exist, or the user has no inotify watches left.
    pub fn new(file: &Path) -> Result<Self> {
        let dir = file
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .context("inotify")?;
        let events = inotify::WatchFlags::CLOSE_WRITE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MODIFY;
        inotify::add_watch(&fd, dir, events)
            .with_context(|| format!("cannot watch the directory {}", dir.display()))?;
        Ok(Self {
            fd,
            file: file.to_path_buf(),
        })
    }

    /// Blocks until the file has changed and then been left alone for a moment. `false`: interrupted by a signal.
    ///
    /// # Errors
    /// inotify failed.
    pub fn changed(&self) -> Result<bool> {
        let mut last: Option<Instant> = None;
        loop {
            if INTERRUPTED.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if last.is_some_and(|at| at.elapsed() >= SETTLED) && self.file.is_file() {
                return Ok(true);
            }
            let pause = if last.is_some() {
                SETTLED / 4
            } else {
                Duration::from_millis(500)
            };
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(pause.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&pause)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => {
                    if self.drain()? {
                        last = Some(Instant::now());
                    }
                }
                Err(error) => bail!("cannot wait for {}: {error}", self.file.display()),
            }
        }
    }

    /// Reads all pending events; was one about the file?
    fn drain(&self) -> Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
        let mut ours = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|n| OsStr::from_bytes(n.to_bytes()));
                    // A queue that overflowed has lost names: look at the file.
                    ours |= name.is_none() || name == self.file.file_name();
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(ours),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => bail!("inotify: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_and_rewritten_files_are_seen_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.ko");
        let watch = FileWatch::new(&file).unwrap();
        std::fs::write(dir.path().join("other"), "x").unwrap();
        assert!(!watch.drain().unwrap());
        std::fs::write(&file, "1").unwrap();
        let start = Instant::now();
        assert!(watch.changed().unwrap());
        assert!(start.elapsed() >= SETTLED);
        std::fs::write(dir.path().join("tmp"), "2").unwrap();
        std::fs::rename(dir.path().join("tmp"), &file).unwrap();
        assert!(watch.changed().unwrap());
    }
}

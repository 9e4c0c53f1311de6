//! `--ready-fd`: tells whoever started us that QEMU may connect.
//!
//! The only place that takes a file descriptor by number.
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

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
        // SAFETY: borrowed only to ask whether it is open; the answer is all that is used.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_getfd(borrowed)
            .and_then(|_| fcntl_setfd(borrowed, FdFlags::CLOEXEC))
            .map_err(|_| format!("--ready-fd {number} is not open; the parent must pass it on"))?;
        // SAFETY: it is open, and by this function's contract nothing in this process owns it.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(number) })))
    }

    /// Writes `READY` and closes it.
    ///
    /// # Errors
    /// The reader is gone.
    pub fn signal(mut self) -> std::io::Result<()> {
        self.0.write_all(b"READY\n")
    }
}

//! What the client of one device may take of what all devices of the process share: the kernel lets a process have so many
//! areas of memory, and so much address space. Without a bound for each, one client leaves nothing to the others.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;

/// Bytes of files that one client may have mapped: sixteen such devices take half of a process's 2^47.
pub const MAX_BYTES: u64 = 4 << 40;

/// Files that each device may have mapped whatever the others do; QEMU needs some dozens.
const RESERVED: usize = 1000;

/// Files beyond those, for all devices together. The kernel lets a process have 65,530 areas (`vm.max_map_count`); each file
/// needs a second one when it is cut short, or [`super::sigbus`] cannot rescue us, and the rest needs some: 30,000 files,
/// less what is reserved for sixteen devices.
const COMMON: usize = 30_000 - 16 * RESERVED;

/// Of [`COMMON`], taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// What a client has taken.
#[derive(Debug, Default)]
pub struct Quota {
    files: AtomicUsize,
    bytes: AtomicU64,
}

/// A file's part of it, given back when dropped.
#[derive(Debug)]
pub struct Share {
    quota: Arc<Quota>,
    bytes: u64,
    common: bool,
}

impl Quota {
    /// Takes a file of `bytes`.
    ///
    /// # Errors
    /// `ENOSPC`: more files or bytes than one client may have.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Share, Errno> {
        // One thread owns a device, so that nobody takes between the look and the taking.
        let held = self.bytes.load(Ordering::Relaxed);
        if held.checked_add(bytes).is_none_or(|all| all > MAX_BYTES) {
            return Err(Errno::NOSPC);
        }
        let common = self.files.load(Ordering::Relaxed) >= RESERVED;
        if common {
            TAKEN
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                    (taken < COMMON).then_some(taken + 1)
                })
                .map_err(|_| Errno::NOSPC)?;
        }
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Share {
            quota: Arc::clone(self),
            bytes,
            common,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.quota.files.fetch_sub(1, Ordering::Relaxed);
        self.quota.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.common {
            TAKEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_the_others_their_part() {
        let greedy = Arc::<Quota>::default();
        let mut held: Vec<_> = std::iter::from_fn(|| greedy.take(4096).ok()).collect();
        assert!(held.len() > 10_000, "{}", held.len());
        let modest = Arc::<Quota>::default();
        let kept: Vec<_> = std::iter::from_fn(|| modest.take(4096).ok()).collect();
        assert_eq!(kept.len(), RESERVED);
        // What is given back can be had again, by whoever comes first.
        held.pop();
        assert!(modest.take(4096).is_ok());
        drop((held, kept));
        assert_eq!(greedy.files.load(Ordering::Relaxed), 0);
        assert_eq!(greedy.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bytes_are_bounded_and_do_not_wrap() {
        let quota = Arc::<Quota>::default();
        let most = quota.take(MAX_BYTES).unwrap();
        assert_eq!(quota.take(1).unwrap_err(), Errno::NOSPC);
        assert_eq!(quota.take(u64::MAX).unwrap_err(), Errno::NOSPC);
        drop(most);
        assert!(quota.take(1).is_ok());
    }
}

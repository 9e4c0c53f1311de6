//! Survives a client that cuts short a file after we mapped it.
//!
//! The kernel answers an access past the end of a file with SIGBUS, and the client owns the file: without this, one
//! `ftruncate` ends every device of the process. Mappings of client files are registered here; on a fault inside one, the
//! handler puts anonymous memory from the faulting page to the mapping's end, remembers that from there on nothing is the
//! client's any more, and lets the access go on. Whoever moved the bytes asks [`take_hit`] and fails the transfer.
//!
//! Every other SIGBUS goes on to whoever handled it before.
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Mutex, Once, PoisonError};

use rustix::mm::{MapFlags, ProtFlags};

/// Slots allocated at a time.
const BLOCK: usize = 64;
/// What may have to be replaced at least: a page, or a huge page of hugetlbfs, which cannot be replaced in part.
const GRANULES: [usize; 3] = [4 << 10, 2 << 20, 1 << 30];

/// One registered range. Written by registration only, one writer at a time; read by the handler, which a changing
/// `version` tells to ignore the slot: the range that faulted is in use and so does not change.
struct Slot {
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Offset from which the range is no longer the client's.
    lost: AtomicUsize,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicUsize::new(usize::MAX),
        }
    }

    /// Changes the range; the caller holds [`FREE`].
    fn set(&self, start: usize, end: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.lost.store(usize::MAX, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// The range, unless it is changing or empty.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let range = (
            self.start.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        let stable = before.is_multiple_of(2) && before == self.version.load(Ordering::Relaxed);
        (stable && range.0 != 0).then_some(range)
    }
}

/// A list of blocks that only ever grows, so that the handler can walk it at any time.
struct Block {
    slots: [Slot; BLOCK],
    next: AtomicPtr<Block>,
}

static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(null_mut());
/// Slots without a range.
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

thread_local! {
    /// Address of the last access of this thread that had to be rescued; 0: none. Without a destructor and with a constant
    /// to begin with, it is a plain word that the handler may touch.
    static HIT: AtomicUsize = const { AtomicUsize::new(0) };
}

/// A range of client memory that may fault. Drop it before the range is unmapped.
pub struct Registration(&'static Slot);

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Registration")
            .field(&self.0.range())
            .finish()
    }
}

impl Registration {
    /// Makes `start..start + len` survive.
    ///
    /// # Safety
    /// The range is a mapping that the caller owns and that stays until the registration is dropped. Nothing but raw or
    /// volatile accesses reach it: its content may be replaced at any access.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        install();
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = free.pop().unwrap_or_else(|| {
            let block = Box::leak(Box::new(Block {
                slots: [const { Slot::empty() }; BLOCK],
                next: AtomicPtr::new(BLOCKS.load(Ordering::Relaxed)),
            }));
            BLOCKS.store(block, Ordering::Release);
            let (first, rest) = block.slots.split_first().unwrap_or_else(|| unreachable!());
            free.extend(rest);
            first
        });
        slot.set(start.addr(), start.addr().saturating_add(len));
        Self(slot)
    }

    /// Offset from which the range is no longer the client's; `usize::MAX` while it all is.
    pub fn lost_from(&self) -> usize {
        self.0.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.set(0, 0);
        free.push(self.0);
    }
}

/// Address of an access of this thread, since the last call, that found no memory.
pub fn take_hit() -> Option<usize> {
    // The handler runs on this thread: only the compiler could reorder.
    compiler_fence(Ordering::SeqCst);
    let hit = HIT.with(|hit| {
        let address = hit.load(Ordering::Relaxed);
        if address != 0 {
            hit.store(0, Ordering::Relaxed);
        }
        address
    });
    (hit != 0).then_some(hit)
}

/// The action that was there before ours. Written once, before ours is set.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once inside `INSTALL`, before the handler that reads it exists; only read from then on.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::zeroed()));
static INSTALL: Once = Once::new();

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: all zeros are a valid `sigaction`: the default action, no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: Handler = on_sigbus;
        action.sa_sigaction = handler as usize;
        // On the alternate stack that std gives its threads. Not SA_NODEFER: a fault in the handler must end us.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // The old one first: ours may be called at once.
        // SAFETY: reads the current action into memory of the right type, which nobody else uses before `INSTALL` is done.
        unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), PREVIOUS.0.get().cast()) };
        // SAFETY: `action` is whole, and its handler keeps to what a handler may do.
        let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) };
        if result != 0 {
            tracing::error!(
                "no handler for SIGBUS: a client that truncates its memory can end this process"
            );
        }
    });
}

/// Only loads and stores of atomics and one raw system call; no allocation, no lock.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo, which nothing else refers to.
    let info_ref = unsafe { &*info };
    let code = info_ref.si_code;
    // SAFETY: for SIGBUS from the kernel si_addr is set; from elsewhere any value is harmless, for it is checked below.
    let address = unsafe { info_ref.si_addr() }.addr();
    if code > 0 && rescue(address) {
        HIT.with(|hit| hit.store(address, Ordering::Relaxed));
    } else {
        chain(signal, info, context);
    }
}

/// Puts memory where the client's is gone. False if the address is not in a registered range.
fn rescue(address: usize) -> bool {
    let mut next = BLOCKS.load(Ordering::Acquire);
    while !next.is_null() {
        // SAFETY: blocks are leaked, so that a pointer in the list is valid for ever.
        let block = unsafe { &*next };
        for slot in &block.slots {
            if let Some((start, end)) = slot.range()
                && (start..end).contains(&address)
            {
                return GRANULES.iter().any(|granule| {
                    let from = (address & !(granule - 1)).max(start);
                    replace(from, end - from) && {
                        slot.lost.fetch_min(from - start, Ordering::Relaxed);
                        true
                    }
                });
            }
        }
        next = block.next.load(Ordering::Acquire);
    }
    false
}

fn replace(start: usize, len: usize) -> bool {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range lies in a registered mapping, whose owner has agreed to this (`Registration::new`).
    unsafe { rustix::mm::mmap_anonymous(start, len, protection, flags) }.is_ok()
}

/// What would have happened without us.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before this handler was set, never since.
    let previous = unsafe { &*PREVIOUS.0.get() };
    // SAFETY: all zeros, as it was made, are a valid `sigaction` too.
    let previous = unsafe { previous.assume_init_ref() };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is made again on return, and ends the process with the right signal.
            // SAFETY: the previous action is one the kernel gave us.
            unsafe { libc::sigaction(signal, previous, null_mut()) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the field holds a function of this type.
            let handler: Handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO the field holds a function of this type.
            let handler =
                unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::sync::Arc;

    use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

    use super::*;

    fn mapped(pages: usize) -> (Arc<std::fs::File>, MmapRegion) {
        let fd = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, pages as u64 * 4096).unwrap();
        let file = Arc::new(std::fs::File::from(fd));
        let offset = FileOffset::from_arc(Arc::clone(&file), 0);
        let region = MmapRegion::from_file(offset, pages * 4096).unwrap();
        (file, region)
    }

    #[test]
    fn many_registrations_come_and_go() {
        let regions: Vec<_> = (0..1000).map(|_| mapped(1)).collect();
        for _ in 0..2 {
            let all: Vec<_> = regions
                .iter()
                // SAFETY: the mapping outlives the registration and is reached by volatile accesses only.
                .map(|(_, region)| unsafe { Registration::new(region.as_ptr(), region.size()) })
                .collect();
            regions[777].0.set_len(0).unwrap();
            assert_eq!(take_hit(), None);
            let slice = regions[777].1.get_slice(100, 1).unwrap();
            assert_eq!(slice.read_obj::<u8>(0).unwrap(), 0);
            let lost: Vec<_> = (0..1000).filter(|n| all[*n].lost_from() == 0).collect();
            if !lost.is_empty() {
                assert_eq!(lost, [777]);
                assert!(take_hit().is_some());
                assert_eq!(take_hit(), None);
            }
        }
    }

    #[test]
    fn what_is_lost_is_the_tail_from_the_lowest_page_touched() {
        let (file, region) = mapped(8);
        // SAFETY: as above.
        let registration = unsafe { Registration::new(region.as_ptr(), region.size()) };
        file.set_len(2 * 4096).unwrap();
        let touch = |page: usize| {
            let slice = region.get_slice(page * 4096 + 5, 1).unwrap();
            slice.write_obj(7u8, 0).unwrap();
            (take_hit().is_some(), registration.lost_from() / 4096)
        };
        assert_eq!(touch(5), (true, 5));
        assert_eq!(touch(7), (false, 5));
        assert_eq!(touch(2), (true, 2));
        assert_eq!(touch(1), (false, 2));
        assert_eq!(std::fs::metadata("/proc/self").unwrap().len(), 0);
        assert_eq!(file.metadata().unwrap().len(), 2 * 4096);
    }

    /// A fault that is not ours ends the process as it would without us. Runs in a process of its own.
    #[test]
    fn a_foreign_fault_is_fatal() {
        const CHILD: &str = "NEURON_TEST_FOREIGN_FAULT";
        if std::env::var_os(CHILD).is_some() {
            let (_keep, ours) = mapped(1);
            // SAFETY: as above.
            let _registration = unsafe { Registration::new(ours.as_ptr(), ours.size()) };
            let (file, region) = mapped(1);
            file.set_len(0).unwrap();
            let _ = region.get_slice(0, 1).unwrap().read_obj::<u8>(0);
            std::process::exit(0);
        }
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "memory::sigbus::tests::a_foreign_fault_is_fatal",
                "--test-threads=1",
            ])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }
}

//! The ring into which a driver posts the ends of asynchronous copies, as this program maps it.
//!
//! The layout is that of the test driver; see the ABI.
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;
use rustix::mm::{MapFlags, ProtFlags};

use crate::device::Device;
use crate::ioctl;

const PATIENCE: Duration = Duration::from_secs(60);
const HEADER: usize = 16;
const ENTRY: usize = size_of::<abi::H2tComplEntry>();

/// Whether the driver has such a ring of a layout that this program knows.
pub fn known(device: &Device) -> bool {
    device.offers(abi::GET_ASYNC_H2T_DMA_COMPL_QUEUES)
        && Path::new("/sys/module/neuron_test").exists()
}

/// One queue's ring. Mapped until the process ends.
pub struct Completions {
    ring: *mut rustix::ffi::c_void,
    capacity: u32,
    head: u32,
}

impl Completions {
    /// Maps that of a queue of core 0; the driver then keeps it for this file.
    pub fn map(device: &Device, queue: u32) -> Result<Self> {
        let mut queues = abi::GetAsyncH2tDmaComplQueues {
            qid_bitmap: 1 << queue,
            ..Default::default()
        };
        ioctl::plain(
            device.file(),
            abi::GET_ASYNC_H2T_DMA_COMPL_QUEUES,
            &mut queues,
        )?;
        let info = queues.compl_queue_info[usize::try_from(queue)?];
        let size = usize::try_from(info.mmap_size)?.next_multiple_of(4096);
        ensure!(size >= 4096, "a ring of {} bytes", info.mmap_size);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let ring = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                device.file(),
                info.mmap_offset,
            )
        }
        .context("map the completion ring")?;
        let mut ring = Self {
            ring,
            capacity: 0,
            head: 0,
        };
        let capacity = ring.word(0).load(Ordering::Relaxed);
        let entries = usize::try_from(capacity)?;
        ensure!(
            capacity == abi::COMPL_QUEUE_CAPACITY
                && usize::try_from(info.mmap_size)? >= HEADER + entries * ENTRY,
            "a ring of {capacity} entries in {} bytes",
            info.mmap_size
        );
        ring.capacity = capacity;
        ring.head = ring.word(4).load(Ordering::Relaxed);
        Ok(ring)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the header lies in the mapping, which is aligned to pages and stays until the process ends; the driver
        // and this program touch its words atomically.
        unsafe { AtomicU32::from_ptr(self.ring.wrapping_byte_add(at).cast()) }
    }

    /// Entries that were posted and not taken.
    pub fn unread(&self) -> u32 {
        self.word(8).load(Ordering::Acquire).wrapping_sub(self.head)
    }

    /// The next completion.
    pub fn take(&mut self) -> Result<abi::H2tComplEntry> {
        let begin = Instant::now();
        while self.unread() == 0 {
            ensure!(begin.elapsed() < PATIENCE, "no completion came");
            std::thread::yield_now();
        }
        let entry = usize::try_from(self.head % self.capacity)? * ENTRY + HEADER;
        let entry = self.ring.wrapping_byte_add(entry);
        // SAFETY: inside the mapping (checked when it was made), written before the tail that was acquired, 8-byte aligned.
        let entry = unsafe { entry.cast::<abi::H2tComplEntry>().read() };
        self.head = self.head.wrapping_add(1);
        self.word(4).store(self.head, Ordering::Release);
        Ok(entry)
    }

    /// Takes the next one, which must be a success of this number.
    pub fn expect(&mut self, sequence: u64) -> Result<()> {
        let entry = self.take()?;
        ensure!(
            (entry.sequence_num, entry.compl_ret, entry.context) == (sequence, 0, !sequence),
            "completion {sequence} is {entry:?}"
        );
        Ok(())
    }
}

//! Zero copy in batches (`MEM_BUF_ZEROCOPY64_BATCHES`), and its asynchronous form, whose completions arrive in a ring
//! that this program maps (`GET_ASYNC_H2T_DMA_COMPL_QUEUES`, since 2.27).
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Context, Outcome, zero_copy};
use crate::canvas::Canvas;
use crate::ioctl;
use crate::job::stage;

const PATIENCE: Duration = Duration::from_secs(60);
/// More requests in all than the ring has entries, so that it wraps.
const REQUESTS: u64 = 1_100;
/// Requests in flight.
const DEPTH: u64 = 16;

/// Several odd pieces now; then more requests than the ring has entries, each completion with its number in order.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::MEM_BUF_ZEROCOPY64_BATCHES) {
        return Ok(Outcome::NotOffered(
            "the driver has no MEM_BUF_ZEROCOPY64_BATCHES".into(),
        ));
    }
    if let Err(reason) = zero_copy::request_of(device)? {
        return Ok(Outcome::NotOffered(reason));
    }
    let mut canvas = Canvas::paint(
        device,
        "device",
        device.device(1 << 20)?,
        context.pattern(0),
    )?;
    let data = context.pattern(1).bytes(0, 900_000);
    let pieces: &[(u64, &[u8])] = &[
        (5, &data[1..70_000]),
        (100_001, &data[80_000..80_001]),
        (200_000, &data[90_000..620_003]),
    ];
    stage("batch");
    // SAFETY: number 0 is done on return.
    unsafe { ioctl::zero_copy_batch(device.file(), canvas.chunk.handle, pieces, 0, 0)? };
    for (offset, bytes) in pieces {
        canvas.expect(*offset, bytes)?;
    }
    canvas.check()?;

    // The layout of the ring is the test driver's own; see the ABI.
    if !device.offers(abi::GET_ASYNC_H2T_DMA_COMPL_QUEUES)
        || !Path::new("/sys/module/neuron_test").exists()
    {
        canvas.free()?;
        context.note("batches done; no completion ring of a known layout");
        return Ok(Outcome::Pass);
    }
    completions(context, &mut canvas, &data)?;
    canvas.free()?;
    Ok(Outcome::Pass)
}

fn completions(context: &Context, canvas: &mut Canvas<'_>, data: &[u8]) -> Result<()> {
    let device = &context.device;
    stage("asynchronous");
    let mut queues = abi::GetAsyncH2tDmaComplQueues {
        qid_bitmap: 1,
        ..Default::default()
    };
    ioctl::plain(
        device.file(),
        abi::GET_ASYNC_H2T_DMA_COMPL_QUEUES,
        &mut queues,
    )?;
    let info = queues.compl_queue_info[0];
    let size = usize::try_from(info.mmap_size)?.next_multiple_of(4096);
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
    let word = |at: usize| {
        // SAFETY: the header lies in the mapping, which is aligned to pages and stays until the process ends; the driver
        // and this program touch its words atomically.
        unsafe { AtomicU32::from_ptr(ring.wrapping_byte_add(at).cast()) }
    };
    let capacity = word(0).load(Ordering::Relaxed);
    ensure!(
        capacity == abi::COMPL_QUEUE_CAPACITY && info.mmap_size >= 16 + u64::from(capacity) * 24,
        "a ring of {capacity} entries in {} bytes",
        info.mmap_size
    );
    let (head, tail) = (word(4), word(8));
    let first = head.load(Ordering::Relaxed);
    let span = |n: u64| {
        (
            n % 100 * 8_000,
            &data[usize::try_from(n).unwrap_or(0) * 700..][..7_999],
        )
    };
    let mut sent = 0;
    for done in 0..REQUESTS {
        while sent < REQUESTS && sent < done + DEPTH {
            // SAFETY: `data` stays until every completion came; on an early return the process ends with its file.
            unsafe {
                ioctl::zero_copy_batch(
                    device.file(),
                    canvas.chunk.handle,
                    &[span(sent)],
                    sent + 1,
                    !sent,
                )?;
            }
            sent += 1;
        }
        let at = first.wrapping_add(u32::try_from(done)?);
        let begin = Instant::now();
        while tail.load(Ordering::Acquire) == at {
            ensure!(
                begin.elapsed() < PATIENCE,
                "no completion of request {done}"
            );
            std::thread::yield_now();
        }
        let entry = usize::try_from(at % capacity)? * 24 + 16;
        let entry = ring.wrapping_byte_add(entry).cast::<abi::H2tComplEntry>();
        // SAFETY: inside the mapping (checked above), written before the tail that was acquired, 8-byte aligned.
        let entry = unsafe { entry.read() };
        ensure!(
            (entry.sequence_num, entry.compl_ret, entry.context) == (done + 1, 0, !done),
            "completion {done} is {entry:?}"
        );
        head.store(at.wrapping_add(1), Ordering::Release);
    }
    for n in REQUESTS - 100..REQUESTS {
        let (offset, bytes) = span(n);
        canvas.expect(offset, bytes)?;
    }
    canvas.check()?;
    context.note(format_args!("{REQUESTS} completions in order"));
    Ok(())
}

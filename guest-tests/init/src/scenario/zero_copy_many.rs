//! Asynchronous zero copies, as many as there can be: a full completion ring, several batches in a request, other copies
//! on the same queue, processes that end with copies in flight, and two at once (since 2.27).
use std::time::Duration;

use anyhow::{Result, ensure};
use neuron_protocol::ioctl as abi;
use rustix::io::Errno;

use super::{Context, Outcome, Setup, zero_copy};
use crate::canvas::Canvas;
use crate::completions::{self, Completions};
use crate::device::Device;
use crate::ioctl::{self, Refused};
use crate::job::{self, stage};
use crate::report::Verdict;

/// Names of the two parts that run as processes of their own.
pub const PEER: &str = "self_zero_copy_peer";
pub const LEAVER: &str = "self_zero_copy_leave";

const PIECE: u64 = 4_000;
const LIMIT: Duration = Duration::from_secs(60);

/// A copy queue of core 0 for this file alone.
fn queue(device: &Device) -> Result<u32> {
    let mut take = abi::H2tDmaAllocQueues {
        sz: u16::try_from(size_of::<abi::H2tDmaAllocQueues>())?,
        nc_id: 0,
        copy_queue_cnt: 1,
        ..Default::default()
    };
    ioctl::plain(device.file(), abi::H2T_DMA_ALLOC_QUEUES, &mut take)?;
    ensure!(take.copy_queue_bmap != 0, "no queue");
    Ok(take.copy_queue_bmap.trailing_zeros())
}

/// One asynchronous request of one batch.
///
/// # Safety
/// The bytes stay until its completion came, or the process ends first.
unsafe fn submit(
    device: &Device,
    handle: u64,
    ops: &[(u64, &[u8])],
    n: u64,
    queue: u32,
) -> Result<(), Refused> {
    let queue = i32::try_from(queue).unwrap_or(-1);
    // SAFETY: passed on.
    unsafe { ioctl::zero_copy_batch(device.file(), handle, &[ops], n, !n, queue) }
}

/// More than the completion ring holds, none read until it is full; two laps of it.
fn fill(context: &Context, purpose: u64) -> Result<()> {
    let device = &context.device;
    let queue = queue(device)?;
    let mut ring = Completions::map(device, queue)?;
    let capacity = u64::from(abi::COMPL_QUEUE_CAPACITY);
    let mut canvas = Canvas::paint(
        device,
        "device",
        device.device(capacity * PIECE + 8192)?,
        context.pattern(purpose),
    )?;
    let data = context
        .pattern(purpose + 1)
        .bytes(0, usize::try_from(capacity * 100 + PIECE)?);
    let handle = canvas.chunk.handle;
    for lap in 0..2 {
        // In the second lap everything goes elsewhere.
        let span = |n: u64| {
            let from = usize::try_from(n * 100 + lap).unwrap_or(0);
            (n * PIECE + lap * 8, &data[from..][..3_990])
        };
        stage(format_args!("lap {lap}: {capacity} requests, none read"));
        for n in 0..capacity {
            // SAFETY: `data` outlives the completions, which are all taken below; on an error the process ends.
            unsafe { submit(device, handle, &[span(n)], lap * capacity + n + 1, queue)? };
        }
        let done = ring.unread();
        // SAFETY: as above.
        let refused = unsafe { submit(device, handle, &[span(0)], 1, queue) };
        ensure!(
            refused.is_err_and(|error| error.is(Errno::AGAIN)),
            "request {} with {capacity} unread: {refused:?}",
            capacity + 1
        );
        if lap == 0 {
            context.note(format_args!(
                "{} in flight when the last was accepted",
                capacity - u64::from(done)
            ));
        }
        for n in 0..capacity {
            ring.expect(lap * capacity + n + 1)?;
            let (offset, bytes) = span(n);
            canvas.expect(offset, bytes)?;
        }
        canvas.check()?;
    }
    stage("large requests of several batches, and other copies of the same queue between them");
    let large = context.pattern(purpose + 2).bytes(0, 3 << 20);
    let parts: Vec<&[u8]> = large.chunks(300_001).collect();
    let batches: Vec<[(u64, &[u8]); 1]> = (0..)
        .zip(&parts)
        .map(|(n, part)| [(n * 300_010, *part)])
        .collect();
    let batches: Vec<&[(u64, &[u8])]> = batches.iter().map(<[_; 1]>::as_slice).collect();
    let request = zero_copy::request_of(device)?.ok();
    for n in 1..=8 {
        // SAFETY: as above.
        unsafe {
            ioctl::zero_copy_batch(
                device.file(),
                handle,
                &batches,
                n,
                !n,
                i32::try_from(queue)?,
            )?;
        }
        if let Some(request) = request {
            let mut seen = vec![0; 100];
            ioctl::zero_copy(
                device.file(),
                request,
                handle,
                0,
                ioctl::User::Read(&mut seen),
                0,
                i32::try_from(queue)?,
            )?;
            ensure!(seen == large[..100], "a copy overtook those before it");
        }
    }
    for n in 1..=8 {
        ring.expect(n)?;
    }
    for ops in batches {
        canvas.expect(ops[0].0, ops[0].1)?;
    }
    canvas.check()?;
    canvas.free()
}

/// What of it another process does.
pub fn peer(setup: Setup) -> Result<Outcome> {
    fill(&Context::open(setup)?, 100)?;
    Ok(Outcome::Pass)
}

/// Ends with 32 MiB in flight.
pub fn leave(setup: Setup) -> Result<Outcome> {
    let context = Context::open(setup)?;
    let device = &context.device;
    let queue = queue(device)?;
    let chunk = device.device(1 << 20)?;
    let data = vec![0x5a; 1 << 20];
    for n in 1..=32 {
        // SAFETY: the process ends at once.
        unsafe { submit(device, chunk.handle, &[(0, &data)], n, queue)? };
    }
    std::process::abort()
}

/// All of the above.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::MEM_BUF_ZEROCOPY64_BATCHES) || !completions::known(device) {
        return Ok(Outcome::NotOffered(
            "the driver has no completion ring of a known layout".into(),
        ));
    }
    fill(context, 1)?;
    let Setup {
        index,
        devices,
        seed,
    } = context.setup;
    let child = |name: &str| {
        let arguments = [
            "scenario",
            name,
            &index.to_string(),
            &devices.to_string(),
            &seed.to_string(),
        ];
        job::run(&arguments.map(String::from), LIMIT)
    };
    stage("two processes, each on a queue of its own");
    let (mine, ended) = std::thread::scope(|scope| {
        let other = scope.spawn(|| child(PEER));
        let mine = fill(context, 10);
        (mine, other.join())
    });
    mine?;
    match ended.map(|ended| ended.verdict) {
        Ok(Verdict::Pass) => {}
        other => anyhow::bail!("the other process: {:?}", other.ok()),
    }
    stage("processes that end with copies in flight");
    for life in 0..3 {
        let ended = child(LEAVER);
        ensure!(!ended.stuck, "life {life}: its process is stuck");
        ensure!(
            matches!(ended.verdict, Verdict::Fail(_)),
            "life {life}: {:?}",
            ended.verdict
        );
    }
    // Nothing of theirs is left: as many queues as before, and the whole of it once more.
    fill(context, 20)?;
    Ok(Outcome::Pass)
}

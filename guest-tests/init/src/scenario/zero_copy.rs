//! Zero copy (`MEM_BUF_ZEROCOPY64`): the driver pins the user's pages, 64 at a time and two windows in
//! flight, and the engine reads and writes them where they are (contract §8.5).
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;
use rustix::io::Errno;

use super::{Context, Outcome};
use crate::canvas::Canvas;
use crate::device::Device;
use crate::ioctl::{self, MEM_BUF_ZEROCOPY64_OLD, User};
use crate::job::stage;
use crate::pattern::{Pattern, compare};

const PAGE: usize = 4096;
/// Pages the driver pins at a time.
const WINDOW: u64 = 64 * 4096;
const CHUNK: u64 = 2 << 20;
/// Largest direct write through BAR4 (two pages).
const DIRECT: u32 = 8192;

/// The request this driver has; a reason when it has none that works here.
pub fn request_of(device: &Device) -> Result<Result<u32, String>> {
    let request = if device.offers(abi::MEM_BUF_ZEROCOPY64) {
        abi::MEM_BUF_ZEROCOPY64
    } else if device.offers(MEM_BUF_ZEROCOPY64_OLD) {
        MEM_BUF_ZEROCOPY64_OLD
    } else {
        return Ok(Err("the driver has no MEM_BUF_ZEROCOPY64".into()));
    };
    let chunk = device.device(4096)?;
    let answer = ioctl::zero_copy(
        device.file(),
        request,
        chunk.handle,
        0,
        User::Write(&[0; 64]),
        0,
        -1,
    );
    device.free(chunk)?;
    match answer {
        Err(refused) if refused.is(Errno::INVAL) && device.generation.arch == 2 => Ok(Err(
            "the driver refuses zero copy on V2; module parameter zerocopy_trn1_override=1 allows it".into(),
        )),
        Err(refused) => Err(refused.into()),
        Ok(()) => Ok(Ok(request)),
    }
}

/// Sizes below, at and above a window, odd addresses on both sides, both directions, direct writes.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    let request = match request_of(device)? {
        Ok(request) => request,
        Err(reason) => return Ok(Outcome::NotOffered(reason)),
    };
    // Up to 2.24 the driver counts its 64 pages without the offset in the first one, and writes a 65th entry past its page
    // list: found by this scenario, as a kernel that died much later. The drivers that mended it have more requests.
    let overruns = !device.offers(abi::H2T_DMA_ALLOC_QUEUES);
    let mut user = Scattered::new(usize::try_from(CHUNK)? / PAGE + 2);
    for core in [0, device.cores - 1] {
        let mut canvas = Canvas::paint(
            device,
            "device",
            device.device_of(core, CHUNK)?,
            context.pattern(u64::from(core)),
        )?;
        let sizes = [
            1,
            3,
            4,
            64,
            4095,
            4096,
            4097,
            8192,
            8193,
            65_535,
            65_536,
            65_537,
            WINDOW - 1,
            WINDOW,
            WINDOW + 1,
            2 * WINDOW - 3,
            2 * WINDOW,
            2 * WINDOW + 1,
            5 * WINDOW + 4099,
        ];
        for (nth, size) in sizes.into_iter().enumerate() {
            let nth = u64::try_from(nth)?;
            let lead = usize::try_from([0, 1, 4, 2048, 4093, 4095][usize::try_from(nth % 6)?])?;
            let overflows = overruns && size <= WINDOW && size + u64::try_from(lead)? > WINDOW;
            let lead = if overflows { 0 } else { lead };
            let offset = [0, 4, 1, 4093, 65_535][usize::try_from(nth % 5)?];
            let threshold = if nth % 2 == 0 { 0 } else { DIRECT };
            stage(format_args!(
                "core {core}, {size} bytes, user +{lead}, device +{offset}, threshold {threshold}"
            ));
            round(context, &mut canvas, request, &mut user, (size, lead, offset, threshold), nth)
                .with_context(|| format!("core {core}, {size} bytes, user +{lead}, device +{offset}, threshold {threshold}"))?;
        }
        canvas.check()?;
        canvas.free()?;
    }
    context.note(format_args!(
        "zero copy: {} of {} page pairs contiguous",
        user.contiguous(),
        user.pages.saturating_sub(1)
    ));
    Ok(Outcome::Pass)
}

fn round(
    context: &Context,
    canvas: &mut Canvas<'_>,
    request: u32,
    user: &mut Scattered,
    (size, lead, offset, threshold): (u64, usize, u64, u32),
    nth: u64,
) -> Result<()> {
    let device = &context.device;
    let length = usize::try_from(size)?;
    let data = context.pattern(1000 + nth).bytes(0, length);
    // To the device, from the middle of a buffer.
    user.bytes()[lead..lead + length].copy_from_slice(&data);
    let from = User::Write(&user.bytes()[lead..lead + length]);
    ioctl::zero_copy(
        device.file(),
        request,
        canvas.chunk.handle,
        offset,
        from,
        threshold,
        -1,
    )?;
    canvas.expect(offset, &data)?;
    canvas.check_part(offset, size).context("to the device")?;
    // And back, into a buffer whose every other byte must stay.
    let guard = context.pattern(2000 + nth);
    guard.fill(user.bytes(), 0);
    let into = User::Read(&mut user.bytes()[lead..lead + length]);
    ioctl::zero_copy(
        device.file(),
        request,
        canvas.chunk.handle,
        offset,
        into,
        0,
        -1,
    )?;
    let mut expected = guard.bytes(0, user.bytes().len());
    expected[lead..lead + length].copy_from_slice(&data);
    compare(user.bytes(), &expected).context("back from the device")?;
    let past = User::Write(&data);
    let answer = ioctl::zero_copy(
        device.file(),
        request,
        canvas.chunk.handle,
        CHUNK - size + 1,
        past,
        0,
        -1,
    );
    ensure!(
        answer.is_err(),
        "a copy past the end of the chunk is not refused"
    );
    Ok(())
}

/// User memory whose neighbouring pages are, mostly, not neighbours in guest RAM.
pub struct Scattered {
    memory: Vec<u8>,
    start: usize,
    pages: usize,
}

impl Scattered {
    /// Touches its pages for the first time in a shuffled order: the kernel hands out page frames in
    /// the order of first touch.
    pub fn new(pages: usize) -> Self {
        let mut memory = vec![0; (pages + 1) * PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        let order = Pattern::new(7, 7).bytes(0, pages * 4);
        let mut shuffled: Vec<usize> = (0..pages).collect();
        shuffled.sort_by_key(|page| &order[page * 4..page * 4 + 4]);
        for page in shuffled {
            // Volatile is not needed: the zeroed pages are untouched until something is stored.
            memory[start + page * PAGE] = 1;
        }
        Self {
            memory,
            start,
            pages,
        }
    }

    /// The page-aligned part.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.pages * PAGE]
    }

    /// Neighbouring pages that are neighbours in guest RAM too, from `/proc/self/pagemap`.
    pub fn contiguous(&mut self) -> usize {
        use std::os::unix::fs::FileExt;
        let base = self.bytes().as_ptr().addr() / PAGE;
        let Ok(map) = std::fs::File::open("/proc/self/pagemap") else {
            return 0;
        };
        let frame = |page: usize| -> Option<u64> {
            let mut entry = [0; 8];
            map.read_exact_at(&mut entry, u64::try_from((base + page) * 8).ok()?)
                .ok()?;
            // Bits 54:0 are the frame number.
            Some(u64::from_le_bytes(entry) & ((1 << 55) - 1)).filter(|f| *f != 0)
        };
        (1..self.pages)
            .filter(|p| matches!((frame(p - 1), frame(*p)), (Some(a), Some(b)) if a + 1 == b))
            .count()
    }
}

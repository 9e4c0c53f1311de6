//! The kernel's host-to-device queue: batches that end with a marker.

use core::ops::ControlFlow;

use super::{
    Batch, CycleError, Delay, Device, ErrorOf, HostMemory, QueuePair, Registers, Transfer,
};
use crate::budget::{Estimate, PollBudget, Scaling, Wait};
use crate::descriptor::{Barrier, MAX_DESCRIPTOR_LENGTH};
use crate::generation::{Generation, Platform};
use crate::marker::{BUFFER_SIZE, Context, MARKER, MARKER_SIZE, MarkerSlot};
use crate::ring::FULL_BATCH_DATA;

/// What varies between drivers and generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Expected speed.
    pub estimate: Estimate,
    /// What the driver believes it runs on.
    pub platform: Platform,
    /// How the driver version stretches its budget there.
    pub scaling: Scaling,
    /// Most data descriptors in a batch; the marker comes on top. At least 1 is used.
    pub batch_limit: u32,
    /// Barrier of the last data descriptor of a batch. Drivers read so far use
    /// [`Barrier::Write`] on every generation; the seed has [`Barrier::StrongOrder`] from V3 on
    /// (facts §2.5).
    pub last_barrier: Barrier,
}

impl Settings {
    /// As the drivers up to 2.25 do it.
    pub const fn new(generation: &Generation, platform: Platform) -> Self {
        Self {
            estimate: generation.estimate,
            platform,
            scaling: Scaling::SPLIT,
            batch_limit: FULL_BATCH_DATA,
            last_barrier: Barrier::Write,
        }
    }
}

/// An asynchronous copy that was started and must be waited for.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an asynchronous copy has to be waited for, by `wait` or by starting the next one after it"]
pub struct Pending(Batch);

impl Pending {
    /// Marker slot it uses: asynchronous 1 or 2, in turns.
    pub const fn context(&self) -> Context {
        self.0.context
    }
}

/// A queue with a completion buffer, and the copies the kernel makes with it.
///
/// After an error of a wait or of staging, the rings may hold descriptors the device still runs.
/// The driver goes on regardless and can take the late marker of the failed batch for that of the
/// next; this refuses with [`CycleError::NeedsInit`] until [`init`](Self::init) is called.
#[derive(Debug)]
pub struct CopyQueue {
    queue: QueuePair,
    completion: u64,
    settings: Settings,
    busy: [bool; Context::ALL.len()],
    epoch: u64,
    usable: bool,
}

impl CopyQueue {
    /// A queue whose completion buffer ([`BUFFER_SIZE`] bytes, 4-byte aligned) is in host memory
    /// at `completion`. [`init`](Self::init) comes next.
    ///
    /// # Errors
    /// [`CycleError::Completion`].
    pub fn new<R: Registers, M: HostMemory, D>(
        device: &Device<R, M, D>,
        queue: QueuePair,
        completion: u64,
        settings: Settings,
    ) -> Result<Self, ErrorOf<R, M>> {
        let last = completion.checked_add(BUFFER_SIZE - 1);
        if !completion.is_multiple_of(u64::from(MARKER_SIZE))
            || last
                .and_then(|last| device.generation.host_to_soc(last))
                .is_none()
        {
            return Err(CycleError::Completion(completion));
        }
        Ok(Self {
            queue,
            completion,
            settings,
            busy: [false; Context::ALL.len()],
            epoch: 0,
            usable: false,
        })
    }

    /// The queue below.
    pub const fn queue(&self) -> &QueuePair {
        &self.queue
    }

    /// Programs the queue afresh; batches of before are dropped, by the device too.
    ///
    /// Also how the driver recovers from a copy that was lost in a reset (facts §4.3).
    ///
    /// # Errors
    /// [`CycleError::Register`] and [`CycleError::Memory`]; call it again.
    pub fn init<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
    ) -> Result<(), ErrorOf<R, M>> {
        self.usable = false;
        self.queue.init(device)?;
        for context in Context::ALL {
            arm(device, self.slot(context)?)?;
        }
        self.busy = [false; Context::ALL.len()];
        self.epoch += 1;
        self.usable = true;
        Ok(())
    }

    /// Copies `length` bytes between device-side addresses, in as many batches as it takes,
    /// waiting for each (seed §6).
    ///
    /// # Errors
    /// [`CycleError::Timeout`] if a marker does not come within its budget.
    pub fn copy<R: Registers, M: HostMemory, D: Delay>(
        &mut self,
        device: &mut Device<R, M, D>,
        source: u64,
        destination: u64,
        length: u64,
    ) -> Result<(), ErrorOf<R, M>> {
        let transfer = whole(source, destination, length)?;
        self.run(device, transfer, Wait::Synchronous)
    }

    /// As [`copy`](Self::copy), with the short budget for copies inside the device (seed §4).
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn copy_within_device<R: Registers, M: HostMemory, D: Delay>(
        &mut self,
        device: &mut Device<R, M, D>,
        source: u64,
        destination: u64,
        length: u64,
    ) -> Result<(), ErrorOf<R, M>> {
        let transfer = whole(source, destination, length)?;
        self.run(device, transfer, Wait::DeviceToDevice)
    }

    /// Fills `length` bytes at `destination` with the pattern at `pattern`, of which
    /// `min(length, 64 KiB)` bytes must be there: one copy of it, then copies of that copy with a
    /// fixed source (contract §8.6).
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn fill<R: Registers, M: HostMemory, D: Delay>(
        &mut self,
        device: &mut Device<R, M, D>,
        pattern: u64,
        destination: u64,
        length: u64,
    ) -> Result<(), ErrorOf<R, M>> {
        let range = CycleError::Range {
            address: destination,
            length,
        };
        destination.checked_add(length).ok_or(range)?;
        let first = length.min(MAX_DESCRIPTOR_LENGTH.into());
        self.copy(device, pattern, destination, first)?;
        if length == first {
            return Ok(());
        }
        let rest = Transfer::repeating(destination, destination + first, length - first);
        self.run(
            device,
            rest.ok_or(CycleError::Range {
                address: destination,
                length,
            })?,
            Wait::Synchronous,
        )
    }

    /// Starts a copy of at most one batch and *then* waits for the one before it, so that staging
    /// and moving overlap (seed §6).
    ///
    /// # Errors
    /// [`CycleError::TooLargeForAsync`] before anything is staged (the driver finds out when the
    /// first batch already runs); otherwise as [`copy`](Self::copy), about either of the two.
    pub fn start<R: Registers, M: HostMemory, D: Delay>(
        &mut self,
        device: &mut Device<R, M, D>,
        source: u64,
        destination: u64,
        length: u64,
        previous: Option<Pending>,
    ) -> Result<Pending, ErrorOf<R, M>> {
        let limit = u64::from(self.batch_limit()) * u64::from(MAX_DESCRIPTOR_LENGTH);
        if length > limit {
            return Err(CycleError::TooLargeForAsync { length, limit });
        }
        let mut transfer = whole(source, destination, length)?;
        let context = Context::following(previous.as_ref().map(Pending::context));
        let batch = self.stage(device, context, &mut transfer)?;
        self.launch(device, &batch)?;
        if let Some(previous) = previous {
            self.wait(device, previous)?;
        }
        Ok(Pending(batch))
    }

    /// Waits for an asynchronous copy.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn wait<R: Registers, M: HostMemory, D: Delay>(
        &mut self,
        device: &mut Device<R, M, D>,
        pending: Pending,
    ) -> Result<(), ErrorOf<R, M>> {
        self.wait_for(device, pending.0, Wait::Asynchronous)
    }

    /// Stages the next batch of `transfer`: chunks of at most 64 KiB, the barrier on the last of
    /// them, then the marker pair (seed §2). Nothing is told to the device yet.
    ///
    /// # Errors
    /// [`CycleError::ContextBusy`] and `Full` rings before anything is staged.
    pub fn stage<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
        context: Context,
        transfer: &mut Transfer,
    ) -> Result<Batch, ErrorOf<R, M>> {
        self.check_usable()?;
        if transfer.remaining() == 0 {
            return Err(CycleError::Empty);
        }
        if self.busy[index(context)] {
            return Err(CycleError::ContextBusy);
        }
        let chunks = transfer.remaining().div_ceil(MAX_DESCRIPTOR_LENGTH.into());
        let data = self
            .batch_limit()
            .min(u32::try_from(chunks).unwrap_or(u32::MAX));
        // Room for the whole batch first: half a batch could not be taken back.
        if self.queue.available() <= data {
            return Err(crate::ring::RingError::Full.into());
        }
        let slot = self.slot(context)?;
        let (source, poll) = (
            device.host_to_device(slot.source)?,
            device.host_to_device(slot.poll)?,
        );
        self.usable = false;
        for staged in 1..=data {
            let barrier = if staged == data {
                self.settings.last_barrier
            } else {
                Barrier::None
            };
            let chunk = transfer.next_chunk().ok_or(CycleError::Empty)?;
            self.queue.stage(
                device,
                chunk.source,
                chunk.destination,
                chunk.length,
                barrier,
            )?;
        }
        arm(device, slot)?;
        self.queue
            .stage(device, source, poll, MARKER_SIZE, Barrier::None)?;
        self.busy[index(context)] = true;
        self.usable = true;
        Ok(Batch {
            context,
            count: data + 1,
            epoch: self.epoch,
        })
    }

    /// Rings for a staged batch, with the same count on both rings (seed §3).
    ///
    /// # Errors
    /// [`CycleError::Stale`], [`CycleError::Register`].
    pub fn launch<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
        batch: &Batch,
    ) -> Result<(), ErrorOf<R, M>> {
        self.check_current(batch)?;
        // If only one of the two doorbells got through, the rings are out of step.
        self.usable = false;
        self.queue.trigger(device, batch.count, batch.count)?;
        self.usable = true;
        Ok(())
    }

    /// One look at the marker: `true` when the batch is done. For callers with their own clock.
    ///
    /// # Errors
    /// [`CycleError::Stale`], [`CycleError::Memory`].
    pub fn is_done<R: Registers, M: HostMemory, D>(
        &self,
        device: &mut Device<R, M, D>,
        batch: &Batch,
    ) -> Result<bool, ErrorOf<R, M>> {
        self.check_current(batch)?;
        Ok(self.look(device, batch.context)? == MARKER)
    }

    /// Re-arms the marker of a batch that [`is_done`](Self::is_done) and gives its slots back,
    /// rx ring first (seed §4, §5).
    ///
    /// # Errors
    /// [`CycleError::Stale`], [`CycleError::Memory`].
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a finished batch must not be used again"
    )]
    pub fn finish<R: Registers, M: HostMemory, D>(
        &mut self,
        device: &mut Device<R, M, D>,
        batch: Batch,
    ) -> Result<(), ErrorOf<R, M>> {
        self.check_current(&batch)?;
        let Batch { context, count, .. } = batch;
        let slot = self.slot(context)?;
        device
            .memory
            .store_word(slot.poll, 0)
            .map_err(CycleError::Memory)?;
        device
            .memory
            .store_word(slot.source, MARKER)
            .map_err(CycleError::Memory)?;
        self.queue.ack(count)?;
        self.busy[index(context)] = false;
        Ok(())
    }

    /// Waits for a launched batch within its budget, then [`finish`](Self::finish)es it.
    ///
    /// # Errors
    /// [`CycleError::Timeout`], [`CycleError::Stopped`]; the queue then needs [`init`](Self::init).
    pub fn wait_for<R: Registers, M: HostMemory, D: Delay>(
        &mut self,
        device: &mut Device<R, M, D>,
        batch: Batch,
        wait: Wait,
    ) -> Result<(), ErrorOf<R, M>> {
        self.check_usable()?;
        self.check_current(&batch)?;
        let Settings {
            estimate,
            platform,
            scaling,
            ..
        } = self.settings;
        let budget = PollBudget::kernel(estimate, platform, scaling, wait, batch.count)?;
        let count = batch.count;
        self.usable = false;
        let mut waited = 0_u64;
        let mut pause = |device: &mut Device<R, M, D>, time: u64| {
            if let ControlFlow::Break(()) = device.delay.delay(time) {
                return Err(CycleError::Stopped { count, waited });
            }
            waited = waited.saturating_add(time);
            Ok(waited)
        };
        let mut so_far = pause(device, budget.first_wait)?;
        let mut found = 0;
        for _ in 0..budget.polls {
            found = self.look(device, batch.context)?;
            if found == MARKER {
                self.finish(device, batch)?;
                self.usable = true;
                return Ok(());
            }
            so_far = pause(device, budget.interval)?;
        }
        Err(CycleError::Timeout {
            count,
            waited: so_far,
            found,
        })
    }

    fn run<R: Registers, M: HostMemory, D: Delay>(
        &mut self,
        device: &mut Device<R, M, D>,
        mut transfer: Transfer,
        wait: Wait,
    ) -> Result<(), ErrorOf<R, M>> {
        while transfer.remaining() > 0 {
            let batch = self.stage(device, Context::Sync, &mut transfer)?;
            self.launch(device, &batch)?;
            self.wait_for(device, batch, wait)?;
        }
        Ok(())
    }

    /// What a batch may hold: the setting, or less in a ring too short for it.
    fn batch_limit(&self) -> u32 {
        let room = self.queue.size().descriptors() - crate::ring::GUARD - 1;
        self.settings.batch_limit.clamp(1, room)
    }

    fn look<R: Registers, M: HostMemory, D>(
        &self,
        device: &mut Device<R, M, D>,
        context: Context,
    ) -> Result<u32, ErrorOf<R, M>> {
        let poll = self.slot(context)?.poll;
        device.memory.load_word(poll).map_err(CycleError::Memory)
    }

    fn slot<R, M>(&self, context: Context) -> Result<MarkerSlot, CycleError<R, M>> {
        context
            .slot(self.completion)
            .ok_or(CycleError::Completion(self.completion))
    }

    const fn check_usable<R, M>(&self) -> Result<(), CycleError<R, M>> {
        if self.usable {
            Ok(())
        } else {
            Err(CycleError::NeedsInit)
        }
    }

    const fn check_current<R, M>(&self, batch: &Batch) -> Result<(), CycleError<R, M>> {
        if batch.epoch == self.epoch {
            Ok(())
        } else {
            Err(CycleError::Stale)
        }
    }
}

fn whole<R, M>(source: u64, destination: u64, length: u64) -> Result<Transfer, CycleError<R, M>> {
    if length == 0 {
        return Err(CycleError::Empty);
    }
    Transfer::new(source, destination, length).ok_or(CycleError::Range {
        address: source.max(destination),
        length,
    })
}

/// Seeds the source word and clears the poll word, in this order (seed §2).
fn arm<R: Registers, M: HostMemory, D>(
    device: &mut Device<R, M, D>,
    slot: MarkerSlot,
) -> Result<(), ErrorOf<R, M>> {
    device
        .memory
        .store_word(slot.source, MARKER)
        .map_err(CycleError::Memory)?;
    device
        .memory
        .store_word(slot.poll, 0)
        .map_err(CycleError::Memory)
}

const fn index(context: Context) -> usize {
    match context {
        Context::Sync => 0,
        Context::Async1 => 1,
        Context::Async2 => 2,
    }
}

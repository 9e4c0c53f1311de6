//! The user runtime's wait: a marker it reaches only by copies (seed §4).

use core::ops::ControlFlow;

use thiserror::Error;

use super::{Delay, HostMemory};
use crate::budget::PollBudget;
use crate::marker::{MARKER, MarkerSlot};

/// A buffer that is reached by copies alone: device memory behind an ioctl, or host memory.
pub trait CopyBuffer {
    /// Why a copy failed.
    type Error;

    /// Copies `bytes` into the buffer at `address`.
    ///
    /// # Errors
    /// The copy failed.
    fn copy_in(&mut self, address: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Copies from the buffer at `address` into `bytes`.
    ///
    /// # Errors
    /// The copy failed.
    fn copy_out(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Self::Error>;
}

impl<M: HostMemory> CopyBuffer for M {
    type Error = M::Error;

    fn copy_in(&mut self, address: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.write(address, bytes)?;
        self.publish();
        Ok(())
    }

    fn copy_out(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Self::Error> {
        // One word is loaded whole, so that a marker under way is never seen in halves.
        if let Ok(word) = <&mut [u8; 4]>::try_from(&mut *bytes)
            && address.is_multiple_of(4)
        {
            *word = self.load_word(address)?.to_le_bytes();
            return Ok(());
        }
        self.read(address, bytes)
    }
}

/// Why a software poll did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SoftwarePollError<E> {
    /// The buffer could not be reached.
    #[error("copy of the completion marker failed: {0}")]
    Copy(E),
    /// The marker did not come.
    #[error(
        "no completion marker after {waited} us (poll word {found:#010x}): the device did not run the batch to its end"
    )]
    Timeout {
        /// Nominal time waited, in microseconds.
        waited: u64,
        /// What the poll word held instead.
        found: u32,
    },
    /// The caller's [`Delay`] ended the wait.
    #[error("wait for the completion marker given up after {waited} us, before its budget")]
    Stopped {
        /// Nominal time waited, in microseconds.
        waited: u64,
    },
}

/// One marker slot, polled by copying it out every 10 us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwarePoll {
    slot: MarkerSlot,
}

impl SoftwarePoll {
    /// Polls the 8-byte slot at `address` of the buffer. `None` if that passes the end of the
    /// address space.
    pub fn new(address: u64) -> Option<Self> {
        MarkerSlot::at(address).map(|slot| Self { slot })
    }

    /// The two words, for the descriptor pair that copies one to the other.
    pub const fn slot(&self) -> MarkerSlot {
        self.slot
    }

    /// Copies the marker into the source word and 0 into the poll word.
    ///
    /// # Errors
    /// [`SoftwarePollError::Copy`].
    pub fn arm<B: CopyBuffer>(&self, buffer: &mut B) -> Result<(), SoftwarePollError<B::Error>> {
        write(buffer, self.slot.source, MARKER)?;
        write(buffer, self.slot.poll, 0)
    }

    /// Copies the poll word out: `true` when it is the marker.
    ///
    /// # Errors
    /// [`SoftwarePollError::Copy`].
    pub fn is_done<B: CopyBuffer>(
        &self,
        buffer: &mut B,
    ) -> Result<bool, SoftwarePollError<B::Error>> {
        Ok(self.look(buffer)? == MARKER)
    }

    /// Looks every [`PollBudget::interval`] until the marker is there, then arms it again.
    ///
    /// # Errors
    /// [`SoftwarePollError::Timeout`] when the budget is used up.
    pub fn wait<B: CopyBuffer>(
        &self,
        buffer: &mut B,
        delay: &mut impl Delay,
        budget: PollBudget,
    ) -> Result<(), SoftwarePollError<B::Error>> {
        let mut waited = 0_u64;
        let mut pause = |time: u64| {
            let flow = if time == 0 {
                ControlFlow::Continue(())
            } else {
                delay.delay(time)
            };
            if flow.is_break() {
                return Err(SoftwarePollError::Stopped { waited });
            }
            waited = waited.saturating_add(time);
            Ok(waited)
        };
        let mut so_far = pause(budget.first_wait)?;
        let mut found = 0;
        for _ in 0..budget.polls {
            found = self.look(buffer)?;
            if found == MARKER {
                // The poll word first, as after a match on the kernel's side.
                write(buffer, self.slot.poll, 0)?;
                return write(buffer, self.slot.source, MARKER);
            }
            so_far = pause(budget.interval)?;
        }
        Err(SoftwarePollError::Timeout {
            waited: so_far,
            found,
        })
    }

    fn look<B: CopyBuffer>(&self, buffer: &mut B) -> Result<u32, SoftwarePollError<B::Error>> {
        let mut word = [0; 4];
        buffer
            .copy_out(self.slot.poll, &mut word)
            .map_err(SoftwarePollError::Copy)?;
        Ok(u32::from_le_bytes(word))
    }
}

fn write<B: CopyBuffer>(
    buffer: &mut B,
    address: u64,
    word: u32,
) -> Result<(), SoftwarePollError<B::Error>> {
    buffer
        .copy_in(address, &word.to_le_bytes())
        .map_err(SoftwarePollError::Copy)
}

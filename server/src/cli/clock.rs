//! `--virtual-time`: by which clock the guest lives.
use clap::Args;

use crate::policy::fault::risk::Clock;

/// The guest's clock.
#[derive(Args, Clone, Copy, Debug)]
pub struct ClockArgs {
    /// The guest's clock is virtual (QEMU -icount shift=0,sleep=off): what it sleeps costs no time, so that faults are
    /// taken which make it sleep for minutes. --timing and faults with a time are refused: the device's clock is the host's
    #[arg(long)]
    virtual_time: bool,
}

impl ClockArgs {
    /// Which it is.
    pub const fn clock(self) -> Clock {
        if self.virtual_time {
            Clock::Virtual
        } else {
            Clock::Host
        }
    }
}

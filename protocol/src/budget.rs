//! How long a driver waits for a marker: the deadline the device has to meet (seed §4).
//!
//! A driver estimates the time of a batch from its number of descriptors, sleeps a first part of
//! it, and then reads the marker word once per microsecond until a budget many times the estimate
//! is used up. The shape is the same everywhere, the numbers differ per generation, platform and
//! driver version, so they are data here.
//!
//! All results are nominal: `udelay` waits at least what it is asked, so a real wait is longer
//! (contract §8.4: 65 ms for a nominal 40 ms in an emulated guest).

use thiserror::Error;

use crate::generation::Platform;
use crate::ring;

/// What a generation's driver assumes about the speed of its DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Expected time per data descriptor.
    pub microseconds_per_descriptor: u64,
    /// How much earlier than the estimate a synchronous copy looks for the first time, in
    /// microseconds.
    pub early_microseconds: u64,
    /// How many estimates the budget spans, before [`BUDGET_STRETCH`].
    pub estimates: u64,
}

impl Estimate {
    /// V2: 4 us per descriptor, first look 3 us early (contract §8.4, facts §4.2).
    pub const V2: Self = Self {
        microseconds_per_descriptor: 4,
        early_microseconds: 3,
        estimates: 100,
    };

    /// V3 and V4: 2 us per descriptor, first look 1 us early (contract §8.4, facts §4.2).
    pub const V3: Self = Self {
        microseconds_per_descriptor: 2,
        early_microseconds: 1,
        estimates: 400,
    };
}

/// Factor every driver applies after subtracting the first wait (contract §8.4).
pub const BUDGET_STRETCH: u64 = 100;

/// First wait of an asynchronous copy, in microseconds: its caller has waited already (seed §4).
pub const ASYNC_FIRST_WAIT: u64 = 1;

/// First wait of a synchronous device-to-device copy with the cut, in microseconds (seed §4).
pub const D2D_FIRST_WAIT: u64 = 10;

/// Divisor of the budget of a synchronous device-to-device copy (seed §4).
///
/// Of the drivers read (2.19.64.0 to 2.25.4.0) only the wait for a scrub of HBM asks for it (2.25.4.0
/// `neuron_cdev.c:2704`, `ncdev_hbm_scrub_wait_for_cmpl`), with the number of 64 KiB pieces of a stack for its count; their
/// classic copies pass "not device to device", inside the device too (facts §4.2).
pub const D2D_CUT: u64 = 200;

/// Time between two looks of the kernel, in microseconds (seed §4).
pub const KERNEL_POLL_INTERVAL: u64 = 1;

/// Looks beyond one per microsecond of budget: the loop counts from 0 up to and including
/// `wait / 1 + 1` (seed §4; 2.25.4.0 `neuron_dma.c`).
const EXTRA_LOOKS: u64 = 2;

/// How much a driver version stretches the budget per platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Factor on [`Platform::Qemu`].
    pub qemu: u64,
    /// Factor on [`Platform::Emulator`].
    pub emulator: u64,
}

impl Scaling {
    /// Up to 2.25: one function per generation and platform, two factors (contract §8.4).
    pub const SPLIT: Self = Self {
        qemu: 10_000,
        emulator: 100_000,
    };

    /// 2.27 and later: one factor in the common code (seed §4, contract §12.3).
    pub const COMMON: Self = Self {
        qemu: 100_000,
        emulator: 100_000,
    };

    /// The factor on `platform`.
    pub const fn factor(self, platform: Platform) -> u64 {
        match platform {
            Platform::Silicon => 1,
            Platform::Qemu => self.qemu,
            Platform::Emulator => self.emulator,
        }
    }
}

/// Which of the driver's three waits a transfer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Started and waited for in one call.
    Synchronous,
    /// Waited for after the next transfer was started.
    Asynchronous,
    /// Synchronous, inside the device, with the short budget.
    DeviceToDevice,
}

/// Why there is no budget for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BudgetError {
    /// Fewer than two descriptors. The driver computes in unsigned numbers, where `count - 1` of
    /// a lone marker is an estimate of 0 and the subtraction of the early part wraps: it would
    /// sleep for ever (udma §10). Every caller adds the marker to at least one data descriptor.
    #[error("a batch of {0} descriptors has no wait: it needs a data descriptor and a marker")]
    TooFew(u32),
    /// More descriptors than a ring can hold.
    #[error("a batch of {0} descriptors does not fit in any ring")]
    TooMany(u32),
}

/// A wait for one marker: sleep, then look once per interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollBudget {
    /// Sleep before the first look, in microseconds.
    pub first_wait: u64,
    /// Looks before giving up, at least one.
    pub polls: u64,
    /// Sleep after every look that found nothing, in microseconds.
    pub interval: u64,
}

impl PollBudget {
    /// Budget of the kernel for a batch of `count` descriptors, its marker included.
    ///
    /// # Errors
    /// [`BudgetError`] for counts no batch can have.
    pub fn kernel(
        estimate: Estimate,
        platform: Platform,
        scaling: Scaling,
        wait: Wait,
        count: u32,
    ) -> Result<Self, BudgetError> {
        if count < 2 {
            return Err(BudgetError::TooFew(count));
        }
        if count > ring::MAX_SIZE {
            return Err(BudgetError::TooMany(count));
        }
        let expected = estimate.microseconds_per_descriptor * u64::from(count - 1);
        let unhurried = match wait {
            Wait::Asynchronous => ASYNC_FIRST_WAIT,
            // An estimate shorter than its own early part is the same wrap as above.
            Wait::Synchronous | Wait::DeviceToDevice => expected
                .checked_sub(estimate.early_microseconds)
                .ok_or(BudgetError::TooFew(count))?,
        };
        let budget = (expected * estimate.estimates)
            .checked_sub(unhurried)
            .ok_or(BudgetError::TooFew(count))?
            * BUDGET_STRETCH
            * scaling.factor(platform);
        // Scaled first, cut afterwards: the order decides the rounding (seed §4).
        let (first_wait, budget) = match wait {
            Wait::DeviceToDevice => (D2D_FIRST_WAIT, budget / D2D_CUT),
            Wait::Synchronous | Wait::Asynchronous => (unhurried, budget),
        };
        Ok(Self {
            first_wait,
            polls: budget / KERNEL_POLL_INTERVAL + EXTRA_LOOKS,
            interval: KERNEL_POLL_INTERVAL,
        })
    }

    /// Budget of the user runtime's software poll for `count` descriptors (seed §4).
    ///
    /// # Errors
    /// [`BudgetError`] for counts no batch can have.
    pub fn software(platform: Platform, count: u32) -> Result<Self, BudgetError> {
        if count == 0 {
            return Err(BudgetError::TooFew(count));
        }
        if count > ring::MAX_SIZE {
            return Err(BudgetError::TooMany(count));
        }
        let factor = match platform {
            Platform::Silicon => 1,
            // The seed has the emulator's factor; the qemu branch beside it is not decoded. A
            // budget shorter than the kernel's would be no use there, so it gets the same.
            Platform::Qemu | Platform::Emulator => SOFTWARE_PLATFORM_FACTOR,
        };
        let polls = u64::from(count) * SOFTWARE_MICROSECONDS_PER_DESCRIPTOR
            / SOFTWARE_POLL_INTERVAL
            * factor;
        Ok(Self {
            first_wait: 0,
            polls,
            interval: SOFTWARE_POLL_INTERVAL,
        })
    }

    /// Nominal time until the driver gives up, in microseconds.
    pub const fn total(self) -> u64 {
        self.first_wait
            .saturating_add(self.polls.saturating_mul(self.interval))
    }
}

/// Time between two looks of the user runtime, in microseconds (seed §4).
pub const SOFTWARE_POLL_INTERVAL: u64 = 10;

/// Budget of the user runtime per descriptor, in microseconds: `imul $0x190` (seed §4, medium
/// confidence).
pub const SOFTWARE_MICROSECONDS_PER_DESCRIPTOR: u64 = 400;

/// Factor of the user runtime on the emulator: 0x2710 (seed §4).
pub const SOFTWARE_PLATFORM_FACTOR: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(
        estimate: Estimate,
        platform: Platform,
        scaling: Scaling,
        wait: Wait,
        count: u32,
    ) -> PollBudget {
        PollBudget::kernel(estimate, platform, scaling, wait, count).unwrap()
    }

    fn silicon(estimate: Estimate, wait: Wait, count: u32) -> PollBudget {
        kernel(estimate, Platform::Silicon, Scaling::SPLIT, wait, count)
    }

    /// The figures of contract §8.4, which were computed from the driver apart from this code.
    #[test]
    fn published_budgets() {
        let ms = |b: PollBudget| b.total() / 100;
        assert_eq!(ms(silicon(Estimate::V2, Wait::Synchronous, 2)), 399); // 39.9 ms
        assert_eq!(ms(silicon(Estimate::V3, Wait::Synchronous, 2)), 799);
        assert_eq!(ms(silicon(Estimate::V2, Wait::Synchronous, 17)), 6_339); // 0.63 s
        assert_eq!(ms(silicon(Estimate::V3, Wait::Synchronous, 17)), 12_769); // 1.28 s
        assert_eq!(
            silicon(Estimate::V2, Wait::Synchronous, 2033).total() / 1_000_000,
            80
        );
        assert_eq!(
            silicon(Estimate::V3, Wait::Synchronous, 2033).total() / 1_000_000,
            162
        );
        let seconds = |e, p, s| kernel(e, p, s, Wait::Synchronous, 2).total() / 1_000_000;
        assert_eq!(seconds(Estimate::V2, Platform::Qemu, Scaling::SPLIT), 399);
        assert_eq!(seconds(Estimate::V3, Platform::Qemu, Scaling::SPLIT), 799);
        assert_eq!(
            seconds(Estimate::V2, Platform::Emulator, Scaling::SPLIT),
            3_990
        );
        assert_eq!(
            seconds(Estimate::V3, Platform::Emulator, Scaling::SPLIT),
            7_990
        );
        assert_eq!(
            seconds(Estimate::V2, Platform::Qemu, Scaling::COMMON),
            3_990
        );
        assert_eq!(
            seconds(Estimate::V3, Platform::Emulator, Scaling::COMMON),
            7_990
        );
    }

    /// `for (i = 0; i <= wait / 1 + 1; i++)` looks twice more than `wait` microseconds.
    #[test]
    fn looks_of_the_kernel() {
        assert_eq!(silicon(Estimate::V2, Wait::Synchronous, 2).polls, 39_902);
        assert_eq!(silicon(Estimate::V3, Wait::Asynchronous, 3).polls, 159_902);
    }

    #[test]
    fn first_waits() {
        assert_eq!(silicon(Estimate::V2, Wait::Synchronous, 2).first_wait, 1);
        assert_eq!(silicon(Estimate::V3, Wait::Synchronous, 2).first_wait, 1);
        assert_eq!(
            silicon(Estimate::V2, Wait::Synchronous, 101).first_wait,
            397
        );
        assert_eq!(
            silicon(Estimate::V3, Wait::Synchronous, 101).first_wait,
            199
        );
        assert_eq!(silicon(Estimate::V2, Wait::Asynchronous, 101).first_wait, 1);
        assert_eq!(
            silicon(Estimate::V3, Wait::DeviceToDevice, 101).first_wait,
            10
        );
    }

    #[test]
    fn device_to_device_is_cut_after_scaling() {
        // (4*100 - 1) * 100 / 200 = 199 (facts §4.2: 0.2 ms); the first wait that is subtracted is the uncut one.
        assert_eq!(
            silicon(Estimate::V2, Wait::DeviceToDevice, 2).polls,
            199 + EXTRA_LOOKS
        );
        assert_eq!(
            silicon(Estimate::V3, Wait::DeviceToDevice, 2).polls,
            399 + EXTRA_LOOKS
        );
        let qemu = kernel(
            Estimate::V2,
            Platform::Qemu,
            Scaling::COMMON,
            Wait::DeviceToDevice,
            2,
        );
        assert_eq!(qemu.polls, 399 * 100 * 100_000 / 200 + EXTRA_LOOKS);
    }

    #[test]
    fn a_lone_marker_has_no_budget() {
        for wait in [Wait::Synchronous, Wait::Asynchronous, Wait::DeviceToDevice] {
            for count in [0, 1] {
                let budget = PollBudget::kernel(
                    Estimate::V2,
                    Platform::Silicon,
                    Scaling::SPLIT,
                    wait,
                    count,
                );
                assert_eq!(budget, Err(BudgetError::TooFew(count)));
            }
        }
    }

    #[test]
    fn software_poll() {
        let polls = |platform, count| PollBudget::software(platform, count).unwrap();
        assert_eq!(polls(Platform::Silicon, 2).polls, 80);
        assert_eq!(polls(Platform::Silicon, 2).total(), 800);
        assert_eq!(polls(Platform::Emulator, 2).polls, 800_000);
        assert!(PollBudget::software(Platform::Emulator, 0).is_err());
    }
}

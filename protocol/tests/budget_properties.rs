//! The wait of every batch a ring can hold, against the driver's formula restated.
#![cfg(not(loom))]

use neuron_protocol::budget::{BudgetError, Estimate, PollBudget, Scaling, Wait};
use neuron_protocol::generation::{Platform, V2, V3, V4};
use neuron_protocol::ring::MAX_SIZE;
use proptest::prelude::*;

fn waits() -> impl Strategy<Value = Wait> {
    prop_oneof![
        Just(Wait::Synchronous),
        Just(Wait::Asynchronous),
        Just(Wait::DeviceToDevice)
    ]
}

fn platforms() -> impl Strategy<Value = (Platform, Scaling, u128)> {
    prop_oneof![
        Just((Platform::Silicon, Scaling::SPLIT, 1)),
        Just((Platform::Silicon, Scaling::COMMON, 1)),
        Just((Platform::Qemu, Scaling::SPLIT, 10_000)),
        Just((Platform::Qemu, Scaling::COMMON, 100_000)),
        Just((Platform::Emulator, Scaling::SPLIT, 100_000)),
        Just((Platform::Emulator, Scaling::COMMON, 100_000)),
    ]
}

proptest! {
    #[test]
    fn follows_the_formula(
        later in any::<bool>(),
        (platform, scaling, factor) in platforms(),
        wait in waits(),
        count in 2..=MAX_SIZE,
    ) {
        let estimate = if later { Estimate::V3 } else { Estimate::V2 };
        let n = u128::from(count - 1);
        // (expected, early part, times): contract §8.4.
        let (expected, early, times) = if later { (2 * n, 1, 400) } else { (4 * n, 3, 100) };
        let first = if wait == Wait::Asynchronous { 1 } else { expected - early };
        let scaled = (expected * times - first) * 100 * factor;
        let (first, scaled) = if wait == Wait::DeviceToDevice { (10, scaled / 200) } else { (first, scaled) };
        let budget = PollBudget::kernel(estimate, platform, scaling, wait, count).unwrap();
        prop_assert_eq!(u128::from(budget.first_wait), first);
        prop_assert_eq!(u128::from(budget.polls), scaled + 2);
        prop_assert_eq!(u128::from(budget.total()), first + scaled + 2);
    }

    #[test]
    fn longer_batches_wait_longer(
        (platform, scaling, _) in platforms(),
        wait in waits(),
        count in 2..MAX_SIZE,
    ) {
        for estimate in [Estimate::V2, Estimate::V3] {
            let total = |count| PollBudget::kernel(estimate, platform, scaling, wait, count).unwrap().total();
            prop_assert!(total(count) < total(count + 1));
        }
    }

    #[test]
    fn impossible_counts_are_refused(
        (platform, scaling, _) in platforms(),
        wait in waits(),
        count in MAX_SIZE + 1..=u32::MAX,
    ) {
        let budget = |count| PollBudget::kernel(Estimate::V2, platform, scaling, wait, count);
        prop_assert_eq!(budget(count), Err(BudgetError::TooMany(count)));
        prop_assert_eq!(budget(1), Err(BudgetError::TooFew(1)));
        prop_assert_eq!(budget(0), Err(BudgetError::TooFew(0)));
        prop_assert!(PollBudget::software(platform, count).is_err());
    }
}

#[test]
fn generations_have_their_estimates() {
    assert_eq!(V2.estimate, Estimate::V2);
    assert_eq!(V3.estimate, Estimate::V3);
    assert_eq!(V4.estimate, Estimate::V3);
}

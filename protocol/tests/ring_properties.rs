//! The rules of seed §1 for any sequence of produce and acknowledge.
#![cfg(not(loom))]

use std::collections::VecDeque;

use neuron_protocol::ring::{
    Cursors, DriverRing, FULL_BATCH_DATA, GUARD, MAX_SIZE, RingError, RingId, RingSize,
    SYNC_THRESHOLD, allocated_count,
};
use proptest::prelude::*;

fn size(descriptors: u32) -> RingSize {
    RingSize::new(descriptors).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Produce(u32),
    Ack(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..300_u32).prop_map(Step::Produce),
        (0..300_u32).prop_map(Step::Ack)
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Against a queue that knows nothing of masks: slots come in order, carry the lap's phase,
    /// are never handed out while unacknowledged, and 16 always stay free.
    #[test]
    fn cursors_follow_a_plain_queue(power in 5..10_u32, steps in steps()) {
        let n = 1 << power;
        let mut ring = DriverRing::new(size(n)).unwrap();
        let mut model = VecDeque::new();
        let mut produced = 0_u64;
        for step in steps {
            match step {
                Step::Produce(count) => for _ in 0..count {
                    match ring.take() {
                        Ok(slot) => {
                            prop_assert_eq!(u64::from(slot.index), produced % u64::from(n));
                            let lap = u8::try_from((1 + produced / u64::from(n)) % 4).unwrap();
                            prop_assert_eq!(slot.ring_id, RingId::from_bits(lap));
                            prop_assert!(!model.contains(&slot.index));
                            model.push_back(slot.index);
                            produced += 1;
                        }
                        Err(error) => {
                            prop_assert_eq!(error, RingError::Full);
                            prop_assert_eq!(model.len(), usize::try_from(n - GUARD).unwrap());
                        }
                    }
                },
                Step::Ack(count) => {
                    let outstanding = u32::try_from(model.len()).unwrap();
                    let result = ring.cursors().ack(count);
                    if count <= outstanding {
                        prop_assert_eq!(result, Ok(()));
                        model.drain(..usize::try_from(count).unwrap());
                    } else {
                        prop_assert_eq!(result, Err(RingError::AckBeyondProducer { count, outstanding }));
                    }
                }
            }
            let outstanding = u32::try_from(model.len()).unwrap();
            prop_assert!(outstanding <= n - GUARD);
            prop_assert_eq!(ring.cursors().outstanding(), outstanding);
            prop_assert_eq!(ring.cursors().available(), n - GUARD - outstanding);
        }
    }

    #[test]
    fn allocated_counts_hold_the_guard(requested in 0..=MAX_SIZE) {
        match allocated_count(requested) {
            Some(count) => {
                prop_assert!(count.is_power_of_two());
                prop_assert!(count >= requested + GUARD && count >= 64);
                prop_assert!(requested < 32 || count / 2 < requested + GUARD);
                prop_assert!(RingSize::new(count).is_ok());
            }
            None => prop_assert!(requested + GUARD > 1 << 23),
        }
    }
}

#[test]
fn known_counts() {
    for (requested, count) in [
        (0, 64),
        (31, 64),
        (32, 64),
        (48, 64),
        (49, 128),
        (4096, 8192),
        (4080, 4096),
    ] {
        assert_eq!(allocated_count(requested), Some(count), "{requested}");
    }
    assert_eq!(allocated_count(MAX_SIZE), None);
    assert_eq!(allocated_count(u32::MAX), None);
}

#[test]
fn two_full_batches_fit_beside_each_other() {
    assert_eq!((SYNC_THRESHOLD, FULL_BATCH_DATA), (2031, 2032));
    let ring = Cursors::new(size(8192)).unwrap();
    assert!(2 * (FULL_BATCH_DATA + 1) <= ring.available());
}

#[test]
fn ring_ids_count_laps() {
    let mut ring = DriverRing::new(size(64)).unwrap();
    let mut laps = Vec::new();
    for _ in 0..5 * 64 {
        let slot = ring.take().unwrap();
        if slot.index == 0 || slot.index == 63 {
            laps.push((slot.index, slot.ring_id.bits()));
        }
        ring.cursors().ack(1).unwrap();
    }
    let expected: Vec<_> = [1, 2, 3, 0, 1]
        .into_iter()
        .flat_map(|id| [(0, id), (63, id)])
        .collect();
    assert_eq!(laps, expected);
}

#[test]
fn sizes_and_bases() {
    for bad in [0, 16, 31, 33, 63, MAX_SIZE + 1, MAX_SIZE + 16, u32::MAX] {
        assert_eq!(RingSize::new(bad), Err(RingError::Size(bad)));
    }
    assert_eq!(size(MAX_SIZE).descriptors(), MAX_SIZE);
    assert_eq!(
        Cursors::new(size(96)).unwrap_err(),
        RingError::NotPowerOfTwo(96)
    );
    assert_eq!(size(64).check_base(0x100), Ok(()));
    for bad in [1, 0x80, 0x1040, !0xff] {
        assert_eq!(size(64).check_base(bad), Err(RingError::Base(bad)));
    }
}

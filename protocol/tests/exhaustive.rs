//! Arithmetic that is small enough to be tried whole, or at every edge.
#![cfg(not(loom))]

use neuron_protocol::generation::{Generation, V2, V3, V4};
use neuron_protocol::registers::queue::{INDEX_MASK, Pointer};
use neuron_protocol::ring::{
    Cursors, DriverRing, GUARD, MAX_SIZE, MIN_SIZE, RingError, RingId, RingSize, SIZE_STEP,
    allocated_count,
};

const GENERATIONS: [&Generation; 3] = [&V2, &V3, &V4];

/// Any pointer of a small ring moved by any count, against one step at a time.
#[test]
fn pointers_of_small_rings_move_as_by_single_steps() {
    for length in 1..=48_u32 {
        for index in 0..length {
            for lap in 0..4 {
                let start = Pointer {
                    index,
                    ring_id: RingId::from_bits(lap),
                };
                let mut stepped = start;
                for count in 0..=4 * length + 1 {
                    assert_eq!(
                        start.advanced(count, length),
                        stepped,
                        "{start:?} +{count} of {length}"
                    );
                    stepped.index += 1;
                    if stepped.index == length {
                        stepped.index = 0;
                        stepped.ring_id = stepped.ring_id.next();
                    }
                }
            }
        }
    }
}

/// Lengths that no step-by-step model reaches: nothing overflows, and the position stays inside.
#[test]
fn pointers_of_the_longest_rings_move_exactly() {
    for length in [31, 32, MAX_SIZE, INDEX_MASK, 1 << 24] {
        for index in [0, 1, length / 2, length - 1] {
            for count in [
                0,
                1,
                15,
                length - 1,
                length,
                length + 1,
                u32::MAX - length,
                u32::MAX,
            ] {
                for lap in 0..4 {
                    let start = Pointer {
                        index,
                        ring_id: RingId::from_bits(lap),
                    };
                    let end = start.advanced(count, length);
                    let whole = u128::from(lap) * u128::from(length)
                        + u128::from(index)
                        + u128::from(count);
                    assert_eq!(u128::from(end.index), whole % u128::from(length));
                    assert_eq!(
                        u128::from(end.ring_id.bits()),
                        whole / u128::from(length) % 4
                    );
                }
            }
        }
    }
    // Without a length there is nowhere to go.
    assert_eq!(Pointer::RESET.advanced(u32::MAX, 0), Pointer::RESET);
}

/// Every length up to beyond the 24 bits of its register.
#[test]
fn every_ring_length_is_taken_or_refused_by_the_rule() {
    for descriptors in (0..=(1 << 24) + 64).chain([u32::MAX - 15, u32::MAX]) {
        let may =
            (MIN_SIZE..=MAX_SIZE).contains(&descriptors) && descriptors.is_multiple_of(SIZE_STEP);
        assert_eq!(RingSize::new(descriptors).is_ok(), may, "{descriptors}");
    }
    assert!(RingSize::new(31).is_err() && RingSize::new(32).is_ok());
    assert!(RingSize::new((1 << 24) - 16).is_ok() && RingSize::new(1 << 24).is_err());
    // The longest ring needs every index that the registers have but the last sixteen.
    assert_eq!(MAX_SIZE - 1 + GUARD, INDEX_MASK);
}

#[test]
fn every_request_is_given_the_smallest_ring_that_holds_it() {
    for requested in 0..=1 << 24 {
        let holds = |count: u32| count >= requested + GUARD && count.is_power_of_two();
        let least = (6..24).map(|power| 1 << power).find(|count| holds(*count));
        assert_eq!(allocated_count(requested), least, "{requested}");
    }
}

/// Every state of the cursors of the smallest ring, and every acknowledgement in it.
#[test]
fn every_state_of_the_smallest_ring() {
    const SIZE: u32 = MIN_SIZE;
    for position in 0..2 * SIZE {
        for outstanding in 0..=SIZE - GUARD {
            for count in 0..=SIZE + 1 {
                let mut ring = DriverRing::new(RingSize::new(SIZE).unwrap()).unwrap();
                for _ in 0..position {
                    ring.take().unwrap();
                    ring.cursors().ack(1).unwrap();
                }
                for _ in 0..outstanding {
                    ring.take().unwrap();
                }
                let cursors: &Cursors = ring.cursors();
                assert_eq!(cursors.outstanding(), outstanding);
                assert_eq!(cursors.available(), SIZE - GUARD - outstanding);
                let acked = cursors.ack(count);
                let left = if count <= outstanding {
                    assert_eq!(acked, Ok(()));
                    outstanding - count
                } else {
                    assert_eq!(
                        acked,
                        Err(RingError::AckBeyondProducer { count, outstanding })
                    );
                    outstanding
                };
                assert_eq!(cursors.outstanding(), left);
                assert_eq!(
                    cursors.next_cdesc_idx(),
                    (position + outstanding - left) % SIZE
                );
                assert_eq!(ring.take().is_err(), left == SIZE - GUARD);
            }
        }
    }
}

/// Every edge of every block of the register BAR: it is decoded as itself, and by no two windows.
#[test]
fn every_edge_of_every_window() {
    for generation in GENERATIONS {
        let mut edges = Vec::new();
        for window in generation.windows {
            assert!(window.size <= window.stride || window.count == 1);
            for nth in 0..window.count {
                let base = u64::from(window.base) + u64::from(window.stride) * u64::from(nth);
                let end = base + u64::from(window.size);
                assert!(end <= generation.register_bar_size);
                for offset in [0, 1, 4, window.size / 2, window.size - 4, window.size - 1] {
                    let at = generation.decode(base + u64::from(offset)).unwrap();
                    assert_eq!(
                        (at.block, at.index, at.offset),
                        (window.block, window.first + nth, offset)
                    );
                }
                edges.push((base, end));
            }
        }
        edges.sort_unstable();
        for pair in edges.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{pair:x?} overlap");
        }
        // Between them, before the first and after the last is nothing.
        let mut before = 0;
        for (base, end) in edges {
            if before < base {
                assert_eq!(generation.decode(before), None);
                assert_eq!(generation.decode(base - 1), None);
            }
            before = end;
        }
        for beyond in [before, generation.register_bar_size, u64::MAX] {
            assert_eq!(generation.decode(beyond), None, "{beyond:#x}");
        }
    }
}

/// Host addresses go out and come back, and nothing past their aperture does.
#[test]
fn host_addresses_at_every_power_of_two() {
    for generation in GENERATIONS {
        let mut reached = 0;
        for power in 0..64 {
            for address in [(1_u64 << power) - 1, 1 << power, (1 << power) + 1] {
                if let Some(device) = generation.host_to_soc(address) {
                    assert_eq!(
                        generation.host_address(device),
                        Some(address),
                        "{address:#x}"
                    );
                    reached += 1;
                }
                // Whatever is taken for a host address is one.
                if let Some(host) = generation.host_address(address) {
                    let device = generation.host_to_soc(host);
                    assert_eq!(
                        device.and_then(|device| generation.host_address(device)),
                        Some(host),
                        "{address:#x}"
                    );
                }
            }
        }
        assert!(reached > 90, "{reached}");
    }
}

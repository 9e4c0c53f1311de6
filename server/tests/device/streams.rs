//! From tx descriptors into rx buffers, whatever their number.
use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_vfio_user::observe::event::EventKind;
use neuron_vfio_user::observe::report::{Account, Detail};
use proptest::prelude::*;

use crate::rig::*;

#[test]
fn a_marker_is_never_cut_by_the_end_of_a_turn() {
    // A turn is 256 KiB, of which the two fetches cost 512 bytes: some of these leave it 1 to 3 bytes.
    for left in 0..=600 {
        let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
        let host = |address| rig.with(|rig| rig.host(address));
        let mut pair = queue(&mut device, 0, 0, 64);
        for len in [65_536, 65_536, 65_536, 65_536 - left] {
            pair.stage(&mut device, host(DATA), host(RESULT), len, Barrier::None)
                .unwrap();
        }
        rig.with(|rig| rig.fill(MARKERS, &MARKER.to_le_bytes()));
        pair.stage(
            &mut device,
            host(MARKERS),
            host(MARKERS + 4),
            4,
            Barrier::None,
        )
        .unwrap();
        pair.trigger(&mut device, 5, 5).unwrap();
        rig.with(|rig| {
            rig.run();
            let whole = |kind: &EventKind| matches!(kind, EventKind::Marker { tx: 4, .. });
            assert!(rig.log.take().iter().any(whole), "{left} bytes left");
        });
    }
}

/// Cuts `total` bytes into at most 40 pieces of 1 to 65,536.
fn cuts(total: usize) -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1..total.max(2), 0..39).prop_map(move |mut points| {
        points.extend([0, total]);
        points.sort_unstable();
        points.dedup();
        points.windows(2).map(|pair| pair[1] - pair[0]).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_split_of_a_packet_is_one_big_copy(
        (tx, rx) in (1usize..60_000).prop_flat_map(|total| (cuts(total), cuts(total))),
        by_message in any::<bool>(),

    ) {
        let total: usize = tx.iter().sum();
        let rig = if by_message { Rig::by_message } else { Rig::new };
        let (rig, mut device) = rig(Product::Trn2, Platform::Qemu).driver();
        let mut pair = queue(&mut device, 1, 2, 64);
        let data = pattern(total, 77);
        rig.with(|rig| rig.fill(DATA, &data));
        let host = |address| rig.with(|rig| rig.host(address));
        let mut at = host(DATA);
        for (n, len) in tx.iter().enumerate() {
            let source = at;
            at += *len as u64;
            pair.push_tx(&mut device, |id| {
                let len_ctrl = LenCtrl::new()
                    .with_byte_length(u32::try_from(*len).unwrap())?
                    .with_ring_id(id)
                    .with_first(n == 0)
                    .with_last(n + 1 == tx.len());
                Some(TxDescriptor::from_words(len_ctrl, MetaCtrl::COPY, source))
            }).unwrap();
        }
        let mut at = host(RESULT);
        for len in &rx {
            let destination = at;
            at += *len as u64;
            pair.push_rx(&mut device, |id| {
                RxDescriptor::new(destination, u32::try_from(*len).unwrap(), id, Barrier::None)
            }).unwrap();
        }
        pair.trigger(&mut device, u32::try_from(tx.len()).unwrap(), u32::try_from(rx.len()).unwrap()).unwrap();
        rig.with(|rig| {
            rig.run();
            prop_assert_eq!(rig.bytes(RESULT, total), data);
            let counters = rig.function.report(Detail::Status).counters;
            prop_assert_eq!(counters.descriptors, (tx.len() + rx.len()) as u64);
            prop_assert_eq!(counters.errors, 0);
            Ok(())
        })?;
    }
}

#[test]
fn the_end_of_a_packet_closes_its_buffer() {
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let mut pair = queue(&mut device, 0, 0, 64);
    let host = |address| rig.with(|rig| rig.host(address));
    rig.with(|rig| rig.fill(DATA, &pattern(200, 4)));
    for (source, len) in [(0, 100), (100, 100)] {
        let source = host(DATA + source);
        pair.push_tx(&mut device, |id| {
            TxDescriptor::copy(source, len, id, Barrier::None)
        })
        .unwrap();
    }
    for n in 0..2 {
        let to = host(RESULT + n * 0x1000);
        pair.push_rx(&mut device, |id| {
            RxDescriptor::new(to, 0x1000, id, Barrier::None)
        })
        .unwrap();
    }
    pair.trigger(&mut device, 2, 2).unwrap();
    rig.with(|rig| {
        rig.run();
        assert_eq!(rig.bytes(RESULT, 100), pattern(200, 4)[..100]);
        assert_eq!(rig.bytes(RESULT + 0x1000, 100), pattern(200, 4)[100..]);
        assert_eq!(rig.bytes(RESULT + 100, 100), [0; 100]);
    });
}

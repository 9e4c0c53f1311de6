//! Work takes the driver's estimate in model time: whole batches, queues that share an engine, engines side by side.
mod rig;

use std::time::Duration;

use neuron_protocol::cycle::{QueuePair, init_engine};
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::MARKER;
use neuron_protocol::ring::RingSize;
use neuron_vfio_user::policy::Timing;
use neuron_vfio_user::policy::timing::Speed;
use neuron_vfio_user::vfio::{PciFunction, Progress};

use rig::*;

/// Rings and marker slot of the nth queue.
const APART: u64 = 0x1_0000;

struct Bench {
    rig: Shared,
    device: Driver,
    pairs: Vec<QueuePair>,
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

impl Bench {
    /// Queues at these engines and numbers, at a speed.
    fn new(product: Product, speed: Speed, queues: &[(u8, u8)]) -> Self {
        let (rig, mut device) = Rig::new(product, Platform::Silicon).driver();
        rig.with(|rig| {
            let timing = Timing::new(rig.generation.estimate, speed);
            rig.function.policies_mut().set_timing(timing);
        });
        let pairs = (0..).zip(queues).map(|(nth, (engine, number))| {
            let size = RingSize::new(256).unwrap();
            let (tx, rx) = (TX_RING + nth * APART, RX_RING + nth * APART);
            let mut pair = QueuePair::new(&device, *engine, *number, size, tx, rx).unwrap();
            init_engine(&mut device, *engine).unwrap();
            pair.init(&mut device).unwrap();
            pair
        });
        let pairs = pairs.collect();
        Self { rig, device, pairs }
    }

    fn now(&self, now: Duration) -> Progress {
        self.rig.with(|rig| {
            rig.function.tick(now);
            loop {
                match rig.function.run() {
                    Progress::Again => {}
                    progress => return progress,
                }
            }
        })
    }

    fn poll_slot(nth: usize, batch: u64) -> u64 {
        MARKERS + nth as u64 * APART + 8 * batch + 4
    }

    /// Rings for some descriptors of 64 bytes and a marker.
    fn launch(&mut self, nth: usize, batch: u64, data: u32) {
        let slot = Self::poll_slot(nth, batch) - 4;
        let host = |address| self.rig.with(|rig| rig.host(address));
        let (source, to, marker) = (host(DATA), host(RESULT), host(slot));
        self.rig
            .with(|rig| rig.fill(slot, &[MARKER.to_le_bytes(), [0; 4]].concat()));
        let pair = &mut self.pairs[nth];
        for _ in 0..data {
            pair.stage(&mut self.device, source, to, 64, Barrier::None)
                .unwrap();
        }
        pair.stage(&mut self.device, marker, marker + 4, 4, Barrier::None)
            .unwrap();
        pair.trigger(&mut self.device, data + 1, data + 1).unwrap();
    }

    fn is_done(&self, nth: usize, batch: u64) -> bool {
        self.rig
            .with(|rig| rig.bytes(Self::poll_slot(nth, batch), 4))
            == MARKER.to_le_bytes()
    }
}

#[test]
fn a_batch_takes_what_the_driver_estimates() {
    for (product, each) in [(Product::Trn1, 4), (Product::Trn2, 2), (Product::Trn3, 2)] {
        let mut bench = Bench::new(product, Speed::Factor(1.0), &[(0, 0)]);
        assert_eq!(bench.now(us(100)), Progress::Idle);
        bench.launch(0, 0, 10);
        assert_eq!(bench.now(us(100)), Progress::After(us(each)));
        // The thread's lateness is not the model's: the rest is due when it would have been.
        assert_eq!(
            bench.now(us(100 + 7 * each + 1)),
            Progress::After(us(each - 1))
        );
        assert_eq!(bench.now(us(100 + 9 * each)), Progress::After(us(each)));
        assert!(!bench.is_done(0, 0));
        assert_eq!(bench.now(us(100 + 10 * each)), Progress::Idle);
        assert!(bench.is_done(0, 0));
    }
}

#[test]
fn a_factor_stretches_it_and_instant_is_instant() {
    let mut slow = Bench::new(Product::Trn2, Speed::Factor(2.5), &[(0, 0)]);
    slow.launch(0, 0, 4);
    assert_eq!(slow.now(us(19)), Progress::After(us(1)));
    assert_eq!(slow.now(us(20)), Progress::Idle);
    let mut instant = Bench::new(Product::Trn2, Speed::Instant, &[(0, 0)]);
    instant.launch(0, 0, 4);
    assert_eq!(instant.now(us(0)), Progress::Idle);
    assert!(instant.is_done(0, 0));
}

#[test]
fn queues_of_an_engine_queue_up_and_engines_do_not() {
    let mut bench = Bench::new(Product::Trn1, Speed::Factor(1.0), &[(3, 0), (3, 1), (4, 0)]);
    for nth in 0..3 {
        bench.launch(nth, 0, 10);
    }
    let mut done = [None; 3];
    for now in 0..200 {
        bench.now(us(now));
        for (nth, done) in done.iter_mut().enumerate() {
            if done.is_none() && bench.is_done(nth, 0) {
                *done = Some(now);
            }
        }
    }
    // Twenty descriptors of one engine, in turns; ten of the other.
    assert_eq!(done[2], Some(40));
    assert_eq!(done[0].max(done[1]), Some(80));
    assert!(done[0].min(done[1]) >= Some(76), "{done:?}");
}

#[test]
fn work_begins_when_it_is_rung_for() {
    let mut bench = Bench::new(Product::Trn1, Speed::Factor(1.0), &[(0, 0)]);
    bench.launch(0, 0, 1);
    // The thread was busy elsewhere: the first batch should be long done, the second has just been rung for.
    bench.rig.with(|rig| rig.function.tick(us(50)));
    bench.launch(0, 1, 1);
    assert_eq!(bench.now(us(50)), Progress::After(us(4)));
    assert!(bench.is_done(0, 0));
    assert!(!bench.is_done(0, 1));
    assert_eq!(bench.now(us(54)), Progress::Idle);
    assert!(bench.is_done(0, 1));
}

#[test]
fn a_reset_ends_the_wait() {
    let mut bench = Bench::new(Product::Trn1, Speed::Factor(1e6), &[(0, 0)]);
    bench.launch(0, 0, 1);
    assert_eq!(bench.now(us(0)), Progress::After(Duration::from_secs(4)));
    bench.rig.with(|rig| rig.function.reset());
    assert_eq!(bench.now(us(1)), Progress::Idle);
    assert!(!bench.is_done(0, 0));
}

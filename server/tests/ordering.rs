//! What the barriers promise, as a CPU beside the device sees it: once the marker is there, so is the data.
#![allow(clippy::cast_possible_truncation, reason = "test code")]
mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Platform, Product};
use neuron_vfio_user::policy::{Point, Policy, Verdict};
use neuron_vfio_user::vfio::{DmaMap, PciFunction};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use rig::*;

/// Guest memory that both threads see.
const BASE: u64 = 0x1000_0000;
const SIZE: usize = 1 << 20;
/// Transfers that may be under the observer's eye at a time.
const SLOTS: u32 = 256;
const PAYLOAD: usize = 256;
/// Data descriptors per transfer.
const PARTS: usize = 4;
const SOURCES: usize = 0;
const PAYLOADS: usize = 0x4_0000;
const MARKER_SOURCES: usize = 0x8_0000;
const MARKERS_SEEN: usize = 0x9_0000;
/// Transfers per doorbell: five descriptors each, in rings of 256.
const BATCH: u32 = 8;
const MOST_TIME: Duration = Duration::from_secs(60);

fn slot(n: u32) -> usize {
    (n % SLOTS) as usize
}

fn word(n: u32, nth: usize) -> u64 {
    u64::from(n)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(nth as u32)
        ^ nth as u64
}

fn payload(n: u32) -> [u8; PAYLOAD] {
    let mut bytes = [0; PAYLOAD];
    for (nth, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(n, nth).to_le_bytes());
    }
    bytes
}

/// What both threads share.
struct Scene {
    memory: MmapRegion,
    /// Transfers that the observer has checked.
    seen: AtomicU32,
    /// Of them, those whose data was not there when the marker was.
    broken: AtomicU32,
    /// Looks that came before the marker: the two sides did run at the same time.
    early_looks: AtomicU64,
}

impl Scene {
    fn load(&self, at: usize) -> u32 {
        self.memory
            .get_slice(at, 4)
            .unwrap()
            .load(0, Ordering::Acquire)
            .unwrap()
    }

    fn store(&self, at: usize, value: u32) {
        self.memory
            .get_slice(at, 4)
            .unwrap()
            .store(value, 0, Ordering::Release)
            .unwrap();
    }

    /// Spins on each marker in turn and looks at the payload the moment it is there.
    fn observe(&self, count: u32) {
        let start = Instant::now();
        for n in 1..=count {
            let mut looks = 0u64;
            while self.load(MARKERS_SEEN + 4 * slot(n)) != n {
                looks += 1;
                if looks.is_multiple_of(256) {
                    std::thread::yield_now();
                    assert!(start.elapsed() < MOST_TIME, "marker {n} does not come");
                }
                std::hint::spin_loop();
            }
            let mut bytes = [0; PAYLOAD];
            let there = self
                .memory
                .get_slice(PAYLOADS + PAYLOAD * slot(n), PAYLOAD)
                .unwrap();
            there.copy_to(&mut bytes);
            if bytes != payload(n) {
                self.broken.fetch_add(1, Ordering::Relaxed);
            }
            self.early_looks.fetch_add(looks, Ordering::Relaxed);
            self.seen.store(n, Ordering::Release);
        }
    }
}

/// A wrong engine: the right one, with a marker that lands before data which precedes it in the ring.
struct EarlyMarker {
    scene: Arc<Scene>,
    host: u64,
    /// Before which of the data descriptors.
    part: usize,
}

impl Policy for EarlyMarker {
    fn judge(&mut self, _now: Duration, point: &Point) -> Verdict {
        if let Point::Copy { destination, .. } = *point
            && let Some(at) = destination
                .checked_sub(self.host)
                .and_then(|at| usize::try_from(at).ok()?.checked_sub(PAYLOADS))
            && at < PAYLOAD * SLOTS as usize
            && at % PAYLOAD == self.part * (PAYLOAD / PARTS)
        {
            let slot = at / PAYLOAD;
            let n = self.scene.load(MARKER_SOURCES + 4 * slot);
            self.scene.store(MARKERS_SEEN + 4 * slot, n);
            // Long enough for an observer that has no CPU of its own; one that looks now sees old data.
            let start = Instant::now();
            while self.scene.seen.load(Ordering::Acquire) < n
                && start.elapsed() < Duration::from_millis(100)
            {
                std::thread::yield_now();
            }
        }
        Verdict::Proceed
    }
}

/// Runs `count` transfers beside an observer. Returns how many of them it saw broken.
fn transfers(count: u32, barrier: Barrier, wrong_before_part: Option<usize>) -> u32 {
    let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, SIZE as u64).unwrap();
    let mapped = FileOffset::new(file.try_clone().unwrap().into(), 0);
    let scene = Arc::new(Scene {
        memory: MmapRegion::from_file(mapped, SIZE).unwrap(),
        seen: AtomicU32::new(0),
        broken: AtomicU32::new(0),
        early_looks: AtomicU64::new(0),
    });
    let (rig, mut device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    let host = rig.with(|rig| rig.host(BASE));
    rig.with(|rig| {
        let map = DmaMap {
            iova: BASE,
            size: SIZE as u64,
            protection: RW,
            file: Some((file, 0)),
        };
        rig.function.dma_map(map).unwrap();
        if let Some(part) = wrong_before_part {
            let scene = scene.clone();
            rig.function
                .policies_mut()
                .add(Box::new(EarlyMarker { scene, host, part }));
        }
    });
    let observer = std::thread::spawn({
        let scene = scene.clone();
        move || scene.observe(count)
    });
    let mut pair = queue(&mut device, 0, 0, 256);
    let at = |place: usize| host + place as u64;
    let start = Instant::now();
    let mut next = 1;
    while next <= count {
        let last = count.min(next + BATCH - 1);
        for n in next..=last {
            // A slot is used again only when it has been looked at.
            while n - scene.seen.load(Ordering::Acquire) > SLOTS {
                assert!(start.elapsed() < MOST_TIME, "the observer is stuck");
                std::thread::yield_now();
            }
            let source = SOURCES + PAYLOAD * slot(n);
            let to = PAYLOADS + PAYLOAD * slot(n);
            scene
                .memory
                .get_slice(source, PAYLOAD)
                .unwrap()
                .copy_from(&payload(n));
            scene.store(MARKER_SOURCES + 4 * slot(n), n);
            let part = PAYLOAD / PARTS;
            for nth in 0..PARTS {
                // As the kernel does: the barrier is on the last data descriptor. A strong-order write is the marker's.
                let here = match barrier {
                    Barrier::StrongOrder => Barrier::None,
                    barrier if nth + 1 == PARTS => barrier,
                    _ => Barrier::None,
                };
                let offset = nth * part;
                pair.stage(
                    &mut device,
                    at(source + offset),
                    at(to + offset),
                    part as u32,
                    here,
                )
                .unwrap();
            }
            let here = match barrier {
                Barrier::StrongOrder | Barrier::Dmb => barrier,
                _ => Barrier::None,
            };
            let marker = (
                at(MARKER_SOURCES + 4 * slot(n)),
                at(MARKERS_SEEN + 4 * slot(n)),
            );
            pair.stage(&mut device, marker.0, marker.1, 4, here)
                .unwrap();
        }
        let descriptors = (last - next + 1) * (PARTS as u32 + 1);
        pair.trigger(&mut device, descriptors, descriptors).unwrap();
        rig.with(|rig| {
            rig.run();
            rig.log.take();
        });
        pair.ack(descriptors).unwrap();
        next = last + 1;
    }
    observer.join().unwrap();
    assert_eq!(scene.seen.load(Ordering::Acquire), count);
    assert!(
        scene.early_looks.load(Ordering::Relaxed) > 0,
        "the observer only came afterwards"
    );
    scene.broken.load(Ordering::Relaxed)
}

#[test]
fn a_write_barrier_lands_data_before_the_marker() {
    assert_eq!(transfers(100_000, Barrier::Write, None), 0);
}

#[test]
fn a_dmb_lands_data_before_the_marker() {
    assert_eq!(transfers(100_000, Barrier::Dmb, None), 0);
}

#[test]
fn a_strong_order_write_comes_after_all_before_it() {
    assert_eq!(transfers(100_000, Barrier::StrongOrder, None), 0);
}

/// The three tests above would fail with an engine that lands a marker early, by all of the data or by its last part.
#[test]
fn an_engine_that_lands_its_marker_early_is_seen() {
    for barrier in [Barrier::Write, Barrier::Dmb, Barrier::StrongOrder] {
        for part in [0, PARTS - 1] {
            let broken = transfers(64, barrier, Some(part));
            assert!(
                broken > 32,
                "{barrier:?}, before part {part}: only {broken} of 64 seen"
            );
        }
    }
}

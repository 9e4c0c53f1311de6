//! Time lines, read by a decoder that is not ours.
#[path = "../rig/mod.rs"]
mod rig;

mod decode;
mod merging;

use std::io::Write;
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use decode::{Span, Trace, trace};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::{DRTP_INC, sw_ctrl};
use neuron_vfio_user::observe::event::{Event, EventKind, Observer, Scope};
use neuron_vfio_user::observe::timeline::{Clock, Options, Session};
use neuron_vfio_user::vfio::PciFunction;
use rig::*;

const HBM: u64 = 16 << 20;

/// A file in memory; a gate can hold up its writer.
#[derive(Clone, Default)]
struct File(Arc<(Mutex<Gated>, Condvar)>);

/// Bytes written, and whether the gate is closed.
type Gated = (Vec<u8>, bool);

impl File {
    fn bytes(&self) -> Vec<u8> {
        self.0.0.lock().unwrap().0.clone()
    }

    fn close_gate(&self, closed: bool) {
        self.0.0.lock().unwrap().1 = closed;
        self.0.1.notify_all();
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let (state, changed) = &*self.0;
        let mut state = changed
            .wait_while(state.lock().unwrap(), |state| state.1)
            .unwrap();
        state.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn session(options: Options) -> (File, Session) {
    let file = File::default();
    let session = Session::start(file.clone(), options).unwrap();
    (file, session)
}

fn drawn(options: Options) -> (File, Session, Rig) {
    let (file, session) = session(options);
    let mut rig = Rig::new(Product::Trn2, Platform::Qemu);
    let observer = session.observer(0, "nd0 trn2".into(), rig.generation);
    rig.function.observers_mut().add(Box::new(observer));
    (file, session, rig)
}

fn named<'a>(trace: &'a Trace, path: &str, name: &str) -> Vec<&'a Span> {
    trace
        .track(path)
        .spans
        .iter()
        .filter(|span| span.name == name)
        .collect()
}

#[test]
fn a_copy_is_a_batch_with_its_descriptors_inside() {
    let (file, session, rig) = drawn(Options::default());
    let (rig, mut device) = rig.driver();
    let (engine, queue) = device.generation.h2t_queue(0).unwrap();
    let mut copies = copy_queue(&mut device, Platform::Qemu);
    let source = rig.with(|rig| rig.host(DATA));
    for _ in 0..2 {
        copies
            .copy(&mut device, source, HBM, 3 * 65_536 + 17)
            .unwrap();
    }
    let summary = session.finish();
    assert_eq!(
        (summary.lost, summary.limited, summary.error),
        (0, false, None)
    );
    let bytes = file.bytes();
    assert_eq!(summary.bytes, bytes.len() as u64);

    let trace = trace(&bytes);
    assert_eq!(trace.gaps, 0);
    let place = format!("nd0 trn2/engine {engine} queue {queue}");
    let (m2s, s2m) = (format!("{place}/m2s"), format!("{place}/s2m"));
    // Four data descriptors and the marker's, in each of two batches.
    for (path, name, address) in [(&m2s, "batch", "source"), (&s2m, "buffers", "destination")] {
        let batches = named(&trace, path, name);
        assert_eq!(batches.len(), 2, "{batches:?}");
        let descriptors = named(&trace, path, "descriptor");
        assert_eq!(descriptors.len(), 10);
        for (n, descriptor) in descriptors.iter().enumerate() {
            let batch = batches[n / 5];
            assert_eq!(descriptor.annotations["index"], n);
            assert_eq!(descriptor.depth, batch.depth + 1);
            assert!(
                descriptor.begin >= batch.begin && descriptor.end.unwrap() <= batch.end.unwrap()
            );
            let bytes = [65_536, 65_536, 65_536, 17, 4][n % 5];
            assert_eq!(descriptor.annotations["bytes"], bytes);
            assert!(descriptor.annotations[address].is_u64());
        }
        assert_eq!(
            descriptors[1].annotations["source".min(address)],
            descriptors[1].annotations[address]
        );
        assert!(
            batches[0].end.unwrap() <= batches[1].begin,
            "batches overlap"
        );
        assert_eq!(batches[0].annotations["descriptors"], 5);
        // From the doorbell to the batch.
        for (doorbell, batch) in named(&trace, path, "doorbell").iter().zip(&batches) {
            assert_eq!(doorbell.flows.len(), 1);
            assert_eq!(doorbell.flows, batch.flows);
            assert!(doorbell.begin <= batch.begin);
        }
    }
    // And from there to the marker, which the batch still holds.
    let (batches, markers) = (named(&trace, &m2s, "batch"), named(&trace, &m2s, "marker"));
    assert_eq!(markers.len(), 2);
    for (marker, batch) in markers.iter().zip(&batches) {
        assert_eq!(marker.flows, batch.flows);
        assert!(
            marker.instant && marker.depth == batch.depth + 1,
            "{marker:?}"
        );
        assert_eq!(marker.begin, batch.end.unwrap());
    }
    assert_ne!(markers[0].flows, markers[1].flows);
    // The kernel's write barrier is on the last data descriptor.
    let barriers = named(&trace, &m2s, "barrier (write)");
    assert_eq!(
        barriers
            .iter()
            .map(|b| b.annotations["index"].clone())
            .collect::<Vec<_>>(),
        [3, 8]
    );

    for (counter, most) in [
        ("m2s queue depth", 5),
        ("s2m queue depth", 5),
        ("bytes in flight", 3 * 65_536 + 21),
    ] {
        let values = &trace.track(&format!("{place}/{counter}")).counter;
        assert_eq!(
            values.iter().map(|(_, value)| *value).max(),
            Some(most),
            "{counter}"
        );
        assert_eq!(values.last().unwrap().1, 0, "{counter}");
    }
}

#[test]
fn resets_aborts_and_mailboxes_are_instants_and_end_what_was_open() {
    let (file, session, rig) = drawn(Options::default());
    let (engine, queue) = rig.generation.h2t_queue(0).unwrap();
    let place = format!("nd0 trn2/engine {engine} queue {queue}");
    let doorbell = rig.register(engine, queue, Direction::M2s, DRTP_INC);
    let control = rig.register(engine, queue, Direction::M2s, sw_ctrl(Direction::M2s));
    let (rig, mut device) = rig.driver();
    let mut copies = copy_queue(&mut device, Platform::Qemu);
    let host = |address| rig.with(|rig| rig.host(address));
    copies.copy(&mut device, host(DATA), HBM, 64).unwrap();
    // Two more are rung for, and dropped.
    rig.with(|rig| {
        rig.write(doorbell, 2);
        rig.write(control, 1 << 24 | 1 << 29);
    });
    // An engine that cannot read its source stops.
    let mut copies = copy_queue(&mut device, Platform::Silicon);
    let nowhere = host(RAM_BASE + RAM_SIZE + 4096);
    assert!(copies.copy(&mut device, nowhere, HBM, 64).is_err());
    rig.with(|rig| rig.function.reset());
    session.finish();

    let trace = trace(&file.bytes());
    let aborts = named(&trace, &place, "abort");
    assert_eq!(aborts.len(), 1);
    assert!(
        aborts[0].annotations["cause"]
            .as_str()
            .unwrap()
            .contains("not mapped"),
        "{aborts:?}"
    );
    assert_eq!(named(&trace, "nd0 trn2", "device reset").len(), 1);
    let resets = named(&trace, &format!("{place}/m2s"), "queue reset");
    assert!(
        resets.iter().any(|reset| reset.annotations["dropped"] == 2),
        "{resets:?}"
    );
    let depth = &trace.track(&format!("{place}/m2s queue depth")).counter;
    assert_eq!(depth.last().unwrap().1, 0);
    let all = || trace.tracks.values().flat_map(|track| &track.spans);
    assert!(
        all().all(|span| span.end.is_some()),
        "something is open at the end"
    );
}

#[test]
fn register_accesses_are_drawn_on_request_one_in_n() {
    let (file, session, mut rig) = drawn(Options {
        registers: NonZeroU32::new(3),
        ..Options::default()
    });
    let doorbell = rig.register(0, 0, Direction::M2s, DRTP_INC);
    for _ in 0..30 {
        rig.read(doorbell);
    }
    session.finish();
    let trace = trace(&file.bytes());
    let spans = &trace.track("nd0 trn2/registers (sampled)").spans;
    assert_eq!(spans.len(), 10);
    assert!(spans[0].name.contains("drtp_inc"), "{:?}", spans[0]);
}

fn event(n: u32) -> Event {
    Event {
        at: Duration::from_micros(n.into()),
        scope: Scope::Queue {
            engine: 3,
            queue: 1,
        },
        kind: EventKind::Fetch {
            direction: Direction::M2s,
            index: n,
            count: 1,
        },
    }
}

#[test]
fn what_finds_no_room_is_counted_and_shown_as_a_gap() {
    let (file, session) = session(Options {
        clock: Clock::Device,
        capacity: 1000,
        ..Options::default()
    });
    file.close_gate(true);
    let mut observer = session.observer(2, "nd2".into(), Product::Trn2.generation());
    // More than fit, whether the writer took a part before it got stuck or not.
    for n in 0..3000 {
        observer.event(&event(n));
    }
    file.close_gate(false);
    while session.summary().lost == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for n in 3000..3010 {
        observer.event(&event(n));
    }
    let summary = session.finish();
    assert_eq!(summary.lost + summary.events, 3010);
    let trace = trace(&file.bytes());
    let lost: u64 = named(&trace, "nd2", "events lost")
        .iter()
        .map(|span| span.annotations["count"].as_u64().unwrap())
        .sum();
    assert_eq!(lost, summary.lost);
    assert!(trace.gaps >= 1);
    let fetches = named(&trace, "nd2/engine 3 queue 1/m2s", "fetch");
    assert_eq!(fetches.len() as u64, summary.events);
    assert_eq!(fetches.last().unwrap().annotations["index"], 3009);
    assert_eq!(fetches.last().unwrap().begin, 3_009_000);
}

#[test]
fn the_file_ends_at_its_limit_and_says_so() {
    let (file, session) = session(Options {
        limit: 1 << 20,
        clock: Clock::Device,
        ..Options::default()
    });
    let mut observer = session.observer(0, "nd0".into(), Product::Trn2.generation());
    for n in 0..40_000 {
        observer.event(&event(n));
        if n % 5000 == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let summary = session.finish();
    assert!(summary.limited, "{summary:?}");
    let bytes = file.bytes();
    assert!(
        bytes.len() > 512 << 10 && bytes.len() <= 1 << 20,
        "{}",
        bytes.len()
    );
    let spans = &trace(&bytes).track("nd0").spans.clone();
    assert!(spans.last().unwrap().name.contains("size limit"));
}

#[test]
fn a_file_that_cannot_be_written_ends_the_time_line_and_nothing_else() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // The head fits.
            if bytes.len() < 100 {
                Ok(bytes.len())
            } else {
                Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let session = Session::start(Full, Options::default()).unwrap();
    let mut observer = session.observer(0, "nd0".into(), Product::Trn2.generation());
    for n in 0..100 {
        observer.event(&event(n));
    }
    let summary = session.finish();
    assert!(summary.error.is_some(), "{summary:?}");
    observer.event(&event(0));
}

//! Both halves of copies whose true clocks are known.
use std::fmt::Write;
use std::time::Duration;

use neuron_protocol::generation::Platform;
use neuron_protocol::marker::Context;
use neuron_vfio_user::observe::timeline::Options;
use neuron_vfio_user::observe::timeline::merge::{MergeError, Merged, merge};
use rustix::time::{ClockId, clock_gettime};

use crate::decode::trace;
use crate::rig::*;
use crate::{HBM, drawn, named};

/// How far the guest's clock is behind the host's, microseconds.
const BEHIND: u64 = 1_234_567;
const COPIES: usize = 40;

fn guest_time() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let micros =
        u64::try_from(now.tv_sec).unwrap() * 1_000_000 + u64::try_from(now.tv_nsec).unwrap() / 1000;
    micros
        .checked_sub(BEHIND)
        .expect("the host has been up for a while")
}

/// Copies of several sizes; the device's trace, and what a driver's ftrace would be.
fn run() -> (Vec<u8>, String) {
    let (file, session, rig) = drawn(Options::default());
    let (rig, mut device) = rig.driver();
    let mut copies = copy_queue(&mut device, Platform::Qemu);
    let (engine, queue) = device.generation.h2t_queue(0).unwrap();
    let source = rig.with(|rig| rig.host(DATA));
    let mut text = String::from("# tracer: nop\n");
    let mut line = |what: std::fmt::Arguments<'_>| {
        let now = guest_time();
        let (seconds, micros) = (now / 1_000_000, now % 1_000_000);
        writeln!(text, "  init-77  [001] ..... {seconds}.{micros:06}: {what}").unwrap();
    };
    for n in 0..COPIES {
        let length = 65_536 * (1 + n as u64 % 3);
        let mut transfer = neuron_protocol::cycle::Transfer::new(source, HBM, length).unwrap();
        let batch = copies
            .stage(&mut device, Context::Sync, &mut transfer)
            .unwrap();
        let count = 2 + n % 3;
        line(format_args!(
            "dma_queue_copy_start: nd0 eng{engine} q{queue} tx_count {count} rx_count {count}"
        ));
        copies.launch(&mut device, &batch).unwrap();
        rig.with(Rig::run);
        assert!(copies.is_done(&mut device, &batch).unwrap());
        line(format_args!(
            "dma_ack_completed: nd0 eng{engine} qid{queue} count {count}"
        ));
        copies.finish(&mut device, batch).unwrap();
        std::thread::sleep(Duration::from_micros(300));
    }
    session.finish();
    (file.bytes(), text)
}

fn check(merged: &Merged) {
    let error = (merged.fit.offset - i64::try_from(BEHIND * 1000).unwrap()).unsigned_abs();
    assert!(error <= merged.fit.uncertainty, "off by {error}: {merged}");
    assert!(merged.fit.uncertainty < 50_000_000, "{merged}");
}

#[test]
fn the_clock_is_found_and_flows_go_from_the_driver_through_the_device_and_back() {
    let (timeline, ftrace) = run();
    let merged = merge(&timeline, &ftrace, None).unwrap();
    check(&merged);
    assert_eq!((merged.batches, merged.paired), (COPIES, (COPIES, COPIES)));
    let text = merged.to_string();
    assert!(
        text.contains("device = guest + 1.23") && text.contains("40 of the driver's 40"),
        "{text}"
    );

    let trace = trace(&merged.bytes);
    let starts = named(&trace, "guest/init-77", "dma_queue_copy_start");
    let acks = named(&trace, "guest/init-77", "dma_ack_completed");
    let device: Vec<_> = trace
        .tracks
        .keys()
        .filter(|path| path.ends_with("/m2s"))
        .collect();
    let [path] = device[..] else {
        panic!("{device:?}")
    };
    let (doorbells, markers) = (
        named(&trace, path, "doorbell"),
        named(&trace, path, "marker"),
    );
    assert_eq!(
        [starts.len(), acks.len(), doorbells.len(), markers.len()],
        [COPIES; 4]
    );
    for n in 0..COPIES {
        assert_eq!(starts[n].flows, doorbells[n].flows);
        assert_eq!(acks[n].flows, markers[n].flows);
        assert_eq!(starts[n].flows, acks[n].flows);
        assert!(starts[n].begin <= doorbells[n].begin && markers[n].begin <= acks[n].begin);
    }
    // The device's own half is as it was.
    assert!(merged.bytes.starts_with(&timeline));
}

#[test]
fn a_trace_of_the_middle_is_laid_where_it_belongs() {
    let (timeline, ftrace) = run();
    // The first ten batches and the last five are missing.
    let lines: Vec<_> = ftrace.lines().collect();
    let middle = lines[21..lines.len() - 10].join("\n");
    match merge(&timeline, &middle, None) {
        Ok(merged) => {
            check(&merged);
            assert_eq!((merged.batches, merged.paired.0), (25, 25));
        }
        // Even spacing can leave several ways, which must not be guessed.
        Err(error) => assert!(matches!(error, MergeError::Ambiguous(_)), "{error}"),
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let (timeline, ftrace) = run();
    let refused = |timeline: &[u8], ftrace: &str| {
        let merged = merge(timeline, ftrace, None);
        merged.map(|merged| merged.to_string()).unwrap_err()
    };
    let lines: Vec<_> = ftrace.lines().collect();
    // A clock that jumps: from here on doorbells come before their cause.
    let stamp = |line: &str| line.split_whitespace().nth(3).unwrap().to_owned();
    let jumped: Vec<_> = lines
        .iter()
        .enumerate()
        .map(|(n, line)| {
            if n <= 40 {
                return (*line).to_owned();
            }
            let stamp = stamp(line);
            let seconds: u64 = stamp.split('.').next().unwrap().parse().unwrap();
            line.replace(
                &stamp,
                &stamp.replacen(&seconds.to_string(), &(seconds + 1).to_string(), 1),
            )
        })
        .collect();
    let error = refused(&timeline, &jumped.join("\n"));
    assert!(
        matches!(error, MergeError::Contradiction(_))
            && error.to_string().contains("no clock fits"),
        "{error}"
    );
    // Another run: other sizes.
    let other = ftrace.replace("count 2", "count 5");
    assert!(
        refused(&timeline, &other)
            .to_string()
            .contains("different runs")
    );
    // Other engines.
    let other = ftrace.replace(" eng128", " eng127");
    assert!(matches!(refused(&timeline, &other), MergeError::NoMatch(_)));
    // No acknowledgement, no doorbell, two devices, no trace at all.
    let only: String = lines
        .iter()
        .filter(|line| !line.contains("ack"))
        .fold(String::new(), |all, line| all + line + "\n");
    assert!(matches!(
        refused(&timeline, &only),
        MergeError::Unbounded("below")
    ));
    let only = ftrace.replace("dma_queue_copy_start", "dma_queue_init");
    assert!(matches!(refused(&timeline, &only), MergeError::NoStarts));
    let two = ftrace.replacen("nd0", "nd1", 1);
    assert!(matches!(
        refused(&timeline, &two),
        MergeError::SeveralNodes(_)
    ));
    assert!(matches!(
        refused(b"\x7fELF and so on", &ftrace),
        MergeError::Trace(_)
    ));
    assert!(matches!(refused(b"", &ftrace), MergeError::NoDoorbells(_)));
    // Cut off, as a crash leaves it: the rest is used.
    let merged = merge(&timeline[..timeline.len() - 3], &ftrace, None).unwrap();
    trace(&merged.bytes);
}

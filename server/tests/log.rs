//! The log under a guest and a client that do their worst: bounded, counted, and every line names its device.
mod common;

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use common::Served;
use common::raw::RawClient;
use neuron_protocol::cycle::{
    CopyQueue, Device, QueuePair, Registers, Settings, Transfer, init_engine,
};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::Context;
use neuron_protocol::ring::{H2T_DESC_COUNT, RingSize, allocated_count};
use neuron_vfio_user::probe::GuestRam;
use rustix::process::Signal;
use serde_json::Value;

const PRODUCT: Product = Product::Trn2;
const ROUTING_ID: u8 = 5;
const RAM: u64 = 1 << 32;
/// Times that each site is made to speak.
const FLOOD: usize = 150;
/// Lines that a site may write at once.
const BURST: usize = 20;

/// An engine that aborts because a descriptor points nowhere, over and over.
fn abort(client: RawClient) -> RawClient {
    let memory = GuestRam::new(RAM, 8 << 20).unwrap();
    let mut registers = client;
    registers.map(&memory, memory.as_fd()).unwrap();
    registers.enable().unwrap();
    let generation = PRODUCT.generation();
    let mut neuron = Device {
        registers,
        memory,
        delay: (),
        generation,
    };
    let (engine, number) = generation.h2t_queue(0).unwrap();
    let size = RingSize::new(allocated_count(H2T_DESC_COUNT).unwrap()).unwrap();
    for _ in 0..FLOOD {
        neuron.registers.reset().unwrap();
        neuron.registers.enable().unwrap();
        init_engine(&mut neuron, engine).unwrap();
        let pair = QueuePair::new(&neuron, engine, number, size, RAM, RAM + (1 << 20)).unwrap();
        let settings = Settings::new(generation, Platform::Qemu);
        let mut queue = CopyQueue::new(&neuron, pair, RAM + (2 << 20), settings).unwrap();
        queue.init(&mut neuron).unwrap();
        // Beyond the memory that was mapped.
        let nowhere = neuron.host_to_device(RAM + (1 << 30)).unwrap();
        let mut transfer = Transfer::new(nowhere, 16 << 20, 64).unwrap();
        let batch = queue
            .stage(&mut neuron, Context::Sync, &mut transfer)
            .unwrap();
        queue.launch(&mut neuron, &batch).unwrap();
        // Behind both doorbells.
        neuron.registers.read32(generation.misc_ram).unwrap();
    }
    neuron.registers
}

#[test]
fn floods_are_cut_short_and_counted_and_every_line_names_its_device() {
    let routing_id = ROUTING_ID.to_string();
    let mut served = Served::start(&[
        "--log-format",
        "json",
        "--product",
        PRODUCT.name(),
        "--routing-id",
        &routing_id,
    ]);
    let start = std::time::Instant::now();
    let socket = served.socket();
    let mut first = abort(RawClient::connect(&socket).unwrap());
    for _ in 0..FLOOD {
        // A second client, and requests that make no sense.
        assert!(RawClient::connect(&socket).is_err());
        assert!(first.write(3, 1 << 40, &[0; 4]).is_err());
    }
    drop(first);
    for _ in 0..FLOOD {
        // Until the end of the last one was seen, the next is a second client too.
        drop(RawClient::connect(&socket));
    }
    let elapsed = start.elapsed();
    let (_, log) = served.end(Signal::TERM);

    let mut sites: BTreeMap<String, usize> = BTreeMap::new();
    let mut suppressed: usize = 0;
    for line in log.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let target = value["target"].as_str().unwrap();
        let message = value["message"].as_str().unwrap();
        let of_the_process = target.contains("supervisor") || target.contains("::cli::");
        assert!(
            value["device"] == ROUTING_ID || of_the_process,
            "a line without its device: {line}"
        );
        if message.contains("engine aborted") {
            assert!(
                value["engine"].is_u64() && value["queue"].is_u64(),
                "{line}"
            );
        }
        if let Some(lines) = value["suppressed"].as_u64() {
            assert!(message.contains("more lines like those of"), "{line}");
            suppressed += usize::try_from(lines).unwrap();
        } else {
            // What differs between lines of one site are numbers.
            let words = message.chars().filter(|c| !c.is_ascii_digit()).collect();
            *sites.entry(words).or_default() += 1;
        }
    }
    let allowed = BURST + usize::try_from(elapsed.as_millis() / 500).unwrap() + 2;
    for (words, lines) in &sites {
        assert!(*lines <= allowed, "{lines} lines of {words:?}");
    }
    let said = |part: &str| -> usize {
        let of = sites.iter().filter(|(words, _)| words.contains(part));
        of.map(|(_, lines)| *lines).sum()
    };
    for part in [
        "engine aborted",
        "device reset",
        "was turned away",
        "client connected",
        "refused",
    ] {
        assert!(said(part) > 0, "no line with {part:?}: {sites:?}");
    }
    // Aborts, resets, and second clients were all more than may be said at once.
    assert!(
        suppressed >= 3 * (FLOOD - allowed),
        "{suppressed} suppressed lines are told of"
    );
}

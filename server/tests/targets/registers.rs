//! Register accesses in any order, with the memory they are about.
//!
//! The input is the choice of a product and then operations of 12 bytes: what, three selectors, two words.
use neuron_protocol::descriptor::MetaCtrl;
use neuron_protocol::generation::Block;
use neuron_protocol::registers::{Direction, queue};
use neuron_vfio_user::vfio::{DmaUnmap, PciFunction};
use rustix::io::Errno;

use super::bench::{Bench, Input, RAM_BASE, RAM_SIZE};

/// Registers of a queue that a driver writes or reads.
const QUEUE: [u32; 15] = [
    queue::CFG,
    queue::STATUS,
    queue::DRBP_LOW,
    queue::DRBP_HIGH,
    queue::DRL,
    queue::DRHP,
    queue::DRTP_INC,
    queue::DRTP,
    queue::DCP,
    queue::CRBP_LOW,
    queue::CRBP_HIGH,
    queue::CRHP,
    queue::RLIMIT_MASK,
    0xa0,
    0xb0,
];

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let choice = input.byte();
    let mut bench = Bench::new(choice);
    bench.enable(choice & 0x40 != 0);
    while !input.is_empty() {
        let [what, a, b, c] = input.array();
        let (x, y) = (input.word(), input.word());
        step(&mut bench, what, [a, b, c], x, y);
    }
    bench.slices(3);
    bench.check();
    bench.end();
}

/// An offset of the register BAR: mostly of a queue, sometimes anything.
fn offset(bench: &Bench, [a, b, c]: [u8; 3], x: u32) -> u32 {
    let engine = a % bench.generation.engines;
    let base = bench
        .generation
        .block_base(Block::Udma, engine)
        .unwrap_or(0);
    let direction = Direction::BOTH[usize::from(b >> 7)];
    match c >> 5 {
        0..=4 => bench.queue(
            engine,
            b & 15,
            direction,
            QUEUE[usize::from(c) % QUEUE.len()],
        ),
        5 => base.wrapping_add(x & 0xf_fffc),
        6 => bench.generation.misc_ram.wrapping_add(x & 0xffc),
        _ => x,
    }
}

fn step(bench: &mut Bench, what: u8, selectors: [u8; 3], x: u32, y: u32) {
    let [a, b, c] = selectors;
    let in_ram = u64::from(x) % RAM_SIZE;
    match what % 16 {
        0..=3 => {
            let at = offset(bench, selectors, x);
            bench.write(at, y);
        }
        4 => {
            let at = offset(bench, selectors, x);
            bench.read(at);
        }
        5 => _ = bench.slices(u32::from(a % 4)),
        // A ring in RAM, as a driver sets it up, and its doorbell.
        6 => {
            let engine = a % bench.generation.engines;
            let direction = Direction::BOTH[usize::from(b >> 7)];
            let base = bench.host(RAM_BASE + (in_ram & !0xff));
            let halves = base.to_le_bytes();
            let half = |at: usize| {
                u32::from_le_bytes([halves[at], halves[at + 1], halves[at + 2], halves[at + 3]])
            };
            for (register, value) in [
                (queue::DRBP_LOW, half(0)),
                (queue::DRBP_HIGH, half(4)),
                (queue::DRL, 32 << (c & 3)),
            ] {
                let at = bench.queue(engine, b & 15, direction, register);
                bench.write(at, value);
            }
        }
        7 => {
            let engine = a % bench.generation.engines;
            for direction in Direction::BOTH {
                let at = bench.queue(engine, b & 15, direction, queue::DRTP_INC);
                bench.write(at, y & 0x3f);
            }
        }
        // A descriptor: an address in RAM, HBM, registers, or nowhere.
        8 | 9 => {
            let address = match c >> 6 {
                0 | 1 => bench.host(RAM_BASE + u64::from(y) % RAM_SIZE),
                2 => u64::from(y),
                _ => u64::from(y) << 16,
            };
            let len_ctrl = u32::from(a) << 24 | u32::from(b) << 8 | u32::from(c);
            let mut descriptor = [0; 16];
            let words = [len_ctrl, 0];
            for (bytes, word) in descriptor.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            if what & 1 == 0 {
                // A source: the operation is a plain copy.
                descriptor[4..8].copy_from_slice(&MetaCtrl::COPY.into_bits().to_le_bytes());
            }
            descriptor[8..].copy_from_slice(&address.to_le_bytes());
            bench.fill(in_ram & !15, &descriptor);
        }
        10 => {
            let data = [x.to_le_bytes(), y.to_le_bytes()].concat();
            let len = usize::from(b % 9);
            let _ = bench
                .function
                .region_write((a % 9).into(), x.into(), &data[..len.max(1)]);
        }
        11 => {
            let mut data = [0; 64];
            let len = usize::from(b % 64) + 1;
            let _ = bench
                .function
                .region_read((a % 9).into(), x.into(), &mut data[..len]);
        }
        12 => {
            let (iova, size) = (u64::from(a) << 16, u64::from(b.max(1)) << 12);
            match c % 4 {
                0 => bench.map(iova, size, None),
                1 => {
                    let file = bench.ram.try_clone().unwrap();
                    bench.map(iova, size, Some((file, in_ram & !0xfff)));
                }
                2 => bench
                    .function
                    .dma_unmap(DmaUnmap::Range { iova, size })
                    .unwrap(),
                _ => bench.function.dma_unmap(DmaUnmap::All).unwrap(),
            }
        }
        13 => {
            if !bench.asked.is_empty() {
                let (id, request) = bench.asked.swap_remove(usize::from(a) % bench.asked.len());
                let reply = match request {
                    _ if b & 7 == 7 => Err(Errno::FAULT),
                    neuron_vfio_user::vfio::DmaRequest::Read { len, .. } => Ok(vec![c; len]),
                    neuron_vfio_user::vfio::DmaRequest::Write { .. } => Ok(Vec::new()),
                };
                bench.function.dma_reply(id, reply);
            }
        }
        14 => match a % 8 {
            0 => bench.function.reset(),
            1 => bench.function.disconnect(),
            2 => rustix::fs::ftruncate(&bench.ram, u64::from(b) << 12).unwrap(),
            _ => _ = bench.function.region_write(7, 4, &[b, c]),
        },
        _ => bench.fill(in_ram, &y.to_le_bytes()),
    }
}

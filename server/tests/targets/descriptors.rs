//! Descriptor memory as a hostile driver fills it, on a queue that was set up as it should be.
//!
//! The input is five bytes of choices, then descriptors of 16 bytes, for the tx and the rx ring in turn. The top bits of an
//! address choose where it leads. Held against: only bytes that an rx descriptor names may change, and never more than
//! what the tx descriptors hold.
use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, LenCtrl, MetaCtrl};
use neuron_protocol::registers::Direction;
use neuron_protocol::registers::queue::{self, Pointer};
use neuron_vfio_user::vfio::DmaRequest;

use super::bench::{Bench, Input, RAM_BASE, RAM_SIZE};

/// Descriptors of a ring.
const LENGTH: usize = 64;
const TX_RING: u64 = 0;
const RX_RING: u64 = 0x1000;

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let [choice, how, where_, tx_count, rx_count] = input.array();
    let mut bench = Bench::new(choice);
    let by_message = how & 1 != 0;
    bench.enable(by_message);
    let mut ram = vec![0; usize::try_from(RAM_SIZE).unwrap()];
    for (at, byte) in ram.iter_mut().enumerate() {
        *byte = at.to_le_bytes()[usize::from(how >> 1 & 1)];
    }
    bench.fill(0, &ram);
    let (mut n, mut allowed, mut sources, mut known) = (0, vec![], 0_u64, true);
    while !input.is_empty() && n < 2 * LENGTH {
        let raw: [u8; DESCRIPTOR_SIZE] = input.array();
        let is_rx = n % 2 == 1;
        let (raw, address) = placed(&bench, raw, is_rx, how & 4 != 0);
        let slot = u64::try_from(n / 2 * DESCRIPTOR_SIZE).unwrap();
        bench.fill(if is_rx { RX_RING } else { TX_RING } + slot, &raw);
        let len_ctrl = LenCtrl::from_bits(u32::from_le_bytes(raw[..4].try_into().unwrap()));
        // What is written to registers may be another ring.
        known &= !is_rx || address >> 61 == 0 && bench.generation.soc_to_bar(address).is_none();
        if is_rx {
            allowed.push((address, u64::from(len_ctrl.byte_length())));
        } else {
            sources += u64::from(len_ctrl.byte_length());
        }
        n += 1;
    }
    ram = bench.ram();
    let (engine, number) = (where_ % bench.generation.engines, where_ >> 4);
    for (direction, ring) in [(Direction::M2s, TX_RING), (Direction::S2m, RX_RING)] {
        let base = bench.host(RAM_BASE + ring).to_le_bytes();
        let half = |at: usize| u32::from_le_bytes(base[at..at + 4].try_into().unwrap());
        for (register, value) in [
            (queue::DRBP_LOW, half(0)),
            (queue::DRBP_HIGH, half(4)),
            (queue::DRL, u32::try_from(LENGTH).unwrap()),
            (queue::CFG, u32::MAX),
        ] {
            let at = bench.queue(engine, number, direction, register);
            bench.write(at, value);
        }
    }
    for (direction, count) in [(Direction::S2m, rx_count), (Direction::M2s, tx_count)] {
        let at = bench.queue(engine, number, direction, queue::DRTP_INC);
        bench.write(at, u32::from(count) % 80);
    }
    settle(&mut bench);
    assert!(
        !known || bench.bytes_moved() <= sources,
        "more than the sources hold"
    );
    // A ring that was written is another ring: nothing is known of its buffers then.
    let touches = |(address, len): &(u64, u64), start: u64, size: u64| {
        let start = bench.host(RAM_BASE + start);
        *address < start + size && address.saturating_add(*len) > start
    };
    if known && !allowed.iter().any(|buffer| touches(buffer, 0, 0x2000)) {
        for (at, (before, after)) in (0..).zip(ram.iter().zip(&bench.ram())) {
            assert!(
                before == after || allowed.iter().any(|buffer| touches(buffer, at, 1)),
                "byte {at:#x} of RAM changed, which no descriptor names"
            );
        }
    }
    bench.check();
    bench.end();
}

/// Makes an address lead somewhere, and if wanted the flags right.
fn placed(
    bench: &Bench,
    mut raw: [u8; DESCRIPTOR_SIZE],
    is_rx: bool,
    valid: bool,
) -> ([u8; DESCRIPTOR_SIZE], u64) {
    let address = u64::from_le_bytes(raw[8..].try_into().unwrap());
    let low = address & 0xff_ffff_ffff;
    let address = match address >> 61 {
        0..=3 => bench.host(RAM_BASE + 0x2000 + low % (RAM_SIZE - 0x2000)),
        4 => low % (1 << 34),
        5 => bench.host(RAM_BASE + low % 0x2000),
        6 => {
            bench.generation.soc_windows
                [usize::try_from(low >> 32).unwrap_or(0) % bench.generation.soc_windows.len()]
            .base
                + low % (1 << 24)
        }
        _ => address,
    };
    raw[8..].copy_from_slice(&address.to_le_bytes());
    if valid {
        let bits = u32::from_le_bytes(raw[..4].try_into().unwrap());
        let len_ctrl = LenCtrl::from_bits(bits).with_ring_id(Pointer::RESET.ring_id);
        raw[..4].copy_from_slice(&len_ctrl.into_bits().to_le_bytes());
        if !is_rx {
            raw[4..8].copy_from_slice(&MetaCtrl::COPY.into_bits().to_le_bytes());
        }
    }
    (raw, address)
}

/// Works and answers messages until nothing moves. A descriptor may ring its own queue's doorbell by DMA and so work for
/// ever: that is software's loop, of which some slices are enough, each within its bound.
fn settle(bench: &mut Bench) {
    for _ in 0..64 {
        let idle = bench.slices(1);
        let asked = std::mem::take(&mut bench.asked);
        if idle && asked.is_empty() {
            return;
        }
        for (id, request) in asked {
            let reply = match request {
                DmaRequest::Read { iova, len } => {
                    let mut bytes = vec![0; len];
                    // Past the end there is nothing; a client would refuse.
                    let offset = iova.saturating_sub(RAM_BASE);
                    let _ = rustix::io::pread(&bench.ram, &mut bytes, offset);
                    bytes
                }
                DmaRequest::Write { iova, data } => {
                    bench.fill(iova.saturating_sub(RAM_BASE), &data);
                    Vec::new()
                }
            };
            neuron_vfio_user::vfio::PciFunction::dma_reply(&mut bench.function, id, Ok(reply));
        }
    }
}

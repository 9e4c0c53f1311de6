//! Copies as the driver makes them, with one thing missing or nothing.
use neuron_protocol::cycle::{CopyQueue, HostMemory, QueuePair, Settings, Transfer, init_engine};
use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::marker::{Context, MARKER};
use neuron_protocol::registers::{Direction, queue};
use neuron_protocol::ring::{RingId, RingSize};
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::policy::adversary::Script;
use zerocopy::IntoBytes;

use crate::cpu::{Cpu, Driver};
use crate::rig::{DATA, MARKERS, RESULT, RX_RING, TX_RING, pattern};

/// Rounds of a run, each a launch.
const ROUNDS: u64 = 6;
/// Looks at a marker before it counts as lost.
const PATIENCE: u32 = 30_000;
/// Where in device memory.
const HBM: u64 = 0x100_0000;

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Nothing,
    /// The full barrier before the rx doorbell, before the tx doorbell, both.
    PublishBeforeRx,
    PublishBeforeTx,
    BothPublishes,
    /// The write barrier on the last data descriptor.
    WriteBarrier,
    /// The strong order of the marker's write.
    StrongOrder,
    /// The DMBs of a chain of copies, or the bit that lets them act.
    Dmb,
    DmbEnable,
    /// The order of the marker's load before the data's.
    LoadOrder,
    /// All of a launch is staged before its doorbell.
    StageFirst,
    /// The marker is what tells; its head register is read instead of trusted.
    MarkerNotHead,
}

/// What goes wrong.
pub type Wrong = String;

/// One driver half.
struct Run {
    cpu: Cpu,
    device: Driver,
    missing: Missing,
}

/// How a run ended, and the decisions that deviated.
pub struct Outcome {
    pub result: Result<(), Wrong>,
    pub taken: Vec<u64>,
}

/// Runs a scenario.
pub fn run(scenario: Scenario, missing: Missing, seed: u64, script: Option<&Script>) -> Outcome {
    let product = if scenario == Scenario::ZeroCopy || seed.is_multiple_of(2) {
        Product::Trn2
    } else {
        Product::Trn1
    };
    let (cpu, device) = Cpu::new(product, seed, script);
    let mut run = Run {
        cpu: cpu.clone(),
        device,
        missing,
    };
    let result = match scenario {
        Scenario::Classic => run.classic(),
        Scenario::ZeroCopy => run.zero_copy(),
        Scenario::Chain => run.chain(),
        Scenario::Overlap => run.overlap(),
    };
    Outcome {
        result,
        taken: cpu.taken(),
    }
}

/// Which of the driver's ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Synchronous copies to the device and back, a write barrier on the last data descriptor.
    Classic,
    /// Pages to the device, unordered but for the marker's strongly ordered write (V3 and up).
    ZeroCopy,
    /// As HBM is scrubbed: each copy's source is the one's before it, a DMB on each.
    Chain,
    /// Copies to device memory over one another without a barrier between them: the later one stays, for the same bytes
    /// are written in order.
    Overlap,
}

impl Run {
    fn random(&self, limit: u64) -> u64 {
        self.cpu.with(|world| world.random.below(limit))
    }

    fn host(&self, address: u64) -> u64 {
        self.device.generation.host_to_soc(address).unwrap()
    }

    fn pair(&mut self) -> QueuePair {
        let (engine, number) = self.device.generation.h2t_queue(0).unwrap();
        init_engine(&mut self.device, engine).unwrap();
        let size = RingSize::new(32).unwrap();
        let mut pair =
            QueuePair::new(&self.device, engine, number, size, TX_RING, RX_RING).unwrap();
        pair.init(&mut self.device).unwrap();
        if self.missing == Missing::DmbEnable {
            let mask = pair.location().register(Direction::M2s, queue::RLIMIT_MASK);
            self.cpu.with(|world| world.rig.write(mask, 7));
        }
        let lost = match self.missing {
            Missing::PublishBeforeRx => [true, false],
            Missing::PublishBeforeTx => [false, true],
            Missing::BothPublishes => [true, true],
            _ => [false; 2],
        };
        self.cpu.with(|world| world.lost_publish = lost);
        pair
    }

    /// Copies of the driver's own queue, each checked as soon as its marker is there.
    fn classic(&mut self) -> Result<(), Wrong> {
        let pair = self.pair();
        let mut settings = Settings::new(self.device.generation, Platform::Silicon);
        if self.missing == Missing::WriteBarrier {
            settings.last_barrier = Barrier::None;
        }
        let mut copies = CopyQueue::new(&self.device, pair, MARKERS, settings).unwrap();
        copies.init(&mut self.device).unwrap();
        for round in 0..ROUNDS {
            let length = 1 + self.random(9000);
            let data = pattern(usize::try_from(length).unwrap(), round as u32 + 1);
            self.device.memory.write(DATA, &data).unwrap();
            let (source, back) = (self.host(DATA), self.host(RESULT));
            let to = HBM + self.random(5000);
            let last = round + 1 == ROUNDS;
            self.transfer(&mut copies, source, to, length, None)?;
            let there = self.cpu.hbm(to, data.len());
            Self::same("device memory", &there, &data)?;
            if last || self.random(2) == 0 {
                let read = self.transfer(&mut copies, to, back, length, Some(data.len()))?;
                Self::same("host memory", &read, &data)?;
                self.device
                    .memory
                    .write(RESULT, &vec![0; data.len()])
                    .unwrap();
            }
        }
        Ok(())
    }

    /// One copy to its marker; reads back what arrived at [`RESULT`].
    fn transfer(
        &mut self,
        copies: &mut CopyQueue,
        source: u64,
        to: u64,
        length: u64,
        read: Option<usize>,
    ) -> Result<Vec<u8>, Wrong> {
        let mut transfer = Transfer::new(source, to, length).unwrap();
        let batch = copies
            .stage(&mut self.device, Context::Sync, &mut transfer)
            .unwrap();
        copies.launch(&mut self.device, &batch).unwrap();
        let mut data = vec![0; read.unwrap_or(0)];
        for _ in 0..PATIENCE {
            // Loads out of order: the data's before the marker's.
            if self.missing == Missing::LoadOrder {
                self.device.memory.read(RESULT, &mut data).unwrap();
                self.turn();
            }
            if copies.is_done(&mut self.device, &batch).unwrap() {
                if self.missing != Missing::LoadOrder {
                    self.device.memory.read(RESULT, &mut data).unwrap();
                }
                if self.missing == Missing::MarkerNotHead {
                    self.head_is_tail(copies.queue())?;
                }
                copies.finish(&mut self.device, batch).unwrap();
                return Ok(data);
            }
            self.turn();
        }
        Err(self.stuck())
    }

    fn turn(&self) {
        self.cpu.with(crate::cpu::World::turn);
    }

    /// A driver that takes the completion head for the marker's twin.
    fn head_is_tail(&self, pair: &QueuePair) -> Result<(), Wrong> {
        let read = |register| {
            let offset = pair.location().register(Direction::S2m, register);
            self.cpu.with(|world| world.rig.read(offset))
        };
        let (head, tail) = (read(queue::CRHP), read(queue::DRTP));
        if head == tail {
            Ok(())
        } else {
            Err(format!(
                "the marker is there and the completion head {head:#x} is not at the tail {tail:#x}"
            ))
        }
    }

    /// Pieces of pages in one launch.
    fn zero_copy(&mut self) -> Result<(), Wrong> {
        let mut pair = self.pair();
        let mut staged = 0;
        for round in 0..ROUNDS {
            let count = 1 + self.random(6);
            let mut expected = Vec::new();
            let marker = self.arm(round);
            for nth in 0..count {
                let length = 1 + self.random(4096);
                let data = pattern(usize::try_from(length).unwrap(), (round * 10 + nth) as u32);
                let from = DATA + nth * 0x2000 + self.random(0x1000);
                self.device.memory.write(from, &data).unwrap();
                let (source, to) = (self.host(from), HBM + nth * 0x1000);
                let length = u32::try_from(length).unwrap();
                pair.stage(&mut self.device, source, to, length, Barrier::None)
                    .unwrap();
                expected.push((to, data));
            }
            let order = if self.missing == Missing::StrongOrder {
                Barrier::None
            } else {
                Barrier::StrongOrder
            };
            let poll = self.host(marker) + 4;
            let total = u32::try_from(count).unwrap() + 1;
            if self.missing == Missing::StageFirst {
                // The slots are taken and rung for; what belongs into them comes a little later.
                let mut id = RingId::INITIAL;
                pair.push_rx(&mut self.device, |slot| {
                    id = slot;
                    None
                })
                .unwrap_err();
                pair.push_tx(&mut self.device, |_| None).unwrap_err();
                pair.trigger(&mut self.device, total, total).unwrap();
                let at = (staged + count) % u64::from(pair.size().descriptors()) * 16;
                let rx = RxDescriptor::new(poll, 4, id, order).unwrap();
                let tx = TxDescriptor::copy(self.host(marker), 4, id, order).unwrap();
                for (ring, bytes) in [(RX_RING, rx.as_bytes()), (TX_RING, tx.as_bytes())] {
                    self.device.memory.write(ring + at, bytes).unwrap();
                }
                self.device.memory.publish();
                self.device.memory.publish();
            } else {
                let source = self.host(marker);
                pair.stage(&mut self.device, source, poll, 4, order)
                    .unwrap();
                pair.trigger(&mut self.device, total, total).unwrap();
            }
            self.wait(marker + 4)?;
            for (to, data) in &expected {
                let there = self.cpu.hbm(*to, data.len());
                Self::same("device memory", &there, data)?;
            }
            staged += u64::from(total);
            pair.ack(total).unwrap();
        }
        Ok(())
    }

    /// Each copy reads what the one before wrote.
    fn chain(&mut self) -> Result<(), Wrong> {
        let mut pair = self.pair();
        for round in 0..ROUNDS {
            let links = 2 + self.random(4);
            let length = 1 + self.random(3000);
            let data = pattern(usize::try_from(length).unwrap(), round as u32 + 77);
            self.device.memory.write(DATA, &data).unwrap();
            self.device
                .memory
                .write(RESULT, &vec![0; data.len()])
                .unwrap();
            let dmb = self.missing != Missing::Dmb;
            let marker = self.arm(round);
            let place = |nth: u64| HBM + (round % 2) * 0x10_0000 + nth * 0x1000;
            let mut hops = vec![self.host(DATA)];
            hops.extend((0..links).map(place));
            hops.push(self.host(RESULT));
            for hop in hops.windows(2) {
                let length = u32::try_from(length).unwrap();
                pair.push_tx(&mut self.device, |id| {
                    let len_ctrl = LenCtrl::new()
                        .with_byte_length(length)?
                        .with_ring_id(id)
                        .with_first(true)
                        .with_last(true)
                        .with_dmb(dmb);
                    Some(TxDescriptor::from_words(len_ctrl, MetaCtrl::COPY, hop[0]))
                })
                .unwrap();
                pair.push_rx(&mut self.device, |id| {
                    RxDescriptor::new(hop[1], length, id, Barrier::None)
                })
                .unwrap();
            }
            let (source, poll) = (self.host(marker), self.host(marker) + 4);
            // The last copy and the marker both go to the host.
            pair.stage(&mut self.device, source, poll, 4, Barrier::None)
                .unwrap();
            let total = u32::try_from(hops.len()).unwrap();
            pair.trigger(&mut self.device, total, total).unwrap();
            self.wait(marker + 4)?;
            let mut there = vec![0; data.len()];
            self.device.memory.read(RESULT, &mut there).unwrap();
            Self::same("the end of the chain", &there, &data)?;
            pair.ack(total).unwrap();
        }
        Ok(())
    }

    /// Unordered copies of which each overlaps some of those before it.
    fn overlap(&mut self) -> Result<(), Wrong> {
        const SPACE: usize = 0x2000;
        let mut pair = self.pair();
        let mut expected = vec![0; SPACE];
        for round in 0..ROUNDS {
            let count = 2 + self.random(5);
            let marker = self.arm(round);
            for nth in 0..count {
                let at = usize::try_from(self.random(3000)).unwrap();
                let length = 1 + usize::try_from(self.random(4096)).unwrap();
                let data = pattern(length, (round * 10 + nth + 300) as u32);
                expected[at..at + length].copy_from_slice(&data);
                let from = DATA + nth * 0x2000;
                self.device.memory.write(from, &data).unwrap();
                let (source, to) = (self.host(from), HBM + at as u64);
                let barrier = if nth + 1 == count {
                    Barrier::Write
                } else {
                    Barrier::None
                };
                let length = u32::try_from(length).unwrap();
                pair.stage(&mut self.device, source, to, length, barrier)
                    .unwrap();
            }
            let (source, poll) = (self.host(marker), self.host(marker) + 4);
            pair.stage(&mut self.device, source, poll, 4, Barrier::None)
                .unwrap();
            let total = u32::try_from(count).unwrap() + 1;
            pair.trigger(&mut self.device, total, total).unwrap();
            self.wait(marker + 4)?;
            let there = self.cpu.hbm(HBM, SPACE);
            Self::same("device memory", &there, &expected)?;
            pair.ack(total).unwrap();
        }
        Ok(())
    }

    fn arm(&mut self, round: u64) -> u64 {
        let marker = MARKERS + 8 * (round % 2);
        self.device.memory.store_word(marker, MARKER).unwrap();
        self.device.memory.store_word(marker + 4, 0).unwrap();
        marker
    }

    fn wait(&mut self, poll: u64) -> Result<(), Wrong> {
        for _ in 0..PATIENCE {
            if self.device.memory.load_word(poll).unwrap() == MARKER {
                return Ok(());
            }
            self.turn();
        }
        Err(self.stuck())
    }

    fn stuck(&self) -> Wrong {
        self.cpu.with(|world| {
            let report = world.rig.function.report(Detail::Status);
            report
                .aborted
                .first()
                .map_or_else(|| "no marker".to_owned(), |(_, cause)| cause.clone())
        })
    }

    fn same(what: &str, there: &[u8], expected: &[u8]) -> Result<(), Wrong> {
        let at = there.iter().zip(expected).position(|(a, b)| a != b);
        at.map_or(Ok(()), |at| {
            let count = there.iter().zip(expected).filter(|(a, b)| a != b).count();
            Err(format!(
                "the marker is there and {count} of {} bytes of {what} are not, the first at {at}",
                expected.len()
            ))
        })
    }
}

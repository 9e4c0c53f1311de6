//! The device's account of itself.
use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, Operation, RxDescriptor, TxDescriptor};
use neuron_protocol::registers::queue::Pointer;
use neuron_protocol::registers::{Direction, RegisterName, engine, queue};

use super::NeuronFunction;
use crate::memory::{Access, Backing, Memory, Target};
use crate::observe::budget::Budget;
use crate::observe::report::{
    Account, Counters, DescriptorReport, Detail, DeviceReport, Doorbell, LIVE_EVENTS, MapReport,
    QueueReport, RegisterReport, RingReport, UnmodelledReport, Wait, WireReport,
};
use crate::policy::Adversary;
use crate::udma::{Engine, Pair, Ring};

/// Descriptors shown on each side of head and tail.
const AROUND: u32 = 4;

impl Account for NeuronFunction {
    fn report(&self, detail: Detail) -> DeviceReport {
        let engines = || (0u8..).zip(self.udma.engines());
        let mut queues: Vec<_> = engines()
            .flat_map(|(number, engine)| {
                let used = |(_, pair): &(u8, &Pair)| {
                    pair.m2s.length() + pair.s2m.length() > 0 || pair.last_doorbell.is_some()
                };
                (0u8..)
                    .zip(engine.pairs())
                    .filter(used)
                    .map(move |(queue, pair)| (number, engine, queue, pair))
            })
            .collect();
        queues.sort_by_key(|(.., pair)| std::cmp::Reverse(pair.last_doorbell.map(|(at, ..)| at)));
        let mut unmodelled: Vec<_> = self
            .file
            .unknown()
            .map(|(offset, touches)| UnmodelledReport {
                name: self.name(offset),
                offset,
                reads: touches.reads,
                writes: touches.writes,
            })
            .collect();
        let more = self.file.unlisted();
        if more.reads + more.writes > 0 {
            let name = "others, not listed one by one".to_owned();
            unmodelled.push(UnmodelledReport {
                name,
                offset: 0,
                reads: more.reads,
                writes: more.writes,
            });
        }
        let msix = self
            .msix
            .as_ref()
            .map_or_else(Default::default, |msix| msix.counters);
        unmodelled.sort_by_key(|entry| std::cmp::Reverse(entry.reads + entry.writes));
        DeviceReport {
            product: self.config.product.name().to_owned(),
            platform: self.config.platform.name().to_owned(),
            routing_id: self.config.routing_id,
            serial: self.config.serial,
            connected: false,
            wire: WireReport::default(),
            private_memory: self.privacy == super::privacy::Privacy::Private,
            bus_master: self.pci.bus_master(),
            hbm_resident: self.memory.hbm.resident(),
            counters: Counters {
                doorbells: self.totals.doorbells,
                descriptors: self.totals.descriptors,
                batches: self.totals.markers,
                bytes: self.totals.bytes,
                errors: self.totals.aborts,
                interrupts: self.totals.interrupts,
                interrupts_sent: msix.sent,
                interrupts_lost: msix.lost,
                resets: self.counters.resets,
                slices: self.counters.slices,
                register_reads: self.counters.register_reads,
                register_writes: self.counters.register_writes,
                notifications: self.notifications.posted,
                notifications_lost: self.notifications.failed,
            },
            aborted: engines()
                .filter_map(|(number, engine)| {
                    engine
                        .fault()
                        .map(|fault| (u16::from(number), fault.to_string()))
                })
                .collect(),
            queues: queues
                .into_iter()
                .map(|(number, engine, queue, pair)| {
                    self.queue_report(number, engine, queue, pair, detail)
                })
                .collect(),
            unmodelled,
            adversary: self.policies.adversary().map(Adversary::summary),
            budget: self.budget.as_ref().map(Budget::report),
            maps: self.map_reports(),
            registers: if detail == Detail::Dump {
                self.register_reports()
            } else {
                Vec::new()
            },
        }
    }
}

impl NeuronFunction {
    fn name(&self, offset: u64) -> String {
        RegisterName {
            generation: self.generation,
            offset,
        }
        .to_string()
    }

    fn queue_report(
        &self,
        number: u8,
        engine: &Engine,
        queue: u8,
        pair: &Pair,
        detail: Detail,
    ) -> QueueReport {
        let dump = detail == Detail::Dump;
        QueueReport {
            engine: u16::from(number),
            queue,
            wait: self.wait(engine, pair),
            last_doorbell: pair.last_doorbell.map(|(at, direction, count)| Doorbell {
                direction,
                count,
                age_us: u64::try_from(self.now.saturating_sub(at).as_micros()).ok(),
            }),
            m2s: ring_report(&pair.m2s),
            s2m: ring_report(&pair.s2m),
            m2s_descriptors: if dump {
                self.descriptors(Direction::M2s, &pair.m2s)
            } else {
                Vec::new()
            },
            s2m_descriptors: if dump {
                self.descriptors(Direction::S2m, &pair.s2m)
            } else {
                Vec::new()
            },
            events: {
                let all = pair.recorder.iter();
                let skipped = match detail {
                    Detail::Status => usize::MAX,
                    Detail::Live => pair.recorder.len().saturating_sub(LIVE_EVENTS),
                    Detail::Dump => 0,
                };
                all.skip(skipped)
                    .map(|(at, kind)| format!("{:>12.6} {kind}", at.as_secs_f64()))
                    .collect()
            },
        }
    }

    /// What a queue waits for.
    fn wait(&self, engine: &Engine, pair: &Pair) -> Wait {
        if let Some(fault) = engine.fault() {
            return Wait::Recovery {
                cause: fault.to_string(),
            };
        }
        let idle = pair.m2s.outstanding == 0 && pair.s2m.outstanding == 0;
        if idle && !pair.in_packet() && !pair.is_draining() {
            return Wait::Nothing;
        }
        if !self.pci.bus_master() {
            return Wait::BusMaster;
        }
        for direction in Direction::BOTH {
            let ring = pair.ring(direction);
            if ring.outstanding > 0 && ring.length() == 0 {
                return Wait::RingSetup { direction };
            }
            if !ring.cfg.enabled() {
                return Wait::QueueEnable { direction };
            }
        }
        if pair.awaits() {
            let (iova, len) = pair.awaited().unwrap_or_default();
            return Wait::DmaReply { iova, len };
        }
        if let Some(at) = pair.wakes_at {
            let left = at.saturating_sub(self.now).as_micros();
            return Wait::Time {
                left_us: u64::try_from(left).unwrap_or(u64::MAX),
                why:
                    "the engine is at work for it (see --timing), or a fault or adversary holds it"
                        .to_owned(),
            };
        }
        if pair.queued {
            return Wait::Turn;
        }
        match (pair.m2s.outstanding, pair.s2m.outstanding) {
            (0, _) if pair.in_packet() => Wait::LastDescriptor,
            (0, _) => Wait::M2sDoorbell,
            (_, 0) => Wait::S2mDoorbell,
            _ => Wait::Turn,
        }
    }

    /// The descriptors near head and tail, decoded.
    fn descriptors(&self, direction: Direction, ring: &Ring) -> Vec<DescriptorReport> {
        let length = ring.length();
        if length == 0 {
            return Vec::new();
        }
        let around = |at: u32| {
            let first = u64::from(at) + u64::from(length) - u64::from(AROUND.min(length));
            (0..2 * u64::from(AROUND))
                .map(move |n| u32::try_from((first + n) % u64::from(length)).unwrap_or(0))
        };
        let mut indices: Vec<u32> = around(ring.current.index)
            .chain(around(ring.tail.index))
            .collect();
        indices.sort_unstable();
        indices.dedup();
        indices
            .into_iter()
            .map(|index| self.descriptor(direction, ring, index))
            .collect()
    }

    fn descriptor(&self, direction: Direction, ring: &Ring, index: u32) -> DescriptorReport {
        let at = match (index == ring.current.index, index == ring.tail.index) {
            (true, true) => "both",
            (true, false) => "head",
            (false, true) => "tail",
            (false, false) => "neither",
        };
        let mut report = DescriptorReport {
            index,
            at: at.into(),
            raw: Vec::new(),
            text: String::new(),
            target: String::new(),
        };
        let bytes = match self
            .memory
            .resolve(ring.address_of(index), DESCRIPTOR_SIZE, Access::Read)
        {
            Ok(Target::Memory(slice)) if slice.len() == DESCRIPTOR_SIZE => {
                let mut bytes = [0; DESCRIPTOR_SIZE];
                if let Err(lost) = Memory::peek(&slice, &mut bytes) {
                    report.text = lost.to_string();
                    return report;
                }
                bytes
            }
            Ok(_) => {
                "not in shared memory".clone_into(&mut report.text);
                return report;
            }
            Err(unmapped) => {
                report.text = unmapped.to_string();
                return report;
            }
        };
        report.raw = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        if bytes == [0; DESCRIPTOR_SIZE] {
            "empty".clone_into(&mut report.text);
            return report;
        }
        let (len_ctrl, address, access, operation) = match direction {
            Direction::M2s => {
                let tx: TxDescriptor = zerocopy::transmute!(bytes);
                (tx.len_ctrl(), tx.source(), Access::Read, tx.operation())
            }
            Direction::S2m => {
                let rx: RxDescriptor = zerocopy::transmute!(bytes);
                (
                    rx.len_ctrl(),
                    rx.destination(),
                    Access::Write,
                    rx.operation(),
                )
            }
        };
        let operation = match operation {
            Operation::Copy => String::new(),
            Operation::Unsupported(name) => format!(", {name}: not modelled"),
        };
        let flags = [
            (len_ctrl.first(), " FIRST"),
            (len_ctrl.last(), " LAST"),
            (len_ctrl.meta(), " META"),
            (len_ctrl.interrupt(), " INT_EN"),
            (len_ctrl.strong_order(), " SOW"),
            (len_ctrl.dmb(), " DMB"),
            (len_ctrl.concat(), " CONCAT"),
        ];
        let flags: String = flags
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, name)| *name)
            .collect();
        report.text = format!(
            "{} bytes, ring id {}{flags}{operation}",
            len_ctrl.byte_length(),
            len_ctrl.ring_id()
        );
        report.target = self.target(address, access);
        report
    }

    /// Where an address leads, in words.
    fn target(&self, address: u64, access: Access) -> String {
        if let Some(guest) = self.generation.host_address(address) {
            return match self.memory.resolve_guest(guest, 1, access) {
                Ok(_) => format!("guest {guest:#x}"),
                Err(unmapped) => unmapped.to_string(),
            };
        }
        match self.memory.resolve(address, 1, access) {
            Ok(Target::Register { offset, .. }) => self.name(offset),
            Ok(_) => match self.generation.soc_to_bar(address) {
                Some((offset, _)) => self.name(offset),
                None => format!("HBM {address:#x}"),
            },
            Err(unmapped) => unmapped.to_string(),
        }
    }

    fn map_reports(&self) -> Vec<MapReport> {
        let mark = |set, letter| if set { letter } else { '-' };
        let entry = |(iova, mapping): (u64, &crate::memory::Mapping)| MapReport {
            iova,
            size: mapping.size,
            access: [
                mark(mapping.protection.read, 'r'),
                mark(mapping.protection.write, 'w'),
            ]
            .iter()
            .collect(),
            backing: match mapping.backing {
                Backing::Shared(_) => "shared",
                Backing::Message => "message",
                Backing::OwnHbm { .. } => "hbm",
                Backing::Hole => "hole",
            }
            .to_owned(),
        };
        self.memory.guest.iter().map(entry).collect()
    }

    /// Registers that hold something: those of used queues, then the window of firmware, then the plain ones.
    fn register_reports(&self) -> Vec<RegisterReport> {
        let mut found = Vec::new();
        for (number, unit) in (0u8..).zip(self.udma.engines()) {
            let Some(base) = self
                .generation
                .block_base(neuron_protocol::generation::Block::Udma, number)
            else {
                continue;
            };
            for (queue, pair) in (0u8..)
                .zip(unit.pairs())
                .filter(|(_, pair)| pair.m2s.length() + pair.s2m.length() > 0)
            {
                for direction in Direction::BOTH {
                    for register in (queue::CFG..=queue::CRHP).step_by(4) {
                        let value = pair.ring(direction).read(register);
                        let offset = base + engine::queue_register(direction, queue, register);
                        found.extend(value.map(|value| (u64::from(offset), value)));
                    }
                }
            }
        }
        let window = u64::from(self.generation.misc_ram);
        found.extend(
            self.misc_ram
                .values()
                .map(|(offset, value)| (window + u64::from(offset), value)),
        );
        let mut plain: Vec<_> = self.file.values().collect();
        plain.sort_unstable();
        found.extend(plain);
        let report = |(offset, value)| RegisterReport {
            name: self.name(offset),
            offset,
            value,
        };
        found.into_iter().map(report).collect()
    }
}

fn ring_report(ring: &Ring) -> RingReport {
    let Pointer {
        index: head,
        ring_id,
    } = ring.head;
    RingReport {
        base: ring.base(),
        length: ring.length(),
        head,
        head_ring_id: ring_id.bits(),
        tail: ring.tail.index,
        tail_ring_id: ring.tail.ring_id.bits(),
        outstanding: ring.outstanding,
        doorbells: ring.doorbells,
        done: ring.done,
    }
}

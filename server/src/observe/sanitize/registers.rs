//! Rules about registers, and what their values tell about queues.
use std::time::Duration;

use neuron_protocol::generation::Block;
use neuron_protocol::registers::engine::{self, ChangeState, EngineLocation, unit};
use neuron_protocol::registers::queue::{self, Cfg, INDEX_MASK, RING_BASE_LOW_MASK};
use neuron_protocol::registers::{Direction, RegisterName};

use super::queue::Setup;
use super::{Place, Rule, Sanitizer};

/// Reads of the same value in a row, within [`SPIN_TIME`], that are a spin. A driver that sleeps between its looks stays
/// far below: its fastest periodic reader looks every 50 ms (contract §9), a reset is awaited every 100 ms (contract §7).
const SPIN_READS: u32 = 1000;
/// See [`SPIN_READS`].
const SPIN_TIME: Duration = Duration::from_secs(1);

/// Reads in a row.
#[derive(Debug, Default)]
pub struct Spin {
    register: Option<(u64, u32)>,
    reads: u32,
    since: Duration,
}

impl Spin {
    /// One more read. True when that makes it a spin.
    fn read(&mut self, at: Duration, offset: u64, value: u32) -> bool {
        if self.register != Some((offset, value)) || at.saturating_sub(self.since) > SPIN_TIME {
            *self = Self {
                register: Some((offset, value)),
                reads: 0,
                since: at,
            };
        }
        self.reads += 1;
        self.reads >= SPIN_READS
    }
}

impl Sanitizer {
    fn name(&self, offset: u64) -> String {
        let generation = self.generation;
        RegisterName { generation, offset }.to_string()
    }

    /// A register was accessed.
    pub(super) fn register(&mut self, offset: u64, value: u32, write: bool, known: bool) {
        if !known {
            let place = Self::device_place(vec![("register", offset)]);
            self.find(Rule::UnmodelledRegister, place, offset, || {
                format!(
                    "{} of {} ({value:#x}), which nothing known to us has a meaning for",
                    if write { "write" } else { "read" },
                    self.name(offset)
                )
            });
        }
        if !write {
            if self.spin.read(self.at, offset, value) && self.active.is_empty() {
                self.spin = Spin::default();
                let place = Self::device_place(vec![("register", offset)]);
                self.find(Rule::SpinRegister, place, offset, || {
                    format!(
                        "{} was read {SPIN_READS} times in a row as {value:#x} with no work pending that could change it",
                        self.name(offset)
                    )
                });
            }
            return;
        }
        self.spin = Spin::default();
        let Some(at) = self.generation.decode(offset) else {
            return;
        };
        if at.block != Block::Udma {
            return;
        }
        match engine::locate(at.offset) {
            Some(EngineLocation::Queue {
                direction,
                queue,
                offset,
            }) => self.queue_register(at.index, queue, direction, offset, value),
            Some(EngineLocation::Unit { offset, .. }) if offset == unit::CHANGE_STATE => {
                let change = ChangeState::from_bits(value);
                if let Some(disabled) = self.disabled.get_mut(usize::from(at.index)) {
                    if change.disable() {
                        *disabled = true;
                    } else if change.normal() {
                        *disabled = false;
                    }
                }
            }
            _ => {}
        }
    }

    /// A queue's register is about to be written.
    fn queue_register(
        &mut self,
        engine: u8,
        number: u8,
        direction: Direction,
        offset: u32,
        value: u32,
    ) {
        let place = |addresses| Place {
            queue: Some((engine, number)),
            direction: Some(direction),
            index: None,
            addresses,
        };
        match offset {
            queue::CRBP_LOW | queue::CRBP_HIGH if value != 0 => {
                let half = u64::from(value);
                let base = if offset == queue::CRBP_LOW {
                    half
                } else {
                    half << 32
                };
                self.find(Rule::CompletionRing, place(vec![("completion ring", base)]), 0, || {
                    "a completion ring was given to the queue; nothing on this path writes or reads one".to_owned()
                });
                return;
            }
            queue::CFG | queue::DRBP_LOW | queue::DRBP_HIGH | queue::DRL => {}
            _ => return,
        }
        let Some(queue) = self.queue(engine, number) else {
            return;
        };
        let ring = queue.ring_mut(direction);
        let (base, length) = (ring.base, ring.length);
        match offset {
            queue::CFG => {
                ring.cfg = Cfg::from_bits(value);
                return;
            }
            queue::DRBP_LOW => {
                ring.base = base & !0xffff_ffff | u64::from(value & RING_BASE_LOW_MASK);
            }
            queue::DRBP_HIGH => ring.base = base & 0xffff_ffff | u64::from(value) << 32,
            _ => {
                ring.length = value & INDEX_MASK;
                ring.setup = if ring.length == 0 {
                    Setup::Never
                } else {
                    Setup::Programmed
                };
            }
        }
        let changed = (ring.base, ring.length) != (base, length);
        let pending = ring.pending();
        if changed && pending > 0 && !ring.excused {
            self.find(
                Rule::RingResetPending,
                place(vec![("ring", base)]),
                0,
                || {
                    format!(
                        "base or length changed with {pending} descriptors rung for and not done"
                    )
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_readers_do_not_spin() {
        let mut spin = Spin::default();
        for n in 0..10_000 {
            assert!(!spin.read(Duration::from_millis(5 * n), 8, 0));
        }
        let mut spin = Spin::default();
        let spins = (0..1000).map(|n| spin.read(Duration::from_micros(10 * n), 8, 0));
        assert_eq!(spins.filter(|spins| *spins).count(), 1);
        assert!(!spin.read(Duration::from_millis(10), 8, 1));
    }
}

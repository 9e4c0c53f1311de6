//! What an engine's registers allow its queues.
use std::time::Duration;

use neuron_protocol::registers::iofic;

use super::Fault;

/// The engine's settings that a queue obeys.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most descriptors in a packet; 0 is no limit.
    pub max_descriptors: u8,
    /// Most bytes in a packet; 0 is no limit.
    pub max_packet: u32,
    /// Causes that stop the engine, m2s and s2m: the complement of the abort masks (udma §9).
    pub aborting: [u32; 2],
    /// Model time at which the engine has done what it took on so far.
    pub free_at: Duration,
}

impl Limits {
    /// Whether a fault stops the engine. One without a cause bit, or without which there is no way on, always does.
    pub fn stops(&self, fault: &Fault) -> bool {
        match fault.cause() {
            Some((iofic::Group::M2S, bit)) if fault.kind.can_go_on() => {
                self.aborting[0] & 1 << bit != 0
            }
            Some((iofic::Group::S2M, bit)) if fault.kind.can_go_on() => {
                self.aborting[1] & 1 << bit != 0
            }
            _ => true,
        }
    }
}

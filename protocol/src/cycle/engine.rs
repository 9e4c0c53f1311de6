//! Readying an engine that no driver has touched.

use super::{CycleError, Device, ErrorOf, HostMemory, Registers};
use crate::generation::{Block, QUEUES_PER_ENGINE};
use crate::registers::{Direction, engine, queue};

/// First `cfg` of every queue: both enables, without the reset value (contract §5.3 step 2).
const QUEUE_ENABLED: queue::Cfg = queue::Cfg::new().with_prefetch(true).with_schedule(true);

/// `cfg_len`: packets up to the field's limit, length 0 is 64 KiB (contract §5.3 step 3).
const PACKET_LIMIT: u32 = 0x010f_ffff;

/// GEN "spare" register whose bit 0, cleared, makes the completion head move although there is no
/// completion ring (contract §5.3 step 4).
const HEAD_REPORTING: u32 = engine::GEN + 0x3460;

/// `desc_pref_cfg_2`: 65 descriptors per packet, round robin (contract §5.3 step 6).
const DESCRIPTORS_PER_PACKET: u32 = 0x0001_0041;

/// `desc_pref_cfg_3` of both units: prefetch bursts and their threshold (contract §5.3 step 6).
const PREFETCH: (u32, u32) = (0x308, 0x4181);

/// Enables all queues of an engine and sets what the cycle depends on: the meaning of length 0,
/// packet sizes, and a completion head that can be watched.
///
/// A part of what the driver writes, in its order and with its values. What is left out is buffer
/// and timing tuning and the interrupt fabric, which the cycle does not use.
///
/// # Errors
/// [`CycleError::NoSuchQueue`], [`CycleError::Register`].
pub fn init_engine<R: Registers, M: HostMemory, D>(
    device: &mut Device<R, M, D>,
    engine: u8,
) -> Result<(), ErrorOf<R, M>> {
    let base =
        device
            .generation
            .block_base(Block::Udma, engine)
            .ok_or(CycleError::NoSuchQueue {
                generation: device.generation.name,
                engine,
                queue: 0,
            })?;
    for queue in 0..QUEUES_PER_ENGINE {
        for direction in Direction::BOTH {
            let cfg = engine::queue_register(direction, queue, queue::CFG);
            device.write_register(base + cfg, QUEUE_ENABLED.into_bits())?;
        }
    }
    device.write_register(base + engine::M2S_CFG_LEN, PACKET_LIMIT)?;
    let reporting = device.read_register(base + HEAD_REPORTING)?;
    device.write_register(base + HEAD_REPORTING, reporting & !1)?;
    device.write_register(base + engine::M2S_DESC_PREF_CFG_2, DESCRIPTORS_PER_PACKET)?;
    device.write_register(base + PREFETCH.0, PREFETCH.1)?;
    device.write_register(base + engine::S2M + PREFETCH.0, PREFETCH.1)
}

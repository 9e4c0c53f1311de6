//! Notification queue registers of a notification block (contract §9, facts §5.6).

/// Offset of queue 0 in the block.
pub const QUEUES: u32 = 0x100;
/// Bytes from one queue to the next.
pub const QUEUE_STRIDE: u32 = 0x28;
/// Queues in a block.
pub const QUEUE_COUNT: u32 = 16;

/// Ring address, low word.
pub const BASE_LOW: u32 = 0x0;
/// Ring address, high word.
pub const BASE_HIGH: u32 = 0x4;
/// Ring size in bytes; written last; 0 stops the queue.
pub const SIZE: u32 = 0x8;
/// Where the device writes next.
pub const HEAD: u32 = 0xc;

/// Splits an offset of the block into queue and register.
#[must_use]
pub const fn locate(offset: u32) -> Option<(u32, u32)> {
    let Some(rest) = offset.checked_sub(QUEUES) else {
        return None;
    };
    if rest / QUEUE_STRIDE < QUEUE_COUNT {
        Some((rest / QUEUE_STRIDE, rest % QUEUE_STRIDE))
    } else {
        None
    }
}

/// Name of a register of a queue, if it is known.
#[must_use]
pub const fn name(register: u32) -> Option<&'static str> {
    Some(match register {
        BASE_LOW => "base_low",
        BASE_HIGH => "base_high",
        SIZE => "size",
        HEAD => "head",
        _ => return None,
    })
}

//! Semaphores, events, notification queues (contract §6.1, §9, §11).

use super::abi::{ioctls, structs};

structs! {
    /// Argument of the semaphore ioctls.
    Semaphore = "semaphore" {
        /// In: core.
        nc_id: u32,
        /// In: semaphore, 0 to 255.
        semaphore_index: u32,
        /// In: value to write, or amount; out for [`SEMAPHORE_READ`].
        value: u32,
    }
    /// Argument of the event ioctls.
    Event = "event" {
        /// In: core.
        nc_id: u32,
        /// In: event, 0 to 255.
        event_index: u32,
        /// In: value; out for [`EVENT_GET`].
        value: u32,
    }
    /// Argument of [`NOTIFICATIONS_INIT_V2`].
    NotificationsInitV2 = "notifications_init_v2" {
        /// In: core or `TopSP`.
        nq_dev_id: u32,
        /// In: 0 core, 1 `TopSP`.
        nq_dev_type: u32,
        /// In: [`notification_type`].
        nq_type: u32,
        /// In: engine in the core.
        engine_index: u32,
        /// In: bytes, a power of two.
        size: u32,
        /// In: non-zero for guest RAM.
        on_host_memory: u32,
        /// In: HBM channel.
        dram_channel: u32,
        /// In: region in the channel, 0.
        dram_region: u32,
        /// Out: mmap offset.
        mmap_offset: u64,
        /// Out: handle.
        mem_handle: u64,
    }
}

ioctls! {
    /// Adds to a semaphore. `-E2BIG` for a bad core, `-EINVAL` for a bad index.
    SEMAPHORE_INCREMENT = 0x8008_4e29, Read, 41, p8, In, Semaphore;
    /// Subtracts from a semaphore.
    SEMAPHORE_DECREMENT = 0x8008_4e2a, Read, 42, p8, In, Semaphore;
    /// Reads a semaphore.
    SEMAPHORE_READ = 0xc008_4e2b, ReadWrite, 43, p8, InOut, Semaphore;
    /// Sets a semaphore.
    SEMAPHORE_WRITE = 0x8008_4e2c, Read, 44, p8, In, Semaphore;
    /// Sets an event to 0 or 1.
    EVENT_SET = 0x8008_4e2d, Read, 45, p8, In, Event;
    /// Reads an event.
    EVENT_GET = 0xc008_4e2e, ReadWrite, 46, p8, InOut, Event;
    /// Creates a notification queue. Needs an attached process (`-EACCES`).
    NOTIFICATIONS_INIT_V2 = 0x8008_4e35, Read, 53, p8, InOut, NotificationsInitV2;
}

/// Kinds of notification queue ([`NotificationsInitV2::nq_type`]; facts §5.6).
pub mod notification_type {
    /// Implicit notifications of execution.
    pub const TRACE: u32 = 0;
    /// Explicit ones.
    pub const NOTIFY: u32 = 1;
    /// Events.
    pub const EVENT: u32 = 2;
    /// Errors.
    pub const ERROR: u32 = 3;
    /// DMA: uses queue 0 of each engine's own block.
    pub const TRACE_DMA: u32 = 4;
    /// Throttling (V2).
    pub const THROTTLE: u32 = 5;
}

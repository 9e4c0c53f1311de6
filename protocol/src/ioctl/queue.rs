//! Engines and user queues (contract §8.7, §11; facts §6).
//!
//! Hazards of the real driver up to 2.25.4.0 (contract §11), which crash the guest: [`DMA_QUEUE_COPY_START`] with an rx
//! count of 0 or on a queue without rx ring; [`DMA_ACK_COMPLETED`] on a ring whose size is not a power of two;
//! [`DMA_QUEUE_GET_STATE`] and [`DMA_COPY_DESCRIPTORS`] with an engine or queue out of range. Our own driver answers
//! these with `-EINVAL`.

use super::abi::{ioctls, structs};

structs! {
    /// Written by [`DMA_ENG_GET_STATE`].
    DmaEngState = "dma_eng_state" {
        /// Revision, 4; a constant of the driver.
        revision_id: u32,
        /// Queues per direction, 16; a constant of the driver.
        max_queues: u32,
        /// Queues in use, 16.
        num_queues: u32,
        /// Transmit state: 0 disabled, 1 idle, 2 normal, 3 abort, 4 reset.
        tx_state: u32,
        /// Receive state, same values.
        rx_state: u32,
    }
    /// Written by [`DMA_QUEUE_GET_STATE`].
    DmaQueueState = "dma_queue_state" {
        /// Status register, raw.
        hw_status: u32,
        /// Software status.
        sw_status: u32,
        /// Ring base.
        base_addr: u64,
        /// Ring length, descriptors.
        length: u32,
        /// Head, descriptors.
        head_pointer: u32,
        /// Tail, descriptors.
        tail_pointer: u32,
        /// Always zero; padding.
        pad_0: u32,
        /// Completion ring base, 0.
        completion_base_addr: u64,
        /// Completion head, descriptors.
        completion_head: u32,
        /// Always zero; padding.
        pad_1: u32,
    }
    /// Argument of [`DMA_ENG_INIT`].
    DmaEngInit = "dma_eng_init" {
        /// In: engine.
        eng_id: u32,
    }
    /// Argument of [`DMA_ENG_SET_STATE`].
    DmaEngSetState = "dma_eng_set_state" {
        /// In: engine.
        eng_id: u32,
        /// In: 0 disable, 2 normal, 3 abort (the driver's numbers, not the register's).
        state: u32,
    }
    /// Argument of [`DMA_ENG_GET_STATE`].
    DmaEngGetState = "dma_eng_get_state" {
        /// In: engine.
        eng_id: u32,
        /// Always zero; padding.
        pad_: u32,
        /// Out: user pointer to a [`DmaEngState`].
        state: u64,
    }
    /// Argument of [`DMA_QUEUE_INIT`].
    DmaQueueInit = "dma_queue_init" {
        /// In: engine.
        eng_id: u32,
        /// In: queue, 0 to 15.
        qid: u32,
        /// In: transmit ring length, descriptors: a multiple of 16, 32 to 2^24 - 16 (contract §5.4).
        tx_desc_count: u32,
        /// In: receive ring length, descriptors.
        rx_desc_count: u32,
        /// In: chunk of the transmit ring, 256-byte aligned; 0 for none.
        tx_handle: u64,
        /// In: chunk of the receive ring.
        rx_handle: u64,
        /// In: completion ring; must be 0.
        rxc_handle: u64,
        /// In: 0.
        axi_port: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`DMA_QUEUE_INIT_BATCH`]: 12 296 bytes, which the 14 size bits hold exactly as they are.
    DmaQueueInitBatch = "dma_queue_init_batch" {
        /// In: number of entries, less than 256.
        count: u32,
        /// Always zero; padding.
        pad_: u32,
        /// In: the entries.
        entries: [DmaQueueInit; 256],
    }
    /// Argument of [`DMA_QUEUE_RELEASE`].
    DmaQueueRelease = "dma_queue_release" {
        /// In: engine.
        eng_id: u32,
        /// In: queue.
        qid: u32,
    }
    /// Argument of [`DMA_QUEUE_COPY_START`].
    DmaQueueCopyStart = "dma_queue_copy_start" {
        /// In: engine.
        eng_id: u32,
        /// In: queue.
        qid: u32,
        /// In: transmit descriptors; 0 arms only the receive ring (seed §3).
        tx_desc_count: u32,
        /// In: receive descriptors; never 0.
        rx_desc_count: u32,
    }
    /// Argument of [`DMA_ACK_COMPLETED`].
    DmaAckCompleted = "dma_ack_completed" {
        /// In: engine.
        eng_id: u32,
        /// In: queue.
        qid: u32,
        /// In: descriptors.
        count: u32,
    }
    /// Argument of [`DMA_QUEUE_GET_STATE`].
    DmaQueueGetState = "dma_queue_get_state" {
        /// In: engine.
        eng_id: u32,
        /// In: queue.
        qid: u32,
        /// Out: user pointer to a [`DmaQueueState`].
        tx: u64,
        /// Out: user pointer to a [`DmaQueueState`].
        rx: u64,
    }
    /// Argument of [`DMA_COPY_DESCRIPTORS`].
    DmaCopyDescriptors = "dma_copy_descriptors" {
        /// In: chunk of the ring.
        mem_handle: u64,
        /// In: user pointer to the descriptors.
        buffer: u64,
        /// In: descriptors, 16 bytes each.
        num_descs: u32,
        /// In: bytes into the ring.
        offset: u32,
        /// In: [`queue_type`].
        queue_type: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`DMA_COPY_DESCRIPTORS64`].
    DmaCopyDescriptors64 = "dma_copy_descriptors64" {
        /// In: chunk of the ring.
        mem_handle: u64,
        /// In: user pointer to the descriptors.
        buffer: u64,
        /// In: descriptors, 16 bytes each.
        num_descs: u32,
        /// Always zero; padding.
        pad_0: u32,
        /// In: bytes into the ring.
        offset: u64,
        /// In: [`queue_type`].
        queue_type: u32,
        /// Always zero; padding.
        pad_1: u32,
    }
    /// Argument of [`DMA_DESCRIPTOR_COPYOUT`].
    DmaDescriptorCopyout = "dma_descriptor_copyout" {
        /// In: engine.
        eng_id: u32,
        /// In: queue.
        qid: u32,
        /// In: [`queue_type`].
        queue_type: u32,
        /// In: first descriptor (ignored by the real driver for rings in device memory).
        start_index: u32,
        /// In: descriptors, not 0.
        count: u32,
        /// Always zero; padding.
        pad_: u32,
        /// Out: user pointer to `count` descriptors.
        buffer: u64,
    }
    /// Argument of [`H2T_DMA_ALLOC_QUEUES`].
    H2tDmaAllocQueues = "h2t_dma_alloc_queues" {
        /// In: size of this struct, bytes.
        sz: u16,
        /// In: core.
        nc_id: u16,
        /// In: copy queues wanted.
        copy_queue_cnt: u16,
        /// In: service queues wanted.
        service_queue_cnt: u16,
        /// Out: copy queues allocated, one bit each.
        copy_queue_bmap: u32,
        /// Out: service queues allocated.
        service_queue_bmap: u32,
        /// Out: the core's default queue.
        copy_default_queue: u32,
    }
    /// Argument of [`H2T_DMA_FREE_QUEUES`].
    H2tDmaFreeQueues = "h2t_dma_free_queues" {
        /// In: size of this struct, bytes.
        sz: u16,
        /// In: core.
        nc_id: u8,
        /// Padding.
        fill0: u8,
        /// In: queues to free.
        queue_bmap: u32,
    }
    /// Where one completion ring is.
    ComplQueueInfo = "compl_queue_info" {
        /// Out: mmap offset.
        mmap_offset: u64,
        /// Out: bytes of header and entries.
        mmap_size: u64,
    }
    /// Argument of [`GET_ASYNC_H2T_DMA_COMPL_QUEUES`] (facts §6: 264 bytes).
    GetAsyncH2tDmaComplQueues = "get_async_h2t_dma_compl_queues" {
        /// In: core.
        nc_id: u32,
        /// In: queues asked for.
        qid_bitmap: u32,
        /// Out: by queue; zeros for those not asked for.
        compl_queue_info: [ComplQueueInfo; 16],
    }
    /// Start of a completion ring, followed by its entries. Public is that there are these three words and that head and
    /// tail count up freely; their order was chosen, so a program must not read a real driver's ring by it.
    H2tComplQueue = "h2t_compl_queue" {
        /// Entries, a power of two ([`COMPL_QUEUE_CAPACITY`]).
        capacity: u32,
        /// Moved by the program, after it has read an entry.
        head: u32,
        /// Moved by the driver, after it has written one.
        tail: u32,
        /// Padding.
        pad_0: u32,
    }
    /// One completion. Public are the three fields; their order was chosen.
    H2tComplEntry = "h2t_compl_entry" {
        /// The request's number.
        sequence_num: u64,
        /// 0 or a negative errno.
        compl_ret: i64,
        /// The context of the request's first batch.
        context: u64,
    }
}

/// Entries of a completion ring (facts §4.3).
pub const COMPL_QUEUE_CAPACITY: u32 = 1024;

/// Which ring of a queue.
pub mod queue_type {
    /// m2s.
    pub const TX: u32 = 0;
    /// s2m.
    pub const RX: u32 = 1;
    /// Completion; refused.
    pub const COMPLETION: u32 = 2;
}

ioctls! {
    /// Deprecated; returns 0.
    DMA_ENG_INIT = 0x8008_4e1e, Read, 30, p8, Unused, DmaEngInit;
    /// Writes `change_state` of both directions. `-EINVAL` or -1 for a bad engine or state.
    DMA_ENG_SET_STATE = 0x8008_4e1f, Read, 31, p8, In, DmaEngSetState;
    /// Reads the engine's state.
    DMA_ENG_GET_STATE = 0xc008_4e20, ReadWrite, 32, p8, InPointers, DmaEngGetState;
    /// Programs a queue; the calling process owns it until it closes. `-EINVAL` or -1 for a bad ring.
    DMA_QUEUE_INIT = 0x8008_4e21, Read, 33, p8, In, DmaQueueInit;
    /// Programs several. `-E2BIG` for 256 and more.
    DMA_QUEUE_INIT_BATCH = 0xb008_4e85, Read, 133, real, In, DmaQueueInitBatch;
    /// Returns 0 without touching the device; rings go when the process closes.
    DMA_QUEUE_RELEASE = 0x8008_4e22, Read, 34, p8, In, DmaQueueRelease;
    /// The only way to a doorbell from user space: s2m, then m2s (seed §3).
    DMA_QUEUE_COPY_START = 0x8008_4e23, Read, 35, p8, In, DmaQueueCopyStart;
    /// Advances the driver's completion counters (seed §5).
    DMA_ACK_COMPLETED = 0x8008_4e24, Read, 36, p8, In, DmaAckCompleted;
    /// Reads a queue's registers.
    DMA_QUEUE_GET_STATE = 0xc008_4e25, ReadWrite, 37, p8, InPointers, DmaQueueGetState;
    /// Copies descriptors into a ring: CPU copy to guest RAM, DMA to device memory. `-EINVAL` for a host address in
    /// them outside every host chunk of an attached process (contract §6.2).
    DMA_COPY_DESCRIPTORS = 0x8008_4e26, Read, 38, p8, In, DmaCopyDescriptors;
    /// The same with a 64-bit offset.
    DMA_COPY_DESCRIPTORS64 = 0x8028_4e26, Read, 38, real, In, DmaCopyDescriptors64;
    /// Copies descriptors out of a ring. `-EFBIG` past its end, `-EINVAL` for a queue without ring.
    DMA_DESCRIPTOR_COPYOUT = 0xc008_4e27, ReadWrite, 39, p8, InPointers, DmaDescriptorCopyout;
    /// Allocates extra queues of the core's H2T engine. Since 2.25.
    H2T_DMA_ALLOC_QUEUES = 0xc014_4e7d, ReadWrite, 125, real, InOut, H2tDmaAllocQueues;
    /// Frees them. Since 2.25.
    H2T_DMA_FREE_QUEUES = 0xc008_4e7e, ReadWrite, 126, real, In, H2tDmaFreeQueues;
    /// Where the completion rings of a core's queues can be mapped. `-EINVAL` for a bad core or a queue without one.
    /// Since 2.27.
    GET_ASYNC_H2T_DMA_COMPL_QUEUES = 0xc108_4e87, ReadWrite, 135, real, InOut, GetAsyncH2tDmaComplQueues;
}

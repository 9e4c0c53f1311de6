//! Memory chunks and copies (contract §8, §11; facts §6).
//!
//! Handles are opaque and belong to the device node; the real driver refuses an unknown one with `-EINVAL`. A range is
//! refused with `-EINVAL` when `offset + size` passes the end of its chunk. A size of 0 is *not* refused by the real
//! driver's `MEM_COPY` and means 64 KiB there (contract §8.1): never pass it.

use super::abi::{ioctls, structs};

structs! {
    /// Argument of [`MEM_ALLOC`].
    MemAlloc = "mem_alloc" {
        /// In: bytes.
        size: u64,
        /// In: non-zero for guest RAM.
        host_memory: u32,
        /// In: HBM channel.
        dram_channel: u32,
        /// In: region in the channel, 0.
        dram_region: u32,
        /// In: core; it chooses the queue that copies use (contract §5.1).
        nc_id: u32,
        /// Out: user pointer to a 64-bit handle.
        mem_handle: u64,
    }
    /// Argument of [`MEM_ALLOC_V2`].
    MemAllocV2 = "mem_alloc_v2" {
        /// In: bytes.
        size: u64,
        /// In: alignment, bytes; 0 for a page.
        align: u64,
        /// In: non-zero for guest RAM.
        host_memory: u32,
        /// In: HBM channel.
        dram_channel: u32,
        /// In: region in the channel, 0.
        dram_region: u32,
        /// In: core.
        nc_id: u32,
        /// Out: user pointer to a 64-bit handle.
        mem_handle: u64,
    }
    /// Argument of [`MEM_ALLOC_V2MT`].
    MemAllocV2Mt = "mem_alloc_v2_mem_type" {
        /// In: bytes.
        size: u64,
        /// In: alignment, bytes; 0 for a page.
        align: u64,
        /// In: non-zero for guest RAM.
        host_memory: u32,
        /// In: HBM channel.
        dram_channel: u32,
        /// In: region in the channel, 0.
        dram_region: u32,
        /// In: core.
        nc_id: u32,
        /// In: [`mem_type`].
        mem_type: u32,
        /// Always zero; padding.
        pad_: u32,
        /// Out: user pointer to a 64-bit handle.
        mem_handle: u64,
    }
    /// Argument of [`MEM_ALLOC_V2MT64`].
    MemAllocV2Mt64 = "mem_alloc_v2_mem_type64" {
        /// In: bytes.
        size: u64,
        /// In: alignment, bytes; 0 for a page.
        align: u64,
        /// In: non-zero for guest RAM.
        host_memory: u32,
        /// In: HBM channel.
        dram_channel: u32,
        /// In: region in the channel, 0.
        dram_region: u32,
        /// In: core.
        nc_id: u32,
        /// In: [`mem_type`].
        mem_type: u32,
        /// Always zero; padding.
        pad_0: u32,
        /// Out: user pointer to a 64-bit handle.
        mem_handle: u64,
        /// Only there to give the struct another size.
        pad: u32,
        /// Always zero; padding.
        pad_1: u32,
    }
    /// Argument of [`MEM_FREE`].
    MemFree = "mem_free" {
        /// In: handle.
        mem_handle: u64,
    }
    /// Argument of [`MEM_COPY`].
    MemCopy = "mem_copy" {
        /// In: source handle.
        src_mem_handle: u64,
        /// In: destination handle.
        dst_mem_handle: u64,
        /// In: bytes.
        size: u32,
        /// In: bytes into the source.
        src_offset: u32,
        /// In: bytes into the destination.
        dst_offset: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`MEM_COPY64`].
    MemCopy64 = "mem_copy64" {
        /// In: source handle.
        src_mem_handle: u64,
        /// In: destination handle.
        dst_mem_handle: u64,
        /// In: bytes.
        size: u64,
        /// In: bytes into the source.
        src_offset: u64,
        /// In: bytes into the destination.
        dst_offset: u64,
    }
    /// Argument of [`MEM_BUF_COPY`].
    MemBufCopy = "mem_buf_copy" {
        /// In: handle.
        mem_handle: u64,
        /// In or out: user pointer to the bytes.
        buffer: u64,
        /// In: bytes.
        size: u32,
        /// In: bytes into the chunk.
        offset: u32,
        /// In: non-zero copies from the buffer into the chunk.
        copy_to_mem_handle: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`MEM_BUF_COPY64`].
    MemBufCopy64 = "mem_buf_copy64" {
        /// In: handle.
        mem_handle: u64,
        /// In or out: user pointer to the bytes.
        buffer: u64,
        /// In: bytes.
        size: u64,
        /// In: bytes into the chunk.
        offset: u64,
        /// In: non-zero copies from the buffer into the chunk.
        copy_to_mem_handle: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`MEM_COPY_ASYNC`].
    MemCopyAsync = "mem_copy_async" {
        /// In: source handle.
        src_mem_handle: u64,
        /// In: destination handle.
        dst_mem_handle: u64,
        /// In: bytes.
        size: u32,
        /// In: bytes into the source.
        src_offset: u32,
        /// In: bytes into the destination.
        dst_offset: u32,
        /// Always zero; padding.
        pad_: u32,
        /// In: user address whose pages are touched ahead, or 0.
        host_prefetch_addr: u64,
        /// In: [`wait_handle`] of the copy to wait for after this one was started.
        pwait_handle: u32,
        /// Out: [`wait_handle`] of this copy.
        wait_handle: u32,
    }
    /// Argument of [`MEM_COPY_ASYNC64`].
    MemCopyAsync64 = "mem_copy_async64" {
        /// In: source handle.
        src_mem_handle: u64,
        /// In: destination handle.
        dst_mem_handle: u64,
        /// In: bytes.
        size: u64,
        /// In: bytes into the source.
        src_offset: u64,
        /// In: bytes into the destination.
        dst_offset: u64,
        /// In: user address whose pages are touched ahead, or 0.
        host_prefetch_addr: u64,
        /// In: [`wait_handle`] of the copy to wait for after this one was started.
        pwait_handle: u32,
        /// Out: [`wait_handle`] of this copy.
        wait_handle: u32,
    }
    /// Argument of [`MEM_COPY_ASYNC_WAIT`].
    MemCopyAsyncWait = "mem_copy_async_wait" {
        /// In: source handle of the copy.
        src_mem_handle: u64,
        /// In: destination handle of the copy.
        dst_mem_handle: u64,
        /// In: its [`wait_handle`].
        pwait_handle: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`MEMSET`].
    MemSet = "memset" {
        /// In: handle.
        mem_handle: u64,
        /// In: bytes into the chunk.
        offset: u64,
        /// In: the value; only its low byte is used.
        value: u32,
        /// In: bytes.
        size: u32,
    }
    /// Argument of [`MEMSET64`].
    MemSet64 = "memset64" {
        /// In: handle.
        mem_handle: u64,
        /// In: bytes into the chunk.
        offset: u64,
        /// In: the value; only its low byte is used.
        value: u32,
        /// Always zero; padding.
        pad_: u32,
        /// In: bytes.
        size: u64,
    }
    /// Argument of [`MEM_BUF_ZEROCOPY64`].
    MemBufZerocopy64 = "mem_buf_copy64zc" {
        /// In: handle.
        mem_handle: u64,
        /// In or out: user pointer to the bytes.
        buffer: u64,
        /// In: bytes.
        size: u64,
        /// In: bytes into the chunk.
        offset: u64,
        /// In: non-zero copies from the buffer into the chunk.
        is_copy_to_device: u32,
        /// In: up to this many bytes go by CPU stores through BAR4 (at most two pages, not on revision 255).
        bar4_wr_threshold: u32,
        /// In: queue of the core's H2T engine, -1 for its own.
        h2t_qid: i32,
        /// Only there to give the struct another size.
        dummy: u32,
    }
    /// One piece of a [`MemcpyBatch`].
    TensorBatchOp = "tensor_batch_op" {
        /// In: bytes into the batch's memory.
        offset: u64,
        /// In: bytes.
        size: u64,
        /// In or out: user pointer to the bytes.
        buffer: u64,
    }
    /// The pieces that one chunk takes or gives.
    MemcpyBatch = "memcpy_batch" {
        /// In: handle.
        mem_handle: u64,
        /// In: bytes into the chunk, added to each piece's offset.
        mem_handle_offset: u64,
        /// In: user pointer to [`TensorBatchOp`]s.
        ops_ptr: u64,
        /// In: how many.
        num_ops: u32,
        /// In: as in [`MemBufZerocopy64`].
        bar4_wr_threshold: u16,
        /// In: 0.
        flags: u16,
        /// In: comes back in the completion of an asynchronous request.
        context: u64,
    }
    /// Argument of [`MEM_BUF_ZEROCOPY64_BATCHES`].
    MemBufZerocopy64Batches = "mem_buf_copy64zc_batches" {
        /// In: names an asynchronous request in its completion (from 2.27; ignored before).
        sequence_num: u64,
        /// In: user pointer to [`MemcpyBatch`]es.
        batches_ptr: u64,
        /// In: how many.
        num_batches: u32,
        /// In: non-zero copies to the device.
        is_copy_to_device: u16,
        /// Always zero; padding.
        pad_0: u16,
        /// In: queue of the core's H2T engine, -1 for its own.
        h2t_qid: i32,
        /// In: 0, or what a driver defines.
        flags: u16,
        /// Always zero; padding.
        pad_1: u16,
    }
    /// Argument of [`MEM_GET_PA`].
    MemGetPa = "mem_get_pa" {
        /// In: handle.
        mem_handle: u64,
        /// Out: user pointer to a 64-bit address, without host bit.
        pa: u64,
    }
    /// Argument of [`MEM_GET_INFO`].
    MemGetInfo = "mem_get_info" {
        /// In: handle.
        mem_handle: u64,
        /// Out: user pointer to a 64-bit mmap offset, or 0.
        mmap_offset: u64,
        /// Out: user pointer to a 64-bit address, without host bit.
        pa: u64,
    }
    /// Argument of [`MEM_GET_EXTENDED_INFO`].
    MemGetExtendedInfo = "mem_get_extended_info" {
        /// In: handle. The real driver overwrites it with a kernel address: do not use the struct's handle again.
        mem_handle: u64,
        /// In: 1.
        version: u32,
        /// Out: 1 for guest RAM.
        host_memory: u32,
        /// Out: mmap offset.
        mmap_offset: u64,
        /// Out: address as a descriptor takes it, with the host bit for guest RAM.
        pa: u64,
        /// Out: process that allocated it.
        pid: u64,
        /// Out: size of the chunk, bytes.
        size: u64,
    }
    /// Argument of [`PROGRAM_ENGINE`].
    ProgramEngine = "program_engine" {
        /// In: device address.
        dst: u64,
        /// In: user pointer to the bytes; the real driver reads at `buffer + offset`.
        buffer: u64,
        /// In: bytes.
        size: u32,
        /// In: added to both.
        offset: u32,
    }
    /// Argument of [`PROGRAM_ENGINE_NC`].
    ProgramEngineNc = "program_engine_nc" {
        /// In: core whose queue is used.
        nc_id: u32,
        /// Always zero; padding.
        pad_: u32,
        /// In: device address.
        dst: u64,
        /// In: user pointer to the bytes; the real driver reads at `buffer + offset`.
        buffer: u64,
        /// In: bytes.
        size: u32,
        /// In: added to both.
        offset: u32,
    }
    /// Argument of [`PROGRAM_ENGINE_NC64`].
    ProgramEngineNc64 = "program_engine_nc64" {
        /// In: core whose queue is used.
        nc_id: u32,
        /// Always zero; padding.
        pad_: u32,
        /// In: device address.
        dst: u64,
        /// In: user pointer to the bytes; the real driver reads at `buffer + offset`.
        buffer: u64,
        /// In: bytes.
        size: u64,
        /// In: added to both.
        offset: u64,
    }
}

/// Allocation categories ([`MemAllocV2Mt::mem_type`]); they only feed counters in the real driver.
pub mod mem_type {
    /// Host memory of an unspecified kind.
    pub const UNKNOWN_HOST: u32 = 0;
    /// Host tensors.
    pub const TENSORS_HOST: u32 = 2;
    /// Device memory of an unspecified kind (contract §11: "device tensor 7").
    pub const UNKNOWN_DEVICE: u32 = 7;
    /// Device tensors.
    pub const TENSORS_DEVICE: u32 = 9;
    /// Rings in guest RAM.
    pub const DMA_RINGS_HOST: u32 = 17;
    /// Rings in device memory.
    pub const DMA_RINGS_DEVICE: u32 = 18;
}

/// The three contexts of an H2T ring (seed §6). As a `u32` argument, no context is `u32::MAX`.
pub mod wait_handle {
    /// No earlier copy: start one.
    pub const NONE: u32 = u32::MAX;
    /// Synchronous copies.
    pub const SYNC: u32 = 0;
    /// First of two asynchronous contexts.
    pub const ASYNC1: u32 = 1;
    /// Second.
    pub const ASYNC2: u32 = 2;
}

ioctls! {
    /// Allocates. `-ENOMEM` when full, `-EINVAL` for a bad channel or core; needs an attached process (`-EACCES`).
    MEM_ALLOC = 0x8008_4e15, Read, 21, p8, InPointers, MemAlloc;
    /// Like [`MEM_ALLOC`] with an alignment.
    MEM_ALLOC_V2 = 0x8008_4e66, Read, 102, p8, InPointers, MemAllocV2;
    /// Like [`MEM_ALLOC_V2`] with a category.
    MEM_ALLOC_V2MT = 0x8030_4e66, Read, 102, real, InPointers, MemAllocV2Mt;
    /// The same again; its presence tells that copies of 4 GiB and more work.
    MEM_ALLOC_V2MT64 = 0x8038_4e66, Read, 102, real, InPointers, MemAllocV2Mt64;
    /// Frees. `-EINVAL` for an unknown handle.
    MEM_FREE = 0x8008_4e16, Read, 22, p8, In, MemFree;
    /// Copies between chunks, full batches (contract §8.4).
    MEM_COPY = 0x8008_4e17, Read, 23, p8, In, MemCopy;
    /// The same with 64-bit fields.
    MEM_COPY64 = 0x8028_4e17, Read, 23, real, In, MemCopy64;
    /// Copies between a user buffer and a chunk; to device memory 64 KiB a batch (contract §8.4).
    MEM_BUF_COPY = 0xc008_4e18, ReadWrite, 24, p8, InPointers, MemBufCopy;
    /// The same with 64-bit fields (the real driver's loop counts in 32 bits up to 2.25.4.0).
    MEM_BUF_COPY64 = 0xc028_4e18, ReadWrite, 24, real, InPointers, MemBufCopy64;
    /// Deprecated address query.
    MEM_GET_PA = 0x8008_4e19, Read, 25, p8, InPointers, MemGetPa;
    /// Deprecated address query.
    MEM_GET_INFO = 0x8008_4e1a, Read, 26, p8, InPointers, MemGetInfo;
    /// Copies user bytes to a device address. `-ENOMEM` for an address outside the driver's regions.
    PROGRAM_ENGINE = 0xc008_4e1b, ReadWrite, 27, p8, In, ProgramEngine;
    /// The same through a given core's queue.
    PROGRAM_ENGINE_NC = 0xc008_4e69, ReadWrite, 105, p8, In, ProgramEngineNc;
    /// The same with 64-bit fields.
    PROGRAM_ENGINE_NC64 = 0xc028_4e69, ReadWrite, 105, real, In, ProgramEngineNc64;
    /// Fills. 64 KiB from the host, then device to device from that block (contract §8.6).
    MEMSET = 0x8008_4e1c, Read, 28, p8, In, MemSet;
    /// The same with 64-bit fields.
    MEMSET64 = 0x8020_4e1c, Read, 28, real, In, MemSet64;
    /// Where a chunk is. Positive `EINVAL` for an unknown handle in the real driver.
    MEM_GET_EXTENDED_INFO = 0x8008_4e1d, Read, 29, p8, InOut, MemGetExtendedInfo;
    /// Starts a copy of at most one batch and waits for the one before (facts §4.3). `-EINVAL` beyond one batch.
    MEM_COPY_ASYNC = 0xc030_4e6c, ReadWrite, 108, real, InOut, MemCopyAsync;
    /// The same with 64-bit fields.
    MEM_COPY_ASYNC64 = 0xc038_4e6c, ReadWrite, 108, real, InOut, MemCopyAsync64;
    /// Waits for an asynchronous copy. `-EINVAL` for a handle other than 1 and 2.
    MEM_COPY_ASYNC_WAIT = 0x4018_4e6d, Write, 109, real, In, MemCopyAsyncWait;
    /// Copies by pinning the user's pages (contract §8.5). `-EINVAL` on V2 unless forced, `-ENOENT` for a bad queue.
    /// Since 2.22.
    MEM_BUF_ZEROCOPY64 = 0xc030_4e7c, ReadWrite, 124, real, InPointers, MemBufZerocopy64;
    /// Many such copies in one call. Since 2.25.
    MEM_BUF_ZEROCOPY64_BATCHES = 0xc020_4e81, ReadWrite, 129, real, InPointers, MemBufZerocopy64Batches;
}

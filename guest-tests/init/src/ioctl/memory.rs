//! Memory: allocation and copies.
use std::fs::File;

use neuron_protocol::ioctl as abi;
use rustix::io::Errno;

use super::{Refused, address, call, count, length, narrow};

/// What to allocate, in the widest form; older requests take the part they know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocation {
    /// Bytes; the driver rounds up to pages.
    pub size: u64,
    /// Alignment; 0 for the driver's own, and always 0 for host memory.
    pub align: u64,
    /// In guest RAM instead of device memory.
    pub host: bool,
    /// HBM stack.
    pub channel: u32,
    /// Core whose queue serves driver copies of this chunk.
    pub core: u32,
}

/// `MEM_ALLOC`, `MEM_ALLOC_V2`, `MEM_ALLOC_V2MT` or `MEM_ALLOC_V2MT64`; returns the handle.
///
/// Any other request is answered as the driver would answer an unknown one.
pub fn allocate(file: &File, request: u32, what: Allocation) -> Result<u64, Refused> {
    let Allocation {
        size,
        align,
        host,
        channel: dram_channel,
        core: nc_id,
    } = what;
    let host_memory = u32::from(host);
    let mem_type = if host {
        abi::mem_type::TENSORS_HOST
    } else {
        abi::mem_type::TENSORS_DEVICE
    };
    let mut handle = 0_u64;
    let mem_handle = address(&raw mut handle);
    match request {
        abi::MEM_ALLOC => {
            let mut argument = abi::MemAlloc {
                size,
                host_memory,
                dram_channel,
                dram_region: 0,
                nc_id,
                mem_handle,
            };
            // SAFETY: the one pointer is to `handle`, 8 bytes that outlive the call.
            unsafe { call(file, request, &mut argument) }
        }
        abi::MEM_ALLOC_V2 => {
            let mut argument = abi::MemAllocV2 {
                size,
                align,
                host_memory,
                dram_channel,
                dram_region: 0,
                nc_id,
                mem_handle,
            };
            // SAFETY: as above.
            unsafe { call(file, request, &mut argument) }
        }
        abi::MEM_ALLOC_V2MT => {
            let mut argument = abi::MemAllocV2Mt {
                size,
                align,
                host_memory,
                dram_channel,
                dram_region: 0,
                nc_id,
                mem_type,
                pad_: 0,
                mem_handle,
            };
            // SAFETY: as above.
            unsafe { call(file, request, &mut argument) }
        }
        abi::MEM_ALLOC_V2MT64 => {
            let mut argument = abi::MemAllocV2Mt64 {
                size,
                align,
                host_memory,
                dram_channel,
                dram_region: 0,
                nc_id,
                mem_type,
                pad_0: 0,
                mem_handle,
                pad: 0,
                pad_1: 0,
            };
            // SAFETY: as above.
            unsafe { call(file, request, &mut argument) }
        }
        _ => Err(Refused::by_us(request, Errno::INVAL)),
    }?;
    Ok(handle)
}

/// Direction of a copy between user memory and a chunk.
pub enum User<'a> {
    /// User memory is the source.
    Write(&'a [u8]),
    /// User memory is the destination.
    Read(&'a mut [u8]),
}

impl User<'_> {
    fn parts(&mut self) -> (u64, u64, u32) {
        match self {
            Self::Write(from) => (address(from.as_ptr()), length(from), 1),
            Self::Read(into) => (address(into.as_mut_ptr()), length(into), 0),
        }
    }
}

/// `MEM_BUF_COPY64`, or `MEM_BUF_COPY` when `wide` is false (then sizes must fit 32 bits).
pub fn buffer_copy(
    file: &File,
    wide: bool,
    mem_handle: u64,
    offset: u64,
    mut user: User<'_>,
) -> Result<(), Refused> {
    let (buffer, size, copy_to_mem_handle) = user.parts();
    if wide {
        let mut argument = abi::MemBufCopy64 {
            mem_handle,
            buffer,
            size,
            offset,
            copy_to_mem_handle,
            pad_: 0,
        };
        // SAFETY: `user` borrows the buffer for its length throughout, exclusively where it is written.
        return unsafe { call(file, abi::MEM_BUF_COPY64, &mut argument) };
    }
    let mut argument = abi::MemBufCopy {
        mem_handle,
        buffer,
        size: narrow(abi::MEM_BUF_COPY, size)?,
        offset: narrow(abi::MEM_BUF_COPY, offset)?,
        copy_to_mem_handle,
        pad_: 0,
    };
    // SAFETY: as above.
    unsafe { call(file, abi::MEM_BUF_COPY, &mut argument) }
}

/// The form of `MEM_BUF_ZEROCOPY64` up to 2.24: the same number with the struct of `MEM_BUF_COPY64`.
pub const MEM_BUF_ZEROCOPY64_OLD: u32 = abi::encode(
    abi::Direction::ReadWrite,
    124,
    size_of::<abi::MemBufCopy64>(),
);

/// Zero copy, in the form the driver knows. `queue` -1 is the core's default.
pub fn zero_copy(
    file: &File,
    request: u32,
    mem_handle: u64,
    offset: u64,
    mut user: User<'_>,
    bar4_wr_threshold: u32,
    h2t_qid: i32,
) -> Result<(), Refused> {
    let (buffer, size, to_device) = user.parts();
    if request == MEM_BUF_ZEROCOPY64_OLD {
        let mut argument = abi::MemBufCopy64 {
            mem_handle,
            buffer,
            size,
            offset,
            copy_to_mem_handle: to_device,
            pad_: 0,
        };
        // SAFETY: `user` borrows the buffer for its length throughout, exclusively where it is written.
        return unsafe { call(file, request, &mut argument) };
    }
    let mut argument = abi::MemBufZerocopy64 {
        mem_handle,
        buffer,
        size,
        offset,
        is_copy_to_device: to_device,
        bar4_wr_threshold,
        h2t_qid,
        dummy: 0,
    };
    // SAFETY: as above.
    unsafe { call(file, abi::MEM_BUF_ZEROCOPY64, &mut argument) }
}

/// Batches of zero copies to the device in one request, each copy with its offset. With `sequence_num` 0 done on return;
/// `queue` -1 is the core's own.
///
/// # Safety
/// Otherwise the buffers must stay until the completion came, or this process ended.
pub unsafe fn zero_copy_batch(
    file: &File,
    mem_handle: u64,
    batches: &[&[(u64, &[u8])]],
    sequence_num: u64,
    context: u64,
    h2t_qid: i32,
) -> Result<(), Refused> {
    let ops: Vec<Vec<_>> = batches
        .iter()
        .map(|batch| {
            let op = |(offset, bytes): &(u64, &[u8])| abi::TensorBatchOp {
                offset: *offset,
                size: length(bytes),
                buffer: address(bytes.as_ptr()),
            };
            batch.iter().map(op).collect()
        })
        .collect();
    let batches: Vec<_> = ops
        .iter()
        .map(|ops| abi::MemcpyBatch {
            mem_handle,
            ops_ptr: address(ops.as_ptr()),
            num_ops: count(ops),
            context,
            ..Default::default()
        })
        .collect();
    let mut argument = abi::MemBufZerocopy64Batches {
        sequence_num,
        batches_ptr: address(batches.as_ptr()),
        num_batches: count(&batches),
        is_copy_to_device: 1,
        h2t_qid,
        ..Default::default()
    };
    // SAFETY: the arrays live until the call returns, which is when the driver has read them; the caller vouches for
    // the buffers.
    unsafe { call(file, abi::MEM_BUF_ZEROCOPY64_BATCHES, &mut argument) }
}

/// `MEM_COPY_ASYNC64` or `MEM_COPY_ASYNC`; returns the wait handle.
pub fn copy_async(file: &File, wide: bool, copy: abi::MemCopyAsync64) -> Result<u32, Refused> {
    // No prefetch: the driver would touch user pages at that address while the copy runs.
    let mut argument = abi::MemCopyAsync64 {
        host_prefetch_addr: 0,
        ..copy
    };
    if wide {
        // SAFETY: no user pointer is left in it.
        unsafe { call(file, abi::MEM_COPY_ASYNC64, &mut argument) }?;
        return Ok(argument.wait_handle);
    }
    let narrow = |value| narrow(abi::MEM_COPY_ASYNC, value);
    let mut argument = abi::MemCopyAsync {
        src_mem_handle: copy.src_mem_handle,
        dst_mem_handle: copy.dst_mem_handle,
        size: narrow(copy.size)?,
        src_offset: narrow(copy.src_offset)?,
        dst_offset: narrow(copy.dst_offset)?,
        pad_: 0,
        host_prefetch_addr: 0,
        pwait_handle: copy.pwait_handle,
        wait_handle: 0,
    };
    // SAFETY: no user pointer in it.
    unsafe { call(file, abi::MEM_COPY_ASYNC, &mut argument) }?;
    Ok(argument.wait_handle)
}

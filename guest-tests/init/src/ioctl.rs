//! The only place that hands pointers to the driver.
//!
//! # Why the unsafe code here is sound
//! An ioctl is a request number and one pointer; what the driver does with them is the ABI of
//! [`neuron_protocol::ioctl`], whose numbers and layouts are held against the real driver's header.
//! Every argument struct is plain data without undefined bytes. Where a struct holds user pointers,
//! the function that fills it in takes the memory as a slice borrowed for the whole call (exclusively
//! where the driver writes), and passes the slice's own length in the unit the driver counts in. No
//! request used here keeps a user pointer after it returned: asynchronous copies are between chunks,
//! and zero copy unpins the user's pages before it returns; only [`zero_copy_batch`] may go on, and says so.
use std::fmt;
use std::fs::File;

use neuron_protocol::ioctl as abi;
use rustix::ffi::c_void;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use zerocopy::{FromBytes, IntoBytes};

/// A request the driver did not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The request.
    pub request: u32,
    /// Why.
    pub cause: Cause,
}

/// How a driver says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An error number.
    Errno(Errno),
    /// A positive result: the real driver returns what `copy_from_user` left over, or `EINVAL` without
    /// its sign (contract §11). Never success.
    Positive(i32),
}

impl Refused {
    /// Whether the answer is this error number.
    pub fn is(self, errno: Errno) -> bool {
        self.cause == Cause::Errno(errno)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", name(self.request))?;
        match self.cause {
            // The driver's -1 on a copy that timed out, not a lack of permission (contract §12.3).
            Cause::Errno(Errno::PERM) => {
                f.write_str("-1 (the driver's answer to a timeout or a bad ring)")
            }
            Cause::Errno(errno) => write!(f, "{errno}"),
            Cause::Positive(value) => {
                write!(f, "positive result {value} (data not copied from or to us)")
            }
        }
    }
}

impl std::error::Error for Refused {}

/// Name of a request, with its encoded value when it is not in the ABI's list.
pub fn name(request: u32) -> String {
    abi::requests()
        .find(|r| r.request == request)
        .map_or_else(|| format!("ioctl {request:#010x}"), |r| r.name.into())
}

/// One call with a raw pointer.
struct Raw {
    request: u32,
    argument: *mut c_void,
}

// SAFETY: `as_ptr` hands out the pointer unchanged and `output_from_ptr` does not touch it; whether
// the driver may use it is the duty of whoever makes a `Raw`, all of them in this file.
unsafe impl Ioctl for Raw {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        Opcode::from(self.request)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

fn outcome(request: u32, result: rustix::io::Result<i32>) -> Result<(), Refused> {
    let cause = match result {
        Ok(0) => return Ok(()),
        Ok(value) => Cause::Positive(value),
        Err(errno) => Cause::Errno(errno),
    };
    Err(Refused { request, cause })
}

/// Calls `request` with `argument`.
///
/// # Safety
/// The driver may use `size_of::<T>()` bytes at `argument` for this request, and every user pointer
/// inside it is valid, for the length beside it, for what the request does with it.
unsafe fn call<T: FromBytes + IntoBytes>(
    file: &File,
    request: u32,
    argument: &mut T,
) -> Result<(), Refused> {
    let raw = Raw {
        request,
        argument: std::ptr::from_mut(argument).cast(),
    };
    // SAFETY: passed on from the caller.
    outcome(request, unsafe { rustix::ioctl::ioctl(file, raw) })
}

/// A request whose struct holds no pointers.
///
/// Refused with a panic for a request that does: this crate's own mistake.
pub fn plain<T: FromBytes + IntoBytes + abi::Layout>(
    file: &File,
    request: u32,
    argument: &mut T,
) -> Result<(), Refused> {
    let known = abi::requests().find(|r| r.request == request);
    let Some(known) = known.filter(|r| r.argument.is_some_and(|a| a.name == T::LAYOUT.name)) else {
        panic!("{}: not a request of `{}`", name(request), T::LAYOUT.name);
    };
    assert!(
        !has_pointers(known),
        "{}: has user pointers, which `plain` cannot vouch for",
        known.name
    );
    // SAFETY: the struct is the request's own and holds no pointers, checked above.
    unsafe { call(file, request, argument) }
}

/// Fields that carry user addresses, by their names in the ABI.
fn has_pointers(request: &abi::Ioctl) -> bool {
    let pointer = |field: &str| {
        matches!(
            field,
            "buffer" | "address" | "data" | "state" | "tx" | "rx" | "host_prefetch_addr"
        )
    };
    request.flow == abi::Flow::InPointers
        || request
            .argument
            .is_some_and(|a| a.fields.iter().any(|f| pointer(f.name) && f.size == 8))
}

fn address<T>(pointer: *const T) -> u64 {
    // A 64-bit guest only (the drivers are); `usize` is `u64` there.
    u64::try_from(pointer.expose_provenance()).unwrap_or(0)
}

fn length(slice: &[u8]) -> u64 {
    u64::try_from(slice.len()).unwrap_or(u64::MAX)
}

/// Whether the driver knows a request, asked with a null pointer.
///
/// A driver that knows it fails to copy the argument (`EFAULT`, `EACCES` or a positive count) and does
/// nothing; one that does not answers `EINVAL` (the real one) or `ENOTTY`. Only for requests that look
/// at their argument first.
pub fn is_known(file: &File, request: u32) -> bool {
    let raw = Raw {
        request,
        argument: std::ptr::null_mut(),
    };
    // SAFETY: the kernel copies from and to user pointers with checked accesses, and nothing is mapped at zero.
    let result = unsafe { rustix::ioctl::ioctl(file, raw) };
    !matches!(result, Err(Errno::INVAL | Errno::NOTTY | Errno::OPNOTSUPP))
}

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
            unsafe { call(file, request, &mut argument) }?;
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
            unsafe { call(file, request, &mut argument) }?;
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
            unsafe { call(file, request, &mut argument) }?;
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
            unsafe { call(file, request, &mut argument) }?;
        }
        _ => {
            return Err(Refused {
                request,
                cause: Cause::Errno(Errno::INVAL),
            });
        }
    }
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
    let (Ok(size), Ok(offset)) = (u32::try_from(size), u32::try_from(offset)) else {
        return Err(Refused {
            request: abi::MEM_BUF_COPY,
            cause: Cause::Errno(Errno::OVERFLOW),
        });
    };
    let mut argument = abi::MemBufCopy {
        mem_handle,
        buffer,
        size,
        offset,
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
            num_ops: u32::try_from(ops.len()).unwrap_or(u32::MAX),
            context,
            ..Default::default()
        })
        .collect();
    let mut argument = abi::MemBufZerocopy64Batches {
        sequence_num,
        batches_ptr: address(batches.as_ptr()),
        num_batches: u32::try_from(batches.len()).unwrap_or(u32::MAX),
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
    let narrow = |v: u64| {
        u32::try_from(v).map_err(|_| Refused {
            request: abi::MEM_COPY_ASYNC,
            cause: Cause::Errno(Errno::OVERFLOW),
        })
    };
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

/// `DMA_COPY_DESCRIPTORS`: 16-byte descriptors at `offset` bytes into a ring.
pub fn copy_descriptors(
    file: &File,
    mem_handle: u64,
    offset: u32,
    queue_type: u32,
    descriptors: &[[u8; 16]],
) -> Result<(), Refused> {
    let mut argument = abi::DmaCopyDescriptors {
        mem_handle,
        buffer: address(descriptors.as_ptr()),
        num_descs: u32::try_from(descriptors.len()).unwrap_or(u32::MAX),
        offset,
        queue_type,
        pad_: 0,
    };
    // SAFETY: the driver reads `num_descs` times 16 bytes from the borrowed slice.
    unsafe { call(file, abi::DMA_COPY_DESCRIPTORS, &mut argument) }
}

/// `DMA_DESCRIPTOR_COPYOUT` into `descriptors`, from `start_index`.
pub fn descriptor_copyout(
    file: &File,
    eng_id: u32,
    qid: u32,
    queue_type: u32,
    start_index: u32,
    descriptors: &mut [[u8; 16]],
) -> Result<(), Refused> {
    let mut argument = abi::DmaDescriptorCopyout {
        eng_id,
        qid,
        queue_type,
        start_index,
        count: u32::try_from(descriptors.len()).unwrap_or(u32::MAX),
        pad_: 0,
        buffer: address(descriptors.as_mut_ptr()),
    };
    // SAFETY: the driver writes `count` times 16 bytes into the exclusively borrowed slice.
    unsafe { call(file, abi::DMA_DESCRIPTOR_COPYOUT, &mut argument) }
}

/// `DMA_QUEUE_GET_STATE`: transmit and receive.
pub fn queue_state(
    file: &File,
    eng_id: u32,
    qid: u32,
) -> Result<(abi::DmaQueueState, abi::DmaQueueState), Refused> {
    let (mut tx, mut rx) = (abi::DmaQueueState::default(), abi::DmaQueueState::default());
    let mut argument = abi::DmaQueueGetState {
        eng_id,
        qid,
        tx: address(&raw mut tx),
        rx: address(&raw mut rx),
    };
    // SAFETY: both structs are the ones the driver writes and outlive the call.
    unsafe { call(file, abi::DMA_QUEUE_GET_STATE, &mut argument) }?;
    Ok((tx, rx))
}

/// `DMA_ENG_GET_STATE`.
pub fn engine_state(file: &File, eng_id: u32) -> Result<abi::DmaEngState, Refused> {
    let mut state = abi::DmaEngState::default();
    let mut argument = abi::DmaEngGetState {
        eng_id,
        pad_: 0,
        state: address(&raw mut state),
    };
    // SAFETY: the struct is the one the driver writes and outlives the call.
    unsafe { call(file, abi::DMA_ENG_GET_STATE, &mut argument) }?;
    Ok(state)
}

/// `BAR_READ` of the register BAR; addresses as `DEVICE_INFO` counts them.
pub fn bar_read(file: &File, addresses: &[u64], values: &mut [u32]) -> Result<(), Refused> {
    let count = u32::try_from(addresses.len().min(values.len())).unwrap_or(0);
    let mut argument = abi::BarRw {
        bar: 0,
        pad_0: 0,
        address: address(addresses.as_ptr()),
        data: address(values.as_mut_ptr()),
        count,
        pad_1: 0,
    };
    // SAFETY: the driver reads `count` addresses and writes `count` values, both slices are at least that long.
    unsafe { call(file, abi::BAR_READ, &mut argument) }
}

/// `BAR_WRITE` of one register of the register BAR.
pub fn bar_write(file: &File, register: u64, value: u32) -> Result<(), Refused> {
    let mut argument = abi::BarRw {
        bar: 0,
        pad_0: 0,
        address: address(&raw const register),
        data: address(&raw const value),
        count: 1,
        pad_1: 0,
    };
    // SAFETY: the driver reads one address and one value, both of which outlive the call.
    unsafe { call(file, abi::BAR_WRITE, &mut argument) }
}

/// `PROGRAM_ENGINE_NC`: writes user bytes to a device address through a core's queue.
pub fn program_engine(file: &File, nc_id: u32, dst: u64, bytes: &[u8]) -> Result<(), Refused> {
    let mut argument = abi::ProgramEngineNc {
        nc_id,
        pad_: 0,
        dst,
        buffer: address(bytes.as_ptr()),
        size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        // The real driver adds the offset to both addresses; 0 keeps the buffer where it is.
        offset: 0,
    };
    // SAFETY: the driver reads `size` bytes from the borrowed slice.
    unsafe { call(file, abi::PROGRAM_ENGINE_NC, &mut argument) }
}

/// `POST_METRIC`: bytes through the firmware mailbox.
pub fn post_metric(file: &File, bytes: &[u8]) -> Result<(), Refused> {
    let mut argument = abi::PostMetric {
        data: address(bytes.as_ptr()),
        data_size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        pad_: 0,
    };
    // SAFETY: the driver reads `data_size` bytes from the borrowed slice.
    unsafe { call(file, abi::POST_METRIC, &mut argument) }
}

/// `READ_HW_COUNTERS`: registers through the firmware mailbox.
pub fn read_counters(file: &File, addresses: &[u64], values: &mut [u32]) -> Result<(), Refused> {
    let mut argument = abi::ReadHwCounters {
        address: address(addresses.as_ptr()),
        data: address(values.as_mut_ptr()),
        count: u32::try_from(addresses.len().min(values.len())).unwrap_or(0),
        pad_: 0,
    };
    // SAFETY: the driver reads `count` addresses and writes `count` values, both slices are at least that long.
    unsafe { call(file, abi::READ_HW_COUNTERS, &mut argument) }
}

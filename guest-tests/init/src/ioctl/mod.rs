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
mod memory;
mod registers;
mod rings;

use std::fmt;
use std::fs::File;

use neuron_protocol::ioctl as abi;
use rustix::ffi::c_void;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use zerocopy::{FromBytes, IntoBytes};

pub use memory::{
    Allocation, MEM_BUF_ZEROCOPY64_OLD, User, allocate, buffer_copy, copy_async, zero_copy,
    zero_copy_batch,
};
pub use registers::{bar_read, bar_write, post_metric, program_engine, read_counters};
pub use rings::{copy_descriptors, descriptor_copyout, engine_state, queue_state};

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
    /// What a driver would say, had it been asked.
    const fn by_us(request: u32, errno: Errno) -> Self {
        Self {
            request,
            cause: Cause::Errno(errno),
        }
    }

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

/// A number for the older form of a request, whose fields have 32 bits.
fn narrow(request: u32, value: u64) -> Result<u32, Refused> {
    u32::try_from(value).map_err(|_| Refused::by_us(request, Errno::OVERFLOW))
}

/// Elements, as the driver counts them. More than fit are none of ours.
fn count<T>(slice: &[T]) -> u32 {
    u32::try_from(slice.len()).unwrap_or(u32::MAX)
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

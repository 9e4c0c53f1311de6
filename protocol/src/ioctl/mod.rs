//! The guest ioctl ABI of the character device `/dev/neuronN` (contract §11, facts §6).
//!
//! One guest program speaks to two drivers, the real one and `guest-tests/driver`; both are spoken to through the
//! numbers and structs here. Every number and every offset is held against a list compiled from the real driver's
//! interface by `tests/ioctl_abi.rs`.
//!
//! # Two encodings
//! Older ioctls encode `sizeof(pointer)` = 8 as the size of their argument whatever the struct's real size ("p8").
//! Newer ones encode the real size, and several share a number: the driver tells `MEM_COPY` from `MEM_COPY64` by the
//! encoded size. The encoded direction is not the direction of the data either ([`Ioctl::encoded`], [`Ioctl::flow`]).
//!
//! # What the real driver returns
//! * An unknown request: `-EINVAL`, not `-ENOTTY` (contract §11). A known number with an unknown size: `-EINVAL`.
//! * A fault while it copies the argument: usually a *positive* count of bytes not copied, so a caller must treat every
//!   non-zero result as a failure.
//! * [`MEM_GET_EXTENDED_INFO`] on a bad handle: positive 22.
//! * A copy that timed out: -1 up to 2.25.4.0, `-ETIMEDOUT` from 2.30.2.0 (contract §12.3).
//!
//! Driver versions named below are those in which a request first appeared.

mod abi;
mod device;
mod memory;
mod queue;
mod sync;

pub use abi::{CType, CTypeRef, Direction, Field, Flow, Ioctl, Layout, StructLayout, encode};
pub use device::*;
pub use memory::*;
pub use queue::*;
pub use sync::*;

/// Magic number in bits 15:8 of every request: `'N'` (contract §11).
pub const MAGIC: u8 = b'N';

/// Core map of [`NC_RESET`] that means the whole device (contract §11).
pub const NC_MAP_DEVICE: u32 = 0xffff_ffff;

/// Every request this crate knows, in the order of the modules.
pub fn requests() -> impl Iterator<Item = &'static Ioctl> {
    [device::IOCTLS, memory::IOCTLS, queue::IOCTLS, sync::IOCTLS]
        .into_iter()
        .flatten()
}

/// Every argument struct, those that others contain first.
pub fn layouts() -> impl Iterator<Item = &'static StructLayout> {
    [
        device::LAYOUTS,
        memory::LAYOUTS,
        queue::LAYOUTS,
        sync::LAYOUTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

//! The wire: a vfio-user server.
//!
//! `codec` turns bytes into typed commands, `session` hands them to a [`PciFunction`], `connection` owns the socket and
//! the descriptors passed over it. Nothing here knows what a Neuron is.
mod function;

pub use function::{
    DmaMap, DmaReply, DmaRequest, DmaUnmap, FunctionInfo, Irq, IrqAction, IrqSet, PciFunction,
    Progress, Protection, Region, RegionMmap, SparseArea,
};

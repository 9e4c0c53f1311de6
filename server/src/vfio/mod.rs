//! The wire: a vfio-user server.
//!
//! `codec` turns bytes into typed commands, `session` hands them to a [`PciFunction`], `connection` owns the socket and
//! the descriptors passed over it, `server` is the thread that owns a function. Nothing here knows what a Neuron is.
mod check;
pub mod codec;
mod connection;
mod function;
mod inbox;
mod listener;
mod message_dma;
mod outbox;
mod server;
mod session;
mod visitors;
mod wait;

pub use connection::{Calls, Connection, Patience, Received};
pub use function::{
    DmaMap, DmaReply, DmaRequest, DmaUnmap, FunctionInfo, Irq, IrqAction, IrqSet, PciFunction,
    Progress, Protection, Region, RegionMmap, SparseArea,
};
pub use inbox::{Descriptors, Inbox, Incoming};
pub use listener::{ListenError, Listener};
pub use outbox::Outbox;
pub use server::{Gone, Handle, ServeError, Server, WireStatus};
pub use session::{Counters, HEAVY_COST, MESSAGE_COST, Served, Session, SessionError};
pub use wait::Settings;

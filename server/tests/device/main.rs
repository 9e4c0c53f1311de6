//! The device as a driver drives it: register writes and descriptors in memory, no wire.
#![allow(
    clippy::cast_possible_truncation,
    clippy::decimal_bitwise_operands,
    clippy::too_many_lines,
    clippy::items_after_statements,
    clippy::type_complexity,
    reason = "test code"
)]
mod copies;
mod errors;
mod faults;
mod longest;
mod registers;
mod resets;
#[path = "../rig/mod.rs"]
mod rig;
mod streams;

/// Device memory past what the driver carves out for firmware.
const HBM: u64 = 0x100_0000;

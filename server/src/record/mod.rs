//! Recordings of a device: everything that went into it and everything that came out, to be replayed without QEMU.
//!
//! The device is a state machine without I/O. What moves it is its trait's calls, the bytes it reads from guest memory
//! and orders from people; a recording holds these, and the replies, bytes and events that came of them to be compared.
//!
//! | module | is |
//! |---|---|
//! | [`bytes`], [`content`], [`entry`] | one entry as bytes, and back; hostile bytes are errors with offset and rule |
//! | [`mod@file`], [`header`] | the file: what the device was made of, then checked blocks, valid up to the last whole one |
//! | [`journal`], [`writer`] | from the device thread to the file, with a bound on what the guest waits |
//! | [`recorded`] | a function whose calls are recorded |
//! | [`replay`], `script` | a function that is driven by a recording and compared with it |
//! | [`words`] | entries for people |
//! | [`show`], [`page`] | a session gathered in bounded memory, and drawn |
pub mod bytes;
pub mod content;
pub mod entry;
pub mod file;
pub mod header;
pub mod journal;
pub mod page;
pub mod recorded;
pub mod replay;
mod script;
pub mod show;
mod taint;
pub mod words;
pub mod writer;

pub use header::{Header, Payload};
pub use journal::Journal;
pub use recorded::{Begins, Record, Recorded};
pub use replay::{Divergence, Outcome, Replay, ReplayError};

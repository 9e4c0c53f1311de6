//! The time line: what a device did, as a Perfetto trace.
//!
//! A consumer of events with a clock of its own. The device thread stamps an event and puts it into a bounded channel; a
//! thread that serves all devices of a session turns events into packets and writes them as they come. Nothing waits for
//! the disk: a channel that is full loses events, and the trace says so.
//!
//! docs/timeline.md explains what is drawn and how exact it is.
mod channel;
mod encode;
pub mod merge;
pub mod proto;
mod ring;
mod session;
mod tracks;

pub use session::{Clock, Options, Session, Summary, TimelineObserver};
pub use tracks::{Part, Track};

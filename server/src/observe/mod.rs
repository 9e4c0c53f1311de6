//! What is said about the device, one way: nothing here influences it.
pub mod budget;
pub mod coverage;
pub mod event;
pub mod log;
pub mod metrics;
pub mod narrate;
pub mod rate;
pub mod recorder;
pub mod render;
pub mod report;
pub mod sanitize;
pub mod timeline;
pub mod writer;

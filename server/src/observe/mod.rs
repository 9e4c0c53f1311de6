//! What is said about the device, one way: nothing here influences it.
pub mod log;
pub mod rate;
pub mod render;
pub mod report;
pub mod writer;

//! What is said about the device, one way: nothing here influences it.
pub mod render;
pub mod report;

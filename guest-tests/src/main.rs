//! The guest launcher.
fn main() {}

//! What the fuzzers run. `tests/corpus.rs` replays their corpus in every ordinary test run; `fuzz/` has the engine.
//!
//! Each target takes any bytes, builds a fresh device and holds it against what must always be true, so that an input is
//! a test by itself.
#![allow(dead_code, reason = "each binary uses a part")]
#![allow(
    clippy::many_single_char_names,
    clippy::too_many_lines,
    reason = "an operation per arm, with selectors that have no meaning of their own"
)]
#![allow(missing_docs, reason = "tests")]

mod bench;
pub mod descriptors;
pub mod record;
pub mod registers;
pub mod wire;

/// A target: its name, which is also its corpus's, and its body.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 4] = [
    ("wire", wire::run),
    ("registers", registers::run),
    ("descriptors", descriptors::run),
    ("record", record::run),
];

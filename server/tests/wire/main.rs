//! The wire against clients of every kind. `proto` holds the public failure cases by name; the rest is by subject.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::semicolon_if_nothing_returned,
    reason = "closures sent to the mock read better as one expression"
)]
mod budget;
mod codec;
mod dma;
mod hostile;
mod interrupts;
mod life;
mod mock;
mod msix;
mod peer;
mod proto;
mod real;
mod regions;
mod replay;

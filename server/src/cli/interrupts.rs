//! Options for interrupts.
use clap::Args;

/// Whether engines can interrupt.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct InterruptArgs {
    /// Offer MSI-X: an engine then interrupts for descriptors that ask for it and for causes of its interrupt controller. No
    /// public driver uses it and no source shows the real layout; here engine N has vector N, table and pending bits are
    /// in the last 64 KiB of the register BAR (docs/interrupts.md)
    #[arg(long)]
    pub msix: bool,
}

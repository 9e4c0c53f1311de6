//! Bytes to typed messages and back. No I/O, no device, no allocation sized by an unchecked field.
mod command;
mod encode;
mod refusal;
mod reply;
mod version;
pub mod wire;

use zerocopy::{FromBytes, IntoBytes};

pub use command::{ACCESS_OVERHEAD, Command, IrqData, IrqVerb, MultiWrites};
pub use encode::narrow_dma_write;
pub use refusal::Refusal;
pub use reply::{DmaReplyBody, Reply, region_read_reply};
pub use version::{Capabilities, Limits};

/// Length of [`wire::Header`].
pub const HEADER_SIZE: usize = size_of::<wire::Header>();

/// Largest data of one region access or DMA message: what this server announces as `max_data_xfer_size`. QEMU's default
/// (qemu client).
pub const MAX_TRANSFER: u32 = 1 << 20;

/// Most descriptors accepted with one message: what this server announces as `max_msg_fds`, and QEMU's most (qemu
/// client).
pub const MAX_FDS: usize = 16;

/// Longest message accepted; the body of a longer one is skipped and the command refused.
pub const MAX_MESSAGE: usize = ACCESS_OVERHEAD + (1 << 20);

/// A length as the 32-bit field of a message. Lengths are bounded by [`MAX_MESSAGE`], so nothing is cut.
pub(crate) fn size_field(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Appends a header whose size [`end_message`] fills in.
fn begin_message(out: &mut Vec<u8>, id: u16, command: u16, flags: u32, error: u32) {
    let header = wire::Header {
        id: id.into(),
        command: command.into(),
        size: 0.into(),
        flags: flags.into(),
        error: error.into(),
    };
    out.extend_from_slice(header.as_bytes());
}

/// Completes the message that begins at `start`.
fn end_message(out: &mut [u8], start: usize) {
    let message = &mut out[start..];
    let size = size_field(message.len());
    if let Ok((header, _)) = wire::Header::mut_from_prefix(message) {
        header.size = size.into();
    }
}

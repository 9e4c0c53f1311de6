//! Rules about the firmware mailbox.
use neuron_protocol::mailbox::MailboxError;

use super::{Rule, Sanitizer};
use crate::observe::event::MailboxFault;

impl Sanitizer {
    /// A well-formed request of the legacy mailbox: address and bytes of both buffers.
    pub(super) fn mailbox_request(
        &mut self,
        sequence: u8,
        request: (u64, u32),
        response: (u64, u32),
    ) {
        let addresses = || vec![("request", request.0), ("response", response.0)];
        let end = |(address, bytes): (u64, u32)| address.saturating_add(u64::from(bytes));
        if request.0 < end(response) && response.0 < end(request) {
            self.find(
                Rule::MailboxOverlap,
                Self::device_place(addresses()),
                0,
                || {
                    format!(
                        "the answer of {} bytes is written over the request of {}",
                        response.1, request.1
                    )
                },
            );
        }
        if self.sequence.replace(sequence) == Some(sequence) {
            self.find(Rule::MailboxSequence, Self::device_place(addresses()), 0, || {
                format!("sequence number {sequence} again: an old answer cannot be told from the new one")
            });
        }
    }

    /// A request that was not answered.
    pub(super) fn mailbox_refused(&self, fault: MailboxFault) {
        match fault {
            MailboxFault::Malformed(error @ MailboxError::Crc { .. }) => {
                self.find(Rule::MailboxCrc, Self::device_place(Vec::new()), 0, || {
                    error.to_string()
                });
            }
            MailboxFault::Malformed(error @ MailboxError::Sequence) => {
                self.find(
                    Rule::MailboxSequence,
                    Self::device_place(Vec::new()),
                    0,
                    || error.to_string(),
                );
            }
            MailboxFault::Malformed(_) => {}
            MailboxFault::Address { address, reason } => {
                let place = Self::device_place(vec![("mailbox", address)]);
                self.address(place, "a mailbox buffer", None, address, reason);
            }
        }
    }
}

//! Notices guest memory that only seems to be shared.
//!
//! With `share=off` QEMU passes the file behind guest RAM, but the guest works on a private copy: what it writes never
//! reaches the file, and what the device writes never reaches the guest. Nothing in the protocol tells. The first sign is
//! a ring whose descriptors read as if nobody had written them; then the client is asked what the guest sees there.
use neuron_protocol::registers::misc_ram;

use super::NeuronFunction;
use super::messages::Asker;
use crate::memory::{Access, Purpose, Target};
use crate::udma::FaultKind;
use crate::vfio::{DmaReply, DmaRequest};

/// Times that the two must differ: the guest may be writing there.
const LOOKS: u8 = 3;

/// A descriptor's bytes.
const LEN: usize = 16;

/// What is known of a client's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Privacy {
    /// No reason to ask yet.
    #[default]
    Unasked,
    /// The client is being asked, or has answered.
    Asked,
    /// The guest sees something else than the file holds.
    Private,
}

impl NeuronFunction {
    /// Looks into faults that private memory would explain. Once for each client.
    pub(super) fn suspect_rings(&mut self) {
        let ring = self.udma.engines().iter().find_map(|engine| {
            let fault = engine.fault()?;
            let FaultKind::RingId { .. } = fault.kind else {
                return None;
            };
            let pair = engine.pairs().get(usize::from(fault.queue))?;
            Some(pair.ring(fault.direction).address_of(fault.index))
        });
        if let Some(descriptor) = ring {
            self.suspect(descriptor);
        }
    }

    /// The same of a mailbox request that made no sense.
    pub(super) fn suspect_mailbox(&mut self) {
        let half = |offset| u64::from(self.misc_ram.read(offset).unwrap_or(0));
        self.suspect(half(misc_ram::REQUEST_HIGH) << 32 | half(misc_ram::REQUEST_LOW));
    }

    fn suspect(&mut self, address: u64) {
        if self.privacy != Privacy::Unasked {
            return;
        }
        let Some(guest) = self.generation.host_address(address) else {
            return;
        };
        if self.guest_bytes(guest).is_some() {
            self.privacy = Privacy::Asked;
            self.ask_what_the_guest_sees(guest, LOOKS);
        }
    }

    fn ask_what_the_guest_sees(&mut self, guest: u64, looks: u8) {
        let request = DmaRequest::Read {
            iova: guest,
            len: LEN,
        };
        self.ask(Asker::Privacy { guest, looks }, request);
    }

    /// Takes the client's answer. One that cannot or will not tell is believed.
    pub(super) fn compare_memory(&mut self, guest: u64, looks: u8, reply: &DmaReply) {
        let (Ok(theirs), Some(ours)) = (reply, self.guest_bytes(guest)) else {
            return;
        };
        if theirs[..] == ours {
            return;
        }
        if looks > 1 {
            return self.ask_what_the_guest_sees(guest, looks - 1);
        }
        self.privacy = Privacy::Private;
        tracing::error!(
            "guest memory at {guest:#x} is {:02x?} to the guest and {ours:02x?} in the file that QEMU passed: the guest \
             works on a private copy, and nothing the device writes will reach it; start QEMU with share=on: \
             -object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem",
            &theirs[..]
        );
    }

    /// Bytes of guest memory as the file has them; `None` where there is no file.
    fn guest_bytes(&self, guest: u64) -> Option<[u8; LEN]> {
        let Ok(Target::Memory(stretch)) = self.memory.resolve_guest(guest, LEN, Access::Read)
        else {
            return None;
        };
        let mut bytes = [0; LEN];
        (stretch.len() == LEN).then_some(())?;
        let read = self.memory.read(&stretch, Purpose::Control, &mut bytes);
        read.is_ok().then_some(bytes)
    }
}

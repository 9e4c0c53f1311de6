//! Accesses that the client makes for the device, and who waits for each.
use std::collections::{HashMap, VecDeque};

use rustix::io::Errno;

use super::NeuronFunction;
use crate::udma::{FaultKind, Request};
use crate::vfio::{DmaReply, DmaRequest, DmaUnmap};

/// Who asked the client for an access.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// An engine, which has a name of its own for it.
    Udma(u64),
    Mailbox {
        len: usize,
    },
    /// Nobody any more: a reset dropped the work, but the client has the message and may still be writing.
    Dropped,
    Notification {
        ticket: u64,
    },
    /// A policy put the write off; nobody waits for it.
    Late,
    /// Whoever suspects that the guest works on a private copy; see [`super::privacy`].
    Privacy {
        guest: u64,
        looks: u8,
    },
}

/// Accesses by message, from the asking to the reply.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Not yet taken by the wire.
    outgoing: VecDeque<(u64, DmaRequest)>,
    askers: HashMap<u64, Asker>,
    next: u64,
    /// [`NeuronFunction::ask`] looks for what nobody wants any more when so many wait.
    sweep_at: usize,
}

/// Accesses that wait before anybody looks whether they are still wanted.
const FEW: usize = 64;

impl Messages {
    /// Forgets everything: whoever could reply is gone, or is not asked any more.
    pub(super) fn clear(&mut self) {
        self.outgoing.clear();
        self.askers.clear();
    }

    /// Whether work that can wait should not add to what waits for the client.
    pub(super) fn is_busy(&self) -> bool {
        self.outgoing.len() >= FEW
    }

    /// A reset dropped the work that the messages were for.
    pub(super) fn drop_askers(&mut self) {
        // A look at memory is no work, and nothing waits for it.
        self.askers
            .retain(|_, asker| !matches!(asker, Asker::Privacy { .. }));
        for asker in self.askers.values_mut() {
            *asker = Asker::Dropped;
        }
    }
}

impl NeuronFunction {
    /// Has the client make an access; returns our name for it.
    ///
    /// At most twice as many wait as are wanted, and of those each queue has one: a client that takes none and a guest that
    /// resets its queues again and again cannot make them grow.
    pub(super) fn ask(&mut self, asker: Asker, request: DmaRequest) -> u64 {
        if self.messages.outgoing.len() >= self.messages.sweep_at.max(FEW) {
            self.withdraw_unwanted();
            self.messages.sweep_at = 2 * self.messages.outgoing.len();
        }
        let id = self.messages.next;
        self.messages.next += 1;
        self.messages.askers.insert(id, asker);
        self.messages.outgoing.push_back((id, request));
        id
    }

    /// Makes an access that an engine asked for: registers here and now, guest memory by message.
    pub(super) fn serve(&mut self, id: u64, request: Request) {
        let reply = match request {
            Request::ReadGuest { iova, len } => {
                self.ask(Asker::Udma(id), DmaRequest::Read { iova, len });
                return;
            }
            Request::WriteGuest { iova, data } => {
                self.ask(Asker::Udma(id), DmaRequest::Write { iova, data });
                return;
            }
            Request::ReadRegister { offset, len } => {
                let mut data = vec![0; len];
                self.read_registers(offset, &mut data);
                Ok(data)
            }
            Request::WriteRegister { offset, data } => self
                .write_registers(offset, &data)
                .map(|()| Vec::new())
                .map_err(|_| FaultKind::PartialRegister),
        };
        let (udma, mut context) = self.engines();
        udma.complete(id, reply, &mut context);
    }

    /// The next message whose work is still wanted. The others fail here and now.
    pub(super) fn next_message(&mut self) -> Option<(u64, DmaRequest)> {
        // What was asked for before waits as well.
        if !self.may_access_memory() {
            return None;
        }
        loop {
            let (id, request) = self.messages.outgoing.pop_front()?;
            if self.awaits(id) {
                return Some((id, request));
            }
            self.complete(id, Err(Errno::CANCELED));
        }
    }

    /// Whether somebody still wants the reply to a message.
    pub(super) fn awaits(&self, id: u64) -> bool {
        match self.messages.askers.get(&id) {
            None | Some(Asker::Dropped) => false,
            Some(Asker::Udma(id)) => self.udma.awaits(*id),
            Some(Asker::Mailbox { .. }) => self.mailbox.awaits(id),
            Some(Asker::Notification { ticket }) => self.notifications.awaits(*ticket),
            Some(Asker::Late | Asker::Privacy { .. }) => true,
        }
    }

    /// Takes the client's reply to whoever asked for it.
    pub(super) fn complete(&mut self, id: u64, reply: DmaReply) {
        match self.messages.askers.remove(&id) {
            None | Some(Asker::Dropped | Asker::Late) => {}
            Some(Asker::Udma(id)) => {
                let (udma, mut context) = self.engines();
                udma.complete(id, reply.map_err(FaultKind::Client), &mut context);
            }
            Some(Asker::Privacy { guest, looks }) => self.compare_memory(guest, looks, &reply),
            Some(Asker::Notification { ticket }) => {
                self.notifications.complete(ticket, reply.is_ok());
            }
            Some(Asker::Mailbox { len }) => {
                if let Err(error) = self.mailbox.complete(id, len, reply.ok()) {
                    tracing::warn!(%error, "mailbox request not answered; the driver will time out and try again");
                }
            }
        }
        self.interrupt();
        self.finish_reset();
    }

    /// Whether the client has messages whose work a reset dropped: what they write comes after the reset.
    pub(super) fn drains(&self) -> bool {
        self.messages.askers.keys().any(|id| !self.awaits(*id))
    }

    /// Takes back what the wire has not taken and nobody wants any more.
    pub(super) fn withdraw_unwanted(&mut self) {
        let mut outgoing = std::mem::take(&mut self.messages.outgoing);
        outgoing.retain(|(id, _)| {
            let wanted = self.awaits(*id);
            if !wanted {
                self.messages.askers.remove(id);
            }
            wanted
        });
        self.messages.outgoing = outgoing;
    }

    /// Accesses that the wire has not taken and whose memory is gone now fail as if they had come later.
    pub(super) fn fail_unmapped(&mut self, unmap: DmaUnmap) {
        let touches = |request: &DmaRequest| {
            let (at, len) = match request {
                DmaRequest::Read { iova, len } => (*iova, *len),
                DmaRequest::Write { iova, data } => (*iova, data.len()),
            };
            match unmap {
                DmaUnmap::All => true,
                DmaUnmap::Range { iova, size } => {
                    at < iova.saturating_add(size) && iova < at.saturating_add(len as u64)
                }
            }
        };
        let mut gone = Vec::new();
        self.messages.outgoing.retain(|(id, request)| {
            let touches = touches(request);
            if touches {
                gone.push(*id);
            }
            !touches
        });
        for id in gone {
            self.complete(id, Err(Errno::FAULT));
        }
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::{Platform, Product};

    use super::*;
    use crate::function::Config;

    #[test]
    fn what_nobody_wants_does_not_grow() {
        let config = Config::new(Product::Trn2, Platform::Silicon);
        let mut function = NeuronFunction::new(config).unwrap();
        let write = || DmaRequest::Write {
            iova: 0,
            data: vec![0; 64],
        };
        // The engines know none of these: as after resets of their queues.
        for id in 0..10_000 {
            function.ask(Asker::Udma(id), write());
            let messages = &function.messages;
            assert!(messages.outgoing.len() <= 2 * FEW && messages.askers.len() <= 2 * FEW);
        }
        // What is wanted is never taken back.
        for _ in 0..1000 {
            function.ask(Asker::Late, write());
        }
        assert!(function.messages.is_busy());
        let late = |(_, asker): &(&u64, &Asker)| matches!(asker, Asker::Late);
        assert_eq!(function.messages.askers.iter().filter(late).count(), 1000);
    }
}

//! Access to client memory by `DMA_READ` and `DMA_WRITE` messages.
//!
//! The function's requests are split into messages of the client's transfer limit, a bounded number of which are under
//! way. Nothing here waits: the client may send commands before it replies, and QEMU has to, since a vCPU that waits for
//! a region access holds the lock that its DMA needs (qemu client).
use rustix::io::Errno;

use super::codec::wire::{Header, command};
use super::codec::{Command, DmaReplyBody, Limits, narrow_dma_write};
use super::outbox::Outbox;
use super::{DmaReply, DmaRequest, DmaUnmap, PciFunction};

/// Requests of the function that are open at a time.
const MAX_REQUESTS: usize = 16;

/// Messages that wait for a reply at a time: with QEMU's limit, 4 MiB of its memory.
const MAX_MESSAGES: usize = 4;

/// Largest request, bytes. A request is buffered whole.
const MAX_REQUEST: usize = 1 << 20;

#[derive(Debug)]
struct Request {
    /// The function's name for it.
    id: u64,
    /// Ours; the function may reuse its own after a reset.
    serial: u64,
    iova: u64,
    is_write: bool,
    data: Vec<u8>,
    /// Bytes asked for so far.
    issued: usize,
    /// Messages without a reply.
    open: usize,
    failed: Option<Errno>,
    /// The function has been reset since and wants no reply.
    forgotten: bool,
}

#[derive(Debug)]
struct Message {
    wire_id: u16,
    serial: u64,
    offset: usize,
    len: usize,
}

/// Where the client expects the data in DMA messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Layout {
    #[default]
    Unknown,
    /// The question has been sent under this id.
    Asked(u16),
    /// As specified.
    Wide,
    /// As some older QEMU has it: [`super::codec::wire::NarrowDmaAccess`].
    Narrow,
}

/// A read of so many bytes that a client which sees all of the count must refuse it (QEMU 11.1 answers E2BIG), while one
/// that sees the lower half has nothing to do and succeeds.
const LAYOUT_QUESTION: u64 = 1 << 32;

/// The requests and messages under way.
#[derive(Debug, Default)]
pub struct MessageDma {
    layout: Layout,
    requests: Vec<Request>,
    messages: Vec<Message>,
    next_wire_id: u16,
    next_serial: u64,
}

/// A reply that answers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedReply;

impl MessageDma {
    /// Takes requests from `function` and writes messages within the client's limits. Returns how many.
    pub fn pump<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        limits: Limits,
        outbox: &mut Outbox,
    ) -> u64 {
        while self.requests.len() < MAX_REQUESTS {
            let Some((id, request)) = function.next_dma() else {
                break;
            };
            match self.admit(id, request) {
                Ok(request) => self.requests.push(request),
                Err(reply) => function.dma_reply(id, reply),
            }
        }
        self.cancel_unwanted(function);
        if self.requests.is_empty()
            || !function.masters_bus()
            || !self.knows_layout(limits.is_qemu, outbox)
        {
            return 0;
        }
        self.issue(
            usize::try_from(limits.max_transfer).unwrap_or(usize::MAX),
            outbox,
        )
    }

    /// Asks QEMU once, before the first message that matters: in the wrong layout every byte would land beside its place.
    fn knows_layout(&mut self, is_qemu: bool, outbox: &mut Outbox) -> bool {
        match self.layout {
            Layout::Wide | Layout::Narrow => true,
            Layout::Unknown if !is_qemu => {
                self.layout = Layout::Wide;
                true
            }
            Layout::Unknown => {
                let id = self.next_wire_id;
                self.next_wire_id = id.wrapping_add(1);
                let question = Command::DmaRead {
                    iova: 0,
                    count: LAYOUT_QUESTION,
                };
                outbox.push(|out| (question.encode(id, false, out), None));
                self.layout = Layout::Asked(id);
                false
            }
            Layout::Asked(_) => false,
        }
    }

    /// A request that needs no message, or cannot be made, is answered at once.
    fn admit(&mut self, id: u64, request: DmaRequest) -> Result<Request, DmaReply> {
        let (iova, len, is_write) = match &request {
            DmaRequest::Read { iova, len } => (*iova, *len, false),
            DmaRequest::Write { iova, data } => (*iova, data.len(), true),
        };
        if len == 0 {
            return Err(Ok(Vec::new()));
        }
        if len > MAX_REQUEST {
            return Err(Err(Errno::TOOBIG));
        }
        if u64::try_from(len)
            .ok()
            .and_then(|len| iova.checked_add(len))
            .is_none()
        {
            return Err(Err(Errno::FAULT));
        }
        let data = match request {
            DmaRequest::Read { .. } => vec![0; len],
            DmaRequest::Write { data, .. } => data,
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        Ok(Request {
            id,
            serial,
            iova,
            is_write,
            data,
            issued: 0,
            open: 0,
            failed: None,
            forgotten: false,
        })
    }

    fn issue(&mut self, limit: usize, outbox: &mut Outbox) -> u64 {
        let mut count = 0;
        for request in &mut self.requests {
            while request.failed.is_none() && request.issued < request.data.len() {
                if self.messages.len() >= MAX_MESSAGES || outbox.is_full() {
                    return count;
                }
                let offset = request.issued;
                let len = limit.min(request.data.len() - offset);
                let wire_id = self.next_wire_id;
                // At most MAX_MESSAGES ids are taken, so this ends.
                self.next_wire_id = self.next_wire_id.wrapping_add(1);
                if self
                    .messages
                    .iter()
                    .any(|message| message.wire_id == wire_id)
                {
                    continue;
                }
                let iova = request.iova + widen(offset);
                let data = &request.data[offset..offset + len];
                let narrow = self.layout == Layout::Narrow;
                outbox.push(|out| {
                    match request.is_write {
                        true if narrow => narrow_dma_write(wire_id, iova, data, out),
                        true => Command::DmaWrite { iova, data }.encode(wire_id, false, out),
                        // Alike in both layouts.
                        false => Command::DmaRead {
                            iova,
                            count: widen(len),
                        }
                        .encode(wire_id, false, out),
                    }
                    ((), None)
                });
                self.messages.push(Message {
                    wire_id,
                    serial: request.serial,
                    offset,
                    len,
                });
                request.issued += len;
                request.open += 1;
                count += 1;
            }
        }
        count
    }

    /// Takes a reply from the client and, with the last one of a request, hands the result to `function`.
    ///
    /// # Errors
    /// No message of that id and command is under way.
    pub fn reply<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), UnexpectedReply> {
        let (id, code) = (header.id.get(), header.command.get());
        if self.layout == Layout::Asked(id) && code == command::DMA_READ {
            let refused = DmaReplyBody::error(header).is_some();
            self.layout = if refused {
                Layout::Wide
            } else {
                Layout::Narrow
            };
            return Ok(());
        }
        let at = self
            .messages
            .iter()
            .position(|message| message.wire_id == id)
            .ok_or(UnexpectedReply)?;
        let serial = self.messages[at].serial;
        let request = self
            .requests
            .iter_mut()
            .find(|request| request.serial == serial)
            .ok_or(UnexpectedReply)?;
        if code
            != if request.is_write {
                command::DMA_WRITE
            } else {
                command::DMA_READ
            }
        {
            return Err(UnexpectedReply);
        }
        let body = if self.layout == Layout::Narrow {
            DmaReplyBody::narrow_read
        } else {
            DmaReplyBody::read
        };
        let Message { offset, len, .. } = self.messages.swap_remove(at);
        request.open -= 1;
        if let Some(errno) = DmaReplyBody::error(header) {
            request.failed.get_or_insert(errno);
        } else if !request.is_write {
            match body(payload, request.iova + widen(offset), len) {
                Some(data) => request.data[offset..offset + len].copy_from_slice(data),
                None => _ = request.failed.get_or_insert(Errno::IO),
            }
        }
        self.settle(function);
        Ok(())
    }

    /// Hands over what has ended.
    fn settle<F: PciFunction + ?Sized>(&mut self, function: &mut F) {
        let ended = |r: &Request| r.open == 0 && (r.failed.is_some() || r.issued == r.data.len());
        while let Some(at) = self.requests.iter().position(ended) {
            let request = self.requests.remove(at);
            if request.forgotten {
                continue;
            }
            let reply = match request.failed {
                Some(errno) => Err(errno),
                None if request.is_write => Ok(Vec::new()),
                None => Ok(request.data),
            };
            function.dma_reply(request.id, reply);
        }
    }

    /// The function dropped work by itself, in a reset of a queue for example: asks for nothing more on its behalf.
    fn cancel_unwanted<F: PciFunction + ?Sized>(&mut self, function: &mut F) {
        for request in &mut self.requests {
            let open = !request.forgotten && request.issued < request.data.len();
            if open && !function.wants_dma(request.id) {
                request.failed.get_or_insert(Errno::CANCELED);
            }
        }
        self.settle(function);
    }

    /// After a reset: asks for nothing more, and swallows the replies still to come. Messages already sent cannot be
    /// taken back, and waiting for them would deadlock the client.
    pub fn forget(&mut self) {
        for request in &mut self.requests {
            request.forgotten = true;
            request.failed.get_or_insert(Errno::CANCELED);
        }
        self.requests.retain(|request| request.open > 0);
    }

    /// After an unmap: asks for nothing more in the range.
    pub fn unmapped<F: PciFunction + ?Sized>(&mut self, function: &mut F, unmap: DmaUnmap) {
        for request in &mut self.requests {
            let inside = match unmap {
                DmaUnmap::All => true,
                DmaUnmap::Range { iova, size } => {
                    request.iova < iova.saturating_add(size)
                        && iova < request.iova + widen(request.data.len())
                }
            };
            if inside && request.issued < request.data.len() {
                request.failed.get_or_insert(Errno::FAULT);
            }
        }
        self.settle(function);
    }

    /// Messages that wait for a reply.
    pub fn in_flight(&self) -> usize {
        self.messages.len()
    }
}

fn widen(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

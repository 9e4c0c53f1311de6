//! Commands in, calls to the function, replies out. One session is one connection; it holds no socket, so that it can be
//! driven byte by byte, fuzzed and replayed.
use super::check::{check_access, checked_irqs, checked_map, checked_unmap, irq};
use super::codec::wire::{Header, command, flags};
use super::codec::{
    Capabilities, Command, Limits, MultiWrites, Refusal, Reply, region_read_reply, size_field,
};
use super::inbox::{Descriptors, Inbox, Incoming};
use super::message_dma::{MessageDma, UnexpectedReply};
use super::outbox::Outbox;
use super::{IrqSet, PciFunction, Region};

/// QEMU refuses a PCI device with fewer (qemu client); absent ones are reported empty.
const MIN_REGIONS: usize = 9;
/// QEMU needs three; with five it finds every index of `linux/vfio.h`.
pub(super) const MIN_IRQS: usize = 5;
/// Refusals that are logged as warnings; a client can cause any number.
const LOUD_REFUSALS: u64 = 16;

/// What a message costs of a budget at least, in bytes.
pub const MESSAGE_COST: u64 = 256;
/// What a message costs that maps, unmaps or resets.
pub const HEAVY_COST: u64 = 16 << 10;

/// Why [`Session::serve_some`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// No whole message is left.
    All,
    /// The budget is used up: messages may be left.
    Budget,
    /// The client must take replies first.
    OutboxFull,
}

fn cost(header: &Header) -> u64 {
    let least = match header.command.get() {
        command::DMA_MAP | command::DMA_UNMAP | command::DEVICE_RESET => HEAVY_COST,
        _ => MESSAGE_COST,
    };
    least.max(header.size.get().into())
}

/// What a connection has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages received whole.
    pub messages: u64,
    /// Region writes that wanted no reply.
    pub posted_writes: u64,
    /// Commands refused, with or without a reply.
    pub refused: u64,
    /// `DMA_READ` and `DMA_WRITE` messages sent.
    pub dma_messages: u64,
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A header shorter than a header.
    #[error("{} claims {} bytes, less than its header: the stream cannot be followed any further", command::name(.0.command.get()), .0.size.get())]
    Broken(Header),
}

/// The state of one connection.
#[derive(Debug, Default)]
pub struct Session {
    limits: Option<Limits>,
    dma: MessageDma,
    outbox: Outbox,
    counters: Counters,
}

impl Session {
    /// Handles the messages that `inbox` holds, in order, until none is left or the client is too far behind to be given
    /// more replies.
    ///
    /// # Errors
    /// A stream that can no longer be followed: close the connection.
    pub fn serve<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        inbox: &mut Inbox,
    ) -> Result<(), SessionError> {
        let mut unlimited = u64::MAX;
        self.serve_some(function, inbox, &mut unlimited).map(drop)
    }

    /// Like [`Self::serve`], until `budget` is used up: that many bytes, where a message counts for
    /// [`MESSAGE_COST`] at least and one that changes the whole device for [`HEAVY_COST`]. Tells why it came back.
    ///
    /// # Errors
    /// Those of [`Self::serve`].
    pub fn serve_some<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        inbox: &mut Inbox,
        budget: &mut u64,
    ) -> Result<Served, SessionError> {
        while !self.outbox.is_full() {
            if *budget == 0 {
                return Ok(Served::Budget);
            }
            match inbox.next() {
                None => return Ok(Served::All),
                Some(Incoming::Message {
                    header,
                    payload,
                    descriptors,
                }) => {
                    *budget = budget.saturating_sub(cost(&header));
                    self.message(function, &header, payload, descriptors);
                }
                Some(Incoming::TooLong(header)) => {
                    *budget = budget.saturating_sub(MESSAGE_COST);
                    self.counters.messages += 1;
                    let limit = size_field(super::codec::MAX_MESSAGE).into();
                    self.refuse(
                        &header,
                        &Refusal::TooLarge {
                            what: "message",
                            got: header.size.get().into(),
                            limit,
                        },
                    );
                }
                Some(Incoming::Broken(header)) => return Err(SessionError::Broken(header)),
            }
        }
        Ok(Served::OutboxFull)
    }

    /// Turns the function's requests for client memory into messages.
    pub fn pump_dma<F: PciFunction + ?Sized>(&mut self, function: &mut F) {
        // Before VERSION there is no limit to keep to.
        let Some(limits) = self.limits else { return };
        let sent = self.dma.pump(function, limits, &mut self.outbox);
        if sent > 0 && self.counters.dma_messages == 0 {
            tracing::warn!(
                "guest memory is reached by messages, which is slow: give QEMU a shared backend, \
                 -object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem"
            );
        }
        self.counters.dma_messages += sent;
    }

    /// What waits to be sent.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether the client must take replies before it is served further.
    pub fn is_behind(&self) -> bool {
        self.outbox.is_full()
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// `DMA_READ` and `DMA_WRITE` messages that the client has not answered.
    pub fn dma_in_flight(&self) -> usize {
        self.dma.in_flight()
    }

    fn message<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        header: &Header,
        payload: &[u8],
        descriptors: Descriptors,
    ) {
        self.counters.messages += 1;
        let result = match header.flags.get() & flags::TYPE {
            flags::COMMAND => self.command(function, header, payload, descriptors),
            flags::REPLY => {
                if self.dma.reply(function, header, payload) == Err(UnexpectedReply) {
                    let (id, name) = (header.id.get(), command::name(header.command.get()));
                    tracing::debug!(
                        id,
                        "the client answered a {name} that was not asked, or no longer waited for"
                    );
                }
                Ok(())
            }
            other => Err(Refusal::MessageType(other)),
        };
        if let Err(refusal) = result {
            self.refuse(header, &refusal);
        }
    }

    fn refuse(&mut self, header: &Header, refusal: &Refusal) {
        let code = header.command.get();
        let (name, id) = (command::name(code), header.id.get());
        self.counters.refused += 1;
        match self.counters.refused {
            ..LOUD_REFUSALS => tracing::warn!(id, "{name} refused: {refusal}"),
            LOUD_REFUSALS => tracing::warn!(
                id,
                "{name} refused: {refusal} (further ones at level debug)"
            ),
            _ => tracing::debug!(id, "{name} refused: {refusal}"),
        }
        self.answer(
            header,
            &Reply::Error {
                command: code,
                errno: refusal.errno(),
            },
        );
    }

    /// Posted commands get no answer, not even an error: QEMU would take it for the answer to something else.
    fn answer(&mut self, header: &Header, reply: &Reply<'_>) {
        if header.flags.get() & flags::NO_REPLY == 0 {
            self.outbox
                .push(|out| (reply.encode(header.id.get(), out), None));
        }
    }

    fn command<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        header: &Header,
        payload: &[u8],
        descriptors: Descriptors,
    ) -> Result<(), Refusal> {
        let code = header.command.get();
        let Some(limits) = self.limits else {
            return if code == command::VERSION {
                self.version(header, payload)
            } else {
                Err(Refusal::NotNegotiated)
            };
        };
        match Command::decode(code, payload)? {
            Command::RegionWrite {
                region,
                offset,
                data,
            } => {
                write_region(function, limits, region, offset, data)?;
                if header.flags.get() & flags::NO_REPLY == 0 {
                    let count = size_field(data.len());
                    self.answer(
                        header,
                        &Reply::RegionWrite {
                            region,
                            offset,
                            count,
                        },
                    );
                } else {
                    self.counters.posted_writes += 1;
                }
            }
            Command::RegionRead {
                region,
                offset,
                count,
            } => {
                self.read_region(function, limits, header, (region, offset, count))?;
            }
            Command::RegionWriteMulti(writes) => {
                write_regions(function, limits, writes)?;
                self.answer(header, &Reply::Done { command: code });
            }
            Command::DmaMap(map) => {
                function.dma_map(checked_map(&map, descriptors)?)?;
                self.answer(header, &Reply::Done { command: code });
            }
            Command::DmaUnmap(unmap) => {
                let checked = checked_unmap(&unmap)?;
                function.dma_unmap(checked)?;
                self.dma.unmapped(function, checked);
                self.answer(header, &Reply::DmaUnmap(unmap));
            }
            Command::DeviceGetInfo { .. } => {
                let info = function.info();
                let regions = size_field(info.regions.len().max(MIN_REGIONS));
                let irqs = size_field(info.irqs.len().max(MIN_IRQS));
                self.answer(header, &Reply::DeviceInfo { regions, irqs });
            }
            Command::DeviceGetRegionInfo { argsz, index } => {
                self.region_info(function, limits, header, argsz, index)?;
            }
            Command::DeviceGetIrqInfo { index, .. } => {
                let irq = irq(function, index)?;
                self.answer(header, &Reply::IrqInfo { index, irq });
            }
            Command::SetIrqs {
                index,
                start,
                count,
                verb,
                data,
            } => {
                let irq = irq(function, index)?;
                let action = checked_irqs(irq, start, count, verb, data, descriptors)?;
                function.set_irqs(IrqSet {
                    index,
                    start,
                    action,
                })?;
                self.answer(header, &Reply::Done { command: code });
            }
            Command::DeviceReset => {
                function.reset();
                self.dma.forget();
                self.answer(header, &Reply::Done { command: code });
            }
            Command::DeviceFeature { flags, .. } => {
                return Err(Refusal::NoSuchFeature(flags & 0xffff));
            }
            Command::Version { .. } => {
                return Err(Refusal::Invalid("VERSION was already negotiated"));
            }
            Command::DmaRead { .. } | Command::DmaWrite { .. } => {
                return Err(Refusal::Invalid("only the server sends this command"));
            }
        }
        Ok(())
    }

    fn version(&mut self, header: &Header, payload: &[u8]) -> Result<(), Refusal> {
        let Command::Version { major, minor, data } = Command::decode(command::VERSION, payload)?
        else {
            return Err(Refusal::NotNegotiated);
        };
        if major != 0 {
            return Err(Refusal::MajorVersion(major));
        }
        let capabilities = Capabilities::decode(data)?;
        let limits = capabilities.limits()?;
        self.limits = Some(limits);
        tracing::debug!(
            major,
            minor,
            ?capabilities,
            max_transfer = limits.max_transfer,
            "VERSION"
        );
        self.answer(
            header,
            &Reply::Version {
                data: &Capabilities::server_data(data.len()),
            },
        );
        Ok(())
    }

    fn read_region<F: PciFunction + ?Sized>(
        &mut self,
        function: &mut F,
        limits: Limits,
        header: &Header,
        access: (u32, u64, u32),
    ) -> Result<(), Refusal> {
        let (region, offset, count) = access;
        let permitted = check_access(function, limits, region, offset, count.into())?.0;
        if !permitted {
            return Err(Refusal::Access {
                region,
                verb: "read",
            });
        }
        if header.flags.get() & flags::NO_REPLY != 0 {
            // Reading without a reply can only be for the read's side effect.
            let mut data = vec![0; usize::try_from(count).unwrap_or_default()];
            return Ok(function.region_read(region, offset, &mut data)?);
        }
        let id = header.id.get();
        let result = self.outbox.push(|out| {
            (
                region_read_reply(id, access, out, |data| {
                    read_nonempty(function, region, offset, data)
                }),
                None,
            )
        });
        Ok(result?)
    }

    fn region_info<F: PciFunction + ?Sized>(
        &mut self,
        function: &F,
        limits: Limits,
        header: &Header,
        argsz: u32,
        index: u32,
    ) -> Result<(), Refusal> {
        let regions = &function.info().regions;
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let absent = Region::default();
        let trapped;
        let region = match regions.get(at) {
            // Without descriptors the areas could not be mapped; say that the region is trapped.
            Some(region) if region.mmap.is_some() && !limits.passes_fds => {
                trapped = Region {
                    mmap: None,
                    ..region.clone()
                };
                &trapped
            }
            Some(region) => region,
            None if at < MIN_REGIONS => &absent,
            None => {
                return Err(Refusal::NoSuchIndex {
                    what: "region",
                    index,
                });
            }
        };
        if header.flags.get() & flags::NO_REPLY == 0 {
            self.outbox.push(|out| {
                let pass = Reply::RegionInfo {
                    argsz,
                    index,
                    region,
                }
                .encode(header.id.get(), out);
                let file = region
                    .mmap
                    .as_ref()
                    .filter(|_| pass)
                    .map(|mmap| mmap.file.clone());
                ((), file)
            });
        }
        Ok(())
    }
}

fn write_region<F: PciFunction + ?Sized>(
    function: &mut F,
    limits: Limits,
    region: u32,
    offset: u64,
    data: &[u8],
) -> Result<(), Refusal> {
    let (_, permitted) = check_access(
        function,
        limits,
        region,
        offset,
        size_field(data.len()).into(),
    )?;
    if !permitted {
        return Err(Refusal::Access {
            region,
            verb: "written",
        });
    }
    // An access of nothing succeeds and is none.
    if data.is_empty() {
        Ok(())
    } else {
        Ok(function.region_write(region, offset, data)?)
    }
}

fn read_nonempty<F: PciFunction + ?Sized>(
    function: &mut F,
    region: u32,
    offset: u64,
    data: &mut [u8],
) -> Result<(), rustix::io::Errno> {
    if data.is_empty() {
        Ok(())
    } else {
        function.region_read(region, offset, data)
    }
}

/// Every write is tried; the first failure is reported.
fn write_regions<F: PciFunction + ?Sized>(
    function: &mut F,
    limits: Limits,
    writes: MultiWrites<'_>,
) -> Result<(), Refusal> {
    let mut first = Ok(());
    for write in writes.iter() {
        let result = write.and_then(|(region, offset, data)| {
            write_region(function, limits, region, offset, data)
        });
        first = first.and(result);
    }
    first
}

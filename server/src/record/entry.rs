//! The entries of a recording.
//!
//! An input (a call) is followed by what happened inside it (memory, events) and by its result. Nothing here is believed
//! when it is read back: lengths are bounded, tags checked.
use super::bytes::{Decoder, Malformed, put_bytes, put_number};
pub use super::content::Content;
use crate::memory::Place;
use crate::vfio::{DmaReply, DmaRequest, DmaUnmap, Progress, Protection};
use rustix::io::Errno;

/// What a `SET_IRQS` asks for, without the eventfds themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Irqs {
    /// The vfio interrupt index.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// 0: attach an eventfd where the flag is set, else detach; 1: mask; 2: unmask; 3: trigger.
    pub action: u8,
    /// One per vector.
    pub flags: Vec<bool>,
}

/// Why a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The device ended.
    Stopped,
    /// `--record-limit` was reached.
    Limit,
    /// The file could not be written as fast as the device worked.
    Slow,
    /// Somebody asked for it.
    Asked,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Input: device time moved on, nanoseconds.
    Tick(u64),
    /// Input: a region is read.
    Read {
        /// vfio region index.
        region: u32,
        /// Offset in it.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// Input: a region is written.
    Write {
        /// vfio region index.
        region: u32,
        /// Offset in it.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Input: guest memory is mapped.
    Map {
        /// First I/O virtual address.
        iova: u64,
        /// Bytes.
        size: u64,
        /// Permitted accesses.
        protection: Protection,
        /// Bytes that the file behind it had, if there was one.
        file: Option<u64>,
    },
    /// Input: guest memory is unmapped.
    Unmap(DmaUnmap),
    /// Input: interrupts are configured.
    SetIrqs(Irqs),
    /// Input: the device is reset by the client.
    Reset,
    /// Input: the client is gone.
    Disconnect,
    /// Input: a slice of work.
    Run,
    /// Input: the wire asks for the next access to be made by message.
    NextDma,
    /// Input: the client answered such an access.
    DmaReply {
        /// Which.
        id: u64,
        /// How.
        reply: DmaReply,
    },
    /// Input: a person asked for something, in the words of the control socket.
    Order(String),

    /// Result: it succeeded, with nothing to say.
    Done,
    /// Result: it failed.
    Failed(Errno),
    /// Result: the bytes of a read.
    Data(Content),
    /// Result: of a slice.
    Progress(Progress),
    /// Result: the access to be made, if any.
    Request(Option<(u64, DmaRequest)>),
    /// Result: of an order.
    Answer(String),

    /// Inside: the device read memory. Part of the input.
    Loaded {
        /// Where.
        place: Place,
        /// What it got.
        content: Content,
        /// The memory was gone.
        lost: bool,
    },
    /// Inside: the device wrote memory.
    Stored {
        /// Where.
        place: Place,
        /// What.
        content: Content,
        /// The memory was gone. Part of the input.
        lost: bool,
    },
    /// Inside: mapped guest memory of which less is there. Part of the input.
    Present {
        /// Guest-physical address.
        guest: u64,
        /// Bytes asked for.
        len: usize,
        /// Bytes there.
        found: usize,
    },
    /// Inside: an event.
    Event {
        /// Engine and queue, if it is not about the whole device.
        queue: Option<(u8, u8)>,
        /// In words.
        text: String,
    },
    /// The recording ends here, on purpose.
    End(End),
}

impl Entry {
    /// A call into the device.
    pub const fn is_input(&self) -> bool {
        matches!(
            self,
            Self::Tick(_)
                | Self::Read { .. }
                | Self::Write { .. }
                | Self::Map { .. }
                | Self::Unmap(_)
                | Self::SetIrqs(_)
                | Self::Reset
                | Self::Disconnect
                | Self::Run
                | Self::NextDma
                | Self::DmaReply { .. }
                | Self::Order(_)
        )
    }

    /// What a call came to.
    pub const fn is_result(&self) -> bool {
        matches!(
            self,
            Self::Done
                | Self::Failed(_)
                | Self::Data(_)
                | Self::Progress(_)
                | Self::Request(_)
                | Self::Answer(_)
        )
    }
}

fn put_place(out: &mut Vec<u8>, place: Place) {
    let (kind, at) = match place {
        Place::Guest(at) => (0, at),
        Place::Hbm(at) => (1, at),
        Place::Tile(at) => (2, at),
    };
    out.push(kind);
    put_number(out, at);
}

fn place(from: &mut Decoder<'_>) -> Result<Place, Malformed> {
    let kind = from.byte()?;
    let at = from.number()?;
    Ok(match kind {
        0 => Place::Guest(at),
        1 => Place::Hbm(at),
        2 => Place::Tile(at),
        _ => return Err(from.error("a place is of kind 0 to 2")),
    })
}

fn put_errno(out: &mut Vec<u8>, errno: Errno) {
    put_number(out, u64::from(errno.raw_os_error().unsigned_abs()));
}

fn errno(from: &mut Decoder<'_>) -> Result<Errno, Malformed> {
    let number = from.number()?;
    i32::try_from(number)
        .ok()
        .filter(|number| (1..4096).contains(number))
        .map(Errno::from_raw_os_error)
        .ok_or_else(|| from.error("an error number is from 1 to 4095"))
}

fn flag(from: &mut Decoder<'_>) -> Result<bool, Malformed> {
    match from.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(from.error("a flag is 0 or 1")),
    }
}

impl Entry {
    /// Appends it.
    #[expect(clippy::too_many_lines, reason = "an entry per arm")]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tick(delta) => {
                out.push(1);
                put_number(out, *delta);
            }
            Self::Read {
                region,
                offset,
                len,
            } => {
                out.push(2);
                put_number(out, u64::from(*region));
                put_number(out, *offset);
                put_number(out, *len as u64);
            }
            Self::Write {
                region,
                offset,
                data,
            } => {
                out.push(3);
                put_number(out, u64::from(*region));
                put_number(out, *offset);
                put_bytes(out, data);
            }
            Self::Map {
                iova,
                size,
                protection,
                file,
            } => {
                out.push(4);
                put_number(out, *iova);
                put_number(out, *size);
                out.push(u8::from(protection.read) | u8::from(protection.write) << 1);
                out.push(u8::from(file.is_some()));
                put_number(out, file.unwrap_or(0));
            }
            Self::Unmap(DmaUnmap::All) => out.push(5),
            Self::Unmap(DmaUnmap::Range { iova, size }) => {
                out.push(6);
                put_number(out, *iova);
                put_number(out, *size);
            }
            Self::SetIrqs(irqs) => {
                out.push(7);
                put_number(out, u64::from(irqs.index));
                put_number(out, u64::from(irqs.start));
                out.push(irqs.action);
                put_number(out, irqs.flags.len() as u64);
                out.extend(irqs.flags.iter().map(|flag| u8::from(*flag)));
            }
            Self::Reset => out.push(8),
            Self::Disconnect => out.push(9),
            Self::Run => out.push(10),
            Self::NextDma => out.push(11),
            Self::DmaReply { id, reply } => {
                out.push(12);
                put_number(out, *id);
                match reply {
                    Ok(bytes) => {
                        out.push(0);
                        put_bytes(out, bytes);
                    }
                    Err(error) => {
                        out.push(1);
                        put_errno(out, *error);
                    }
                }
            }
            Self::Order(text) => {
                out.push(13);
                put_bytes(out, text.as_bytes());
            }
            Self::Done => out.push(32),
            Self::Failed(error) => {
                out.push(33);
                put_errno(out, *error);
            }
            Self::Data(content) => {
                out.push(34);
                content.encode(out);
            }
            Self::Progress(Progress::Idle) => out.push(35),
            Self::Progress(Progress::Again) => out.push(36),
            Self::Progress(Progress::After(delay)) => {
                out.push(37);
                put_number(out, nanoseconds(*delay));
            }
            Self::Request(None) => out.push(38),
            Self::Request(Some((id, DmaRequest::Read { iova, len }))) => {
                out.push(39);
                put_number(out, *id);
                put_number(out, *iova);
                put_number(out, *len as u64);
            }
            Self::Request(Some((id, DmaRequest::Write { iova, data }))) => {
                out.push(40);
                put_number(out, *id);
                put_number(out, *iova);
                put_bytes(out, data);
            }
            Self::Answer(text) => {
                out.push(41);
                put_bytes(out, text.as_bytes());
            }
            Self::Loaded {
                place,
                content,
                lost,
            } => {
                out.push(64);
                put_place(out, *place);
                out.push(u8::from(*lost));
                content.encode(out);
            }
            Self::Stored {
                place,
                content,
                lost,
            } => {
                out.push(65);
                put_place(out, *place);
                out.push(u8::from(*lost));
                content.encode(out);
            }
            Self::Present { guest, len, found } => {
                out.push(66);
                put_number(out, *guest);
                put_number(out, *len as u64);
                put_number(out, *found as u64);
            }
            Self::Event { queue: None, text } => {
                out.push(67);
                put_bytes(out, text.as_bytes());
            }
            Self::Event {
                queue: Some((engine, queue)),
                text,
            } => {
                out.extend([68, *engine, *queue]);
                put_bytes(out, text.as_bytes());
            }
            Self::End(end) => out.extend([
                96,
                match end {
                    End::Stopped => 0,
                    End::Limit => 1,
                    End::Slow => 2,
                    End::Asked => 3,
                },
            ]),
        }
    }

    /// Takes one.
    ///
    /// # Errors
    /// The bytes are none.
    #[expect(clippy::too_many_lines, reason = "an entry per arm")]
    pub fn decode(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(match from.byte()? {
            1 => Self::Tick(from.number()?),
            2 => Self::Read {
                region: from.word()?,
                offset: from.number()?,
                len: from.length()?,
            },
            3 => Self::Write {
                region: from.word()?,
                offset: from.number()?,
                data: from.bytes()?.to_vec(),
            },
            4 => {
                let (iova, size, bits) = (from.number()?, from.number()?, from.byte()?);
                if !(1..4).contains(&bits) {
                    return Err(from.error("a mapping is readable, writable or both"));
                }
                let (has_file, present) = (flag(from)?, from.number()?);
                Self::Map {
                    iova,
                    size,
                    protection: Protection {
                        read: bits & 1 != 0,
                        write: bits & 2 != 0,
                    },
                    file: has_file.then_some(present),
                }
            }
            5 => Self::Unmap(DmaUnmap::All),
            6 => Self::Unmap(DmaUnmap::Range {
                iova: from.number()?,
                size: from.number()?,
            }),
            7 => {
                let (index, start, action) = (from.word()?, from.word()?, from.byte()?);
                let flags = from.bytes()?.iter().map(|byte| *byte != 0).collect();
                if action > 3 {
                    return Err(from.error("an interrupt action is from 0 to 3"));
                }
                Self::SetIrqs(Irqs {
                    index,
                    start,
                    action,
                    flags,
                })
            }
            8 => Self::Reset,
            9 => Self::Disconnect,
            10 => Self::Run,
            11 => Self::NextDma,
            12 => Self::DmaReply {
                id: from.number()?,
                reply: if flag(from)? {
                    Err(errno(from)?)
                } else {
                    Ok(from.bytes()?.to_vec())
                },
            },
            13 => Self::Order(from.text()?.to_owned()),
            32 => Self::Done,
            33 => Self::Failed(errno(from)?),
            34 => Self::Data(Content::decode(from)?),
            35 => Self::Progress(Progress::Idle),
            36 => Self::Progress(Progress::Again),
            37 => Self::Progress(Progress::After(std::time::Duration::from_nanos(
                from.number()?,
            ))),
            38 => Self::Request(None),
            39 => Self::Request(Some((
                from.number()?,
                DmaRequest::Read {
                    iova: from.number()?,
                    len: from.length()?,
                },
            ))),
            40 => Self::Request(Some((
                from.number()?,
                DmaRequest::Write {
                    iova: from.number()?,
                    data: from.bytes()?.to_vec(),
                },
            ))),
            41 => Self::Answer(from.text()?.to_owned()),
            64 => Self::Loaded {
                place: place(from)?,
                lost: flag(from)?,
                content: Content::decode(from)?,
            },
            65 => Self::Stored {
                place: place(from)?,
                lost: flag(from)?,
                content: Content::decode(from)?,
            },
            66 => Self::Present {
                guest: from.number()?,
                len: from.length()?,
                found: from.length()?,
            },
            67 => Self::Event {
                queue: None,
                text: from.text()?.to_owned(),
            },
            68 => Self::Event {
                queue: Some((from.byte()?, from.byte()?)),
                text: from.text()?.to_owned(),
            },
            96 => Self::End(match from.byte()? {
                0 => End::Stopped,
                1 => End::Limit,
                2 => End::Slow,
                3 => End::Asked,
                _ => return Err(from.error("an end is of kind 0 to 3")),
            }),
            _ => return Err(from.error("an entry begins with a known tag")),
        })
    }
}

/// A duration as 64 bits hold it: 584 years.
pub fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[expect(clippy::too_many_lines, reason = "one of each")]
    fn all() -> Vec<Entry> {
        let rw = Protection {
            read: true,
            write: true,
        };
        let contents = [
            Content::Bytes(vec![1, 2, 3]),
            Content::Fill { byte: 7, len: 4096 },
            Content::Absent {
                len: 65_536,
                hash: 0x0123_4567_89ab_cdef,
            },
            Content::AsRead { len: 64 },
            Content::Digest {
                len: 100,
                hash: 5,
                head: vec![9; 16],
            },
        ];
        let mut all = vec![
            Entry::Tick(123_456_789),
            Entry::Read {
                region: 0,
                offset: 0x680_1038,
                len: 4,
            },
            Entry::Write {
                region: 4,
                offset: 0,
                data: vec![0xff; 8],
            },
            Entry::Map {
                iova: 1 << 32,
                size: 4096,
                protection: rw,
                file: Some(4096),
            },
            Entry::Map {
                iova: 0,
                size: 4096,
                protection: rw,
                file: None,
            },
            Entry::Unmap(DmaUnmap::All),
            Entry::Unmap(DmaUnmap::Range { iova: 1, size: 2 }),
            Entry::SetIrqs(Irqs {
                index: 2,
                start: 0,
                action: 0,
                flags: vec![true, false],
            }),
            Entry::Reset,
            Entry::Disconnect,
            Entry::Run,
            Entry::NextDma,
            Entry::DmaReply {
                id: 3,
                reply: Ok(vec![1]),
            },
            Entry::DmaReply {
                id: 3,
                reply: Err(Errno::FAULT),
            },
            Entry::Order("core 0 3 ff".to_owned()),
            Entry::Done,
            Entry::Failed(Errno::INVAL),
            Entry::Progress(Progress::Idle),
            Entry::Progress(Progress::Again),
            Entry::Progress(Progress::After(Duration::from_micros(5))),
            Entry::Request(None),
            Entry::Request(Some((1, DmaRequest::Read { iova: 2, len: 3 }))),
            Entry::Request(Some((
                1,
                DmaRequest::Write {
                    iova: 2,
                    data: vec![3],
                },
            ))),
            Entry::Answer("ok".to_owned()),
            Entry::Present {
                guest: 1,
                len: 2,
                found: 0,
            },
            Entry::Event {
                queue: None,
                text: "device reset".to_owned(),
            },
            Entry::Event {
                queue: Some((128, 0)),
                text: "marker".to_owned(),
            },
            Entry::End(End::Limit),
        ];
        for content in contents {
            all.push(Entry::Data(content.clone()));
            for lost in [false, true] {
                let (place, content) = (Place::Hbm(1 << 30), content.clone());
                all.push(Entry::Loaded {
                    place,
                    content: content.clone(),
                    lost,
                });
                all.push(Entry::Stored {
                    place,
                    content,
                    lost,
                });
            }
        }
        all
    }

    #[test]
    fn every_entry_reads_back_and_no_prefix_of_it_does() {
        for entry in all() {
            let mut out = Vec::new();
            entry.encode(&mut out);
            let mut decoder = Decoder::new(&out);
            assert_eq!(Entry::decode(&mut decoder), Ok(entry.clone()));
            assert!(decoder.is_empty(), "{entry:?}");
            for len in 0..out.len() {
                assert!(Entry::decode(&mut Decoder::new(&out[..len])).is_err());
            }
        }
    }
}

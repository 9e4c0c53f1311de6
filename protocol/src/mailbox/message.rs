//! Mailbox messages as bytes and words: headers, CRC, build and parse (contract §4.1, §4.2).

use crc::{CRC_32_ISCSI, Crc, Table};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian};

use super::{BUFFER_SIZE, Command, DATA_WINDOW_SIZE, Sequence, Status};

/// Bytes of a request header, both transports (contract §4.1).
pub const REQUEST_HEADER_SIZE: usize = size_of::<RequestHeader>();

/// Bytes of a legacy response header (contract §4.1).
pub const RESPONSE_HEADER_SIZE: usize = size_of::<ResponseHeader>();

/// Bytes a register response counts for its header: the word, and a CRC that no driver reads
/// (facts §5.3).
///
/// 2.25.4.0 counts 4 instead. It reads no more than it asked for, so that 8 is right for both: it
/// finds 4 bytes beyond the payload, at most. With 4, a later driver would compute a payload of
/// -4 bytes.
pub const REGISTER_RESPONSE_HEADER_SIZE: usize = 8;

const CRC32C: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI);

/// Header of a request, 8 bytes, both transports.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RequestHeader {
    /// [`Sequence`]; 0 in no request.
    pub sequence: u8,
    /// [`Command`] number.
    pub command: u8,
    /// Bytes of header and payload.
    pub size: little_endian::U16,
    /// CRC-32C of header and payload, computed with this field 0.
    pub crc: little_endian::U32,
}

impl RequestHeader {
    /// Header for `payload`. `None` if header and payload exceed the 16-bit size.
    pub fn for_payload(sequence: Sequence, command: Command, payload: &[u8]) -> Option<Self> {
        let size = u16::try_from(REQUEST_HEADER_SIZE.checked_add(payload.len())?).ok()?;
        let mut header = Self {
            sequence: sequence.get(),
            command: command.number(),
            size: size.into(),
            crc: 0.into(),
        };
        header.crc = header.checksum(payload).into();
        Some(header)
    }

    /// CRC-32C (polynomial 0x1edc6f41 reflected, initial value and final xor all ones) over this
    /// header with its CRC field 0, then `payload` (contract §4.1).
    pub fn checksum(&self, payload: &[u8]) -> u32 {
        let mut digest = CRC32C.digest();
        digest.update(
            Self {
                crc: 0.into(),
                ..*self
            }
            .as_bytes(),
        );
        digest.update(payload);
        digest.finalize()
    }

    /// The two words of the register transport: MR+0x1f0 and MR+0x1f4 (contract §4.2).
    pub fn to_words(self) -> [u32; 2] {
        let [b0, b1] = self.size.get().to_le_bytes();
        [
            u32::from_le_bytes([self.sequence, self.command, b0, b1]),
            self.crc.get(),
        ]
    }

    /// The reverse of [`to_words`](Self::to_words).
    pub fn from_words(words: [u32; 2]) -> Self {
        let [sequence, command, s0, s1] = words[0].to_le_bytes();
        Self {
            sequence,
            command,
            size: u16::from_le_bytes([s0, s1]).into(),
            crc: words[1].into(),
        }
    }
}

/// Header of a response, 4 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ResponseHeader {
    /// Sequence number of the request. Written last: the driver polls it.
    pub sequence: u8,
    /// [`Status`].
    pub status: u8,
    /// Bytes of header and payload.
    pub size: little_endian::U16,
}

impl ResponseHeader {
    /// Header of a register response with `payload` bytes in the data window. `None` if they do
    /// not fit there.
    pub fn for_register(sequence: Sequence, status: Status, payload: usize) -> Option<Self> {
        if payload > DATA_WINDOW_SIZE {
            return None;
        }
        let size = u16::try_from(REGISTER_RESPONSE_HEADER_SIZE + payload).ok()?;
        Some(Self {
            sequence: sequence.get(),
            status: status.into(),
            size: size.into(),
        })
    }

    /// CRC-32C of a register response: like a request's, over the eight bytes of the header with the CRC 0, then
    /// `payload`. Newer firmware puts it at MR+0x1f4; no driver reads it (facts §5.3).
    pub fn register_checksum(self, payload: &[u8]) -> u32 {
        RequestHeader::from_words([self.to_word(), 0]).checksum(payload)
    }

    /// The word of the register transport, read back from MR+0x1f0 (contract §4.2).
    pub fn to_word(self) -> u32 {
        let [s0, s1] = self.size.get().to_le_bytes();
        u32::from_le_bytes([self.sequence, self.status, s0, s1])
    }

    /// The reverse of [`to_word`](Self::to_word).
    pub fn from_word(word: u32) -> Self {
        let [sequence, status, s0, s1] = word.to_le_bytes();
        Self {
            sequence,
            status,
            size: u16::from_le_bytes([s0, s1]).into(),
        }
    }
}

/// Why bytes are no request or no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MailboxError {
    /// Shorter than a header.
    #[error("{0} bytes are shorter than a mailbox header")]
    Truncated(usize),
    /// The size field is less than a header or more than what is there.
    #[error("mailbox size field {size}: must be {header}..={available}")]
    Size {
        /// Value of the field.
        size: u16,
        /// Least it can be.
        header: usize,
        /// Bytes that are there.
        available: usize,
    },
    /// The CRC-32C over the request differs from the header's.
    #[error("mailbox request CRC is {found:#010x}, its header says {stated:#010x}")]
    Crc {
        /// Value of the field.
        stated: u32,
        /// Value computed.
        found: u32,
    },
    /// A request with sequence number 0, which the driver uses for "no response yet".
    #[error("mailbox request with sequence number 0")]
    Sequence,
    /// Header and payload do not fit in the buffer or in the 16-bit size.
    #[error("a mailbox message of {size} bytes does not fit in {available}")]
    TooLarge {
        /// Bytes of header and payload.
        size: usize,
        /// Most there can be.
        available: usize,
    },
}

/// A well-formed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// To be copied into the response.
    pub sequence: Sequence,
    /// Number of the command, known or not; see [`Command::from_number`].
    pub command: u8,
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads a request from `bytes`, which may be longer than it (the whole host buffer).
    ///
    /// # Errors
    /// [`MailboxError`]; such a request is not answered, for its sequence number cannot be trusted.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MailboxError> {
        let (header, rest) = RequestHeader::read_from_prefix(bytes)
            .map_err(|_| MailboxError::Truncated(bytes.len()))?;
        Self::from_parts(header, rest)
    }

    /// Joins a header, wherever it was read from, with the start of `data`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn from_parts(header: RequestHeader, data: &'a [u8]) -> Result<Self, MailboxError> {
        let size = header.size.get();
        let payload = usize::from(size)
            .checked_sub(REQUEST_HEADER_SIZE)
            .and_then(|length| data.get(..length))
            .ok_or(MailboxError::Size {
                size,
                header: REQUEST_HEADER_SIZE,
                available: REQUEST_HEADER_SIZE.saturating_add(data.len()),
            })?;
        let (stated, found) = (header.crc.get(), header.checksum(payload));
        if stated != found {
            return Err(MailboxError::Crc { stated, found });
        }
        let sequence = Sequence::new(header.sequence).ok_or(MailboxError::Sequence)?;
        Ok(Self {
            sequence,
            command: header.command,
            payload,
        })
    }

    /// Device addresses a [`Command::Read`] asks for, in order. A partial last one is left out.
    pub fn read_addresses(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.payload
            .chunks_exact(8)
            .filter_map(|bytes| bytes.try_into().ok().map(u64::from_le_bytes))
    }
}

/// Writes a request into `buffer` and gives its length.
///
/// # Errors
/// [`MailboxError::TooLarge`].
pub fn build_request(
    buffer: &mut [u8],
    sequence: Sequence,
    command: Command,
    payload: &[u8],
) -> Result<usize, MailboxError> {
    let size = REQUEST_HEADER_SIZE.saturating_add(payload.len());
    let too_large = MailboxError::TooLarge {
        size,
        available: buffer.len().min(BUFFER_SIZE),
    };
    let header = RequestHeader::for_payload(sequence, command, payload).ok_or(too_large)?;
    let target = buffer.get_mut(..size).ok_or(too_large)?;
    let (head, data) = target.split_at_mut(REQUEST_HEADER_SIZE);
    head.copy_from_slice(header.as_bytes());
    data.copy_from_slice(payload);
    Ok(size)
}

/// A well-formed response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// Sequence number of the request it answers; 0 is "no response yet".
    pub sequence: u8,
    /// Outcome.
    pub status: Status,
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> Response<'a> {
    /// Reads a legacy response from `bytes`, which may be longer than it.
    ///
    /// # Errors
    /// [`MailboxError::Truncated`] and [`MailboxError::Size`]; a legacy response has no CRC.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MailboxError> {
        let (header, rest) = ResponseHeader::read_from_prefix(bytes)
            .map_err(|_| MailboxError::Truncated(bytes.len()))?;
        let size = header.size.get();
        let payload = usize::from(size)
            .checked_sub(RESPONSE_HEADER_SIZE)
            .and_then(|length| rest.get(..length))
            .ok_or(MailboxError::Size {
                size,
                header: RESPONSE_HEADER_SIZE,
                available: bytes.len(),
            })?;
        Ok(Self {
            sequence: header.sequence,
            status: header.status.into(),
            payload,
        })
    }
}

/// Writes a legacy response into `buffer` and gives its length.
///
/// The first byte is what the driver polls: a device must make it visible after all others.
///
/// # Errors
/// [`MailboxError::TooLarge`].
pub fn build_response(
    buffer: &mut [u8],
    sequence: Sequence,
    status: Status,
    payload: &[u8],
) -> Result<usize, MailboxError> {
    let size = RESPONSE_HEADER_SIZE.saturating_add(payload.len());
    let too_large = MailboxError::TooLarge {
        size,
        available: buffer.len().min(BUFFER_SIZE),
    };
    let target = buffer.get_mut(..size).ok_or(too_large)?;
    let header = ResponseHeader {
        sequence: sequence.get(),
        status: status.into(),
        size: u16::try_from(size).map_err(|_| too_large)?.into(),
    };
    let (head, data) = target.split_at_mut(RESPONSE_HEADER_SIZE);
    head.copy_from_slice(header.as_bytes());
    data.copy_from_slice(payload);
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_crc_32c() {
        // RFC 3720 B.4: 32 bytes of zeros. Header and payload together are those 32 bytes.
        let zero = RequestHeader {
            sequence: 0,
            command: 0,
            size: 0.into(),
            crc: 0.into(),
        };
        assert_eq!(zero.checksum(&[0; 24]), 0x8a91_36aa);
        assert_eq!(CRC32C.checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn the_crc_field_does_not_enter_its_own_sum() {
        let a = RequestHeader::for_payload(Sequence::FIRST, Command::Read, b"abc").unwrap();
        let b = RequestHeader {
            crc: 0xffff_ffff.into(),
            ..a
        };
        assert_eq!(a.checksum(b"abc"), b.checksum(b"abc"));
    }

    #[test]
    fn a_request_survives_both_transports() {
        let mut buffer = [0xee; 64];
        let n = build_request(&mut buffer, Sequence::FIRST, Command::PostToCw, b"metrics").unwrap();
        assert_eq!(n, 15);
        assert_eq!(buffer[..4], [1, 2, 15, 0]);
        let request = Request::parse(&buffer).unwrap();
        assert_eq!((request.command, request.payload), (2, &b"metrics"[..]));
        let header = RequestHeader::read_from_prefix(&buffer).unwrap().0;
        let words = header.to_words();
        assert_eq!(words[0], 0x000f_0201);
        assert_eq!(RequestHeader::from_words(words), header);
        assert_eq!(
            Request::from_parts(header, b"metrics-and-stale-bytes"),
            Ok(request)
        );
    }

    #[test]
    fn bad_requests_are_named() {
        let mut buffer = [0; 16];
        build_request(&mut buffer, Sequence::FIRST, Command::Read, &[7; 8]).unwrap();
        assert_eq!(
            Request::parse(&buffer[..7]),
            Err(MailboxError::Truncated(7))
        );
        assert!(matches!(
            Request::parse(&buffer[..15]),
            Err(MailboxError::Size {
                size: 16,
                available: 15,
                ..
            })
        ));
        let mut short = buffer;
        short[2] = 7;
        assert!(matches!(
            Request::parse(&short),
            Err(MailboxError::Size { size: 7, .. })
        ));
        let mut flipped = buffer;
        flipped[9] ^= 1;
        assert!(matches!(
            Request::parse(&flipped),
            Err(MailboxError::Crc { .. })
        ));
        let mut unnumbered = RequestHeader::read_from_prefix(&buffer).unwrap().0;
        unnumbered.sequence = 0;
        unnumbered.crc = unnumbered.checksum(&[7; 8]).into();
        assert_eq!(
            Request::from_parts(unnumbered, &[7; 8]),
            Err(MailboxError::Sequence)
        );
    }

    #[test]
    fn a_response_survives() {
        let mut buffer = [0; 16];
        let n = build_response(&mut buffer, Sequence::FIRST, Status::Ok, &[9; 4]).unwrap();
        assert_eq!(buffer[..n], [1, 0, 8, 0, 9, 9, 9, 9]);
        let response = Response::parse(&buffer).unwrap();
        assert_eq!(
            (response.status, response.payload),
            (Status::Ok, &[9; 4][..])
        );
        assert!(build_response(&mut buffer, Sequence::FIRST, Status::Ok, &[0; 13]).is_err());
        let register = |payload| {
            ResponseHeader::for_register(Sequence::FIRST, Status::UnknownCommand, payload)
        };
        assert_eq!(register(0).map(ResponseHeader::to_word), Some(0x0008_0201));
        assert_eq!(
            register(128).map(ResponseHeader::to_word),
            Some(0x0088_0201)
        );
        assert_eq!(register(129), None);
        let header = ResponseHeader::from_word(0x0004_0107);
        assert_eq!(
            (header.sequence, Status::from(header.status)),
            (7, Status::Failed)
        );
        assert_eq!(header.to_word(), 0x0004_0107);
    }

    #[test]
    fn read_addresses_are_whole_words() {
        let mut buffer = [0; 32];
        let mut payload = [0; 20];
        payload[..8].copy_from_slice(&0x10_u64.to_le_bytes());
        payload[8..16].copy_from_slice(&0x20_u64.to_le_bytes());
        build_request(&mut buffer, Sequence::FIRST, Command::Read, &payload).unwrap();
        let request = Request::parse(&buffer).unwrap();
        assert!(request.read_addresses().eq([0x10, 0x20]));
    }
}

//! The file: a head, then blocks of whole entries.
//!
//! ```text
//! head   magic (8)  format version (4)  length of JSON (4)  xxh3 of JSON (8)  JSON
//! block  raw length (4)  stored length (4)  number from 0 (4)  method (4)  xxh3 of these 16 and the data (8)  data
//! ```
//! Numbers are little-endian. Method 0 is plain, 1 is LZ4. A block is checked before it is used, so that a file that ends
//! anywhere is good up to its last whole block.
use std::io::{self, Write};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::bytes::{Decoder, Malformed};
use super::entry::Entry;
use super::header::Header;

/// What a recording begins with.
pub const MAGIC: [u8; 8] = *b"\x89NRNREC\n";
/// The format this program writes, and the only one it reads.
pub const FORMAT: u32 = 1;
/// Longest JSON of a head.
const MAX_HEADER: usize = 64 << 10;
/// A block is closed when it has reached this.
pub const BLOCK: usize = 256 << 10;
/// Longest raw block: one more entry of the longest kind than [`BLOCK`].
pub const MAX_BLOCK: usize = 2 << 20;
const HEAD_SIZE: usize = 24;
const BLOCK_SIZE: usize = 24;

/// Why a file cannot be read, or not any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is something else.
    #[error("this is not a recording: it does not begin with the magic bytes")]
    Magic,
    /// Of another time.
    #[error(
        "the recording has format {0}, this program reads format {FORMAT}: use the version that recorded it, or record again"
    )]
    Format(u32),
    /// Its head is damaged.
    #[error("offset {offset}: {rule}")]
    Head {
        /// In the file.
        offset: u64,
        /// What ought to hold.
        rule: String,
    },
    /// A block is damaged.
    #[error("block {number} at offset {offset}: {rule}")]
    Block {
        /// Which.
        number: u32,
        /// In the file.
        offset: u64,
        /// What ought to hold.
        rule: &'static str,
    },
    /// An entry is none.
    #[error("block {number} at offset {offset}, unpacked {error}")]
    Entry {
        /// Its block.
        number: u32,
        /// The block's offset in the file.
        offset: u64,
        /// Where in the unpacked block, and why.
        error: Malformed,
    },
}

/// Writes a recording.
#[derive(Debug)]
pub struct BlockWriter<W> {
    out: W,
    number: u32,
    written: u64,
    packed: Vec<u8>,
}

impl<W: Write> BlockWriter<W> {
    /// Begins with the head.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        let json = serde_json::to_vec(header).map_err(io::Error::other)?;
        let length = u32::try_from(json.len()).map_err(io::Error::other)?;
        let mut head = Vec::with_capacity(HEAD_SIZE + json.len());
        head.extend(MAGIC);
        head.extend(FORMAT.to_le_bytes());
        head.extend(length.to_le_bytes());
        head.extend(xxh3_64(&json).to_le_bytes());
        head.extend(json);
        out.write_all(&head)?;
        out.flush()?;
        Ok(Self {
            out,
            number: 0,
            written: head.len() as u64,
            packed: Vec::new(),
        })
    }

    /// Writes a block of whole entries in one go.
    ///
    /// # Errors
    /// It cannot be written; the file is good up to the block before.
    pub fn block(&mut self, raw: &[u8]) -> io::Result<()> {
        let most = lz4_flex::block::get_maximum_output_size(raw.len());
        self.packed.clear();
        self.packed.resize(BLOCK_SIZE + most, 0);
        let packed = lz4_flex::block::compress_into(raw, &mut self.packed[BLOCK_SIZE..])
            .map_err(io::Error::other)?;
        let method = if packed < raw.len() {
            self.packed.truncate(BLOCK_SIZE + packed);
            1_u32
        } else {
            self.packed.truncate(BLOCK_SIZE);
            self.packed.extend_from_slice(raw);
            0
        };
        let length = |len: usize| u32::try_from(len).map_err(io::Error::other);
        let words = [
            length(raw.len())?,
            length(self.packed.len() - BLOCK_SIZE)?,
            self.number,
            method,
        ];
        for (bytes, word) in self.packed.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let check = check(&self.packed[..16], &self.packed[BLOCK_SIZE..]);
        self.packed[16..BLOCK_SIZE].copy_from_slice(&check.to_le_bytes());
        self.out.write_all(&self.packed)?;
        self.out.flush()?;
        self.number = self.number.wrapping_add(1);
        self.written += self.packed.len() as u64;
        Ok(())
    }

    /// Bytes in the file so far.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.out
    }
}

fn check(head: &[u8], data: &[u8]) -> u64 {
    xxh3_64_with_seed(data, xxh3_64(head))
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// After a whole block.
    Whole,
    /// In a block, which is left out.
    Cut {
        /// Where the last whole block ends.
        offset: u64,
    },
}

/// Reads a recording, block by block.
#[derive(Debug)]
pub struct Reader {
    file: Vec<u8>,
    header: Header,
    /// Where the next block begins.
    next: usize,
    number: u32,
    block: Vec<u8>,
    /// Where the block began, and its number.
    began: (u64, u32),
    at: usize,
    tail: Option<Tail>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_le_bytes)
}

impl Reader {
    /// Checks the head.
    ///
    /// # Errors
    /// It is not a recording, or not one that can be read.
    pub fn new(file: Vec<u8>) -> Result<Self, FileError> {
        if !file.starts_with(&MAGIC) {
            return Err(FileError::Magic);
        }
        let head = |offset, rule: &str| FileError::Head {
            offset,
            rule: rule.to_owned(),
        };
        let short = || head(file.len() as u64, "the file ends within its head");
        let format = word(&file, 8).ok_or_else(short)?;
        if format != FORMAT {
            return Err(FileError::Format(format));
        }
        let length = word(&file, 12).ok_or_else(short)? as usize;
        if length > MAX_HEADER {
            return Err(head(12, "the description has 64 KiB at most"));
        }
        let hash = file.get(16..).and_then(|rest| rest.first_chunk().copied());
        let hash = u64::from_le_bytes(hash.ok_or_else(short)?);
        let json = file.get(HEAD_SIZE..HEAD_SIZE + length).ok_or_else(short)?;
        if xxh3_64(json) != hash {
            return Err(head(
                16,
                "the description has this hash; the file is damaged",
            ));
        }
        let header = serde_json::from_slice(json)
            .map_err(|error| head(HEAD_SIZE as u64, &format!("the description: {error}")))?;
        Ok(Self {
            file,
            header,
            next: HEAD_SIZE + length,
            number: 0,
            block: Vec::new(),
            began: (0, 0),
            at: 0,
            tail: None,
        })
    }

    /// What it says of the device.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// How the file ends; known once [`Self::next`] has said that nothing is left.
    pub fn tail(&self) -> Option<Tail> {
        self.tail
    }

    /// The next entry; `None` after the last.
    ///
    /// # Errors
    /// A rule is broken.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would have to go on after an error"
    )]
    pub fn next(&mut self) -> Result<Option<Entry>, FileError> {
        while self.at == self.block.len() {
            if self.tail.is_some() || !self.load()? {
                return Ok(None);
            }
        }
        let mut decoder = Decoder::new(&self.block[self.at..]);
        let entry = Entry::decode(&mut decoder).map_err(|error| {
            let (offset, number) = self.began;
            FileError::Entry {
                number,
                offset,
                error: Malformed {
                    offset: error.offset + self.at as u64,
                    ..error
                },
            }
        })?;
        self.at += decoder.position();
        Ok(Some(entry))
    }

    fn load(&mut self) -> Result<bool, FileError> {
        let (start, rest) = (self.next, &self.file[self.next..]);
        if rest.is_empty() {
            self.tail = Some(Tail::Whole);
            return Ok(false);
        }
        let offset = start as u64;
        let cut = Tail::Cut { offset };
        let Some((head, data)) = rest.split_at_checked(BLOCK_SIZE) else {
            self.tail = Some(cut);
            return Ok(false);
        };
        // What a crash of the host may leave of a file that had grown.
        if head.iter().all(|byte| *byte == 0) {
            self.tail = Some(cut);
            return Ok(false);
        }
        let number = self.number;
        let error = move |rule| FileError::Block {
            number,
            offset,
            rule,
        };
        let words = [0, 4, 8, 12].map(|at| word(head, at).unwrap_or(0));
        let [raw, stored, sequence, method] = words;
        let (raw, stored) = (raw as usize, stored as usize);
        if raw > MAX_BLOCK || stored > MAX_BLOCK {
            return Err(error("a block has 2 MiB at most"));
        }
        let Some(data) = data.get(..stored) else {
            self.tail = Some(cut);
            return Ok(false);
        };
        let expected = u64::from_le_bytes(head[16..].try_into().unwrap_or_default());
        if check(&head[..16], data) != expected {
            return Err(error(
                "a block has the hash that it says; the file is damaged",
            ));
        }
        if sequence != number {
            return Err(error("blocks are numbered from 0; one is missing"));
        }
        self.block.clear();
        match method {
            0 if raw == stored => self.block.extend_from_slice(data),
            1 => {
                self.block.resize(raw, 0);
                let unpacked = lz4_flex::block::decompress_into(data, &mut self.block);
                if unpacked.ok() != Some(raw) {
                    self.block.clear();
                    return Err(error("a block unpacks to the length that it says"));
                }
            }
            _ => return Err(error("a block is plain and as long as it says, or LZ4")),
        }
        self.began = (offset, number);
        self.at = 0;
        self.next = start + BLOCK_SIZE + stored;
        self.number = number.wrapping_add(1);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use neuron_protocol::generation::{Platform, Product};

    use super::*;
    use crate::function::Config;
    use crate::record::Payload;

    fn header() -> Header {
        let product = Product::Trn2;
        let config = Config::new(product, Platform::Qemu);
        Header::new(&config, Payload::Full)
    }

    fn file() -> (Vec<u8>, Vec<usize>) {
        let mut writer = BlockWriter::new(Vec::new(), &header()).unwrap();
        let mut ends = vec![usize::try_from(writer.written()).unwrap()];
        for block in 0..3_u64 {
            let mut raw = Vec::new();
            for n in 0..50 {
                Entry::Tick(block * 1000 + n).encode(&mut raw);
                Entry::Run.encode(&mut raw);
            }
            writer.block(&raw).unwrap();
            ends.push(usize::try_from(writer.written()).unwrap());
        }
        (writer.into_inner(), ends)
    }

    fn count(file: &[u8]) -> Result<(usize, Tail), FileError> {
        let mut reader = Reader::new(file.to_vec())?;
        let mut count = 0;
        while reader.next()?.is_some() {
            count += 1;
        }
        Ok((count, reader.tail().unwrap()))
    }

    #[test]
    fn a_file_cut_anywhere_is_good_up_to_its_last_whole_block() {
        let (file, ends) = file();
        assert_eq!(count(&file), Ok((300, Tail::Whole)));
        assert_eq!(Reader::new(file.clone()).unwrap().header(), &header());
        for len in 0..file.len() {
            let whole = ends.iter().filter(|end| **end <= len).count();
            let Some(blocks) = whole.checked_sub(1) else {
                assert!(count(&file[..len]).is_err(), "{len}");
                continue;
            };
            let (entries, tail) = count(&file[..len]).unwrap();
            assert_eq!(entries, blocks * 100);
            assert_eq!(tail == Tail::Whole, ends.contains(&len));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (file, _) = file();
        for at in 0..file.len() {
            let mut broken = file.clone();
            broken[at] ^= 1 << (at % 8);
            match count(&broken) {
                Err(_) => {}
                // A length that reaches past the end looks like a cut.
                Ok((entries, Tail::Cut { .. })) => assert!(entries < 300),
                Ok(whole) => panic!("byte {at}: {whole:?}"),
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let (file, ends) = file();
        assert_eq!(Reader::new(b"ELF".to_vec()).unwrap_err(), FileError::Magic);
        let mut other = file.clone();
        other[8] = 9;
        let error = Reader::new(other).unwrap_err().to_string();
        assert!(error.contains("format 9"), "{error}");
        let mut torn = file.clone();
        torn.drain(ends[1]..ends[2]);
        let error = count(&torn).unwrap_err().to_string();
        assert!(error.contains("one is missing"), "{error}");
        let mut zeros = file;
        zeros.extend([0; 4096]);
        assert!(matches!(count(&zeros), Ok((300, Tail::Cut { .. }))));
    }
}

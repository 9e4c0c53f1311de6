//! Numbers and byte strings of a recording. Decoding checks every length before anything is allocated.

/// Longest byte string of an entry: the largest access is 1 MiB (`max_data_xfer_size`), and so is a DMA message.
pub const MAX_LEN: usize = 1 << 20;

/// Bytes that break a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("offset {offset}: {rule}")]
pub struct Malformed {
    /// Where, bytes from the start of what was decoded.
    pub offset: u64,
    /// What ought to hold there.
    pub rule: &'static str,
}

/// Appends a number, 7 bits a byte, lowest first.
pub fn put_number(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Appends a byte string with its length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes what was put.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    /// At the first byte.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes taken.
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// An error at the last position taken.
    pub fn error(&self, rule: &'static str) -> Malformed {
        Malformed {
            offset: self.at as u64,
            rule,
        }
    }

    /// A byte.
    ///
    /// # Errors
    /// The end.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = self.bytes.get(self.at).copied();
        let byte = byte.ok_or_else(|| self.error("an entry ends within its block"))?;
        self.at += 1;
        Ok(byte)
    }

    /// A number.
    ///
    /// # Errors
    /// The end, or more than 64 bits.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let low = u64::from(byte & 0x7f);
            if shift == 63 && low > 1 {
                break;
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error("a number has 64 bits"))
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// The end, or more.
    pub fn word(&mut self) -> Result<u32, Malformed> {
        let value = self.number()?;
        u32::try_from(value).map_err(|_| self.error("this number has 32 bits"))
    }

    /// A length of bytes.
    ///
    /// # Errors
    /// The end, or more than [`MAX_LEN`].
    pub fn length(&mut self) -> Result<usize, Malformed> {
        let value = self.number()?;
        usize::try_from(value)
            .ok()
            .filter(|len| *len <= MAX_LEN)
            .ok_or_else(|| self.error("no access has more than 1 MiB"))
    }

    /// A byte string.
    ///
    /// # Errors
    /// The end, or more than [`MAX_LEN`].
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.length()?;
        let bytes = self.at.checked_add(len);
        let bytes = bytes.and_then(|end| self.bytes.get(self.at..end));
        let bytes = bytes.ok_or_else(|| self.error("a byte string ends within its block"))?;
        self.at += len;
        Ok(bytes)
    }

    /// Eight bytes, as a number.
    ///
    /// # Errors
    /// The end.
    pub fn hash(&mut self) -> Result<u64, Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let hash = rest.first_chunk().copied().map(u64::from_le_bytes);
        let hash = hash.ok_or_else(|| self.error("a hash has 8 bytes"))?;
        self.at += 8;
        Ok(hash)
    }

    /// A text.
    ///
    /// # Errors
    /// The end, too long, or not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| self.error("a text is UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_and_bytes_come_back(value: u64, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut out = Vec::new();
            put_number(&mut out, value);
            put_bytes(&mut out, &bytes);
            let mut decoder = Decoder::new(&out);
            prop_assert_eq!(decoder.number(), Ok(value));
            prop_assert_eq!(decoder.bytes(), Ok(&*bytes));
            prop_assert!(decoder.is_empty());
        }
    }

    #[test]
    fn lengths_are_checked_before_they_are_believed() {
        let mut out = Vec::new();
        put_number(&mut out, u64::MAX);
        let error = Decoder::new(&out).bytes().unwrap_err();
        assert_eq!(error.rule, "no access has more than 1 MiB");
        assert!(Decoder::new(&[5, 1, 2]).bytes().is_err());
        assert!(Decoder::new(&[0xff; 10]).number().is_err());
        assert!(
            Decoder::new(&[0xff, 0xff, 0xff, 0xff, 0x1f])
                .word()
                .is_err()
        );
        assert!(Decoder::new(&[]).byte().is_err());
        assert!(Decoder::new(&[1, 0xff]).text().is_err());
    }
}

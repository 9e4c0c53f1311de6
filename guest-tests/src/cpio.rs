//! The newc cpio archive that the kernel unpacks as its first root.
use std::io::{self, Write};

/// Appends entries to an archive; directories are the caller's to add before what lies in them.
pub struct Archive<W: Write> {
    out: W,
    inode: u32,
}

/// The kernel skips padding to this boundary after names and after data.
const ALIGN: u64 = 4;

impl<W: Write> Archive<W> {
    /// Starts an archive.
    pub fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    /// Adds a directory.
    ///
    /// # Errors
    /// Those of the output.
    pub fn dir(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, 0o040_755, (0, 0), b"")
    }

    /// Adds a file with its permission bits.
    ///
    /// # Errors
    /// Those of the output, or a file of 4 GiB and more, which the format cannot hold.
    pub fn file(&mut self, path: &str, permissions: u32, data: &[u8]) -> io::Result<()> {
        self.entry(path, 0o100_000 | permissions, (0, 0), data)
    }

    /// Adds a character device.
    ///
    /// # Errors
    /// Those of the output.
    pub fn char_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, 0o020_600, (major, minor), b"")
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// Those of the output.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, 0o120_777, (0, 0), target.as_bytes())
    }

    /// Ends the archive and gives the output back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        let too_large = |_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{path}: too large for a cpio archive"),
            )
        };
        let size = u32::try_from(data.len()).map_err(too_large)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_large)?;
        self.inode += 1;
        // Fields in order: inode, mode, uid, gid, links, mtime, size, device, special device, name size, check.
        let fields = [
            self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            use std::fmt::Write as _;
            let _ = write!(header, "{field:08x}");
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(path.as_bytes())?;
        self.out.write_all(b"\0")?;
        self.pad(u64::from(name_size) + 110)?;
        self.out.write_all(data)?;
        self.pad(u64::from(size))
    }

    fn pad(&mut self, written: u64) -> io::Result<()> {
        for _ in 0..written.next_multiple_of(ALIGN) - written {
            self.out.write_all(b"\0")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_padding_are_those_of_the_kernel_documentation() {
        let mut archive = Archive::new(Vec::new());
        archive.dir("bin").unwrap();
        archive.file("init", 0o755, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let dir = std::str::from_utf8(&bytes[..110]).unwrap();
        assert_eq!(&dir[..14], "07070100000001");
        assert_eq!(&dir[14..22], "000041ed");
        // "bin" and its NUL end at 114, so the next header starts at 116.
        assert_eq!(&bytes[110..116], b"bin\0\0\0");
        let file = std::str::from_utf8(&bytes[116..226]).unwrap();
        assert_eq!(&file[..6], "070701");
        assert_eq!(&file[54..62], "00000005");
        assert_eq!(&bytes[226..232], b"init\0\0");
        assert_eq!(&bytes[232..240], b"hello\0\0\0");
        assert!(bytes[240..].starts_with(b"070701"));
        assert!(bytes[240..].windows(10).any(|w| w == b"TRAILER!!!"));
    }
}

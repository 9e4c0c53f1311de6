//! Memory of this process, readable after the rights to open files are gone.
use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Mutex;

/// `/proc/self/status`, opened early.
#[derive(Debug, Default)]
pub struct Resident(Option<Mutex<File>>);

impl Resident {
    /// Opens it. Without /proc nothing is known, which is no error.
    pub fn open() -> Self {
        Self(File::open("/proc/self/status").ok().map(Mutex::new))
    }

    /// Resident bytes.
    pub fn bytes(&self) -> Option<u64> {
        let mut file = self.0.as_ref()?.lock().ok()?;
        let mut text = String::new();
        file.rewind().ok()?;
        file.read_to_string(&mut text).ok()?;
        // proc(5): in KiB, called kB.
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_again_each_time() {
        let resident = Resident::open();
        let before = resident.bytes().unwrap();
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(resident.bytes().unwrap() >= before + (16 << 20));
        drop(block);
        assert_eq!(Resident::default().bytes(), None);
    }
}

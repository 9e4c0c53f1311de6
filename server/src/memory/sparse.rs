//! Memory that costs nothing until it is touched.
use std::fs::File;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// A sparse file in memory, mapped whole.
#[derive(Debug)]
pub struct Sparse {
    file: Arc<File>,
    region: MmapRegion,
    size: u64,
}

impl Sparse {
    /// Reserves `size` bytes of address space; reads give 0.
    ///
    /// # Errors
    /// The kernel refuses the file or the mapping.
    pub fn new(name: &str, size: u64) -> Result<Self, Errno> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, size)?;
        // A client that maps it must not be able to cut it short under us.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let file = Arc::new(File::from(fd));
        let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
        let region = MmapRegion::build(
            Some(FileOffset::from_arc(Arc::clone(&file), 0)),
            len,
            libc_prot(),
            libc_flags(),
        )
        .map_err(|_| Errno::NOMEM)?;
        Ok(Self { file, region, size })
    }

    /// The file, for a client to map.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// `len` bytes at `offset`, if they exist.
    pub fn slice(&self, offset: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.region
            .get_slice(usize::try_from(offset).ok()?, len)
            .ok()
    }

    /// Gives every page back; reads give 0 again.
    pub fn clear(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = rustix::fs::fallocate(&self.file, flags, 0, self.size) {
            tracing::error!(%error, "device memory keeps its old content");
        }
    }

    /// Bytes behind touched pages.
    pub fn resident(&self) -> u64 {
        rustix::fs::fstat(&self.file)
            .map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
    }
}

/// Readable and writable, as the constructor of `MmapRegion` wants it.
fn libc_prot() -> i32 {
    use rustix::mm::ProtFlags;
    (ProtFlags::READ | ProtFlags::WRITE).bits().cast_signed()
}

/// Shared, so that a client's mapping is the same memory, and without a reservation for what is never touched.
fn libc_flags() -> i32 {
    use rustix::mm::MapFlags;
    (MapFlags::SHARED | MapFlags::NORESERVE)
        .bits()
        .cast_signed()
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    #[test]
    fn only_touched_pages_cost_and_clearing_returns_them() {
        let sparse = Sparse::new("test", 1 << 38).unwrap();
        assert_eq!(sparse.resident(), 0);
        sparse
            .slice(1 << 37, 8)
            .unwrap()
            .write_obj(7u64, 0)
            .unwrap();
        assert_eq!(sparse.resident(), 4096);
        sparse.clear();
        assert_eq!(sparse.resident(), 0);
        assert_eq!(
            sparse
                .slice(1 << 37, 8)
                .unwrap()
                .read_obj::<u64>(0)
                .unwrap(),
            0
        );
        assert!(
            sparse.file().set_len(0).is_err(),
            "a client could cut it short"
        );
        assert!(sparse.slice((1 << 38) - 4, 8).is_none());
        assert!(sparse.slice(u64::MAX, 8).is_none());
    }
}

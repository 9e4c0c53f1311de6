//! What the wire asks of a PCI function. The wire knows this trait and nothing above it.
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

/// A part of a region that the client may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseArea {
    /// Offset in the region, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub size: u64,
}

/// The file behind the mappable parts of a region. Region offset 0 is file offset 0.
#[derive(Clone, Debug)]
pub struct RegionMmap {
    /// Passed to the client with the region's description.
    pub file: Arc<File>,
    /// What may be mapped; never empty.
    pub areas: Vec<SparseArea>,
}

/// One vfio region. Size 0: the region does not exist.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Length in bytes.
    pub size: u64,
    /// Client may read.
    pub read: bool,
    /// Client may write.
    pub write: bool,
    /// Client may map parts of it. While any region has this, QEMU makes every write synchronous.
    pub mmap: Option<RegionMmap>,
}

/// One vfio interrupt index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Irq {
    /// Number of vectors; 0: the index does not exist.
    pub count: u32,
    /// Interrupts are signalled by eventfd.
    pub eventfd: bool,
    /// The index may be masked and unmasked.
    pub maskable: bool,
    /// Vectors cannot be added without disabling the index first.
    pub noresize: bool,
}

/// The fixed shape of a function: what `DEVICE_GET_INFO` and the two info commands after it report.
#[derive(Clone, Debug, Default)]
pub struct FunctionInfo {
    /// Regions by vfio index: 0-5 BARs, 6 ROM, 7 configuration space, 8 VGA.
    pub regions: Vec<Region>,
    /// Interrupts by vfio index: 0 `INTx`, 1 MSI, 2 MSI-X, 3 ERR, 4 REQ.
    pub irqs: Vec<Irq>,
}

/// What a mapping permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Device may read.
    pub read: bool,
    /// Device may write.
    pub write: bool,
}

/// A `DMA_MAP`, checked for overflow and page alignment but not for overlap.
#[derive(Debug)]
pub struct DmaMap {
    /// First I/O virtual address.
    pub iova: u64,
    /// Length in bytes, not zero; `iova + size` does not overflow.
    pub size: u64,
    /// Permitted accesses.
    pub protection: Protection,
    /// Shared memory behind the range and the offset of its first byte. `None`: reach it by messages.
    pub file: Option<(OwnedFd, u64)>,
}

/// A `DMA_UNMAP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaUnmap {
    /// Every mapping.
    All,
    /// The mappings, or parts of mappings, in `iova..iova + size`.
    Range {
        /// First I/O virtual address.
        iova: u64,
        /// Length in bytes, not zero; `iova + size` does not overflow.
        size: u64,
    },
}

/// What a `SET_IRQS` does to its vectors.
#[derive(Debug)]
pub enum IrqAction {
    /// Attach an eventfd to each vector, or detach it (`None`). An empty list disables the index.
    Eventfds(Vec<Option<OwnedFd>>),
    /// Mask (`true`) or leave alone each vector.
    Mask(Vec<bool>),
    /// Unmask (`true`) or leave alone each vector.
    Unmask(Vec<bool>),
    /// Signal (`true`) or leave alone each vector.
    Trigger(Vec<bool>),
}

/// A `SET_IRQS`, checked against [`FunctionInfo::irqs`].
#[derive(Debug)]
pub struct IrqSet {
    /// The vfio interrupt index.
    pub index: u32,
    /// First vector.
    pub start: u32,
    /// What to do from there.
    pub action: IrqAction,
}

/// An access to guest memory that has no file behind it, to be made by the client. At most 1 MiB; a larger one is
/// answered `TOOBIG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DmaRequest {
    /// Read `len` bytes at `iova`.
    Read {
        /// First I/O virtual address.
        iova: u64,
        /// Bytes wanted.
        len: usize,
    },
    /// Write `data` at `iova`.
    Write {
        /// First I/O virtual address.
        iova: u64,
        /// The bytes.
        data: Vec<u8>,
    },
}

/// How a [`DmaRequest`] ended: the bytes of a read (empty for a write), or the client's error.
pub type DmaReply = Result<Vec<u8>, Errno>;

/// What is left to do after a slice of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing can move until the next message or reply.
    Idle,
    /// More work is ready now: serve the socket, then call again.
    Again,
    /// Work becomes ready after this time: call again then, or earlier if a message arrives.
    After(Duration),
}

/// A PCI function as the wire sees it. One thread owns it; no call blocks.
///
/// Calls arrive in message order. A posted write gets no reply whatever its result, so errors only reach the log there.
pub trait PciFunction {
    /// Regions and interrupts, fixed for the life of the process.
    fn info(&self) -> &FunctionInfo;

    /// Tells the time since serving began, before the messages and the slice of each wake-up. The function has no clock.
    fn tick(&mut self, _now: Duration) {}

    /// Reads `data.len()` bytes of a region. The wire has checked that the region exists, is readable, and holds
    /// `offset..offset + data.len()`.
    ///
    /// # Errors
    /// An access that the region cannot make; the client sees the number.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes a region; checked like [`Self::region_read`].
    ///
    /// # Errors
    /// An access that the region cannot make; the client sees the number unless the write was posted.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Adds a mapping. Overlaps with earlier ones are the function's to settle.
    ///
    /// # Errors
    /// A file that cannot be mapped.
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno>;

    /// Removes mappings. After it returns no byte of the range is touched again.
    ///
    /// # Errors
    /// None today; the client sees the number.
    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno>;

    /// Configures interrupts.
    ///
    /// # Errors
    /// A request that this index does not support.
    fn set_irqs(&mut self, irqs: IrqSet) -> Result<(), Errno>;

    /// `DEVICE_RESET`: power-on state, pending work dropped, mappings kept.
    fn reset(&mut self);

    /// The client is gone: power-on state, pending work, mappings and eventfds dropped.
    fn disconnect(&mut self);

    /// Does a bounded slice of the work that earlier calls made ready.
    fn run(&mut self) -> Progress;

    /// The next access that the client must make, if any. Each is answered once by [`Self::dma_reply`], in any order;
    /// `id` tells them apart. The session splits it to the client's transfer limit.
    fn next_dma(&mut self) -> Option<(u64, DmaRequest)>;

    /// Whether messages may be sent now. Accesses that [`Self::next_dma`] gave earlier wait as long as it is false.
    fn masters_bus(&self) -> bool {
        true
    }

    /// Whether the client is to be disconnected now: hardware that misbehaves on purpose.
    fn leaves(&self) -> bool {
        false
    }

    /// Whether the answer to an access is still waited for. If not, no further message is sent for it: software that was
    /// told of a reset must not find its memory written afterwards.
    fn wants_dma(&self, _id: u64) -> bool {
        true
    }

    /// The answer to an access. Replies to requests from before a reset or disconnect are ignored.
    fn dma_reply(&mut self, id: u64, reply: DmaReply);

    /// Its state in words, asked for once after a panic; empty if it has nothing to say.
    fn last_words(&self) -> String {
        String::new()
    }
}

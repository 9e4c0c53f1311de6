//! `/dev/neuronN` as the scenarios see it: typed calls, one place that knows which form of a request
//! this driver has.
use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use neuron_protocol::generation::{Block, Generation, Platform, V2, V3, V4};
use neuron_protocol::ioctl as abi;

use crate::ioctl::{self, Allocation, Refused, User};

/// How long a user queue may take for a few descriptors before we call them lost.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Path of node `index`.
pub fn node(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/neuron{index}"))
}

/// An open device.
pub struct Device {
    file: File,
    /// N of `/dev/neuronN`.
    pub index: u32,
    /// Its architecture, as the driver reports it.
    pub generation: &'static Generation,
    /// PCI revision id, as the driver reports it.
    pub revision: u32,
    /// Which platform the driver takes that for.
    pub platform: Platform,
    /// Cores that can be used.
    pub cores: u32,
    /// 64-bit forms of the copy requests (since 2.21).
    wide: bool,
}

/// A piece of memory the driver allocated; freed with [`Device::free`], or when the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// The driver's name for it.
    pub handle: u64,
    /// Bytes asked for.
    pub size: u64,
    /// Device-side address, host bit included.
    pub address: u64,
    /// In guest RAM.
    pub host: bool,
}

impl Device {
    /// Opens for everything; waits inside the driver until a reset that is going on has ended.
    ///
    /// # Errors
    /// The node is missing, the driver says the device is invalid, or it reports an unknown architecture.
    pub fn open(index: u32) -> Result<Self> {
        let path = node(index);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("open {} (EINVAL: its reset failed)", path.display()))?;
        let mut info = abi::DeviceBasicInfo::default();
        ioctl::plain(&file, abi::DEVICE_BASIC_INFO, &mut info)?;
        let generation = match info.architecture {
            2 => &V2,
            3 => &V3,
            4 => &V4,
            other => bail!("DEVICE_BASIC_INFO: unknown architecture {other}"),
        };
        let platform = Platform::from_revision_id(u8::try_from(info.revision).unwrap_or(0));
        // The driver serves one core of an emulator unless a module parameter says otherwise (contract §2); a copy on
        // behalf of another one would use an engine that was never set up.
        let cores = if platform == Platform::Emulator {
            1
        } else {
            u32::from(generation.cores)
        };
        let mut driver = abi::DriverInfo::default();
        let wide = match ioctl::plain(&file, abi::DRIVER_INFO_GET, &mut driver) {
            Ok(()) => driver.feature_flags1 & abi::feature::MEM_ALLOC64 != 0,
            Err(_) => false,
        };
        Ok(Self {
            file,
            index,
            generation,
            revision: info.revision,
            platform,
            cores,
            wide,
        })
    }

    /// Whether the driver has a request.
    pub fn offers(&self, request: u32) -> bool {
        ioctl::is_known(&self.file, request)
    }

    /// The open file, for requests only one scenario makes.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// HBM stacks.
    pub fn channels(&self) -> u32 {
        u32::try_from(self.generation.hbm.soc_bases.len()).unwrap_or(0)
    }

    /// The stack nearest to a core: each serves the same number of cores, in order.
    pub fn channel_of(&self, core: u32) -> u32 {
        core * self.channels() / u32::from(self.generation.cores)
    }

    /// Allocates, in whichever form the driver has.
    pub fn allocate(&self, what: Allocation) -> Result<Chunk> {
        let request = if self.wide {
            abi::MEM_ALLOC_V2MT64
        } else {
            abi::MEM_ALLOC_V2
        };
        self.allocate_by(request, what)
    }

    /// Allocates with a given request.
    pub fn allocate_by(&self, request: u32, what: Allocation) -> Result<Chunk> {
        let handle = ioctl::allocate(&self.file, request, what)?;
        let info = self.extended_info(handle)?;
        Ok(Chunk {
            handle,
            size: what.size,
            address: info.pa,
            host: what.host,
        })
    }

    /// Guest RAM; at most a few MiB, since the driver wants it contiguous.
    pub fn host(&self, size: u64) -> Result<Chunk> {
        self.allocate(Allocation {
            size,
            host: true,
            ..Allocation::default()
        })
        .with_context(|| format!("allocate {size} bytes of host memory"))
    }

    /// Guest RAM whose copies a given core's queue serves.
    pub fn host_of(&self, core: u32, size: u64) -> Result<Chunk> {
        self.allocate(Allocation {
            size,
            host: true,
            core,
            ..Allocation::default()
        })
        .with_context(|| format!("allocate {size} bytes of host memory for core {core}"))
    }

    /// Device memory near core 0.
    pub fn device(&self, size: u64) -> Result<Chunk> {
        self.device_of(0, size)
    }

    /// Device memory of a core's own channel, copied by that core's queue.
    pub fn device_of(&self, core: u32, size: u64) -> Result<Chunk> {
        let channel = self.channel_of(core);
        self.allocate(Allocation {
            size,
            channel,
            core,
            ..Allocation::default()
        })
        .with_context(|| {
            format!("allocate {size} bytes of device memory, channel {channel} core {core}")
        })
    }

    /// Frees.
    pub fn free(&self, chunk: Chunk) -> Result<()> {
        let mut argument = abi::MemFree {
            mem_handle: chunk.handle,
        };
        Ok(ioctl::plain(&self.file, abi::MEM_FREE, &mut argument)?)
    }

    /// `MEM_GET_EXTENDED_INFO`.
    pub fn extended_info(&self, handle: u64) -> Result<abi::MemGetExtendedInfo> {
        let mut info = abi::MemGetExtendedInfo {
            mem_handle: handle,
            version: 1,
            ..Default::default()
        };
        ioctl::plain(&self.file, abi::MEM_GET_EXTENDED_INFO, &mut info)?;
        Ok(info)
    }

    /// User memory to a chunk.
    pub fn write(&self, chunk: Chunk, offset: u64, from: &[u8]) -> Result<()> {
        ioctl::buffer_copy(
            &self.file,
            self.wide,
            chunk.handle,
            offset,
            User::Write(from),
        )
        .with_context(|| format!("write {} bytes at {offset:#x}", from.len()))
    }

    /// A chunk to user memory.
    pub fn read(&self, chunk: Chunk, offset: u64, into: &mut [u8]) -> Result<()> {
        let length = into.len();
        ioctl::buffer_copy(
            &self.file,
            self.wide,
            chunk.handle,
            offset,
            User::Read(into),
        )
        .with_context(|| format!("read {length} bytes at {offset:#x}"))
    }

    /// The same copy with a form of one's choice.
    pub fn buffer_copy(
        &self,
        wide: bool,
        chunk: Chunk,
        offset: u64,
        user: User<'_>,
    ) -> Result<(), Refused> {
        ioctl::buffer_copy(&self.file, wide, chunk.handle, offset, user)
    }

    /// Bytes of a chunk in fresh memory.
    pub fn read_vec(&self, chunk: Chunk, offset: u64, length: usize) -> Result<Vec<u8>> {
        // Not zero, so that bytes the driver did not write show.
        let mut into = vec![0xa5; length];
        self.read(chunk, offset, &mut into)?;
        Ok(into)
    }

    /// Chunk to chunk, by the driver's own queue. Never with size 0: the real driver copies 64 KiB then.
    pub fn copy(&self, from: (Chunk, u64), to: (Chunk, u64), size: u64) -> Result<()> {
        self.try_copy(from, to, size)
            .with_context(|| format!("copy {size} bytes from {:#x} to {:#x}", from.1, to.1))
    }

    /// [`Self::copy`] with the refusal as it is.
    pub fn try_copy(&self, from: (Chunk, u64), to: (Chunk, u64), size: u64) -> Result<(), Refused> {
        assert_ne!(
            size, 0,
            "a size of 0 means 64 KiB to the real driver (contract §8.1)"
        );
        let argument = abi::MemCopy64 {
            src_mem_handle: from.0.handle,
            dst_mem_handle: to.0.handle,
            size,
            src_offset: from.1,
            dst_offset: to.1,
        };
        if self.wide {
            return ioctl::plain(&self.file, abi::MEM_COPY64, &mut { argument });
        }
        self.copy_narrow(argument)
    }

    /// `MEM_COPY`, the 32-bit form; values that do not fit are refused as out of range.
    pub fn copy_narrow(&self, wide: abi::MemCopy64) -> Result<(), Refused> {
        let narrow = |value| u32::try_from(value).unwrap_or(u32::MAX);
        let mut argument = abi::MemCopy {
            src_mem_handle: wide.src_mem_handle,
            dst_mem_handle: wide.dst_mem_handle,
            size: narrow(wide.size),
            src_offset: narrow(wide.src_offset),
            dst_offset: narrow(wide.dst_offset),
            pad_: 0,
        };
        ioctl::plain(&self.file, abi::MEM_COPY, &mut argument)
    }

    /// Fills bytes of a chunk with the low byte of `value`.
    pub fn memset(&self, chunk: Chunk, offset: u64, value: u32, size: u64) -> Result<()> {
        let mem_handle = chunk.handle;
        let result = if self.wide {
            let mut argument = abi::MemSet64 {
                mem_handle,
                offset,
                value,
                pad_: 0,
                size,
            };
            ioctl::plain(&self.file, abi::MEMSET64, &mut argument)
        } else {
            let size = u32::try_from(size).context("memset size")?;
            let mut argument = abi::MemSet {
                mem_handle,
                offset,
                value,
                size,
            };
            ioctl::plain(&self.file, abi::MEMSET, &mut argument)
        };
        result.with_context(|| format!("memset {size} bytes at {offset:#x}"))
    }

    /// Starts an asynchronous copy and, if `previous` is a handle, waits for that one. Returns the new handle.
    pub fn copy_async(
        &self,
        from: (Chunk, u64),
        to: (Chunk, u64),
        size: u64,
        previous: u32,
    ) -> Result<u32, Refused> {
        let argument = abi::MemCopyAsync64 {
            src_mem_handle: from.0.handle,
            dst_mem_handle: to.0.handle,
            size,
            src_offset: from.1,
            dst_offset: to.1,
            host_prefetch_addr: 0,
            pwait_handle: previous,
            wait_handle: 0,
        };
        ioctl::copy_async(&self.file, self.wide, argument)
    }

    /// Waits for an asynchronous copy between two chunks.
    pub fn copy_wait(&self, from: Chunk, to: Chunk, handle: u32) -> Result<(), Refused> {
        let mut argument = abi::MemCopyAsyncWait {
            src_mem_handle: from.handle,
            dst_mem_handle: to.handle,
            pwait_handle: handle,
            pad_: 0,
        };
        ioctl::plain(&self.file, abi::MEM_COPY_ASYNC_WAIT, &mut argument)
    }

    /// Resets cores (a bit each, or [`abi::NC_MAP_DEVICE`]) and waits until the driver says it is done.
    pub fn reset(&self, map: u32) -> Result<()> {
        let mut start = abi::DeviceReset {
            nc_map: map,
            request_id: 0,
        };
        ioctl::plain(&self.file, abi::NC_RESET, &mut start)?;
        let mut ready = abi::DeviceReady {
            request_id: start.request_id,
            result: -1,
        };
        ioctl::plain(&self.file, abi::NC_RESET_READY, &mut ready)?;
        if ready.result != 0 {
            bail!(
                "NC_RESET of {map:#x}: the driver reports failure ({})",
                ready.result
            );
        }
        Ok(())
    }

    /// Where the driver mapped the register BAR and how long it is: `BAR_READ` and `BAR_WRITE` count from here.
    pub fn register_bar(&self) -> Result<(u64, u64)> {
        let mut info = abi::DeviceInfo::default();
        ioctl::plain(&self.file, abi::DEVICE_INFO, &mut info)?;
        Ok((info.bar_address[0], info.bar_size[0]))
    }

    /// Device-side address of byte `offset` of a core's tile (state buffer, events, semaphores; contract §6.1).
    ///
    /// `None` if the address table has no window that leads there.
    pub fn tile_address(&self, core: u32, offset: u64) -> Option<u64> {
        let base = self
            .generation
            .block_base(Block::CoreTile, u8::try_from(core).ok()?)?;
        let bar = u64::from(base) + offset;
        self.generation.soc_windows.iter().find_map(|window| {
            let into = bar.checked_sub(u64::from(window.bar_offset))?;
            (into < window.size).then(|| window.base + into)
        })
    }
}

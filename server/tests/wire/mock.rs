//! A small PCI function: registers that remember, a doorbell that counts, and whatever a test tells it to do.
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use neuron_vfio_user::vfio::{
    DmaMap, DmaReply, DmaRequest, DmaUnmap, FunctionInfo, Irq, IrqAction, IrqSet, PciFunction,
    Progress, Region, RegionMmap,
};
use rustix::io::Errno;

/// BAR0: memory.
pub const BAR0: u32 = 0;
pub const BAR0_SIZE: u64 = 2 << 20;
/// BAR2: a doorbell at 0 that adds what is written; a write to [`PANIC`] is a bug in the device.
pub const BAR2: u32 = 2;
pub const BAR2_SIZE: u64 = 4096;
pub const PANIC: u64 = 0x800;
/// A register that answers ENXIO.
pub const FAILS: u64 = 0x900;
/// BAR4: write-only.
pub const BAR4: u32 = 4;
/// Configuration space.
pub const CONFIG: u32 = 7;

pub const MSIX: u32 = 2;
pub const MSIX_VECTORS: u32 = 32;

/// What reached the function, apart from register accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Map {
        iova: u64,
        size: u64,
        fd: bool,
    },
    Unmap(DmaUnmap),
    Eventfds {
        index: u32,
        start: u32,
        connected: Vec<bool>,
    },
    Mask {
        index: u32,
        start: u32,
        vectors: Vec<bool>,
    },
    Unmask {
        index: u32,
        start: u32,
        vectors: Vec<bool>,
    },
    Trigger {
        index: u32,
        start: u32,
        vectors: Vec<bool>,
    },
    Reset,
    Disconnect,
}

pub struct Mock {
    info: FunctionInfo,
    pub bar0: Vec<u8>,
    pub config: Vec<u8>,
    pub doorbell: u64,
    pub writes: u64,
    /// The guest forbids DMA.
    pub no_bus: bool,
    pub reads: u64,
    pub events: Vec<Event>,
    pub maps: Vec<(u64, u64, Option<OwnedFd>)>,
    pub eventfds: Vec<Option<OwnedFd>>,
    pub requests: VecDeque<(u64, DmaRequest)>,
    pub replies: Vec<(u64, DmaReply)>,
    /// Slices of work left, and how long each takes.
    pub work: u32,
    pub slice: Duration,
}

impl Default for Mock {
    fn default() -> Self {
        let region = |size, read, write| Region {
            size,
            read,
            write,
            mmap: None,
        };
        let mut regions = vec![Region::default(); 8];
        regions[0] = region(BAR0_SIZE, true, true);
        regions[2] = region(BAR2_SIZE, true, true);
        regions[4] = region(0x1000, false, true);
        regions[7] = region(4096, true, true);
        let eventfd = |count| Irq {
            count,
            eventfd: true,
            maskable: false,
            noresize: true,
        };
        let irqs = vec![
            Irq {
                maskable: true,
                ..eventfd(1)
            },
            Irq::default(),
            eventfd(MSIX_VECTORS),
            eventfd(1),
        ];
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0x0f, 0x1d, 0x64, 0x71]);
        Self {
            info: FunctionInfo { regions, irqs },
            bar0: vec![0; usize::try_from(BAR0_SIZE).unwrap()],
            config,
            doorbell: 0,
            writes: 0,
            no_bus: false,
            reads: 0,
            events: Vec::new(),
            maps: Vec::new(),
            eventfds: Vec::new(),
            requests: VecDeque::new(),
            replies: Vec::new(),
            work: 0,
            slice: Duration::ZERO,
        }
    }
}

impl Mock {
    /// Lets the client map parts of BAR0.
    pub fn with_mmap(mut self, mmap: RegionMmap) -> Self {
        self.info.regions[0].mmap = Some(mmap);
        self
    }

    fn slot(&mut self, region: u32, offset: u64, len: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(offset).unwrap();
        match region {
            BAR0 => self.bar0.get_mut(at..at + len),
            CONFIG => self.config.get_mut(at..at + len),
            _ => None,
        }
    }
}

impl PciFunction for Mock {
    fn info(&self) -> &FunctionInfo {
        &self.info
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.reads += 1;
        if region == BAR2 {
            if offset == FAILS {
                return Err(Errno::NXIO);
            }
            let bytes = self.doorbell.to_le_bytes();
            for (to, from) in data.iter_mut().zip(bytes) {
                *to = from;
            }
            return Ok(());
        }
        let from = self.slot(region, offset, data.len()).ok_or(Errno::IO)?;
        data.copy_from_slice(from);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.writes += 1;
        if region == BAR2 {
            assert!(offset != PANIC, "planted panic");
            if offset == FAILS {
                return Err(Errno::NXIO);
            }
            let mut bytes = [0; 8];
            let len = data.len().min(8);
            bytes[..len].copy_from_slice(&data[..len]);
            self.doorbell = self.doorbell.wrapping_add(u64::from_le_bytes(bytes));
            return Ok(());
        }
        if region == BAR4 {
            return Ok(());
        }
        self.slot(region, offset, data.len())
            .ok_or(Errno::IO)?
            .copy_from_slice(data);
        // There is no option ROM; QEMU finds out by writing its base address.
        self.config[0x30..0x34].fill(0);
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        self.events.push(Event::Map {
            iova: map.iova,
            size: map.size,
            fd: map.file.is_some(),
        });
        self.maps
            .push((map.iova, map.size, map.file.map(|(fd, _)| fd)));
        Ok(())
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        self.events.push(Event::Unmap(unmap));
        match unmap {
            DmaUnmap::All => self.maps.clear(),
            DmaUnmap::Range { iova, size } => self
                .maps
                .retain(|map| map.0 < iova || map.0 + map.1 > iova + size),
        }
        Ok(())
    }

    fn set_irqs(&mut self, irqs: IrqSet) -> Result<(), Errno> {
        let IrqSet {
            index,
            start,
            action,
        } = irqs;
        self.events.push(match action {
            IrqAction::Eventfds(fds) => {
                let connected = fds.iter().map(Option::is_some).collect();
                self.eventfds = fds;
                Event::Eventfds {
                    index,
                    start,
                    connected,
                }
            }
            IrqAction::Mask(vectors) => Event::Mask {
                index,
                start,
                vectors,
            },
            IrqAction::Unmask(vectors) => Event::Unmask {
                index,
                start,
                vectors,
            },
            IrqAction::Trigger(vectors) => Event::Trigger {
                index,
                start,
                vectors,
            },
        });
        Ok(())
    }

    fn reset(&mut self) {
        self.events.push(Event::Reset);
        self.doorbell = 0;
        self.work = 0;
        self.requests.clear();
    }

    fn disconnect(&mut self) {
        self.events.push(Event::Disconnect);
        self.doorbell = 0;
        self.work = 0;
        self.requests.clear();
        self.maps.clear();
        self.eventfds.clear();
    }

    fn run(&mut self) -> Progress {
        if self.work == 0 {
            return Progress::Idle;
        }
        self.work -= 1;
        std::thread::sleep(self.slice);
        Progress::Again
    }

    fn masters_bus(&self) -> bool {
        !self.no_bus
    }

    fn next_dma(&mut self) -> Option<(u64, DmaRequest)> {
        self.requests.pop_front()
    }

    fn dma_reply(&mut self, id: u64, reply: DmaReply) {
        self.replies.push((id, reply));
    }
}

//! A device with guest memory, and its limits checked at every slice.
use std::cell::RefCell;
use std::os::fd::OwnedFd;

use neuron_protocol::generation::{Block, Generation, Platform, Product};
use neuron_protocol::registers::Direction;
use neuron_vfio_user::function::{Config, NeuronFunction, SLICE_BYTES};
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::record::{Header, Journal, Payload, Recorded};
use neuron_vfio_user::vfio::{DmaMap, DmaRequest, PciFunction, Progress, Protection};
use rustix::fs::MemfdFlags;

use super::record::Shared;

pub const RAM_BASE: u64 = 0x10_0000;
pub const RAM_SIZE: u64 = 1 << 20;
/// A descriptor's bytes may cross the end of a slice.
const SLACK: u64 = 65_536;

/// Takes numbers off the front of an input; zeros when there is nothing left.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

pub fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("fuzz-ram", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

thread_local! {
    /// Where the next device's recording goes.
    static NEXT: RefCell<Option<(Shared, Payload)>> = const { RefCell::new(None) };
}

/// Has the next device of this thread recorded.
pub fn record_next(out: Shared, payload: Payload) {
    NEXT.set(Some((out, payload)));
}

pub struct Bench {
    pub function: Recorded,
    pub generation: &'static Generation,
    pub ram: OwnedFd,
    /// Accesses asked of the client and not answered.
    pub asked: Vec<(u64, DmaRequest)>,
}

impl Bench {
    /// `choice` picks the product and platform. Nothing is mapped.
    pub fn new(choice: u8) -> Self {
        let product = Product::ALL[usize::from(choice) % Product::ALL.len()];
        let platform = if choice & 0x80 == 0 {
            Platform::Silicon
        } else {
            Platform::Qemu
        };
        let generation = product.generation();
        let config = Config::new(product, platform);
        let journal = NEXT.take().map(|(out, payload)| {
            let header = Header::new(&config, payload);
            Journal::start(out, &header, u64::MAX, "bench").unwrap()
        });
        Self {
            function: Recorded::new(NeuronFunction::new(config).unwrap(), journal),
            generation,
            ram: memfd(RAM_SIZE),
            asked: Vec::new(),
        }
    }

    /// Maps RAM, and lets the device master the bus.
    pub fn enable(&mut self, by_message: bool) {
        let file = (!by_message).then(|| (self.ram.try_clone().unwrap(), 0));
        self.map(RAM_BASE, RAM_SIZE, file);
        self.function
            .region_write(7, 4, &6_u16.to_le_bytes())
            .unwrap();
    }

    pub fn map(&mut self, iova: u64, size: u64, file: Option<(OwnedFd, u64)>) {
        let protection = Protection {
            read: true,
            write: true,
        };
        // Too many mappings, or a file that cannot be mapped.
        let _ = self.function.dma_map(DmaMap {
            iova,
            size,
            protection,
            file,
        });
    }

    /// Puts bytes into RAM where they fit.
    pub fn fill(&self, offset: u64, bytes: &[u8]) {
        let length = u64::try_from(rustix::fs::fstat(&self.ram).unwrap().st_size).unwrap();
        let room = usize::try_from(length.saturating_sub(offset)).unwrap();
        let bytes = &bytes[..bytes.len().min(room)];
        if !bytes.is_empty() {
            rustix::io::pwrite(&self.ram, bytes, offset).unwrap();
        }
    }

    pub fn ram(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(RAM_SIZE).unwrap()];
        rustix::io::pread(&self.ram, &mut bytes, 0).unwrap();
        bytes
    }

    /// As an engine sees it.
    pub fn host(&self, guest: u64) -> u64 {
        self.generation.host_to_soc(guest).unwrap_or(guest)
    }

    pub fn write(&mut self, offset: u32, value: u32) {
        let _ = self
            .function
            .region_write(0, offset.into(), &value.to_le_bytes());
    }

    pub fn read(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        let _ = self.function.region_read(0, offset.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// A queue's register.
    pub fn queue(&self, engine: u8, queue: u8, direction: Direction, offset: u32) -> u32 {
        let base = self.generation.block_base(Block::Udma, engine).unwrap();
        neuron_protocol::cycle::QueueLocation::new(self.generation, engine, queue)
            .map_or(base, |location| location.register(direction, offset))
    }

    pub fn bytes_moved(&self) -> u64 {
        self.function.report(Detail::Status).counters.bytes
    }

    /// Runs some slices, each of which must keep its bounds. Whether the device has become idle.
    pub fn slices(&mut self, most: u32) -> bool {
        for _ in 0..most {
            let before = self.bytes_moved();
            let progress = self.function.run();
            let moved = self.bytes_moved() - before;
            assert!(moved <= SLICE_BYTES + SLACK, "{moved} bytes in a slice");
            while let Some(request) = self.function.next_dma() {
                let len = match &request.1 {
                    DmaRequest::Read { len, .. } => *len,
                    DmaRequest::Write { data, .. } => data.len(),
                };
                assert!((1..=1 << 20).contains(&len), "a message for {len} bytes");
                self.asked.push(request);
            }
            // One access per queue and one of the mailbox, and what resets have made obsolete.
            if progress == Progress::Idle {
                return true;
            }
        }
        false
    }

    /// What is true at any time.
    pub fn check(&self) {
        let report = self.function.report(Detail::Dump);
        for queue in &report.queues {
            for ring in [&queue.m2s, &queue.s2m] {
                // Software may shorten a ring under way; then only what was rung for counts.
                assert!(ring.outstanding <= 0xff_ffff, "{queue:?}");
            }
        }
    }

    /// The client leaves: a fresh device, without memory.
    pub fn end(mut self) {
        self.function.disconnect();
        assert!(self.function.next_dma().is_none());
        assert_eq!(self.function.run(), Progress::Idle);
        let report = self.function.report(Detail::Dump);
        assert!(report.maps.is_empty(), "{:?}", report.maps);
        assert!(report.aborted.is_empty(), "{:?}", report.aborted);
        // Queues that were used are remembered, but nothing of what they had to do.
        for ring in report
            .queues
            .iter()
            .flat_map(|queue| [&queue.m2s, &queue.s2m])
        {
            assert_eq!(
                (ring.outstanding, ring.length, ring.head, ring.tail),
                (0, 0, 0, 0)
            );
        }
    }
}

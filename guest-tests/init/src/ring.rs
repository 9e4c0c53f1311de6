//! A queue that a process fills itself: rings in chunks, descriptors copied in, doorbell by ioctl
//! (contract §8.7, seed §3).
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use neuron_protocol::descriptor::{Barrier, LenCtrl, MetaCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::ioctl as abi;
use neuron_protocol::marker::{MARKER, MARKER_SIZE, POLL_OFFSET};
use neuron_protocol::ring::RingId;
use zerocopy::{FromBytes, IntoBytes};

use crate::device::{Chunk, Device, PATIENCE};
use crate::ioctl;

/// Where a ring's descriptors live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Guest RAM.
    Host,
    /// Device memory: every write of descriptors is itself a DMA.
    Device,
}

/// Producer side of one direction.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    next: u32,
    id: RingId,
    size: u32,
}

impl Cursor {
    fn take(&mut self) -> (u32, RingId) {
        let taken = (self.next, self.id);
        self.next += 1;
        if self.next == self.size {
            self.next = 0;
            self.id = self.id.next();
        }
        taken
    }
}

/// A piece of memory in a packet: device-side address and bytes, 1 to 65,536.
pub type Piece = (u64, u32);

/// An initialised queue and its two rings.
pub struct Ring<'d> {
    device: &'d Device,
    /// Engine number.
    pub engine: u32,
    /// Queue number in the engine.
    pub queue: u32,
    /// Transmit ring.
    pub tx_chunk: Chunk,
    /// Receive ring.
    pub rx_chunk: Chunk,
    tx: Cursor,
    rx: Cursor,
    /// Put descriptors into the rings by `MEM_BUF_COPY`, as user space does in simulation (seed §4),
    /// instead of by `DMA_COPY_DESCRIPTORS`.
    pub by_copy_in: bool,
}

impl<'d> Ring<'d> {
    /// Allocates both rings and initialises the queue. `size` in descriptors: a multiple of 16, 32 and up.
    pub fn new(
        device: &'d Device,
        engine: u32,
        queue: u32,
        size: u32,
        place: Place,
    ) -> Result<Self> {
        let bytes = u64::from(size) * 16;
        let core = engine / u32::from(device.generation.engines_per_core);
        let allocate = || match place {
            Place::Host => device.host_of(core, bytes),
            Place::Device => device.device_of(core, bytes),
        };
        let cursor = Cursor {
            next: 0,
            id: RingId::INITIAL,
            size,
        };
        let mut ring = Self {
            device,
            engine,
            queue,
            tx_chunk: allocate()?,
            rx_chunk: allocate()?,
            tx: cursor,
            rx: cursor,
            by_copy_in: false,
        };
        ring.init()?;
        Ok(ring)
    }

    /// Initialises the queue (again): the hardware starts over at descriptor 0, phase 1.
    pub fn init(&mut self) -> Result<()> {
        // Leftovers of an earlier life would carry valid phases.
        for chunk in [self.tx_chunk, self.rx_chunk] {
            self.device
                .write(chunk, 0, &vec![0; usize::try_from(chunk.size)?])?;
        }
        let mut argument = abi::DmaQueueInit {
            eng_id: self.engine,
            qid: self.queue,
            tx_desc_count: self.tx.size,
            rx_desc_count: self.rx.size,
            tx_handle: self.tx_chunk.handle,
            rx_handle: self.rx_chunk.handle,
            rxc_handle: 0,
            axi_port: 0,
            pad_: 0,
        };
        ioctl::plain(self.device.file(), abi::DMA_QUEUE_INIT, &mut argument).with_context(
            || {
                format!(
                    "engine {} queue {} of {} descriptors",
                    self.engine, self.queue, self.tx.size
                )
            },
        )?;
        for cursor in [&mut self.tx, &mut self.rx] {
            cursor.next = 0;
            cursor.id = RingId::INITIAL;
        }
        Ok(())
    }

    /// The device it belongs to.
    pub const fn device(&self) -> &'d Device {
        self.device
    }

    /// Next free slot of the transmit ring and the phase it will carry.
    pub const fn tx_position(&self) -> (u32, RingId) {
        (self.tx.next, self.tx.id)
    }

    /// Next free slot of the receive ring and its phase.
    pub const fn rx_position(&self) -> (u32, RingId) {
        (self.rx.next, self.rx.id)
    }

    /// Writes one packet: bytes of `from`, in order, become bytes of `to`. Rings no doorbell.
    pub fn stage(&mut self, from: &[Piece], to: &[Piece]) -> Result<()> {
        let total = |pieces: &[Piece]| pieces.iter().map(|p| u64::from(p.1)).sum::<u64>();
        ensure!(
            total(from) == total(to),
            "packet of {} bytes into {}",
            total(from),
            total(to)
        );
        let last = from.len().saturating_sub(1);
        let mut tx = Vec::with_capacity(from.len());
        for (nth, (source, bytes)) in from.iter().enumerate() {
            let (slot, id) = self.tx.take();
            let words = LenCtrl::new()
                .with_byte_length(*bytes)
                .context("1 to 65536 bytes per descriptor")?
                .with_ring_id(id)
                .with_first(nth == 0)
                .with_last(nth == last)
                // What is before it has landed when it begins: a marker, a semaphore or a copy back must find the data.
                .with_dmb(nth == 0);
            tx.push((
                slot,
                raw(&TxDescriptor::from_words(words, MetaCtrl::COPY, *source))?,
            ));
        }
        let mut rx = Vec::with_capacity(to.len());
        for (destination, bytes) in to {
            let (slot, id) = self.rx.take();
            let descriptor = RxDescriptor::new(*destination, *bytes, id, Barrier::None);
            rx.push((
                slot,
                raw(&descriptor.context("1 to 65536 bytes per descriptor")?)?,
            ));
        }
        // Destinations first, as everywhere in this cycle (seed §3).
        self.put(self.rx_chunk, abi::queue_type::RX, &rx)?;
        self.put(self.tx_chunk, abi::queue_type::TX, &tx)
    }

    /// Copies runs of consecutive slots.
    fn put(&self, chunk: Chunk, queue_type: u32, slots: &[(u32, [u8; 16])]) -> Result<()> {
        let mut rest = slots;
        while let Some(&(first, _)) = rest.first() {
            let run = rest
                .iter()
                .zip(first..)
                .take_while(|((slot, _), expected)| slot == expected)
                .count();
            let (now, later) = rest.split_at(run);
            let descriptors: Vec<[u8; 16]> = now.iter().map(|(_, d)| *d).collect();
            if self.by_copy_in {
                self.device
                    .write(chunk, u64::from(first) * 16, descriptors.as_flattened())?;
                rest = later;
                continue;
            }
            ioctl::copy_descriptors(
                self.device.file(),
                chunk.handle,
                first * 16,
                queue_type,
                &descriptors,
            )
            .with_context(|| format!("{run} descriptors at slot {first}"))?;
            rest = later;
        }
        Ok(())
    }

    /// Rings the doorbells: `rx` first, then `tx`; `tx` 0 only arms the receive ring.
    pub fn start(&self, tx: u32, rx: u32) -> Result<()> {
        // Not ours to try on a kernel we want to keep (contract §11).
        ensure!(
            rx != 0,
            "a receive count of 0 crashes the real driver's kernel"
        );
        let mut argument = abi::DmaQueueCopyStart {
            eng_id: self.engine,
            qid: self.queue,
            tx_desc_count: tx,
            rx_desc_count: rx,
        };
        ioctl::plain(self.device.file(), abi::DMA_QUEUE_COPY_START, &mut argument)
            .with_context(|| format!("start tx {tx} rx {rx}"))
    }

    /// Tells the driver that descriptors of both rings are done; power-of-two rings only.
    pub fn ack(&self, count: u32) -> Result<()> {
        // Not ours to try on a kernel we want to keep (contract §11).
        ensure!(
            self.tx.size.is_power_of_two(),
            "acknowledging a ring of {} crashes the real driver's kernel",
            self.tx.size
        );
        let mut argument = abi::DmaAckCompleted {
            eng_id: self.engine,
            qid: self.queue,
            count,
        };
        Ok(ioctl::plain(
            self.device.file(),
            abi::DMA_ACK_COMPLETED,
            &mut argument,
        )?)
    }

    /// Releases the queue (the real driver does nothing here; the process end does).
    pub fn release(&self) -> Result<()> {
        let mut argument = abi::DmaQueueRelease {
            eng_id: self.engine,
            qid: self.queue,
        };
        Ok(ioctl::plain(
            self.device.file(),
            abi::DMA_QUEUE_RELEASE,
            &mut argument,
        )?)
    }

    /// What the queue's registers say: transmit and receive.
    pub fn state(&self) -> Result<(abi::DmaQueueState, abi::DmaQueueState)> {
        Ok(ioctl::queue_state(
            self.device.file(),
            self.engine,
            self.queue,
        )?)
    }

    /// Waits until both hardware heads stand where the producer does.
    pub fn wait_idle(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (tx, rx) = self.state()?;
            if tx.head_pointer == self.tx.next && rx.head_pointer == self.rx.next {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "queue does not run dry: tx head {} tail {} (staged up to {}), rx head {} tail {} (staged up to {}), status {:#x}/{:#x}",
                    tx.head_pointer,
                    tx.tail_pointer,
                    self.tx.next,
                    rx.head_pointer,
                    rx.tail_pointer,
                    self.rx.next,
                    tx.hw_status,
                    rx.hw_status
                );
            }
            std::thread::sleep(std::time::Duration::from_micros(10));
        }
    }
}

fn raw(descriptor: &impl IntoDescriptor) -> Result<[u8; 16]> {
    <[u8; 16]>::read_from_bytes(descriptor.bytes()).map_err(|_| anyhow::anyhow!("descriptor size"))
}

/// Either form as bytes.
trait IntoDescriptor {
    fn bytes(&self) -> &[u8];
}

impl IntoDescriptor for TxDescriptor {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl IntoDescriptor for RxDescriptor {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// The completion word of user space: eight bytes, source +0 and poll slot +4, copied in and out by
/// the driver every 10 us (seed §4, "the userspace software poll").
pub struct Marker<'d> {
    device: &'d Device,
    chunk: Chunk,
}

impl<'d> Marker<'d> {
    /// Allocates and arms the two words in a chunk of the given place.
    pub fn new(device: &'d Device, place: Place) -> Result<Self> {
        let chunk = match place {
            Place::Host => device.host(4096)?,
            Place::Device => device.device(4096)?,
        };
        let marker = Self { device, chunk };
        marker.arm()?;
        Ok(marker)
    }

    /// Source word set, poll slot cleared, both by copy-in.
    pub fn arm(&self) -> Result<()> {
        let mut words = [0; 8];
        words[..4].copy_from_slice(&MARKER.to_le_bytes());
        self.device.write(self.chunk, 0, &words)
    }

    /// The 4-byte self-copy to stage last.
    pub const fn packet(&self) -> (Piece, Piece) {
        (
            (self.chunk.address, MARKER_SIZE),
            (self.chunk.address + POLL_OFFSET, MARKER_SIZE),
        )
    }

    /// Stages the self-copy.
    pub fn stage(&self, ring: &mut Ring<'_>) -> Result<()> {
        let (from, to) = self.packet();
        ring.stage(&[from], &[to])
    }

    /// The poll slot, by one copy-out.
    pub fn read(&self) -> Result<u32> {
        let mut word = [0; 4];
        self.device.read(self.chunk, POLL_OFFSET, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Polls every 10 us, then re-arms. Returns the number of copy-outs it took.
    pub fn wait(&self) -> Result<u32> {
        let deadline = Instant::now() + PATIENCE;
        let mut polls = 1;
        let mut torn = false;
        loop {
            match self.read()? {
                MARKER => {
                    self.arm()?;
                    return Ok(polls);
                }
                0 if Instant::now() < deadline => torn = false,
                0 => bail!("no marker after {} s and {polls} polls", PATIENCE.as_secs()),
                // The driver's copy-out may read the word byte by byte while it is stored: once, not twice.
                other if torn => bail!("poll slot holds {other:#010x}, neither 0 nor the marker"),
                _ => torn = true,
            }
            polls += 1;
            std::thread::sleep(std::time::Duration::from_micros(10));
        }
    }
}

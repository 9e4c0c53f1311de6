//! The real device behind a real socket: how long a client waits while there is more work than anyone can wait for.
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use neuron_protocol::cycle::QueueLocation;
use neuron_protocol::descriptor::{Barrier, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Generation, Platform, Product};
use neuron_protocol::registers::{Direction, misc_ram, queue};
use neuron_protocol::ring::RingId;
use neuron_vfio_user::function::{Config, Firmware, NeuronFunction, SLICE_BYTES};
use neuron_vfio_user::memory::HbmGeometry;
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::vfio::codec::{Command, Reply, wire};
use neuron_vfio_user::vfio::{Handle, Listener, ServeError, Server, Settings};

use crate::peer::{Peer, QEMU_VERSION, dma_map, dma_unmap, memfd};

const ENGINE: u8 = 0;
const QUEUE: u8 = 0;
/// The longest ring: its length is 24 bits wide, and it ends on a 256-byte boundary.
const LONGEST: u32 = 0xff_fff0;
const TX_RING: u64 = 0x1_0000_0000;
const RX_RING: u64 = 0x2_0000_0000;
const SOURCE: u64 = 0x3_0000_0000;
const HBM: u64 = 0x100_0000;
/// What a step costs of a slice at least, in bytes (docs/vfio-user.md).
const STEP_COST: u64 = 256;

struct Real {
    generation: &'static Generation,
    handle: Handle<NeuronFunction>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
    peer: Peer,
    directory: tempfile::TempDir,
}

impl Real {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let product = Product::Trn2;
        let generation = product.generation();
        let function = NeuronFunction::new(Config {
            product,
            platform: Platform::Silicon,
            routing_id: 0,
            serial: 1,
            firmware: Firmware::default(),
            hbm: HbmGeometry::new(generation, Platform::Silicon, None).unwrap(),
            mmap_hbm: false,
            msix: false,
        });
        let (server, handle) = Server::new(
            Listener::bind(&path).unwrap(),
            function.unwrap(),
            Settings::default(),
        )
        .unwrap();
        let thread = Some(server.spawn("real").unwrap());
        let mut peer = Peer::new(UnixStream::connect(&path).unwrap());
        peer.version(QEMU_VERSION);
        Self {
            generation,
            handle,
            thread,
            peer,
            directory,
        }
    }

    fn host(&self, address: u64) -> u64 {
        self.generation.host_to_soc(address).unwrap()
    }

    fn register(&self, direction: Direction, register: u32) -> u64 {
        QueueLocation::new(self.generation, ENGINE, QUEUE)
            .unwrap()
            .register(direction, register)
            .into()
    }

    fn post(&mut self, offset: u64, value: u32) {
        self.peer.post(&Command::RegionWrite {
            region: 0,
            offset,
            data: &value.to_le_bytes(),
        });
    }

    fn done(&mut self) -> u64 {
        let at = self.register(Direction::M2s, queue::DCP);
        let bytes = self.peer.read(0, at, 4);
        u64::from(u32::from_le_bytes(bytes.try_into().unwrap()) & 0xff_ffff)
    }

    /// A ring of 2^24 descriptors of one kind: 1 MiB of them, mapped 256 times.
    fn map_ring(&mut self, base: u64, descriptor: [u8; 16]) {
        let file = memfd(1 << 20);
        rustix::io::pwrite(&file, &descriptor.repeat(1 << 16), 0).unwrap();
        for n in 0..256 {
            let reply = self
                .peer
                .call_with_fds(&dma_map(base + (n << 20), 1 << 20), &[file.as_fd()]);
            assert_eq!(reply.errno(), 0);
        }
    }

    /// Rings of the greatest length, every descriptor of them rung for: with 65,536 bytes each almost 1 TiB.
    fn flood(&mut self, bytes: u32) {
        self.flood_to(HBM, bytes);
    }

    fn flood_to(&mut self, destination: u64, bytes: u32) {
        self.peer.call(&Command::RegionWrite {
            region: 7,
            offset: 4,
            data: &[6, 0],
        });
        let file = memfd(1 << 20);
        let reply = self
            .peer
            .call_with_fds(&dma_map(SOURCE, 1 << 20), &[file.as_fd()]);
        assert_eq!(reply.errno(), 0);
        let (source, id) = (self.host(SOURCE), RingId::INITIAL);
        let tx = TxDescriptor::copy(source, bytes, id, Barrier::None).unwrap();
        let rx = RxDescriptor::new(destination, bytes, id, Barrier::None).unwrap();
        self.map_ring(TX_RING, zerocopy::transmute!(tx));
        self.map_ring(RX_RING, zerocopy::transmute!(rx));
        for (direction, ring) in [(Direction::M2s, TX_RING), (Direction::S2m, RX_RING)] {
            let base = self.host(ring);
            for (register, value) in [
                (queue::DRBP_LOW, base & 0xffff_ffff),
                (queue::DRBP_HIGH, base >> 32),
                (queue::DRL, LONGEST.into()),
                (queue::CFG, u32::MAX.into()),
            ] {
                let at = self.register(direction, register);
                self.post(at, u32::try_from(value).unwrap());
            }
        }
        for direction in [Direction::S2m, Direction::M2s] {
            let at = self.register(direction, queue::DRTP_INC);
            self.post(at, LONGEST);
        }
        let start = std::time::Instant::now();
        while self.done() == 0 {
            let look = |function: &mut NeuronFunction| function.report(Detail::Status);
            let report = self.handle.call(look).unwrap();
            assert!(
                start.elapsed() < crate::peer::PATIENCE,
                "{:?} {:?}",
                report.queues,
                report.aborted
            );
        }
    }

    /// Holds the device thread while `send` puts something on the socket; the descriptors done by then.
    fn held(&mut self, send: impl FnOnce(&mut Self)) -> u64 {
        let (started, wait_started) = channel();
        let (go, wait_go) = channel::<()>();
        let hold = move |function: &mut NeuronFunction| {
            let report = function.report(Detail::Status);
            started.send(report.queues[0].m2s.done).unwrap();
            wait_go.recv().unwrap();
        };
        self.handle.send(hold).unwrap();
        let before = wait_started.recv().unwrap();
        send(self);
        go.send(()).unwrap();
        before
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.handle.stop();
        let result = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            result.unwrap().unwrap().unwrap();
            assert!(!self.directory.path().join("s").exists());
        }
    }
}

/// In the units of a slice, what the device did between two counts of descriptors.
fn cost(descriptors: u64, bytes: u32) -> u64 {
    descriptors * u64::from(bytes).max(STEP_COST)
}

/// One tick of the device: a read that is in the socket is answered after at most one slice of work.
#[test]
fn a_read_waits_for_one_slice_at_most() {
    for bytes in [65_536, 1] {
        let mut real = Real::new();
        real.flood(bytes);
        let mut worst = 0;
        for _ in 0..20 {
            let at = real.register(Direction::M2s, queue::DCP);
            let before = real.held(|real| {
                let command = Command::RegionRead {
                    region: 0,
                    offset: at,
                    count: 4,
                };
                real.peer.send(&command);
            });
            let reply = real.peer.receive();
            let after = u32::from_le_bytes(reply.data().try_into().unwrap()) & 0xff_ffff;
            worst = worst.max(cost(u64::from(after) - before, bytes));
        }
        assert!(worst > 0, "the device was idle");
        assert!(worst <= SLICE_BYTES + 65_536, "{worst} bytes");
        assert!(real.done() < u64::from(LONGEST), "the flood was too short");
    }
}

/// Registers are dearer than memory: 512 of them are a slice.
#[test]
fn a_slice_of_register_writes_is_short() {
    // A register of the APB window of core 0.
    const REGISTER: u64 = 0x20_0000_0000 + 0x8_0270_1800;
    let mut real = Real::new();
    real.flood_to(REGISTER, 4);
    let mut most = 0;
    for _ in 0..20 {
        let before = real.held(|real| {
            let at = real.register(Direction::M2s, queue::DCP);
            real.peer.send(&Command::RegionRead {
                region: 0,
                offset: at,
                count: 4,
            });
        });
        let reply = real.peer.receive();
        let after = u32::from_le_bytes(reply.data().try_into().unwrap()) & 0xff_ffff;
        most = most.max(u64::from(after) - before);
    }
    assert!(most > 0, "the device was idle");
    assert!(most <= SLICE_BYTES / (8 << 10) + 1, "{most} registers");
}

/// A core reset costs what there is to reset: in a row, some ten plain writes. Rebuilding every engine costs hundreds.
#[test]
fn posted_resets_in_a_row_are_cheap() {
    const RESETS: u32 = 29_000;
    let mut real = Real::new();
    let window = u64::from(real.generation.misc_ram);
    let mut time = |writes: [(u32, u32); 3]| {
        let mut bytes = Vec::new();
        for _ in 0..RESETS {
            for (register, value) in writes {
                Command::RegionWrite {
                    region: 0,
                    offset: window + u64::from(register),
                    data: &value.to_le_bytes(),
                }
                .encode(0, true, &mut bytes);
            }
        }
        let start = std::time::Instant::now();
        std::io::Write::write_all(&mut &real.peer.stream, &bytes).unwrap();
        real.done();
        start.elapsed()
    };
    let map = (misc_ram::RESET_MAP, 0xff);
    let cores = (misc_ram::RESET, misc_ram::RESET_CORES);
    let plain = time([map, map, map]);
    let resets = time([map, cores, (misc_ram::TRIGGER, 1)]);
    let look = |function: &mut NeuronFunction| function.report(Detail::Status);
    let report = real.handle.call(look).unwrap();
    assert_eq!(report.counters.resets, u64::from(RESETS));
    assert!(resets < 60 * plain, "{resets:?}, plain writes {plain:?}");
}

/// Nor do posted writes without end: 4,096 of them are served between two slices.
#[test]
fn a_read_behind_200_000_posted_writes() {
    const WRITES: u64 = 200_000;
    let mut real = Real::new();
    real.flood(65_536);
    let counter = u64::from(real.generation.misc_ram + misc_ram::SERIAL_LOW);
    let mut bytes = Vec::new();
    for n in 1..=200_000_u32 {
        Command::RegionWrite {
            region: 0,
            offset: counter,
            data: &n.to_le_bytes(),
        }
        .encode(0, true, &mut bytes);
    }
    let before = real.held(|_| ());
    std::io::Write::write_all(&mut &real.peer.stream, &bytes).unwrap();
    let after = real.done();
    let status = real.handle.status().unwrap();
    assert!(status.counters.posted_writes >= WRITES);
    // The kernel's buffer holds some 200 KiB: more slices than the 7 that whole megabytes would need, but each receive call
    // that finds anything is followed by one at most.
    let slices = (after - before) * 65_536 / SLICE_BYTES;
    let calls = status.calls.receive;
    assert!(slices <= calls + 1, "{slices} slices, {calls} calls");
    assert!(calls < WRITES / 10, "{calls} calls");
}

/// `DEVICE_RESET` and unmap while 1 TiB is under way: when they are answered nothing moves any more.
#[test]
fn reset_and_unmap_of_a_busy_device() {
    for unmap in [false, true] {
        let mut real = Real::new();
        real.flood(65_536);
        assert!(real.done() < u64::from(LONGEST));
        let moved = |real: &Real| {
            let look = |function: &mut NeuronFunction| function.report(Detail::Status);
            let report = real.handle.call(look).unwrap();
            (report.counters.bytes, report.aborted)
        };
        if unmap {
            assert_eq!(real.peer.call(&dma_unmap(SOURCE, 1 << 20)).errno(), 0);
        } else {
            assert_eq!(real.peer.call(&Command::DeviceReset).errno(), 0);
        }
        let (first, _) = moved(&real);
        assert!(first > 0);
        // A read that comes back has had a slice after the answer.
        real.done();
        let (second, aborted) = moved(&real);
        assert_eq!(first, second, "work after the answer");
        assert_eq!(aborted.len(), usize::from(unmap), "{aborted:?}");
        real.peer.assert_alive();
    }
}

/// Stopping does not wait for 1 TiB either, and a client that leaves takes its work along.
#[test]
fn a_busy_device_stops_and_is_fresh_for_the_next_client() {
    let mut real = Real::new();
    real.flood(65_536);
    let path = real.directory.path().join("s");
    let old = std::mem::replace(&mut real.peer, Peer::new(UnixStream::pair().unwrap().0));
    drop(old);
    let mut peer = Peer::new(UnixStream::connect(path).unwrap());
    peer.version(QEMU_VERSION);
    real.peer = peer;
    assert_eq!(real.done(), 0);
    real.flood(65_536);
    drop(real);
}

/// QEMU with `share=off`: the file that came with the map is not what the guest works on. The device asks what the guest
/// sees where a ring reads as garbage, and says so; a guest that really wrote garbage is not accused.
#[test]
fn private_guest_memory_is_noticed() {
    for private in [true, false] {
        let mut real = Real::new();
        real.peer.call(&Command::RegionWrite {
            region: 7,
            offset: 4,
            data: &[6, 0],
        });
        let file = memfd(1 << 20);
        let reply = real
            .peer
            .call_with_fds(&dma_map(TX_RING, 1 << 20), &[file.as_fd()]);
        assert_eq!(reply.errno(), 0);
        let base = real.host(TX_RING);
        for (register, value) in [
            (queue::DRBP_LOW, base & 0xffff_ffff),
            (queue::DRBP_HIGH, base >> 32),
            (queue::DRL, 64),
            (queue::CFG, u32::MAX.into()),
            (queue::DRTP_INC, 1),
        ] {
            let at = real.register(Direction::M2s, register);
            real.post(at, u32::try_from(value).unwrap());
        }
        let mut asked = 0;
        let look = |function: &mut NeuronFunction| {
            let report = function.report(Detail::Status);
            (report.private_memory, report.aborted.len())
        };
        loop {
            let message = real.peer.receive();
            // The question is too long to decode as a command.
            let word =
                |at: usize| u64::from_le_bytes(message.payload[at..at + 8].try_into().unwrap());
            let (iova, count) = (word(0), word(8));
            assert_eq!(message.command(), wire::command::DMA_READ);
            let mut bytes = Vec::new();
            if count > 1 << 20 {
                // Which layout do you have? This one.
                let (command, errno) = (message.command(), rustix::io::Errno::TOOBIG);
                Reply::Error { command, errno }.encode(message.id(), &mut bytes);
            } else {
                assert_eq!((iova, count), (TX_RING, 16));
                asked += 1;
                let data = [u8::from(private); 16];
                Reply::DmaRead { iova, data: &data }.encode(message.id(), &mut bytes);
            }
            std::io::Write::write_all(&mut &real.peer.stream, &bytes).unwrap();
            // A read that comes back has the answer behind it.
            if asked == if private { 3 } else { 1 } {
                break real.peer.assert_alive();
            }
        }
        assert_eq!(real.handle.call(look).unwrap(), (private, 1));
    }
}

/// Memory that goes away under a transfer, with everything real: the client keeps the file.
#[test]
fn a_truncated_file_costs_the_client_its_engine_only() {
    let mut real = Real::new();
    real.flood(65_536);
    let file: OwnedFd = memfd(1 << 20);
    let reply = real
        .peer
        .call_with_fds(&dma_map(SOURCE, 1 << 20), &[file.as_fd()]);
    assert_eq!(reply.errno(), 0);
    rustix::fs::ftruncate(&file, 0).unwrap();
    let start = std::time::Instant::now();
    loop {
        let look = |function: &mut NeuronFunction| function.report(Detail::Status).aborted;
        let aborted = real.handle.call(look).unwrap();
        if let Some((engine, why)) = aborted.first() {
            assert_eq!((*engine, aborted.len()), (u16::from(ENGINE), 1));
            assert!(why.contains("truncated after it was mapped"), "{why}");
            break;
        }
        assert!(start.elapsed() < crate::peer::PATIENCE);
    }
    real.peer.assert_alive();
}

//! The real device with MSI-X, driven as QEMU does when a guest enables it (qemu client).
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use neuron_protocol::cycle::QueueLocation;
use neuron_protocol::descriptor::{Barrier, LenCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::{Block, Generation, Platform, Product};
use neuron_protocol::registers::{Direction, engine, iofic, queue};
use neuron_protocol::ring::RingId;
use neuron_vfio_user::function::{Config, Firmware, NeuronFunction};
use neuron_vfio_user::memory::HbmGeometry;
use neuron_vfio_user::observe::report::{Account, Counters, Detail};
use neuron_vfio_user::vfio::codec::{Command, IrqData, IrqVerb, wire};
use neuron_vfio_user::vfio::{Handle, Listener, ServeError, Server, Settings};
use rustix::event::{EventfdFlags, eventfd};
use zerocopy::FromBytes;

use crate::peer::{Peer, QEMU_VERSION, dma_map, memfd};

const MSIX: u32 = 2;
const CAPABILITY: u64 = 0x80;
const ENGINE: u8 = 5;
const QUEUE: u8 = 3;
const RAM: u64 = 0x1_0000_0000;
const TX_RING: u64 = RAM;
const RX_RING: u64 = RAM + 0x1000;
const SOURCE: u64 = RAM + 0x2000;
const DESTINATION: u64 = RAM + 0x3000;
const BYTES: u32 = 64;
const LENGTH: u32 = 64;

struct Device {
    generation: &'static Generation,
    handle: Handle<NeuronFunction>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
    peer: Peer,
    ram: OwnedFd,
    staged: u32,
    _directory: tempfile::TempDir,
}

impl Device {
    fn new(product: Product, msix: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let generation = product.generation();
        let function = NeuronFunction::new(Config {
            product,
            platform: Platform::Silicon,
            routing_id: 0,
            serial: 1,
            firmware: Firmware::default(),
            hbm: HbmGeometry::new(generation, Platform::Silicon, None).unwrap(),
            mmap_hbm: false,
            msix,
        });
        let (server, handle) = Server::new(
            Listener::bind(&path).unwrap(),
            function.unwrap(),
            Settings::default(),
        )
        .unwrap();
        let thread = Some(server.spawn("msix").unwrap());
        let mut peer = Peer::new(UnixStream::connect(&path).unwrap());
        peer.version(QEMU_VERSION);
        let ram = memfd(1 << 20);
        let map = dma_map(RAM, 1 << 20);
        assert_eq!(peer.call_with_fds(&map, &[ram.as_fd()]).errno(), 0);
        let mut device = Self {
            generation,
            handle,
            thread,
            peer,
            ram,
            staged: 0,
            _directory: directory,
        };
        device.configure(4, 6);
        for (direction, ring) in [(Direction::M2s, TX_RING), (Direction::S2m, RX_RING)] {
            let base = generation.host_to_soc(ring).unwrap();
            for (register, value) in [
                (queue::DRBP_LOW, base & 0xffff_ffff),
                (queue::DRBP_HIGH, base >> 32),
                (queue::DRL, LENGTH.into()),
                (queue::CFG, u32::MAX.into()),
            ] {
                let at = device.register(direction, register);
                device.write(at, u32::try_from(value).unwrap());
            }
        }
        device
    }

    fn configure(&mut self, offset: u64, value: u16) {
        let reply = self.peer.call(&Command::RegionWrite {
            region: 7,
            offset,
            data: &value.to_le_bytes(),
        });
        assert_eq!(reply.errno(), 0);
    }

    fn register(&self, direction: Direction, register: u32) -> u64 {
        QueueLocation::new(self.generation, ENGINE, QUEUE)
            .unwrap()
            .register(direction, register)
            .into()
    }

    fn iofic(&self, group: u32, register: u32) -> u64 {
        let base = self.generation.block_base(Block::Udma, ENGINE).unwrap();
        u64::from(base + engine::GEN + group * iofic::GROUP_STRIDE + register)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.peer.post(&Command::RegionWrite {
            region: 0,
            offset,
            data: &value.to_le_bytes(),
        });
    }

    fn read(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes(self.peer.read(0, offset, 4).try_into().unwrap())
    }

    /// Attaches or detaches an eventfd, as QEMU does for each vector that the guest uses.
    fn attach(&mut self, vector: u32, fd: Option<&OwnedFd>) -> i32 {
        let command = Command::SetIrqs {
            index: MSIX,
            start: vector,
            count: 1,
            verb: IrqVerb::Trigger,
            data: IrqData::Eventfd,
        };
        match fd {
            Some(fd) => self.peer.call_with_fds(&command, &[fd.as_fd()]).errno(),
            None => self.peer.call(&command).errno(),
        }
    }

    fn set(&mut self, verb: IrqVerb, data: IrqData<'_>, start: u32, count: u32) -> i32 {
        let index = MSIX;
        self.peer
            .call(&Command::SetIrqs {
                index,
                start,
                count,
                verb,
                data,
            })
            .errno()
    }

    /// A copy whose last descriptors ask for an interrupt or not; done when this returns.
    fn copy(&mut self, byte: u8, tx_interrupt: bool, rx_interrupt: bool) {
        rustix::io::pwrite(&self.ram, &[byte; BYTES as usize], SOURCE - RAM).unwrap();
        let source = self.generation.host_to_soc(SOURCE).unwrap();
        self.trigger(source, tx_interrupt, rx_interrupt);
        let at = self.register(Direction::S2m, queue::DCP);
        while self.read(at) & 0xff_ffff != self.staged {}
    }

    /// Stages a copy and rings for it.
    fn trigger(&mut self, source: u64, tx_interrupt: bool, rx_interrupt: bool) {
        let host = |address| self.generation.host_to_soc(address).unwrap();
        let (index, id) = (u64::from(self.staged), RingId::INITIAL);
        let tx = TxDescriptor::copy(source, BYTES, id, Barrier::None).unwrap();
        let rx = RxDescriptor::new(host(DESTINATION), BYTES, id, Barrier::None).unwrap();
        let with = |len_ctrl: LenCtrl, interrupt| len_ctrl.with_interrupt(interrupt);
        let tx = TxDescriptor::from_words(
            with(tx.len_ctrl(), tx_interrupt),
            tx.meta_ctrl(),
            tx.source(),
        );
        let rx = RxDescriptor::from_words(with(rx.len_ctrl(), rx_interrupt), rx.destination());
        let tx: [u8; 16] = zerocopy::transmute!(tx);
        let rx: [u8; 16] = zerocopy::transmute!(rx);
        rustix::io::pwrite(&self.ram, &tx, TX_RING - RAM + 16 * index).unwrap();
        rustix::io::pwrite(&self.ram, &rx, RX_RING - RAM + 16 * index).unwrap();
        self.staged += 1;
        for direction in [Direction::S2m, Direction::M2s] {
            let at = self.register(direction, queue::DRTP_INC);
            self.write(at, 1);
        }
    }

    fn counters(&self) -> Counters {
        let look = |function: &mut NeuronFunction| function.report(Detail::Status).counters;
        self.handle.call(look).unwrap()
    }

    fn destination(&self) -> u8 {
        let mut byte = [0];
        rustix::io::pread(&self.ram, &mut byte, DESTINATION + 63 - RAM).unwrap();
        byte[0]
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.handle.stop();
        let result = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            result.unwrap().unwrap().unwrap();
        }
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn count(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

/// What QEMU asks before it offers the capability to its guest.
#[test]
fn msix_is_there_on_request_alone() {
    for (product, vectors) in [(Product::Trn1, 34), (Product::Trn2, 132)] {
        for msix in [false, true] {
            let mut device = Device::new(product, msix);
            let express = device.peer.read(7, 0x40, 2);
            assert_eq!(express, [0x10, if msix { 0x80 } else { 0 }]);
            let capability = device.peer.read(7, CAPABILITY, 12);
            let info = device.peer.call(&Command::DeviceGetIrqInfo {
                argsz: 16,
                index: MSIX,
            });
            let info = wire::IrqInfo::read_from_bytes(&info.payload).unwrap();
            if !msix {
                assert_eq!((capability, info.count.get()), (vec![0; 12], 0));
                let refused = device.attach(0, Some(&event()));
                assert_eq!(refused, rustix::io::Errno::INVAL.raw_os_error());
                continue;
            }
            assert_eq!((capability[0], capability[1]), (0x11, 0));
            assert_eq!(u32::from(capability[2]) + 1, vectors);
            assert_eq!(info.count.get(), vectors);
            let table = u32::from_le_bytes(capability[4..8].try_into().unwrap());
            let bar = device.generation.register_bar_size;
            assert_eq!((u64::from(table), table & 7), (bar - 0x1_0000, 0));
            assert_eq!(
                device.read(u64::from(table) + 12),
                1,
                "a vector begins masked"
            );
        }
    }
}

/// An interrupt comes after the bytes, once for each completion, from either side, and only where it was asked for.
#[test]
fn a_descriptor_with_int_en_raises_the_vector_of_its_engine() {
    let mut device = Device::new(Product::Trn2, true);
    let (fd, other) = (event(), event());
    // QEMU's trick to make the kernel enable MSI-X: one vector without eventfd.
    assert_eq!(device.attach(0, None), 0);
    assert_eq!(device.attach(ENGINE.into(), Some(&fd)), 0);
    assert_eq!(device.attach(u32::from(ENGINE) + 1, Some(&other)), 0);
    device.configure(CAPABILITY + 2, 0x8000);
    device.copy(1, false, false);
    assert_eq!(count(&fd), 0);
    device.copy(2, true, false);
    assert_eq!((count(&fd), device.destination()), (1, 2));
    device.copy(3, false, true);
    assert_eq!((count(&fd), device.destination()), (1, 3));
    // The causes stand until software clears them.
    let (rx, tx) = (device.iofic(1, iofic::CAUSE), device.iofic(2, iofic::CAUSE));
    assert_eq!((device.read(rx), device.read(tx)), (1 << QUEUE, 1 << QUEUE));
    device.copy(4, true, true);
    assert_eq!(count(&fd), 0);
    device.write(rx, !(1 << QUEUE));
    device.copy(5, false, true);
    assert_eq!((count(&fd), count(&other)), (1, 0));
    let counters = device.counters();
    assert_eq!((counters.interrupts, counters.interrupts_sent), (5, 3));
}

#[test]
fn masked_vectors_are_pending_until_they_are_unmasked() {
    let mut device = Device::new(Product::Trn2, true);
    let (fd, vector) = (event(), u32::from(ENGINE));
    assert_eq!(device.attach(vector, Some(&fd)), 0);
    device.configure(CAPABILITY + 2, 0x8000);
    let pba = device.generation.register_bar_size - 0x8000;
    let rx = device.iofic(1, iofic::CAUSE);
    assert_eq!(device.set(IrqVerb::Mask, IrqData::None, vector, 1), 0);
    device.copy(1, false, true);
    assert_eq!((count(&fd), device.read(pba)), (0, 1 << vector));
    assert_eq!(
        device.set(IrqVerb::Unmask, IrqData::Bool(&[1]), vector, 1),
        0
    );
    assert_eq!((count(&fd), device.read(pba)), (1, 0));
    // The guest's function mask, and a vector that QEMU detached because the guest masked it.
    device.configure(CAPABILITY + 2, 0xc000);
    device.write(rx, 0);
    device.copy(2, false, true);
    assert_eq!((count(&fd), device.read(pba)), (0, 1 << vector));
    device.configure(CAPABILITY + 2, 0x8000);
    assert_eq!((count(&fd), device.read(pba)), (1, 0));
    assert_eq!(device.attach(vector, None), 0);
    device.write(rx, 0);
    device.copy(3, false, true);
    assert_eq!(device.read(pba), 1 << vector);
    assert_eq!(device.attach(vector, Some(&fd)), 0);
    assert_eq!((count(&fd), device.read(pba)), (1, 0));
    // Disabled: all is forgotten, and INT_EN is counted on.
    assert_eq!(device.set(IrqVerb::Trigger, IrqData::None, 0, 0), 0);
    device.configure(CAPABILITY + 2, 0);
    device.write(rx, 0);
    device.copy(4, false, true);
    let counters = device.counters();
    assert_eq!(
        (count(&fd), counters.interrupts, counters.interrupts_lost),
        (0, 4, 1)
    );
}

/// An error interrupts by its summary; the driver's own programming (control 0x28) sends none.
#[test]
fn an_error_interrupts_unless_its_group_is_kept_from_it() {
    for quiet in [false, true] {
        let mut device = Device::new(Product::Trn3, true);
        let fd = event();
        assert_eq!(device.attach(ENGINE.into(), Some(&fd)), 0);
        device.configure(CAPABILITY + 2, 0x8000);
        if quiet {
            let summary = device.iofic(0, iofic::MASK);
            device.write(summary, u32::MAX);
            let control = device.iofic(3, iofic::CONTROL);
            device.write(control, 0x28);
        }
        // Its source leads nowhere.
        device.trigger(1 << 60, false, false);
        let cause = device.iofic(3, iofic::CAUSE);
        while device.read(cause) == 0 {}
        assert_eq!(count(&fd), u64::from(!quiet));
    }
}

/// A client's own trigger, for its self-test, and one that leaves takes its eventfds along.
#[test]
fn triggers_signal_and_the_next_client_finds_no_eventfd() {
    let mut device = Device::new(Product::Inf2, true);
    let fd = event();
    assert_eq!(device.attach(33, Some(&fd)), 0);
    let bits = [1];
    assert_eq!(device.set(IrqVerb::Trigger, IrqData::Bool(&bits), 33, 1), 0);
    assert_eq!(count(&fd), 1);
    assert_eq!(
        device.set(IrqVerb::Trigger, IrqData::Bool(&bits), 34, 1),
        22
    );
    let open = crate::peer::open_descriptors(&fd);
    device
        .peer
        .stream
        .shutdown(std::net::Shutdown::Both)
        .unwrap();
    while device.handle.status().unwrap().connected {}
    assert_eq!(crate::peer::open_descriptors(&fd), open - 1);
}

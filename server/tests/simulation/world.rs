//! Device and wire, stepped in any order; the client's memory; what the client sees.
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use neuron_protocol::cycle::{Delay, HostMemory, Registers};
use neuron_protocol::generation::Product;
use neuron_vfio_user::function::{Config, NeuronFunction};
use neuron_vfio_user::observe::event::{Event, EventKind, Observer, Scope};
use neuron_vfio_user::observe::sanitize::{Findings, Mode, Sanitizer};
use neuron_vfio_user::policy::Adversary;
use neuron_vfio_user::policy::adversary::Script;
use neuron_vfio_user::vfio::codec::wire::{self, Header, command, flags};
use neuron_vfio_user::vfio::codec::{Command, Reply};
use neuron_vfio_user::vfio::{DmaRequest, Inbox, PciFunction, Progress, Session};
use rustix::io::Errno;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};
use zerocopy::FromBytes;

use crate::Random;
use crate::model::{HBM_BASE, HBM_SIZE, Model, PIECE, PIECES, Piece, RAM_BASE, RAM_SIZE, WINDOW};

/// Steps after which nothing is expected any more.
const PATIENCE: u32 = 300_000;
/// From a question that only tests the layout of messages.
const LAYOUT_QUESTION: u64 = 1 << 32;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Scope, EventKind)>>>);

impl Observer for Log {
    fn event(&mut self, event: &Event) {
        if !matches!(event.kind, EventKind::Fetch { .. }) {
            self.0.lock().unwrap().push((event.scope, event.kind));
        }
    }
}

/// A function that remembers what it asked the client for.
struct Watched {
    function: NeuronFunction,
    asked: Vec<DmaRequest>,
}

impl PciFunction for Watched {
    fn info(&self) -> &neuron_vfio_user::vfio::FunctionInfo {
        self.function.info()
    }
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.function.region_read(region, offset, data)
    }
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.function.region_write(region, offset, data)
    }
    fn dma_map(&mut self, map: neuron_vfio_user::vfio::DmaMap) -> Result<(), Errno> {
        self.function.dma_map(map)
    }
    fn dma_unmap(&mut self, unmap: neuron_vfio_user::vfio::DmaUnmap) -> Result<(), Errno> {
        self.function.dma_unmap(unmap)
    }
    fn set_irqs(&mut self, irqs: neuron_vfio_user::vfio::IrqSet) -> Result<(), Errno> {
        self.function.set_irqs(irqs)
    }
    fn reset(&mut self) {
        self.function.reset();
    }
    fn disconnect(&mut self) {
        self.function.disconnect();
    }
    fn run(&mut self) -> Progress {
        self.function.run()
    }
    fn next_dma(&mut self) -> Option<(u64, DmaRequest)> {
        let next = self.function.next_dma();
        self.asked
            .extend(next.iter().map(|(_, request)| request.clone()));
        next
    }
    fn wants_dma(&self, id: u64) -> bool {
        self.function.wants_dma(id)
    }
    fn dma_reply(&mut self, id: u64, reply: neuron_vfio_user::vfio::DmaReply) {
        self.function.dma_reply(id, reply);
    }
}

pub struct World {
    pub random: Random,
    pub model: Model,
    watched: Watched,
    log: Log,
    /// What the sanitizer has to say of the driver.
    pub findings: Findings,
    session: Session,
    inbox: Inbox,
    /// Client to server: bytes, and the descriptors of the messages that begin and end at these places.
    sent: VecDeque<u8>,
    descriptors: VecDeque<(usize, usize, OwnedFd)>,
    /// Server to client.
    received: Vec<u8>,
    replies: HashMap<u16, (u32, Vec<u8>)>,
    /// Answers to DMA messages that the client has yet to send.
    unsent: Vec<Vec<u8>>,
    /// The client makes writes only when it answers them.
    pub late: bool,
    /// Writes that it has yet to make.
    postponed: Vec<(u64, Vec<u8>)>,
    next_id: u16,
    file: OwnedFd,
    ram: MmapRegion,
    /// Writes by message that may still arrive.
    writes: Vec<(u64, usize)>,
    now: u64,
    /// Waits of the driver end at once now and then, as if a watchdog had fired.
    pub impatient: bool,
    pub dma_messages: u64,
}

impl World {
    pub fn new(
        mut random: Random,
        product: Product,
        queues: &[(u8, u8)],
        script: Option<&Script>,
    ) -> Self {
        let generation = product.generation();
        let platform = neuron_protocol::generation::Platform::Silicon;
        let function = NeuronFunction::new(Config::new(product, platform));
        let mut function = function.unwrap();
        let log = Log::default();
        function.observers_mut().add(Box::new(log.clone()));
        let (sanitizer, findings) = Sanitizer::new(generation, 0, Mode::Warn);
        function.observers_mut().add(Box::new(sanitizer));
        let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, RAM_SIZE as u64).unwrap();
        let mapped = FileOffset::new(file.try_clone().unwrap().into(), 0);
        let ram = MmapRegion::from_file(mapped, RAM_SIZE).unwrap();
        let mut model = Model::new(generation, queues);
        if let Some(script) = script {
            let adversary = Adversary::new(script.clone());
            function.policies_mut().set_adversary(adversary);
            model.weak = true;
        }
        for chunk in model.ram.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.word().to_le_bytes());
        }
        ram.get_slice(0, RAM_SIZE).unwrap().copy_from(&model.ram);
        let impatient = random.one_in(3);
        Self {
            random,
            model,
            watched: Watched {
                function,
                asked: Vec::new(),
            },
            log,
            findings,
            session: Session::default(),
            inbox: Inbox::default(),
            sent: VecDeque::new(),
            descriptors: VecDeque::new(),
            received: Vec::new(),
            replies: HashMap::new(),
            unsent: Vec::new(),
            late: false,
            postponed: Vec::new(),
            next_id: 0,
            file,
            ram,
            writes: Vec::new(),
            now: 0,
            impatient,
            dma_messages: 0,
        }
    }

    pub const fn function(&self) -> &NeuronFunction {
        &self.watched.function
    }

    pub const fn function_mut(&mut self) -> &mut NeuronFunction {
        &mut self.watched.function
    }

    /// One thing happens somewhere.
    pub fn step(&mut self) {
        match self.random.below(10) {
            0 | 1 => self.deliver_to_server(),
            2 | 3 => self.serve(),
            4 | 5 => {
                // Naps are longer than work.
                let unit = if self.model.weak { 64 } else { 1 };
                self.now += self.random.below(1000) * unit;
                self.watched.function.tick(Duration::from_nanos(self.now));
                self.watched.run();
                self.follow();
            }
            6 => {
                self.session.pump_dma(&mut self.watched);
                self.follow();
            }
            7 | 8 => self.deliver_to_client(),
            _ => {
                if !self.unsent.is_empty() {
                    self.make_postponed();
                    let nth = self.random.size(self.unsent.len());
                    let reply = self.unsent.swap_remove(nth);
                    self.sent.extend(reply);
                }
            }
        }
    }

    pub fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Anything from one byte to everything.
    fn slice(&mut self, limit: usize) -> usize {
        match self.random.below(4) {
            0 => 1 + self.random.size(limit.min(40)),
            1 => 1 + self.random.size(limit),
            _ => limit,
        }
    }

    fn deliver_to_server(&mut self) {
        if self.sent.is_empty() {
            return;
        }
        let mut len = self.slice(self.sent.len());
        let room = self.inbox.space().len();
        len = len.min(room);
        if len == 0 {
            return self.serve();
        }
        // As recvmsg(2): a call ends with the message that carries descriptors.
        let mut fd = None;
        if let Some((start, end, _)) = self.descriptors.front()
            && *start < len
        {
            len = len.min(*end);
            fd = self.descriptors.pop_front().map(|(.., fd)| fd);
        }
        for (to, from) in self.inbox.space().iter_mut().zip(self.sent.drain(..len)) {
            *to = from;
        }
        for (start, end, _) in &mut self.descriptors {
            *start -= len;
            *end -= len;
        }
        self.inbox.filled(len, fd, false);
    }

    fn serve(&mut self) {
        self.session
            .serve(&mut self.watched, &mut self.inbox)
            .unwrap();
        self.follow();
    }

    /// The model learns what the device did.
    fn follow(&mut self) {
        let events = std::mem::take(&mut *self.log.0.lock().unwrap());
        for (scope, kind) in events {
            self.model.event(scope, kind);
        }
        for request in std::mem::take(&mut self.watched.asked) {
            if let DmaRequest::Write { iova, data } = request {
                self.model.check_write(iova, &data);
                self.writes.push((iova, data.len()));
            }
        }
    }

    fn deliver_to_client(&mut self) {
        let (bytes, file) = self.session.outbox().next();
        assert!(file.is_none(), "nothing here can be mapped");
        let available = bytes.len();
        if available > 0 {
            let len = self.slice(available);
            let (bytes, _) = self.session.outbox().next();
            self.received.extend_from_slice(&bytes[..len]);
            self.session.outbox().advance(len);
        }
        let mut done = 0;
        while let Ok((header, rest)) = Header::read_from_prefix(&self.received[done..]) {
            let body = header.size.get() as usize - size_of::<Header>();
            if rest.len() < body {
                break;
            }
            let payload = rest[..body].to_vec();
            done += size_of::<Header>() + body;
            self.message(&header, payload);
        }
        self.received.drain(..done);
    }

    /// The client gets a message.
    fn message(&mut self, header: &Header, payload: Vec<u8>) {
        let id = header.id.get();
        if header.flags.get() & flags::TYPE == flags::REPLY {
            let old = self.replies.insert(id, (header.error.get(), payload));
            assert!(old.is_none(), "two replies to {id}");
            return;
        }
        self.dma_messages += 1;
        let (access, data) = wire::DmaAccess::ref_from_prefix(&payload).unwrap();
        let (iova, count) = (access.iova.get(), access.count.get());
        let mut reply = Vec::new();
        if count == LAYOUT_QUESTION {
            let errno = Errno::TOOBIG;
            let command = command::DMA_READ;
            Reply::Error { command, errno }.encode(id, &mut reply);
            self.unsent.push(reply);
            return;
        }
        let (at, len) = ((iova - RAM_BASE) as usize, count as usize);
        assert!(at + len <= RAM_SIZE);
        for piece in at / PIECE as usize..=(at + len - 1) / PIECE as usize {
            let piece = self.model.queues[piece / PIECES].pieces[piece % PIECES];
            assert_eq!(
                piece,
                Piece::Message,
                "a message for {iova:#x}+{len:#x} after its unmap"
            );
        }
        if header.command.get() == command::DMA_READ {
            let mut bytes = vec![0; len];
            self.ram.get_slice(at, len).unwrap().copy_to(&mut bytes);
            Reply::DmaRead { iova, data: &bytes }.encode(id, &mut reply);
        } else {
            assert_eq!(header.command.get(), command::DMA_WRITE);
            let end = iova + count;
            let asked = |(from, size): &(u64, usize)| *from <= iova && end <= from + *size as u64;
            assert!(
                self.writes.iter().any(asked),
                "{iova:#x}+{len:#x} written after a reset was acknowledged"
            );
            if self.late {
                self.postponed.push((iova, data.to_vec()));
            } else {
                self.store(iova, data);
                self.model.written(iova, len);
            }
            Reply::DmaWrite { iova, count }.encode(id, &mut reply);
        }
        self.unsent.push(reply);
    }

    /// The client makes the writes that it was late with.
    pub fn make_postponed(&mut self) {
        for (iova, data) in std::mem::take(&mut self.postponed) {
            self.store(iova, &data);
            self.model.written(iova, data.len());
        }
    }

    /// The client writes its memory.
    pub fn store(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - RAM_BASE) as usize;
        self.ram
            .get_slice(at, bytes.len())
            .unwrap()
            .copy_from(bytes);
        self.model.ram[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sends a command; a file goes with it.
    fn send(&mut self, command: &Command<'_>, no_reply: bool, file: Option<OwnedFd>) -> u16 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let mut bytes = Vec::new();
        command.encode(id, no_reply, &mut bytes);
        let start = self.sent.len();
        self.sent.extend(bytes);
        if let Some(file) = file {
            self.descriptors.push_back((start, self.sent.len(), file));
        }
        id
    }

    /// Lets things happen until a reply is there.
    fn wait_for(&mut self, id: u16) -> Vec<u8> {
        for _ in 0..PATIENCE {
            if let Some((error, payload)) = self.replies.remove(&id) {
                assert_eq!(error, 0, "refused");
                return payload;
            }
            self.step();
        }
        panic!("no reply to {id}");
    }

    pub fn call(&mut self, command: &Command<'_>, file: Option<OwnedFd>) -> Vec<u8> {
        let id = self.send(command, false, file);
        self.wait_for(id)
    }

    pub fn read_register(&mut self, offset: u32) -> u32 {
        let offset = u64::from(offset);
        let reply = self.call(
            &Command::RegionRead {
                region: 0,
                offset,
                count: 4,
            },
            None,
        );
        u32::from_le_bytes(reply[reply.len() - 4..].try_into().unwrap())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let posted = !self.random.one_in(8);
        let id = self.send(
            &Command::RegionWrite {
                region,
                offset,
                data,
            },
            posted,
            None,
        );
        if !posted {
            self.wait_for(id);
        }
    }

    /// A client arrives: version, memory, bus mastering.
    pub fn connect(&mut self) {
        let transfer = [64, 512, 4096, 1 << 20][self.random.size(4)];
        let qemu = if self.random.one_in(2) {
            "\"write_multiple\":true,"
        } else {
            ""
        };
        let json = format!(
            "{{\"capabilities\":{{{qemu}\"max_msg_fds\":8,\"max_data_xfer_size\":{transfer}}}}}\0"
        );
        let data = json.as_bytes();
        self.call(
            &Command::Version {
                major: 0,
                minor: 1,
                data,
            },
            None,
        );
        for queue in 0..self.model.queues.len() {
            // In one go, or piece by piece; the former is split by the first unmap.
            if self.random.one_in(2) {
                self.map(queue, 0, PIECES);
            } else {
                for piece in 0..PIECES {
                    self.map(queue, piece, 1);
                }
            }
        }
        self.enable();
    }

    pub fn enable(&mut self) {
        self.write(7, 4, &[6, 0]);
    }

    /// The client is gone, in the middle of whatever it was saying.
    pub fn disconnect(&mut self) {
        let count = self.random.below(20);
        self.steps(count);
        self.watched.disconnect();
        self.follow();
        self.session = Session::default();
        self.inbox = Inbox::default();
        self.sent.clear();
        self.descriptors.clear();
        self.received.clear();
        self.replies.clear();
        self.unsent.clear();
        self.postponed.clear();
        self.writes.clear();
        self.model.disconnected();
        self.compare();
    }

    pub fn map(&mut self, queue: usize, piece: usize, count: usize) {
        let shared = self.random.one_in(2);
        let offset = queue as u64 * WINDOW + piece as u64 * PIECE;
        let file = shared.then(|| self.file.try_clone().unwrap());
        let map = wire::DmaMap {
            argsz: (size_of::<wire::DmaMap>() as u32).into(),
            flags: (wire::map_flags::READ | wire::map_flags::WRITE).into(),
            offset: if shared { offset } else { 0 }.into(),
            iova: (RAM_BASE + offset).into(),
            size: (PIECE * count as u64).into(),
        };
        let kind = if shared {
            Piece::Shared
        } else {
            Piece::Message
        };
        // From here on: nothing can use it before the driver is told.
        self.model.queues[queue].pieces[piece..piece + count].fill(kind);
        self.call(&Command::DmaMap(map), file);
    }

    pub fn unmap(&mut self, queue: usize, piece: usize) {
        let offset = queue as u64 * WINDOW + piece as u64 * PIECE;
        let unmap = wire::DmaUnmap {
            argsz: (size_of::<wire::DmaUnmap>() as u32).into(),
            flags: 0.into(),
            iova: (RAM_BASE + offset).into(),
            size: PIECE.into(),
        };
        self.call(&Command::DmaUnmap(unmap), None);
        let kind = &mut self.model.queues[queue].pieces[piece];
        *kind = if *kind == Piece::Message {
            Piece::NoMessage
        } else {
            Piece::Unmapped
        };
    }

    /// From now on nothing of before may be written; `None` is the whole device.
    pub fn acknowledged(&mut self, queue: Option<usize>) {
        let concerns =
            |iova: u64| queue.is_none_or(|queue| ((iova - RAM_BASE) / WINDOW) as usize == queue);
        for (iova, _) in &self.postponed {
            assert!(
                !concerns(*iova),
                "{iova:#x} is still to be written after a reset"
            );
        }
        self.writes.retain(|(iova, _)| {
            queue.is_some_and(|queue| ((iova - RAM_BASE) / WINDOW) as usize != queue)
        });
    }

    /// Memory is what the model says.
    pub fn compare(&mut self) {
        let mut there = vec![0; RAM_SIZE.max(HBM_SIZE)];
        self.ram
            .get_slice(0, RAM_SIZE)
            .unwrap()
            .copy_to(&mut there[..RAM_SIZE]);
        same("guest memory", &there[..RAM_SIZE], &self.model.ram);
        self.watched
            .region_read(4, HBM_BASE, &mut there[..HBM_SIZE])
            .unwrap();
        same("HBM", &there[..HBM_SIZE], &self.model.hbm);
    }

    /// Lets everything that is on its way arrive.
    pub fn drain(&mut self) {
        for _ in 0..PATIENCE {
            let quiet = self.sent.is_empty()
                && self.inbox.is_between_messages()
                && self.received.is_empty()
                && self.unsent.is_empty()
                && self.session.outbox().pending() == 0
                && self.session.dma_in_flight() == 0;
            if quiet {
                return;
            }
            self.step();
        }
        panic!("the wire never becomes quiet");
    }
}

fn same(what: &str, there: &[u8], expected: &[u8]) {
    if there != expected {
        let at = there.iter().zip(expected).position(|(a, b)| a != b);
        let count = there.iter().zip(expected).filter(|(a, b)| a != b).count();
        panic!("{what} differs from the model in {count} bytes, the first at {at:#x?}");
    }
}

/// The driver's reach into the world.
#[derive(Clone)]
pub struct Sim(pub Rc<RefCell<World>>);

impl Sim {
    pub fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

impl Registers for Sim {
    type Error = Infallible;

    fn read32(&mut self, offset: u32) -> Result<u32, Infallible> {
        Ok(self.with(|world| world.read_register(offset)))
    }

    fn write32(&mut self, offset: u32, value: u32) -> Result<(), Infallible> {
        self.with(|world| world.write(0, u64::from(offset), &value.to_le_bytes()));
        Ok(())
    }
}

impl HostMemory for Sim {
    type Error = Infallible;

    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.with(|world| {
            let at = (address - RAM_BASE) as usize;
            world.ram.get_slice(at, bytes.len()).unwrap().copy_to(bytes);
        });
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.with(|world| world.store(address, bytes));
        Ok(())
    }

    fn load_word(&mut self, address: u64) -> Result<u32, Infallible> {
        let mut word = [0; 4];
        self.read(address, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn store_word(&mut self, address: u64, word: u32) -> Result<(), Infallible> {
        self.write(address, &word.to_le_bytes())
    }

    fn publish(&mut self) {}
}

impl Delay for Sim {
    fn delay(&mut self, _microseconds: u64) -> ControlFlow<()> {
        self.with(|world| {
            // Bytes that land run by run, each with a message to the client, take more of them.
            world.steps(if world.model.weak { 8 } else { 1 });
            if world.impatient && world.random.one_in(150) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    }
}

//! The client's side of the tests: a served mock, and a socket to it that can misbehave.
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use neuron_vfio_user::vfio::codec::wire::{self, Header};
use neuron_vfio_user::vfio::codec::{Command, HEADER_SIZE};
use neuron_vfio_user::vfio::{Handle, Listener, ServeError, Server, Settings};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use zerocopy::FromBytes;

use crate::mock::Mock;

/// Nothing here takes a tenth of it; a wait that ends here is a failure.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The VERSION data that QEMU 11.1 sends (qemu client).
pub const QEMU_VERSION: &[u8] = b"{\"capabilities\": {\"pgsizes\": 4096, \"max_msg_fds\": 16, \"max_dma_maps\": 65535, \
\"max_data_xfer_size\": 1048576, \"migration\": {\"max_bitmap_size\": 268435456, \"pgsize\": 4096}, \
\"write_multiple\": true}}\0";

/// A mock served on a socket in a directory of its own.
pub struct Served {
    pub path: PathBuf,
    pub handle: Handle<Mock>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
    _directory: tempfile::TempDir,
}

impl Served {
    pub fn new() -> Self {
        Self::with(Mock::default())
    }

    pub fn with(mock: Mock) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (server, handle) =
            Server::new(Listener::bind(&path).unwrap(), mock, Settings::default()).unwrap();
        let thread = Some(server.spawn("mock").unwrap());
        Self {
            path,
            handle,
            thread,
            _directory: directory,
        }
    }

    /// A connection on which VERSION has been negotiated as QEMU does.
    pub fn peer(&self) -> Peer {
        let mut peer = self.raw();
        peer.version(QEMU_VERSION);
        peer
    }

    /// A connection of a client that is not QEMU: DMA is not preceded by a question about its layout.
    pub fn plain_peer(&self) -> Peer {
        let mut peer = self.raw();
        peer.version(b"{\"capabilities\":{}}\0");
        peer
    }

    pub fn raw(&self) -> Peer {
        Peer::new(UnixStream::connect(&self.path).unwrap())
    }

    /// What `look` finds in the mock.
    pub fn look<R: Send + 'static>(&self, look: impl FnOnce(&mut Mock) -> R + Send + 'static) -> R {
        self.handle.call(look).unwrap()
    }

    /// Looks until `look` is true.
    pub fn wait(&self, mut look: impl FnMut(&mut Mock) -> bool + Send + Clone + 'static) {
        let start = Instant::now();
        while !self.look({
            let mut look = look.clone();
            move |mock| look(mock)
        }) {
            assert!(start.elapsed() < PATIENCE, "waited in vain");
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = &mut look;
    }

    /// Waits for the device thread to have seen the last client leave.
    pub fn wait_disconnected(&self) {
        let start = Instant::now();
        while self.handle.status().unwrap().connected {
            assert!(
                start.elapsed() < PATIENCE,
                "the client's end was not noticed"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for a client.
    pub fn wait_connected(&self) {
        let start = Instant::now();
        while !self.handle.status().unwrap().connected {
            assert!(start.elapsed() < PATIENCE, "no client came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn wait_turned_away(&self, count: u64) {
        let start = Instant::now();
        while self.handle.status().unwrap().turned_away < count {
            assert!(start.elapsed() < PATIENCE, "nobody was turned away");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn join(&mut self) -> Result<(), ServeError> {
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn stop(mut self) {
        self.handle.stop();
        self.join().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap().unwrap();
            }
        }
    }
}

/// A received message.
#[derive(Clone, Debug)]
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Message {
    pub fn id(&self) -> u16 {
        self.header.id.get()
    }

    pub fn command(&self) -> u16 {
        self.header.command.get()
    }

    /// The errno of an error reply, whose form is checked; 0 for a success.
    pub fn errno(&self) -> i32 {
        let flags = self.header.flags.get();
        if flags == wire::flags::REPLY {
            assert_eq!(self.header.error.get(), 0, "an error number in a success");
            return 0;
        }
        assert_eq!(flags, wire::flags::REPLY | wire::flags::ERROR);
        assert_eq!(self.header.size.get(), 16);
        assert_ne!(self.header.error.get(), 0);
        i32::try_from(self.header.error.get()).unwrap()
    }

    /// The data of a `REGION_READ` reply.
    pub fn data(&self) -> &[u8] {
        assert_eq!(self.errno(), 0);
        let (access, data) = wire::RegionAccess::ref_from_prefix(&self.payload).unwrap();
        assert_eq!(usize::try_from(access.count.get()).unwrap(), data.len());
        data
    }
}

/// A client's end of the socket.
pub struct Peer {
    pub stream: UnixStream,
    pub next_id: u16,
}

impl Peer {
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            next_id: 0x100,
        }
    }

    pub fn version(&mut self, data: &[u8]) -> Message {
        let reply = self.call(&Command::Version {
            major: 0,
            minor: 0,
            data,
        });
        assert_eq!(reply.errno(), 0);
        reply
    }

    /// The bytes of a command, and its id.
    pub fn encode(&mut self, command: &Command<'_>, no_reply: bool) -> (u16, Vec<u8>) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let mut bytes = Vec::new();
        command.encode(id, no_reply, &mut bytes);
        (id, bytes)
    }

    pub fn send(&mut self, command: &Command<'_>) -> u16 {
        let (id, bytes) = self.encode(command, false);
        self.stream.write_all(&bytes).unwrap();
        id
    }

    pub fn post(&mut self, command: &Command<'_>) -> u16 {
        let (id, bytes) = self.encode(command, true);
        self.stream.write_all(&bytes).unwrap();
        id
    }

    /// Sends a command and receives its reply, which must be the next message.
    pub fn call(&mut self, command: &Command<'_>) -> Message {
        let id = self.send(command);
        let reply = self.receive();
        assert_eq!(
            (reply.id(), reply.command()),
            (id, command.code()),
            "not the reply to {command:?}"
        );
        reply
    }

    pub fn call_with_fds(&mut self, command: &Command<'_>, fds: &[BorrowedFd<'_>]) -> Message {
        let (id, bytes) = self.encode(command, false);
        self.send_bytes(&bytes, fds);
        let reply = self.receive();
        assert_eq!((reply.id(), reply.command()), (id, command.code()));
        reply
    }

    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = rustix::net::sendmsg(
            &self.stream,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
        assert_eq!(sent, bytes.len());
    }

    pub fn receive(&mut self) -> Message {
        let mut header = [0; HEADER_SIZE];
        self.stream.read_exact(&mut header).expect("no message");
        let header = Header::read_from_bytes(&header).unwrap();
        let size = usize::try_from(header.size.get()).unwrap();
        assert!((HEADER_SIZE..=4 << 20).contains(&size), "size {size}");
        let mut payload = vec![0; size - HEADER_SIZE];
        self.stream
            .read_exact(&mut payload)
            .expect("a message cut short");
        Message { header, payload }
    }

    /// Asserts that nothing has been sent that was not received. Another command's reply would come after it.
    pub fn assert_silent(&mut self) {
        let reply = self.call(&Command::RegionRead {
            region: 7,
            offset: 0,
            count: 4,
        });
        assert_eq!(reply.data(), [0x0f, 0x1d, 0x64, 0x71]);
    }

    /// Asserts that the real device still answers, and that nothing else waits to be received.
    pub fn assert_alive(&mut self) {
        assert_eq!(self.read(7, 0, 2), [0x0f, 0x1d]);
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        self.call(&Command::RegionRead {
            region,
            offset,
            count,
        })
        .data()
        .to_vec()
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0))
            || matches!(self.stream.write(&[0]), Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// Shared memory of `size` bytes.
pub fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

pub fn dma_map(iova: u64, size: u64) -> Command<'static> {
    Command::DmaMap(wire::DmaMap {
        argsz: 32.into(),
        flags: 3.into(),
        offset: 0.into(),
        iova: iova.into(),
        size: size.into(),
    })
}

pub fn dma_unmap(iova: u64, size: u64) -> Command<'static> {
    Command::DmaUnmap(wire::DmaUnmap {
        argsz: 24.into(),
        flags: 0.into(),
        iova: iova.into(),
        size: size.into(),
    })
}

/// Descriptors open in this process that refer to `fd`'s file.
pub fn open_descriptors(fd: impl AsFd) -> usize {
    let key = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let wanted = key(rustix::fs::fstat(fd).unwrap());
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries
        .filter(|entry| {
            rustix::fs::stat(entry.as_ref().unwrap().path()).is_ok_and(|stat| key(stat) == wanted)
        })
        .count()
}

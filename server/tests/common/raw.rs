//! vfio-user by hand: what is needed to drive a device, with posted writes.
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use neuron_protocol::cycle::Registers;
use neuron_vfio_user::probe::GuestRam;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const SET_IRQS: u16 = 8;
const DEVICE_RESET: u16 = 13;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
const HEADER: usize = 16;
/// vfio index of configuration space.
pub const CONFIG: u32 = 7;

/// A connected client.
pub struct RawClient {
    stream: UnixStream,
    next_id: u16,
    bar: u32,
    looks: bool,
}

impl RawClient {
    /// Connects and agrees on a version, as QEMU does.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut client = Self {
            stream,
            next_id: 0,
            bar: 0,
            looks: false,
        };
        let mut body = vec![0; 4];
        body.extend_from_slice(br#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"pgsizes":4096,"max_dma_maps":65535,"migration":{"pgsize":4096,"max_bitmap_size":268435456},"write_multiple":true}}"#);
        body.push(0);
        client.request(VERSION, &body, None)?;
        Ok(client)
    }

    /// Lets the device do DMA to `ram`.
    pub fn map(&mut self, ram: &GuestRam, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend_from_slice(&32_u32.to_le_bytes());
        body.extend_from_slice(&3_u32.to_le_bytes());
        for value in [0, ram.base(), ram.size()] {
            body.extend_from_slice(&value.to_le_bytes());
        }
        self.request(DMA_MAP, &body, Some(fd)).map(drop)
    }

    /// Maps a range of a file, or memory behind messages.
    pub fn map_range(
        &mut self,
        iova: u64,
        size: u64,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend_from_slice(&32_u32.to_le_bytes());
        body.extend_from_slice(&3_u32.to_le_bytes());
        for value in [0, iova, size] {
            body.extend_from_slice(&value.to_le_bytes());
        }
        self.request(DMA_MAP, &body, fd).map(drop)
    }

    /// Unmaps a range, or with size 0 everything.
    pub fn unmap(&mut self, iova: u64, size: u64) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend_from_slice(&24_u32.to_le_bytes());
        body.extend_from_slice(&(u32::from(size == 0) << 1).to_le_bytes());
        for value in [iova, size] {
            body.extend_from_slice(&value.to_le_bytes());
        }
        self.request(DMA_UNMAP, &body, None).map(drop)
    }

    /// Attaches an eventfd to an MSI-X vector.
    pub fn set_eventfd(&mut self, vector: u32, event: BorrowedFd<'_>) -> io::Result<()> {
        let mut body = Vec::new();
        // argsz, flags (eventfd, trigger), index (MSI-X), first, count.
        for value in [20, 1 << 2 | 1 << 5, 2, vector, 1_u32] {
            body.extend_from_slice(&value.to_le_bytes());
        }
        self.request(SET_IRQS, &body, Some(event)).map(drop)
    }

    /// `DEVICE_RESET`.
    pub fn reset(&mut self) -> io::Result<()> {
        self.request(DEVICE_RESET, &[], None).map(drop)
    }

    /// Leaves with a reply unread, and after `rest`.
    pub fn vanish(&mut self, rest: &[u8]) {
        let body = access(CONFIG, 0, 4);
        let (_, mut message) = self.message(REGION_READ, 0, &body);
        message.extend_from_slice(rest);
        // The server may be gone already.
        let _ = self.stream.write_all(&message);
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Memory space and bus master on.
    pub fn enable(&mut self) -> io::Result<()> {
        self.write(CONFIG, 4, &[6, 0])
    }

    /// Which BAR the registers are in.
    pub fn use_bar(&mut self, bar: u32) {
        self.bar = bar;
    }

    /// Looks for replies without sleeping, as somebody does who polls a marker.
    pub fn look_for_replies(&mut self, looks: bool) {
        self.looks = looks;
        self.stream.set_nonblocking(looks).unwrap();
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        if !self.looks {
            return self.stream.read_exact(bytes);
        }
        let mut filled = 0;
        while filled < bytes.len() {
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes and waits for the answer.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut body = access(region, offset, data.len());
        body.extend_from_slice(data);
        self.request(REGION_WRITE, &body, None).map(drop)
    }

    fn message(&mut self, command: u16, flags: u32, body: &[u8]) -> (u16, Vec<u8>) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&id.to_le_bytes());
        message.extend_from_slice(&command.to_le_bytes());
        message.extend_from_slice(&u32::try_from(HEADER + body.len()).unwrap().to_le_bytes());
        message.extend_from_slice(&flags.to_le_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        (id, message)
    }

    fn request(
        &mut self,
        command: u16,
        body: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<Vec<u8>> {
        let (id, message) = self.message(command, 0, body);
        if let Some(fd) = fd {
            let fds = [fd];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let sent = sendmsg(
                &self.stream,
                &[IoSlice::new(&message)],
                &mut control,
                SendFlags::empty(),
            )?;
            assert_eq!(sent, message.len());
        } else {
            self.stream.write_all(&message)?;
        }
        let mut header = [0; HEADER];
        self.receive(&mut header)?;
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let mut reply = vec![0; usize::try_from(word(4)).unwrap() - HEADER];
        self.receive(&mut reply)?;
        assert_eq!(u16::from_le_bytes([header[0], header[1]]), id);
        if word(8) & ERROR != 0 {
            return Err(io::Error::from_raw_os_error(
                i32::try_from(word(12)).unwrap(),
            ));
        }
        Ok(reply)
    }
}

fn access(region: u32, offset: u64, length: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + length);
    body.extend_from_slice(&offset.to_le_bytes());
    body.extend_from_slice(&region.to_le_bytes());
    body.extend_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
    body
}

impl Registers for RawClient {
    type Error = io::Error;

    fn read32(&mut self, offset: u32) -> io::Result<u32> {
        let reply = self.request(REGION_READ, &access(self.bar, offset.into(), 4), None)?;
        let data: [u8; 4] = reply[16..]
            .try_into()
            .map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(u32::from_le_bytes(data))
    }

    fn write32(&mut self, offset: u32, value: u32) -> io::Result<()> {
        let mut body = access(self.bar, offset.into(), 4);
        body.extend_from_slice(&value.to_le_bytes());
        let (_, message) = self.message(REGION_WRITE, NO_REPLY, &body);
        self.stream.write_all(&message)
    }
}

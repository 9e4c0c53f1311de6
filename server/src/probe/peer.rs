//! The device's other side, made from an independent vfio-user client.
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use neuron_protocol::cycle::Registers;
use vfio_user::{Client, Error};

use super::memory::GuestRam;

/// vfio index of configuration space.
const CONFIG: u32 = 7;

/// Reads and writes of one device. Every one waits for its answer.
pub struct Peer {
    client: Client,
    registers: u32,
}

/// Why there is no conversation.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing at that path.
    #[error("no such socket; start `neuron-vfio-user serve` first")]
    NoSocket,
    /// A socket, but nobody behind it.
    #[error("nobody listens there any more; start `neuron-vfio-user serve` again")]
    NobodyListens,
    /// No access.
    #[error("no permission to connect; the socket belongs to another user")]
    Denied,
    /// It hung up during the first messages.
    #[error(
        "the server hung up: another client, such as a running QEMU, is connected (one at a time), or it is no vfio-user server"
    )]
    HungUp,
    /// Anything else.
    #[error("{0}")]
    Other(Error),
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        match &error {
            Error::Connect(source) => match source.kind() {
                ErrorKind::NotFound => Self::NoSocket,
                ErrorKind::ConnectionRefused => Self::NobodyListens,
                ErrorKind::PermissionDenied => Self::Denied,
                _ => Self::Other(error),
            },
            Error::StreamRead(_) | Error::StreamWrite(_) | Error::ReceiveWithFd(_) => Self::HungUp,
            _ => Self::Other(error),
        }
    }
}

impl Peer {
    /// Connects and asks for the regions.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(socket: &Path) -> Result<Self, ConnectError> {
        Ok(Self {
            client: Client::new(socket)?,
            registers: 0,
        })
    }

    /// Bytes of a region; 0 if there is none.
    pub fn region_size(&self, index: u32) -> u64 {
        self.client.region(index).map_or(0, |region| region.size)
    }

    /// From now on register accesses go to this BAR.
    pub fn use_bar(&mut self, index: u32) {
        self.registers = index;
    }

    /// Reads configuration space.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn config_read<const N: usize>(&mut self, offset: u64) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.client.region_read(CONFIG, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes configuration space.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn config_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.client.region_write(CONFIG, offset, bytes)
    }

    /// Gives the device our memory.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn map(&mut self, ram: &GuestRam) -> Result<(), Error> {
        self.client
            .dma_map(0, ram.base(), ram.size(), ram.as_fd().as_raw_fd())
    }

    /// Takes it away again.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn unmap(&mut self, ram: &GuestRam) -> Result<(), Error> {
        self.client.dma_unmap(ram.base(), ram.size())
    }
}

impl Registers for Peer {
    type Error = Error;

    fn read32(&mut self, offset: u32) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.client
            .region_read(self.registers, offset.into(), &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn write32(&mut self, offset: u32, value: u32) -> Result<(), Error> {
        self.client
            .region_write(self.registers, offset.into(), &value.to_le_bytes())
    }
}

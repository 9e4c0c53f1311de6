//! One small device behind two servers, each in a process of its own: our loop, and the server of the crate `vfio_user`,
//! which is what anybody gets without writing one. What remains between our loop and the whole device is the device.
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use neuron_vfio_user::vfio::{
    DmaMap, DmaReply, DmaRequest, DmaUnmap, FunctionInfo, IrqSet, Listener, PciFunction, Progress,
    Region, Settings,
};
use rustix::io::Errno;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend, ServerRegion};

use crate::common::raw::RawClient;

/// First argument of the process that serves; a name of [`Loop`] is the second, and the socket the third.
pub const SERVE: &str = "--serve-reference";

/// Whose server it is.
#[derive(Clone, Copy)]
pub enum Loop {
    /// That of this project.
    Ours,
    /// That of the crate.
    Crates,
}

impl Loop {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Crates => "crates",
        }
    }
}

/// System calls that the crate's server makes for a posted write: header, access and data are received one by one (read
/// in its sources, version 0.1.7).
pub const CALLS_PER_WRITE: u64 = 3;

/// Bytes of its one region.
const SIZE: usize = 64 << 10;

/// Registers that read what was written.
struct Plain(Vec<u8>);

impl Plain {
    fn at(&mut self, offset: u64, len: usize) -> io::Result<&mut [u8]> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let range = start..start.saturating_add(len);
        self.0
            .get_mut(range)
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl ServerBackend for Plain {
    fn region_read(&mut self, _region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.copy_from_slice(self.at(offset, data.len())?);
        Ok(())
    }

    fn region_write(&mut self, _region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.at(offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn dma_map(
        &mut self,
        _: DmaMapFlags,
        _: u64,
        _: u64,
        _: u64,
        _: Option<File>,
    ) -> io::Result<()> {
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn set_irqs(&mut self, _: u32, _: u32, _: u32, _: u32, _: Vec<File>) -> io::Result<()> {
        Ok(())
    }
}

/// The same registers behind our loop.
struct OurPlain {
    plain: Plain,
    info: FunctionInfo,
}

impl PciFunction for OurPlain {
    fn info(&self) -> &FunctionInfo {
        &self.info
    }

    fn region_read(&mut self, _region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let from = self
            .plain
            .at(offset, data.len())
            .map_err(|_| Errno::INVAL)?;
        data.copy_from_slice(from);
        Ok(())
    }

    fn region_write(&mut self, _region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let to = self
            .plain
            .at(offset, data.len())
            .map_err(|_| Errno::INVAL)?;
        to.copy_from_slice(data);
        Ok(())
    }

    fn dma_map(&mut self, _: DmaMap) -> Result<(), Errno> {
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmap) -> Result<(), Errno> {
        Ok(())
    }

    fn set_irqs(&mut self, _: IrqSet) -> Result<(), Errno> {
        Ok(())
    }

    fn reset(&mut self) {}

    fn disconnect(&mut self) {}

    fn run(&mut self) -> Progress {
        Progress::Idle
    }

    fn next_dma(&mut self) -> Option<(u64, DmaRequest)> {
        None
    }

    fn dma_reply(&mut self, _: u64, _: DmaReply) {}
}

/// Serves until it is killed, or with the crate's server until its client leaves.
pub fn serve(server: &str, socket: &Path) -> ! {
    let registers = Plain(vec![0; SIZE]);
    if server == Loop::Ours.name() {
        serve_ours(registers, socket)
    } else {
        serve_crates(registers, socket)
    }
}

fn serve_ours(plain: Plain, socket: &Path) -> ! {
    let region = Region {
        size: SIZE as u64,
        read: true,
        write: true,
        mmap: None,
    };
    let info = FunctionInfo {
        regions: vec![region],
        irqs: Vec::new(),
    };
    let listener = Listener::bind(socket).expect("bind");
    let function = OurPlain { plain, info };
    let (server, _handle) =
        neuron_vfio_user::vfio::Server::new(listener, function, Settings::default())
            .expect("server");
    server.run().expect("serve");
    std::process::exit(0)
}

#[expect(
    clippy::default_trait_access,
    reason = "the type is of a crate that we do not depend on"
)]
fn serve_crates(mut plain: Plain, socket: &Path) -> ! {
    let mut region = ServerRegion {
        region_info: Default::default(),
        sparse_areas: Vec::new(),
        mmap_fd: None,
    };
    region.region_info.size = SIZE as u64;
    // VFIO_REGION_INFO_FLAG_READ and _WRITE.
    region.region_info.flags = 3;
    let server = Server::new(socket, true, Vec::new(), vec![region]).expect("bind");
    server.run(&mut plain).expect("serve");
    std::process::exit(0)
}

/// What a register read is measured against.
pub struct Peers {
    pub our_loop: Reference,
    pub crates: Reference,
}

/// That process, and a client of it.
pub struct Reference {
    child: Child,
    pub client: RawClient,
    _directory: tempfile::TempDir,
}

impl Reference {
    pub fn start(server: Loop) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let socket: PathBuf = directory.path().join("r");
        let child = Command::new(std::env::current_exe().expect("executable"))
            .arg(SERVE)
            .arg(server.name())
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()
            .expect("a server");
        let start = Instant::now();
        let client = loop {
            match RawClient::connect(&socket) {
                Ok(client) => break client,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Self {
            child,
            client,
            _directory: directory,
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

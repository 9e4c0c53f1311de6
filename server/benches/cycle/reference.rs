//! The server of the crate `vfio_user` with a small device, in a process of its own like ours: what anybody gets without
//! writing a server.
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend, ServerRegion};

use crate::common::raw::RawClient;

/// First argument of the process that serves; the socket is the second.
pub const SERVE: &str = "--serve-reference";

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

/// Serves one client and ends with it.
#[expect(
    clippy::default_trait_access,
    reason = "the type is of a crate that we do not depend on"
)]
pub fn serve(socket: &Path) -> ! {
    let mut region = ServerRegion {
        region_info: Default::default(),
        sparse_areas: Vec::new(),
        mmap_fd: None,
    };
    region.region_info.size = SIZE as u64;
    // VFIO_REGION_INFO_FLAG_READ and _WRITE.
    region.region_info.flags = 3;
    let server = Server::new(socket, true, Vec::new(), vec![region]).expect("bind");
    server.run(&mut Plain(vec![0; SIZE])).expect("serve");
    std::process::exit(0)
}

/// That process, and a client of it.
pub struct Reference {
    child: Child,
    pub client: RawClient,
    _directory: tempfile::TempDir,
}

impl Reference {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let socket: PathBuf = directory.path().join("r");
        let child = Command::new(std::env::current_exe().expect("executable"))
            .arg(SERVE)
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()
            .expect("the crate's server");
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

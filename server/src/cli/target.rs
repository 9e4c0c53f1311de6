//! Which running server is meant.
use std::path::PathBuf;

use clap::Args;

use super::device::SocketArgs;

/// By its control socket, or by what it was started with.
#[derive(Args, Debug)]
#[group(id = "server", multiple = false)]
pub struct Target {
    /// Control socket of the server
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// The --socket that the server was given; its control socket is PATH.ctl
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// The --socket-dir that the server was given
    #[arg(long, value_name = "DIR")]
    socket_dir: Option<PathBuf>,
}

impl Target {
    /// The socket that is meant; none if nothing was said.
    pub fn control(self) -> Option<PathBuf> {
        let place = SocketArgs {
            socket: self.socket,
            socket_dir: self.socket_dir,
        };
        self.control.or_else(|| place.control())
    }
}

//! `probe`: does the device behind this socket copy?
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};

use super::exit::Exit;
use crate::probe::{ProbeError, probe};

/// Options of `probe`.
#[derive(Args, Debug)]
pub struct ProbeArgs {
    /// Socket of a running server with no client connected
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,

    /// Seconds that one step may take
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = value_parser!(u16).range(1..))]
    timeout: u16,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ProbeArgs {
    /// Prints what was found.
    pub fn run(&self) -> Exit {
        match probe(&self.socket, Duration::from_secs(self.timeout.into())) {
            Ok(findings) if self.json => {
                super::print(&format!("{:#}\n", serde_json::json!(findings)));
                Exit::Ok
            }
            Ok(findings) => {
                super::print(&findings.to_string());
                Exit::Ok
            }
            Err(error) => {
                eprintln!("error: {}: {error}", self.socket.display());
                match error {
                    ProbeError::Connect(_) => Exit::Unreachable,
                    ProbeError::Stuck { .. } | ProbeError::Failed { .. } => Exit::Failed,
                }
            }
        }
    }
}

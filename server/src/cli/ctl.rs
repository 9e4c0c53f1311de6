//! `ctl`: asks a running server.
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::device::SocketArgs;
use super::exit::Exit;
use crate::control::client;
use crate::control::protocol::{ERROR, Request};
use crate::observe::report::Detail;
use crate::policy::fault::Order;

/// Options of `ctl`.
#[derive(Args, Debug)]
pub struct CtlArgs {
    #[command(flatten)]
    target: Target,

    /// What to ask for
    #[arg(value_enum)]
    report: Report,

    /// For notify: the block (core, topsp or sdma), which of its kind, the queue (0 to 15), the entry in hexadecimal. For
    /// fault: add with a scenario or rule, list, or clear
    #[arg(value_name = "BLOCK INDEX QUEUE HEX|add FAULT|list|clear", num_args = 0..=20)]
    words: Vec<String>,

    /// For notify and fault: routing id of the device; not needed for the only one
    #[arg(long, value_name = "ID")]
    device: Option<u8>,

    /// For fault add: take a fault that makes a guest wait for minutes on its platform
    #[arg(long)]
    allow_hangs: bool,

    /// Print JSON: an array with one object per device
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Target {
    /// Control socket of the server
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// The --socket that the server was given; its control socket is PATH.ctl
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// The --socket-dir that the server was given
    #[arg(long, value_name = "DIR")]
    socket_dir: Option<PathBuf>,
}

impl Target {
    fn control(self) -> Option<PathBuf> {
        let place = SocketArgs {
            socket: self.socket,
            socket_dir: self.socket_dir,
        };
        self.control.or_else(|| place.control())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Report {
    /// Last doorbell, head and tail, what each queue waits for; totals; registers touched that are not modelled
    Status,
    /// Also descriptors near head and tail, DMA maps, flight recorders and registers by name
    Dump,
    /// Write an entry into a notification queue that the guest's driver has set up, so that what polls it sees one
    Notify,
    /// Misbehave on purpose: `fault add marker-drop-once`, `fault add on=copy action=drop nth=3`, `fault list`, `fault clear`
    Fault,
}

impl CtlArgs {
    /// Prints the answer.
    pub fn run(self) -> Exit {
        let Some(path) = self.target.control() else {
            eprintln!("error: give --control, --socket or --socket-dir");
            return Exit::Usage;
        };
        let json = self.json;
        let detail = match self.report {
            Report::Status => Some(Detail::Status),
            Report::Dump => Some(Detail::Dump),
            Report::Notify | Report::Fault => None,
        };
        let request = match detail {
            Some(_) if !self.words.is_empty() => {
                eprintln!(
                    "error: {:?} is too much: only notify and fault take more words",
                    self.words[0]
                );
                return Exit::Usage;
            }
            Some(detail) => Request::Report { detail, json },
            None if matches!(self.report, Report::Fault) => {
                match self.words.join(" ").parse::<Order>() {
                    Ok(order) => Request::Fault {
                        device: self.device,
                        order: order.allowing_hangs(self.allow_hangs),
                    },
                    Err(error) => {
                        eprintln!("error: fault: {error}");
                        return Exit::Usage;
                    }
                }
            }
            None => match self.words.join(" ").parse() {
                Ok(notify) => Request::Notify {
                    device: self.device,
                    notify,
                },
                Err(error) => {
                    eprintln!("error: notify: {error}");
                    return Exit::Usage;
                }
            },
        };
        match client::ask(&path, &request) {
            Ok(answer) if answer.starts_with(ERROR) => {
                eprint!("{answer}");
                Exit::Failed
            }
            Ok(answer) if answer.is_empty() => {
                eprintln!(
                    "error: {}: the server closed the connection without an answer; is it being stopped?",
                    path.display()
                );
                Exit::Unreachable
            }
            Ok(answer) => {
                super::print(&answer);
                Exit::Ok
            }
            Err(error) => {
                eprintln!(
                    "error: {}: {error}; is `serve` running, with this control socket?",
                    path.display()
                );
                Exit::Unreachable
            }
        }
    }
}

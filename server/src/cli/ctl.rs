//! `ctl`: asks a running server, or has it do something.
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, value_parser};

use super::exit::Exit;
use super::size;
use super::target::Target;
use crate::control::client;
use crate::control::protocol::{ERROR, MAX_DRAIN, MIN_RECORDING, Request};
use crate::observe::report::Detail;
use crate::policy::Notify;
use crate::policy::fault::Order;
use crate::record::Payload;

/// Options of `ctl`.
#[derive(Args, Debug)]
pub struct CtlArgs {
    #[command(flatten)]
    target: Target,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Last doorbell, head and tail, what each queue waits for; totals; registers touched that are not modelled
    Status(ReportArgs),
    /// Also descriptors near head and tail, DMA maps, flight recorders and registers by name
    Dump(ReportArgs),
    /// Write an entry into a notification queue that the guest's driver has set up, so that what polls it sees one
    Notify {
        #[command(flatten)]
        device: DeviceArgs,

        /// The block: core, topsp or sdma
        block: String,
        /// Which of its kind
        index: String,
        /// Queue of the block, 0 to 15
        queue: String,
        /// The entry in hexadecimal, such as 00ffee
        hex: String,
    },
    /// Misbehave on purpose: `fault add marker-drop-once`, `fault add on=copy action=drop nth=3`, `fault list`, `fault clear`
    Fault {
        #[command(flatten)]
        device: DeviceArgs,

        /// Take a fault that makes a guest wait for minutes on its platform
        #[arg(long)]
        allow_hangs: bool,

        /// add with a scenario or rule, list, or clear
        #[arg(value_name = "add FAULT|list|clear", required = true, num_args = 1..=20)]
        words: Vec<String>,
    },
    /// Put a device into power-on state, as hardware does when it is reset behind its driver's back
    Reset(DeviceArgs),
    /// Wait until no queue has work left; exit code 1 if some has after the time
    Drain {
        #[command(flatten)]
        device: DeviceArgs,

        /// For how long at most
        #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u16).range(..=i64::from(MAX_DRAIN)))]
        timeout: u16,
    },
    /// Change what the server logs
    Log {
        /// A level (error, warn, info, debug, trace), or module=level pairs separated by commas
        filter: String,
    },
    /// Begin or end a time line, a Perfetto trace of what the devices do (see `serve --timeline`)
    Timeline {
        #[command(subcommand)]
        command: Timeline,
    },
    /// Begin or end a recording of a device, for replay, show and coverage (see `serve --record`)
    Record {
        #[command(flatten)]
        device: DeviceArgs,

        #[command(subcommand)]
        command: Record,
    },
    /// Stop the server, as SIGTERM does
    Stop,
}

#[derive(Debug, Subcommand)]
enum Timeline {
    /// Write one to FILE from now on; the file is opened here, so that the server needs no right to do so
    Start {
        /// The file; replaced if it exists
        file: PathBuf,
    },
    /// End it and say what is in it
    Stop,
}

#[derive(Debug, Subcommand)]
enum Record {
    /// Record into FILE; the file is opened here, so that the server needs no right to do so. A recording begins with a
    /// device as after power-on: at once if no client is connected, else when the client has left, with the next one
    Start {
        /// The file; replaced if it exists
        file: PathBuf,

        /// End the recording before its file is larger than this; the device goes on
        #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
        limit: u64,

        /// What to keep of the bytes that are only copied (see `serve --record-payload`)
        #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
        payload: Payload,
    },
    /// End it and say how large it is
    Stop,
}

#[derive(Args, Clone, Copy, Debug)]
struct ReportArgs {
    /// Print JSON: an array with one object per device
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Copy, Debug)]
struct DeviceArgs {
    /// Routing id of the device; not needed for the only one
    #[arg(long, value_name = "ID")]
    device: Option<u8>,
}

impl Command {
    /// The request, and the file that goes with it.
    fn request(self) -> Result<(Request, Option<File>), (Exit, String)> {
        let request = match self {
            Self::Status(ReportArgs { json }) => Request::Report {
                detail: Detail::Status,
                json,
            },
            Self::Dump(ReportArgs { json }) => Request::Report {
                detail: Detail::Dump,
                json,
            },
            Self::Notify {
                device: DeviceArgs { device },
                block,
                index,
                queue,
                hex,
            } => {
                let words = format!("{block} {index} {queue} {hex}");
                let notify = words.parse::<Notify>();
                let notify = notify.map_err(|error| (Exit::Usage, format!("notify: {error}")))?;
                Request::Notify { device, notify }
            }
            Self::Fault {
                device: DeviceArgs { device },
                allow_hangs,
                words,
            } => {
                let order = words.join(" ").parse::<Order>();
                let order = order.map_err(|error| (Exit::Usage, format!("fault: {error}")))?;
                Request::Fault {
                    device,
                    order: order.allowing_hangs(allow_hangs),
                }
            }
            Self::Reset(DeviceArgs { device }) => Request::Reset { device },
            Self::Drain {
                device: DeviceArgs { device },
                timeout: seconds,
            } => Request::Drain { device, seconds },
            Self::Log { filter } => {
                if filter.is_empty() || filter.contains(char::is_whitespace) {
                    let error = "a filter has no spaces: write info or module=level,module=level";
                    return Err((Exit::Usage, error.to_owned()));
                }
                Request::Log { filter }
            }
            Self::Timeline {
                command: Timeline::Start { file },
            } => {
                let opened = open(&file)?;
                return Ok((Request::TimelineStart, Some(opened)));
            }
            Self::Timeline {
                command: Timeline::Stop,
            } => Request::TimelineStop,
            Self::Record {
                device: DeviceArgs { device },
                command:
                    Record::Start {
                        file,
                        limit,
                        payload,
                    },
            } => {
                if limit < MIN_RECORDING {
                    let error = "--limit: less than 1M is not worth a recording".to_owned();
                    return Err((Exit::Usage, error));
                }
                let opened = open(&file)?;
                let request = Request::RecordStart {
                    device,
                    limit,
                    payload,
                };
                return Ok((request, Some(opened)));
            }
            Self::Record {
                device: DeviceArgs { device },
                command: Record::Stop,
            } => Request::RecordStop { device },
            Self::Stop => Request::Stop,
        };
        Ok((request, None))
    }
}

/// Opens a file for the server, which empties it if it will write it: what is refused must not cost a file.
fn open(path: &Path) -> Result<File, (Exit, String)> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    options
        .open(path)
        .map_err(|error| (Exit::Failed, format!("{}: {error}", path.display())))
}

impl CtlArgs {
    /// Prints the answer.
    pub fn run(self) -> Exit {
        let Some(path) = self.target.control() else {
            eprintln!("error: give --control, --socket or --socket-dir");
            return Exit::Usage;
        };
        let (request, file) = match self.command.request() {
            Ok(request) => request,
            Err((exit, error)) => {
                eprintln!("error: {error}");
                return exit;
            }
        };
        match client::ask_with(&path, &request, file.as_ref()) {
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

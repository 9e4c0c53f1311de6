//! The control socket's language: one request line, an answer until end of file.
//!
//! `status`, `status json`, `live json`, `dump`, `dump json`, `notify DEVICE BLOCK INDEX QUEUE HEX`, `fault DEVICE list`, `fault DEVICE clear`, `fault DEVICE add
//! [allow-hangs] FAULT`, `reset DEVICE`, `drain DEVICE
//! SECONDS`, `log FILTER`, `timeline start` (a file descriptor comes with it), `timeline stop`,
//! `record DEVICE start LIMIT full|none` (a file descriptor comes with it), `record DEVICE stop`, `stop`. DEVICE is a routing
//! id, or `-` for the only device (`drain`: for all). An answer that begins with `error: ` is one.
use std::fmt;
use std::str::FromStr;

use crate::observe::report::Detail;
use crate::policy::Notify;
use crate::policy::fault::Order;
use crate::record::Payload;

/// Longest request line, newline included.
pub const MAX_REQUEST: usize = 640;
/// Longest wait of `drain`, seconds.
pub const MAX_DRAIN: u16 = 600;
/// Smallest limit of a recording that is worth one, bytes.
pub const MIN_RECORDING: u64 = 1 << 20;
/// What a failed request's answer begins with.
pub const ERROR: &str = "error: ";

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Say how it is.
    Report {
        /// Which report.
        detail: Detail,
        /// As JSON: an array of devices.
        json: bool,
    },
    /// Post a notification.
    Notify {
        /// Routing id of the device; not needed for the only one.
        device: Option<u8>,
        /// What and where.
        notify: Notify,
    },
    /// Change or show the faults on purpose.
    Fault {
        /// Routing id of the device; not needed for the only one.
        device: Option<u8>,
        /// What to do.
        order: Order,
    },
    /// Power-on state.
    Reset {
        /// Routing id of the device; not needed for the only one.
        device: Option<u8>,
    },
    /// Wait until no work is left.
    Drain {
        /// Routing id of the device; all without.
        device: Option<u8>,
        /// For how long at most.
        seconds: u16,
    },
    /// Change what is logged.
    Log {
        /// As `--log` takes it.
        filter: String,
    },
    /// Write a time line to the file that comes with the request.
    TimelineStart,
    /// End the time line.
    TimelineStop,
    /// Record a device into the file that comes with the request.
    RecordStart {
        /// Routing id; not needed for the only one.
        device: Option<u8>,
        /// Largest file, bytes.
        limit: u64,
        /// What to keep.
        payload: Payload,
    },
    /// End the recording of a device.
    RecordStop {
        /// Routing id; not needed for the only one.
        device: Option<u8>,
    },
    /// End the process as SIGTERM does.
    Stop,
}

/// A routing id on the wire.
struct Id(Option<u8>);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "{id}"),
            None => f.write_str("-"),
        }
    }
}

fn id(word: Option<&str>) -> Result<Option<u8>, String> {
    match word {
        Some("-") => Ok(None),
        word => word
            .and_then(|word| word.parse().ok())
            .map(Some)
            .ok_or_else(|| "a routing id is needed, or - for the only device".to_owned()),
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report { detail, json } => {
                f.write_str(match detail {
                    Detail::Status => "status",
                    Detail::Live => "live",
                    Detail::Dump => "dump",
                })?;
                f.write_str(if *json { " json" } else { "" })
            }
            Self::Notify { device, notify } => write!(f, "notify {} {notify}", Id(*device)),
            Self::Fault { device, order } => write!(f, "fault {} {order}", Id(*device)),
            Self::Reset { device } => write!(f, "reset {}", Id(*device)),
            Self::Drain { device, seconds } => write!(f, "drain {} {seconds}", Id(*device)),
            Self::Log { filter } => write!(f, "log {filter}"),
            Self::TimelineStart => f.write_str("timeline start"),
            Self::TimelineStop => f.write_str("timeline stop"),
            Self::RecordStart {
                device,
                limit,
                payload,
            } => {
                let what = match payload {
                    Payload::Full => "full",
                    Payload::None => "none",
                };
                write!(f, "record {} start {limit} {what}", Id(*device))
            }
            Self::RecordStop { device } => write!(f, "record {} stop", Id(*device)),
            Self::Stop => f.write_str("stop"),
        }
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_ascii_whitespace();
        let request = match words.next().unwrap_or("") {
            "status" => report(Detail::Status, words.next())?,
            "live" => report(Detail::Live, words.next())?,
            "dump" => report(Detail::Dump, words.next())?,
            "fault" => {
                let device = id(words.next())?;
                let rest: Vec<_> = words.by_ref().collect();
                let order = rest.join(" ").parse()?;
                Self::Fault { device, order }
            }
            "notify" => {
                let device = id(words.next())?;
                let rest: Vec<_> = words.by_ref().collect();
                let notify = rest.join(" ").parse()?;
                Self::Notify { device, notify }
            }
            "reset" => Self::Reset {
                device: id(words.next())?,
            },
            "drain" => Self::Drain {
                device: id(words.next())?,
                seconds: words
                    .next()
                    .and_then(|word| word.parse().ok())
                    .filter(|seconds| *seconds <= MAX_DRAIN)
                    .ok_or_else(|| format!("drain needs seconds, {MAX_DRAIN} at most"))?,
            },
            "log" => Self::Log {
                filter: words.next().ok_or("log needs a filter")?.to_owned(),
            },
            "timeline" => match words.next() {
                Some("start") => Self::TimelineStart,
                Some("stop") => Self::TimelineStop,
                _ => return Err("timeline needs start or stop".to_owned()),
            },
            "record" => {
                let device = id(words.next())?;
                match words.next() {
                    Some("start") => Self::RecordStart {
                        device,
                        limit: words
                            .next()
                            .and_then(|word| word.parse().ok())
                            .filter(|limit| *limit >= MIN_RECORDING)
                            .ok_or_else(|| {
                                format!(
                                    "record start needs a limit of {MIN_RECORDING} bytes or more"
                                )
                            })?,
                        payload: match words.next() {
                            Some("full") => Payload::Full,
                            Some("none") => Payload::None,
                            _ => {
                                return Err(
                                    "the payload of record start is full or none".to_owned()
                                );
                            }
                        },
                    },
                    Some("stop") => Self::RecordStop { device },
                    _ => return Err("record needs start or stop".to_owned()),
                }
            }
            "stop" => Self::Stop,
            other => {
                return Err(format!(
                    "unknown request {other:?}: say status, live, dump, notify, fault, reset, drain, log, timeline, record or stop"
                ));
            }
        };
        match words.next() {
            None => Ok(request),
            Some(other) => Err(format!("{other:?} is too much")),
        }
    }
}

fn report(detail: Detail, format: Option<&str>) -> Result<Request, String> {
    let json = match format {
        None => false,
        Some("json") => true,
        Some(other) => return Err(format!("unknown format {other:?}: say json, or nothing")),
    };
    Ok(Request::Report { detail, json })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{MAX_NOTIFICATION, NotificationBlock};

    #[test]
    fn requests_read_back_and_fit() {
        for detail in [Detail::Status, Detail::Live, Detail::Dump] {
            for json in [false, true] {
                let request = Request::Report { detail, json };
                assert!(request.to_string().len() < MAX_REQUEST);
                assert_eq!(request.to_string().parse(), Ok(request));
            }
        }
        let notify = Notify {
            block: NotificationBlock::Core,
            index: 0,
            queue: 3,
            bytes: vec![0xee; MAX_NOTIFICATION],
        };
        for device in [None, Some(63)] {
            let notify = notify.clone();
            let request = Request::Notify { device, notify };
            assert!(request.to_string().len() < MAX_REQUEST);
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        for device in [None, Some(63)] {
            let text = "x".repeat(Order::MAX_TEXT);
            for order in [
                Order::List,
                Order::Clear,
                Order::Add {
                    text: text.clone(),
                    allow_hangs: false,
                },
                Order::Add {
                    text,
                    allow_hangs: true,
                },
            ] {
                let request = Request::Fault { device, order };
                assert!(request.to_string().len() < MAX_REQUEST);
                assert_eq!(request.to_string().parse(), Ok(request));
            }
        }
        for request in [
            Request::Reset { device: None },
            Request::Reset { device: Some(3) },
            Request::Drain {
                device: None,
                seconds: MAX_DRAIN,
            },
            Request::Log {
                filter: "info,neuron_vfio_user::vfio=trace".to_owned(),
            },
            Request::TimelineStart,
            Request::TimelineStop,
            Request::RecordStart {
                device: None,
                limit: 1 << 30,
                payload: Payload::None,
            },
            Request::RecordStart {
                device: Some(3),
                limit: MIN_RECORDING,
                payload: Payload::Full,
            },
            Request::RecordStop { device: Some(63) },
            Request::Stop,
        ] {
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        for bad in [
            "",
            "fault",
            "fault -",
            "fault - add",
            "fault - list all",
            "fault x list",
            "notify",
            "notify x core 0 0 00",
            "notify 1 core 0 0",
            "reset",
            "reset x",
            "drain - 601",
            "drain 1",
            "log",
            "timeline",
            "record",
            "record -",
            "record - start",
            "record - start 1 full",
            "record - start 1048576 some",
            "record stop",
            "stop now",
            "status xml",
            "status json now",
        ] {
            assert!(bad.parse::<Request>().is_err(), "{bad}");
        }
    }
}

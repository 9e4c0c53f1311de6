//! The control socket's language: one request line, an answer until end of file.
//!
//! `status`, `status json`, `dump`, `dump json`, `notify DEVICE BLOCK INDEX QUEUE HEX`, `fault DEVICE list`, `fault DEVICE
//! clear`, `fault DEVICE add [allow-hangs] FAULT` where DEVICE is a routing id or `-` for the only device. An answer that begins with `error: ` is one.
use std::fmt;
use std::str::FromStr;

use crate::observe::report::Detail;
use crate::policy::Notify;
use crate::policy::fault::Order;

/// Longest request line, newline included.
pub const MAX_REQUEST: usize = 640;
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
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report { detail, json } => {
                f.write_str(match detail {
                    Detail::Status => "status",
                    Detail::Dump => "dump",
                })?;
                f.write_str(if *json { " json" } else { "" })
            }
            Self::Notify {
                device: Some(device),
                notify,
            } => write!(f, "notify {device} {notify}"),
            Self::Fault {
                device: Some(device),
                order,
            } => write!(f, "fault {device} {order}"),
            Self::Fault {
                device: None,
                order,
            } => write!(f, "fault - {order}"),
            Self::Notify {
                device: None,
                notify,
            } => write!(f, "notify - {notify}"),
        }
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_ascii_whitespace();
        let detail = match words.next() {
            Some("status") => Detail::Status,
            Some("dump") => Detail::Dump,
            Some(verb @ ("notify" | "fault")) => {
                let device = match words.next() {
                    Some("-") => None,
                    word => Some(word.and_then(|word| word.parse().ok()).ok_or(format!(
                        "{verb} needs a routing id, or - for the only device"
                    ))?),
                };
                let rest: Vec<_> = words.collect();
                if verb == "fault" {
                    let order = rest.join(" ").parse()?;
                    return Ok(Self::Fault { device, order });
                }
                let notify = rest.join(" ").parse()?;
                return Ok(Self::Notify { device, notify });
            }
            other => {
                return Err(format!(
                    "unknown request {:?}: say status, dump, notify or fault",
                    other.unwrap_or("")
                ));
            }
        };
        let json = match words.next() {
            None => false,
            Some("json") => true,
            Some(other) => return Err(format!("unknown format {other:?}: say json, or nothing")),
        };
        match words.next() {
            None => Ok(Self::Report { detail, json }),
            Some(other) => Err(format!("{other:?} is too much")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{MAX_NOTIFICATION, NotificationBlock};

    #[test]
    fn requests_read_back_and_fit() {
        for detail in [Detail::Status, Detail::Dump] {
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
            "stop",
            "status xml",
            "status json now",
        ] {
            assert!(bad.parse::<Request>().is_err(), "{bad}");
        }
    }
}

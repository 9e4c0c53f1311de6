//! The control socket's language: one request line, an answer until end of file.
//!
//! `status`, `status json`, `dump`, `dump json`. An answer that begins with `error: ` is one.
use std::fmt;
use std::str::FromStr;

use crate::observe::report::Detail;

/// Longest request line, newline included.
pub const MAX_REQUEST: usize = 64;
/// What a failed request's answer begins with.
pub const ERROR: &str = "error: ";

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which report.
    pub detail: Detail,
    /// As JSON: an array of devices.
    pub json: bool,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.detail {
            Detail::Status => "status",
            Detail::Dump => "dump",
        })?;
        f.write_str(if self.json { " json" } else { "" })
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_ascii_whitespace();
        let detail = match words.next() {
            Some("status") => Detail::Status,
            Some("dump") => Detail::Dump,
            other => {
                return Err(format!(
                    "unknown request {:?}: say status or dump",
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
            None => Ok(Self { detail, json }),
            Some(other) => Err(format!("{other:?} is too much")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_back_and_fit() {
        for detail in [Detail::Status, Detail::Dump] {
            for json in [false, true] {
                let request = Request { detail, json };
                assert_eq!(request.to_string().parse(), Ok(request));
                assert!(request.to_string().len() < MAX_REQUEST);
            }
        }
        for bad in ["", "stop", "status xml", "status json now"] {
            assert!(bad.parse::<Request>().is_err(), "{bad}");
        }
    }
}

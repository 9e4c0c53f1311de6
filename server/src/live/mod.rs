//! A running device in a terminal: `show --live`.
//!
//! It asks the control socket for a report a few times per second and draws what changed; the device notices nothing
//! but the question. What is drawn is a pure function of the [`State`], so that it is the same in a terminal, in a test
//! and as plain text.
mod screen;
mod state;
mod view;

use std::path::Path;
use std::time::Duration;

pub use screen::run;
pub use state::{Sample, State};
pub use view::{draw, plain};

use crate::control::client;
use crate::control::protocol::{ERROR, Request};
use crate::observe::report::Detail;

/// Asks once.
///
/// # Errors
/// Nobody listens, or what answers is no server of this version.
pub fn ask(control: &Path, now: Duration) -> Result<Sample, String> {
    let request = Request::Report {
        detail: Detail::Live,
        json: true,
    };
    let answer = client::ask(control, &request).map_err(|error| error.to_string())?;
    if answer.is_empty() {
        return Err("the server closed the connection without an answer".to_owned());
    }
    if let Some(error) = answer.strip_prefix(ERROR) {
        return Err(format!(
            "the server says: {}; is it of version {}?",
            error.trim(),
            env!("CARGO_PKG_VERSION")
        ));
    }
    Sample::parse(&answer, now)
}

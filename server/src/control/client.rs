//! The asking side of the control socket.
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::protocol::Request;

/// Longer than the server's own limits, so that its answer, even a refusal, arrives first.
const PATIENCE: Duration = Duration::from_secs(20);
/// An answer beyond this is not from us.
const MAX_ANSWER: u64 = 64 << 20;

/// Sends one request and reads the whole answer.
///
/// # Errors
/// Nobody listens, or the answer did not come in time.
pub fn ask(socket: &Path, request: &Request) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

//! The asking side of the control socket.
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

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
    ask_with(socket, request, None)
}

/// The same, with a file for the server to use.
///
/// # Errors
/// See [`ask`].
pub fn ask_with(socket: &Path, request: &Request, file: Option<&File>) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    let longer = match request {
        Request::Drain { seconds, .. } => Duration::from_secs((*seconds).into()),
        _ => Duration::ZERO,
    };
    stream.set_read_timeout(Some(PATIENCE + longer))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = format!("{request}\n");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let parts = [IoSlice::new(line.as_bytes())];
    let sent = sendmsg(&stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&line.as_bytes()[sent..])?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

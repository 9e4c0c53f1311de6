//! The control socket: any number of clients, none of which can hold up a device or the others.
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::operator::{NotIdle, Operator};
use super::protocol::{ERROR, MAX_REQUEST, Request};
use crate::vfio::Listener;

/// Clients at a time. One more, and the oldest that neither asks nor reads its answer is let go.
pub const MAX_CLIENTS: usize = 16;
/// Clients that are given an account at a time: each is built in memory.
const MAX_ANSWERS: usize = 4;
/// How long a client may take to say what it wants, and again to read the answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at devices that are to become idle.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// The listener as tokio takes it. The path stays with `listener`.
///
/// # Errors
/// No descriptor left, or no runtime.
pub fn accepting(listener: &Listener) -> std::io::Result<UnixListener> {
    let socket = listener.as_fd().try_clone_to_owned()?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}

/// Serves clients until dropped.
pub async fn serve(listener: UnixListener, operator: Arc<Operator>) {
    let answers = Arc::new(Semaphore::new(MAX_ANSWERS));
    // Whoever is dropped here has to go; those that are done have dropped the other end.
    let mut clients: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                clients.retain(|client| !client.is_closed());
                if clients.len() >= MAX_CLIENTS {
                    debug!("a silent control client makes room for the next");
                    clients.pop_front();
                }
                let (stay, go) = oneshot::channel();
                clients.push_back(stay);
                let (operator, answers) = (Arc::clone(&operator), Arc::clone(&answers));
                tokio::spawn(async move {
                    tokio::select! {
                        result = client(stream, operator, &answers) => {
                            if let Err(error) = result {
                                debug!("control client: {error}");
                            }
                        }
                        _ = go => {}
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: it passes, and must not spin.
                warn!("control socket: cannot accept: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn client(
    mut stream: UnixStream,
    operator: Arc<Operator>,
    answers: &Semaphore,
) -> std::io::Result<()> {
    let (line, file) = timeout(CLIENT_PATIENCE, receive(&stream)).await??;
    let request = match line
        .split(|byte| *byte == b'\n')
        .next()
        .filter(|first| first.len() < line.len())
    {
        Some(line) => String::from_utf8_lossy(line).parse::<Request>(),
        None if line.len() >= MAX_REQUEST => {
            Err(format!("a request line has {MAX_REQUEST} bytes at most"))
        }
        None => Err("the request line is not complete".to_owned()),
    };
    let answer = match request {
        Ok(Request::Drain { device, seconds }) => {
            drain(&operator, answers, device, seconds).await?
        }
        Ok(request) => {
            // The semaphore is never closed.
            let _turn = answers.acquire().await;
            tokio::task::spawn_blocking(move || operator.answer(request, file)).await?
        }
        Err(error) => format!("{ERROR}{error}\n"),
    };
    timeout(CLIENT_PATIENCE, stream.write_all(answer.as_bytes())).await??;
    Ok(())
}

/// Waits for devices to become idle. Only each look takes a turn: a long wait holds up nobody.
async fn drain(
    operator: &Arc<Operator>,
    answers: &Semaphore,
    device: Option<u8>,
    seconds: u16,
) -> std::io::Result<String> {
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    loop {
        let over = Instant::now() >= deadline;
        let operator = Arc::clone(operator);
        let turn = answers.acquire().await;
        let looked = tokio::task::spawn_blocking(move || operator.idle(device)).await?;
        drop(turn);
        match looked {
            Ok(answer) => return Ok(answer),
            Err(NotIdle::Busy { .. }) if !over => sleep(DRAIN_INTERVAL).await,
            Err(error @ NotIdle::Busy { .. }) => {
                return Ok(format!("{ERROR}after {seconds} s {error}\n"));
            }
            Err(error) => return Ok(format!("{ERROR}{error}\n")),
        }
    }
}

/// Reads until the end of the line, of the stream or of what a line may have; a descriptor may come with it.
async fn receive(stream: &UnixStream) -> std::io::Result<(Vec<u8>, Option<File>)> {
    let mut line = Vec::with_capacity(MAX_REQUEST);
    let mut file = None;
    loop {
        stream.readable().await?;
        let mut bytes = [0; MAX_REQUEST];
        let room = MAX_REQUEST - line.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read = stream.try_io(Interest::READABLE, || {
            let mut parts = [IoSliceMut::new(&mut bytes[..room])];
            // More descriptors than fit are closed by the kernel.
            let received = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            Ok(received.bytes)
        });
        let read = match read {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                file = fds.map(File::from).last().or(file);
            }
        }
        line.extend_from_slice(&bytes[..read]);
        if read == 0 || line.len() == MAX_REQUEST || line.contains(&b'\n') {
            return Ok((line, file));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Client;
    use std::path::Path;

    use super::*;
    use crate::control::client;
    use crate::control::device::{Change, Device, Ended};
    use crate::observe::report::{Detail, DeviceReport};
    use crate::policy::fault::Order;
    use crate::policy::{Notify, Posted};
    use crate::record::{Begins, Journal};

    struct Fake {
        id: u8,
        answers: bool,
    }

    impl Device for Fake {
        fn routing_id(&self) -> u8 {
            self.id
        }

        fn report(&self, _detail: Detail, patience: Duration) -> Option<DeviceReport> {
            if !self.answers {
                std::thread::sleep(patience);
            }
            self.answers.then(|| DeviceReport {
                routing_id: self.id,
                ..DeviceReport::default()
            })
        }

        fn notify(&self, notify: Notify, _patience: Duration) -> Result<Posted, String> {
            Ok(Posted {
                offset: notify.queue.into(),
                head: self.id.into(),
            })
        }

        fn fault(&self, order: Order, _patience: Duration) -> Result<String, String> {
            Ok(format!("  {order}\n"))
        }

        fn reset(&self, _patience: Duration) -> Result<(), String> {
            Ok(())
        }

        fn observers(&self, _change: Change, _patience: Duration) -> Result<(), String> {
            Ok(())
        }

        fn record(
            &self,
            _start: &mut dyn FnMut() -> Result<Arc<Journal>, String>,
            _patience: Duration,
        ) -> Result<Begins, String> {
            Err("nowhere".to_owned())
        }

        fn stop_recording(&self, _patience: Duration) -> Result<(Arc<Journal>, bool), String> {
            Err("nothing".to_owned())
        }

        fn stop(&self) {}

        fn wait(&self) -> Ended {
            Ended::Stopped
        }
    }

    /// Serves the fakes while `test` runs in a thread of its own.
    fn with_server(fakes: Vec<Fake>, test: impl FnOnce(&Path) + Send + 'static) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ctl");
        let listener = Listener::bind(&path).unwrap();
        let devices = fakes
            .into_iter()
            .map(|fake| Arc::new(fake) as Arc<dyn Device>)
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let operator = Arc::new(Operator::bare(devices));
            let serving = tokio::spawn(serve(accepting(&listener).unwrap(), operator));
            tokio::task::spawn_blocking(move || test(&path))
                .await
                .unwrap();
            serving.abort();
        });
        runtime.shutdown_background();
    }

    const STATUS: Request = Request::Report {
        detail: Detail::Status,
        json: false,
    };

    #[test]
    fn every_device_answers_in_both_forms() {
        let fakes = vec![
            Fake {
                id: 3,
                answers: true,
            },
            Fake {
                id: 4,
                answers: true,
            },
        ];
        with_server(fakes, |path| {
            let text = client::ask(path, &STATUS).unwrap();
            assert!(
                text.starts_with("nd3 ") && text.contains("\nnd4 "),
                "{text}"
            );
            let json = client::ask(
                path,
                &Request::Report {
                    detail: Detail::Status,
                    json: true,
                },
            )
            .unwrap();
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(value[1]["routing_id"], 4);
        });
    }

    #[test]
    fn faults_reach_the_device_that_is_meant() {
        let fake = |id| Fake { id, answers: true };
        with_server(vec![fake(3), fake(4)], |path| {
            let ask = |device| {
                let order = "add on=marker action=drop".parse().unwrap();
                client::ask(path, &Request::Fault { device, order }).unwrap()
            };
            assert_eq!(ask(Some(4)), "nd4:\n  add on=marker action=drop\n");
            assert!(ask(None).contains("--device ID"));
            assert!(ask(Some(5)).contains("no device has"));
        });
    }

    #[test]
    fn a_stuck_device_is_named_and_hides_no_other() {
        let fakes = vec![
            Fake {
                id: 3,
                answers: false,
            },
            Fake {
                id: 4,
                answers: true,
            },
        ];
        with_server(fakes, |path| {
            let text = client::ask(path, &STATUS).unwrap();
            assert!(
                text.starts_with("nd3: the device thread does not answer"),
                "{text}"
            );
            assert!(text.contains("\nnd4 "), "{text}");
        });
    }

    #[test]
    fn endless_and_unknown_requests_are_refused() {
        with_server(vec![], |path| {
            for (request, answer) in [
                (vec![b'x'; 4096], "640 bytes at most"),
                (b"quit\n".to_vec(), "unknown request"),
                (b"st".to_vec(), "complete"),
            ] {
                let mut stream = Client::connect(path).unwrap();
                // The server may have answered and closed before all of it is sent.
                let _ = stream.write_all(&request);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut text = Vec::new();
                // A close with our bytes unread arrives as a reset, after the answer.
                let _ = stream.read_to_end(&mut text);
                let text = String::from_utf8(text).unwrap();
                assert!(text.starts_with(ERROR) && text.contains(answer), "{text:?}");
            }
        });
    }

    /// Neither clients that say nothing nor clients that do not read hold up the next one, however many there are.
    #[test]
    fn silent_clients_make_room() {
        with_server(
            vec![Fake {
                id: 1,
                answers: true,
            }],
            |path| {
                for count in [MAX_CLIENTS - 1, MAX_CLIENTS, 5 * MAX_CLIENTS] {
                    let mut silent: Vec<_> =
                        (0..count).map(|_| Client::connect(path).unwrap()).collect();
                    for unread in silent.iter_mut().step_by(2) {
                        // The server may have let it go already.
                        let _ = unread.write_all(b"status\n");
                    }
                    let start = std::time::Instant::now();
                    assert!(client::ask(path, &STATUS).unwrap().starts_with("nd1 "));
                    assert!(start.elapsed() < CLIENT_PATIENCE / 2, "{count} clients");
                }
            },
        );
    }

    /// A client that leaves while its account is made does not take the turn of another along.
    #[test]
    fn clients_that_leave_give_their_turn_back() {
        with_server(
            vec![Fake {
                id: 1,
                answers: true,
            }],
            |path| {
                for _ in 0..10 * MAX_ANSWERS {
                    let mut leaves = Client::connect(path).unwrap();
                    leaves.write_all(b"status\n").unwrap();
                    drop(leaves);
                }
                assert!(client::ask(path, &STATUS).unwrap().starts_with("nd1 "));
            },
        );
    }
}

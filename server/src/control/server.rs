//! The control socket: any number of clients, none of which can hold up a device or the others.
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::device::Device;
use super::protocol::{ERROR, MAX_REQUEST, Request};
use crate::observe::render;
use crate::observe::report::{Detail, DeviceReport};
use crate::policy::Notify;
use crate::policy::fault::Order;
use crate::vfio::Listener;

/// Clients at a time. One more, and the oldest that neither asks nor reads its answer is let go.
pub const MAX_CLIENTS: usize = 16;
/// Clients that are given an account at a time: each is built in memory.
const MAX_ANSWERS: usize = 4;
/// How long a client may take to say what it wants, and again to read the answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a device may take for its account. Its thread works in short slices, so this is already odd.
const DEVICE_PATIENCE: Duration = Duration::from_secs(3);

/// The devices answered for.
pub type Devices = Arc<[Arc<dyn Device>]>;

/// The listener as tokio takes it. The path stays with `listener`.
///
/// # Errors
/// No descriptor left, or no runtime.
pub fn accepting(listener: &Listener) -> std::io::Result<UnixListener> {
    let socket = listener.as_fd().try_clone_to_owned()?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}

/// Serves clients until dropped.
pub async fn serve(listener: UnixListener, devices: Devices) {
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
                let (devices, answers) = (Arc::clone(&devices), Arc::clone(&answers));
                tokio::spawn(async move {
                    tokio::select! {
                        result = client(stream, devices, &answers) => {
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

async fn client(stream: UnixStream, devices: Devices, answers: &Semaphore) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let limit = u64::try_from(MAX_REQUEST).unwrap_or(u64::MAX);
    let mut line = Vec::with_capacity(MAX_REQUEST);
    timeout(
        CLIENT_PATIENCE,
        BufReader::new(reader.take(limit)).read_until(b'\n', &mut line),
    )
    .await??;
    let request = match line.strip_suffix(b"\n") {
        Some(line) => String::from_utf8_lossy(line).parse::<Request>(),
        None if line.len() == MAX_REQUEST => {
            Err(format!("a request line has {MAX_REQUEST} bytes at most"))
        }
        None => Err("the request line is not complete".to_owned()),
    };
    let answer = match request {
        Ok(request) => {
            // The semaphore is never closed.
            let _turn = answers.acquire().await;
            tokio::task::spawn_blocking(move || answer(request, &devices)).await?
        }
        Err(error) => format!("{ERROR}{error}\n"),
    };
    timeout(CLIENT_PATIENCE, writer.write_all(answer.as_bytes())).await??;
    Ok(())
}

fn answer(request: Request, devices: &[Arc<dyn Device>]) -> String {
    match request {
        Request::Report { detail, json } => report(detail, json, devices),
        Request::Notify { device, notify } => match post(device, notify, devices) {
            Ok(answer) => answer,
            Err(error) => format!("{ERROR}{error}\n"),
        },
        Request::Fault { device, order } => match fault(device, order, devices) {
            Ok(answer) => answer,
            Err(error) => format!("{ERROR}{error}\n"),
        },
    }
}

/// The device that is meant.
fn chosen(id: Option<u8>, devices: &[Arc<dyn Device>]) -> Result<&Arc<dyn Device>, String> {
    let device = match (id, devices) {
        (Some(id), _) => devices.iter().find(|device| device.routing_id() == id),
        (None, [only]) => Some(only),
        (None, _) => {
            return Err(format!(
                "{} devices: say which with --device ID",
                devices.len()
            ));
        }
    };
    device.ok_or_else(|| "no device has that routing id".to_owned())
}

fn fault(id: Option<u8>, order: Order, devices: &[Arc<dyn Device>]) -> Result<String, String> {
    let device = chosen(id, devices)?;
    let id = device.routing_id();
    let answer = device.fault(order, DEVICE_PATIENCE);
    let answer = answer.map_err(|error| format!("nd{id}: {error}"))?;
    Ok(format!("nd{id}:\n{answer}"))
}

fn post(id: Option<u8>, notify: Notify, devices: &[Arc<dyn Device>]) -> Result<String, String> {
    let device = chosen(id, devices)?;
    let id = device.routing_id();
    let len = notify.bytes.len();
    let posted = device.notify(notify, DEVICE_PATIENCE);
    let posted = posted.map_err(|error| format!("nd{id}: {error}"))?;
    Ok(format!(
        "nd{id}: {len} bytes at {:#x} of the ring, head {:#x}\n",
        posted.offset, posted.head
    ))
}

fn report(detail: Detail, json: bool, devices: &[Arc<dyn Device>]) -> String {
    let report = |device: &Arc<dyn Device>| {
        let id = device.routing_id();
        device.report(detail, DEVICE_PATIENCE).ok_or_else(|| {
            format!("nd{id}: the device thread does not answer; the log may say why")
        })
    };
    let reports: Vec<_> = devices.iter().map(report).collect();
    if json {
        let value: Vec<_> = reports
            .into_iter()
            .map(|report| match report {
                Ok(report) => serde_json::to_value(report)
                    .unwrap_or_else(|error| error_value(&error.to_string())),
                Err(error) => error_value(&error),
            })
            .collect();
        return format!("{:#}\n", serde_json::Value::from(value));
    }
    let text = |report: Result<DeviceReport, String>| match (report, detail) {
        (Ok(report), Detail::Status) => render::status(&report),
        (Ok(report), Detail::Dump) => render::dump(&report),
        (Err(error), _) => format!("{error}\n"),
    };
    reports.into_iter().map(text).collect()
}

fn error_value(error: &str) -> serde_json::Value {
    serde_json::json!({ "error": error })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Client;
    use std::path::Path;

    use super::*;
    use crate::control::client;
    use crate::control::device::Ended;
    use crate::policy::Posted;

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
            let serving = tokio::spawn(serve(accepting(&listener).unwrap(), devices));
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

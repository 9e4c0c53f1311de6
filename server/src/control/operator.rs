//! What the control socket can have done: the requests, carried out. Everything here may block, and runs where that
//! holds up nobody.
use std::fmt::Write;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify as Signal;

use super::device::Device;
use super::protocol::{ERROR, Request};
use super::timeline::{Drawn, Timeline, words};
use crate::observe::log::Log;
use crate::observe::render;
use crate::observe::report::{Detail, DeviceReport, Wait};
use crate::outputs;
use crate::policy::Notify;
use crate::policy::fault::Order;
use crate::record::entry::End;
use crate::record::{Begins, Header, Journal, Payload};

/// How long a device may take to answer. Its thread works in short slices, so this is already odd.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why devices are not idle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotIdle {
    /// One has work.
    #[error("nd{id} is not idle: {with}; `ctl status` has the details")]
    Busy {
        /// Its routing id.
        id: u8,
        /// The work.
        with: String,
    },
    /// One is not there or does not answer.
    #[error("{0}")]
    NoAnswer(String),
}

/// The devices, and what there is beside them.
pub struct Operator {
    /// All devices.
    pub devices: Vec<Arc<dyn Device>>,
    /// What a time line calls them, in the same order.
    pub drawn: Vec<Drawn>,
    /// What a recording says of each device, in the same order; none where none can be made.
    pub headers: Vec<Option<Header>>,
    /// The time line.
    pub timeline: Arc<Timeline>,
    /// The log; none in tests.
    pub log: Option<Arc<Log>>,
    /// Told when the process is asked to stop.
    pub stop: Signal,
}

impl Operator {
    /// Answers for `devices`, with nothing beside them.
    pub fn bare(devices: Vec<Arc<dyn Device>>) -> Self {
        Self {
            devices,
            drawn: Vec::new(),
            headers: Vec::new(),
            timeline: Arc::new(Timeline::new(crate::observe::timeline::Options::default())),
            log: None,
            stop: Signal::new(),
        }
    }

    /// Carries out a request; `file` came with it. Blocks.
    pub fn answer(&self, request: Request, file: Option<File>) -> String {
        let result = match request {
            Request::Report { detail, json } => return self.report(detail, json),
            Request::Notify { device, notify } => self.notify(device, notify),
            Request::Fault { device, order } => self.fault(device, order),
            Request::Reset { device } => self.reset(device),
            // Whoever waits looks again; see [`super::server`].
            Request::Drain { device, .. } => self.idle(device).map_err(|error| error.to_string()),
            Request::Log { filter } => self.set_log(&filter),
            Request::Stop => {
                self.stop.notify_one();
                Ok("stopping\n".to_owned())
            }
            Request::TimelineStart => file
                .ok_or_else(|| {
                    "no file came with the request; use `ctl timeline start FILE`".to_owned()
                })
                .and_then(|file| self.start_timeline(file)),
            Request::TimelineStop => self.stop_timeline(),
            Request::RecordStart {
                device,
                limit,
                payload,
            } => file
                .ok_or_else(|| {
                    "no file came with the request; use `ctl record start FILE`".to_owned()
                })
                .and_then(|file| self.start_recording(device, file, limit, payload)),
            Request::RecordStop { device } => self.stop_recording(device),
        };
        result.unwrap_or_else(|error| format!("{ERROR}{error}\n"))
    }

    fn one(&self, id: Option<u8>) -> Result<&Arc<dyn Device>, String> {
        let device = match (id, &self.devices[..]) {
            (Some(id), _) => self.devices.iter().find(|device| device.routing_id() == id),
            (None, [only]) => Some(only),
            (None, _) => {
                return Err(format!(
                    "{} devices: say which with --device ID ({})",
                    self.devices.len(),
                    self.ids()
                ));
            }
        };
        device.ok_or_else(|| format!("no device has that routing id: they are {}", self.ids()))
    }

    fn ids(&self) -> String {
        let ids = self.devices.iter().map(|device| device.routing_id());
        ids.map(|id| id.to_string()).collect::<Vec<_>>().join(", ")
    }

    fn notify(&self, id: Option<u8>, notify: Notify) -> Result<String, String> {
        let device = self.one(id)?;
        let id = device.routing_id();
        let len = notify.bytes.len();
        let posted = device.notify(notify, PATIENCE);
        let posted = posted.map_err(|error| format!("nd{id}: {error}"))?;
        Ok(format!(
            "nd{id}: {len} bytes at {:#x} of the ring, head {:#x}\n",
            posted.offset, posted.head
        ))
    }

    fn fault(&self, id: Option<u8>, order: Order) -> Result<String, String> {
        let device = self.one(id)?;
        let id = device.routing_id();
        let answer = device.fault(order, PATIENCE);
        let answer = answer.map_err(|error| format!("nd{id}: {error}"))?;
        Ok(format!("nd{id}:\n{answer}"))
    }

    fn reset(&self, id: Option<u8>) -> Result<String, String> {
        let device = self.one(id)?;
        let id = device.routing_id();
        device
            .reset(PATIENCE)
            .map_err(|error| format!("nd{id}: {error}"))?;
        tracing::info!(device = id, "reset on request");
        Ok(format!(
            "nd{id}: reset; the guest's driver does not know, load it again\n"
        ))
    }

    /// Looks once whether devices are idle; all of them must be at the same time.
    ///
    /// # Errors
    /// Which is not and why, or which does not answer.
    pub fn idle(&self, id: Option<u8>) -> Result<String, NotIdle> {
        let devices = match id {
            Some(_) => vec![self.one(id).map_err(NotIdle::NoAnswer)?],
            None => self.devices.iter().collect(),
        };
        let mut answer = String::new();
        for device in devices {
            let id = device.routing_id();
            let report = device
                .report(Detail::Status, PATIENCE)
                .ok_or_else(|| NotIdle::NoAnswer(format!("nd{id}: {}", super::device::GONE)))?;
            let busy = busy(&report);
            if !busy.is_empty() {
                return Err(NotIdle::Busy {
                    id,
                    with: busy.join("; "),
                });
            }
            // Writing to a string cannot fail.
            let _ = writeln!(answer, "nd{id}: idle");
        }
        Ok(answer)
    }

    fn set_log(&self, filter: &str) -> Result<String, String> {
        let log = self.log.as_ref().ok_or("there is no log")?;
        log.set(filter)?;
        tracing::info!("log filter is now {filter}");
        Ok(format!("log: {filter}\n"))
    }

    fn start_timeline(&self, file: File) -> Result<String, String> {
        outputs::regular(&file)?;
        self.timeline.start(file)?;
        for (device, drawn) in self.devices.iter().zip(&self.drawn) {
            let (timeline, drawn) = (Arc::clone(&self.timeline), drawn.clone());
            let attach = move |observers: &mut _| timeline.attach(&drawn, observers);
            if let Err(error) = device.observers(Box::new(attach), PATIENCE) {
                tracing::warn!(
                    device = device.routing_id(),
                    "not in the time line: {error}"
                );
            }
        }
        Ok(
            "the time line is being written; work that was rung for before is not in it\n"
                .to_owned(),
        )
    }

    fn stop_timeline(&self) -> Result<String, String> {
        let (observers, summary) = self.timeline.stop()?;
        for (id, observer) in observers {
            let device = self.devices.iter().find(|device| device.routing_id() == id);
            if let Some(device) = device {
                // Without effect on a device that is gone.
                let _ = device.observers(
                    Box::new(move |observers| drop(observers.remove(observer))),
                    PATIENCE,
                );
            }
        }
        Ok(format!("time line: {}\n", words(&summary)))
    }

    fn start_recording(
        &self,
        id: Option<u8>,
        file: File,
        limit: u64,
        payload: Payload,
    ) -> Result<String, String> {
        outputs::regular(&file)?;
        let device = self.one(id)?;
        let id = device.routing_id();
        let headers = self.devices.iter().zip(&self.headers);
        let header = headers
            .filter(|(device, _)| device.routing_id() == id)
            .find_map(|(_, header)| header.clone())
            .ok_or_else(|| {
                format!("nd{id}: with --mmap-hbm the guest writes device memory unseen, so that nothing could be replayed")
            })?;
        let header = Header { payload, ..header };
        let mut file = Some(file);
        let mut start = || {
            let file = file.take().ok_or("the file is used already")?;
            // What was in it goes only now that it is certain to be replaced.
            let _ = file.set_len(0);
            Journal::start(file, &header, limit, &format!("of nd{id}"))
                .map_err(|error| format!("the recording cannot be written: {error}"))
        };
        let begins = device
            .record(&mut start, PATIENCE)
            .map_err(|error| format!("nd{id}: {error}"))?;
        tracing::info!(device = id, "recording on request");
        Ok(match begins {
            Begins::Now => format!("nd{id}: recording\n"),
            Begins::WithTheNextClient => format!(
                "nd{id}: a client is connected, whose past a replay would lack: the recording begins when it has left, with the next client\n"
            ),
        })
    }

    fn stop_recording(&self, id: Option<u8>) -> Result<String, String> {
        let device = self.one(id)?;
        let id = device.routing_id();
        let (journal, begun) = device
            .stop_recording(PATIENCE)
            .map_err(|error| format!("nd{id}: {error}"))?;
        let written = match journal.end(End::Asked) {
            Some(Ok(written)) => written,
            Some(Err(error)) => return Err(format!("nd{id}: {error}")),
            None => {
                return Err(format!(
                    "nd{id}: the recording has ended before; the log says why"
                ));
            }
        };
        let ended = match (begun, written.end) {
            (false, _) => {
                ", and empty: the client that was connected when it was asked for never left"
            }
            (true, End::Limit) => ", which ended earlier at its size limit",
            (true, End::Slow) => ", which ended earlier because its disk was too slow",
            (true, End::Asked | End::Stopped) => "",
        };
        Ok(format!("nd{id}: {} bytes recorded{ended}\n", written.bytes))
    }

    fn report(&self, detail: Detail, json: bool) -> String {
        let report = |device: &Arc<dyn Device>| {
            let id = device.routing_id();
            device
                .report(detail, PATIENCE)
                .ok_or_else(|| format!("nd{id}: {}", super::device::GONE))
        };
        let reports: Vec<_> = self.devices.iter().map(report).collect();
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
            (Ok(report), Detail::Status | Detail::Live) => render::status(&report),
            (Ok(report), Detail::Dump) => render::dump(&report),
            (Err(error), _) => format!("{error}\n"),
        };
        reports.into_iter().map(text).collect()
    }
}

fn error_value(error: &str) -> serde_json::Value {
    serde_json::json!({ "error": error })
}

/// Queues with work left; buffers that were rung for ahead are not work.
fn busy(report: &DeviceReport) -> Vec<String> {
    report
        .queues
        .iter()
        .filter(|queue| !matches!(queue.wait, Wait::Nothing | Wait::M2sDoorbell))
        .map(|queue| {
            format!(
                "engine {} queue {} has {} m2s and {} s2m descriptors left",
                queue.engine, queue.queue, queue.m2s.outstanding, queue.s2m.outstanding
            )
        })
        .collect()
}

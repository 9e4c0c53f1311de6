//! Reports in files: written by a thread of their own when a client leaves, and at the end.
//!
//! A device thread must not wait for a disk. It hands over what its client leaves behind; of several such states the last
//! one counts. Each file is written beside its place and then moved there, so that no reader sees half of it.
use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::observe::render;
use crate::observe::report::DeviceReport;
use crate::outputs;

/// Why a directory is no place for reports.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}: {errno}", .path.display())]
pub struct ReportError {
    path: PathBuf,
    what: &'static str,
    #[source]
    errno: Errno,
}

/// The directory, open: the path is not looked up again.
#[derive(Debug)]
pub struct ReportDir {
    directory: OwnedFd,
    path: PathBuf,
}

impl ReportDir {
    /// Opens a directory, and makes it if it is missing; its parent must be there. Writes a file to see that it can.
    ///
    /// # Errors
    /// It cannot be made, opened or written to.
    pub fn open(path: &Path) -> Result<Self, ReportError> {
        let failed = |what| {
            move |errno| ReportError {
                path: path.into(),
                what,
                errno,
            }
        };
        match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("cannot be made")(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(failed("is no directory that can be opened"))?;
        let report = Self {
            directory,
            path: path.into(),
        };
        report
            .write(".probe", &[])
            .and_then(|()| rustix::fs::unlinkat(&report.directory, ".probe", AtFlags::empty()))
            .map_err(failed("no file can be made in it"))?;
        Ok(report)
    }

    /// Makes or replaces a file.
    ///
    /// # Errors
    /// The disk is full, or the directory was taken away.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        let temporary = format!(".{name}.part");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let file = rustix::fs::openat(&self.directory, &temporary, flags, mode)?;
        let written = std::fs::File::from(file).write_all(bytes);
        let moved = match written {
            Ok(()) => rustix::fs::renameat(&self.directory, &temporary, &self.directory, name),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        };
        if moved.is_err() {
            // Best effort: the first error is the one to tell.
            let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        moved
    }
}

impl AsFd for ReportDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

type Render = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// What a device writes besides its status: named files, each with what makes its content.
///
/// ```
/// use neuron_vfio_user::control::report::Parts;
///
/// let mut parts = Parts::new(0);
/// parts.add("weather.txt", || b"fair".to_vec());
/// assert_eq!(parts.names().collect::<Vec<_>>(), ["nd0-weather.txt"]);
/// ```
#[derive(Default)]
pub struct Parts {
    device: u8,
    parts: Vec<(String, Render)>,
}

impl Parts {
    /// None yet, for the device with this routing id.
    pub fn new(device: u8) -> Self {
        Self {
            device,
            parts: Vec::new(),
        }
    }

    /// Adds a file `nd<device>-<name>`. `render` is called by the thread that writes, at any time.
    pub fn add(&mut self, name: &str, render: impl Fn() -> Vec<u8> + Send + Sync + 'static) {
        let name = format!("nd{}-{name}", self.device);
        self.parts.push((name, Box::new(render)));
    }

    /// Names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(name, _)| name.as_str())
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[derive(Default)]
struct Inbox {
    parts: Vec<Arc<Parts>>,
    /// What clients left behind, not yet written.
    left: BTreeMap<u8, Box<DeviceReport>>,
    finished: bool,
}

type Shared = Arc<(Mutex<Inbox>, Condvar)>;

fn lock(shared: &Shared) -> MutexGuard<'_, Inbox> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that writes.
pub struct Reporter {
    shared: Shared,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts it.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(directory: ReportDir) -> std::io::Result<Self> {
        let shared = Shared::default();
        let inbox = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("report".to_owned())
            .spawn(move || work(&directory, &inbox))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Adds what a device writes. Its status is that of the start until a client leaves.
    pub fn add(&self, parts: Parts, start: DeviceReport) {
        let mut inbox = lock(&self.shared);
        inbox.left.insert(parts.device, Box::new(start));
        inbox.parts.push(Arc::new(parts));
        self.shared.1.notify_one();
    }

    /// What a device calls with its state when a client leaves. Never blocks for long.
    pub fn left(&self) -> impl FnMut(DeviceReport) + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move |report| {
            let report = Box::new(report);
            let old = lock(&shared).left.insert(report.routing_id, report);
            shared.1.notify_one();
            drop(old);
        }
    }

    /// Writes everything once more and ends. Call it when the device threads have ended.
    pub fn finish(mut self) {
        lock(&self.shared).finished = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("--report: the thread that writes it died; what is there may be old");
            outputs::lost();
        }
    }
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reporter").finish_non_exhaustive()
    }
}

fn work(directory: &ReportDir, shared: &Shared) {
    loop {
        let mut inbox = shared
            .1
            .wait_while(lock(shared), |inbox| {
                inbox.left.is_empty() && !inbox.finished
            })
            .unwrap_or_else(PoisonError::into_inner);
        let left = std::mem::take(&mut inbox.left);
        let (parts, finished) = (inbox.parts.clone(), inbox.finished);
        drop(inbox);
        let mut failed = None;
        let mut write = |name: &str, bytes: &[u8]| {
            if let Err(errno) = directory.write(name, bytes) {
                failed = Some((name.to_owned(), errno));
            }
        };
        for (device, report) in &left {
            write(&format!("nd{device}-status.json"), &status(report));
            write(
                &format!("nd{device}-dump.txt"),
                render::dump(report).as_bytes(),
            );
        }
        for of_device in parts {
            if finished || left.contains_key(&of_device.device) {
                for (name, render) in &of_device.parts {
                    write(name, &render());
                }
            }
        }
        if let Some((name, errno)) = failed {
            let directory = directory.path.display();
            tracing::error!("--report: {directory}/{name} cannot be written: {errno}");
            outputs::lost();
        }
        if finished {
            return;
        }
    }
}

/// What a part for programs holds.
pub fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    // Fails for no type of ours: keys are strings.
    let value = serde_json::to_value(value).unwrap_or_default();
    format!("{value:#}\n").into_bytes()
}

/// The status, without what only the wire knows.
fn status(report: &DeviceReport) -> Vec<u8> {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("connected");
        object.remove("wire");
    }
    format!("{value:#}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(device: u8, resets: u64) -> DeviceReport {
        let mut report = DeviceReport {
            routing_id: device,
            ..DeviceReport::default()
        };
        report.counters.resets = resets;
        report
    }

    #[test]
    fn every_part_of_every_device_is_there_at_the_end() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("reports");
        let reporter = Reporter::start(ReportDir::open(&path).unwrap()).unwrap();
        let content = Arc::new(Mutex::new(b"first".to_vec()));
        for device in [3, 4] {
            let mut parts = Parts::new(device);
            let content = Arc::clone(&content);
            parts.add("part.txt", move || content.lock().unwrap().clone());
            reporter.add(parts, report(device, 0));
        }
        for resets in 1..50 {
            reporter.left()(report(4, resets));
        }
        *content.lock().unwrap() = b"last".to_vec();
        reporter.finish();
        let mut names: Vec<_> = std::fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "nd3-dump.txt",
                "nd3-part.txt",
                "nd3-status.json",
                "nd4-dump.txt",
                "nd4-part.txt",
                "nd4-status.json"
            ]
        );
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(read("nd3-part.txt"), "last");
        let status: serde_json::Value = serde_json::from_str(&read("nd4-status.json")).unwrap();
        assert_eq!(status["counters"]["resets"], 49);
        assert!(status.get("wire").is_none());
    }

    #[test]
    fn a_place_that_is_none_is_refused_before_anything_runs() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let error = ReportDir::open(&file).unwrap_err().to_string();
        assert!(error.contains("is no directory"), "{error}");
        let error = ReportDir::open(&place.path().join("a/b")).unwrap_err();
        assert!(error.to_string().contains("cannot be made"), "{error}");
    }
}

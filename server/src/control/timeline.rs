//! The time line of this process: at most one at a time, over all devices.
use std::fmt::Write;
use std::fs::File;
use std::sync::{Mutex, PoisonError};

use neuron_protocol::generation::Generation;

use crate::observe::event::{ObserverId, Observers};
use crate::observe::timeline::{Options, Session, Summary};

/// A device that can be drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Routing id.
    pub routing_id: u8,
    /// What the trace calls it.
    pub title: String,
    /// Its architecture.
    pub generation: &'static Generation,
}

impl Drawn {
    /// Adds the session's consumer for this device.
    pub fn attach(&self, session: &Session, observers: &mut Observers) -> ObserverId {
        let observer = session.observer(self.routing_id, self.title.clone(), self.generation);
        observers.add(Box::new(observer))
    }
}

/// The session, and who feeds it.
#[derive(Debug, Default)]
struct Running {
    session: Option<Session>,
    observers: Vec<(u8, ObserverId)>,
}

/// Starts and stops time lines.
#[derive(Debug)]
pub struct Timeline {
    options: Options,
    running: Mutex<Running>,
}

impl Timeline {
    /// None yet; all will be made with `options`.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            running: Mutex::default(),
        }
    }

    /// One that is written to `file` from the start, if there is a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(options: Options, file: Option<File>) -> Result<Self, String> {
        let timeline = Self::new(options);
        if let Some(file) = file {
            timeline.start(file)?;
        }
        Ok(timeline)
    }

    /// Starts one. Devices are attached by [`Self::attach`].
    ///
    /// # Errors
    /// One is running, or the file cannot be written.
    pub fn start(&self, file: File) -> Result<(), String> {
        let mut running = self.lock();
        if running.session.is_some() {
            return Err("a time line is being written already; stop it first".to_owned());
        }
        // What was in it goes only now that it is certain to be replaced. A pipe has nothing.
        let _ = file.set_len(0);
        let session = Session::start(file, self.options)
            .map_err(|error| format!("the time line cannot be written: {error}"))?;
        running.session = Some(session);
        Ok(())
    }

    /// Has a device draw from now on, if a time line is running.
    pub fn attach(&self, drawn: &Drawn, observers: &mut Observers) {
        let mut running = self.lock();
        if let Some(session) = &running.session {
            let id = drawn.attach(session, observers);
            running.observers.push((drawn.routing_id, id));
        }
    }

    /// Stops it: the consumers still attached, and the file's account.
    ///
    /// # Errors
    /// None is running.
    pub fn stop(&self) -> Result<(Vec<(u8, ObserverId)>, Summary), String> {
        let Running { session, observers } = std::mem::take(&mut *self.lock());
        let session = session.ok_or("no time line is being written")?;
        Ok((observers, session.finish()))
    }

    /// How it stands, if one is running.
    pub fn summary(&self) -> Option<Summary> {
        self.lock().session.as_ref().map(Session::summary)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An account in words.
pub fn words(summary: &Summary) -> String {
    let Summary {
        bytes,
        events,
        lost,
        limited,
        error,
    } = summary;
    let mut text = format!("{events} events, {bytes} bytes");
    if *lost > 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, ", {lost} events lost (shown as gaps)");
    }
    if *limited {
        text += ", ended at its size limit";
    }
    if let Some(error) = error {
        let _ = write!(text, ", ended by an error: {error}");
    }
    text
}

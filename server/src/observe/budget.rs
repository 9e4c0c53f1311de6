//! How much of the driver's patience each batch used: from the doorbell that rang it to its marker.
//!
//! The driver computes a wait from the batch's number of descriptors and then polls until a budget is used up
//! ([`neuron_protocol::budget`]). On an emulation platform it stretches that budget ten thousand times and more, which
//! hides what silicon would not forgive. Here every batch is held against silicon's budget as well.
mod books;
mod report;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use neuron_protocol::generation::{Generation, Platform};

use super::event::{Event, Observer};
use books::Books;
pub use report::{BatchReport, BudgetReport, Percent, QueueBudget, Span};

/// The books of one device, which its observer keeps and others read.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Mutex<Books>>);

impl Budget {
    /// Empty books. A batch beyond `limit` of silicon's budget, in model time, is counted and told.
    #[must_use]
    pub fn new(
        generation: &'static Generation,
        platform: Platform,
        limit: Option<Percent>,
    ) -> Self {
        Self(Arc::new(Mutex::new(Books::new(
            generation, platform, limit,
        ))))
    }

    /// What keeps them.
    #[must_use]
    pub fn observer(&self) -> Box<dyn Observer> {
        Box::new(Keeper(self.clone()))
    }

    /// What they say.
    #[must_use]
    pub fn report(&self) -> BudgetReport {
        self.books().report()
    }

    /// Whether a batch was beyond the limit.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.books().exceeded > 0
    }

    /// They are whole after every event, so that a panic elsewhere does not spoil them.
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Keeper(Budget);

impl Observer for Keeper {
    fn event(&mut self, event: &Event) {
        self.0.books().event(event);
    }
}

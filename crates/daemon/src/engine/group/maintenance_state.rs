//! State of a group's scrub between two looks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The maintenance state of a group between two looks.
#[derive(Debug, Default)]
pub(crate) struct Maintenance(Mutex<State>);

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The last job whose end is in the catalogue.
    pub(crate) recorded: u64,
    /// A job, and how many of its findings were logged.
    pub(crate) logged: (u64, usize),
    /// When the place was recorded.
    pub(crate) noted: Option<Instant>,
    /// The maintenance paused the scrub for a rebuild.
    pub(crate) held: bool,
    /// A scrub is running.
    pub(crate) working: bool,
    /// The last scrub failed: none starts automatically before this time.
    pub(crate) not_before_unix_s: u64,
}

impl Maintenance {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the scrub was paused for a rebuild, and resumes automatically.
    pub fn is_held(&self) -> bool {
        self.lock().held
    }

    /// Ends the automatic pause: an operator took control. Returns whether there was one.
    pub fn end_hold(&self) -> bool {
        std::mem::take(&mut self.lock().held)
    }

    /// Whether the end of this job is in the catalogue.
    pub fn has_recorded(&self, job: u64) -> bool {
        self.lock().recorded >= job
    }

    /// Marks the end of this job as recorded.
    pub fn record(&self, job: u64) {
        self.lock().recorded = job;
    }

    /// No scrub starts automatically before this time, because the last one failed; in seconds
    /// since 1970.
    pub fn not_before_unix_s(&self) -> u64 {
        self.lock().not_before_unix_s
    }

    pub(crate) fn is_working(&self) -> bool {
        self.lock().working
    }
}

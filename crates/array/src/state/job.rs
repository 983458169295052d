//! A job and its progress.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use drive::Nanos;

use crate::geometry::StripeGroup;
use crate::state::event::{JobKind, JobState, JobStatus};
use crate::state::findings::Finding;

/// Time between two marks of a job's progress.
pub(crate) const MARK_STEP: Nanos = 1_000_000_000;

/// Marks that are kept. A job's rate is taken from the oldest on: work beside clients comes in
/// bursts, and a single burst says little.
pub(crate) const MARKS: usize = 10;

/// A job and its progress.
pub(crate) struct Job {
    pub id: u64,
    pub kind: JobKind,
    /// It repairs what it finds, where it can.
    pub repairs: bool,
    pub started: Nanos,
    pub done_bytes: Cell<u64>,
    pub total_bytes: Cell<u64>,
    pub ended: Cell<Option<Nanos>>,
    pub state: RefCell<JobState>,
    pub found: Cell<u64>,
    pub repaired: Cell<u64>,
    pub unchecked: Cell<u64>,
    pub findings: RefCell<Vec<Finding>>,
    /// It was asked to end.
    pub canceled: Cell<bool>,
    /// It was asked to pause. A scrub's task ends then, after the work that it has in flight.
    pub held: Cell<bool>,
    /// All stripe groups before this one are done. Scrubs only.
    pub next: Cell<StripeGroup>,
    /// Marks of time and bytes done, the oldest first. Never empty.
    pub(crate) marks: RefCell<VecDeque<(Nanos, u64)>>,
}

impl Job {
    /// Notes that a stripe group is done.
    pub fn advance(&self, now: Nanos, bytes: u64) {
        self.done_bytes.set(self.done_bytes.get() + bytes);
        self.total_bytes.set(self.total_bytes.get().max(self.done_bytes.get()));
        let mut marks = self.marks.borrow_mut();
        if marks.back().is_none_or(|(last, _)| now.saturating_sub(*last) >= MARK_STEP) {
            if marks.len() == MARKS {
                marks.pop_front();
            }
            marks.push_back((now, self.done_bytes.get()));
        }
    }

    /// Bytes per second in the last [`MARKS`] steps. It falls while nothing is done.
    fn rate(&self, now: Nanos) -> u64 {
        let (since, done) = *self.marks.borrow().front().expect("there is a mark");
        let span = self.ended.get().unwrap_or(now).saturating_sub(since);
        let moved = self.done_bytes.get() - done;
        u64::try_from(u128::from(moved) * 1_000_000_000 / u128::from(span.max(1))).unwrap_or(u64::MAX)
    }

    /// Notes how it ended.
    pub fn end(&self, now: Nanos, state: JobState) {
        self.state.replace(state);
        self.ended.set(Some(now));
    }

    /// Goes on after a pause: the rate is taken from here on.
    pub fn go_on(&self, now: Nanos) {
        self.state.replace(JobState::Running);
        self.marks.replace(VecDeque::from([(now, self.done_bytes.get())]));
    }

    pub fn status(&self, now: Nanos) -> JobStatus {
        let state = self.state.borrow().clone();
        let state = if state == JobState::Running && self.held.get() { JobState::Paused } else { state };
        JobStatus {
            id: self.id,
            kind: self.kind,
            done_bytes: self.done_bytes.get(),
            total_bytes: self.total_bytes.get(),
            started: self.started,
            ended: self.ended.get(),
            bytes_per_s: if state == JobState::Paused { 0 } else { self.rate(now) },
            state,
            repairs: self.repairs,
            found: self.found.get(),
            repaired: self.repaired.get(),
            unchecked: self.unchecked.get(),
            findings: self.findings.borrow().clone(),
        }
    }
}

//! Control of a scrub by the operator: pause, resume, stop, and continuation by the next assembly.
//!
//! A pause ends the scrub's task and keeps its position. So a paused scrub costs nothing, and no
//! task has to wake it. The position is the first stripe group whose report has not been noted.
//! Stripe groups after it may have been compared already. They are compared again, and their
//! earlier repairs are not counted.

use std::rc::Rc;

use drive::Env;

use crate::array::{Array, ArrayShard};
use crate::geometry::StripeGroup;
use crate::state::event::{JobKind, JobState};
use crate::state::findings::ScrubMode;
use crate::state::job::Job;

/// Progress of a scrub, for the daemon to keep over a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubProgress {
    /// The reaction to differences: report or repair.
    pub mode: ScrubMode,
    /// Whether it waits for an operator to resume it.
    pub paused: bool,
    /// Offset in the group of the first byte in a stripe group that was not compared yet. The
    /// group's size if there is none.
    pub next_byte: u64,
    /// Bytes of members that were compared.
    pub done_bytes: u64,
    /// Places where data and parity disagreed.
    pub found: u64,
    /// Number of those that were repaired.
    pub repaired: u64,
    /// Ranges that could not be compared.
    pub unchecked: u64,
}

impl Job {
    /// Whether it is paused, and its task has ended.
    pub fn is_parked(&self) -> bool {
        *self.state.borrow() == JobState::Paused
    }

    pub fn park(&self) {
        self.state.replace(JobState::Paused);
    }

    fn mode(&self) -> ScrubMode {
        if self.repairs { ScrubMode::Repair } else { ScrubMode::Report }
    }
}

impl<E: Env> Array<E> {
    /// Continues a scrub that was interrupted, paused or not. Leader only. Returns false if there
    /// is a scrub or a resync.
    pub fn continue_scrub(&self, progress: &ScrubProgress) -> bool {
        self.start_scrub_at(progress.mode, Some(progress))
    }

    /// Progress of the scrub that is under way or paused, and not being stopped. Leader only.
    pub fn scrub_progress(&self) -> Option<ScrubProgress> {
        let job = self.0.open_scrub().filter(|job| !job.canceled.get())?;
        let geometry = &self.0.shared.geometry;
        let next = job.next.get();
        let is_left = next.0 < geometry.stripe_group_count();
        Some(ScrubProgress {
            mode: job.mode(),
            paused: job.held.get(),
            next_byte: if is_left { geometry.offset(next, 0, 0) } else { geometry.capacity() },
            done_bytes: job.done_bytes.get(),
            found: job.found.get(),
            repaired: job.repaired.get(),
            unchecked: job.unchecked.get(),
        })
    }

    /// Pauses the scrub once its operations in flight are done. Leader only. Returns false if none
    /// is running.
    pub fn pause_scrub(&self) -> bool {
        self.0.open_scrub().is_some_and(|job| !job.held.replace(true))
    }

    /// Resumes a paused scrub. Leader only. Returns false if none is paused, or if a resync is
    /// under way. Until the resync has ended, a scrub would mistake stale parity for wrong data.
    pub fn resume_scrub(&self) -> bool {
        let resyncs = |job: &Rc<Job>| job.kind == JobKind::Resync && job.ended.get().is_none();
        if self.0.leader().jobs.borrow().iter().any(resyncs) {
            return false;
        }
        let Some(job) = self.0.open_scrub().filter(|job| job.held.replace(false)) else { return false };
        if job.is_parked() {
            let inner = self.0.clone();
            job.go_on(inner.env.now());
            self.0.env.spawn(async move { inner.scrub(&job, job.mode()).await });
        }
        true
    }

    /// Ends a scrub that is under way or paused. Leader only. Returns false if there is none.
    pub fn stop_scrub(&self) -> bool {
        let Some(job) = self.0.open_scrub() else { return false };
        job.canceled.set(true);
        if job.is_parked() {
            job.end(self.0.env.now(), JobState::Stopped);
        }
        true
    }
}

impl<E: Env> ArrayShard<E> {
    /// The scrub that has not ended.
    fn open_scrub(&self) -> Option<Rc<Job>> {
        let jobs = self.leader().jobs.borrow();
        jobs.iter().find(|job| job.kind == JobKind::Scrub && job.ended.get().is_none()).cloned()
    }

    /// Sets a new scrub to the position and counts of an earlier one.
    pub(crate) fn take_up(&self, job: &Job, from: &ScrubProgress) {
        let geometry = &self.shared.geometry;
        let is_left = from.next_byte < geometry.capacity();
        let next = if is_left {
            geometry.place(from.next_byte).stripe_group
        } else {
            StripeGroup(geometry.stripe_group_count())
        };
        job.next.set(next);
        job.done_bytes.set(from.done_bytes);
        job.total_bytes.set(job.total_bytes.get().max(from.done_bytes));
        job.found.set(from.found);
        job.repaired.set(from.repaired);
        job.unchecked.set(from.unchecked);
        job.held.set(from.paused);
        job.go_on(self.env.now());
        if from.paused {
            job.park();
        }
    }
}

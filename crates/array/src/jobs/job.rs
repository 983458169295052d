//! Background jobs and their progress.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use drive::{Env, Nanos};

use crate::array::Inner;
use crate::geometry::UnitIndex;
use crate::state::event::{JobKind, JobState, JobStatus};
use crate::state::findings::Finding;

/// Stripe groups a job has in flight: enough to keep drives busy, few enough that a client's
/// request finds them free soon.
pub(crate) const UNITS_IN_FLIGHT: usize = 8;

/// Findings that are kept for the report. All of them are counted.
pub(crate) const FINDINGS_MAX: usize = 256;

/// Time between two marks of a job's progress.
const MARK_STEP: Nanos = 1_000_000_000;

/// Marks that are kept. A job's rate is taken from the oldest on: work beside clients comes in
/// bursts, and a single burst says little.
const MARKS: usize = 10;

/// How often a stop checks whether the jobs have ended.
const END_LOOK: Duration = Duration::from_micros(100);

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
    pub next: Cell<UnitIndex>,
    /// Marks of time and bytes done, the oldest first. Never empty.
    marks: RefCell<VecDeque<(Nanos, u64)>>,
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

impl<E: Env> Inner<E> {
    /// Begins a job. `total_bytes` is the amount of its work, as far as that is known.
    pub fn new_job(&self, kind: JobKind, repairs: bool, total_bytes: u64) -> Rc<Job> {
        let leader = self.leader();
        let now = self.env.now();
        let job = Rc::new(Job {
            id: leader.next_job.replace(leader.next_job.get() + 1),
            kind,
            repairs,
            started: now,
            done_bytes: Cell::new(0),
            total_bytes: Cell::new(total_bytes),
            ended: Cell::new(None),
            state: RefCell::new(JobState::Running),
            found: Cell::new(0),
            repaired: Cell::new(0),
            unchecked: Cell::new(0),
            findings: RefCell::default(),
            canceled: Cell::new(false),
            held: Cell::new(false),
            next: Cell::new(UnitIndex(0)),
            marks: RefCell::new(VecDeque::from([(now, 0)])),
        });
        let mut jobs = leader.jobs.borrow_mut();
        jobs.retain(|job| job.ended.get().is_none());
        jobs.push(job.clone());
        job
    }

    /// Returns once no job of a stopped group is at work. A job ends at its next stripe group. A
    /// job past its last one comes to its end, which changes superblocks and logs: nothing may be
    /// written after the group was stopped.
    pub async fn jobs_ended(&self) {
        let Some(leader) = &self.leader else { return };
        // Also waits for a rebuild that is no job yet, or whose turn is yet to come.
        drop(leader.rebuild_lock.enter().await);
        let is_at_work = |job: &Rc<Job>| job.ended.get().is_none() && !job.is_parked();
        while leader.jobs.borrow().iter().any(is_at_work) {
            self.env.sleep(END_LOOK).await;
        }
    }

    /// The first stripe group at or after `from` with an allocated chunk, in one set or in any.
    pub fn next_unit(&self, from: UnitIndex, set: Option<u64>) -> Option<UnitIndex> {
        let geometry = &self.shared.geometry;
        let zones = geometry.zones_per_unit();
        let (mut band, first_set) = (from.0 / geometry.sets, from.0 % geometry.sets);
        let mut zone = band * zones * geometry.sets;
        let mut best: Option<UnitIndex> = None;
        // The chunks of a band (one stripe group of every set) are dealt to the sets in turn. So
        // all of them are looked at before the first stripe group of the band is known.
        while let Some(found) = self.shared.map.next_allocated(zone) {
            let found_band = found / geometry.sets / zones;
            if found_band > band {
                if best.is_some() {
                    return best;
                }
                band = found_band;
            }
            let found_set = found % geometry.sets;
            let unit = UnitIndex(found_band * geometry.sets + found_set);
            let wanted = set.is_none_or(|set| set == found_set)
                && (found_band > from.0 / geometry.sets || found_set >= first_set);
            if wanted && best.is_none_or(|best| unit < best) {
                best = Some(unit);
            }
            zone = found + 1;
        }
        best
    }

    /// Roughly the bytes in allocated chunks on one member of a set, or of any set: the work that a
    /// job has before it.
    pub fn allocated_bytes_per_member(&self) -> u64 {
        self.shared.map.allocated() * self.shared.geometry.zone / self.shared.geometry.sets
    }
}

//! Background jobs and their progress.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use drive::Env;

use crate::array::ArrayShard;
use crate::geometry::StripeGroup;
use crate::state::event::{JobKind, JobState};
use crate::state::job::Job;

/// Stripe groups a job has in flight: enough to keep drives busy, few enough that a client's
/// request finds them free soon.
pub(crate) const STRIPE_GROUPS_IN_FLIGHT: usize = 8;

/// Findings that are kept for the report. All of them are counted.
pub(crate) const FINDINGS_MAX: usize = 256;

/// How often a stop checks whether the jobs have ended.
const END_LOOK: Duration = Duration::from_micros(100);

impl<E: Env> ArrayShard<E> {
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
            next: Cell::new(StripeGroup(0)),
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
    pub fn next_stripe_group(&self, from: StripeGroup, set: Option<u64>) -> Option<StripeGroup> {
        let geometry = &self.shared.geometry;
        let chunks = geometry.chunks_per_stripe_group();
        let (mut band, first_set) = (from.0 / geometry.sets, from.0 % geometry.sets);
        let mut chunk = band * chunks * geometry.sets;
        let mut best: Option<StripeGroup> = None;
        // The chunks of a band (one stripe group of every set) are dealt to the sets in turn. So
        // all of them are looked at before the first stripe group of the band is known.
        while let Some(found) = self.shared.map.next_allocated(chunk) {
            let found_band = found / geometry.sets / chunks;
            if found_band > band {
                if best.is_some() {
                    return best;
                }
                band = found_band;
            }
            let found_set = found % geometry.sets;
            let stripe_group = StripeGroup(found_band * geometry.sets + found_set);
            let wanted = set.is_none_or(|set| set == found_set)
                && (found_band > from.0 / geometry.sets || found_set >= first_set);
            if wanted && best.is_none_or(|best| stripe_group < best) {
                best = Some(stripe_group);
            }
            chunk = found + 1;
        }
        best
    }

    /// Roughly the bytes in allocated chunks on one member of a set, or of any set: the work that a
    /// job has before it.
    pub fn allocated_bytes_per_member(&self) -> u64 {
        self.shared.map.allocated() * self.shared.geometry.chunk_bytes / self.shared.geometry.sets
    }
}

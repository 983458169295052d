//! Discards freed allocation chunks on the drives (TRIM).
//!
//! Guarantees:
//! 1. A chunk is discarded only after its clearing is durable in the allocation map. Otherwise a
//!    crash would bring back a chunk whose strips are gone.
//! 2. A chunk that was written again is not discarded.
//! 3. A member gets one discard for chunks that lie next to each other on it.
//!
//! Steps:
//! 1. Freed chunks are collected for [`TRIM_DELAY`], and the map is made durable.
//! 2. Chunks that lie next to each other on their members become runs.
//! 3. A run is discarded under the locks of all of its stripe groups, one operation for each
//!    member.
//!
//! Example: a 4+2 group with strips of 64 KiB and chunks of 32 KiB. A client discards 1 MiB: 4
//! stripes, which are 4 stripe groups with 2 chunks each. The 8 chunks are one run of 256 KiB on
//! each of the 6 members: 6 discards.
//!
//! Tests: `sim/tests/engine/fast_zeroes.rs` counts the discards.

use std::rc::Rc;
use std::time::Duration;

use drive::{Drive, Env, Sender, join_all, oneshot};

use crate::array::ArrayShard;
use crate::geometry::StripeGroup;
use crate::geometry::ranges::Range;
use crate::state::message::{Op, Request};

/// How long freed chunks are collected before they are discarded on the drives.
const TRIM_DELAY: Duration = Duration::from_millis(50);

/// Most stripe groups of a run. Their locks are held together, so writes to them wait for the
/// discards.
const RUN_STRIPE_GROUPS_MAX: usize = 64;

/// A freed chunk: its stripe group, and its member offsets there.
pub type FreedChunk = (StripeGroup, Range);

impl<E: Env> ArrayShard<E> {
    /// Discards freed chunks on the drives once the change of the map is durable.
    pub fn trim_later(self: &Rc<Self>, freed: impl IntoIterator<Item = FreedChunk>) {
        self.freed.borrow_mut().extend(freed);
        if self.freed.borrow().is_empty() || self.trimming.replace(true) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            loop {
                inner.env.sleep(TRIM_DELAY).await;
                let freed = std::mem::take(&mut *inner.freed.borrow_mut());
                if freed.is_empty() || inner.shared.is_stopped() {
                    inner.trimming.set(false);
                    return;
                }
                if inner.on_leader(Request::Persist).await.is_err() {
                    continue; // Not durable: the drives keep the old bytes, which costs nothing but space.
                }
                for run in inner.runs(freed) {
                    inner.trim_run(run).await;
                }
            }
        });
    }

    /// Sorts chunks into runs: the chunks of a run lie next to each other on the members of a set.
    fn runs(&self, mut freed: Vec<FreedChunk>) -> Vec<Vec<FreedChunk>> {
        let geometry = &self.shared.geometry;
        freed.sort_unstable_by_key(|&(stripe_group, chunk)| {
            (geometry.set(stripe_group), geometry.drive_offset(stripe_group, chunk.start))
        });
        freed.dedup();
        let chunks_max = RUN_STRIPE_GROUPS_MAX * geometry.chunks_per_stripe_group() as usize;
        let mut runs: Vec<Vec<FreedChunk>> = Vec::new();
        for chunk in freed {
            match runs.last_mut() {
                Some(run) if run.len() < chunks_max && self.follows(*run.last().expect("never empty"), chunk) => {
                    run.push(chunk);
                }
                _ => runs.push(vec![chunk]),
            }
        }
        runs
    }

    /// Whether a chunk lies behind another one on the members of their set.
    fn follows(&self, before: FreedChunk, chunk: FreedChunk) -> bool {
        let geometry = &self.shared.geometry;
        geometry.set(before.0) == geometry.set(chunk.0)
            && geometry.drive_offset(before.0, before.1.end) == geometry.drive_offset(chunk.0, chunk.1.start)
    }

    /// Discards the chunks of a run that are still free.
    async fn trim_run(self: &Rc<Self>, run: Vec<FreedChunk>) {
        if self.gate.closed.get() && self.gate_opens().await.is_err() {
            return;
        }
        // From here to the locks without waiting: owners change only when the gate is closed.
        let (run, elsewhere): (Vec<_>, Vec<_>) =
            run.into_iter().partition(|&(stripe_group, _)| self.owner(stripe_group) == self.shard);
        for (stripe_group, chunk) in elsewhere {
            let owner = self.owner(stripe_group);
            let inner = self.clone();
            self.env.spawn(async move {
                // The reply says only that it will be tried.
                let _ = inner.on_shard(owner, Request::Freed(stripe_group, chunk)).await;
            });
        }
        let _locks = self.lock_all(&run).await;
        let is_free = |&(stripe_group, chunk): &FreedChunk| {
            !self.shared.map.get(self.shared.geometry.chunk_index(stripe_group, chunk.start))
        };
        let is_pending = |&(stripe_group, chunk): &FreedChunk| {
            self.shared.map.clear_is_pending(self.shared.geometry.chunk_index(stripe_group, chunk.start))
        };
        // A chunk that was written and freed again meanwhile has to wait for the map once more.
        let (again, free): (Vec<_>, Vec<_>) = run.into_iter().filter(is_free).partition(is_pending);
        self.trim_later(again);
        for run in self.runs(free) {
            self.discard_run(&run).await;
        }
    }

    /// Locks the stripe groups of a run, in order. They stay locked as long as the result lives.
    async fn lock_all(self: &Rc<Self>, run: &[FreedChunk]) -> Vec<Sender<()>> {
        let mut stripe_groups: Vec<StripeGroup> = run.iter().map(|&(stripe_group, _)| stripe_group).collect();
        stripe_groups.dedup();
        let mut locks = Vec::with_capacity(stripe_groups.len());
        let mut locked = Vec::with_capacity(stripe_groups.len());
        for stripe_group in stripe_groups {
            let (lock, unlocked) = oneshot();
            self.trim_locks.borrow_mut().insert(stripe_group, unlocked);
            locks.push(lock);
            locked.push(self.enqueue(stripe_group, Op::Lock));
        }
        join_all(locked).await;
        locks
    }

    /// Keeps the lock of a stripe group until the task that asked for it drops its end.
    pub async fn keep_locked(&self, stripe_group: StripeGroup) {
        let unlocked = self.trim_locks.borrow_mut().remove(&stripe_group);
        if let Some(unlocked) = unlocked {
            // The sender never sends.
            let _ = unlocked.await;
        }
    }

    /// Discards chunks that lie next to each other. The locks of their stripe groups are held.
    async fn discard_run(self: &Rc<Self>, run: &[FreedChunk]) {
        let geometry = &self.shared.geometry;
        let (stripe_group, first) = run[0];
        let offset = geometry.drive_offset(stripe_group, first.start);
        let len = run.len() as u64 * geometry.chunk_bytes;
        let view = self.view(stripe_group, first.start, &[]);
        let drives = view.0.iter().filter_map(|strip| strip.drive.clone()).filter(|drive| drive.info().discards);
        // A drive that cannot discard keeps its space. A drive that is failing shows it at the next
        // write.
        join_all(drives.map(|drive| async move { drive.discard(offset, len).await })).await;
    }
}

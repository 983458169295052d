//! The lock of a stripe group, and the work done under it.
//!
//! Work on a stripe group waits in a queue that one task empties. The task takes all waiting work
//! together. Writes that lie next to each other become one, up to a full stripe. The task starts at
//! the end of the turn in which the first work arrived. So it sees everything that arrived
//! together, and single work waits for nothing.

use std::rc::Rc;

use drive::{Env, join_all};
use format::MemberState;

use crate::array::ArrayShard;
use crate::geometry::{Role, StripeGroup};
use crate::io::plan::Strip;
use crate::io::types::{RowView, StripView, Waiter};
use crate::state::findings::ScrubMode;
use crate::state::message::{Op, Pieces, Reply};
use crate::state::slot::DriveId;

impl<E: Env> ArrayShard<E> {
    /// Queues work. If the stripe group has no task, starts one at the end of the turn.
    pub fn push(self: &Rc<Self>, stripe_group: StripeGroup, op: Op, waiter: Waiter) {
        let mut stripe_groups = self.stripe_groups.borrow_mut();
        if let Some(queue) = stripe_groups.get_mut(stripe_group) {
            queue.waiting.push((op, waiter));
            return;
        }
        stripe_groups.or_default(stripe_group).waiting = vec![(op, waiter)];
        drop(stripe_groups);
        let mut arrived = self.arrived.borrow_mut();
        arrived.push(stripe_group);
        if arrived.len() > 1 {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            inner.env.turn_end().await;
            let arrived = std::mem::take(&mut *inner.arrived.borrow_mut());
            for stripe_group in arrived {
                inner.env.spawn_now(inner.clone().work(stripe_group));
            }
        });
    }

    /// Does the work of a stripe group until none is left.
    async fn work(self: Rc<Self>, stripe_group: StripeGroup) {
        while let Some(batch) = self.take(stripe_group) {
            self.buggify_delay("a batch waits with the lock held").await;
            self.run(stripe_group, batch).await;
        }
    }

    /// Takes everything that waits for the stripe group. If nothing is left, removes the queue, and
    /// the task has to end.
    fn take(&self, stripe_group: StripeGroup) -> Option<Vec<(Op, Waiter)>> {
        let mut stripe_groups = self.stripe_groups.borrow_mut();
        let queue = stripe_groups.get_mut(stripe_group).expect("a queue lives as long as its task");
        if queue.waiting.is_empty() {
            stripe_groups.remove(stripe_group);
            return None;
        }
        Some(std::mem::take(&mut queue.waiting))
    }

    /// Does a batch in order of arrival: consecutive writes as one, consecutive reads together.
    /// Futures that are large and rare are boxed, because this one is part of each stripe group's
    /// task, which is created and moved for nearly every write.
    async fn run(self: &Rc<Self>, stripe_group: StripeGroup, batch: Vec<(Op, Waiter)>) {
        let mut writes: Vec<(Pieces, bool)> = Vec::new();
        let mut writers: Vec<Waiter> = Vec::new();
        let mut reads = Vec::new();
        for (op, waiter) in batch {
            if !matches!(op, Op::Write { .. }) {
                self.finish_writes(stripe_group, &mut writes, &mut writers).await;
            }
            if !matches!(op, Op::Read { .. }) {
                join_all(reads.drain(..)).await;
            }
            if !self.incomplete.is_empty()
                && let Err(error) = Box::pin(self.retry_writes_before(stripe_group, &op)).await
            {
                waiter.send(Err(error));
                continue;
            }
            match op {
                Op::Write { pieces, fua } => {
                    writes.push((pieces, fua));
                    writers.push(waiter);
                }
                Op::Read { role, offset, buf, without } => reads.push(async move {
                    let read = match without {
                        true => self.restore_locked(stripe_group, role, offset, buf).await,
                        false => self.read_locked(stripe_group, role, offset, buf).await,
                    };
                    waiter.send(read.map(Reply::Read));
                }),
                Op::Rebuild { member } => {
                    let done = Box::pin(self.rebuild_stripe_group(stripe_group, member)).await;
                    waiter.send(done.map(|bytes| Reply::Rebuilt { bytes }));
                }
                Op::Scrub { mode } => {
                    let scrubbed = Box::pin(self.scrub_stripe_group(stripe_group, mode)).await;
                    if mode != ScrubMode::Report {
                        // A repair changes content that an absent member has in its old state.
                        self.shared.dirty.note(stripe_group);
                    }
                    waiter.send(scrubbed.map(Reply::Scrubbed));
                }
                Op::Nothing => waiter.send(Ok(Reply::Done)),
                Op::Lock => {
                    waiter.send(Ok(Reply::Done));
                    self.keep_locked(stripe_group).await;
                }
            }
        }
        self.finish_writes(stripe_group, &mut writes, &mut writers).await;
        join_all(reads).await;
    }

    async fn finish_writes(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        writes: &mut Vec<(Pieces, bool)>,
        writers: &mut Vec<Waiter>,
    ) {
        if writes.is_empty() {
            return;
        }
        self.shared.dirty.note(stripe_group);
        let result = self.write_stripe_group(stripe_group, std::mem::take(writes)).await;
        self.shared.dirty.note(stripe_group);
        for writer in writers.drain(..) {
            writer.send(result.clone().map(|()| Reply::Done));
        }
    }

    /// The state of the strips of a stripe. `unreadable` failed to be read in this operation.
    pub fn view(&self, stripe_group: StripeGroup, offset: u64, unreadable: &[Role]) -> RowView<E::Drive> {
        RowView(
            (0..self.shared.geometry.strips()).map(|role| self.look(stripe_group, offset, role, unreadable)).collect(),
        )
    }

    /// Like [`ArrayShard::view`], for one strip.
    pub fn look(&self, stripe_group: StripeGroup, offset: u64, role: Role, unreadable: &[Role]) -> StripView<E::Drive> {
        let shared = &self.shared;
        let member = shared.geometry.member(stripe_group, offset, role);
        let mut slot = shared.slot(member);
        let (usable, drive) = loop {
            let usable = match slot.state {
                MemberState::InSync => true,
                MemberState::Rebuilding => self.is_rebuilt(stripe_group, slot.drive),
                MemberState::Missing | MemberState::Faulty => break (false, None),
            };
            // The mark may have been reset because the rebuild ended. The slot then says so now.
            let now_there = shared.slot(member);
            if now_there == slot {
                break (usable, self.drive(slot.drive));
            }
            slot = now_there;
        };
        let strip = match drive {
            Some(_) if usable && unreadable.contains(&role) => Strip::Unreadable,
            Some(_) if usable => Strip::Good,
            _ => Strip::Lost,
        };
        StripView { strip, member, id: slot.drive, drive }
    }

    /// Whether the stripe group is whole on the drive that is being rebuilt. Exact under the lock.
    /// Elsewhere it may be false for a stripe group that just became whole.
    pub fn is_rebuilt(&self, stripe_group: StripeGroup, drive: DriveId) -> bool {
        stripe_group < self.shared.rebuilt(drive)
            || self.rebuilt_ahead.borrow().contains(&(drive, stripe_group))
            || self.shared.dirty.has_stripe_group(drive, stripe_group)
    }
}

//! The lock of a stripe group, and the work done under it.
//!
//! Work on a stripe group waits in a queue that one task empties. The task takes all waiting work
//! together. Writes that lie next to each other become one, up to a full stripe. The task starts at
//! the end of the turn in which the first work arrived. So it sees everything that arrived
//! together, and single work waits for nothing.

use std::rc::Rc;

use drive::{Env, join_all};
use format::MemberState;

use crate::array::Inner;
use crate::geometry::{Role, UnitIndex};
use crate::io::plan::Strip;
use crate::io::types::{RowView, StripView, Waiter};
use crate::state::findings::ScrubMode;
use crate::state::message::{Op, Outcome, Pieces};
use crate::state::slot::DriveId;

impl<E: Env> Inner<E> {
    /// Queues work. If the stripe group has no task, starts one at the end of the turn.
    pub fn push(self: &Rc<Self>, unit: UnitIndex, op: Op, waiter: Waiter) {
        let mut units = self.units.borrow_mut();
        if let Some(queue) = units.get_mut(unit) {
            queue.waiting.push((op, waiter));
            return;
        }
        units.or_default(unit).waiting = vec![(op, waiter)];
        drop(units);
        let mut arrived = self.arrived.borrow_mut();
        arrived.push(unit);
        if arrived.len() > 1 {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            inner.env.turn_end().await;
            let arrived = std::mem::take(&mut *inner.arrived.borrow_mut());
            for unit in arrived {
                inner.env.spawn_now(inner.clone().work(unit));
            }
        });
    }

    /// Does the work of a stripe group until none is left.
    async fn work(self: Rc<Self>, unit: UnitIndex) {
        while let Some(batch) = self.take(unit) {
            self.buggify_delay("a batch waits with the lock held").await;
            self.run(unit, batch).await;
        }
    }

    /// Takes everything that waits for the stripe group. If nothing is left, removes the queue, and
    /// the task has to end.
    fn take(&self, unit: UnitIndex) -> Option<Vec<(Op, Waiter)>> {
        let mut units = self.units.borrow_mut();
        let queue = units.get_mut(unit).expect("a queue lives as long as its task");
        if queue.waiting.is_empty() {
            units.remove(unit);
            return None;
        }
        Some(std::mem::take(&mut queue.waiting))
    }

    /// Does a batch in order of arrival: consecutive writes as one, consecutive reads together.
    /// Futures that are large and rare are boxed, because this one is part of each stripe group's
    /// task, which is created and moved for nearly every write.
    async fn run(self: &Rc<Self>, unit: UnitIndex, batch: Vec<(Op, Waiter)>) {
        let mut writes: Vec<(Pieces, bool)> = Vec::new();
        let mut writers: Vec<Waiter> = Vec::new();
        let mut reads = Vec::new();
        for (op, waiter) in batch {
            if !matches!(op, Op::Write { .. }) {
                self.finish_writes(unit, &mut writes, &mut writers).await;
            }
            if !matches!(op, Op::Read { .. }) {
                join_all(reads.drain(..)).await;
            }
            if !self.incomplete.is_empty()
                && let Err(error) = Box::pin(self.retry_writes_before(unit, &op)).await
            {
                waiter.send(Err(error));
                continue;
            }
            match op {
                Op::Write { pieces, fua } => {
                    writes.push((pieces, fua));
                    writers.push(waiter);
                }
                Op::Read { role, x, buf, without } => reads.push(async move {
                    let read = match without {
                        true => self.restore_locked(unit, role, x, buf).await,
                        false => self.read_locked(unit, role, x, buf).await,
                    };
                    waiter.send(read.map(Outcome::Read));
                }),
                Op::Rebuild { member } => {
                    let done = Box::pin(self.rebuild_unit(unit, member)).await;
                    waiter.send(done.map(|bytes| Outcome::Rebuilt { bytes }));
                }
                Op::Scrub { mode } => {
                    let scrubbed = Box::pin(self.scrub_unit(unit, mode)).await;
                    if mode != ScrubMode::Report {
                        // A repair changes content that an absent member has in its old state.
                        self.shared.missed.note(unit);
                    }
                    waiter.send(scrubbed.map(Outcome::Scrubbed));
                }
                Op::Nothing => waiter.send(Ok(Outcome::Done)),
                Op::Trim { zone } => {
                    Box::pin(self.trim_zone(unit, zone)).await;
                    waiter.send(Ok(Outcome::Done));
                }
            }
        }
        self.finish_writes(unit, &mut writes, &mut writers).await;
        join_all(reads).await;
    }

    async fn finish_writes(
        self: &Rc<Self>,
        unit: UnitIndex,
        writes: &mut Vec<(Pieces, bool)>,
        writers: &mut Vec<Waiter>,
    ) {
        if writes.is_empty() {
            return;
        }
        self.shared.missed.note(unit);
        let result = self.write_unit(unit, std::mem::take(writes)).await;
        self.shared.missed.note(unit);
        for writer in writers.drain(..) {
            writer.send(result.clone().map(|()| Outcome::Done));
        }
    }

    /// The state of the strips of a stripe. `unreadable` failed to be read in this operation.
    pub fn view(&self, unit: UnitIndex, x: u64, unreadable: &[Role]) -> RowView<E::Drive> {
        RowView((0..self.shared.geometry.strips()).map(|role| self.look(unit, x, role, unreadable)).collect())
    }

    /// Like [`Inner::view`], for one strip.
    pub fn look(&self, unit: UnitIndex, x: u64, role: Role, unreadable: &[Role]) -> StripView<E::Drive> {
        let shared = &self.shared;
        let member = shared.geometry.member(unit, x, role);
        let mut slot = shared.slot(member);
        let (usable, drive) = loop {
            let usable = match slot.state {
                MemberState::InSync => true,
                MemberState::Rebuilding => self.is_rebuilt(unit, slot.drive),
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
    pub fn is_rebuilt(&self, unit: UnitIndex, drive: DriveId) -> bool {
        unit < self.shared.rebuilt(drive)
            || self.rebuilt_ahead.borrow().contains(&(drive, unit))
            || self.shared.missed.has_unit(drive, unit)
    }
}

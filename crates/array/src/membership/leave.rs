//! Members that leave a running group, and the data that was written together with theirs.
//!
//! 1. A member that is leaving is *suspect*: no shard relies on its content, and no record of its
//!    set begins before it is clear whether it leaves ([`crate::log::record`]).
//! 2. The others are flushed: a recovery that finds the member lost must find the rest as it was
//!    acknowledged. No member leaves while others of its set cannot flush, and have to stay.
//! 3. The superblocks say that it left ([`ArrayShard::commit`]).
//! 4. If the log is indeterminate without the member, checkpoint records say that the strips of the
//!    others are new. Not before step 3: until then a power cut may bring the member back in sync,
//!    without the content of its cache, and the log is what repairs it then.
//! 5. All shards learn that it left.

use std::rc::Rc;

use drive::{BlockError, DriveError, Env, join_all};
use format::{MemberState, Role};

use crate::array::ArrayShard;
use crate::drives::retry::{flush_retried, twice};
use crate::geometry::MemberIndex;
use crate::state::cause::{Cause, Failure};
use crate::state::errors::Failed;
use crate::state::event::Event;
use crate::state::leader::GroupState;
use crate::state::message::{Reply, Request};
use crate::state::slot::{DriveId, Slot};

impl<E: Env> ArrayShard<E> {
    /// Marks a member faulty, and gives its slot to a spare if there is one. Returns false if the
    /// group cannot do without it.
    pub async fn fail_in_place(self: &Rc<Self>, member: MemberIndex, drive: DriveId, cause: Cause) -> bool {
        let leader = self.leader();
        let _turn = leader.state_lock.enter().await;
        if self.drop_replacement(drive, cause.clone()).await {
            return true;
        }
        let slot = self.shared.slot(member);
        if slot.drive != drive || !slot.state.takes_writes() {
            return true; // Somebody else saw it fail, and the superblocks say so.
        }
        let mut state = self.state();
        let leaves = self.leave_after_flush(&mut state, Role::Member(member.0), drive, cause.clone()).await;
        if !leaves || self.commit(state).await.is_err() {
            self.shared.clear_suspects();
            (leader.listener)(Event::MemberNeeded { member, drive, cause: self.true_cause(member, drive, cause) });
            return false;
        }
        self.start_repair();
        true
    }

    /// Makes the superblocks say that the recovery after a crash is done: the log goes on under a
    /// new generation. Members that failed meanwhile had no part in the recovery, and leave with
    /// the same superblocks. If earlier superblocks did not say so, they could come back as if they
    /// had taken part.
    ///
    /// # Errors
    /// [`BlockError`] if the superblocks cannot be written, or the group cannot do without those
    /// members.
    pub async fn announce_recovery(self: &Rc<Self>, failed: &[MemberIndex]) -> Result<(), BlockError> {
        let leader = self.leader();
        let _turn = leader.state_lock.enter().await;
        let mut state = GroupState { clean: false, ..self.state() };
        for &member in failed {
            let Slot { drive, .. } = state.slots[usize::from(member.0)];
            if !self.leave(&mut state, Role::Member(member.0), drive, Cause::Recovery) {
                (leader.listener)(Event::MemberNeeded { member, drive, cause: Cause::Recovery });
                let survives = self.shared.geometry.parity_count;
                return Err(BlockError::Lost { lost: survives + 1, survives });
            }
        }
        self.commit(state).await?;
        // A member without this superblock would replay the old log again when it is back.
        let epoch = leader.superblock.borrow().epoch;
        let in_sync = self.shared.slots().filter(|(_, slot)| slot.state == MemberState::InSync);
        let unheld = in_sync.filter(|(_, slot)| !self.holds(slot.drive, epoch)).count();
        let survives = self.shared.geometry.parity_count;
        if unheld > 0 { Err(BlockError::Lost { lost: survives + unheld, survives }) } else { Ok(()) }
    }

    /// Takes a drive out of a state, once the data that was written together with it is durable on
    /// the others. Returns false and leaves the state as it was if the group cannot do without the
    /// drive, now or until those others can flush.
    pub async fn leave_after_flush(
        self: &Rc<Self>,
        state: &mut GroupState,
        role: Role,
        id: DriveId,
        cause: Cause,
    ) -> bool {
        if let Role::Member(index) = role
            && self.put_back(state, MemberIndex(index), id)
        {
            state.events.push(Event::SpareFailed { drive: id, cause });
            return true;
        }
        let before = state.clone();
        if !self.leave(state, role, id, cause) {
            return false;
        }
        let is_flushed = match role {
            Role::Member(index) => self.flush_others(state, MemberIndex(index)).await,
            Role::Spare => true,
        };
        if !is_flushed {
            *state = before;
        }
        is_flushed
    }

    /// Takes a drive out of a state. Returns false if the group cannot do without it.
    fn leave(&self, state: &mut GroupState, role: Role, id: DriveId, cause: Cause) -> bool {
        match role {
            Role::Spare => {
                state.spares.retain(|&spare| spare != id);
                state.events.push(Event::SpareFailed { drive: id, cause });
                true
            }
            Role::Member(index) => {
                let index = usize::from(index);
                let strips = self.shared.geometry.strips();
                let first = index / strips * strips;
                let in_set = &state.slots[first..first + strips];
                let lost = in_set.iter().filter(|slot| slot.state != MemberState::InSync).count();
                let was_in_sync = state.slots[index].state == MemberState::InSync;
                if was_in_sync && lost + 1 > self.shared.geometry.parity_count {
                    return false;
                }
                let (slot, member) = (&mut state.slots[index], MemberIndex(index as u16));
                debug_assert_eq!(slot.drive, id);
                slot.state = MemberState::Faulty;
                state.rebuild = state.rebuild.filter(|rebuild| rebuild.member != member.0);
                let cause = self.true_cause(member, id, cause);
                state.events.push(Event::MemberFailed { member, drive: id, cause });
                true
            }
        }
    }

    /// The true cause: if a member was given up, all of its operations end as if it were gone.
    fn true_cause(&self, member: MemberIndex, drive: DriveId, cause: Cause) -> Cause {
        if self.shared.is_given_up(member, drive) { self.silent() } else { cause }
    }

    /// Flushes the other members before the superblocks say that a member left: a recovery that
    /// finds the member lost must find the rest as it was acknowledged. Members that cannot flush
    /// leave as well. Returns false if the group cannot do without one of those. A member that does
    /// not answer is waited for.
    async fn flush_others(self: &Rc<Self>, state: &mut GroupState, leaving: MemberIndex) -> bool {
        if !self.shared.has_log() {
            return true;
        }
        let set_of = |member: usize| member / self.shared.geometry.strips();
        let mut sets = vec![set_of(usize::from(leaving.0))];
        self.shared.mark_suspect(leaving);
        loop {
            let staying = state.slots.iter().enumerate().filter(|(_, slot)| slot.state == MemberState::InSync);
            let staying: Vec<(usize, DriveId)> = staying.map(|(index, slot)| (index, slot.drive)).collect();
            let flush = |&(_, id): &(usize, DriveId)| {
                let drive = self.drive(id);
                async move {
                    match drive {
                        Some(drive) => twice(async || drive.flush_patiently().await).await,
                        None => Err(DriveError::Gone),
                    }
                }
            };
            let results = join_all(staying.iter().map(flush)).await;
            let (mut left, mut unflushed) = (false, Vec::new());
            for (&(index, id), result) in staying.iter().zip(results) {
                let Err(error) = result else { continue };
                self.shared.count_error(MemberIndex(index as u16), Failed::Other);
                if self.leave(state, Role::Member(index as u16), id, Cause::of(Failure::flush(error))) {
                    self.shared.mark_suspect(MemberIndex(index as u16));
                    sets.push(set_of(index));
                    left = true;
                } else {
                    unflushed.push(set_of(index));
                }
            }
            if unflushed.iter().any(|set| sets.contains(set)) {
                return false;
            }
            if !left {
                return true;
            }
        }
    }

    /// Writes checkpoint records to the others once the superblocks say which members left: the
    /// records that were written together with those need no recovery. Members that cannot make
    /// this durable leave as well, as far as the group can do without them. Returns whether there
    /// are any.
    pub async fn checkpoint_without(self: &Rc<Self>, state: &mut GroupState) -> bool {
        if !self.shared.is_any_suspect() {
            return false;
        }
        self.buggify_delay("superblocks say who left, and no checkpoint record is written").await;
        let uncovered = (0..self.shards).filter(|&shard| self.shared.is_uncovered(shard));
        let mut failed: Vec<(MemberIndex, DriveId, Failure)> = Vec::new();
        for reply in join_all(uncovered.map(|shard| self.on_shard(shard, Request::CheckpointQuietly))).await {
            if let Ok(Reply::Checkpointed { failed: of_shard }) = reply {
                failed.extend(of_shard);
            }
        }
        let mut left = false;
        for (member, drive, failure) in failed {
            let is_in_sync = state.slots[usize::from(member.0)] == Slot { drive, state: MemberState::InSync };
            if is_in_sync && self.leave_after_flush(state, Role::Member(member.0), drive, Cause::of(failure)).await {
                self.shared.count_error(member, Failed::Other);
                left = true;
            }
        }
        left
    }

    /// As [`ArrayShard::flush_and_checkpoint`], but without the members that are leaving, and
    /// without requests to the leader, which waits for this. If members cannot save their checksums
    /// or flush, it writes no checkpoint record and returns them.
    pub async fn checkpoint_quietly(self: &Rc<Self>) -> Vec<(MemberIndex, DriveId, Failure)> {
        let Some(log) = self.log().filter(|log| log.is_uncovered()) else { return Vec::new() };
        let mark = log.flush_begins();
        let saved = self.save_sums(|member| !self.shared.is_suspect(member)).await;
        let mut failed = saved;
        let flush = |(member, slot): (MemberIndex, Slot)| {
            let drive = self.drive(slot.drive);
            async move {
                let flushed = match drive {
                    Some(drive) => flush_retried(&drive).await,
                    None => Err(DriveError::Gone),
                };
                Some((member, slot.drive, Failure::flush(flushed.err()?)))
            }
        };
        let flushed = join_all(self.shared.staying().map(flush)).await;
        failed.extend(flushed.into_iter().flatten());
        if failed.is_empty() {
            // Too few members to hold the checkpoint record are too few for the group: the next
            // request fails.
            let _ = self.try_checkpoint(&log, &mark).await;
        }
        failed
    }
}

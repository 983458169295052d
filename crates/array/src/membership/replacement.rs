//! Replaces a working member without a loss of redundancy at any time.
//!
//! The *replacement* of a member is a drive that its content is copied to. The member stays in
//! sync, and all reads go to it.
//! 1. The replacement is a spare in the superblocks: a crash costs the copy, and nothing else.
//! 2. From then on every write to the member's data region goes to the replacement too, under the
//!    same lock of the stripe group. Flushes, checksums, and the structures of the group go to
//!    both.
//! 3. Once all writes that began before have ended, a job copies the allocated data, one stripe
//!    group after the other, each under its lock. A strip that the member cannot read is computed
//!    from the others.
//! 4. At the end the records of the log are completed and everything is flushed. One epoch of the
//!    superblocks then gives the member's slot to the replacement. An assembly finds either drive,
//!    and both have all data.
//!
//! A replacement that fails is dropped, and the group is as before. If the member fails, the
//! replacement takes its slot as a drive that comes back: copied data counts as whole, except for
//! data that was not flushed by then ([`crate::state::dirty`]).
//!
//! Example: 4+2, member 3 is replaced. A write of 4 KiB to its strip is three drive operations, on
//! member 3, P and Q, and a fourth on the replacement. The tests are
//! `sim/tests/engine/replacement.rs` and the random programs.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drive::{BlockError, Env, Segments, join_all};
use format::MemberState;

use crate::array::ArrayShard;
use crate::drives::handle::Handle;
use crate::geometry::{MemberIndex, StripeGroup};
use crate::jobs::rebuild::Fill;
use crate::membership::JoinError;
use crate::state::cause::Cause;
use crate::state::event::{Event, JobKind, JobState};
use crate::state::job::Job;
use crate::state::leader::GroupState;
use crate::state::message::Request;
use crate::state::shared::Shared;
use crate::state::slot::{DriveId, Slot};

/// How often a copy checks whether the rebuilds that run before it have ended.
const REBUILD_LOOK: Duration = Duration::from_secs(1);

/// Stripe groups that are noted before other tasks get a turn.
const NOTED_AT_ONCE: u64 = 4096;

/// Bits of the member in [`Shared::replacement`]. The other bits are the drive plus one.
const MEMBER_BITS: u32 = 16;

impl Shared {
    /// The member whose content is being copied, and the drive that it is copied to.
    pub(crate) fn replacement(&self) -> Option<(MemberIndex, DriveId)> {
        let packed = self.replacement.load(Ordering::SeqCst);
        let drive = (packed >> MEMBER_BITS).checked_sub(1)?;
        Some((MemberIndex(packed as u16), DriveId(drive as u16)))
    }

    pub(crate) fn set_replacement(&self, replacement: Option<(MemberIndex, DriveId)>) {
        let packed =
            replacement.map_or(0, |(member, drive)| (u32::from(drive.0) + 1) << MEMBER_BITS | u32::from(member.0));
        self.replacement.store(packed, Ordering::SeqCst);
    }

    /// The drive that also gets the writes to `drive` in the member's slot. Also after the
    /// replacement took the slot: a write that began before has the old drive, and must not be
    /// lost.
    pub(crate) fn replacement_of(&self, member: MemberIndex, drive: DriveId) -> Option<DriveId> {
        let (replaced, replacement) = self.replacement()?;
        (replaced == member && replacement != drive).then_some(replacement)
    }

    /// Whether the drive is the replacement of a working member.
    pub(crate) fn is_replacement(&self, drive: DriveId) -> bool {
        let member = self.replacement().filter(|&(_, replacement)| replacement == drive).map(|(member, _)| member);
        member.is_some_and(|member| self.slot(member).drive != drive)
    }

    /// The member whose strips a drive holds: the drive is in its slot, or is the replacement of
    /// the drive there.
    pub(crate) fn held_by(&self, drive: DriveId) -> Option<MemberIndex> {
        let replaced = || self.replacement().filter(|&(_, replacement)| replacement == drive).map(|(member, _)| member);
        self.member_of(drive).or_else(replaced)
    }
}

impl<E: Env> ArrayShard<E> {
    /// The drives with a member's content: the one in its slot, unless it is lost, and its
    /// replacement.
    pub fn drives_of(
        &self,
        (member, slot): (MemberIndex, Slot),
    ) -> impl Iterator<Item = (MemberIndex, DriveId, Handle<E::Drive>)> {
        let own = slot.state.takes_writes().then_some(slot.drive);
        let ids = own.into_iter().chain(own.and_then(|own| self.shared.replacement_of(member, own)));
        ids.filter_map(move |id| Some((member, id, self.drive(id)?)))
    }

    /// Makes an installed drive the replacement of a working member, and begins to copy. Leader
    /// only.
    pub async fn begin_replacement(self: &Rc<Self>, member: MemberIndex, drive: DriveId) -> Result<(), JoinError> {
        let leader = self.leader();
        let _turn = leader.state_lock.enter().await;
        if let Some((other, _)) = self.shared.replacement() {
            return Err(JoinError::Replacing(other.0));
        }
        if self.shared.slot(member).state != MemberState::InSync {
            return Err(JoinError::Busy(member.0));
        }
        let mut state = self.state();
        let is_spare = state.spares.contains(&drive);
        if !is_spare && state.spares.len() >= format::SPARES_MAX {
            return Err(JoinError::TooManySpares(state.spares.len()));
        }
        if self.forget_structures(drive).await.is_err() {
            return Err(JoinError::Block(BlockError::Stopped));
        }
        state.spares.extend((!is_spare).then_some(drive));
        self.commit(state).await?;
        if !leader.spares.borrow().contains(&drive) {
            return Err(JoinError::Block(BlockError::Stopped)); // It did not take its superblock.
        }
        self.shared.welcome_replacement(self.env.now());
        leader.copied.set(StripeGroup(0));
        self.shared.set_replacement(Some((member, drive)));
        let job = self.new_job(JobKind::Replace(member), true, self.allocated_bytes_per_member());
        (leader.listener)(Event::ReplaceStarted { member, drive });
        let inner = self.clone();
        self.env.spawn(async move { inner.replace(&job, member, drive).await });
        Ok(())
    }

    /// Copies a member to its replacement, which then gets the slot.
    async fn replace(self: Rc<Self>, job: &Rc<Job>, member: MemberIndex, drive: DriveId) {
        let result = self.copy_and_switch(job, member, drive).await;
        let listener = &self.leader().listener;
        match result {
            Ok(()) => {
                // Writes that hold the old drive go to both until they have ended.
                self.barrier_everywhere().await;
                self.shared.set_replacement(None);
                job.end(self.env.now(), JobState::Done);
                listener(Event::Replaced { member, drive });
            }
            Err(_) if self.shared.is_stopped() => job.end(self.env.now(), JobState::Stopped),
            Err(error) => {
                let reason = match () {
                    () if self.shared.slot(member).state != MemberState::InSync => "the member failed".to_owned(),
                    () if !self.is_copying(member, drive) => "the new drive left the group".to_owned(),
                    () => error.to_string(),
                };
                if self.is_copying(member, drive) {
                    // It is a regular spare from now on.
                    self.shared.set_replacement(None);
                    self.start_repair();
                }
                job.end(self.env.now(), JobState::Failed(reason.clone()));
                listener(Event::ReplaceStopped { member, drive, reason });
            }
        }
    }

    async fn copy_and_switch(
        self: &Rc<Self>,
        job: &Rc<Job>,
        member: MemberIndex,
        drive: DriveId,
    ) -> Result<(), BlockError> {
        self.barrier_everywhere().await;
        loop {
            // One rebuild or copy at a time. A rebuild restores redundancy, so it goes first.
            let turn = self.leader().rebuild_lock.enter().await;
            if !self.is_rebuild_due() {
                let from = self.leader().copied.get();
                if self.fill_stripe_groups(Fill::Copy, job, (member, drive), from).await? {
                    return self.finish_filling(Fill::Copy, member, drive).await;
                }
            }
            drop(turn);
            self.env.sleep(REBUILD_LOOK).await;
            if !self.is_copying(member, drive) || self.shared.is_stopped() {
                return Err(BlockError::Stopped);
            }
        }
    }

    /// Whether any member is to be rebuilt.
    pub fn is_rebuild_due(&self) -> bool {
        self.shared.slots().any(|(_, slot)| slot.state == MemberState::Rebuilding)
    }

    pub async fn barrier_everywhere(self: &Rc<Self>) {
        // A shard that is torn down has no writes.
        join_all((0..self.shards).map(|shard| self.on_shard(shard, Request::Barrier))).await;
    }

    /// Whether the drive is still the replacement of the member, and the member works.
    pub fn is_copying(&self, member: MemberIndex, drive: DriveId) -> bool {
        let slot = self.shared.slot(member);
        self.shared.replacement() == Some((member, drive)) && slot.state == MemberState::InSync && slot.drive != drive
    }

    /// Drops a replacement that lacks some of its member's content. Call this with the state lock
    /// held. Returns false if the drive is no replacement. Operations that wait for this may be
    /// acknowledged without the drive afterwards.
    pub async fn drop_replacement(self: &Rc<Self>, drive: DriveId, cause: Cause) -> bool {
        if !self.shared.is_replacement(drive) {
            return false;
        }
        // In the superblocks it is just a spare.
        self.shared.set_replacement(None);
        let mut state = self.state();
        state.spares.retain(|&spare| spare != drive);
        state.events.push(Event::SpareFailed { drive, cause });
        // If this fails, it stays a spare until a later change of state removes it.
        let _ = self.commit(state).await;
        true
    }

    /// The value of [`Shared::set_replacement`] for a state that is about to be committed.
    pub fn replacement_in(&self, state: &GroupState) -> Option<(MemberIndex, DriveId)> {
        self.shared.replacement().filter(|&(member, drive)| {
            let has_place = state.slots[usize::from(member.0)] == Slot { drive, state: MemberState::InSync };
            has_place || state.spares.contains(&drive)
        })
    }

    /// Puts the old drive, which has all data, back into a state. For a replacement that was to
    /// take the slot of a working member and did not take its superblock. Returns false if the
    /// drive is no such replacement.
    pub fn put_back(&self, state: &mut GroupState, member: MemberIndex, drive: DriveId) -> bool {
        if !self.is_copying(member, drive) {
            return false;
        }
        state.slots[usize::from(member.0)] = self.shared.slot(member);
        true
    }

    /// Whether the drive is the replacement of a member that has failed since. Notes the stripe
    /// groups that had not been copied as missed.
    pub async fn inherits(&self, member: MemberIndex, drive: DriveId) -> bool {
        if self.shared.replacement() != Some((member, drive)) || !self.shared.dirty.is_known(member) {
            return false;
        }
        let set = u64::from(member.0) / self.shared.geometry.strips() as u64;
        let mut next = self.next_stripe_group(self.leader().copied.get(), Some(set));
        let mut noted = 0;
        while let Some(stripe_group) = next {
            self.shared.dirty.add(member, stripe_group);
            next = self.next_stripe_group(StripeGroup(stripe_group.0 + 1), Some(set));
            noted += 1;
            if noted % NOTED_AT_ONCE == 0 {
                self.env.turn_end().await;
            }
        }
        true
    }

    /// Writes to a member and to its replacement. If the member fails, it is marked faulty and the
    /// superblocks say so before this returns false. If the replacement fails, it is dropped before
    /// this returns.
    pub async fn write_both(
        self: &Rc<Self>,
        member: MemberIndex,
        own: (DriveId, &Handle<E::Drive>),
        replacement: DriveId,
        offset: u64,
        (data, fua): (&Segments, bool),
    ) -> Result<bool, BlockError> {
        let handle = self.drive(replacement);
        let both = [Some(own), handle.as_ref().map(|handle| (replacement, handle))];
        let writes = both.into_iter().flatten();
        let write = |(id, drive)| self.write_one(member, id, drive, offset, data, fua);
        let mut written = join_all(writes.map(write)).await.into_iter();
        let (own, copy) = (written.next().unwrap_or(Ok(false)), written.next().unwrap_or(Ok(false)));
        // The replacement may have taken the slot meanwhile. Then its result counts.
        let has_place = self.shared.slot(member) == Slot { drive: replacement, state: MemberState::InSync };
        if has_place && copy == Ok(true) { copy } else { own }
    }
}

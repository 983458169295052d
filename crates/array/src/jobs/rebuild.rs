//! Rebuild: fills a drive that took a member's slot.
//!
//! A rebuild goes through the stripe groups with allocated chunks, in order. Stripe groups below
//! [`crate::Shared::rebuilt`] are whole on the new drive. The owner of a stripe group also knows of
//! whole ones above that. Each stripe group is rebuilt under its lock:
//! - a write to a stripe group before its turn skips the new drive, and a later write goes there
//!   too;
//! - the first write to a stripe group without allocated chunks goes to the new drive as well, and
//!   makes it whole there. Such stripe groups are skipped.
//!
//! Before the first stripe group is checked, everything that began under the old state has to end
//! (the barrier). Otherwise a first write that skipped the new drive could be missed.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Drive, DriveError, Env, Nanos, Receiver, Segments, join_all, oneshot};
use format::{MemberState, Rebuild};

use crate::array::{Array, ArrayShard, Requester};
use crate::geometry::ranges::Range;
use crate::geometry::{MemberIndex, Role, StripeGroup};
use crate::io::plan::Strip;
use crate::io::types::ReadFailure;
use crate::membership::JoinError;
use crate::state::cause::{Cause, Failure};
use crate::state::event::{Event, JobKind, JobState};
use crate::state::findings::ScrubMode;
use crate::state::job::Job;
use crate::state::leader::{GroupState, Leaves};
use crate::state::message::{AHEAD_MIN, Op, Reply, Request};
use crate::state::slot::{DriveId, Slot};

/// A rebuild that stopped because too little could be read is restarted after this.
const REBUILD_AGAIN: Duration = Duration::from_secs(30);

/// How often the superblocks record the progress of a rebuild. Later work is repeated after a
/// crash.
const CHECKPOINT_NANOS: Nanos = 10_000_000_000;

/// How long spares wait for members that were missing when the group was started. Drives and other
/// machines may come up one after the other, and a member that comes back gets only its dirty
/// regions.
const MISSING_GRACE: Duration = Duration::from_secs(60);

/// How a drive gets the data of its member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// It is in the member's slot, and its strips are computed from the others.
    Rebuild,
    /// It is the replacement of a working member, whose strips are copied.
    Copy,
}

impl<E: Env> ArrayShard<E> {
    /// Puts spares into the slots of lost members, as long as there are spares, and fills them.
    pub fn start_repair(self: &Rc<Self>) {
        let inner = self.clone();
        self.env.spawn(async move {
            if inner.shared.geometry.parity_count == 0 {
                return;
            }
            while !inner.shared.is_stopped() {
                let takes = |state| match state {
                    MemberState::Faulty => true,
                    MemberState::Missing => inner.leader().missing_waited_for.get(),
                    MemberState::InSync | MemberState::Rebuilding => false,
                };
                let lost = inner.shared.slots().find(|(_, slot)| takes(slot.state));
                let Some((member, _)) = lost else { return };
                let Some(spare) = inner.heir(member).or_else(|| inner.fitting_spare()) else { return };
                match inner.take_place(member, spare, true).await {
                    Ok(()) => inner.start_rebuild(member),
                    // The conflict, or the spare that failed, is gone at the next check.
                    Err(_) if inner.leader().spares.borrow().contains(&spare) && inner.is_lost(member) => return,
                    Err(_) => {}
                }
            }
        });
    }

    /// Replaces members that were missing when the group was started by spares, now.
    pub fn replace_missing(self: &Rc<Self>) {
        self.leader().missing_waited_for.set(true);
        self.start_repair();
    }

    /// Like [`ArrayShard::replace_missing`], after the wait for those members.
    fn replace_missing_later(self: &Rc<Self>) {
        if !self.shared.slots().any(|(_, slot)| slot.state == MemberState::Missing) {
            return;
        }
        // Holds no reference to a group that is stopped meanwhile.
        let (inner, env) = (Rc::downgrade(self), self.env.clone());
        self.env.spawn(async move {
            env.sleep(MISSING_GRACE).await;
            if let Some(inner) = inner.upgrade().filter(|inner| !inner.shared.is_stopped()) {
                inner.replace_missing();
            }
        });
    }

    /// The replacement of a member that has failed: it has most of the member's data.
    fn heir(&self, member: MemberIndex) -> Option<DriveId> {
        self.shared.replacement().filter(|&(replaced, _)| replaced == member).map(|(_, drive)| drive)
    }

    /// A spare that can replace a member.
    pub fn fitting_spare(&self) -> Option<DriveId> {
        let is_free = |spare: DriveId| self.shared.replacement().is_none_or(|(_, drive)| drive != spare);
        let fits = |spare: &DriveId| is_free(*spare) && self.drive(*spare).is_some() && self.check_fits(*spare).is_ok();
        self.leader().spares.borrow().iter().copied().find(fits)
    }

    fn is_lost(&self, member: MemberIndex) -> bool {
        !self.shared.slot(member).state.takes_writes()
    }

    pub fn start_rebuild(self: &Rc<Self>, member: MemberIndex) {
        let inner = self.clone();
        self.env.spawn(async move { inner.rebuild(member).await });
    }

    /// Continues the rebuilds that a restart interrupted: first the one with a checkpoint.
    pub fn resume_jobs(self: &Rc<Self>) {
        let checkpoint = self.leader().superblock.borrow().rebuild;
        let mut filling: Vec<(MemberIndex, Slot)> =
            self.shared.slots().filter(|(_, slot)| slot.state == MemberState::Rebuilding).collect();
        let has_checkpoint = |member: MemberIndex| checkpoint.is_some_and(|rebuild| rebuild.member == member.0);
        filling.sort_by_key(|&(member, _)| !has_checkpoint(member));
        for (member, slot) in filling {
            if has_checkpoint(member) {
                // Before the first write: writes to the part that is whole on the drive must go
                // there too.
                self.shared.set_rebuilt(slot.drive, self.checkpoint_of(member));
            }
            self.start_rebuild(member);
        }
        self.start_repair();
        self.replace_missing_later();
    }

    /// By the superblocks, stripe groups below this one are whole on a member that is being filled.
    fn checkpoint_of(&self, member: MemberIndex) -> StripeGroup {
        let geometry = &self.shared.geometry;
        let checkpoint = self.leader().superblock.borrow().rebuild.filter(|rebuild| rebuild.member == member.0);
        let chunks_per_band = geometry.chunks_per_stripe_group() * geometry.sets;
        StripeGroup(checkpoint.map_or(0, |rebuild| rebuild.next_chunk / chunks_per_band * geometry.sets))
    }

    /// The superblocks' entry for a rebuild that has reached this stripe group.
    fn checkpoint_at(&self, member: MemberIndex, stripe_group: StripeGroup) -> Rebuild {
        let geometry = &self.shared.geometry;
        Rebuild {
            member: member.0,
            next_chunk: stripe_group.0 / geometry.sets * geometry.chunks_per_stripe_group() * geometry.sets,
        }
    }

    /// The superblocks' entry for a rebuild when the group is stopped. Everything that is marked as
    /// rebuilt is durable by then.
    pub fn final_checkpoint(&self, slots: &[Slot]) -> Option<Rebuild> {
        let filling = slots.iter().enumerate().filter(|(_, slot)| slot.state == MemberState::Rebuilding);
        let come = filling.map(|(index, slot)| (MemberIndex(index as u16), self.shared.rebuilt(slot.drive)));
        come.filter(|(_, stripe_group)| stripe_group.0 > 0)
            .map(|(member, stripe_group)| self.checkpoint_at(member, stripe_group))
            .next()
    }

    /// Removes a checkpoint of another member. Only the member whose turn it is takes part in
    /// writes, so the data of the other one becomes stale.
    async fn forget_other_checkpoint(self: &Rc<Self>, member: MemberIndex) -> Result<(), BlockError> {
        let _turn = self.leader().state_lock.enter().await;
        let state = self.state();
        if state.rebuild.is_none_or(|rebuild| rebuild.member == member.0) {
            return Ok(());
        }
        self.commit(GroupState { rebuild: None, ..state }).await
    }

    pub async fn take_place(
        self: &Rc<Self>,
        member: MemberIndex,
        drive: DriveId,
        must_be_spare: bool,
    ) -> Result<(), JoinError> {
        let leader = self.leader();
        let is_heir = self.shared.replacement() == Some((member, drive));
        let absence = match is_heir || self.is_back(member, drive).await {
            true => self.shared.dirty.absence(member),
            false => None,
        };
        if absence.is_some() {
            // Writes that began before the member left note what it missed when they end.
            self.barrier_everywhere().await;
        }
        let _turn = leader.state_lock.enter().await;
        let mut state = self.state();
        let is_taken = self.shared.replacement().is_some_and(|(other, heir)| heir == drive && other != member);
        if must_be_spare && (is_taken || !state.spares.contains(&drive)) {
            return Err(JoinError::NotASpare); // Somebody else took it while this waited.
        }
        let slot = &mut state.slots[usize::from(member.0)];
        if slot.state.takes_writes() {
            return Err(JoinError::Busy(member.0));
        }
        let is_known = absence.is_some() && absence == self.shared.dirty.absence(member);
        let is_back = is_known && (self.inherits(member, drive).await || self.is_back(member, drive).await);
        if let Err(failure) = self.forget_structures(drive).await {
            if state.spares.contains(&drive) {
                state.spares.retain(|&spare| spare != drive);
                self.commit(state).await?;
                (leader.listener)(Event::SpareFailed { drive, cause: Cause::Failed(failure) });
            }
            return Err(JoinError::Block(BlockError::Stopped));
        }
        *slot = Slot { drive, state: MemberState::Rebuilding };
        state.spares.retain(|&spare| spare != drive);
        self.commit(state).await?;
        if self.shared.slot(member) != (Slot { drive, state: MemberState::Rebuilding }) {
            return Err(JoinError::Block(BlockError::Stopped)); // It did not take its superblock.
        }
        match is_back {
            true => self.shared.dirty.come_back(member, drive),
            false => self.shared.dirty.forget(member),
        }
        let dirty_bytes = self.dirty_bytes(drive);
        (leader.listener)(Event::RebuildStarted { member, drive, dirty_bytes });
        Ok(())
    }

    /// Erases map, log and catalogue of a drive that was a member before. They could look newer
    /// than those of the other members.
    pub async fn forget_structures(&self, drive: DriveId) -> Result<(), Failure> {
        let drive = self.drive(drive).ok_or_else(|| Failure::write(0, DriveError::Gone))?;
        let layout = &self.leader().layout;
        for region in [layout.map, layout.log, layout.catalogue] {
            let zeroed = drive.write_zeroes(region.offset, region.len).await;
            zeroed.map_err(|error| Failure::write(region.offset, error))?;
        }
        drive.flush().await.map_err(Failure::flush)
    }

    /// Fills a member from its last checkpoint to the end.
    async fn rebuild(self: Rc<Self>, member: MemberIndex) {
        let leader = self.leader();
        let _turn = leader.rebuild_lock.enter().await;
        let slot = self.shared.slot(member);
        if slot.state != MemberState::Rebuilding || self.shared.is_stopped() {
            return;
        }
        if self.forget_other_checkpoint(member).await.is_err() {
            self.rebuild_later(member, slot.drive);
            return;
        }
        let start = self.checkpoint_of(member);
        self.shared.set_rebuilt(slot.drive, start);
        let bytes = self.dirty_bytes(slot.drive).unwrap_or_else(|| self.allocated_bytes_per_member());
        let job = self.new_job(JobKind::Rebuild(member), true, bytes);
        let result = self.rebuild_stripe_groups(&job, member, slot.drive, start).await;
        let result = match result {
            Ok(()) => self.finish_filling(Fill::Rebuild, member, slot.drive).await,
            Err(error) => Err(error),
        };
        // The mark stays. If the rebuild stopped, writes to the stripe groups below it continue, as
        // the checkpoint says.
        let failed = result.as_ref().err().map(ToString::to_string);
        job.end(self.env.now(), failed.map_or(JobState::Done, JobState::Failed));
        match result {
            Ok(()) => {
                (leader.listener)(Event::RebuildFinished { member, drive: slot.drive });
                // Stripes that could not be compared without this member can be compared now.
                if self.shared.is_resync_due() {
                    Array(self.clone(), Requester::Clients).start_scrub(ScrubMode::Resync);
                }
            }
            Err(error) => {
                (leader.listener)(Event::RebuildStopped { member, reason: error.to_string() });
                self.start_repair();
                self.rebuild_later(member, slot.drive);
            }
        }
    }

    /// Retries a rebuild that has stopped: the other members may have been unreachable for a
    /// moment.
    fn rebuild_later(self: &Rc<Self>, member: MemberIndex, drive: DriveId) {
        let inner = self.clone();
        self.env.spawn(async move {
            inner.env.sleep(REBUILD_AGAIN).await;
            let is_filling = inner.shared.slot(member) == Slot { drive, state: MemberState::Rebuilding };
            if is_filling && !inner.shared.is_stopped() {
                inner.start_rebuild(member);
            }
        });
    }

    async fn rebuild_stripe_groups(
        self: &Rc<Self>,
        job: &Rc<Job>,
        member: MemberIndex,
        drive: DriveId,
        start: StripeGroup,
    ) -> Result<(), BlockError> {
        self.barrier_everywhere().await;
        self.fill_stripe_groups(Fill::Rebuild, job, (member, drive), start).await.map(drop)
    }

    /// Fills the drive in a member's slot, or copies to its replacement, from this stripe group on.
    /// Returns false if a copy ended early to let a rebuild run first.
    pub async fn fill_stripe_groups(
        self: &Rc<Self>,
        fill: Fill,
        job: &Rc<Job>,
        (member, drive): (MemberIndex, DriveId),
        start: StripeGroup,
    ) -> Result<bool, BlockError> {
        let set = u64::from(member.0) / self.shared.geometry.strips() as u64;
        let mut under_way: VecDeque<(StripeGroup, Receiver<Result<Reply, BlockError>>)> = VecDeque::new();
        let mut next = Some(start);
        let mut checkpoint = self.env.now();
        loop {
            let (began, users) = (self.env.now(), self.users_begun());
            let gives_way = fill == Fill::Copy && self.is_rebuild_due();
            while !gives_way
                && under_way.len() < self.stripe_groups_in_flight()
                && let Some(dirty) = next.and_then(|next| self.shared.dirty.next(drive, next))
                && let Some(stripe_group) = self.next_stripe_group(dirty, Some(set))
            {
                under_way.push_back((stripe_group, self.dispatch(stripe_group, Op::Rebuild { member })));
                next = Some(StripeGroup(stripe_group.0 + 1));
            }
            let Some((stripe_group, answer)) = under_way.pop_front() else { return Ok(!gives_way) };
            let reply = answer.await.unwrap_or(Err(BlockError::Stopped));
            if !self.goes_on(fill, member, drive) || self.shared.is_stopped() {
                return Err(BlockError::Stopped);
            }
            if let Reply::Rebuilt { bytes } = reply? {
                job.advance(self.env.now(), bytes);
            }
            if fill == Fill::Copy {
                self.leader().copied.set(StripeGroup(stripe_group.0 + 1));
            } else {
                self.shared.set_rebuilt(drive, StripeGroup(stripe_group.0 + 1));
                if self.env.now() - checkpoint > CHECKPOINT_NANOS || self.env.buggify("a checkpoint is due") {
                    self.checkpoint(member, drive, stripe_group).await?;
                    checkpoint = self.env.now();
                }
            }
            self.make_room(began, users).await;
        }
    }

    /// Whether the drive is still the target of a rebuild or copy.
    fn goes_on(&self, fill: Fill, member: MemberIndex, drive: DriveId) -> bool {
        match fill {
            Fill::Rebuild => self.shared.slot(member) == Slot { drive, state: MemberState::Rebuilding },
            Fill::Copy => self.is_copying(member, drive),
        }
    }

    /// Starts work on a stripe group now. The caller can wait for the answer later.
    pub fn dispatch(self: &Rc<Self>, stripe_group: StripeGroup, op: Op) -> Receiver<Result<Reply, BlockError>> {
        let (sender, receiver) = oneshot();
        let inner = self.clone();
        self.env.spawn(async move {
            // The barrier of a stop does not see work that comes after it.
            let stopped = inner.shared.is_stopped();
            sender.send(if stopped { Err(BlockError::Stopped) } else { inner.on_owner(stripe_group, op).await });
        });
        receiver
    }

    /// Records the progress of the rebuild in the superblocks.
    async fn checkpoint(
        self: &Rc<Self>,
        member: MemberIndex,
        drive: DriveId,
        stripe_group: StripeGroup,
    ) -> Result<(), BlockError> {
        self.flush_members().await?;
        let _turn = self.leader().state_lock.enter().await;
        let mut state = self.state();
        if state.slots[usize::from(member.0)] != (Slot { drive, state: MemberState::Rebuilding }) {
            return Err(BlockError::Stopped);
        }
        state.rebuild = Some(self.checkpoint_at(member, stripe_group));
        self.commit(state).await
    }

    /// All data is on the new drive. Writes its copies of map and catalogue, and makes it a regular
    /// member.
    pub async fn finish_filling(
        self: &Rc<Self>,
        fill: Fill,
        member: MemberIndex,
        drive: DriveId,
    ) -> Result<(), BlockError> {
        self.rewrite_map();
        self.persist_map().await?;
        self.save_catalogue(None, Leaves::Older).await?;
        if self.leader().lost_version.get().is_any() {
            self.save_lost(None).await?;
        }
        self.shared.let_intents_wait(true);
        let mut result = self.reclaim_intents().await;
        if result.is_ok() {
            // Records that begin before the superblocks change do not count on the new drive. They
            // have to end and be durable first.
            self.shared.quiesce(true);
            result = self.call_in_sync(fill, member, drive).await;
            self.shared.quiesce(false);
        }
        self.shared.let_intents_wait(false);
        result
    }

    async fn call_in_sync(self: &Rc<Self>, fill: Fill, member: MemberIndex, drive: DriveId) -> Result<(), BlockError> {
        if self.shared.has_log() {
            let replies = join_all((0..self.shards).map(|shard| self.on_shard(shard, Request::CompleteRecords))).await;
            replies.into_iter().try_for_each(|replies| replies.map(drop))?;
            // The member has no part of a record that began while it was leaving, although it was
            // still in sync then. Once it is in sync again, a recovery would expect partial parity
            // that no member has.
            self.forget_logs().await?;
        }
        let _turn = self.leader().state_lock.enter().await;
        let mut state = self.state();
        if !self.goes_on(fill, member, drive) {
            return Err(BlockError::Stopped);
        }
        match fill {
            Fill::Copy => state.spares.retain(|&spare| spare != drive),
            Fill::Rebuild => {
                state.rebuild = None;
                // From the moment any shard sees the new state, all stripe groups have to count as
                // rebuilt.
                self.shared.set_rebuilt(drive, StripeGroup(self.shared.geometry.stripe_group_count()));
            }
        }
        state.slots[usize::from(member.0)] = Slot { drive, state: MemberState::InSync };
        self.commit(state).await?;
        if self.shared.slot(member) != (Slot { drive, state: MemberState::InSync }) {
            return Err(BlockError::Stopped); // It did not take its superblock.
        }
        Ok(())
    }

    /// Computes a member's data of a stripe group and writes it there. Under the lock.
    pub async fn rebuild_stripe_group(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        member: MemberIndex,
    ) -> Result<u64, BlockError> {
        let geometry = &self.shared.geometry;
        let slot = self.shared.slot(member);
        let (target, is_whole) = match slot.state {
            MemberState::Rebuilding => (slot.drive, self.is_rebuilt(stripe_group, slot.drive)),
            MemberState::InSync => (self.shared.replacement_of(member, slot.drive).ok_or(BlockError::Stopped)?, false),
            MemberState::Missing | MemberState::Faulty => return Err(BlockError::Stopped),
        };
        let mut bytes = 0;
        if !is_whole {
            self.shared.dirty.note_restored(stripe_group);
            for row in geometry.row_ranges() {
                for offsets in self.allocated(stripe_group, row).iter() {
                    self.fill_strip(stripe_group, member, target, offsets).await?;
                    bytes += offsets.len();
                }
            }
            self.shared.dirty.note_restored(stripe_group);
            if slot.state == MemberState::Rebuilding {
                self.note_rebuilt(stripe_group, target);
            }
        }
        Ok(bytes)
    }

    /// Bytes of the dirty regions of a returned drive, at most. `None` for others, which are
    /// filled.
    fn dirty_bytes(&self, drive: DriveId) -> Option<u64> {
        self.shared.dirty.count(drive).map(|stripe_groups| stripe_groups * self.shared.geometry.stripe_group_bytes)
    }

    async fn fill_strip(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        member: MemberIndex,
        drive: DriveId,
        offsets: Range,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let survives = geometry.parity_count;
        let role =
            geometry.role(stripe_group, offsets.start, member).expect("the stripe group is one of the member's set");
        let mut unreadable: Vec<Role> = Vec::new();
        let strip = loop {
            let view = self.view(stripe_group, offsets.start, &unreadable);
            // Only if the member itself is being replaced.
            if view.0[role].strip == Strip::Good {
                match self.read_member(&view.0[role], stripe_group, offsets.start, offsets.len() as usize).await {
                    Ok(strip) => break strip,
                    Err(ReadFailure::Unreadable) => unreadable.push(role),
                    Err(ReadFailure::Faulty) => return Err(BlockError::Stopped),
                }
                continue;
            }
            if view.lost() > survives {
                // Other strips may be unreadable in other places.
                if let Some(halves) = offsets.halves().filter(|_| !unreadable.is_empty()) {
                    for half in halves {
                        Box::pin(self.fill_strip(stripe_group, member, drive, half)).await?;
                    }
                    return Ok(());
                }
                return Err(BlockError::Lost { lost: view.lost(), survives });
            }
            let lost: Vec<Role> = (0..view.0.len()).filter(|&role| view.0[role].strip != Strip::Good).collect();
            let decoder = self.decoder(&lost);
            let reads: Vec<(Role, Range)> = decoder.sources().iter().map(|&source| (source, offsets)).collect();
            match self.read_strips(stripe_group, &view, &reads).await {
                Ok(reads) => {
                    let sources: Vec<&[u8]> = reads.iter().map(|(_, _, buf)| &**buf).collect();
                    let mut out: Vec<_> = lost.iter().map(|_| self.env.alloc(offsets.len() as usize)).collect();
                    decoder.reconstruct(&sources, &mut out.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
                    let index = lost.iter().position(|&lost| lost == role).expect("a strip that is there was read");
                    break out.swap_remove(index);
                }
                Err(mut failed) => unreadable.append(&mut failed),
            }
        };
        let target = self.drive(drive).ok_or(BlockError::Stopped)?;
        let offset = geometry.drive_offset(stripe_group, offsets.start);
        let data = Segments::from_iter([strip.freeze()]);
        match self.write_one(member, drive, &target, offset, &data, false).await? {
            true => Ok(()),
            false => Err(BlockError::Stopped),
        }
    }

    /// Notes that the stripe group is whole on the drive that is being rebuilt. Under the lock.
    pub fn note_rebuilt(&self, stripe_group: StripeGroup, drive: DriveId) {
        if self.shared.dirty.count(drive).is_some() {
            self.shared.dirty.got(drive, stripe_group);
            return;
        }
        let mut ahead = self.rebuilt_ahead.borrow_mut();
        if ahead.len() >= self.ahead_limit.get() {
            // Several drives may be waiting to be filled. Each keeps the entries that are still
            // ahead of it.
            let filling = |(_, slot): (MemberIndex, Slot)| slot.state == MemberState::Rebuilding;
            let filling: Vec<DriveId> =
                self.shared.slots().filter(|&pair| filling(pair)).map(|(_, slot)| slot.drive).collect();
            ahead.retain(|&(other, stripe_group)| {
                filling.contains(&other) && stripe_group >= self.shared.rebuilt(other)
            });
            self.ahead_limit.set((2 * ahead.len()).max(AHEAD_MIN));
        }
        ahead.insert((drive, stripe_group));
    }

    /// Waits until all work that is now queued for stripe groups of this shard is done.
    pub async fn barrier(self: &Rc<Self>) {
        let stripe_groups = self.stripe_groups.borrow().stripe_groups();
        join_all(stripe_groups.into_iter().map(|stripe_group| self.enqueue(stripe_group, Op::Nothing))).await;
    }
}

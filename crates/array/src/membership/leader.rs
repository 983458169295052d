//! The leader, shard 0: only this shard changes the group's state on its members.
//!
//! Invariants:
//! 1. The superblocks say that a member is faulty *before* any shard acts on it. Else a crash could
//!    bring back a member that missed acknowledged writes.
//! 2. Before the first write of every assembly, the superblocks say that the group is being written
//!    to, and without which members. Else a member that was disconnected could come back unnoticed
//!    after a crash.
//! 3. A map block is written only after a flush that followed its snapshot. The map blocks, the
//!    catalogue and the list of lost blocks are written to the slot that does not hold the durable
//!    version ([`crate::state::version::Version`]). So a crash leaves one of the two.
//! 4. One copy of a superblock is durable before the other one is touched. The older or damaged
//!    copy is written first, so the newest is always whole.

use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Buf, BufMut, DriveError, Env, join_all};
use format::{
    Catalogue, Features, MapBlock, MemberEntry, MemberState, Role, Superblock, Uuid, catalogue_slot_bytes,
    catalogue_slot_offset, encode_slot, map_slot_offset,
};

use crate::array::ArrayShard;
use crate::drives::handle::Handle;
use crate::drives::retry::write_retried;
use crate::drives::superblock::{read_superblock, write_superblock};
use crate::geometry::MemberIndex;
use crate::state::cause::{Cause, Failure};
use crate::state::errors::Failed;
use crate::state::leader::{DisconnectedMember, GroupState, Leader, Leaves};
use crate::state::map::Snapshot;
use crate::state::slot::{DriveId, Slot};

/// Time until superblocks that could not be written are written again.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(1);

/// Most map blocks that are written with FUA. With more of them a flush at the end is cheaper.
const FUA_BLOCKS_MAX: usize = 4;

/// Most map blocks that are written at the same time. Bounds memory: each is 4 KiB for each member.
const MAP_BLOCKS_AT_ONCE: usize = 64;

impl<E: Env> ArrayShard<E> {
    pub fn leader(&self) -> &Leader {
        self.leader.as_ref().expect("requests of the leader are sent to shard 0")
    }

    /// The state as it is. The caller holds the state lock.
    pub fn state(&self) -> GroupState {
        let slots: Vec<Slot> = self.shared.slots().map(|(_, slot)| slot).collect();
        // A rebuild checkpoint is dropped if its drive did not come back: another drive starts from
        // the beginning.
        let rebuild = self.leader().superblock.borrow().rebuild;
        let rebuild = rebuild.filter(|rebuild| slots[usize::from(rebuild.member)].state == MemberState::Rebuilding);
        let spares = self.leader().spares.borrow().clone();
        GroupState { slots, spares, clean: self.shared.is_clean(), rebuild, events: Vec::new() }
    }

    /// Writes a state to the superblocks of all members and spares, then makes it visible to all
    /// shards. A drive that does not take its superblock leaves the group. The first time in a run,
    /// writes it twice. The caller holds the state lock.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`] if the array uses features that forbid writing,
    /// [`BlockError::Lost`] if no member took it.
    pub async fn commit(self: &Rc<Self>, mut state: GroupState) -> Result<(), BlockError> {
        if self.leader().superblock.borrow().is_read_only() {
            return Err(BlockError::ReadOnly { reason: "the array uses features this program does not know" });
        }
        let mut left_at_all = false;
        loop {
            let superblock = self.superblock_of(&state);
            self.shared.map.warm().iter().for_each(|warm| warm.expect_epoch(superblock.epoch));
            let members = state.slots.iter().enumerate().filter_map(|(index, slot)| {
                slot.state.takes_writes().then_some((Role::Member(index as u16), slot.drive))
            });
            let spares = state.spares.iter().map(|&drive| (Role::Spare, drive));
            let targets: Vec<(Role, DriveId)> = members.chain(spares).collect();
            let write = |&(role, id): &(Role, DriveId)| {
                let own = Superblock { role, drive: self.identity(id), ..superblock.clone() };
                let drive = self.drive(id);
                async move {
                    match drive {
                        Some(drive) => write_superblock(&drive, &own).await,
                        None => Err(Failure::write(0, DriveError::Gone)),
                    }
                }
            };
            let results = join_all(targets.iter().map(write)).await;
            self.buggify_delay("superblocks are written, and nobody knows").await;
            let epoch = superblock.epoch;
            self.leader().superblock.replace(superblock);
            if results.iter().any(Result::is_ok) {
                // Drives that did not take it are about to leave.
                self.shared.map.warm().iter().for_each(|warm| warm.found_epoch(epoch));
            }
            let taken = targets.iter().zip(&results).filter(|(_, result)| result.is_ok());
            self.leader().held.borrow_mut().extend(taken.map(|((_, drive), _)| (*drive, epoch)));
            let failed = targets.into_iter().zip(results).filter_map(|(target, result)| Some((target, result.err()?)));
            let mut left = false;
            for ((role, id), failure) in failed {
                left |= self.leave_after_flush(&mut state, role, id, Cause::of(failure)).await;
            }
            left = left || self.checkpoint_without(&mut state).await;
            left_at_all |= left;
            if !left {
                if self.is_first_held(&state) {
                    continue;
                }
                if state
                    .slots
                    .iter()
                    .filter(|slot| slot.state == MemberState::InSync)
                    .all(|slot| !self.holds(slot.drive, epoch))
                {
                    // All of them may be back in a moment. They do not know this state then, or
                    // only some of them do.
                    self.shared.clear_suspects();
                    self.mark_dirty_again();
                    let survives = self.shared.geometry.parity_count;
                    return Err(BlockError::Lost { lost: self.shared.geometry.strips(), survives });
                }
                // Repairs that were due while no superblocks could be written have not been
                // started.
                let repair = left_at_all || self.shared.has_superblock_mismatch();
                self.publish(state);
                if repair {
                    self.start_repair();
                }
                return Ok(());
            }
        }
    }

    /// Whether a drive has the superblock of an epoch.
    pub fn holds(&self, drive: DriveId, epoch: u64) -> bool {
        self.leader().held.borrow().get(&drive) == Some(&epoch)
    }

    fn publish(&self, state: GroupState) {
        self.shared.set_replacement(self.replacement_in(&state));
        for (index, slot) in state.slots.iter().enumerate() {
            let member = MemberIndex(index as u16);
            let before = self.shared.slot(member);
            self.shared.set_slot(member, *slot);
            self.note_absence(member, before, slot.state);
        }
        *self.leader().spares.borrow_mut() = state.spares;
        self.shared.clear_suspects();
        self.shared.set_clean(state.clean);
        self.shared.set_superblock_mismatch(false);
        if !state.clean {
            self.shared.set_marked_dirty(true);
        }
        state.events.into_iter().for_each(|events| (self.leader().listener)(events));
    }

    /// Begins or ends tracking the dirty regions of a member, now that all shards see its new
    /// state.
    fn note_absence(&self, member: MemberIndex, before: Slot, now: MemberState) {
        let dirty = &self.shared.dirty;
        let was_whole = before.state == MemberState::InSync || dirty.count(before.drive).is_some();
        match now {
            MemberState::Faulty if before.state == MemberState::Faulty => {}
            MemberState::Faulty if was_whole => {
                let held = self.leader().held.borrow().get(&before.drive).copied();
                let disconnected = held.map(|epoch| DisconnectedMember { uuid: self.identity(before.drive), epoch });
                dirty.leave(member);
                self.leader().disconnected.borrow_mut().insert(member.0, disconnected);
            }
            MemberState::Faulty | MemberState::InSync => dirty.forget(member),
            // The dirty regions of a drive that takes the slot are used or dropped by its rebuild.
            MemberState::Rebuilding | MemberState::Missing => {}
        }
    }

    /// Whether the drive is the one that left the member's slot, untouched since, and its dirty
    /// regions are known.
    pub async fn is_back(&self, member: MemberIndex, drive: DriveId) -> bool {
        let disconnected = self.leader().disconnected.borrow().get(&member.0).copied().flatten();
        let (true, Some(disconnected), Some(drive)) =
            (self.shared.dirty.is_known(member), disconnected, self.drive(drive))
        else {
            return false;
        };
        // A machine that runs the drive elsewhere, and writes, writes a higher epoch first.
        let own = read_superblock(&drive).await;
        own.is_some_and(|own| {
            own.array == self.shared.array
                && own.drive == disconnected.uuid
                && own.role == Role::Member(member.0)
                && own.epoch == disconnected.epoch
        })
    }

    /// The highest epoch that all members in sync have reached in this run. 0 if there is none.
    fn held_by_all(&self, state: &GroupState) -> u64 {
        let leader = self.leader();
        let held = leader.held.borrow();
        let in_sync = state.slots.iter().filter(|slot| slot.state == MemberState::InSync);
        let least = in_sync.map(|slot| held.get(&slot.drive).copied().unwrap_or(0)).min().unwrap_or(0);
        if least > leader.first_epoch { least } else { 0 }
    }

    /// Whether the run's first superblocks are on all members in sync, and no superblock says so
    /// yet. Then they are written once more before the run writes data: from then on, a copy of a
    /// member from before the run is noticed.
    fn is_first_held(&self, state: &GroupState) -> bool {
        let held = self.leader().superblock.borrow().held_epoch;
        held <= self.leader().first_epoch && self.held_by_all(state) > 0
    }

    fn superblock_of(&self, state: &GroupState) -> Superblock {
        let mut superblock = self.leader().superblock.borrow().clone();
        superblock.epoch += 1;
        superblock.held_epoch = superblock.held_epoch.max(self.held_by_all(state));
        superblock.clean = state.clean;
        superblock.rebuild = state.rebuild;
        for (entry, slot) in superblock.members.iter_mut().zip(&state.slots) {
            entry.state = slot.state;
            if let Some(uuid) = self.leader().identities.borrow().get(&slot.drive)
                && slot.state != MemberState::Missing
            {
                entry.uuid = *uuid;
            }
        }
        superblock.spares = state.spares.iter().map(|&drive| self.identity(drive)).collect();
        // A failed drive may be used again, in another slot or as a spare. Its old slot forgets it
        // then.
        let live = superblock.members.iter().filter(|entry| entry.state.takes_writes()).map(|entry| entry.uuid);
        let mut in_use: Vec<Uuid> = live.chain(superblock.spares.iter().copied()).collect();
        let absent = self.leader().absent_spares.iter().filter(|spare| !in_use.contains(spare));
        let room = format::SPARES_MAX.saturating_sub(superblock.spares.len());
        superblock.spares.extend(absent.copied().take(room).collect::<Vec<_>>());
        in_use.extend_from_slice(&superblock.spares);
        for entry in &mut superblock.members {
            // The slot may have forgotten it already, with superblocks whose commit failed.
            let is_forgotten = entry.uuid.is_nil();
            if !entry.state.takes_writes() && (is_forgotten || in_use.contains(&entry.uuid)) {
                *entry = MemberEntry { uuid: Uuid::NIL, state: MemberState::Missing };
            }
        }
        superblock
    }

    fn identity(&self, drive: DriveId) -> Uuid {
        *self.leader().identities.borrow().get(&drive).expect("every installed drive has an identity")
    }

    /// Makes the superblocks say that the group is being written to.
    pub async fn mark_dirty(self: &Rc<Self>) -> Result<(), BlockError> {
        let _turn = self.leader().state_lock.enter().await;
        if self.shared.is_marked_dirty() {
            return Ok(());
        }
        self.commit(GroupState { clean: false, ..self.state() }).await
    }

    /// Handles a superblock mismatch: a commit failed, but some drives may have taken its
    /// superblocks. Newer ones say what is true before anything else is acknowledged, and in any
    /// case as soon as that works.
    fn mark_dirty_again(self: &Rc<Self>) {
        self.shared.set_marked_dirty(false);
        if self.shared.set_superblock_mismatch(true) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            while inner.shared.has_superblock_mismatch() {
                inner.env.sleep(ANNOUNCE_AGAIN).await;
                let _turn = inner.leader().state_lock.enter().await;
                if inner.shared.is_stopped() {
                    return;
                }
                if inner.shared.has_superblock_mismatch() {
                    // After a failure the loop tries again.
                    let _ = inner.commit(GroupState { clean: false, ..inner.state() }).await;
                }
            }
        });
    }

    /// Makes the allocation map durable, and all data it stands for: every write that completed
    /// before.
    pub async fn persist_map(self: &Rc<Self>) -> Result<(), BlockError> {
        let leader = self.leader();
        let _turn = leader.map_lock.enter().await;
        let snapshots = self.shared.map.snapshot();
        let result = self.write_snapshots(&snapshots).await;
        for snapshot in &snapshots {
            match result {
                Ok(()) => self.shared.map.persisted(snapshot),
                Err(_) => self.shared.map.retry(snapshot.block),
            }
        }
        result
    }

    async fn write_snapshots(self: &Rc<Self>, snapshots: &[Snapshot]) -> Result<(), BlockError> {
        self.flush_members().await?;
        self.buggify_delay("members are flushed, and the map is not written").await;
        if snapshots.is_empty() {
            return Ok(());
        }
        let fua = snapshots.len() <= FUA_BLOCKS_MAX;
        // Blocks have slots of their own, so their order does not matter.
        for together in snapshots.chunks(MAP_BLOCKS_AT_ONCE) {
            let writes = together.iter().map(|snapshot| self.write_snapshot(snapshot, fua));
            join_all(writes).await.into_iter().collect::<Result<(), BlockError>>()?;
        }
        if !fua {
            self.flush_members().await?;
        }
        let mut versions = self.leader().map_versions.borrow_mut();
        snapshots.iter().for_each(|snapshot| versions[snapshot.block as usize].end());
        Ok(())
    }

    async fn write_snapshot(self: &Rc<Self>, snapshot: &Snapshot, fua: bool) -> Result<(), BlockError> {
        let sequence = self.leader().map_versions.borrow_mut()[snapshot.block as usize].begin();
        let block = MapBlock { index: snapshot.block, sequence, bits: *snapshot.bits };
        let bytes = BufMut::copy_of(&block.encode(&self.shared.array)).freeze();
        let offset = map_slot_offset(&self.leader().layout, snapshot.block, sequence % 2);
        self.write_everywhere(offset, bytes, fua).await
    }

    /// Writes the same bytes to every member and replacement. Those that cannot take them leave the
    /// group.
    pub async fn write_everywhere(self: &Rc<Self>, offset: u64, bytes: Buf, fua: bool) -> Result<(), BlockError> {
        let live = self.shared.slots().flat_map(|pair| self.drives_of(pair));
        let write = |(member, id, drive): (MemberIndex, DriveId, Handle<E::Drive>)| {
            let bytes = bytes.clone();
            async move {
                match write_retried(&drive, offset, bytes, fua).await {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        self.count_error(member, id, Failed::Write);
                        self.fail_or_refuse(member, id, Failure::write(offset, error)).await
                    }
                }
            }
        };
        join_all(live.map(write)).await.into_iter().collect()
    }

    /// Marks all blocks of the map that were ever written as dirty, for a member without copies of
    /// them.
    pub fn rewrite_map(&self) {
        for (block, version) in self.leader().map_versions.borrow().iter().enumerate() {
            if version.is_any() {
                self.shared.map.mark_dirty(block as u64);
            }
        }
    }

    /// Writes a new catalogue to every member, durably, and makes it the current one. `None` writes
    /// the current one again. `leaves` says which older bytes stay in the slot behind it.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if it does not fit its region; then nothing has changed.
    pub async fn save_catalogue(
        self: &Rc<Self>,
        catalogue: Option<Catalogue>,
        leaves: Leaves,
    ) -> Result<(), BlockError> {
        let leader = self.leader();
        let _turn = leader.catalogue_lock.enter().await;
        let catalogue = catalogue.unwrap_or_else(|| leader.catalogue.borrow().clone());
        let mut version = leader.catalogue_version.get();
        let sequence = version.begin();
        let slot_bytes = catalogue_slot_bytes(&leader.layout);
        let bytes = encode_slot(&catalogue, &self.shared.array, sequence, slot_bytes);
        let mut bytes = bytes.map_err(|_| BlockError::NoSpace)?;
        if leaves == Leaves::Nothing {
            bytes.resize(slot_bytes as usize, 0);
        }
        let bytes = BufMut::copy_of(&bytes).freeze();
        self.announce_catalogue(catalogue.version()).await?;
        leader.catalogue_version.set(version);
        self.write_everywhere(catalogue_slot_offset(&leader.layout, sequence % 2), bytes, false).await?;
        self.flush_members().await?;
        version.end();
        leader.catalogue_version.set(version);
        leader.catalogue.replace(catalogue);
        Ok(())
    }
}

impl<E: Env> ArrayShard<E> {
    /// Makes the superblocks say that the catalogue is not for older readers, before there is such
    /// a catalogue.
    async fn announce_catalogue(self: &Rc<Self>, version: u32) -> Result<(), BlockError> {
        let needed = match version {
            1 => return Ok(()),
            2 => Features::CATALOGUE_2,
            _ => Features::CATALOGUE_2 | Features::THIN,
        };
        let leader = self.leader();
        let _turn = leader.state_lock.enter().await;
        let before = leader.superblock.borrow().features.incompatible;
        if before & needed == needed {
            return Ok(());
        }
        leader.superblock.borrow_mut().features.incompatible = before | needed;
        let result = self.commit(self.state()).await;
        if result.is_err() {
            leader.superblock.borrow_mut().features.incompatible = before;
        }
        result
    }
}

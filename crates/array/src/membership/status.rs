//! Status and events of a group.

use drive::{BlockError, Env};
use format::{Catalogue, MemberState};

use crate::array::{Array, ArrayShard};
use crate::geometry::MemberIndex;
use crate::state::event::{GroupStatus, MemberStatus, ReadLatency};
use crate::state::leader::Leaves;
use crate::state::slot::{DriveId, Slot};

impl<E: Env> Array<E> {
    /// The status of the group. Leader only.
    pub fn status(&self) -> GroupStatus {
        let (inner, leader) = (&self.0, self.0.leader());
        let superblock = leader.superblock.borrow().clone();
        let geometry = &inner.shared.geometry;
        let member = |(member, slot): (MemberIndex, Slot)| MemberStatus {
            member,
            drive: Some(slot.drive).filter(|&drive| inner.drive(drive).is_some()),
            uuid: superblock.members[usize::from(member.0)].uuid,
            state: slot.state,
            errors: inner.shared.errors(member),
            slow: inner.is_slow(slot.drive),
            read_latency: inner.read_latency(member, slot.drive),
            damaged: inner.shared.damaged(member),
        };
        GroupStatus {
            members: inner.shared.slots().map(member).collect(),
            spares: leader.spares.borrow().clone(),
            replacement: inner.shared.replacement().filter(|&(_, drive)| inner.shared.is_replacement(drive)),
            allocated_bytes: inner.shared.map.allocated() * geometry.chunk_bytes * geometry.data as u64,
            capacity_bytes: geometry.capacity(),
            lost: self.0.shared.lost.ranges(),
            jobs: leader.jobs.borrow().iter().map(|job| job.status(inner.env.now())).collect(),
            owners: inner.owners.get(),
            superblock,
        }
    }

    /// Whether any member is missing or lacks some of its data, or blocks were lost in a crash and
    /// not written since. May be called on any shard.
    pub fn is_degraded(&self) -> bool {
        let shared = &self.0.shared;
        shared.slots().any(|(_, slot)| slot.state != MemberState::InSync) || !shared.lost.is_empty()
    }

    /// Bytes of a range that are in allocated chunks. Yields to other tasks while it counts. If the
    /// group is stopped meanwhile, returns the count so far.
    ///
    /// # Panics
    /// If the range reaches past the end of the group.
    pub async fn used_bytes(&self, offset: u64, len: u64) -> u64 {
        let (mut at, end, mut used) = (offset, offset + len, 0);
        while at < end {
            let extents = match self.extents(at, end - at) {
                Err(BlockError::Stopped) => return used,
                extents => extents.unwrap_or_else(|error| panic!("{offset}+{len}: {error}")),
            };
            for extent in extents {
                used += if extent.allocated { extent.len } else { 0 };
                at += extent.len;
            }
            self.0.env.turn_end().await;
        }
        used
    }

    /// The volumes and exports of the group. Leader only.
    pub fn catalogue(&self) -> Catalogue {
        self.0.leader().catalogue.borrow().clone()
    }

    /// Replaces the volumes and exports of the group, durably. Leader only. The caller must make
    /// one change at a time.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if they do not fit on the members; other errors as for writes. The
    /// old catalogue stays.
    ///
    /// # Panics
    /// If the catalogue breaks its invariants.
    pub async fn set_catalogue(&self, catalogue: Catalogue) -> Result<(), BlockError> {
        if self.0.shared.is_stopped() {
            return Err(BlockError::Stopped);
        }
        let inner = self.0.clone();
        self.0.run_detached(async move { inner.save_catalogue(Some(catalogue), Leaves::Older).await }).await
    }

    /// Like [`Array::set_catalogue`], and leaves nothing of earlier catalogues on the members. A
    /// secret that was removed is then gone from them.
    ///
    /// # Errors
    /// As for [`Array::set_catalogue`].
    pub async fn replace_catalogue(&self, catalogue: Catalogue) -> Result<(), BlockError> {
        if self.0.shared.is_stopped() {
            return Err(BlockError::Stopped);
        }
        let inner = self.0.clone();
        self.0
            .run_detached(async move {
                for _ in 0..format::CATALOGUE_SLOTS {
                    inner.save_catalogue(Some(catalogue.clone()), Leaves::Nothing).await?;
                }
                Ok(())
            })
            .await
    }
}

impl<E: Env> ArrayShard<E> {
    fn read_latency(&self, member: MemberIndex, drive: DriveId) -> Option<ReadLatency> {
        let figures = self.shared.read_figures(member, drive);
        Some(ReadLatency { p50: figures.quantile(500)?, p99: figures.quantile(990)? })
    }
}

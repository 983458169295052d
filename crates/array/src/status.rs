//! What a group tells about itself.

use drive::{BlockError, Env, Nanos};
use format::{Catalogue, MemberState, Superblock, Uuid};

use crate::array::{Array, Inner};
use crate::cause::{Cause, Failure, Flaw};
use crate::errors::MemberErrors;
use crate::geometry::MemberIndex;
use crate::leader::Leaves;
use crate::ownership::Owners;
use crate::scrub::Finding;
use crate::shared::{DriveId, Slot};

/// Something happened to a drive or a job. Told once, when it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member failed or was taken out, and the group goes on without it.
    MemberFailed {
        /// Its place.
        member: MemberIndex,
        /// The drive that was there.
        drive: DriveId,
        /// Why.
        cause: Cause,
    },
    /// A member failed an operation, but the group cannot do without it: it stays, and that
    /// operation failed.
    MemberNeeded {
        /// Its place.
        member: MemberIndex,
        /// The drive there.
        drive: DriveId,
        /// Why it should have left.
        cause: Cause,
    },
    /// A member's reads have been far slower than the others' again and again. It stays. Told once,
    /// until it has been well for a minute.
    MemberSlow {
        /// Its place.
        member: MemberIndex,
        /// The drive there.
        drive: DriveId,
    },
    /// A member that stayed slow is taken out of service for a spare, as
    /// [`crate::Settings::retire_slow`] asks. [`Event::MemberFailed`] and [`Event::RebuildStarted`]
    /// follow.
    MemberRetired {
        /// Its place.
        member: MemberIndex,
        /// The drive that was there.
        drive: DriveId,
    },
    /// A spare failed and is a spare no more.
    SpareFailed {
        /// The drive.
        drive: DriveId,
        /// Why.
        cause: Cause,
    },
    /// An operation on a member failed, and is tried again. Told each time.
    Retried {
        /// Its place.
        member: MemberIndex,
        /// The drive there.
        drive: DriveId,
        /// What failed.
        failure: Failure,
    },
    /// Bytes of a member are damaged, or cannot be read: they are computed from the other members.
    /// Told each time.
    BytesFlawed {
        /// Its place.
        member: MemberIndex,
        /// The drive there.
        drive: DriveId,
        /// Where on the drive, in bytes.
        offset: u64,
        /// Length of what was read, in bytes.
        len: u64,
        /// What is wrong.
        flaw: Flaw,
    },
    /// Such bytes were computed from the other members and written back. Told each time.
    BytesHealed {
        /// Its place.
        member: MemberIndex,
        /// The drive there.
        drive: DriveId,
        /// Where on the drive, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A drive took a member's place and is being filled.
    RebuildStarted {
        /// The place.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
        /// The drive was there before, and gets only what it missed: this many bytes at most.
        missed_bytes: Option<u64>,
    },
    /// The member is whole again.
    RebuildFinished {
        /// The place.
        member: MemberIndex,
        /// Its drive.
        drive: DriveId,
    },
    /// The rebuild ended before its end.
    RebuildStopped {
        /// The place.
        member: MemberIndex,
        /// Why.
        reason: String,
    },
    /// A member that works is being copied to another drive.
    ReplaceStarted {
        /// The place.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
    },
    /// The copy took the member's place: the drive that was there is no part of the group any more.
    Replaced {
        /// The place.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
    },
    /// The copy ended before its end. If the member failed, the new drive takes its place and is
    /// filled with the rest; else the member stays.
    ReplaceStopped {
        /// The place.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
        /// Why.
        reason: String,
    },
    /// A scrub or resync has gone through the whole group.
    ScrubFinished {
        /// Places where data and syndromes disagreed.
        found: u64,
        /// Of those, how many were put right.
        repaired: u64,
    },
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Fills a member.
    Rebuild(MemberIndex),
    /// Copies a member that works to another drive.
    Replace(MemberIndex),
    /// Compares data and syndromes.
    Scrub,
    /// Makes syndromes fit the data after a crash.
    Resync,
}

/// How a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// At work.
    Running,
    /// Holds its place until somebody lets it go on; scrubs only.
    Paused,
    /// Ended by request.
    Stopped,
    /// Ended early, for this reason.
    Failed(String),
    /// Ended well.
    Done,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobStatus {
    /// Identity within the group, since it was assembled.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// Bytes of members gone through.
    pub done_bytes: u64,
    /// Bytes of members to go through in all. Grows when more is written meanwhile.
    pub total_bytes: u64,
    /// When it began or was resumed.
    pub started: Nanos,
    /// When it ended.
    pub ended: Option<Nanos>,
    /// How it stands.
    pub state: JobState,
    /// Bytes per second over the last seconds.
    pub bytes_per_s: u64,
    /// It puts right what it can.
    pub repairs: bool,
    /// Places where data and syndromes disagreed.
    pub found: u64,
    /// Of those, how many were put right.
    pub repaired: u64,
    /// Stripes that could not be compared, because strips of them are lost.
    pub unchecked: u64,
    /// The first of the places found.
    pub findings: Vec<Finding>,
}

/// A member, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its place.
    pub member: MemberIndex,
    /// The drive there, if there is one.
    pub drive: Option<DriveId>,
    /// Who that is, or was.
    pub uuid: Uuid,
    /// Its state.
    pub state: MemberState,
    /// Failed operations since the group was assembled.
    pub errors: MemberErrors,
    /// Blocks that came back as other bytes than were written, since the group was assembled.
    pub damaged: u64,
    /// It was reported as slow ([`Event::MemberSlow`]), and has been slow within the last minute.
    pub slow: bool,
    /// How long its last reads took, once there were some.
    pub read_latency: Option<ReadLatency>,
}

/// How long reads of up to 16 KiB took, as far as they were measured, at most an eighth too high.
/// Old ones fade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLatency {
    /// Half of them took no longer.
    pub p50: Nanos,
    /// Of 100, 99 took no longer.
    pub p99: Nanos,
}

/// The group, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// The superblock as it was last written.
    pub superblock: Superblock,
    /// The members in order.
    pub members: Vec<MemberStatus>,
    /// The spares.
    pub spares: Vec<DriveId>,
    /// The member that is being copied to another drive, and that drive, which is one of the
    /// spares.
    pub replacement: Option<(MemberIndex, DriveId)>,
    /// User bytes in zones that are allocated.
    pub allocated_bytes: u64,
    /// User bytes in all.
    pub capacity_bytes: u64,
    /// Blocks that were lost in crashes, and not written since: offsets in the group and lengths,
    /// in bytes.
    pub lost: Vec<(u64, u64)>,
    /// Running jobs, and the last one that ended.
    pub jobs: Vec<JobStatus>,
    /// Who owns the units.
    pub owners: Owners,
}

impl GroupStatus {
    /// The spares that wait for a member to fail.
    pub fn free_spares(&self) -> impl Iterator<Item = &DriveId> {
        self.spares.iter().filter(|spare| self.replacement.is_none_or(|(_, drive)| drive != **spare))
    }
}

impl<E: Env> Array<E> {
    /// How the group is. Leader only.
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
            allocated_bytes: inner.shared.map.allocated() * geometry.zone * geometry.data as u64,
            capacity_bytes: geometry.capacity(),
            lost: self.0.shared.lost.ranges(),
            jobs: leader.jobs.borrow().iter().map(|job| job.status(inner.env.now())).collect(),
            owners: inner.owners.get(),
            superblock,
        }
    }

    /// Members of any set are missing or do not hold everything yet, or blocks were lost in a crash
    /// and not written since. On any shard.
    pub fn is_degraded(&self) -> bool {
        let shared = &self.0.shared;
        shared.slots().any(|(_, slot)| slot.state != MemberState::InSync) || !shared.lost.is_empty()
    }

    /// Bytes of a range that are in allocated zones. Lets others have their turn while it counts;
    /// if the group is stopped meanwhile, what it has counted so far.
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

    /// Replaces the volumes and exports of the group, durably. Leader only. The caller lets one
    /// change at a time through.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if they do not fit on the members; other errors as for writes. The
    /// old ones stay.
    ///
    /// # Panics
    /// If the catalogue breaks its invariants.
    pub async fn set_catalogue(&self, catalogue: Catalogue) -> Result<(), BlockError> {
        if self.0.shared.is_stopped() {
            return Err(BlockError::Stopped);
        }
        let inner = self.0.clone();
        self.0.to_the_end(async move { inner.save_catalogue(Some(catalogue), Leaves::Older).await }).await
    }

    /// As [`Array::set_catalogue`], and leaves nothing of earlier catalogues on the members: a
    /// secret that was taken out is gone from them.
    ///
    /// # Errors
    /// As for [`Array::set_catalogue`].
    pub async fn replace_catalogue(&self, catalogue: Catalogue) -> Result<(), BlockError> {
        if self.0.shared.is_stopped() {
            return Err(BlockError::Stopped);
        }
        let inner = self.0.clone();
        self.0
            .to_the_end(async move {
                for _ in 0..format::CATALOGUE_SLOTS {
                    inner.save_catalogue(Some(catalogue.clone()), Leaves::Nothing).await?;
                }
                Ok(())
            })
            .await
    }
}

impl<E: Env> Inner<E> {
    fn read_latency(&self, member: MemberIndex, drive: DriveId) -> Option<ReadLatency> {
        let figures = self.shared.read_figures(member, drive);
        Some(ReadLatency { p50: figures.quantile(500)?, p99: figures.quantile(990)? })
    }
}

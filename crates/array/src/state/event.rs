//! Events and status of a group, for its users.

use drive::Nanos;
use format::{MemberState, Superblock, Uuid};

use crate::geometry::MemberIndex;
use crate::state::cause::{Cause, Failure, Flaw};
use crate::state::errors::MemberErrors;
use crate::state::findings::Finding;
use crate::state::owners::Owners;
use crate::state::slot::DriveId;

/// An event of a drive or a job. Reported once, when it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member failed or was removed, and the group goes on without it.
    MemberFailed {
        /// The member.
        member: MemberIndex,
        /// The drive that was in its slot.
        drive: DriveId,
        /// The cause.
        cause: Cause,
    },
    /// A member failed an operation, but the group cannot do without it. The member stays, and that
    /// operation failed.
    MemberNeeded {
        /// The member.
        member: MemberIndex,
        /// The drive in its slot.
        drive: DriveId,
        /// Why it should have left.
        cause: Cause,
    },
    /// A member's reads have been far slower than the others' repeatedly. It stays. Reported once,
    /// until it has been normal for a minute.
    MemberSlow {
        /// The member.
        member: MemberIndex,
        /// The drive in its slot.
        drive: DriveId,
    },
    /// A member that stayed slow is replaced by a spare, because of
    /// [`crate::Settings::retire_slow`]. [`Event::MemberFailed`] and [`Event::RebuildStarted`]
    /// follow.
    MemberRetired {
        /// The member.
        member: MemberIndex,
        /// The drive that was in its slot.
        drive: DriveId,
    },
    /// A spare failed and is no spare any more.
    SpareFailed {
        /// The drive.
        drive: DriveId,
        /// The cause.
        cause: Cause,
    },
    /// An operation on a member failed, and is retried. Reported each time.
    Retried {
        /// The member.
        member: MemberIndex,
        /// The drive in its slot.
        drive: DriveId,
        /// The failed operation.
        failure: Failure,
    },
    /// Bytes of a member are damaged or unreadable. They are computed from the other members.
    /// Reported each time.
    BytesFlawed {
        /// The member.
        member: MemberIndex,
        /// The drive in its slot.
        drive: DriveId,
        /// Offset on the drive, in bytes.
        offset: u64,
        /// Length of the read, in bytes.
        len: u64,
        /// The kind of error.
        flaw: Flaw,
    },
    /// Such bytes were computed from the other members and written back. Reported each time.
    BytesHealed {
        /// The member.
        member: MemberIndex,
        /// The drive in its slot.
        drive: DriveId,
        /// Offset on the drive, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A drive took a member's slot and is being filled.
    RebuildStarted {
        /// The member.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
        /// Set if the drive was there before and gets only its dirty regions: this many bytes at
        /// most.
        dirty_bytes: Option<u64>,
    },
    /// The member has all its data again.
    RebuildFinished {
        /// The member.
        member: MemberIndex,
        /// Its drive.
        drive: DriveId,
    },
    /// The rebuild stopped before it was complete.
    RebuildStopped {
        /// The member.
        member: MemberIndex,
        /// The reason.
        reason: String,
    },
    /// A working member is being copied to another drive.
    ReplaceStarted {
        /// The member.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
    },
    /// The copy took the member's slot. The old drive is no longer part of the group.
    Replaced {
        /// The member.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
    },
    /// The copy stopped before it was complete. If the member failed, the new drive takes its slot
    /// and the rest is rebuilt. Otherwise the member stays.
    ReplaceStopped {
        /// The member.
        member: MemberIndex,
        /// The new drive.
        drive: DriveId,
        /// The reason.
        reason: String,
    },
    /// A scrub or resync has covered the whole group.
    ScrubFinished {
        /// Places where data and parity disagreed.
        found: u64,
        /// Number of those that were repaired.
        repaired: u64,
    },
}

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Fills a member.
    Rebuild(MemberIndex),
    /// Copies a working member to another drive.
    Replace(MemberIndex),
    /// Compares data and parity.
    Scrub,
    /// Makes parity fit the data after a crash.
    Resync,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// At work.
    Running,
    /// Waits for an operator to resume it. Scrubs only.
    Paused,
    /// Ended on request.
    Stopped,
    /// Failed, for this reason.
    Failed(String),
    /// Ended successfully.
    Done,
}

/// The progress of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobStatus {
    /// Number within the group, since it was assembled.
    pub id: u64,
    /// The kind of job.
    pub kind: JobKind,
    /// Bytes of members that were processed.
    pub done_bytes: u64,
    /// Bytes of members to process in total. Grows when more is written meanwhile.
    pub total_bytes: u64,
    /// When it began or was resumed.
    pub started: Nanos,
    /// When it ended.
    pub ended: Option<Nanos>,
    /// Its state.
    pub state: JobState,
    /// Bytes per second over the last few seconds.
    pub bytes_per_s: u64,
    /// Whether it repairs the errors that it can repair.
    pub repairs: bool,
    /// Places where data and parity disagreed.
    pub found: u64,
    /// Number of those that were repaired.
    pub repaired: u64,
    /// Stripes that could not be compared because some of their strips are lost.
    pub unchecked: u64,
    /// The first errors found.
    pub findings: Vec<Finding>,
}

/// A member, as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: MemberIndex,
    /// The drive in its slot, if there is one.
    pub drive: Option<DriveId>,
    /// Identity of the current or last drive.
    pub uuid: Uuid,
    /// Its state.
    pub state: MemberState,
    /// Failed operations since the group was assembled.
    pub errors: MemberErrors,
    /// Blocks that were read with other content than was written, since the group was assembled.
    pub damaged: u64,
    /// Whether it was reported as slow ([`Event::MemberSlow`]), and has been slow within the last
    /// minute.
    pub slow: bool,
    /// Latency of its recent reads, once there were some.
    pub read_latency: Option<ReadLatency>,
}

/// Latency of sampled reads of up to 16 KiB, at most an eighth too high. Old samples fade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLatency {
    /// The median.
    pub p50: Nanos,
    /// The 99th percentile.
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
    /// Bytes of user data in allocated chunks.
    pub allocated_bytes: u64,
    /// Bytes of user data in total.
    pub capacity_bytes: u64,
    /// Blocks that were lost in crashes, and not written since: offset in the group and length, in
    /// bytes.
    pub lost: Vec<(u64, u64)>,
    /// Running jobs, and the last one that ended.
    pub jobs: Vec<JobStatus>,
    /// The shards that own the stripe groups.
    pub owners: Owners,
}

impl GroupStatus {
    /// The spares that are not in use as a replacement.
    pub fn free_spares(&self) -> impl Iterator<Item = &DriveId> {
        self.spares.iter().filter(|spare| self.replacement.is_none_or(|(_, drive)| drive != **spare))
    }
}

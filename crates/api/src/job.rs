//! Long-running operations and their progress.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ScrubSchedule;

/// A rebuild or scrub that is running, or the last one that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Identity; growing, and unique while the daemon runs.
    pub id: u64,
    /// The kind of job.
    pub kind: JobKind,
    /// Its state.
    pub state: JobState,
    /// Slot of the member that a rebuild writes.
    pub slot: Option<u32>,
    /// Share of the work that is done, 0 to 100.
    pub done_percent: f64,
    /// Bytes of members that were processed.
    pub done_bytes: u64,
    /// Bytes of members to process in total; only data that was ever written counts.
    pub total_bytes: u64,
    /// Speed in the last ten seconds, in bytes of members per second.
    pub bytes_per_s: f64,
    /// Seconds until it ends at this speed; `null` if unknown.
    pub left_s: Option<u64>,
    /// Seconds since it started.
    pub elapsed_s: u64,
    /// Findings of a scrub or resync; `null` for a rebuild.
    pub findings: Option<ScrubFindings>,
    /// Why it failed or waits; `null` otherwise.
    pub message: Option<String>,
}

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Rebuilds a member from the others.
    Rebuild,
    /// Copies a working member to another drive, which takes its place.
    Replace,
    /// Makes parity agree with data after an unclean stop.
    Resync,
    /// Reads all data and compares it with its checksums and its parity.
    Scrub,
    /// A kind that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// At work.
    Running,
    /// Waits for something and continues on its own; `message` says for what.
    Waiting,
    /// Paused by request; continues on request.
    Paused,
    /// Ended successfully.
    Done,
    /// Stopped on request.
    Stopped,
    /// Ended with an error; `message` says why.
    Failed,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl JobState {
    /// Whether the job has ended.
    pub fn has_ended(self) -> bool {
        matches!(self, JobState::Done | JobState::Stopped | JobState::Failed)
    }
}

/// Findings of a scrub or resync so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubFindings {
    /// Whether differences are repaired, not only reported.
    pub repair: bool,
    /// Number of places with a fault.
    pub mismatch_count: u64,
    /// Number of those that were repaired.
    pub repaired_count: u64,
    /// Stripes that could not be compared, because some of their strips are lost or unreadable.
    pub unchecked_count: u64,
    /// The first of the places, at most 256.
    pub places: Vec<ScrubPlace>,
}

/// A place with a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubPlace {
    /// Offset in the group's data, in bytes.
    pub offset_bytes: u64,
    /// Offset on each member, in bytes.
    pub member_offset_bytes: u64,
    /// The member with the wrong strip, if its checksum or at least two parity strips identify it;
    /// `null` otherwise.
    pub slot: Option<u32>,
    /// The drive in that slot; `null` if the member is unknown.
    pub drive: Option<String>,
    /// The fault.
    pub fault: PlaceFault,
    /// Content of the wrong strip.
    pub content: PlaceContent,
    /// The volumes that own the data: one volume if the member is known, otherwise every volume
    /// with data in that part of the stripe. Empty for parity and for space without a volume.
    pub volumes: Vec<VolumePlace>,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// A fault that a scrub found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlaceFault {
    /// The data is not what was written there, according to its checksum.
    Damaged,
    /// The drive cannot read it.
    Unreadable,
    /// The data fits the rest of its stripe, but not its checksum.
    Checksum,
    /// The strips of the stripe contradict each other, and no checksum identifies the wrong one.
    Contradiction,
    /// A fault that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl PlaceFault {
    /// The name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            PlaceFault::Damaged => "damaged",
            PlaceFault::Unreadable => "unreadable",
            PlaceFault::Checksum => "wrong checksum",
            PlaceFault::Contradiction => "contradicts its stripe",
            PlaceFault::Unknown => "unknown",
        }
    }
}

/// Content of a strip that a scrub found wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlaceContent {
    /// Data, or a copy of data.
    Data,
    /// Parity.
    Parity,
    /// Either data or parity: the wrong strip cannot be identified.
    Either,
    /// A content that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// A place in a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumePlace {
    /// Full name of the volume.
    pub volume: String,
    /// Offset in the volume, in bytes.
    pub offset_bytes: u64,
}

/// `POST /v1/groups/{group}/scrub`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubRequest {
    /// The action.
    pub action: ScrubAction,
    /// With `start`: repair faults by writing back, if checksums or parity identify the wrong side.
    /// Default: report only.
    #[serde(default)]
    pub repair: bool,
}

/// An action on a group's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubAction {
    /// Start a scrub. Refused while one runs or is paused.
    Start,
    /// Pause the running scrub at its position, also across a restart. Refused if none runs.
    Pause,
    /// Resume the paused scrub. Refused if none is paused.
    Resume,
    /// Stop the running or paused scrub. Refused if there is none.
    Stop,
    /// Only report the state.
    Status,
}

/// The answer to a [`ScrubRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// The running scrub or the last one; `null` if there was none since the daemon started.
    pub job: Option<Job>,
    /// The last complete scrub of the group, even from before the daemon started, and the next one.
    pub schedule: ScrubSchedule,
}

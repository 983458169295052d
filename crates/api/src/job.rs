//! Long operations, and how far they are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ScrubSchedule;

/// A rebuild or scrub, running or the last one that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Identity, growing, unique while the daemon runs.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// How it stands.
    pub state: JobState,
    /// The member it writes, for a rebuild.
    pub slot: Option<u32>,
    /// How much of the work is done, 0 to 100.
    pub done_percent: f64,
    /// Bytes of members gone through.
    pub done_bytes: u64,
    /// Bytes of members to go through in all; only what was ever written counts.
    pub total_bytes: u64,
    /// Speed in the last ten seconds, bytes of members a second.
    pub bytes_per_s: f64,
    /// Seconds until it ends at this speed; `null` where that can't be said.
    pub left_s: Option<u64>,
    /// Seconds since it started.
    pub elapsed_s: u64,
    /// What a scrub or resync has found; `null` for a rebuild.
    pub findings: Option<ScrubFindings>,
    /// Why it failed or waits; `null` otherwise.
    pub message: Option<String>,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Writes a member anew from the others.
    Rebuild,
    /// Copies a member that works to another drive, which takes its place.
    Replace,
    /// Makes parity agree with data after an unclean stop.
    Resync,
    /// Reads everything and compares it with its checksums and its parity.
    Scrub,
    /// A kind that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// At work.
    Running,
    /// Waits for something, and goes on by itself; `message` says for what.
    Waiting,
    /// Paused by request: goes on by request.
    Paused,
    /// Ended well.
    Done,
    /// Stopped on request.
    Stopped,
    /// Ended badly; `message` says why.
    Failed,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl JobState {
    /// The job will not go on by itself.
    pub fn has_ended(self) -> bool {
        matches!(self, JobState::Done | JobState::Stopped | JobState::Failed)
    }
}

/// What a scrub or resync has found so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubFindings {
    /// Differences are put right, not only reported.
    pub repair: bool,
    /// Places where something is wrong; each has a fault.
    pub mismatch_count: u64,
    /// Of those, how many were put right.
    pub repaired_count: u64,
    /// Stripes that could not be compared, because strips of them are lost or unreadable.
    pub unchecked_count: u64,
    /// The first of the places, at most 256.
    pub places: Vec<ScrubPlace>,
}

/// A place where something is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubPlace {
    /// Where in the group's data, in bytes.
    pub offset_bytes: u64,
    /// Where on each member, in bytes.
    pub member_offset_bytes: u64,
    /// The member with the wrong strip, where its checksum or two or more parity strips tell;
    /// `null` otherwise.
    pub slot: Option<u32>,
    /// The drive in that slot; `null` where the member is not known.
    pub drive: Option<String>,
    /// What is wrong.
    pub fault: PlaceFault,
    /// Of what it is wrong.
    pub content: PlaceContent,
    /// Whose data it is: one volume where the member is known, every volume of the stripe's part
    /// otherwise. Empty for parity and for space that no volume has.
    pub volumes: Vec<VolumePlace>,
    /// It was put right.
    pub repaired: bool,
}

/// What is wrong at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlaceFault {
    /// It is not what was written there: its checksum says so.
    Damaged,
    /// The drive cannot read it.
    Unreadable,
    /// It fits the rest of its stripe, and its checksum does not fit it.
    Checksum,
    /// The strips of the stripe contradict each other, and no checksum says which is wrong.
    Contradiction,
    /// Something that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl PlaceFault {
    /// In words, for logs.
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

/// What the strip holds that a scrub found wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlaceContent {
    /// Data, or a copy of data.
    Data,
    /// Parity.
    Parity,
    /// One of both: nothing tells which strip is wrong.
    Either,
    /// Something that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// A place in a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumePlace {
    /// Full name of the volume.
    pub volume: String,
    /// Where in the volume, in bytes.
    pub offset_bytes: u64,
}

/// `POST /v1/groups/{group}/scrub`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubRequest {
    /// What to do.
    pub action: ScrubAction,
    /// With `start`: write back what is found wrong, where checksums or parity tell which side is.
    /// Default: report only.
    #[serde(default)]
    pub repair: bool,
}

/// What to do with a group's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubAction {
    /// Start one; refused while one runs or is paused.
    Start,
    /// Let the running one hold its place, also over a restart; refused when none runs.
    Pause,
    /// Let the paused one go on; refused when none is paused.
    Resume,
    /// Stop the one that runs or is paused; refused when there is none.
    Stop,
    /// Only say how it stands.
    Status,
}

/// The answer to a [`ScrubRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// The running scrub or the last one; `null` when there was none since the daemon started.
    pub job: Option<Job>,
    /// The last one that went through the whole group, also before that, and the next one.
    pub schedule: ScrubSchedule,
}

//! Drives.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ErrorCounts, IoCounters, LatencyUs};

/// `GET /v1/drives`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveList {
    /// All drives that the daemon has open or misses, members first, by group and slot.
    pub drives: Vec<Drive>,
}

/// A drive that the daemon knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drive {
    /// Its path, or `mem:NAME`. For a missing drive the last name it was seen under.
    pub name: String,
    /// What it is made of.
    pub kind: DriveKind,
    /// How it does.
    pub state: DriveState,
    /// What it is used for.
    pub role: DriveRole,
    /// The group it belongs to.
    pub group: Option<String>,
    /// Its slot there, for a member.
    pub slot: Option<u32>,
    /// Size in bytes; `null` while it is missing and unknown.
    pub size_bytes: Option<u64>,
    /// Logical block size in bytes: 512 or 4096.
    pub sector_bytes: Option<u32>,
    /// Traffic.
    pub io: IoCounters,
    /// Failed operations.
    pub errors: ErrorCounts,
    /// Read latency of the drive in the last seconds; `null` while idle.
    pub read_latency_us: Option<LatencyUs>,
    /// Write latency of the drive in the last seconds; `null` while idle.
    pub write_latency_us: Option<LatencyUs>,
}

/// What a drive is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveKind {
    /// A block device.
    Block,
    /// A regular file.
    File,
    /// Memory of the daemon.
    Memory,
    /// A kind that this client doesn't know, or a missing drive's.
    #[serde(other)]
    Unknown,
}

/// How a drive does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveState {
    /// Works.
    Online,
    /// Failed an operation for good, or was failed on request; not used any more.
    Faulty,
    /// Not there.
    Missing,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// What a drive is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveRole {
    /// Holds strips of a group.
    Member,
    /// Waits to take a lost member's place.
    Spare,
    /// Belongs to no group.
    None,
    /// A role that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

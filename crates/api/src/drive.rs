//! Drives.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ErrorCounts, IoCounters, LatencyUs};

/// `GET /v1/drives`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveList {
    /// All drives that the daemon has open or misses, members first, by group and slot; then those
    /// that were plugged in since it started and that no group has.
    pub drives: Vec<Drive>,
}

/// A drive that the daemon knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drive {
    /// Its path, `mem:NAME`, or `nvme-tcp://HOST:PORT/NQN?nsid=N`. For a missing drive the last
    /// name it was seen under.
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
    /// Of a drive that was plugged in and that no group has: what is on it, and why it is not used.
    pub note: Option<String>,
}

/// `GET /v1/drives/{drive}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveDetails {
    /// What the daemon knows of it.
    pub drive: Drive,
    /// Its model, as it says itself; `null` where nothing says it, as with all of these.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// What it is whatever its name is: by this it is found again.
    pub identity: Option<String>,
    /// How its reads and writes pass by the kernel's block layer; `null` where that was not asked
    /// for (`purlind --passthrough`), and for what is not of the kernel: memory and drives of other
    /// machines.
    pub passthrough: Option<DrivePassthrough>,
    /// How it is; `null` where it does not say, such as a drive that is not NVMe, or that the
    /// daemon may not ask.
    pub health: Option<DriveHealth>,
}

/// Reads and writes of an NVMe namespace as commands on its generic character device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrivePassthrough {
    /// The character device, such as `/dev/ng0n1`; `null` where the block device is used for
    /// everything.
    pub node: Option<String>,
    /// Why the block device is used.
    pub refusal: Option<String>,
    /// Reads and writes that went so since the drive was opened. Others, such as those of many
    /// pieces, go by the block device.
    pub command_count: u64,
}

/// How an NVMe drive says that it is: its SMART / Health Information log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveHealth {
    /// The bits of its critical warning; 0 is well.
    pub critical_warning: u32,
    /// Temperature in degrees Celsius.
    pub temperature_c: Option<i32>,
    /// Estimate of how much of its life is behind it. May exceed 100; 255 is 255 or more.
    pub used_percent: u32,
    /// Spare blocks that are left.
    pub spare_percent: u32,
    /// Below this many spare blocks it warns.
    pub spare_threshold_percent: u32,
    /// Bytes that were read from it in its life.
    pub read_bytes: u64,
    /// Bytes that were written to it in its life.
    pub written_bytes: u64,
    /// Hours that it was on.
    pub power_on_hours: u64,
    /// Times that its power went without notice.
    pub unsafe_shutdown_count: u64,
    /// Times that it found data that it could not read or correct.
    pub media_error_count: u64,
    /// What of this is a reason to replace it, in words.
    pub warnings: Vec<String>,
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
    /// A drive of another machine, over NVMe/TCP.
    Remote,
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
    /// Is used, and does not answer.
    Unreachable,
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

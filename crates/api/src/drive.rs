//! Drives.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ErrorCounts, IoCounters, LatencyUs};

/// `GET /v1/drives`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveList {
    /// All drives that the daemon has open or that are missing, members first, by group and slot.
    /// Then the drives that were plugged in since the daemon started and belong to no group.
    pub drives: Vec<Drive>,
}

/// A drive that the daemon knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drive {
    /// Its path, `mem:NAME`, or `nvme-tcp://HOST:PORT/NQN?nsid=N`. For a missing drive, the last
    /// known name.
    pub name: String,
    /// Its medium.
    pub kind: DriveKind,
    /// Its state.
    pub state: DriveState,
    /// Its use.
    pub role: DriveRole,
    /// The group it belongs to.
    pub group: Option<String>,
    /// Slot in the group, for a member.
    pub slot: Option<u32>,
    /// Size in bytes; `null` if it is missing and its size is unknown.
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
    /// For a drive that was plugged in and belongs to no group: its content, and why it is not
    /// used.
    pub note: Option<String>,
}

/// `GET /v1/drives/{drive}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveDetails {
    /// The state that the daemon reports in lists.
    pub drive: Drive,
    /// The model that the drive reports; `null` if unknown, as for all these fields.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// Identity of the drive, independent of its name. The daemon finds the drive again by it.
    pub identity: Option<String>,
    /// How reads and writes bypass the kernel's block layer; `null` if that was not requested
    /// (`purlind --passthrough`), and for drives that are not the kernel's: memory and drives of
    /// other machines.
    pub passthrough: Option<DrivePassthrough>,
    /// Its health; `null` if it reports none, for example because it is not NVMe or the daemon may
    /// not ask it.
    pub health: Option<DriveHealth>,
}

/// Reads and writes of an NVMe namespace as commands on its generic character device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrivePassthrough {
    /// The character device, such as `/dev/ng0n1`; `null` if the block device is used for
    /// everything.
    pub node: Option<String>,
    /// Why the block device is used.
    pub refusal: Option<String>,
    /// Reads and writes that used it since the drive was opened. Others, such as those with many
    /// pieces, use the block device.
    pub command_count: u64,
}

/// The health that an NVMe drive reports: its SMART / Health Information log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveHealth {
    /// The bits of its critical warning; 0 means healthy.
    pub critical_warning: u32,
    /// Temperature in degrees Celsius.
    pub temperature_c: Option<i32>,
    /// Estimate of the used share of its life. May exceed 100; 255 means 255 or more.
    pub used_percent: u32,
    /// Remaining spare blocks, in percent.
    pub spare_percent: u32,
    /// The drive warns if its spare blocks are below this percentage.
    pub spare_threshold_percent: u32,
    /// Bytes read from it in its lifetime.
    pub read_bytes: u64,
    /// Bytes written to it in its lifetime.
    pub written_bytes: u64,
    /// Hours of operation.
    pub power_on_hours: u64,
    /// Number of power losses without notice.
    pub unsafe_shutdown_count: u64,
    /// Number of times that it found data it could not read or correct.
    pub media_error_count: u64,
    /// Reasons in this report to replace the drive, in words.
    pub warnings: Vec<String>,
}

/// The medium of a drive.
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
    /// A kind that this client doesn't know, or the kind of a missing drive.
    #[serde(other)]
    Unknown,
}

/// State of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveState {
    /// Works.
    Online,
    /// It failed an operation permanently, or was failed on request. It is not used any more.
    Faulty,
    /// Not present.
    Missing,
    /// In use, but does not answer.
    Unreachable,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// Use of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveRole {
    /// Holds strips of a group.
    Member,
    /// Waits to take the place of a lost member.
    Spare,
    /// Belongs to no group.
    None,
    /// A role that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

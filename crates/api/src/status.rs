//! An overview of everything.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CrashSafety, Export, GroupHealth, GroupNotStarted, Host, IoCounters, Job, Level, Load, ScrubSchedule};

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Commit that it was built from, and the date of that commit, such as `297b581, 2026-11-28`.
    /// `None` if that was not known.
    #[serde(default)]
    pub commit: Option<String>,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Process id of the daemon.
    pub pid: u32,
    /// Resident memory of the daemon.
    pub resident_bytes: u64,
    /// Lines of its log that were dropped since it started, because they could not be written fast
    /// enough or at all.
    #[serde(default)]
    pub log_lines_dropped: u64,
    /// Memory for client requests.
    #[serde(default)]
    pub buffers: Buffers,
    /// Its shards, by number.
    pub shards: Vec<ShardStatus>,
    /// All running groups, by name.
    pub groups: Vec<GroupStatus>,
    /// Groups that could not be started.
    #[serde(default)]
    pub not_started: Vec<GroupNotStarted>,
    /// All exports, by identity.
    pub exports: Vec<Export>,
    /// NVMe hosts, by name.
    pub hosts: Vec<Host>,
}

/// Memory for client requests in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Buffers {
    /// Most memory for the requests of all clients together (`purlind --buffers`).
    pub size_bytes: u64,
    /// Memory in use now.
    pub held_bytes: u64,
    /// Connections that wait for memory.
    pub waiting_count: u64,
}

/// The event loop of one core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShardStatus {
    /// Its number, from 0.
    pub shard: u32,
    /// The CPU that it is pinned to; `null` if it is not pinned.
    pub core: Option<u32>,
    /// Share of the last second in which it was not asleep, 0 to 100.
    pub busy_percent: f64,
}

/// A group in the overview.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its RAID level.
    pub level: Level,
    /// Its health.
    pub health: GroupHealth,
    /// Number of members.
    pub member_count: u32,
    /// Members that are in sync.
    pub in_sync_count: u32,
    /// Hot spares.
    pub spare_count: u32,
    /// Number of volumes.
    pub volume_count: u32,
    /// Members that may still be lost now, in any combination.
    pub losses_left: u32,
    /// Capacity for all volumes together, in bytes.
    pub capacity_bytes: u64,
    /// Bytes allocated to volumes.
    pub allocated_bytes: u64,
    /// Bytes of data that were ever written and not discarded.
    pub used_bytes: u64,
    /// Current traffic of clients.
    pub load: Load,
    /// Total traffic of clients.
    pub io: IoCounters,
    /// How much a crash may cost.
    pub crash_safety: CrashSafety,
    /// Current risks, a sentence each, worst first.
    pub warnings: Vec<String>,
    /// Running jobs, and the last ended job of each kind, by identity.
    pub jobs: Vec<Job>,
    /// Last and next scrub.
    pub scrub: ScrubSchedule,
}

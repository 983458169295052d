//! One screen of everything.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CrashSafety, Export, GroupHealth, GroupNotStarted, Host, IoCounters, Job, Level, Load, ScrubSchedule};

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
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
    /// Memory for requests of clients.
    #[serde(default)]
    pub buffers: Buffers,
    /// Its shards, by number.
    pub shards: Vec<ShardStatus>,
    /// All groups that run, by name.
    pub groups: Vec<GroupStatus>,
    /// Groups that could not be started.
    #[serde(default)]
    pub not_started: Vec<GroupNotStarted>,
    /// All exports, by identity.
    pub exports: Vec<Export>,
    /// NVMe hosts, by name.
    pub hosts: Vec<Host>,
}

/// Memory for requests of clients that are in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Buffers {
    /// Most that requests of all clients may hold together (`purlind --buffers`).
    pub size_bytes: u64,
    /// Held now.
    pub held_bytes: u64,
    /// Connections that wait until others hold less.
    pub waiting_count: u64,
}

/// One core's event loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShardStatus {
    /// Its number, from 0.
    pub shard: u32,
    /// The processor it is bound to; `null` where it is not bound.
    pub core: Option<u32>,
    /// Share of the last second that it was not asleep, 0 to 100.
    pub busy_percent: f64,
}

/// A group on the status screen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// How it protects its data.
    pub level: Level,
    /// How it does.
    pub health: GroupHealth,
    /// Members of the group.
    pub member_count: u32,
    /// Members that are in sync.
    pub in_sync_count: u32,
    /// Hot spares.
    pub spare_count: u32,
    /// Volumes.
    pub volume_count: u32,
    /// Members that may still be lost now, whichever they are.
    pub losses_left: u32,
    /// What all volumes together may hold, in bytes.
    pub capacity_bytes: u64,
    /// Given to volumes, in bytes.
    pub allocated_bytes: u64,
    /// Ever written and not discarded, in bytes of data.
    pub used_bytes: u64,
    /// What clients do.
    pub load: Load,
    /// What clients did.
    pub io: IoCounters,
    /// What a crash may do to it.
    pub crash_safety: CrashSafety,
    /// What is risky right now, a sentence each, worst first.
    pub warnings: Vec<String>,
    /// Running jobs and, of each kind, the last one that ended, by identity.
    pub jobs: Vec<Job>,
    /// When it was and will be scrubbed.
    pub scrub: ScrubSchedule,
}

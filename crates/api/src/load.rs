//! Traffic and its latency.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Client traffic in the last seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Load {
    /// The time that the rates and percentiles cover, in seconds.
    pub window_s: f64,
    /// Reads.
    pub read: LoadSide,
    /// Writes, including write-zeroes and discards.
    pub write: LoadSide,
}

/// One direction of traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoadSide {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Latency seen by clients; `null` if there was no operation in the window.
    pub latency_us: Option<LatencyUs>,
}

/// Percentiles of latency, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyUs {
    /// Half of the operations took at most this.
    pub p50: f64,
    /// 99 of 100 operations took at most this.
    pub p99: f64,
    /// The slowest operation.
    pub max: f64,
}

/// Operations since the daemon opened the object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoCounters {
    /// Reads completed.
    pub read_count: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub write_count: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes completed.
    pub flush_count: u64,
    /// Discards and write-zeroes completed.
    pub discard_count: u64,
}

/// Operations that failed since the daemon opened the drive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorCounts {
    /// Reads that failed after their retries.
    pub read_count: u64,
    /// Writes that failed after their retries.
    pub write_count: u64,
    /// Flushes and discards that failed after their retries.
    pub other_count: u64,
    /// Operations that were retried.
    pub retry_count: u64,
    /// Blocks that were read without an error but do not fit their checksums.
    pub damaged_count: u64,
}

impl ErrorCounts {
    /// Operations that failed permanently.
    pub fn failed_count(&self) -> u64 {
        self.read_count + self.write_count + self.other_count
    }
}

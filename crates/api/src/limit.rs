//! Rate limits of volumes and hosts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Invalid, format_duration};

/// Highest limit in requests per second.
pub const LIMIT_IOPS_MAX: u64 = 1_000_000_000;

/// Highest limit in bytes per second: 1 TiB/s.
pub const LIMIT_BYTES_PER_S_MAX: u64 = 1 << 40;

/// The shortest burst of a limit, in milliseconds: timers need some tolerance.
pub const LIMIT_BURST_MS_MIN: u64 = 10;

/// The longest burst of a limit, in milliseconds: an hour.
pub const LIMIT_BURST_MS_MAX: u64 = 3_600_000;

/// The default burst of a limit, in milliseconds.
pub const LIMIT_BURST_MS_DEFAULT: u64 = 100;

/// A rate limit, and how long requests have waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// Requests per second: reads, writes, zeroing, discarding, comparing, copying; not flushes.
    /// `null`: unlimited.
    pub iops: Option<u64>,
    /// Bytes of data per second; `null`: unlimited.
    pub bytes_per_s: Option<u64>,
    /// Burst size: after a pause, the allowance of this many milliseconds may be used at once.
    pub burst_ms: u64,
    /// Requests that wait now.
    pub waiting_count: u64,
    /// Requests that have waited since the daemon started.
    pub waited_count: u64,
    /// Total time that they have waited, in microseconds.
    pub waited_us: u64,
}

/// `PATCH /v1/volumes/{group}/{volume}/limit` and `PATCH /v1/exports/{id}/hosts/{host}/limit`:
/// change a rate limit while clients are connected. Fields that are omitted or `null` stay
/// unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitUpdate {
    /// Requests per second, 1 to 10^9; 0: unlimited.
    #[serde(default)]
    pub iops: Option<u64>,
    /// Bytes per second, 1 to 2^40; 0: unlimited.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
    /// Burst size after a pause, in milliseconds of the limit, 10 to 3 600 000; default 100.
    #[serde(default)]
    pub burst_ms: Option<u64>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl LimitUpdate {
    /// Checks the values.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        if *self == (LimitUpdate { dry_run: self.dry_run, ..LimitUpdate::default() }) {
            return Err(Invalid::new("there is nothing to change: name iops, a bandwidth or a burst"));
        }
        if let Some(iops) = self.iops.filter(|iops| *iops > LIMIT_IOPS_MAX) {
            return Err(Invalid::new(format!(
                "{iops} requests a second are no limit: choose 1 to {LIMIT_IOPS_MAX}, or off"
            )));
        }
        if let Some(bytes) = self.bytes_per_s.filter(|bytes| *bytes > LIMIT_BYTES_PER_S_MAX) {
            return Err(Invalid::new(format!("{bytes} bytes a second are no limit: choose 1 byte to 1 TiB, or off")));
        }
        let burst = self.burst_ms.filter(|burst| !(LIMIT_BURST_MS_MIN..=LIMIT_BURST_MS_MAX).contains(burst));
        if let Some(burst) = burst {
            let shown = format_duration(Duration::from_millis(burst));
            return Err(Invalid::new(format!("a burst of {shown} makes no sense: choose 10ms to 1h")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_be_kept_are_refused() {
        let refusal = |update: LimitUpdate| update.validate().unwrap_err().to_string();
        let update = LimitUpdate::default();
        assert_eq!(refusal(update), "there is nothing to change: name iops, a bandwidth or a burst");
        assert_eq!(
            refusal(LimitUpdate { iops: Some(1_000_000_001), ..update }),
            "1000000001 requests a second are no limit: choose 1 to 1000000000, or off"
        );
        assert_eq!(
            refusal(LimitUpdate { bytes_per_s: Some((1 << 40) + 1), ..update }),
            "1099511627777 bytes a second are no limit: choose 1 byte to 1 TiB, or off"
        );
        for (burst_ms, shown) in [(9, "9ms"), (3_600_001, "3600001ms")] {
            let message = format!("a burst of {shown} makes no sense: choose 10ms to 1h");
            assert_eq!(refusal(LimitUpdate { burst_ms: Some(burst_ms), ..update }), message);
        }
        for (iops, bytes_per_s, burst_ms) in
            [(0, 0, 10), (1, 1, 3_600_000), (LIMIT_IOPS_MAX, LIMIT_BYTES_PER_S_MAX, 100)]
        {
            let all = LimitUpdate {
                iops: Some(iops),
                bytes_per_s: Some(bytes_per_s),
                burst_ms: Some(burst_ms),
                dry_run: true,
            };
            assert_eq!(all.validate(), Ok(()));
        }
    }
}

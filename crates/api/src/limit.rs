//! How fast volumes and hosts may be used.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Invalid, format_duration};

/// Requests for each second that a limit may be, at most.
pub const LIMIT_IOPS_MAX: u64 = 1_000_000_000;

/// Bytes for each second that a limit may be, at most: 1 TiB.
pub const LIMIT_BYTES_PER_S_MAX: u64 = 1 << 40;

/// The shortest burst of a limit, in milliseconds: timers need some room.
pub const LIMIT_BURST_MS_MIN: u64 = 10;

/// The longest burst of a limit, in milliseconds: an hour.
pub const LIMIT_BURST_MS_MAX: u64 = 3_600_000;

/// The burst of a limit, in milliseconds, where nobody says otherwise.
pub const LIMIT_BURST_MS_DEFAULT: u64 = 100;

/// How fast something may be used, and how its requests have waited for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// Requests for each second: reads, writes, zeroing, discarding, comparing, copying; not
    /// flushes. `null`: any number.
    pub iops: Option<u64>,
    /// Bytes of data for each second; `null`: any number.
    pub bytes_per_s: Option<u64>,
    /// After a pause, what these many milliseconds allow may be used at once.
    pub burst_ms: u64,
    /// Requests that wait now.
    pub waiting_count: u64,
    /// Requests that have waited, since the daemon started.
    pub waited_count: u64,
    /// How long they have waited in all, in microseconds.
    pub waited_us: u64,
}

/// `PATCH /v1/volumes/{group}/{volume}/limit` and `PATCH /v1/exports/{id}/hosts/{host}/limit`:
/// change how fast something may be used, while clients are connected. What is left out, or `null`,
/// stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitUpdate {
    /// Requests for each second, 1 to 10^9; 0: any number.
    #[serde(default)]
    pub iops: Option<u64>,
    /// Bytes for each second, 1 to 2^40; 0: any number.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
    /// What may be used at once after a pause, in milliseconds of the limit, 10 to 3 600 000; 100
    /// where nobody says otherwise.
    #[serde(default)]
    pub burst_ms: Option<u64>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl LimitUpdate {
    /// Checks the values.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
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

//! Maintenance of a group: settings that can be changed while it runs, and its scrub schedule.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Invalid, check_warn_levels, format_duration};

/// The lowest latency target for clients: drives alone take longer than any lower target.
pub const CLIENT_P99_US_MIN: u64 = 100;

/// The highest latency target for clients: they give up not much later.
pub const CLIENT_P99_US_MAX: u64 = 10_000_000;

/// The shortest interval between scrubs: a scrub of a large group takes longer.
pub const SCRUB_EVERY_S_MIN: u64 = 3600;

/// The longest interval between scrubs, ten years. To scrub less often, turn them off.
pub const SCRUB_EVERY_S_MAX: u64 = 3650 * 86_400;

/// Settings that an operator chose for a group. They are stored on the members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupSettings {
    /// Rebuilds and scrubs keep the 99th percentile of clients' latency below this, in
    /// microseconds. `null`: they take only a small share of the drives' time while clients are
    /// active.
    pub client_p99_us: Option<u64>,
    /// Whether a member that stays far slower than the others is replaced by a spare. If not, it is
    /// only reported.
    pub retire_slow: bool,
    /// Most seconds from the end of a scrub to the start of the next one; `null`: scrubs start only
    /// on request.
    pub scrub_every_s: Option<u64>,
    /// Levels of use at which the pool of thin volumes warns, in percent; empty: it does not.
    #[serde(default)]
    pub thin_warn_percents: Vec<u8>,
}

/// `PATCH /v1/groups/{group}`: change settings of a running group. Fields that are omitted or
/// `null` stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupUpdate {
    /// The latency target for clients in microseconds, 100 to 10 000 000; 0: none.
    #[serde(default)]
    pub client_p99_us: Option<u64>,
    /// Whether a slow member is replaced by a spare.
    #[serde(default)]
    pub retire_slow: Option<bool>,
    /// Seconds between scrubs, an hour to ten years; 0: only on request.
    #[serde(default)]
    pub scrub_every_s: Option<u64>,
    /// Levels of use at which the pool of thin volumes warns: 1 to 99 percent, ascending; empty: it
    /// does not.
    #[serde(default)]
    pub thin_warn_percents: Option<Vec<u8>>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl GroupUpdate {
    /// Checks the values.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        if *self == (GroupUpdate { dry_run: self.dry_run, ..GroupUpdate::default() }) {
            return Err(Invalid::new("there is nothing to change: name at least one setting"));
        }
        check_warn_levels(self.thin_warn_percents.as_deref().unwrap_or_default())?;
        check_settings(self.client_p99_us, self.scrub_every_s)
    }
}

/// Checks setting values from a request; 0 means off.
pub(crate) fn check_settings(client_p99_us: Option<u64>, scrub_every_s: Option<u64>) -> Result<(), Invalid> {
    let within = |value: Option<u64>, min: u64, max: u64| value.is_none_or(|n| n == 0 || (min..=max).contains(&n));
    if !within(client_p99_us, CLIENT_P99_US_MIN, CLIENT_P99_US_MAX) {
        let shown = format_duration(Duration::from_micros(client_p99_us.unwrap_or_default()));
        return Err(Invalid::new(format!("a latency target of {shown} makes no sense: choose 100us to 10s, or off")));
    }
    if !within(scrub_every_s, SCRUB_EVERY_S_MIN, SCRUB_EVERY_S_MAX) {
        let shown = format_duration(Duration::from_secs(scrub_every_s.unwrap_or_default()));
        return Err(Invalid::new(format!("a scrub every {shown} makes no sense: choose 1h to 3650d, or off")));
    }
    Ok(())
}

/// Last and next scrub of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubSchedule {
    /// The last scrub that covered the whole group; `null` if there was none.
    pub last: Option<LastScrub>,
    /// When the next scrub is due, in seconds since 1970; in the past if it waits for something.
    /// `null` while one is in progress or paused, if scrubs start only on request, and if there is
    /// nothing to compare.
    pub next_unix_s: Option<u64>,
    /// Whether a scrub is in progress or paused.
    pub active: bool,
    /// Whether it is paused by request; it continues on request.
    pub paused: bool,
    /// Reason why the due or running scrub waits: "slot 2 is being rebuilt"; `null` if it does not
    /// wait.
    pub waits_for: Option<String>,
}

/// A scrub that covered the whole group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastScrub {
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// Whether differences were repaired, not only reported.
    pub repair: bool,
    /// Places where data and parity, or copies, disagreed.
    pub mismatch_count: u64,
    /// Number of those that were repaired.
    pub repaired_count: u64,
    /// Stripes that could not be compared, because some of their strips were lost or unreadable.
    pub unchecked_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(update: GroupUpdate) -> String {
        update.validate().unwrap_err().to_string()
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let update = GroupUpdate::default();
        assert_eq!(refusal(update.clone()), "there is nothing to change: name at least one setting");
        assert_eq!(
            refusal(GroupUpdate { client_p99_us: Some(99), ..update.clone() }),
            "a latency target of 99us makes no sense: choose 100us to 10s, or off"
        );
        assert_eq!(
            refusal(GroupUpdate { scrub_every_s: Some(60), ..update.clone() }),
            "a scrub every 1m makes no sense: choose 1h to 3650d, or off"
        );
        for (client_p99_us, scrub_every_s) in [(0, 0), (100, 3600), (10_000_000, 3650 * 86_400)] {
            let (client_p99_us, scrub_every_s) = (Some(client_p99_us), Some(scrub_every_s));
            assert_eq!(GroupUpdate { client_p99_us, scrub_every_s, ..update.clone() }.validate(), Ok(()));
        }
    }
}

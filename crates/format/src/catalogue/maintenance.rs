//! Maintenance settings of a group and the progress of its scrub: version 2 of the document.

use serde::{Deserialize, Serialize};

use super::CatalogueError;
use super::thin::are_levels;

/// Seconds between scrubs unless the operator sets another interval: 30 days, as Linux
/// distributions scrub their md arrays monthly.
pub const SCRUB_EVERY_S_DEFAULT: u64 = 30 * 24 * 3600;

/// Settings that an operator chose for a group. The field names are those of the JSON document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsRecord {
    /// Latency target of clients that rebuilds and scrubs must respect: the 99th percentile in
    /// microseconds, not 0. None: no target.
    pub client_p99_us: Option<u64>,
    /// Whether a member that stays far slower than the others is replaced by a spare.
    pub retire_slow: bool,
    /// Most seconds from the end of a scrub to the start of the next one, not 0. None: scrubs run
    /// only on request.
    pub scrub_every_s: Option<u64>,
    /// Levels of use at which the pool of thin volumes warns, in percent. None:
    /// [`THIN_WARN_DEFAULT`](super::THIN_WARN_DEFAULT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thin_warn: Option<Vec<u8>>,
}

impl Default for SettingsRecord {
    fn default() -> Self {
        let scrub_every_s = Some(SCRUB_EVERY_S_DEFAULT);
        SettingsRecord { client_p99_us: None, retire_slow: false, scrub_every_s, thin_warn: None }
    }
}

/// A group's scrubs: the last one and the current one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubRecord {
    /// The last scrub that covered the whole group.
    pub last: Option<ScrubEnd>,
    /// When a scrub was stopped by request, in seconds since 1970. The next one is due a whole
    /// interval later at the earliest.
    pub skipped_unix_s: Option<u64>,
    /// The scrub that is running or paused. It continues after a restart.
    pub current: Option<ScrubPoint>,
}

/// A scrub that covered the whole group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubEnd {
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// Whether it repaired what it could, rather than only report it.
    pub repair: bool,
    /// Places where strips contradicted each other.
    pub found: u64,
    /// Number of those that were repaired.
    pub repaired: u64,
    /// Ranges that could not be compared, because some of their strips are lost or unreadable.
    pub unchecked: u64,
}

/// Progress of a scrub, as of the last time it was written. Work done after that is repeated after
/// a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubPoint {
    /// When it started, in seconds since 1970.
    pub started_unix_s: u64,
    /// Whether it repairs what it can, rather than only report it.
    pub repair: bool,
    /// Whether it waits for an operator to resume it.
    pub paused: bool,
    /// The scrub continues with the stripe of this byte of the group's logical space.
    pub next_byte: u64,
    /// Bytes on members that were compared.
    pub compared_bytes: u64,
    /// Places where strips contradicted each other.
    pub found: u64,
    /// Number of those that were repaired.
    pub repaired: u64,
    /// Ranges that could not be compared.
    pub unchecked: u64,
}

pub(super) fn check(settings: &SettingsRecord, scrub: &ScrubRecord, capacity: u64) -> Result<(), CatalogueError> {
    let holds = |holds: bool, field| if holds { Ok(()) } else { Err(CatalogueError::Maintenance { field }) };
    holds(settings.client_p99_us != Some(0), "client_p99_us")?;
    holds(settings.scrub_every_s != Some(0), "scrub_every_s")?;
    holds(settings.thin_warn.as_deref().is_none_or(are_levels), "thin_warn")?;
    if let Some(last) = &scrub.last {
        holds(last.repaired <= last.found, "repaired")?;
    }
    if let Some(point) = &scrub.current {
        holds(point.repaired <= point.found, "repaired")?;
        holds(point.next_byte <= capacity, "next_byte")?;
    }
    Ok(())
}

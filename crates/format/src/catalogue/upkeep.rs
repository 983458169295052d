//! How a group is to be looked after, and how far its scrub is: version 2 of the document.

use serde::{Deserialize, Serialize};

use super::CatalogueError;

/// Seconds between scrubs unless somebody said otherwise: 30 days, as Linux distributions scrub
/// their md arrays monthly.
pub const SCRUB_EVERY_S_DEFAULT: u64 = 30 * 24 * 3600;

/// What an operator chose for a group. The field names are those of the JSON document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsRecord {
    /// What rebuilds and scrubs leave of clients' latency: its 99th percentile in microseconds,
    /// not 0. None: no target.
    pub client_p99_us: Option<u64>,
    /// A member that stays far slower than the others gives its place to a spare.
    pub retire_slow: bool,
    /// Seconds from the end of a scrub to the latest start of the next one, not 0. None: only on
    /// request.
    pub scrub_every_s: Option<u64>,
}

impl Default for SettingsRecord {
    fn default() -> Self {
        SettingsRecord { client_p99_us: None, retire_slow: false, scrub_every_s: Some(SCRUB_EVERY_S_DEFAULT) }
    }
}

/// A group's scrubs: the last one and the one under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubRecord {
    /// The last one that went through the whole group.
    pub last: Option<ScrubEnd>,
    /// When one was stopped by request, in seconds since 1970: the next one is not due earlier than
    /// after a whole interval.
    pub skipped_unix_s: Option<u64>,
    /// The one that is under way or paused. Goes on after a restart.
    pub current: Option<ScrubPoint>,
}

/// A scrub that went through the whole group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubEnd {
    /// When it ended, in seconds since 1970.
    pub ended_unix_s: u64,
    /// It put right what it could, rather than only report it.
    pub repair: bool,
    /// Places where strips contradicted each other.
    pub found: u64,
    /// Of those, how many were put right.
    pub repaired: u64,
    /// Ranges that could not be compared, because strips of them are lost or unreadable.
    pub unchecked: u64,
}

/// How far a scrub is. What it did after this was written, it does again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubPoint {
    /// When it was started, in seconds since 1970.
    pub started_unix_s: u64,
    /// It puts right what it can, rather than only report it.
    pub repair: bool,
    /// It waits for an operator who lets it go on.
    pub paused: bool,
    /// Byte of the group's logical space with whose stripe it goes on.
    pub next_byte: u64,
    /// Bytes of members that were compared.
    pub compared_bytes: u64,
    /// Places where strips contradicted each other.
    pub found: u64,
    /// Of those, how many were put right.
    pub repaired: u64,
    /// Ranges that could not be compared.
    pub unchecked: u64,
}

pub(super) fn check(settings: &SettingsRecord, scrub: &ScrubRecord, capacity: u64) -> Result<(), CatalogueError> {
    let holds = |holds: bool, field| if holds { Ok(()) } else { Err(CatalogueError::Upkeep { field }) };
    holds(settings.client_p99_us != Some(0), "client_p99_us")?;
    holds(settings.scrub_every_s != Some(0), "scrub_every_s")?;
    if let Some(last) = &scrub.last {
        holds(last.repaired <= last.found, "repaired")?;
    }
    if let Some(point) = &scrub.current {
        holds(point.repaired <= point.found, "repaired")?;
        holds(point.next_byte <= capacity, "next_byte")?;
    }
    Ok(())
}

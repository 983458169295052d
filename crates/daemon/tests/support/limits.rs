//! Limits of volumes and hosts that exist only here.

use api::{LIMIT_BURST_MS_DEFAULT, Limit, LimitUpdate};

/// What a request changes, and the limit after it, for which a few requests have waited.
pub fn updated(before: Option<Limit>, update: &LimitUpdate, what: &str) -> (Vec<String>, Option<Limit>) {
    let chosen = |asked: Option<u64>, before| asked.map_or(before, |value| Some(value).filter(|&value| value > 0));
    let limit = Limit {
        iops: chosen(update.iops, before.and_then(|limit| limit.iops)),
        bytes_per_s: chosen(update.bytes_per_s, before.and_then(|limit| limit.bytes_per_s)),
        burst_ms: update.burst_ms.or(before.map(|limit| limit.burst_ms)).unwrap_or(LIMIT_BURST_MS_DEFAULT),
        waiting_count: 3,
        waited_count: 200,
        waited_us: 500_000,
    };
    match limit.iops.is_some() || limit.bytes_per_s.is_some() {
        true => (vec![format!("limit {what}")], Some(limit)),
        false => (vec![format!("limit {what} no longer")], None),
    }
}

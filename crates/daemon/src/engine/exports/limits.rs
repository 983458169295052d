//! Rate limits of volumes, and of hosts at exports: their records in the catalogue, and the
//! limiters that requests pass.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use api::{ErrorCode, LIMIT_BURST_MS_DEFAULT, LimitUpdate, format_bytes, format_duration};
use export::{Limit, Limiter, Waits};
use format::{Catalogue, LimitOf, LimitRecord};

use crate::engine::Group;
use crate::http::{Answer, ControlError};

/// The requests that a host commonly has in flight on one queue.
const QUEUE_DEPTH: u64 = 128;

/// The bytes of a typical large request.
const REQUEST_BYTES: u64 = 128 << 10;

/// The request timeout of Linux' NVMe host by default.
const HOST_TIMEOUT_S: u64 = 30;

fn limit(record: &LimitRecord) -> Limit {
    Limit { iops: record.iops, bytes_per_s: record.bytes_per_s, burst_ms: record.burst_ms }
}

/// A limit as the API shows it.
pub(crate) fn shown(limit: Limit, waits: Waits) -> api::Limit {
    api::Limit {
        iops: limit.iops,
        bytes_per_s: limit.bytes_per_s,
        burst_ms: limit.burst_ms,
        waiting_count: waits.waiting,
        waited_count: waits.waited,
        waited_us: waits.waited_ns / 1000,
    }
}

/// The limit after a request; `None` if nothing is limited.
fn updated(before: Option<Limit>, update: &LimitUpdate) -> Option<Limit> {
    // 0 means off.
    let chosen = |asked: Option<u64>, before| asked.map_or(before, |value| Some(value).filter(|&value| value > 0));
    let after = Limit {
        iops: chosen(update.iops, before.and_then(|limit| limit.iops)),
        bytes_per_s: chosen(update.bytes_per_s, before.and_then(|limit| limit.bytes_per_s)),
        burst_ms: update.burst_ms.or(before.map(|limit| limit.burst_ms)).unwrap_or(LIMIT_BURST_MS_DEFAULT),
    };
    (after.iops.is_some() || after.bytes_per_s.is_some()).then_some(after)
}

/// A limit as words.
fn words(limit: &Limit) -> String {
    let iops = limit.iops.map(|iops| format!("{iops} requests"));
    let bytes = limit.bytes_per_s.map(format_bytes);
    let rates: Vec<String> = iops.into_iter().chain(bytes).collect();
    let burst = format_duration(Duration::from_millis(limit.burst_ms));
    format!("{} a second, and what {burst} allow at once", rates.join(" and "))
}

/// Warnings about a limit that may make hosts time out.
fn warnings(limit: Option<Limit>) -> Vec<String> {
    let Some(limit) = limit else { return Vec::new() };
    let iops_s = limit.iops.map_or(0, |iops| QUEUE_DEPTH / iops);
    let seconds = iops_s.max(limit.bytes_per_s.map_or(0, |bytes| QUEUE_DEPTH * REQUEST_BYTES / bytes));
    if seconds < HOST_TIMEOUT_S {
        return Vec::new();
    }
    let slow = Duration::from_secs(seconds);
    vec![format!(
        "{QUEUE_DEPTH} requests of {} take {} at this limit: NVMe hosts that wait for more than {HOST_TIMEOUT_S}s give up and \
         connect again",
        format_bytes(REQUEST_BYTES),
        format_duration(slow)
    )]
}

/// A requested change of one limit.
pub(crate) struct LimitChange {
    pub steps: Vec<String>,
    pub warnings: Vec<String>,
    pub after: Option<Limit>,
}

impl LimitChange {
    /// `what` is the volume or host, as in "limit ... to".
    pub fn of(catalogue: &Catalogue, of: &LimitOf, update: &LimitUpdate, what: &str) -> Answer<LimitChange> {
        let before = catalogue.limits.iter().find(|record| record.of == *of).map(limit);
        let after = updated(before, update);
        if before.is_none() && after.is_none() {
            let message = format!("{what} is not limited: name a number of requests or a bandwidth first");
            return Err(ControlError::new(ErrorCode::Invalid, message));
        }
        let step = match after {
            Some(after) => format!("limit {what} to {}", words(&after)),
            None => format!("limit {what} no longer"),
        };
        let steps = if before == after { Vec::new() } else { vec![step] };
        Ok(LimitChange { steps, warnings: warnings(after), after })
    }

    /// Records the limit in the catalogue.
    pub fn record(&self, of: LimitOf, catalogue: &mut Catalogue) {
        catalogue.limits.retain(|record| record.of != of);
        let record = |Limit { iops, bytes_per_s, burst_ms }| LimitRecord { of, iops, bytes_per_s, burst_ms };
        catalogue.limits.extend(self.after.map(record));
    }
}

impl Group {
    /// The rate limiter of a volume, for all its exports.
    pub(crate) fn limiter(&self, volume: u64) -> Arc<Limiter> {
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        limiters.entry(volume).or_default().clone()
    }

    /// Applies the limits of the catalogue to volumes.
    pub(crate) fn limit_volumes(&self, catalogue: &Catalogue) {
        for record in &catalogue.limits {
            if let LimitOf::Volume(volume) = record.of {
                self.limiter(volume).set(Some(limit(record)));
            }
        }
    }

    /// Removes the limiter of a volume that was deleted.
    pub(crate) fn forget_limiter(&self, volume: u64) {
        self.limiters.lock().unwrap_or_else(PoisonError::into_inner).remove(&volume);
    }
}

/// The limits of the catalogue for an export's hosts.
pub(crate) fn of_hosts(catalogue: &Catalogue, id: u64) -> Vec<(String, Limit)> {
    let of_export = |record: &LimitRecord| match &record.of {
        LimitOf::Host { export, host } if *export == id => Some((host.clone(), limit(record))),
        _ => None,
    };
    catalogue.limits.iter().filter_map(of_export).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_for_stays_and_zero_is_off() {
        let asked = |iops, bytes_per_s, burst_ms| LimitUpdate { iops, bytes_per_s, burst_ms, dry_run: false };
        let both = Limit { iops: Some(20_000), bytes_per_s: Some(500 << 20), burst_ms: 2000 };
        assert_eq!(
            updated(None, &asked(Some(5), None, None)),
            Some(Limit { iops: Some(5), bytes_per_s: None, burst_ms: 100 })
        );
        assert_eq!(updated(None, &asked(Some(20_000), Some(500 << 20), Some(2000))), Some(both));
        assert_eq!(updated(Some(both), &asked(Some(0), None, None)), Some(Limit { iops: None, ..both }));
        assert_eq!(updated(Some(both), &asked(Some(0), Some(0), None)), None);
        assert_eq!(updated(None, &asked(None, None, Some(50))), None);
        assert_eq!(words(&both), "20000 requests and 500 MiB a second, and what 2s allow at once");
        assert!(warnings(Some(both)).is_empty() && warnings(None).is_empty());
        let slow = warnings(Some(Limit { iops: Some(2), bytes_per_s: None, burst_ms: 100 }));
        assert!(slow[0].starts_with("128 requests of 128 KiB take 64s at this limit"), "{slow:?}");
    }
}

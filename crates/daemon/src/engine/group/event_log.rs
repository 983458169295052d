//! The event log of a group's drives: drives that left with the reason, and events of drives that
//! stay.
//!
//! A bad drive can fail thousands of operations per second. So a rate limiter writes one line for
//! each drive and kind of event per [`EVERY`], with the count since the last line.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use array::{Cause, DriveId, Event};

use crate::engine::group::group_drive::GroupDrive;

/// The minimum time between equal lines about a drive.
const EVERY: Duration = Duration::from_secs(10);

/// A rate limiter: when an event was last logged, and how often it happened since.
#[derive(Debug, Default)]
struct RateLimiter {
    said: Option<Instant>,
    count: u64,
}

impl RateLimiter {
    /// Counts an event. `Some` if it is to be logged: the count since the last line.
    fn happened(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.said.is_some_and(|said| now.duration_since(said) < EVERY) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// The kinds of events that repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Repeated {
    Needed,
    Retried,
    Flawed,
    Healed,
}

/// The event log of one group.
struct Log {
    /// Its current name.
    group: Arc<RwLock<String>>,
    drives: Arc<RwLock<Vec<Option<GroupDrive>>>>,
    rate_limiters: RefCell<BTreeMap<(DriveId, Repeated), RateLimiter>>,
}

/// Makes the function that logs the events of a group's drives.
pub(crate) fn log_events(
    group: Arc<RwLock<String>>,
    drives: Arc<RwLock<Vec<Option<GroupDrive>>>>,
) -> Box<dyn Fn(Event) + Send> {
    let log = Log { group, drives, rate_limiters: RefCell::default() };
    Box::new(move |event| log.say(event))
}

impl Log {
    fn name(&self, id: DriveId) -> String {
        let drives = self.drives.read().unwrap_or_else(PoisonError::into_inner);
        let name = drives.get(usize::from(id.0)).and_then(|drive| drive.as_ref().map(|drive| drive.name.clone()));
        name.unwrap_or_else(|| "unknown".into())
    }

    /// The count of an event, if it is to be logged now.
    fn times(&self, drive: DriveId, what: Repeated) -> Option<u64> {
        self.rate_limiters.borrow_mut().entry((drive, what)).or_default().happened(Instant::now())
    }

    fn say(&self, event: Event) {
        let group = self.group.read().unwrap_or_else(PoisonError::into_inner).clone();
        match event {
            Event::MemberFailed { member, drive, cause: cause @ Cause::Operator } => {
                let drive = self.name(drive);
                tracing::warn!(group, slot = member.0, drive, %cause, "member was taken out: the group goes on without it");
            }
            Event::MemberFailed { member, drive, cause } => {
                let drive = self.name(drive);
                tracing::error!(group, slot = member.0, drive, %cause, "member failed: the group goes on without it");
            }
            Event::MemberNeeded { member, drive, cause } => {
                let Some(times) = self.times(drive, Repeated::Needed) else { return };
                let (slot, drive) = (member.0, self.name(drive));
                tracing::error!(group, slot, drive, %cause, times, "member fails, and the group cannot do without it");
            }
            Event::MemberSlow { member, drive } => {
                tracing::warn!(
                    group,
                    slot = member.0,
                    drive = self.name(drive),
                    "member is far slower than the others"
                );
            }
            Event::MemberRetired { member, drive } => {
                tracing::error!(
                    group,
                    slot = member.0,
                    drive = self.name(drive),
                    "slow member is retired: a spare takes its place"
                );
            }
            Event::SpareFailed { drive, cause } => {
                tracing::error!(group, drive = self.name(drive), %cause, "spare failed");
            }
            Event::Retried { member, drive, failure } => {
                let Some(times) = self.times(drive, Repeated::Retried) else { return };
                let (slot, drive) = (member.0, self.name(drive));
                tracing::warn!(group, slot, drive, %failure, times, "operation failed, and is tried again");
            }
            Event::BytesFlawed { member, drive, offset, len, flaw } => {
                let Some(times) = self.times(drive, Repeated::Flawed) else { return };
                let (slot, drive) = (member.0, self.name(drive));
                tracing::warn!(group, slot, drive, offset, len, %flaw, times, "bytes cannot be used as they are read");
            }
            Event::BytesHealed { member, drive, offset, len } => {
                let Some(times) = self.times(drive, Repeated::Healed) else { return };
                let (slot, drive) = (member.0, self.name(drive));
                tracing::warn!(
                    group,
                    slot,
                    drive,
                    offset,
                    len,
                    times,
                    "bytes were computed from the other members and written back"
                );
            }
            Event::RebuildStarted { member, drive, dirty_bytes: None } => {
                tracing::info!(group, slot = member.0, drive = self.name(drive), "rebuild started");
            }
            Event::RebuildStarted { member, drive, dirty_bytes: Some(dirty_bytes) } => {
                let drive = self.name(drive);
                tracing::info!(group, slot = member.0, drive, dirty_bytes, "back: gets what it missed");
            }
            Event::RebuildFinished { member, drive } => {
                tracing::info!(group, slot = member.0, drive = self.name(drive), "rebuild finished");
            }
            Event::RebuildStopped { member, reason } => {
                tracing::error!(group, slot = member.0, reason, "rebuild stopped");
            }
            Event::ReplaceStarted { member, drive } => {
                tracing::info!(
                    group,
                    slot = member.0,
                    drive = self.name(drive),
                    "member is being copied to another drive"
                );
            }
            Event::Replaced { member, drive } => {
                let (slot, drive) = (member.0, self.name(drive));
                tracing::info!(group, slot, drive, "member was replaced: the drive that was there can be taken out");
            }
            Event::ReplaceStopped { member, drive, reason } => {
                let (slot, drive) = (member.0, self.name(drive));
                tracing::error!(group, slot, drive, reason, "member was not replaced");
            }
            Event::ScrubFinished { found: 0, repaired } => {
                tracing::info!(group, repaired, "scrub finished: data and parity agree");
            }
            Event::ScrubFinished { found, repaired } => {
                tracing::warn!(group, found, repaired, "scrub finished: data and parity differed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequent_event_of_a_drive_is_logged_at_a_limited_rate_with_its_count() {
        let (mut rate_limiters, now) = (RateLimiter::default(), Instant::now());
        assert_eq!(rate_limiters.happened(now), Some(1));
        assert_eq!((rate_limiters.happened(now), rate_limiters.happened(now + EVERY / 2)), (None, None));
        assert_eq!(rate_limiters.happened(now + EVERY), Some(3));
        assert_eq!(rate_limiters.happened(now + EVERY), None);
    }
}

//! The event log of a group's drives: drives that left with the reason, and events of drives that
//! stay.
//!
//! A bad drive can fail thousands of operations per second. So a rate limiter writes one line for
//! each drive and kind of event in a while, with the count since the last line.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use array::{Cause, DriveId, Event, Failure, Flaw, MemberIndex};
use drive::Env;
use export::LogLimiter;
use runtime::ShardEnv;

use crate::engine::group::group_drive::GroupDrive;

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
    /// One limiter for each kind: a group has fewer drives than a limiter has lines, so each drive
    /// has a line of its own.
    limiters: RefCell<BTreeMap<Repeated, LogLimiter<DriveId>>>,
}

/// Makes the function that logs the events of a group's drives. It is called on a shard.
pub(crate) fn log_events(
    group: Arc<RwLock<String>>,
    drives: Arc<RwLock<Vec<Option<GroupDrive>>>>,
) -> Box<dyn Fn(Event) + Send> {
    let log = Log { group, drives, limiters: RefCell::default() };
    Box::new(move |event| log.write(event))
}

impl Log {
    fn name(&self, id: DriveId) -> String {
        let drives = self.drives.read().unwrap_or_else(PoisonError::into_inner);
        let name = drives.get(usize::from(id.0)).and_then(|drive| drive.as_ref().map(|drive| drive.name.clone()));
        name.unwrap_or_else(|| "unknown".into())
    }

    /// The count of an event, if it is to be logged now.
    fn times(&self, drive: DriveId, what: Repeated) -> Option<u64> {
        self.limiters.borrow_mut().entry(what).or_default().happened(drive, ShardEnv::current().now())
    }

    fn group(&self) -> String {
        self.group.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, event: Event) {
        match event {
            Event::MemberFailed { member, drive, cause } => self.member_failed(member, drive, &cause),
            Event::MemberNeeded { member, drive, cause } => self.member_needed(member, drive, &cause),
            Event::MemberSlow { member, drive } => {
                let (group, slot, drive) = (self.group(), member.0, self.name(drive));
                tracing::warn!(group, slot, drive, "member is far slower than the others");
            }
            Event::MemberRetired { member, drive } => {
                let (group, slot, drive) = (self.group(), member.0, self.name(drive));
                tracing::error!(group, slot, drive, "slow member is retired: a spare takes its place");
            }
            Event::SpareFailed { drive, cause } => {
                tracing::error!(group = self.group(), drive = self.name(drive), %cause, "spare failed");
            }
            Event::Retried { member, drive, failure } => self.retried(member, drive, &failure),
            Event::BytesFlawed { member, drive, offset, len, flaw } => self.flawed(member, drive, offset, len, &flaw),
            Event::BytesHealed { member, drive, offset, len } => self.healed(member, drive, offset, len),
            Event::RebuildStarted { member, drive, dirty_bytes } => self.rebuild_started(member, drive, dirty_bytes),
            Event::RebuildFinished { member, drive } => {
                tracing::info!(group = self.group(), slot = member.0, drive = self.name(drive), "rebuild finished");
            }
            Event::RebuildStopped { member, reason } => {
                tracing::error!(group = self.group(), slot = member.0, reason, "rebuild stopped");
            }
            Event::ReplaceStarted { member, drive } => {
                let (group, slot, drive) = (self.group(), member.0, self.name(drive));
                tracing::info!(group, slot, drive, "member is being copied to another drive");
            }
            Event::Replaced { member, drive } => {
                let (group, slot, drive) = (self.group(), member.0, self.name(drive));
                tracing::info!(group, slot, drive, "member was replaced: the drive that was there can be taken out");
            }
            Event::ReplaceStopped { member, drive, reason } => {
                let (group, slot, drive) = (self.group(), member.0, self.name(drive));
                tracing::error!(group, slot, drive, reason, "member was not replaced");
            }
            Event::ScrubFinished { found: 0, repaired } => {
                tracing::info!(group = self.group(), repaired, "scrub finished: data and parity agree");
            }
            Event::ScrubFinished { found, repaired } => {
                tracing::warn!(group = self.group(), found, repaired, "scrub finished: data and parity differed");
            }
        }
    }

    fn member_failed(&self, member: MemberIndex, drive: DriveId, cause: &Cause) {
        let (group, slot, drive) = (self.group(), member.0, self.name(drive));
        if matches!(cause, Cause::Operator) {
            tracing::warn!(group, slot, drive, %cause, "member was taken out: the group goes on without it");
        } else {
            tracing::error!(group, slot, drive, %cause, "member failed: the group goes on without it");
        }
    }

    fn member_needed(&self, member: MemberIndex, drive: DriveId, cause: &Cause) {
        let Some(times) = self.times(drive, Repeated::Needed) else { return };
        let (group, slot, drive) = (self.group(), member.0, self.name(drive));
        tracing::error!(group, slot, drive, %cause, times, "member fails, and the group cannot do without it");
    }

    fn retried(&self, member: MemberIndex, drive: DriveId, failure: &Failure) {
        let Some(times) = self.times(drive, Repeated::Retried) else { return };
        let (group, slot, drive) = (self.group(), member.0, self.name(drive));
        tracing::warn!(group, slot, drive, %failure, times, "operation failed, and is tried again");
    }

    fn flawed(&self, member: MemberIndex, drive: DriveId, offset: u64, len: u64, flaw: &Flaw) {
        let Some(times) = self.times(drive, Repeated::Flawed) else { return };
        let (group, slot, drive) = (self.group(), member.0, self.name(drive));
        tracing::warn!(group, slot, drive, offset, len, %flaw, times, "bytes cannot be used as they are read");
    }

    fn healed(&self, member: MemberIndex, drive: DriveId, offset: u64, len: u64) {
        let Some(times) = self.times(drive, Repeated::Healed) else { return };
        let (group, slot, drive) = (self.group(), member.0, self.name(drive));
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

    fn rebuild_started(&self, member: MemberIndex, drive: DriveId, dirty_bytes: Option<u64>) {
        let (group, slot, drive) = (self.group(), member.0, self.name(drive));
        match dirty_bytes {
            None => tracing::info!(group, slot, drive, "rebuild started"),
            Some(dirty_bytes) => tracing::info!(group, slot, drive, dirty_bytes, "back: gets what it missed"),
        }
    }
}

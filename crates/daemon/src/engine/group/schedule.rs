//! When a group is due for a scrub, and what delays it.
//!
//! Rules:
//! 1. The interval counts from the end of the last complete scrub. Without one, it counts from the
//!    creation of the group. If a scrub was stopped on request, it counts from that moment.
//! 2. Groups are spread: each starts up to a tenth of the interval early, depending on its UUID,
//!    and never late.
//! 3. A recorded time in the future was written with a wrong clock. The scrub is due at once, which
//!    corrects the record.
//! 4. A scrub starts only when all members are in sync, without a rebuild or resync. Otherwise much
//!    could not be compared.

use api::{LastScrub, ScrubSchedule};
use array::{GroupStatus, JobKind, JobState, JobStatus};
use format::{Catalogue, MemberState, ScrubRecord, SettingsRecord, Uuid};

use crate::engine::group::{Group, maintenance};
use crate::engine::view::Moment;

/// How far a clock may be set back before a recorded time counts as wrong.
const CLOCK_SLACK_S: u64 = 24 * 3600;

/// Starts are spread over this fraction of the interval: one tenth.
const SPREAD: u64 = 10;

/// When the next scrub of a group is due, in seconds since 1970. In the past if it is overdue.
pub(crate) fn due_unix_s(
    status: &GroupStatus,
    settings: &SettingsRecord,
    scrub: &ScrubRecord,
    now: u64,
) -> Option<u64> {
    let every = settings.scrub_every_s.filter(|_| status.superblock.shape.survives() > 0)?;
    let moments = [scrub.last.as_ref().map(|last| last.ended_unix_s), scrub.skipped_unix_s];
    let from = moments.into_iter().flatten().max().unwrap_or(status.superblock.created_unix_s);
    if from > now.saturating_add(CLOCK_SLACK_S) {
        return Some(now);
    }
    Some(from.saturating_add(every - early_s(&status.superblock.array, every)))
}

/// How long before the end of its interval a group is scrubbed.
fn early_s(array: &Uuid, every: u64) -> u64 {
    let [a, b, c, d, ..] = *array.as_bytes();
    u64::from(u32::from_le_bytes([a, b, c, d])) % (every / SPREAD).max(1)
}

pub(crate) fn is_open(job: &JobStatus) -> bool {
    job.ended.is_none()
}

/// The rebuild or resync that a scrub has to wait for, in words.
pub(crate) fn more_urgent(status: &GroupStatus) -> Option<String> {
    status.jobs.iter().filter(|job| is_open(job)).find_map(|job| match job.kind {
        JobKind::Rebuild(member) => Some(format!("slot {} is being rebuilt", member.0)),
        JobKind::Replace(member) => Some(format!("slot {} is being copied to another drive", member.0)),
        JobKind::Resync => Some("parity is being made to fit the data".to_owned()),
        JobKind::Scrub => None,
    })
}

/// The reason why no scrub can start, in words.
pub(crate) fn obstacle(status: &GroupStatus) -> Option<String> {
    let lost = status.members.iter().find(|member| member.state != MemberState::InSync);
    let lost = lost.map(|member| match member.state {
        MemberState::Rebuilding => format!("slot {} is being rebuilt", member.member.0),
        state => format!("slot {} is {}", member.member.0, state.name()),
    });
    more_urgent(status).or(lost)
}

/// The last and next scrub of a group, as the API shows them.
pub(crate) fn shown(group: &Group, status: &GroupStatus, catalogue: &Catalogue, moment: &Moment) -> ScrubSchedule {
    let scrub = status.jobs.iter().rfind(|job| job.kind == JobKind::Scrub);
    let open = scrub.filter(|job| is_open(job));
    let mut record = catalogue.scrub.clone();
    // A scrub that ended a moment ago may not be recorded yet.
    if let Some(job) = scrub.filter(|job| job.state == JobState::Done && !group.maintenance.has_recorded(job.id)) {
        let ago_s = moment.shard_ns.saturating_sub(job.ended.unwrap_or(moment.shard_ns)) / 1_000_000_000;
        record.last = Some(maintenance::end_of(job, moment.unix_s.saturating_sub(ago_s)));
        record.current = None;
    }
    let held = group.maintenance.is_held();
    let paused = match (open, &record.current) {
        (Some(job), _) => job.state == JobState::Paused && !held,
        (None, Some(point)) => point.paused,
        (None, None) => false,
    };
    let active = open.is_some() || record.current.is_some();
    let due = due_unix_s(status, &catalogue.settings, &record, moment.unix_s);
    let next_unix_s = due.map(|due| due.max(group.maintenance.not_before_unix_s()));
    let waits_for = match next_unix_s {
        _ if paused => None,
        _ if held || (active && open.is_none()) => more_urgent(status),
        Some(due) if !active && due <= moment.unix_s => {
            obstacle(status).or(moment.scrubbed.as_ref().map(|other| format!("the scrub of {other} is under way")))
        }
        _ => None,
    };
    let last = record.last.map(|last| LastScrub {
        ended_unix_s: last.ended_unix_s,
        repair: last.repair,
        mismatch_count: last.found,
        repaired_count: last.repaired,
        unchecked_count: last.unchecked,
    });
    ScrubSchedule { last, next_unix_s: next_unix_s.filter(|_| !active), active, paused, waits_for }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: u64 = 30 * 86_400;

    #[test]
    fn groups_start_on_different_days_and_none_later_than_asked_for() {
        let early: Vec<u64> =
            (0..100u8).map(|n| early_s(&Uuid::from_random([n.wrapping_mul(37); 16]), EVERY)).collect();
        assert!(early.iter().all(|&early| early < EVERY / 10), "{early:?}");
        let mut days: Vec<u64> = early.iter().map(|early| early / 86_400).collect();
        days.sort_unstable();
        days.dedup();
        assert_eq!(days, [0, 1, 2], "all of the tenth is used");
        assert_eq!(early_s(&Uuid::from_random([9; 16]), 3), 0, "an interval too short to be spread");
    }
}

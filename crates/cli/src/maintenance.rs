//! Output of the maintenance settings and scrubs of a group.

use std::time::Duration;

use api::{
    Group, GroupSettings, LastScrub, PlaceContent, PlaceFault, Scrub, ScrubPlace, ScrubSchedule, format_duration,
};

use crate::fit::WIDTH;
use crate::moment::{date, minute};
use crate::table::job_line;

/// Lines of `purlin group show`: settings, the last scrub and the next.
pub fn pairs(group: &Group) -> Vec<(&'static str, String)> {
    let GroupSettings { client_p99_us, retire_slow, scrub_every_s, ref thin_warn_percents } = group.settings;
    let p99 = client_p99_us.map_or_else(|| "no target".to_owned(), |us| format_duration(Duration::from_micros(us)));
    let every = scrub_every_s.map_or_else(|| "off".to_owned(), |s| format_duration(Duration::from_secs(s)));
    let levels: Vec<String> = thin_warn_percents.iter().map(|level| format!("{level}%")).collect();
    let warn = if levels.is_empty() { "off".to_owned() } else { levels.join(", ") };
    let mut rows = vec![
        ("client p99", p99),
        ("retire slow", if retire_slow { "on" } else { "off" }.to_owned()),
        ("scrub every", every),
        ("last scrub", last(group.scrub.last.as_ref())),
        ("next scrub", next(&group.scrub, scrub_every_s.is_some())),
    ];
    rows.extend(group.thin.map(|_| ("thin warn", warn)));
    rows
}

fn differences(last: &LastScrub) -> String {
    let found = match last.mismatch_count {
        0 => "no differences".to_owned(),
        1 => format!("1 difference, {} put right", last.repaired_count),
        count => format!("{count} differences, {} put right", last.repaired_count),
    };
    match last.unchecked_count {
        0 => found,
        count => format!("{found}, {count} stripes could not be compared"),
    }
}

fn last(last: Option<&LastScrub>) -> String {
    last.map_or_else(|| "never".to_owned(), |last| format!("{}, {}", minute(last.ended_unix_s), differences(last)))
}

fn next(scrub: &ScrubSchedule, is_scheduled: bool) -> String {
    let when = match (scrub.active, scrub.next_unix_s) {
        (true, _) if scrub.paused => "paused".to_owned(),
        (true, _) => "under way".to_owned(),
        (false, Some(due)) => minute(due),
        (false, None) if is_scheduled => "never: without redundancy there is nothing to compare".to_owned(),
        (false, None) => "on request".to_owned(),
    };
    match &scrub.waits_for {
        Some(reason) => format!("{when}, waits: {reason}"),
        None => when,
    }
}

/// The date of the next scrub, for a cell of `purlin status`.
pub fn next_cell(scrub: &ScrubSchedule) -> String {
    match (scrub.active, scrub.next_unix_s) {
        (true, _) if scrub.paused => "paused".to_owned(),
        (true, _) => "under way".to_owned(),
        (false, Some(_)) if scrub.waits_for.is_some() => "waits".to_owned(),
        (false, Some(due)) => date(due),
        (false, None) => "-".to_owned(),
    }
}

/// `purlin group scrub`: the state of the scrub and its findings.
pub fn scrub(group: &str, scrub: &Scrub) -> String {
    let Some(job) = &scrub.job else {
        let (last, next) = (last(scrub.schedule.last.as_ref()), next(&scrub.schedule, false));
        return format!("{group}: no scrub since the daemon started; last {last}; next {next}\n");
    };
    let room = WIDTH.saturating_sub(group.chars().count() + 2);
    let mut text = format!("{group}: {}\n", job_line(job, room));
    if let Some(findings) = &job.findings {
        for place in &findings.places {
            text.push_str(&format!("  {}\n", place_line(place)));
        }
        let left_out = findings.mismatch_count.saturating_sub(findings.places.len() as u64);
        if left_out > 0 {
            text.push_str(&format!("  and {left_out} more, in the log of the daemon where they are not listed here\n"));
        }
        if findings.unchecked_count > 0 {
            text.push_str(&format!("  {} stripes could not be compared\n", findings.unchecked_count));
        }
    }
    text
}

/// The fault of a member at a place.
fn wrong(fault: PlaceFault) -> &'static str {
    match fault {
        PlaceFault::Damaged => "is damaged",
        PlaceFault::Unreadable => "is unreadable",
        PlaceFault::Checksum => "has a wrong checksum",
        PlaceFault::Contradiction => "contradicts its stripe",
        PlaceFault::Unknown => "is wrong",
    }
}

/// A finding: the data concerned, the drive, and the result.
fn place_line(place: &ScrubPlace) -> String {
    let volumes: Vec<String> =
        place.volumes.iter().map(|at| format!("{} at byte {}", at.volume, at.offset_bytes)).collect();
    let what = match place.content {
        PlaceContent::Parity => "parity".to_owned(),
        _ if volumes.is_empty() => "free space".to_owned(),
        PlaceContent::Data | PlaceContent::Unknown => volumes.join(", "),
        PlaceContent::Either => format!("parity, or one of {}", volumes.join(", ")),
    };
    let drive = place.drive.as_ref().map(|drive| format!(" ({drive})")).unwrap_or_default();
    let at = format!("{} at byte {}", wrong(place.fault), place.member_offset_bytes);
    let who = match place.slot {
        Some(slot) => format!("slot {slot}{drive} {at}"),
        None => format!("an unknown member {at}"),
    };
    let fate = if place.repaired { "put right" } else { "left as it is" };
    format!("{what}: {who}, {fate}")
}

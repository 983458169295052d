//! Results of a rescue as text.

use api::format_bytes;
use comfy_table::{Cell, Color};
use rescue::{
    CheckReport, CheckedGroup, CopyReport, DriveReport, DriveRole, ExtractReport, Finding, GroupReport, Health,
    ListReport, LogCount, ParityCount, VolumeKind, VolumeReport,
};

use crate::fit::{Column, table};
use crate::table::{dash, pairs, size};

/// Maximum number of lost ranges that are shown; the JSON has all of them.
const LOST_SHOWN: usize = 20;

/// `purlin rescue list`.
pub fn list(colour: bool, report: &ListReport) -> String {
    let mut text = drives(colour, &report.drives);
    for drive in &report.drives {
        let holds = drive.holds.iter().map(|what| format!("holds {what}"));
        for line in drive.message.iter().cloned().chain(holds) {
            text.push_str(&format!("{}: {line}\n", drive.name));
        }
    }
    for one in &report.groups {
        text.push('\n');
        text.push_str(&group(colour, one));
    }
    text
}

fn word<T: ToString>(value: Option<T>) -> Cell {
    value.map_or_else(dash, |value| Cell::new(value.to_string()))
}

fn drives(colour: bool, drives: &[DriveReport]) -> String {
    let row = |drive: &DriveReport| {
        let (role, tint) = match drive.role {
            DriveRole::Member => ("member", Color::Green),
            DriveRole::Spare => ("spare", Color::Green),
            DriveRole::Stale => ("stale", Color::Yellow),
            DriveRole::Copy => ("copy", Color::Yellow),
            DriveRole::None => ("none", Color::Reset),
            DriveRole::Damaged => ("damaged", Color::Red),
            DriveRole::Unreadable => ("unreadable", Color::Red),
        };
        let clean = drive.clean.map(|clean| if clean { "clean" } else { "in use" });
        vec![
            Cell::new(&drive.name),
            drive.size_bytes.map_or_else(dash, size),
            Cell::new(role).fg(tint),
            word(drive.group.as_ref()),
            word(drive.slot),
            word(drive.epoch),
            word(clean),
            copy(drive.head),
            copy(drive.tail),
        ]
    };
    let columns = [
        Column::Word("DRIVE"),
        Column::Number("SIZE"),
        Column::Word("ROLE"),
        Column::Word("GROUP"),
        Column::Number("SLOT"),
        Column::Number("EPOCH"),
        Column::Word("STATE"),
        Column::Word("HEAD"),
        Column::Word("TAIL"),
    ];
    table(colour, &columns, drives.iter().map(row).collect())
}

fn copy(copy: CopyReport) -> Cell {
    let (name, tint) = match copy {
        CopyReport::Valid => ("valid", Color::Green),
        CopyReport::Behind => ("behind", Color::Yellow),
        CopyReport::Absent => ("-", Color::Reset),
        CopyReport::Damaged => ("damaged", Color::Red),
        CopyReport::Unknown => ("unknown version", Color::Red),
        CopyReport::Unreadable => ("unreadable", Color::Red),
    };
    Cell::new(name).fg(tint)
}

fn group(colour: bool, group: &GroupReport) -> String {
    let health = match group.health {
        Health::Optimal => "optimal".to_owned(),
        Health::Degraded => format!("degraded: {} more of any set may be lost", group.losses_left),
        Health::Failed => {
            format!("failed: more is missing than the {} that {} survives", group.losses_max, group.level)
        }
    };
    let mut text = pairs(&[
        ("group", group.name.clone()),
        ("uuid", group.uuid.clone()),
        (
            "level",
            format!("{} of {} members, strips of {}", group.level, group.member_count, format_bytes(group.strip_bytes)),
        ),
        ("health", health),
        ("capacity", format_bytes(group.capacity_bytes)),
        (
            "epoch",
            format!("{}, {}", group.epoch, if group.clean { "stopped in order" } else { "not stopped in order" }),
        ),
    ]);
    for warning in &group.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text.push('\n');
    let members = group.members.iter().map(|member| {
        let tint = if member.state == "in_sync" { Color::Green } else { Color::Red };
        vec![
            Cell::new(member.slot),
            Cell::new(member.set),
            Cell::new(&member.state).fg(tint),
            word(member.drive.as_ref()),
            Cell::new(&member.uuid),
        ]
    });
    let columns = [
        Column::Number("SLOT"),
        Column::Number("SET"),
        Column::Word("STATE"),
        Column::Word("DRIVE"),
        Column::Word("UUID"),
    ];
    text.push_str(&table(colour, &columns, members.collect()));
    for spare in &group.spares {
        text.push_str(&format!("spare {}  {}\n", spare.uuid, spare.drive.as_deref().unwrap_or("not there")));
    }
    text.push('\n');
    text.push_str(&volumes(colour, group));
    text
}

fn volumes(colour: bool, group: &GroupReport) -> String {
    if group.volumes.is_empty() {
        return "no volumes\n".to_owned();
    }
    let rows = group.volumes.iter().map(|volume| {
        let exports = group.exports.iter().filter(|export| export.volume == volume.name);
        let exports: Vec<String> = exports.map(|export| format!("{} {}", export.protocol, export.address)).collect();
        vec![
            Cell::new(&volume.name),
            Cell::new(kind(volume)),
            size(volume.size_bytes),
            size(volume.written_bytes),
            if volume.lost_bytes == 0 { dash() } else { size(volume.lost_bytes) },
            if exports.is_empty() { dash() } else { Cell::new(exports.join(", ")) },
        ]
    });
    let columns = [
        Column::Word("VOLUME"),
        Column::Word("KIND"),
        Column::Number("SIZE"),
        Column::Number("WRITTEN"),
        Column::Number("LOST"),
        Column::Long("EXPORTS"),
    ];
    table(colour, &columns, rows.collect())
}

/// `thin`, or `direct>thin` while it is being converted, as in `purlin volume list`.
fn kind(volume: &VolumeReport) -> String {
    let name = |kind: VolumeKind| match kind {
        VolumeKind::Direct => "direct",
        VolumeKind::Thin => "thin",
    };
    let to = volume.converting_to.map(|to| format!(">{}", name(to)));
    format!("{}{}", name(volume.kind), to.unwrap_or_default())
}

/// `purlin rescue check`.
pub fn check(report: &CheckReport) -> String {
    let mut text = String::new();
    for group in &report.groups {
        text.push_str(&checked(group));
        for warning in &group.warnings {
            text.push_str(&format!("warning: {}: {warning}\n", group.name));
        }
    }
    if report.groups.is_empty() {
        text.push_str("no group is on these drives\n");
    }
    for one in &report.findings {
        text.push_str(&finding(one));
    }
    if report.findings.is_empty() && report.complete {
        text.push_str("nothing is wrong\n");
    }
    text
}

fn checked(group: &CheckedGroup) -> String {
    let mut text = format!(
        "{}: {} of {} members; {} superblocks, {} copies of {} map blocks, {} of the table of {} volumes\n",
        group.name,
        group.present_count,
        group.member_count,
        group.superblock_copy_count,
        group.map_copy_count,
        group.map_block_count,
        group.catalogue_copy_count,
        group.volume_count,
    );
    let log = group.log;
    if log != LogCount::default() {
        text.push_str(&format!(
            "{}: log of {} frames, {} records, {} of them not known to be done\n",
            group.name, log.frame_count, log.record_count, log.live_record_count
        ));
    }
    if let Some(ParityCount {
        compared_bytes,
        unchecked_bytes,
        in_log_bytes,
        mismatch_bytes,
        damaged_bytes,
        lost_bytes,
    }) = group.parity
    {
        text.push_str(&format!(
            "{}: compared {} of each member: {} wrong, {} damaged, {} lost, {} being written, {} with nothing to compare to\n",
            group.name,
            format_bytes(compared_bytes),
            format_bytes(mismatch_bytes),
            format_bytes(damaged_bytes),
            format_bytes(lost_bytes),
            format_bytes(in_log_bytes),
            format_bytes(unchecked_bytes)
        ));
    }
    text
}

/// `tank slot 2 /dev/sdc, bytes 4096 to 8192: slot A of map block 0: ...`
fn finding(finding: &Finding) -> String {
    let mut whose: Vec<String> = finding.group.iter().cloned().collect();
    whose.extend(finding.slot.map(|slot| format!("slot {slot}")));
    whose.extend(finding.drive.clone());
    let place = finding.offset_bytes.zip(finding.len_bytes);
    let place = place.map_or_else(String::new, |(offset, len)| format!(", bytes {offset} to {}", offset + len));
    format!("{}{place}: {}\n", whose.join(" "), finding.message)
}

/// `purlin rescue extract`.
pub fn extract(report: &ExtractReport) -> String {
    let lost = match report.lost_bytes {
        0 => String::new(),
        bytes => format!(", {} lost", format_bytes(bytes)),
    };
    let mut text = format!(
        "{} to {}: {}, of which {} data ({} computed) and {} never written{lost}\n",
        report.volume,
        report.target,
        format_bytes(report.size_bytes),
        format_bytes(report.data_bytes),
        format_bytes(report.computed_bytes),
        format_bytes(report.hole_bytes)
    );
    if report.unknown_bytes > 0 {
        let bytes = format_bytes(report.unknown_bytes);
        text.push_str(&format!("{bytes} of the lost bytes may never have been written: their map is lost\n"));
    }
    if report.rebuilt_bytes > 0 {
        text.push_str(&format!("map of {} rebuilt from segments\n", format_bytes(report.rebuilt_bytes)));
    }
    for range in report.damaged.iter().take(LOST_SHOWN) {
        let end = range.offset_bytes + range.len_bytes;
        text.push_str(&format!(
            "damaged: slot {} {}, bytes {} to {end}\n",
            range.slot, range.drive, range.offset_bytes
        ));
    }
    if report.damaged.len() > LOST_SHOWN {
        text.push_str(&format!("{} damaged blocks in all: see --output json\n", report.damaged_count));
    }
    for range in report.lost.iter().take(LOST_SHOWN) {
        text.push_str(&format!("lost: bytes {} to {}\n", range.offset_bytes, range.offset_bytes + range.len_bytes));
    }
    if report.lost.len() > LOST_SHOWN {
        text.push_str(&format!("and {} more ranges: see --output json\n", report.lost.len() - LOST_SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::examples::{assert_fits, example};

    #[test]
    fn volumes_on_drives_are_shown_with_their_kind_in_80_columns() {
        let mut report: ListReport = example("RescueList");
        let group = &mut report.groups[0];
        let first = group.volumes[0].clone();
        group.volumes[0].converting_to = Some(VolumeKind::Thin);
        group.volumes.push(VolumeReport {
            name: "tank/images-of-machines".to_owned(),
            kind: VolumeKind::Thin,
            size_bytes: 10 << 40,
            written_bytes: 1_099_000_000_000,
            lost_bytes: (10 << 40) - 4096,
            ..first
        });
        let text = list(false, &report);
        assert_fits(&text[text.find("VOLUME").unwrap()..]);
        assert_snapshot!("rescue_list", text);
    }
}

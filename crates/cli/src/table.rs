//! Tables and figures as text. Their width is in [`crate::fit`].

use api::{
    Conversion, Drive, DriveDetails, DriveHealth, DriveKind, DrivePassthrough, DriveRole, DriveState, Export, Group,
    GroupHealth, GroupNotStarted, Job, JobKind, JobState, Limit, Member, MemberState, Protocol, Reservation,
    ReservationKind, Volume, VolumeKind, format_bytes, format_duration,
};
use std::time::Duration;

use comfy_table::{Cell, Color};

use crate::fit::{Column, WIDTH, count, middle_cut, table, wrapped};
use crate::maintenance;
use crate::progress::{bar, duration, percent};
use crate::{reach, thin};

/// `name  value` lines, the values in one column.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs.iter().map(|(name, value)| format!("{name:width$}  {value}").trim_end().to_owned() + "\n").collect()
}

/// A cell without a value.
pub fn dash() -> Cell {
    Cell::new("-")
}

/// A size.
pub fn size(bytes: u64) -> Cell {
    Cell::new(format_bytes(bytes))
}

fn size_or_dash(bytes: Option<u64>) -> Cell {
    bytes.map_or_else(dash, size)
}

/// A group's health: green, yellow, red.
pub fn health(health: GroupHealth) -> Cell {
    let colour = match health {
        GroupHealth::Optimal => Color::Green,
        GroupHealth::Degraded => Color::Yellow,
        GroupHealth::Failed | GroupHealth::Unknown => Color::Red,
    };
    Cell::new(health.as_str()).fg(colour)
}

fn member_state(state: MemberState) -> Cell {
    let colour = match state {
        MemberState::InSync => Color::Green,
        MemberState::Rebuilding => Color::Yellow,
        MemberState::Missing | MemberState::Faulty | MemberState::Unreachable | MemberState::Unknown => Color::Red,
    };
    Cell::new(state.as_str()).fg(colour)
}

fn drive_state(state: DriveState) -> Cell {
    let (name, colour) = match state {
        DriveState::Online => ("online", Color::Green),
        DriveState::Faulty => ("faulty", Color::Red),
        DriveState::Missing => ("missing", Color::Red),
        DriveState::Unreachable => ("unreachable", Color::Red),
        DriveState::Unknown => ("unknown", Color::Red),
    };
    Cell::new(name).fg(colour)
}

/// Output if there are no groups. Drives may still have some, if the daemon has lost its state
/// directory.
pub const NO_GROUPS: &str = "\
no groups; make one with: purlin group create
groups that are on drives already are found by: purlin group scan
and without the daemon by: purlin rescue list DRIVE...
";

/// `purlin group list`.
pub fn groups(colour: bool, groups: &[Group]) -> String {
    if groups.is_empty() {
        return NO_GROUPS.to_owned();
    }
    let rows = groups.iter().map(|group| {
        let in_sync = group.members.iter().filter(|m| m.state == MemberState::InSync).count();
        vec![
            Cell::new(&group.name),
            Cell::new(group.level),
            health(group.health),
            Cell::new(format!("{in_sync}/{}", group.member_count)),
            Cell::new(group.spares.len()),
            size(group.capacity_bytes),
            size(group.used_bytes),
            size(group.free_bytes),
        ]
    });
    let columns = [
        Column::Long("NAME"),
        Column::Word("LEVEL"),
        Column::Word("HEALTH"),
        Column::Number("IN SYNC"),
        Column::Number("SPARES"),
        Column::Number("CAPACITY"),
        Column::Number("USED"),
        Column::Number("FREE"),
    ];
    table(colour, &columns, rows.collect())
}

/// Groups that could not be started; empty if there are none.
pub fn not_started(groups: &[GroupNotStarted]) -> String {
    let of = |group: &GroupNotStarted| {
        let mut said = format!("\n{}  NOT STARTED\n", group.name);
        said += &wrapped("  reason:  ", &group.reason);
        if !group.missing_drives.is_empty() {
            said += &wrapped("  missing: ", &group.missing_drives.join(" "));
        }
        said + &wrapped("  next:    ", &group.next_step)
    };
    groups.iter().map(of).collect()
}

/// `purlin group show`.
pub fn group(colour: bool, group: &Group) -> String {
    let mut lines = vec![
        ("name", group.name.clone()),
        ("uuid", group.uuid.clone()),
        ("level", level_line(group)),
        ("strip", format_bytes(group.strip_bytes)),
        ("health", health_line(group)),
        ("capacity", format_bytes(group.capacity_bytes)),
        ("in volumes", format_bytes(group.allocated_bytes)),
        ("free", format_bytes(group.free_bytes)),
        ("written", format_bytes(group.used_bytes)),
        ("epoch", format!("{}, {}", group.epoch, if group.clean { "clean" } else { "in use" })),
        ("crash safety", group.crash_safety.note.clone()),
        ("checksums", group.checksums.note.clone()),
        ("shards", group.shards.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    ];
    lines.extend(group.thin.iter().flat_map(thin::pool));
    lines.extend(maintenance::pairs(group));
    let mut text = pairs(&lines);
    for warning in &group.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text.push('\n');
    text.push_str(&members(colour, group));
    if !group.jobs.is_empty() {
        text.push('\n');
        for job in &group.jobs {
            text.push_str(&job_line(job, WIDTH));
            text.push('\n');
        }
    }
    text
}

fn level_line(group: &Group) -> String {
    let shape = if group.copy_count > 1 {
        format!("{} copies", group.copy_count)
    } else {
        format!("{}+{}", group.data_count, group.parity_count)
    };
    match group.set_count {
        0 | 1 => format!("{}, {shape}", group.level),
        sets => format!("{}, {sets} sets of {shape}", group.level),
    }
}

fn health_line(group: &Group) -> String {
    let left = match group.losses_left {
        0 => "no member may be lost".to_owned(),
        1 => "1 more member may be lost".to_owned(),
        left => format!("{left} more members may be lost"),
    };
    match group.health {
        GroupHealth::Failed => "failed".to_owned(),
        health => format!("{}, {left}", health.as_str()),
    }
}

fn members(colour: bool, group: &Group) -> String {
    let row = |member: &Member| {
        vec![
            Cell::new(member.slot),
            Cell::new(member.set),
            member_state(member.state),
            Cell::new(member.drive.as_deref().unwrap_or("-")),
            size_or_dash(member.size_bytes),
            Cell::new(member.errors.failed_count()),
            Cell::new(member.errors.damaged_count),
        ]
    };
    let mut rows: Vec<Vec<Cell>> = group.members.iter().map(row).collect();
    let copies = group.members.iter().filter_map(|member| Some((member.slot, member.replacement.as_deref()?)));
    for (slot, drive) in copies {
        let state = format!("copy of {slot}");
        rows.push(vec![dash(), dash(), Cell::new(state), Cell::new(drive), dash(), dash(), dash()]);
    }
    for spare in &group.spares {
        rows.push(vec![
            dash(),
            dash(),
            Cell::new("spare"),
            Cell::new(&spare.drive),
            size(spare.size_bytes),
            dash(),
            dash(),
        ]);
    }
    let columns = [
        Column::Number("SLOT"),
        Column::Number("SET"),
        Column::Word("STATE"),
        Column::Word("DRIVE"),
        Column::Number("SIZE"),
        Column::Number("ERRORS"),
        Column::Number("DAMAGED"),
    ];
    table(colour, &columns, rows)
}

/// The longest and the shortest bar.
const BAR_CHARS: (usize, usize) = (30, 8);

/// A job in one line: with its bar while it runs, with its result afterwards. While it runs the
/// line has at most `room` characters: it may be redrawn in place, which a wrapped line does not
/// allow.
pub fn job_line(job: &Job, room: usize) -> String {
    let kind = match job.kind {
        JobKind::Rebuild => "rebuild",
        JobKind::Replace => "copy",
        JobKind::Resync => "resync",
        JobKind::Scrub => "scrub",
        JobKind::Unknown => "job",
    };
    let what = match job.slot {
        Some(slot) => format!("{kind} of slot {slot}"),
        None => kind.to_owned(),
    };
    let message = job.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    let findings = job.findings.as_ref().map(|findings| match findings.mismatch_count {
        0 => ", no differences".to_owned(),
        1 => format!(", 1 difference, {} put right", findings.repaired_count),
        count => format!(", {count} differences, {} put right", findings.repaired_count),
    });
    let (findings, share) = (findings.unwrap_or_default(), percent(job.done_percent));
    let under_way = match job.state {
        JobState::Running => {
            let left = job.left_s.map_or_else(|| "?".to_owned(), duration);
            let rate = format_bytes(job.bytes_per_s.max(0.0) as u64);
            format!("{share:>6}  {rate}/s  {left} left{findings}")
        }
        JobState::Waiting => format!("{share:>6}  waits{message}"),
        JobState::Paused => format!("{share:>6}  paused{findings}"),
        JobState::Done => return format!("{what}  done in {}{findings}", duration(job.elapsed_s)),
        JobState::Stopped => return format!("{what}  stopped at {share}{findings}"),
        JobState::Failed | JobState::Unknown => return format!("{what}  failed at {share}{message}"),
    };
    let (longest, shortest) = BAR_CHARS;
    let others = format!("{what}  [] {under_way}").chars().count();
    let bar = bar(job.done_percent, room.saturating_sub(others).clamp(shortest, longest));
    let line = format!("{what}  [{bar}] {under_way}");
    if line.chars().count() <= room {
        return line;
    }
    // The end of the line matters least.
    line.chars().take(room.saturating_sub(3)).chain("...".chars()).collect()
}

/// `purlin drive list`. `drive show` has the kind and model of a drive, and its block size.
pub fn drives(colour: bool, drives: &[Drive]) -> String {
    if drives.is_empty() {
        return "no drives\n".to_owned();
    }
    let row = |drive: &Drive| {
        let role = match (drive.role, drive.slot) {
            (DriveRole::Member, Some(slot)) => format!("member {slot}"),
            (DriveRole::Member, None) => "member".to_owned(),
            (DriveRole::Spare, _) => "spare".to_owned(),
            (DriveRole::None | DriveRole::Unknown, _) => "-".to_owned(),
        };
        vec![
            Cell::new(&drive.name),
            drive_state(drive.state),
            Cell::new(drive.group.as_deref().unwrap_or("-")),
            Cell::new(role),
            size_or_dash(drive.size_bytes),
            Cell::new(count(drive.errors.failed_count())),
            Cell::new(count(drive.errors.damaged_count)),
            drive.read_latency_us.map_or_else(dash, |us| Cell::new(micros(us.p99))),
            drive.write_latency_us.map_or_else(dash, |us| Cell::new(micros(us.p99))),
        ]
    };
    let columns = [
        Column::Long("DRIVE"),
        Column::Word("STATE"),
        Column::Word("GROUP"),
        Column::Word("ROLE"),
        Column::Number("SIZE"),
        Column::Number("ERRORS"),
        Column::Number("DAMAGED"),
        Column::Number("R P99"),
        Column::Number("W P99"),
    ];
    let note =
        |drive: &Drive| Some(wrapped("", &format!("{}: {}", middle_cut(&drive.name, WIDTH - 1), drive.note.as_ref()?)));
    let notes: String = drives.iter().filter_map(note).collect();
    table(colour, &columns, drives.iter().map(row).collect()) + &notes
}

/// `purlin volume list`.
pub fn volumes(colour: bool, volumes: &[Volume]) -> String {
    if volumes.is_empty() {
        return "no volumes; make one with: purlin volume create GROUP/VOLUME --size SIZE\n".to_owned();
    }
    let row = |volume: &Volume| {
        let exports = if volume.exports.is_empty() { "-".to_owned() } else { volume.exports.join(",") };
        vec![
            Cell::new(&volume.name),
            Cell::new(kind_of(volume)),
            size(volume.size_bytes),
            size(volume.used_bytes),
            volume.limit.map_or_else(dash, |limit| Cell::new(rates(&limit))),
            Cell::new(exports),
        ]
    };
    let columns = [
        Column::Long("NAME"),
        Column::Word("KIND"),
        Column::Number("SIZE"),
        Column::Number("USED"),
        Column::Word("LIMIT"),
        Column::Word("EXPORTS"),
    ];
    table(colour, &columns, volumes.iter().map(row).collect())
}

fn volume_kind(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::Direct => "direct",
        VolumeKind::Thin => "thin",
        VolumeKind::Md => "md",
        VolumeKind::Nvme => "nvme",
        VolumeKind::Unknown => "unknown",
    }
}

/// The kind of a volume, and the one that it is being converted to: `direct>thin 42%`.
fn kind_of(volume: &Volume) -> String {
    let kind = volume_kind(volume.kind);
    match &volume.conversion {
        Some(conversion) => format!("{kind}>{} {}%", volume_kind(conversion.to), conversion.done_percent as u64),
        None => kind.to_owned(),
    }
}

/// How far a conversion is.
fn conversion(conversion: &Conversion) -> String {
    let Conversion { to, done_bytes, total_bytes, done_percent, message, thin: _ } = conversion;
    let (done, total) = (format_bytes(*done_bytes), format_bytes(*total_bytes));
    let message = message.as_ref().map_or_else(String::new, |message| format!("; {message}"));
    format!("to {}: {done_percent:.1}%, {done} of {total} copied{message}", volume_kind(*to))
}

/// `purlin drive show`.
pub fn drive(details: &DriveDetails) -> String {
    const NOT_SAID: &str = "not said by this drive";
    let said = |text: &Option<String>| text.clone().unwrap_or_else(|| NOT_SAID.to_owned());
    let drive = &details.drive;
    let used_for = match (drive.role, &drive.group, drive.slot) {
        (DriveRole::Member, Some(group), Some(slot)) => format!("member {slot} of {group}"),
        (DriveRole::Spare, Some(group), _) => format!("spare of {group}"),
        _ => drive.note.clone().unwrap_or_else(|| "nothing".to_owned()),
    };
    let size = drive.size_bytes.map(|bytes| format!("{} ({bytes} bytes)", format_bytes(bytes)));
    let health = |line: fn(&DriveHealth) -> String| details.health.as_ref().map_or_else(|| NOT_SAID.to_owned(), line);
    pairs(&[
        ("name", drive.name.clone()),
        ("used as", used_for),
        ("model", said(&details.model)),
        ("serial number", said(&details.serial)),
        ("firmware", said(&details.firmware)),
        ("identity", said(&details.identity)),
        ("size", said(&size)),
        ("block size", said(&drive.sector_bytes.map(|bytes| format!("{bytes} bytes")))),
        ("reached by", reached_by(details)),
        ("warnings", health(|it| if it.warnings.is_empty() { "none".to_owned() } else { it.warnings.join("; ") })),
        (
            "temperature",
            said(&details.health.as_ref().and_then(|it| it.temperature_c).map(|celsius| format!("{celsius} °C"))),
        ),
        ("life used", health(|it| format!("{} %", it.used_percent))),
        ("spare blocks", health(|it| format!("{} %, warns below {} %", it.spare_percent, it.spare_threshold_percent))),
        ("media errors", health(|it| it.media_error_count.to_string())),
        ("power on", health(|it| format!("{} h", it.power_on_hours))),
        ("unsafe shutdowns", health(|it| it.unsafe_shutdown_count.to_string())),
        ("read in its life", health(|it| format_bytes(it.read_bytes))),
        ("written in its life", health(|it| format_bytes(it.written_bytes))),
    ])
}

/// How the daemon reaches a drive.
fn reached_by(details: &DriveDetails) -> String {
    let drive = &details.drive;
    let by = match drive.kind {
        DriveKind::Block => format!("block device {}", drive.name),
        DriveKind::File => "file".to_owned(),
        DriveKind::Memory => "memory of the daemon".to_owned(),
        DriveKind::Remote => "NVMe/TCP".to_owned(),
        DriveKind::Unknown => "nothing that is known here".to_owned(),
    };
    let Some(DrivePassthrough { node, refusal, command_count }) = &details.passthrough else { return by };
    match (node, refusal) {
        (Some(node), _) => format!("{by}, reads and writes by pass-through on {node} ({command_count} so far)"),
        (None, Some(refusal)) => format!("{by}; no pass-through: {refusal}"),
        (None, None) => by,
    }
}

/// `purlin volume show`.
pub fn volume(volume: &Volume) -> String {
    let exports = if volume.exports.is_empty() { "none".to_owned() } else { volume.exports.join(", ") };
    let mut rows = vec![
        ("name", volume.name.clone()),
        ("id", volume.id.to_string()),
        ("kind", volume_kind(volume.kind).to_owned()),
        ("converting", volume.conversion.as_ref().map_or_else(String::new, conversion)),
        ("then", thin::coming_settings(volume.conversion.as_ref())),
        ("size", format!("{} ({} bytes)", format_bytes(volume.size_bytes), volume.size_bytes)),
        ("written", format_bytes(volume.used_bytes)),
        ("stored", volume.stored_bytes.map_or_else(String::new, |stored| thin::stored(volume.used_bytes, stored))),
    ];
    rows.extend(volume.thin.iter().flat_map(thin::settings));
    rows.extend([
        ("exports", exports),
        ("reads", format!("{}, {}", volume.io.read_count, format_bytes(volume.io.read_bytes))),
        ("writes", format!("{}, {}", volume.io.write_count, format_bytes(volume.io.write_bytes))),
    ]);
    rows.retain(|(_, value)| !value.is_empty());
    if let Some(limit) = &volume.limit {
        let burst = format_duration(Duration::from_millis(limit.burst_ms));
        rows.push(("limit", format!("{}, what {burst} allow at once", rates(limit))));
        rows.push(("waited for it", waits(limit)));
    }
    pairs(&rows)
}

/// A limit: `20000 IOPS, 500 MiB/s`.
pub fn rates(limit: &Limit) -> String {
    let iops = limit.iops.map(|iops| format!("{iops} IOPS"));
    let bytes = limit.bytes_per_s.map(|bytes| format!("{}/s", format_bytes(bytes)));
    iops.into_iter().chain(bytes).collect::<Vec<_>>().join(", ")
}

/// Statistics of requests that waited for a limit.
pub fn waits(limit: &Limit) -> String {
    let Limit { waiting_count, waited_count, waited_us, .. } = limit;
    let mean = if *waited_count > 0 {
        format!(", {} each", micros(*waited_us as f64 / *waited_count as f64))
    } else {
        String::new()
    };
    format!("{waited_count}{mean}, {waiting_count} now")
}

/// `purlin export show`.
pub fn export(export: &Export) -> String {
    let yes_no = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let mut rows = vec![
        ("id", export.id.clone()),
        ("volume", export.volume.clone()),
        ("address", export.address.clone()),
        ("uri", export.uri.clone()),
        ("read only", yes_no(export.read_only)),
        ("served", export.message.clone().unwrap_or_else(|| yes_no(export.listening))),
        ("connections", export.connection_count.to_string()),
    ];
    if let Some(bytes) = export.block_bytes {
        // Blocks up to that size need no note: the drives write them whole.
        let torn = export.atomic_bytes.filter(|atomic| *atomic < bytes && !export.read_only);
        let torn = torn.map_or_else(String::new, |atomic| {
            format!(
                "; a power cut may leave one partly written: the drives write {} at once",
                format_bytes(atomic.into())
            )
        });
        rows.push(("blocks", format_bytes(bytes.into()) + &torn));
    }
    if let (Some(nqn), Some(nsid)) = (&export.nqn, export.nsid) {
        let hosts = export.hosts.as_ref().map_or_else(|| "any".to_owned(), |hosts| hosts.join(", "));
        rows.push(("subsystem", nqn.clone()));
        rows.push(("namespace", nsid.to_string()));
        if let Some(ana) = export.ana {
            rows.push(("ANA state", ana.to_string()));
        }
        rows.push(("hosts", hosts));
        rows.extend(reach::who(export));
        if let Some(reservation) = &export.reservation {
            rows.push(("reserved", reserved(reservation)));
            for registrant in &reservation.registrants {
                let host = registrant.host.as_deref().unwrap_or("a host that was not seen since the daemon started");
                let holds = if registrant.is_holder { ", holds the reservation" } else { "" };
                rows.push(("registered", format!("{host} ({}), key {}{holds}", registrant.host_id, registrant.key)));
            }
        }
        rows.extend(reach::commands(export, nqn, nsid));
    }
    pairs(&rows)
}

/// The reservation of NVMe hosts, and whether it survives a restart.
fn reserved(reservation: &Reservation) -> String {
    let kind = reservation.kind.map_or("no", ReservationKind::as_str);
    let stays = if reservation.persists { "stays over a restart" } else { "goes with a restart" };
    format!("{kind}; {stays}")
}

/// `purlin export list`.
pub fn exports(colour: bool, exports: &[Export]) -> String {
    if exports.is_empty() {
        return "no exports; make one with: purlin export create GROUP/VOLUME --ublk, --nvme-tcp, or --nbd unix:PATH\n"
            .to_owned();
    }
    let row = |export: &Export| {
        let state = if export.listening {
            let state = if export.protocol == Protocol::Ublk { export.address.as_str() } else { "listening" };
            Cell::new(state).fg(Color::Green)
        } else {
            Cell::new("not served").fg(Color::Red)
        };
        let tls = match &export.tls {
            None => "-",
            Some(tls) if tls.ca.is_some() => "mutual",
            Some(_) => "yes",
        };
        vec![
            Cell::new(&export.id),
            Cell::new(&export.volume),
            Cell::new(if export.read_only { "ro" } else { "rw" }),
            Cell::new(tls),
            Cell::new(export.connection_count),
            state,
            // The name of a subsystem is long, and the same for all exports of a group: see `export
            // show`.
            match export.nsid {
                Some(nsid) => Cell::new(format!("nvme-tcp://{}, namespace {nsid}", export.address)),
                None => Cell::new(&export.uri),
            },
        ]
    };
    let columns = [
        Column::Word("ID"),
        Column::Word("VOLUME"),
        Column::Word("MODE"),
        Column::Word("TLS"),
        Column::Number("CLIENTS"),
        Column::Word("STATE"),
        Column::Long("URI OR DEVICE"),
    ];
    let why = |export: &Export| {
        let message = export.message.as_ref().filter(|_| !export.listening)?;
        Some(wrapped(&format!("{}  ", export.id), &format!("not served: {message}")))
    };
    let reasons: String = exports.iter().filter_map(why).collect();
    table(colour, &columns, exports.iter().map(row).collect()) + &reasons
}

/// A latency with about three digits: `12 us`, `1.5 ms`, `2.1 s`.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 9_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A rate of operations: `0`, `950`, `12.3k`, `1.20M`.
pub fn per_second(rate: f64) -> String {
    match rate {
        rate if rate < 999.5 => format!("{rate:.0}"),
        rate if rate < 99_950.0 => format!("{:.1}k", rate / 1e3),
        rate if rate < 999_500.0 => format!("{:.0}k", rate / 1e3),
        rate => format!("{:.2}M", rate / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_and_rates_are_short() {
        let shown: Vec<String> = [0.4, 12.0, 999.6, 1500.0, 42_000.0, 2_100_000.0].map(micros).into();
        assert_eq!(shown, ["0 us", "12 us", "1.0 ms", "1.5 ms", "42 ms", "2.1 s"]);
        let shown: Vec<String> = [0.0, 950.0, 999.9, 12_345.0, 412_000.0, 1_200_000.0].map(per_second).into();
        assert_eq!(shown, ["0", "950", "1.0k", "12.3k", "412k", "1.20M"]);
    }
}

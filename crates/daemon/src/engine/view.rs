//! Converts the engine's state to that of the API.

use api::{
    Checksums, CrashSafety, DriveKind, DriveRole, DriveState, ErrorCounts, GroupHealth, IoCounters, JobKind, JobState,
    LastScrub, LatencyUs, Load, LoadSide, SafetyMode, ScrubFindings, ScrubPlace, format_bytes,
};
use array::{GroupStatus, JobStatus, MemberStatus};
use export::{Counters, Kind};
use format::{Catalogue, CrashSafety as Safety, ExportKind, Level, MemberState, Superblock};
use runtime::OpenDrive;

use crate::engine::drives::unassigned::Unassigned;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::exports::{access, devices, limits, namespaces};
use crate::engine::group::group_drive::GroupDrive;
use crate::engine::group::kinds::volume_kind;
use crate::engine::group::presence_state::Silent;
use crate::engine::group::{Group, findings, schedule};
use crate::engine::settings;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

pub(crate) fn level(level: Level) -> api::Level {
    match level {
        Level::Raid0 => api::Level::Raid0,
        Level::Raid1 => api::Level::Raid1,
        Level::Raid10 => api::Level::Raid10,
        Level::Raid5 => api::Level::Raid5,
        Level::Raid6 => api::Level::Raid6,
        Level::Raid7 => api::Level::Raid7,
        Level::Nm => api::Level::Nm,
        Level::Raid50 => api::Level::Raid50,
        Level::Raid60 => api::Level::Raid60,
    }
}

/// `silent`: the drives that do not answer, and why.
fn member_state(member: &MemberStatus, silent: &Silent) -> api::MemberState {
    let is_silent = member.drive.is_some_and(|drive| silent.contains_key(&drive));
    match member.state {
        state if state.takes_writes() && is_silent => api::MemberState::Unreachable,
        MemberState::InSync => api::MemberState::InSync,
        MemberState::Rebuilding => api::MemberState::Rebuilding,
        MemberState::Missing => api::MemberState::Missing,
        MemberState::Faulty => api::MemberState::Faulty,
    }
}

/// The crash safety of a group, with a note about the effects of a crash.
pub(crate) fn crash_safety(superblock: &Superblock) -> CrashSafety {
    let shape = &superblock.shape;
    let (mode, closed, note) = match superblock.crash_safety {
        _ if shape.survives() == 0 => (SafetyMode::Off, true, "no parity: a crash leaves blocks in flight old or new"),
        Safety::Off if shape.is_mirror() => (
            SafetyMode::Off,
            true,
            "off: after a crash, copies of blocks in flight may differ until the resync has passed them",
        ),
        Safety::Off => (
            SafetyMode::Off,
            false,
            "off: when a crash meets lost members, untouched blocks of stripes in flight may be lost, and nothing says so",
        ),
        Safety::On => (
            SafetyMode::On,
            true,
            "on: untouched blocks never change, blocks in flight are old or new, or an error on a drive lost in the same crash",
        ),
        Safety::Strict => (
            SafetyMode::Strict,
            true,
            "strict: untouched blocks never change, blocks in flight are old or new, whatever is lost",
        ),
    };
    CrashSafety { mode, write_hole_closed: closed, note: note.into() }
}

/// Whether blocks are verified by checksums.
pub(crate) fn checksums(superblock: &Superblock) -> Checksums {
    let enabled = superblock.layout.checksums.is_some();
    let note = match enabled {
        true => "on: what a drive damages is noticed and put right when it is read",
        false if superblock.shape.survives() == 0 => "off: without redundancy nothing could be put right",
        false => "off: what a drive damages is found by scrubs only",
    };
    Checksums { enabled, note: note.into() }
}

/// The number of members in the worst set that are not in sync, or do not answer.
fn lost(status: &GroupStatus, silent: &Silent) -> usize {
    let per_set = status.superblock.shape.members_per_set();
    let is_lost = |member: &&MemberStatus| member_state(member, silent) != api::MemberState::InSync;
    let lost = |set: &[MemberStatus]| set.iter().filter(is_lost).count();
    status.members.chunks(per_set).map(lost).max().unwrap_or(0)
}

fn health(status: &GroupStatus, silent: &Silent) -> GroupHealth {
    match lost(status, silent) {
        0 => GroupHealth::Optimal,
        lost if lost <= status.superblock.shape.survives() => GroupHealth::Degraded,
        _ => GroupHealth::Failed,
    }
}

fn losses_left(status: &GroupStatus, silent: &Silent) -> u32 {
    status.superblock.shape.survives().saturating_sub(lost(status, silent)) as u32
}

fn warnings(status: &GroupStatus, silent: &Silent, last: Option<&LastScrub>, name: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for member in &status.members {
        match member.state {
            MemberState::InSync | MemberState::Rebuilding => {}
            MemberState::Missing => warnings.push(format!("member {} is missing", member.member.0)),
            MemberState::Faulty => warnings.push(format!("member {} is faulty", member.member.0)),
        }
    }
    if !warnings.is_empty() && status.free_spares().next().is_none() {
        warnings.push("there is no spare: add one with `purlin spare add`, or replace the member".into());
    }
    for member in &status.members {
        if member_state(member, silent) == api::MemberState::Unreachable {
            let why = member.drive.and_then(|drive| silent.get(&drive)).map_or("it does not answer", String::as_str);
            warnings.push(format!("member {} is unreachable: {why}", member.member.0));
        }
    }
    for member in status.members.iter().filter(|member| member.slow) {
        warnings.push(format!("member {} is far slower than the others", member.member.0));
    }
    let lost_bytes: u64 = status.lost.iter().map(|(_, len)| len).sum();
    if lost_bytes > 0 {
        warnings.push(format!(
            "{} were being written when a crash took a drive along: reading them fails until they are written again",
            format_bytes(lost_bytes)
        ));
    }
    if let Some(left) = last.map(|last| last.mismatch_count - last.repaired_count.min(last.mismatch_count))
        && left > 0
    {
        let places = if left == 1 { "1 difference".to_owned() } else { format!("{left} differences") };
        warnings.push(format!("the last scrub left {places} as they are: see `purlin group scrub {name} --status`"));
    }
    match health(status, silent) {
        GroupHealth::Failed => warnings.insert(0, "more members are lost than the group can do without".into()),
        GroupHealth::Degraded if losses_left(status, silent) == 0 => {
            warnings.insert(0, "no further member may be lost".into());
        }
        _ => {}
    }
    warnings
}

/// A job at the shards' time `now`. A scrub that is paused for a rebuild waits for `waits_for`.
fn job(
    job: &JobStatus,
    now: u64,
    waits_for: Option<&String>,
    place: impl Fn(&array::Finding) -> ScrubPlace,
) -> api::Job {
    let (kind, slot) = match job.kind {
        array::JobKind::Rebuild(member) => (JobKind::Rebuild, Some(u32::from(member.0))),
        array::JobKind::Replace(member) => (JobKind::Replace, Some(u32::from(member.0))),
        array::JobKind::Scrub => (JobKind::Scrub, None),
        array::JobKind::Resync => (JobKind::Resync, None),
    };
    let (state, message) = match &job.state {
        array::JobState::Running => (JobState::Running, None),
        array::JobState::Paused => match waits_for {
            Some(reason) => (JobState::Waiting, Some(reason.clone())),
            None => (JobState::Paused, None),
        },
        array::JobState::Done => (JobState::Done, None),
        array::JobState::Stopped => (JobState::Stopped, None),
        array::JobState::Failed(reason) => (JobState::Failed, Some(reason.clone())),
    };
    let left = job.total_bytes.saturating_sub(job.done_bytes);
    let done = match state {
        JobState::Done => 100.0,
        _ if job.total_bytes == 0 => 0.0,
        _ => (job.done_bytes as f64 / job.total_bytes as f64 * 100.0).min(100.0),
    };
    let running = state == JobState::Running;
    api::Job {
        id: job.id,
        kind,
        state,
        slot,
        done_percent: done,
        done_bytes: job.done_bytes,
        total_bytes: job.total_bytes,
        bytes_per_s: job.bytes_per_s as f64,
        left_s: (running && job.bytes_per_s > 0).then(|| left.div_ceil(job.bytes_per_s.max(1))),
        elapsed_s: job.ended.unwrap_or(now).saturating_sub(job.started) / SECOND,
        findings: matches!(kind, JobKind::Scrub | JobKind::Resync).then(|| ScrubFindings {
            repair: job.repairs,
            mismatch_count: job.found,
            repaired_count: job.repaired,
            unchecked_count: job.unchecked,
            places: job.findings.iter().map(place).collect(),
        }),
        message,
    }
}

/// The space of a group, and the extents that volumes have.
pub(crate) fn space(group: &Group, catalogue: &Catalogue) -> (volume::Space, Vec<format::ExtentRecord>) {
    let geometry = &group.shared.geometry;
    let space = volume::Space {
        capacity_bytes: geometry.capacity(),
        align_bytes: geometry.stripe_data_bytes() * geometry.rows() * geometry.sets,
    };
    (space, catalogue.extents().copied().collect())
}

/// The time at which a group is looked at.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    /// The shards' monotonic time, in which jobs are measured.
    pub shard_ns: u64,
    /// Seconds since 1970.
    pub unix_s: u64,
    /// A group that is being scrubbed: others wait for it.
    pub scrubbed: Option<String>,
}

fn member_errors(member: &MemberStatus) -> ErrorCounts {
    let errors = &member.errors;
    ErrorCounts {
        read_count: errors.reads,
        write_count: errors.writes,
        other_count: errors.others,
        retry_count: errors.retries,
        damaged_count: member.damaged,
    }
}

pub(crate) fn group(group: &Group, status: &GroupStatus, catalogue: &Catalogue, moment: &Moment) -> api::Group {
    let (shape, silent) = (status.superblock.shape, group.silent());
    let (space, used) = space(group, catalogue);
    let name = |id| group.drive(id).map(|drive| drive.name);
    let replacement = status.replacement;
    let member = |member: &MemberStatus| {
        let drive = member.drive.and_then(|id| group.drive(id));
        api::Member {
            slot: u32::from(member.member.0),
            set: (usize::from(member.member.0) / shape.members_per_set()) as u32,
            size_bytes: drive.as_ref().map(|drive| drive.open.info().size_bytes),
            drive: drive.map(|drive| drive.name),
            replacement: replacement.filter(|(replaced, _)| *replaced == member.member).and_then(|(_, id)| name(id)),
            state: member_state(member, &silent),
            errors: member_errors(member),
        }
    };
    let spare = |&id: &array::DriveId| {
        Some(api::Spare { drive: name(id)?, size_bytes: group.drive(id)?.open.info().size_bytes })
    };
    let scrub = schedule::shown(group, status, catalogue, moment);
    let held = scrub.waits_for.as_ref().filter(|_| group.maintenance.is_held());
    let shown = |status_of: &JobStatus| {
        job(status_of, moment.shard_ns, held, |found| findings::place(group, status, catalogue, found))
    };
    let mirror = shape.is_mirror();
    let survives = u32::from(shape.parity_count);
    api::Group {
        name: group.name.clone(),
        uuid: group.uuid.to_string(),
        level: level(shape.level),
        health: health(status, &silent),
        member_count: u32::from(shape.members),
        set_count: u32::from(shape.sets),
        data_count: shape.data_per_set() as u32,
        parity_count: if mirror { 0 } else { survives },
        copy_count: if mirror { survives + 1 } else { 1 },
        strip_bytes: u64::from(shape.strip_bytes),
        capacity_bytes: status.capacity_bytes,
        allocated_bytes: used.iter().map(|extent| extent.len_bytes).sum(),
        free_bytes: space.free_bytes(&used),
        used_bytes: status.allocated_bytes,
        losses_max: shape.survives() as u32,
        losses_left: losses_left(status, &silent),
        epoch: status.superblock.epoch,
        clean: status.superblock.clean,
        crash_safety: crash_safety(&status.superblock),
        checksums: checksums(&status.superblock),
        shards: status.owners.among(group.shards.len()).map(|shard| shard as u32).collect(),
        warnings: warnings(status, &silent, scrub.last.as_ref(), &group.name),
        members: status.members.iter().map(member).collect(),
        spares: status.free_spares().filter_map(spare).collect(),
        jobs: status.jobs.iter().map(shown).collect(),
        io: io(&group_counters(group)),
        settings: settings::shown(&catalogue.settings),
        scrub,
        thin: None,
    }
}

/// The counters of all exports of a group together.
pub(crate) fn group_counters(group: &Group) -> Counters {
    let mut sum = Counters::default();
    for export in group.exports().values() {
        sum.add(&export.state.counters());
    }
    sum
}

pub(crate) fn io(counters: &Counters) -> IoCounters {
    let count = |kind: Kind| counters.requests[kind as usize];
    IoCounters {
        read_count: count(Kind::Read),
        read_bytes: counters.read_bytes,
        write_count: count(Kind::Write),
        write_bytes: counters.written_bytes,
        flush_count: count(Kind::Flush),
        discard_count: count(Kind::Trim) + count(Kind::WriteZeroes),
    }
}

/// The load between two readings of the counters, `window_s` seconds apart.
pub(crate) fn load(before: &Counters, after: &Counters, window_s: f64) -> Load {
    let side = |kind: Kind, bytes: u64| {
        let latencies = after.latency_us.of(kind).iter().zip(before.latency_us.of(kind));
        let histogram: Vec<u64> = latencies.map(|(after, before)| after.saturating_sub(*before)).collect();
        let kind = kind as usize;
        LoadSide {
            ops_per_s: after.requests[kind].saturating_sub(before.requests[kind]) as f64 / window_s,
            bytes_per_s: bytes as f64 / window_s,
            latency_us: latency(&histogram, bucket_end_us),
        }
    };
    Load {
        window_s,
        read: side(Kind::Read, after.read_bytes.saturating_sub(before.read_bytes)),
        write: side(Kind::Write, after.written_bytes.saturating_sub(before.written_bytes)),
    }
}

/// Latency percentiles since counting began.
pub(crate) fn latency_of(counters: &Counters, kind: Kind) -> Option<LatencyUs> {
    latency(counters.latency_us.of(kind), bucket_end_us)
}

/// Bucket n ends below 2^n microseconds.
fn bucket_end_us(bucket: usize) -> f64 {
    (1u64 << bucket) as f64
}

/// Percentiles of a histogram whose buckets end at `bound`, rounded up to the ends of buckets.
fn latency(histogram: &[u64], bound: impl Fn(usize) -> f64) -> Option<LatencyUs> {
    let total: u64 = histogram.iter().sum();
    let last = histogram.iter().rposition(|&count| count > 0)?;
    let percentile = |percent: u64| {
        let wanted = (total * percent).div_ceil(100);
        let mut seen = 0;
        let at = histogram.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        bound(at.unwrap_or(last))
    };
    Some(LatencyUs { p50: percentile(50), p99: percentile(99), max: bound(last) })
}

pub(crate) fn drive(group: &Group, status: &GroupStatus, id: array::DriveId, drive: &GroupDrive) -> api::Drive {
    let member = status.members.iter().find(|member| member.drive == Some(id));
    let is_spare = status.spares.contains(&id);
    let failed = member.is_some_and(|member| member.state == MemberState::Faulty) || (member.is_none() && !is_spare);
    let opened = opened(&drive.name, &drive.open);
    api::Drive {
        state: match (failed, group.silent().contains_key(&id)) {
            (true, _) => DriveState::Faulty,
            (false, true) => DriveState::Unreachable,
            (false, false) => DriveState::Online,
        },
        role: match (member, is_spare) {
            (Some(_), _) => DriveRole::Member,
            (None, true) => DriveRole::Spare,
            (None, false) => DriveRole::None,
        },
        group: Some(group.name.clone()),
        slot: member.map(|member| u32::from(member.member.0)),
        errors: member.map_or(opened.errors, member_errors),
        ..opened
    }
}

/// A drive outside of any group, as far as it is known here.
pub(crate) fn opened(name: &str, open: &OpenDrive) -> api::Drive {
    let stats = open.stats();
    // Bucket i of a drive's histogram ends below 2^(i + 1) nanoseconds.
    let bound = |bucket: usize| (1u64 << (bucket + 1)) as f64 / 1000.0;
    api::Drive {
        name: name.to_owned(),
        kind: match open.kind() {
            runtime::DriveKind::BlockDevice => DriveKind::Block,
            runtime::DriveKind::File => DriveKind::File,
            runtime::DriveKind::Memory => DriveKind::Memory,
            runtime::DriveKind::Remote => DriveKind::Remote,
        },
        state: DriveState::Online,
        role: DriveRole::None,
        group: None,
        slot: None,
        size_bytes: Some(open.info().size_bytes),
        sector_bytes: Some(open.info().sector_bytes),
        io: IoCounters {
            read_count: stats.reads,
            read_bytes: stats.read_bytes,
            write_count: stats.writes,
            write_bytes: stats.write_bytes,
            flush_count: stats.flushes,
            discard_count: stats.discards + stats.zeroes,
        },
        // The kind of an error is not known for a drive outside of a slot.
        errors: ErrorCounts { other_count: stats.errors, ..ErrorCounts::default() },
        read_latency_us: latency(&stats.read_latency, bound),
        write_latency_us: latency(&stats.write_latency, bound),
        note: None,
    }
}

/// The passthrough state of a drive, if it was opened to bypass the block layer.
pub(crate) fn passthrough(open: &OpenDrive) -> Option<api::DrivePassthrough> {
    let (node, refusal) = (open.passthrough().map(str::to_owned), open.no_passthrough().map(str::to_owned));
    (node.is_some() || refusal.is_some()).then(|| {
        let command_count = open.stats().commands;
        api::DrivePassthrough { node, refusal, command_count }
    })
}

/// An unassigned drive: it came, and no group has it.
pub(crate) fn unassigned(unassigned: &Unassigned) -> api::Drive {
    api::Drive {
        name: unassigned.path.clone(),
        kind: DriveKind::Block,
        state: DriveState::Online,
        role: DriveRole::None,
        group: None,
        slot: None,
        size_bytes: unassigned.size_bytes,
        sector_bytes: unassigned.sector_bytes,
        io: IoCounters::default(),
        errors: ErrorCounts::default(),
        read_latency_us: None,
        write_latency_us: None,
        note: Some(unassigned.note()),
    }
}

pub(crate) fn volume(
    group: &Group,
    record: &format::VolumeRecord,
    used_bytes: u64,
    stored_bytes: Option<u64>,
) -> api::Volume {
    let exports = group.exports();
    let own = || exports.values().filter(|export| export.record.volume == record.id);
    let mut counters = Counters::default();
    for export in own() {
        counters.add(&export.state.counters());
    }
    let limiter = group.limiter(record.id);
    api::Volume {
        name: format!("{}/{}", group.name, record.name),
        group: group.name.clone(),
        volume: record.name.clone(),
        id: record.id,
        created_unix_s: record.created_unix_s,
        kind: volume_kind(record.kind),
        size_bytes: record.size_bytes,
        used_bytes,
        stored_bytes,
        thin: (record.kind == format::VolumeKind::Thin)
            .then(|| crate::engine::group::thin_settings::shown(&record.thin)),
        conversion: None,
        exports: own().map(|export| export_id(group, export.record.id)).collect(),
        io: io(&counters),
        limit: limiter.limit().map(|limit| limits::shown(limit, limiter.waits())),
    }
}

/// The identifier of an export: unique in the daemon, and the same after a restart.
pub(crate) fn export_id(group: &Group, id: u64) -> String {
    format!("{}-{id}", group.name)
}

pub(crate) fn export(group: &Group, catalogue: &Catalogue, running: &RunningExport) -> api::Export {
    let volume = catalogue.volumes.iter().find(|volume| volume.id == running.record.volume);
    let name = volume.map_or_else(String::new, |volume| format!("{}/{}", group.name, volume.name));
    let mut export = export_of(&export_id(group, running.record.id), name, running, Some(group.atomic_bytes()));
    if let ExportKind::NvmeTcp { address, nsid, block_bytes, hosts, ana, .. } = &running.record.kind {
        let nqn = namespaces::nqn_of(&group.uuid);
        export.uri = format!("nvme-tcp://{address}/{nqn}?nsid={nsid}");
        (export.nqn, export.nsid) = (Some(nqn.to_string()), Some(*nsid));
        (export.block_bytes, export.hosts) = (Some(*block_bytes), hosts.clone());
        let may_use = |host: &&String| hosts.as_ref().is_none_or(|hosts| hosts.contains(host));
        export.ana = Some(access::shown(*ana));
        export.tls_hosts = catalogue.tls_keys.iter().map(|record| &record.host).filter(may_use).cloned().collect();
        let secrets = || catalogue.secrets.iter().filter(|record| may_use(&&record.host));
        export.secret_hosts = secrets().map(|record| record.host.clone()).collect();
        let mutual = secrets().filter(|record| record.controller_secret.is_some());
        export.mutual_hosts = mutual.map(|record| record.host.clone()).collect();
        export.reservation = group.reservation(running.record.volume);
    }
    export
}

/// The export `id` of the volume `name`, which belongs to a group or an import. Its drives write
/// `atomic_bytes` at once.
pub(crate) fn export_of(id: &str, name: String, running: &RunningExport, atomic_bytes: Option<u32>) -> api::Export {
    let kind = &running.record.kind;
    let address = kind.address();
    let (protocol, uri, connection_count) = match kind {
        ExportKind::Nbd { tls, .. } => {
            let secure = if tls.is_some() { "nbds" } else { "nbd" };
            let escaped = api::uri_escaped(&name);
            let uri = match address.strip_prefix("unix:") {
                Some(path) => format!("{secure}+unix:///{escaped}?socket={}", api::uri_escaped(path)),
                None => format!("{secure}://{address}/{escaped}"),
            };
            (api::Protocol::Nbd, uri, running.state.connections().len())
        }
        ExportKind::Ublk { number, .. } => {
            let uri = devices::stable_path(&name).display().to_string();
            (api::Protocol::Ublk, uri, devices::users(*number, &name).len())
        }
        // The URI needs the group's NQN, which the caller adds.
        ExportKind::NvmeTcp { .. } => (api::Protocol::NvmeTcp, String::new(), running.state.connections().len()),
    };
    let tls = if let ExportKind::Nbd { tls, .. } = kind { tls.as_ref() } else { None };
    api::Export {
        id: id.to_owned(),
        uri,
        volume: name,
        protocol,
        address,
        read_only: kind.read_only(),
        tls: tls.map(|tls| api::ExportTls {
            cert: tls.certificate.clone(),
            key: tls.key.clone(),
            ca: tls.client_ca.clone(),
        }),
        block_bytes: if let ExportKind::Ublk { block_bytes, .. } = kind { Some(*block_bytes) } else { None },
        atomic_bytes: atomic_bytes.filter(|_| !matches!(kind, ExportKind::Nbd { .. })),
        listening: running.failure.is_none(),
        message: running.failure.clone(),
        connection_count: connection_count as u32,
        nqn: None,
        nsid: None,
        ana: None,
        hosts: None,
        tls_hosts: Vec::new(),
        secret_hosts: Vec::new(),
        mutual_hosts: Vec::new(),
        reservation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_upper_bounds_of_their_bucket() {
        let mut histogram = [0; 24];
        histogram[3] = 99;
        histogram[10] = 1;
        let found = latency(&histogram, |bucket| (1u64 << bucket) as f64).unwrap();
        assert_eq!((found.p50, found.p99, found.max), (8.0, 8.0, 1024.0));
        assert_eq!(latency(&[0; 24], |_| 1.0), None);
    }

    #[test]
    fn load_is_what_came_between_two_looks() {
        let mut before = Counters::default();
        before.requests[Kind::Read as usize] = 100;
        let mut after = before.clone();
        after.requests[Kind::Read as usize] = 300;
        after.read_bytes = 4096 * 200;
        let load = load(&before, &after, 2.0);
        assert_eq!((load.read.ops_per_s, load.read.bytes_per_s), (100.0, 409_600.0));
        assert_eq!(load.write.ops_per_s, 0.0);
    }
}

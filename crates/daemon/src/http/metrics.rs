//! The metrics of the daemon, as OpenMetrics text.
//!
//! Names follow the conventions of Prometheus: base units (bytes, seconds), `_total` for counters,
//! one label for each property that distinguishes samples. `docs/api/metrics.md` lists them.

mod thin;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;

use api::{
    Drive, DriveHealth, Group, GroupHealth, IoCounters, Job, JobKind, JobState, Limit, LoadSide, MemberState, Status,
    Volume,
};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

type Ratio = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabels {
    version: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ShardLabels {
    shard: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupLabels {
    group: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HealthLabels {
    group: String,
    health: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MemberLabels {
    group: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupOpLabels {
    group: String,
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LatencyLabels {
    group: String,
    op: &'static str,
    stat: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct JobLabels {
    group: String,
    job: &'static str,
    slot: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DriveLabels {
    drive: String,
    group: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DriveOpLabels {
    drive: String,
    group: String,
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HostLabels {
    host: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HostOpLabels {
    host: String,
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HostLatencyLabels {
    host: String,
    op: &'static str,
    stat: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ExportLabels {
    export: String,
    volume: String,
    protocol: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VolumeLabels {
    volume: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VolumeOpLabels {
    volume: String,
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct GroupInfoLabels {
    group: String,
    uuid: String,
    level: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HostExportLabels {
    host: String,
    export: String,
}

/// The metrics of each rate limit.
struct LimitFamilies<L> {
    iops: Family<L, Gauge>,
    bytes: Family<L, Gauge>,
    waiting: Family<L, Gauge>,
    waited: Family<L, Counter>,
    wait: Family<L, Counter<f64, AtomicU64>>,
}

impl<L: Clone + Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static> LimitFamilies<L> {
    /// `of` is the limited object, as a part of names; `whose` is the same for people.
    fn new(registry: &mut Registry, of: &str, whose: &str) -> LimitFamilies<L> {
        let name = |what: &str| format!("{of}_limit_{what}");
        let iops = format!("Requests for each second that {whose} may have");
        let bytes = format!("Bytes for each second that {whose} may have");
        let waiting = format!("Requests of {whose} that wait for its limit");
        let waited = format!("Requests of {whose} that have waited for its limit");
        let wait = format!("How long requests of {whose} have waited for its limit");
        LimitFamilies {
            iops: family(registry, &name("iops"), &iops, None),
            bytes: family(registry, &name("bytes_per_second"), &bytes, None),
            waiting: family(registry, &name("waiting"), &waiting, None),
            waited: family(registry, &name("waits"), &waited, None),
            wait: family(registry, &name("wait"), &wait, Some(Unit::Seconds)),
        }
    }

    fn add(&self, labels: &L, limit: &Limit) {
        if let Some(iops) = limit.iops {
            self.iops.get_or_create(labels).set(gauge_value(iops));
        }
        if let Some(bytes) = limit.bytes_per_s {
            self.bytes.get_or_create(labels).set(gauge_value(bytes));
        }
        self.waiting.get_or_create(labels).set(gauge_value(limit.waiting_count));
        self.waited.get_or_create(labels).inc_by(limit.waited_count);
        self.wait.get_or_create(labels).inc_by(limit.waited_us as f64 / 1e6);
    }
}

/// Registers a family and returns it to be filled.
fn family<L, M>(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>) -> Family<L, M>
where
    L: Clone + Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static,
    M: Default + Debug + TypedMetric + EncodeMetric + Send + Sync + 'static,
{
    let family = Family::default();
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family.clone()),
        None => registry.register(name, help, family.clone()),
    }
    family
}

/// The unit of ratios. Prometheus uses the singular.
fn ratio() -> Unit {
    Unit::Other("ratio".to_owned())
}

/// The value of a gauge. Byte counts beyond 2^63 do not exist, because sizes are file offsets.
fn gauge_value(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// All metrics, as OpenMetrics 1.0 text.
pub fn metrics_text(
    status: &Status,
    groups: &[Group],
    drives: &[Drive],
    volumes: &[Volume],
    healths: &BTreeMap<String, DriveHealth>,
) -> String {
    let mut registry = Registry::with_prefix("purlin");
    daemon_metrics(&mut registry, status);
    group_metrics(&mut registry, groups);
    load_metrics(&mut registry, status);
    job_metrics(&mut registry, groups);
    scrub_metrics(&mut registry, groups);
    drive_metrics(&mut registry, drives);
    health_metrics(&mut registry, drives, healths);
    volume_metrics(&mut registry, volumes);
    thin::metrics(&mut registry, groups);
    host_metrics(&mut registry, status);
    limit_metrics(&mut registry, status, volumes);
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string cannot fail");
    text
}

fn daemon_metrics(registry: &mut Registry, status: &Status) {
    let build: Family<VersionLabels, Gauge> =
        family(registry, "build_info", "Always 1; the label says which version", None);
    build.get_or_create(&VersionLabels { version: status.version.clone() }).set(1);
    let uptime: Gauge = Gauge::default();
    uptime.set(gauge_value(status.uptime_s));
    registry.register_with_unit("uptime", "Time since the daemon started", Unit::Seconds, uptime);
    let resident: Gauge = Gauge::default();
    resident.set(gauge_value(status.resident_bytes));
    registry.register_with_unit("resident_memory", "Resident memory of the daemon", Unit::Bytes, resident);
    let dropped: Counter = Counter::default();
    dropped.inc_by(status.log_lines_dropped);
    registry.register("log_lines_dropped", "Lines of the log that could not be written", dropped);

    for (name, help, value) in [
        ("buffers_size", "Most memory that requests of clients may hold together", status.buffers.size_bytes),
        ("buffers_held", "Memory that requests of clients hold", status.buffers.held_bytes),
    ] {
        let bytes: Gauge = Gauge::default();
        bytes.set(gauge_value(value));
        registry.register_with_unit(name, help, Unit::Bytes, bytes);
    }
    let waiting: Gauge = Gauge::default();
    waiting.set(gauge_value(status.buffers.waiting_count));
    registry.register("buffers_waiting", "Connections of clients that wait until others hold less memory", waiting);

    let not_started: Family<GroupLabels, Gauge> =
        family(registry, "group_not_started", "1 for a group that the daemon had and could not start", None);
    for group in &status.not_started {
        not_started.get_or_create(&GroupLabels { group: group.name.clone() }).set(1);
    }
    let busy: Family<ShardLabels, Ratio> =
        family(registry, "shard_busy", "Share of the last second that a shard was awake", Some(ratio()));
    for shard in &status.shards {
        busy.get_or_create(&ShardLabels { shard: shard.shard }).set(shard.busy_percent / 100.0);
    }
    let connections: Family<ExportLabels, Gauge> =
        family(registry, "export_connections", "Clients connected to an export", None);
    let listening: Family<ExportLabels, Gauge> =
        family(registry, "export_listening", "1 where an export takes connections", None);
    for export in &status.exports {
        let protocol = match export.protocol {
            api::Protocol::Nbd => "nbd",
            api::Protocol::Ublk => "ublk",
            api::Protocol::NvmeTcp => "nvme_tcp",
            api::Protocol::Unknown => "unknown",
        };
        let labels = ExportLabels { export: export.id.clone(), volume: export.volume.clone(), protocol };
        connections.get_or_create(&labels).set(i64::from(export.connection_count));
        listening.get_or_create(&labels).set(i64::from(export.listening));
    }
}

fn group_metrics(registry: &mut Registry, groups: &[Group]) {
    let info: Family<GroupInfoLabels, Gauge> =
        family(registry, "group_info", "Always 1; the labels say what a group is", None);
    let health: Family<HealthLabels, Gauge> =
        family(registry, "group_health", "1 for the health that a group is in, 0 for the others", None);
    let members: Family<MemberLabels, Gauge> = family(registry, "group_members", "Members of a group by state", None);
    let spares: Family<GroupLabels, Gauge> = family(registry, "group_spares", "Hot spares of a group", None);
    let losses: Family<GroupLabels, Gauge> =
        family(registry, "group_losses_left", "Members that may still be lost without losing data", None);
    let hole: Family<GroupLabels, Gauge> =
        family(registry, "group_write_hole_closed", "1 where a crash cannot change blocks at rest", None);
    let checksums: Family<GroupLabels, Gauge> =
        family(registry, "group_checksums", "1 where what a drive gives is verified", None);
    let shards: Family<GroupLabels, Gauge> = family(registry, "group_shards", "Shards that do a group's writes", None);
    let mut bytes = |name, help| -> Family<GroupLabels, Gauge> { family(registry, name, help, Some(Unit::Bytes)) };
    let capacity = bytes("group_capacity", "What all volumes of a group may hold");
    let allocated = bytes("group_allocated", "Given to volumes of a group");
    let used = bytes("group_used", "Ever written in a group and not discarded");
    let ops: Family<GroupOpLabels, Counter> = family(registry, "group_ops", "Operations of clients", None);
    let moved: Family<GroupOpLabels, Counter> =
        family(registry, "group_io", "Bytes moved for clients", Some(Unit::Bytes));

    for group in groups {
        let labels = GroupLabels { group: group.name.clone() };
        let (uuid, level) = (group.uuid.clone(), group.level.to_string());
        info.get_or_create(&GroupInfoLabels { group: group.name.clone(), uuid, level }).set(1);
        for state in [GroupHealth::Optimal, GroupHealth::Degraded, GroupHealth::Failed] {
            let labels = HealthLabels { group: group.name.clone(), health: state.as_str() };
            health.get_or_create(&labels).set(i64::from(group.health == state));
        }
        for state in [
            MemberState::InSync,
            MemberState::Rebuilding,
            MemberState::Missing,
            MemberState::Faulty,
            MemberState::Unreachable,
        ] {
            let count = group.members.iter().filter(|m| m.state == state).count();
            let labels = MemberLabels { group: group.name.clone(), state: state.as_str() };
            members.get_or_create(&labels).set(gauge_value(count as u64));
        }
        spares.get_or_create(&labels).set(gauge_value(group.spares.len() as u64));
        losses.get_or_create(&labels).set(i64::from(group.losses_left));
        hole.get_or_create(&labels).set(i64::from(group.crash_safety.write_hole_closed));
        shards.get_or_create(&labels).set(gauge_value(group.shards.len() as u64));
        checksums.get_or_create(&labels).set(i64::from(group.checksums.enabled));
        capacity.get_or_create(&labels).set(gauge_value(group.capacity_bytes));
        allocated.get_or_create(&labels).set(gauge_value(group.allocated_bytes));
        used.get_or_create(&labels).set(gauge_value(group.used_bytes));
        let op = |op| GroupOpLabels { group: group.name.clone(), op };
        for (name, count, byte_count) in by_op(&group.io) {
            ops.get_or_create(&op(name)).inc_by(count);
            if let Some(byte_count) = byte_count {
                moved.get_or_create(&op(name)).inc_by(byte_count);
            }
        }
    }
}

/// Name, count and bytes of each kind of operation.
fn by_op(io: &IoCounters) -> [(&'static str, u64, Option<u64>); 4] {
    [
        ("read", io.read_count, Some(io.read_bytes)),
        ("write", io.write_count, Some(io.write_bytes)),
        ("flush", io.flush_count, None),
        ("discard", io.discard_count, None),
    ]
}

fn load_metrics(registry: &mut Registry, status: &Status) {
    let latency: Family<LatencyLabels, Ratio> =
        family(registry, "group_latency", "Latency that clients saw in the last seconds", Some(Unit::Seconds));
    for group in &status.groups {
        let sides: [(&'static str, &LoadSide); 2] = [("read", &group.load.read), ("write", &group.load.write)];
        for (op, side) in sides {
            let Some(us) = side.latency_us else { continue };
            for (stat, us) in [("p50", us.p50), ("p99", us.p99), ("max", us.max)] {
                latency.get_or_create(&LatencyLabels { group: group.name.clone(), op, stat }).set(us / 1e6);
            }
        }
    }
}

fn host_metrics(registry: &mut Registry, status: &Status) {
    let controllers: Family<HostLabels, Gauge> =
        family(registry, "host_controllers", "Controllers that an NVMe host is connected to", None);
    let queues: Family<HostLabels, Gauge> =
        family(registry, "host_queues", "I/O queues of an NVMe host that are connected", None);
    let in_flight: Family<HostLabels, Gauge> =
        family(registry, "host_in_flight", "Commands of an NVMe host that are being served", None);
    let errors: Family<HostLabels, Counter> =
        family(registry, "host_errors", "Commands of an NVMe host that failed", None);
    let ops: Family<HostOpLabels, Counter> = family(registry, "host_ops", "Commands of an NVMe host", None);
    let moved: Family<HostOpLabels, Counter> =
        family(registry, "host_io", "Bytes moved for an NVMe host", Some(Unit::Bytes));
    let latency: Family<HostLatencyLabels, Ratio> = family(
        registry,
        "host_latency",
        "Latency of an NVMe host's commands since the exports began, rounded up",
        Some(Unit::Seconds),
    );
    for host in &status.hosts {
        let labels = HostLabels { host: host.nqn.clone() };
        controllers.get_or_create(&labels).set(i64::from(host.controller_count));
        queues.get_or_create(&labels).set(i64::from(host.queue_count));
        in_flight.get_or_create(&labels).set(gauge_value(host.in_flight_count));
        errors.get_or_create(&labels).inc_by(host.error_count);
        for (op, count, byte_count) in by_op(&host.io) {
            let labels = HostOpLabels { host: host.nqn.clone(), op };
            ops.get_or_create(&labels).inc_by(count);
            if let Some(byte_count) = byte_count {
                moved.get_or_create(&labels).inc_by(byte_count);
            }
        }
        for (op, us) in [("read", host.read_latency_us), ("write", host.write_latency_us)] {
            let Some(us) = us else { continue };
            for (stat, us) in [("p50", us.p50), ("p99", us.p99), ("max", us.max)] {
                let labels = HostLatencyLabels { host: host.nqn.clone(), op, stat };
                latency.get_or_create(&labels).set(us / 1e6);
            }
        }
    }
}

fn limit_metrics(registry: &mut Registry, status: &Status, volumes: &[Volume]) {
    let families = LimitFamilies::new(registry, "volume", "a volume");
    for volume in volumes {
        if let Some(limit) = &volume.limit {
            families.add(&VolumeLabels { volume: volume.name.clone() }, limit);
        }
    }
    let families = LimitFamilies::new(registry, "host", "an NVMe host at an export");
    for host in &status.hosts {
        for export in &host.exports {
            if let Some(limit) = &export.limit {
                families.add(&HostExportLabels { host: host.nqn.clone(), export: export.id.clone() }, limit);
            }
        }
    }
}

fn volume_metrics(registry: &mut Registry, volumes: &[Volume]) {
    let mut bytes = |name, help| -> Family<VolumeLabels, Gauge> { family(registry, name, help, Some(Unit::Bytes)) };
    let size = bytes("volume_size", "Capacity of a volume");
    let used = bytes("volume_used", "Ever written in a volume and not discarded");
    let stored = bytes("volume_stored", "Space that a thin volume takes of its pool");
    let ops: Family<VolumeOpLabels, Counter> = family(registry, "volume_ops", "Operations of a volume's clients", None);
    let moved: Family<VolumeOpLabels, Counter> =
        family(registry, "volume_io", "Bytes moved for a volume's clients", Some(Unit::Bytes));
    for volume in volumes {
        let labels = VolumeLabels { volume: volume.name.clone() };
        size.get_or_create(&labels).set(gauge_value(volume.size_bytes));
        used.get_or_create(&labels).set(gauge_value(volume.used_bytes));
        if let Some(bytes) = volume.stored_bytes {
            stored.get_or_create(&labels).set(gauge_value(bytes));
        }
        for (op, count, byte_count) in by_op(&volume.io) {
            let labels = VolumeOpLabels { volume: volume.name.clone(), op };
            ops.get_or_create(&labels).inc_by(count);
            if let Some(byte_count) = byte_count {
                moved.get_or_create(&labels).inc_by(byte_count);
            }
        }
    }
}

/// Metrics from the health reports of drives. A drive without a report has none.
fn health_metrics(registry: &mut Registry, drives: &[Drive], healths: &BTreeMap<String, DriveHealth>) {
    let celsius = Some(Unit::Celsius);
    let temperature: Family<DriveLabels, Gauge> =
        family(registry, "drive_temperature", "Temperature of a drive", celsius);
    let worn: Family<DriveLabels, Ratio> = family(
        registry,
        "drive_life_used",
        "How much of its life a drive estimates to be behind it; may exceed 1",
        Some(ratio()),
    );
    let spare: Family<DriveLabels, Ratio> =
        family(registry, "drive_spare_blocks", "How many of its spare blocks a drive has left", Some(ratio()));
    let media: Family<DriveLabels, Counter> = family(
        registry,
        "drive_media_errors",
        "Times in its life that a drive found data that it could not read or correct",
        None,
    );
    let warnings: Family<DriveLabels, Gauge> =
        family(registry, "drive_warnings", "Reasons that a drive gives to replace it", None);
    for drive in drives {
        let Some(health) = healths.get(&drive.name) else { continue };
        let labels = DriveLabels { drive: drive.name.clone(), group: drive.group.clone().unwrap_or_default() };
        if let Some(degrees) = health.temperature_c {
            temperature.get_or_create(&labels).set(i64::from(degrees));
        }
        worn.get_or_create(&labels).set(f64::from(health.used_percent) / 100.0);
        spare.get_or_create(&labels).set(f64::from(health.spare_percent) / 100.0);
        media.get_or_create(&labels).inc_by(health.media_error_count);
        warnings.get_or_create(&labels).set(gauge_value(health.warnings.len() as u64));
    }
}

fn job_metrics(registry: &mut Registry, groups: &[Group]) {
    let done: Family<JobLabels, Ratio> =
        family(registry, "job_done", "How much of a running job is done", Some(ratio()));
    let rate: Family<JobLabels, Ratio> =
        family(registry, "job_rate_bytes_per_second", "Speed of a running job, bytes of members a second", None);
    for group in groups {
        for job in &group.jobs {
            if matches!(job.state, JobState::Running | JobState::Waiting | JobState::Paused) {
                let labels = job_labels(&group.name, job);
                done.get_or_create(&labels).set(job.done_percent / 100.0);
                rate.get_or_create(&labels).set(job.bytes_per_s);
            }
        }
    }
}

fn scrub_metrics(registry: &mut Registry, groups: &[Group]) {
    let mut gauge = |name, help, unit| -> Family<GroupLabels, Gauge> { family(registry, name, help, unit) };
    let last = gauge("scrub_last_timestamp", "When the last scrub ended that went through", Some(Unit::Seconds));
    let next = gauge("scrub_next_timestamp", "When the next scrub is due", Some(Unit::Seconds));
    let paused = gauge("scrub_paused", "1 where a scrub is paused by request", None);
    let mismatches =
        gauge("scrub_mismatches", "Places that the scrub under way, or the last one, found to differ", None);
    let repaired = gauge("scrub_repaired", "Of those places, how many were put right", None);
    let unchecked = gauge("scrub_unchecked", "Stripes that it could not compare", None);
    for group in groups {
        let labels = GroupLabels { group: group.name.clone() };
        let schedule = &group.scrub;
        if let Some(schedule) = &schedule.last {
            last.get_or_create(&labels).set(gauge_value(schedule.ended_unix_s));
        }
        if let Some(due) = schedule.next_unix_s {
            next.get_or_create(&labels).set(gauge_value(due));
        }
        paused.get_or_create(&labels).set(i64::from(schedule.paused));
        let under_way = group.jobs.iter().rfind(|job| job.kind == JobKind::Scrub && !job.state.has_ended());
        let counts = match (under_way.and_then(|job| job.findings.as_ref()), &schedule.last) {
            (Some(found), _) => Some((found.mismatch_count, found.repaired_count, found.unchecked_count)),
            (None, Some(last)) => Some((last.mismatch_count, last.repaired_count, last.unchecked_count)),
            (None, None) => None,
        };
        if let Some(counts) = counts {
            mismatches.get_or_create(&labels).set(gauge_value(counts.0));
            repaired.get_or_create(&labels).set(gauge_value(counts.1));
            unchecked.get_or_create(&labels).set(gauge_value(counts.2));
        }
    }
}

fn job_labels(group: &str, job: &Job) -> JobLabels {
    let kind = match job.kind {
        JobKind::Rebuild => "rebuild",
        JobKind::Replace => "replace",
        JobKind::Resync => "resync",
        JobKind::Scrub => "scrub",
        JobKind::Unknown => "unknown",
    };
    let slot = job.slot.map(|slot| slot.to_string()).unwrap_or_default();
    JobLabels { group: group.to_owned(), job: kind, slot }
}

fn drive_metrics(registry: &mut Registry, drives: &[Drive]) {
    let online: Family<DriveLabels, Gauge> = family(registry, "drive_online", "1 where a drive works", None);
    let size: Family<DriveLabels, Gauge> = family(registry, "drive_size", "Size of a drive", Some(Unit::Bytes));
    let ops: Family<DriveOpLabels, Counter> = family(registry, "drive_ops", "Operations of a drive", None);
    let moved: Family<DriveOpLabels, Counter> =
        family(registry, "drive_io", "Bytes moved by a drive", Some(Unit::Bytes));
    let errors: Family<DriveOpLabels, Counter> =
        family(registry, "drive_errors", "Operations of a drive that failed for good", None);
    let retries: Family<DriveLabels, Counter> =
        family(registry, "drive_retries", "Operations of a drive that were tried again", None);
    let damaged: Family<DriveLabels, Counter> =
        family(registry, "drive_damaged", "Blocks of a drive that were not what had been written", None);
    for drive in drives {
        let group = drive.group.clone().unwrap_or_default();
        let labels = DriveLabels { drive: drive.name.clone(), group: group.clone() };
        online.get_or_create(&labels).set(i64::from(drive.state == api::DriveState::Online));
        if let Some(size_bytes) = drive.size_bytes {
            size.get_or_create(&labels).set(gauge_value(size_bytes));
        }
        let op = |op| DriveOpLabels { drive: drive.name.clone(), group: group.clone(), op };
        for (name, count, byte_count) in by_op(&drive.io) {
            ops.get_or_create(&op(name)).inc_by(count);
            if let Some(byte_count) = byte_count {
                moved.get_or_create(&op(name)).inc_by(byte_count);
            }
        }
        let failed = [
            ("read", drive.errors.read_count),
            ("write", drive.errors.write_count),
            ("other", drive.errors.other_count),
        ];
        for (name, count) in failed {
            errors.get_or_create(&op(name)).inc_by(count);
        }
        damaged.get_or_create(&labels).inc_by(drive.errors.damaged_count);
        retries.get_or_create(&labels).inc_by(drive.errors.retry_count);
    }
}

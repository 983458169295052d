//! What a [`super::MemoryControl`] keeps: groups, volumes and exports, and the rules for their names, drives and jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use api::*;
use daemon::http::{Answer, ControlError};
use format::Shape;

pub(super) const GIB: u64 = 1 << 30;

const DAY: u64 = 86_400;

/// The time of day here, for good: 2023-11-14 22:13 UTC.
pub(super) const NOW: u64 = 1_700_000_000;

#[derive(Default)]
pub(super) struct State {
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) volumes: BTreeMap<VolumeName, Volume>,
    pub(super) exports: BTreeMap<String, Export>,
    /// Of hosts, by export and host.
    pub(super) limits: BTreeMap<(String, String), Limit>,
    pub(super) referrals: BTreeSet<SocketAddr>,
    pub(super) imports: BTreeMap<String, Import>,
    pub(super) shares: Vec<Share>,
    /// By host and group.
    pub(super) keys: BTreeMap<(String, Option<String>), HostKey>,
    pub(super) tls_keys: BTreeMap<(String, Option<String>), HostTlsKey>,
    pub(super) next_id: u64,
    pub(super) upgrade: Upgrade,
}

pub(super) fn refuse<T>(code: ErrorCode, message: String) -> Answer<T> {
    Err(ControlError::new(code, message))
}

/// The size of a drive, if there is one of this name.
pub(super) fn drive_bytes(name: &str, create_files_bytes: Option<u64>, wipe_foreign: bool) -> Answer<u64> {
    match name.parse().expect("the routes have checked it") {
        DriveSpec::Memory { size_bytes, .. } => Ok(size_bytes.unwrap_or(GIB)),
        DriveSpec::Nvme(_) => Ok(GIB),
        DriveSpec::Path(_) if name == "/drives/ext4" && !wipe_foreign => refuse(
            ErrorCode::ForeignData,
            format!("{name} holds an ext4 file system labelled \"home\": it is overwritten only with wipe_foreign"),
        ),
        DriveSpec::Path(path) if path.starts_with("/drives") && !name.contains("/gone-") => Ok(GIB),
        DriveSpec::Path(_) => create_files_bytes
            .map_or_else(|| refuse(ErrorCode::DriveNotFound, format!("{name}: no such file or directory")), Ok),
    }
}

pub(super) fn plain_name(drive: &str) -> String {
    drive.parse::<DriveSpec>().expect("the routes have checked it").name()
}

impl State {
    /// A group, or the shared drives.
    pub(super) fn place_of_keys(&mut self, group: Option<&str>) -> Answer<()> {
        group.map_or(Ok(()), |group| self.group(group).map(drop))
    }

    /// The hosts that use TLS for a group, or for shared drives.
    pub(super) fn tls_hosts(&self, group: Option<&str>) -> Vec<String> {
        self.tls_keys.keys().filter(|(_, of)| of.as_deref() == group).map(|(host, _)| host.clone()).collect()
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn group(&mut self, name: &str) -> Answer<&mut Group> {
        self.groups.get_mut(name).ok_or_else(|| ControlError::group_not_found(name))
    }

    pub(super) fn volume(&mut self, name: &VolumeName) -> Answer<&mut Volume> {
        self.volumes.get_mut(name).ok_or_else(|| ControlError::volume_not_found(name))
    }

    pub(super) fn member(&mut self, group: &str, slot: u32) -> Answer<&mut Member> {
        let group = self.group(group)?;
        let (name, count) = (group.name.clone(), group.member_count);
        let member = group.members.get_mut(slot as usize);
        member.ok_or_else(|| ControlError::member_not_found(&name, slot, count))
    }

    pub(super) fn drive_in_use(&self, drive: &str) -> Option<&str> {
        let holds = |group: &&Group| {
            group.members.iter().any(|m| m.drive.as_deref() == Some(drive))
                || group.spares.iter().any(|s| s.drive == drive)
        };
        self.groups.values().find(holds).map(|group| group.name.as_str())
    }

    pub(super) fn check_unused(&self, drive: &str) -> Answer<()> {
        match self.drive_in_use(drive) {
            Some(group) => refuse(ErrorCode::DriveInUse, format!("{drive} belongs to the group {group:?}")),
            None => Ok(()),
        }
    }

    /// Health, losses and space as they follow from members and volumes.
    pub(super) fn settle(&mut self, name: &str) -> Group {
        let allocated: u64 = self.volumes.values().filter(|v| v.group == name).map(|v| v.size_bytes).sum();
        let group = self.groups.get_mut(name).expect("the caller has it");
        let before = group.clone();
        let lost = group.members.iter().filter(|m| m.state != MemberState::InSync).count() as u32;
        group.losses_left = group.losses_max.saturating_sub(lost);
        group.health = match lost {
            0 => GroupHealth::Optimal,
            lost if lost <= group.losses_max => GroupHealth::Degraded,
            _ => GroupHealth::Failed,
        };
        group.allocated_bytes = allocated;
        group.free_bytes = group.capacity_bytes - allocated;
        group.epoch += u64::from(*group != before);
        group.clone()
    }

    /// Starts a job; it is done after two looks.
    pub(super) fn start(
        &mut self,
        group: &str,
        kind: JobKind,
        slot: Option<u32>,
        findings: Option<ScrubFindings>,
    ) -> Job {
        let id = self.id();
        let job = Job {
            id,
            kind,
            state: JobState::Running,
            slot,
            done_percent: 0.0,
            done_bytes: 0,
            total_bytes: GIB,
            bytes_per_s: 512.0 * 1048576.0,
            left_s: Some(2),
            elapsed_s: 0,
            findings,
            message: None,
        };
        let jobs = &mut self.groups.get_mut(group).expect("the caller has it").jobs;
        jobs.retain(|other| other.kind != kind || other.slot != slot);
        jobs.push(job.clone());
        job
    }

    pub(super) fn move_on(&mut self, name: &str) {
        let group = self.groups.get_mut(name).expect("the caller has it");
        for job in group.jobs.iter_mut().filter(|job| job.state == JobState::Running) {
            job.done_percent += 50.0;
            job.done_bytes += GIB / 2;
            job.elapsed_s += 1;
            job.left_s = Some(1);
            if job.done_percent >= 100.0 {
                job.state = JobState::Done;
                job.left_s = None;
                if let (JobKind::Scrub, Some(found)) = (job.kind, &job.findings) {
                    let last = LastScrub {
                        ended_unix_s: NOW,
                        repair: found.repair,
                        mismatch_count: found.mismatch_count,
                        repaired_count: found.repaired_count,
                        unchecked_count: found.unchecked_count,
                    };
                    (group.scrub.last, group.scrub.active) = (Some(last), false);
                }
                if let (JobKind::Rebuild, Some(slot)) = (job.kind, job.slot) {
                    group.members[slot as usize].state = MemberState::InSync;
                }
            }
        }
    }

    /// A degraded group takes its first spare.
    pub(super) fn take_spare(&mut self, name: &str) {
        let group = self.groups.get_mut(name).expect("the caller has it");
        let lost = group.members.iter().position(|m| matches!(m.state, MemberState::Faulty | MemberState::Missing));
        let (Some(slot), false) = (lost, group.spares.is_empty()) else { return };
        let spare = group.spares.remove(0);
        let member = &mut group.members[slot];
        (member.drive, member.size_bytes) = (Some(spare.drive), Some(spare.size_bytes));
        member.state = MemberState::Rebuilding;
        self.start(name, JobKind::Rebuild, Some(slot as u32), None);
    }
}

pub(super) fn new_group(request: &GroupCreate, shape: &Shape) -> Answer<Group> {
    let bytes = |drive: &String| drive_bytes(drive, request.create_files_bytes, request.wipe_foreign);
    let sizes = request.drives.iter().map(bytes).collect::<Answer<Vec<u64>>>()?;
    let spare = |drive: &String| Ok(Spare { drive: plain_name(drive), size_bytes: bytes(drive)? });
    let spares = request.spares.iter().map(spare).collect::<Answer<Vec<Spare>>>()?;
    let member = |(slot, drive): (usize, &String)| Member {
        slot: slot as u32,
        set: shape.set_of(slot).0 as u32,
        drive: Some(plain_name(drive)),
        state: MemberState::InSync,
        size_bytes: Some(sizes[slot]),
        errors: ErrorCounts::default(),
    };
    let smallest = sizes.iter().min().copied().unwrap_or_default();
    let capacity_bytes = smallest * shape.data_per_set() as u64 * u64::from(shape.sets);
    Ok(Group {
        name: request.name.clone(),
        uuid: "6f1c2f0e-6d0a-4b57-9c7e-0f6a3a1d2b4c".into(),
        level: request.level,
        health: GroupHealth::Optimal,
        member_count: u32::from(shape.members),
        set_count: u32::from(shape.sets),
        data_count: shape.data_per_set() as u32,
        parity_count: if shape.is_mirror() { 0 } else { u32::from(shape.syndromes) },
        copy_count: if shape.is_mirror() { u32::from(shape.syndromes) + 1 } else { 1 },
        strip_bytes: u64::from(shape.strip_bytes),
        capacity_bytes,
        allocated_bytes: 0,
        free_bytes: capacity_bytes,
        used_bytes: 0,
        losses_max: shape.survives() as u32,
        losses_left: shape.survives() as u32,
        epoch: 0,
        clean: false,
        crash_safety: CrashSafety {
            mode: SafetyMode::On,
            write_hole_closed: true,
            note: "on: untouched blocks never change".into(),
        },
        checksums: Checksums {
            enabled: request.checksums.unwrap_or(true),
            note: "on: what a drive damages is noticed and put right when it is read".into(),
        },
        warnings: vec![],
        members: request.drives.iter().enumerate().map(member).collect(),
        spares,
        jobs: vec![],
        io: IoCounters::default(),
        settings: GroupSettings {
            client_p99_us: request.client_p99_us.filter(|&us| us > 0),
            retire_slow: request.retire_slow.unwrap_or(false),
            scrub_every_s: Some(request.scrub_every_s.unwrap_or(30 * DAY)).filter(|&s| s > 0),
        },
        scrub: ScrubSchedule { next_unix_s: Some(NOW + 30 * DAY), ..ScrubSchedule::default() },
    })
}

//! Drive groups.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::maintenance::check_settings;
use crate::{
    AddressError, DriveSpec, ErrorCounts, GroupSettings, Invalid, IoCounters, Job, Level, SafetyMode, ScrubSchedule,
    check_name, check_warn_levels,
};

/// Names that no group can have, because the API uses them as verbs in the same place:
/// `POST /v1/groups/assemble`.
const RESERVED: [&str; 1] = ["assemble"];

/// `GET /v1/groups`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupList {
    /// All running groups, by name.
    pub groups: Vec<Group>,
    /// Groups that this daemon knows but could not start.
    #[serde(default)]
    pub not_started: Vec<GroupNotStarted>,
}

/// A group that this daemon had but could not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupNotStarted {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Why it was not started.
    pub reason: String,
    /// Its drives that could not be opened.
    pub missing_drives: Vec<String>,
    /// The next step for the operator, as a sentence.
    pub next_step: String,
}

/// Drives that protect each other's data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its identity, as on every member, in hexadecimal with dashes.
    pub uuid: String,
    /// How it protects its data.
    pub level: Level,
    /// Its health.
    pub health: GroupHealth,
    /// Number of members, missing ones included.
    pub member_count: u32,
    /// Sets that data is striped over; 1 unless the level is RAID 10, 50 or 60.
    pub set_count: u32,
    /// Data strips of a stripe of one set; 1 for mirrors.
    pub data_count: u32,
    /// Parity strips of a stripe of one set; 0 for mirrors.
    pub parity_count: u32,
    /// Copies of each data strip, itself included; 1 without mirrors.
    pub copy_count: u32,
    /// One drive's part of a stripe, in bytes.
    pub strip_bytes: u64,
    /// Capacity for all volumes together, in bytes.
    pub capacity_bytes: u64,
    /// Bytes allocated to volumes.
    pub allocated_bytes: u64,
    /// Bytes that no volume has.
    pub free_bytes: u64,
    /// Bytes of data that were ever written and not discarded; a rebuild must restore them.
    pub used_bytes: u64,
    /// Members that may be lost in any combination, if all are in sync.
    pub losses_max: u32,
    /// Members that may still be lost now, in any combination.
    pub losses_left: u32,
    /// The newest epoch on the members. It grows with every change of the group's state.
    pub epoch: u64,
    /// Whether no write was in flight when the group was last stopped.
    pub clean: bool,
    /// How much a crash may cost.
    pub crash_safety: CrashSafety,
    /// Whether it has checksums of its data.
    pub checksums: Checksums,
    /// Shards that process its writes: as many as the load needs, next to the shards that the
    /// requests come from.
    pub shards: Vec<u32>,
    /// Current risks, a sentence each, worst first; empty if there are none.
    pub warnings: Vec<String>,
    /// Members by slot.
    pub members: Vec<Member>,
    /// Hot spares.
    pub spares: Vec<Spare>,
    /// Running jobs, and the last ended job of each kind, by identity.
    pub jobs: Vec<Job>,
    /// Traffic of clients.
    pub io: IoCounters,
    /// Settings that an operator chose.
    pub settings: GroupSettings,
    /// Last and next scrub.
    pub scrub: ScrubSchedule,
    /// The pool of its thin volumes; `null` if there are none.
    pub thin: Option<ThinPool>,
}

/// The space of the thin volumes of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThinPool {
    /// Bytes that it has from the group. It takes more when it needs more.
    pub size_bytes: u64,
    /// Bytes in use: content and maps, and what was accepted and is not stored yet.
    pub used_bytes: u64,
    /// Most bytes that may be in use. The rest is for garbage collection.
    pub limit_bytes: u64,
    /// Bytes of content.
    pub data_bytes: u64,
    /// Bytes of maps.
    pub metadata_bytes: u64,
    /// Bytes that garbage collection can free.
    pub garbage_bytes: u64,
    /// Bytes that are kept for volumes with a reserve, beside those that they use.
    pub reserved_bytes: u64,
    /// Bytes of free segments.
    pub free_bytes: u64,
    /// How full it is, in percent, counting the free space of the group that it can take.
    pub used_percent: u8,
    /// When it is full if it fills as fast as in the last minutes, in seconds; `null` if it does
    /// not fill.
    pub full_in_s: Option<u64>,
    /// Thin stores in it. Each works on one CPU core, and has some of the volumes.
    pub store_count: u16,
    /// Work of the pool since the group was started.
    pub work: ThinWork,
}

/// Bytes that a pool of thin volumes has written to its group, without parity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThinWork {
    /// Content of clients, with its indexes.
    pub data_bytes: u64,
    /// Content that was moved: by garbage collection, or to be packed again or put in order.
    pub collected_bytes: u64,
    /// Maps.
    pub metadata_bytes: u64,
    /// Frames of the intent log.
    pub frame_count: u64,
    /// Checkpoints.
    pub checkpoint_count: u64,
    /// Content that was packed again, as it was stored before.
    pub repacked_from_bytes: u64,
    /// As it is stored since.
    pub repacked_to_bytes: u64,
    /// Content that was read in order and is stored in order since.
    pub reordered_bytes: u64,
}

/// Health of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupHealth {
    /// Every member is in sync.
    Optimal,
    /// Members are lost or being rebuilt; all data can be read and written.
    Degraded,
    /// More members are lost than the level survives.
    Failed,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl GroupHealth {
    /// The name in answers and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            GroupHealth::Optimal => "optimal",
            GroupHealth::Degraded => "degraded",
            GroupHealth::Failed => "failed",
            GroupHealth::Unknown => "unknown",
        }
    }
}

/// How much a crash may cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CrashSafety {
    /// The mode that was set when the group was created. Levels without redundancy have nothing to
    /// log: theirs is `off`.
    pub mode: SafetyMode,
    /// Whether blocks that were not being written stay unchanged even if a crash and the loss of
    /// members coincide.
    pub write_hole_closed: bool,
    /// One sentence for people, such as "untouched blocks never change".
    pub note: String,
}

/// Whether a group keeps checksums of its data and parity, and verifies them at each read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checksums {
    /// Whether they were enabled when the group was created. Groups without redundancy or without
    /// crash safety have none.
    pub enabled: bool,
    /// One sentence for people, such as "on: what a drive damages is noticed and put right when it
    /// is read".
    pub note: String,
}

/// A slot of a group, and the drive in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Its slot, from 0.
    pub slot: u32,
    /// Its set, from 0.
    pub set: u32,
    /// The drive in the slot, or the last known one; `null` if unknown.
    pub drive: Option<String>,
    /// The drive that the member is being copied to and that takes its place afterwards; `null` if
    /// there is none.
    #[serde(default)]
    pub replacement: Option<String>,
    /// Its state.
    pub state: MemberState,
    /// Size of the drive in bytes; `null` if it is missing and its size is unknown.
    pub size_bytes: Option<u64>,
    /// Failed operations.
    pub errors: ErrorCounts,
}

/// State of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Holds all its data.
    InSync,
    /// Being rebuilt.
    Rebuilding,
    /// Not present.
    Missing,
    /// It failed an operation permanently, or was failed on request.
    Faulty,
    /// It keeps its slot, since the group cannot work without it, but does not answer.
    Unreachable,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl MemberState {
    /// The name in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            MemberState::InSync => "in-sync",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Missing => "missing",
            MemberState::Faulty => "faulty",
            MemberState::Unreachable => "unreachable",
            MemberState::Unknown => "unknown",
        }
    }
}

/// A drive that waits to take the place of a lost member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Spare {
    /// Its name.
    pub drive: String,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// `POST /v1/groups`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupCreate {
    /// Its name: 1 to 64 of `a-z 0-9 . _ -`, first a letter or digit.
    pub name: String,
    /// Its RAID level.
    pub level: Level,
    /// Its members in the order of their slots: paths on the daemon's machine, `mem:NAME:SIZE`, or
    /// `nvme-tcp://HOST/NQN?nsid=N`.
    pub drives: Vec<String>,
    /// Hot spares.
    #[serde(default)]
    pub spares: Vec<String>,
    /// Parity strips of a stripe; only for level `nm`, where it is required.
    #[serde(default)]
    pub parity: Option<u32>,
    /// Copies, for mirrors only: RAID 1 has as many as drives, RAID 10 has 2 by default.
    #[serde(default)]
    pub copies: Option<u32>,
    /// Sets, for RAID 50 and 60 only: default 2.
    #[serde(default)]
    pub sets: Option<u32>,
    /// One drive's part of a stripe: a power of two from 4 KiB to 1 MiB. By default the daemon
    /// chooses.
    #[serde(default)]
    pub strip_bytes: Option<u64>,
    /// How much a crash may cost; default `on`.
    #[serde(default)]
    pub crash_safety: Option<SafetyMode>,
    /// Whether to keep checksums of data and parity; default `true` if there is redundancy and
    /// crash safety.
    #[serde(default)]
    pub checksums: Option<bool>,
    /// The latency target for clients in microseconds, 100 to 10 000 000; 0: none, the default.
    #[serde(default)]
    pub client_p99_us: Option<u64>,
    /// Whether a slow member is replaced by a spare; default `false`.
    #[serde(default)]
    pub retire_slow: Option<bool>,
    /// Seconds between scrubs, an hour to ten years; 0: only on request; default 30 days.
    #[serde(default)]
    pub scrub_every_s: Option<u64>,
    /// Levels of use at which the pool of thin volumes warns: 1 to 99 percent, ascending; empty: it
    /// does not; default 80, 90 and 95.
    #[serde(default)]
    pub thin_warn_percents: Option<Vec<u8>>,
    /// Drives whose path doesn't exist are created as sparse files of this size.
    #[serde(default)]
    pub create_files_bytes: Option<u64>,
    /// Overwrite drives with foreign content (a file system, another array, a partition table).
    #[serde(default)]
    pub wipe_foreign: bool,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl GroupCreate {
    /// Checks names and drives, without access to any drive. The daemon checks whether level and
    /// numbers make a valid shape.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_group_name(&self.name)?;
        if self.crash_safety == Some(SafetyMode::Unknown) {
            return Err(Invalid::new("the crash safety is on, off or strict"));
        }
        if self.checksums == Some(true) && self.level == Level::Raid0 {
            return Err(Invalid::new("raid0 keeps no checksums: without redundancy nothing can be put right"));
        }
        if self.checksums == Some(true) && self.crash_safety == Some(SafetyMode::Off) {
            return Err(Invalid::new(
                "checksums need crash safety: without its log they would be wrong after a crash; leave one of both out",
            ));
        }
        check_settings(self.client_p99_us, self.scrub_every_s)?;
        check_warn_levels(self.thin_warn_percents.as_deref().unwrap_or_default())?;
        check_drives(self.drives.iter().chain(&self.spares), MemoryDrives::Needed)?;
        check_file_size(self.create_files_bytes)
    }
}

/// Checks the name of a group that is to be created or renamed.
pub(crate) fn check_group_name(name: &str) -> Result<(), Invalid> {
    check_name("group", name)?;
    if RESERVED.contains(&name) {
        return Err(Invalid::new(format!("a group cannot be named {name:?}: the API has a use for that word")));
    }
    Ok(())
}

/// Whether a memory drive must say its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryDrives {
    Needed,
    Optional,
    Refused,
}

/// Checks that every name is valid and none is repeated.
pub(crate) fn check_drives<'a>(drives: impl Iterator<Item = &'a String>, memory: MemoryDrives) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    for text in drives {
        let drive = check_drive(text, memory)?;
        if !seen.insert(drive.name()) {
            return Err(Invalid::new(format!("the drive {:?} is named twice", drive.name())));
        }
    }
    Ok(())
}

fn check_drive(text: &str, memory: MemoryDrives) -> Result<DriveSpec, Invalid> {
    let drive: DriveSpec = text.parse().map_err(|e: AddressError| Invalid::new(e.to_string()))?;
    match &drive {
        DriveSpec::Memory { size_bytes: None, .. } if memory == MemoryDrives::Needed => {
            Err(Invalid::new(AddressError::Memory(text.to_owned()).to_string()))
        }
        DriveSpec::Memory { .. } if memory == MemoryDrives::Refused => Err(Invalid::new(format!(
            "{} is memory of the daemon, which holds no array of another program",
            drive.name()
        ))),
        DriveSpec::Nvme(_) if memory == MemoryDrives::Refused => Err(Invalid::new(format!(
            "{} is a drive of another machine: arrays of another program are read from drives of the daemon's machine",
            drive.name()
        ))),
        DriveSpec::Path(path) if !path.is_absolute() => Err(Invalid::new(format!(
            "the drive path {:?} is relative: the daemon needs one that begins with '/'",
            path.display()
        ))),
        _ => Ok(drive),
    }
}

fn check_file_size(create_files_bytes: Option<u64>) -> Result<(), Invalid> {
    match create_files_bytes {
        Some(0) => Err(Invalid::new("files of 0 bytes make no drives: give them a size")),
        _ => Ok(()),
    }
}

/// `POST /v1/groups/assemble`: start a group from its members, in any order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupAssemble {
    /// Members and spares of one group. As many members may be missing as the level survives.
    /// Drives that hold no group are left out, with a warning.
    pub drives: Vec<String>,
    /// The new name of the group; default: its current name.
    #[serde(default)]
    pub name: Option<String>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl GroupAssemble {
    /// Checks everything that does not need access to a drive.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.drives.is_empty() {
            return Err(Invalid::new("a group is assembled from its drives: name at least one"));
        }
        self.name.as_deref().map_or(Ok(()), check_group_name)?;
        check_drives(self.drives.iter(), MemoryDrives::Optional)
    }
}

/// `POST /v1/groups/{group}/stop`: stop using its drives. All data stays on them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupStop {
    /// Stop even if clients are connected; they lose their connections.
    #[serde(default)]
    pub force: bool,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /v1/groups/{group}/forget`: stop trying to start a group that could not be started. Its
/// drives stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupForget {
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /v1/groups/{group}/members/{slot}/fail`: stop using a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberFail {
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /v1/groups/{group}/members/{slot}/replace`: put another drive in a slot and rebuild onto
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberReplace {
    /// The new drive.
    pub with: String,
    /// If its path doesn't exist, create a sparse file of this size.
    #[serde(default)]
    pub create_files_bytes: Option<u64>,
    /// Overwrite it if it has foreign content.
    #[serde(default)]
    pub wipe_foreign: bool,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl MemberReplace {
    /// Checks everything that does not need access to a drive.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_drive(&self.with, MemoryDrives::Optional)?;
        check_file_size(self.create_files_bytes)
    }
}

/// `POST /v1/groups/{group}/spares`: add a hot spare to a group. A degraded group uses it at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SpareAdd {
    /// The drive.
    pub drive: String,
    /// If its path doesn't exist, create a sparse file of this size.
    #[serde(default)]
    pub create_files_bytes: Option<u64>,
    /// Overwrite it if it has foreign content.
    #[serde(default)]
    pub wipe_foreign: bool,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl SpareAdd {
    /// Checks everything that does not need access to a drive.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_drive(&self.drive, MemoryDrives::Optional)?;
        check_file_size(self.create_files_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create() -> GroupCreate {
        serde_json::from_str(r#"{"name":"tank","level":"raid6","drives":["/a","/b","/c","mem:d:1GiB"]}"#).unwrap()
    }

    fn refuse(change: impl FnOnce(&mut GroupCreate)) -> String {
        let mut request = create();
        change(&mut request);
        request.validate().unwrap_err().to_string()
    }

    #[test]
    fn a_small_request_is_enough() {
        assert_eq!(create().validate(), Ok(()));
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_any_drive_is_touched() {
        assert_eq!(refuse(|r| r.drives[1] = "/a".into()), "the drive \"/a\" is named twice");
        assert_eq!(refuse(|r| r.spares = vec!["mem:d:2GiB".into()]), "the drive \"mem:d\" is named twice");
        assert_eq!(
            refuse(|r| r.drives[0] = "a".into()),
            "the drive path \"a\" is relative: the daemon needs one that begins with '/'"
        );
        assert_eq!(
            refuse(|r| r.drives[0] = "mem:x".into()),
            "\"mem:x\" is not a memory drive: write mem:NAME:SIZE, such as mem:a:1GiB"
        );
        assert_eq!(
            refuse(|r| r.name = "assemble".into()),
            "a group cannot be named \"assemble\": the API has a use for that word"
        );
        assert_eq!(
            refuse(|r| (r.level, r.checksums) = (Level::Raid0, Some(true))),
            "raid0 keeps no checksums: without redundancy nothing can be put right"
        );
        assert_eq!(
            refuse(|r| (r.crash_safety, r.checksums) = (Some(SafetyMode::Off), Some(true))),
            "checksums need crash safety: without its log they would be wrong after a crash; leave one of both out"
        );
        assert_eq!(refuse(|r| r.create_files_bytes = Some(0)), "files of 0 bytes make no drives: give them a size");
        assert_eq!(
            refuse(|r| r.name = "Tank".into()),
            "\"Tank\" is not a group name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
        );
    }

    #[test]
    fn a_mistyped_option_is_refused() {
        let error =
            serde_json::from_str::<GroupCreate>(r#"{"name":"tank","level":"raid6","drives":[],"strip_byte":65536}"#)
                .unwrap_err();
        assert!(error.to_string().starts_with("unknown field `strip_byte`"), "{error}");
    }
}

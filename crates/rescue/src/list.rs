//! A report of the content of drives.

use std::collections::BTreeMap;

use format::{MemberState, Role, SuperblockError, VolumeKind, VolumeRecord};
use serde::{Deserialize, Serialize};

use crate::catalogue::Volumes;
use crate::group::{Exclusion, Group};
use crate::log::{Log, read_lost};
use crate::map::Map;
use crate::probe::{SuperblockCopy, Unusable};
use crate::survey::{Survey, SurveyedDrive};
use crate::thin::{ThinQuery, ThinStore};
use crate::walk::Walk;

/// The content of some drives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListReport {
    /// Each drive that was named.
    pub drives: Vec<DriveReport>,
    /// The groups that they belong to.
    pub groups: Vec<GroupReport>,
}

/// Role of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveRole {
    /// A member of a group, and in use.
    Member,
    /// A spare of a group.
    Spare,
    /// Was a member or a spare, and is not used any more.
    Stale,
    /// A copy of another drive, and not used.
    Copy,
    /// No Purlin drive.
    None,
    /// Has a superblock that cannot be used.
    Damaged,
    /// Could not be opened or read.
    Unreadable,
}

/// A copy of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyReport {
    /// Intact, and the valid copy or identical to it.
    Valid,
    /// Intact, but older than the other copy.
    Behind,
    /// No superblock.
    Absent,
    /// Not intact, or breaks a rule.
    Damaged,
    /// Has a version or features that this program does not know.
    Unknown,
    /// The drive cannot read it.
    Unreadable,
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveReport {
    /// The name that was given.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// Role of the drive.
    pub role: DriveRole,
    /// Name of its group.
    pub group: Option<String>,
    /// UUID of its group.
    pub group_uuid: Option<String>,
    /// Its own UUID.
    pub uuid: Option<String>,
    /// The slot that its superblock states.
    pub slot: Option<u16>,
    /// Epoch of its superblock.
    pub epoch: Option<u64>,
    /// Whether its superblock says that the group was stopped in order.
    pub clean: Option<bool>,
    /// State of the copy in its first block.
    pub head: CopyReport,
    /// State of the copy in its last whole block.
    pub tail: CopyReport,
    /// Foreign content.
    pub holds: Vec<String>,
    /// Why it is not used.
    pub message: Option<String>,
}

/// Whether a group has all its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// All members are in sync.
    Optimal,
    /// Some are missing, but everything can be read.
    Degraded,
    /// More are missing than the level survives.
    Failed,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its level.
    pub level: String,
    /// Whether it has all its members.
    pub health: Health,
    /// Number of members.
    pub member_count: u16,
    /// Number of sets.
    pub set_count: u16,
    /// Data strips of a stripe.
    pub data_count: u16,
    /// Members of each set that may be lost.
    pub losses_max: u16,
    /// How many more members of any set may be lost.
    pub losses_left: u16,
    /// Bytes of a strip.
    pub strip_bytes: u64,
    /// Bytes of user data that the group can hold.
    pub capacity_bytes: u64,
    /// The newest epoch.
    pub epoch: u64,
    /// Whether it was stopped in order.
    pub clean: bool,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Its slots.
    pub members: Vec<MemberReport>,
    /// Its spares.
    pub spares: Vec<SpareReport>,
    /// Its volumes.
    pub volumes: Vec<VolumeReport>,
    /// Its exports.
    pub exports: Vec<ExportReport>,
    /// Sentences for people.
    pub warnings: Vec<String>,
}

/// A slot of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// The slot.
    pub slot: u16,
    /// Its set.
    pub set: u16,
    /// UUID of the drive that belongs there.
    pub uuid: String,
    /// The drive that is present and used.
    pub drive: Option<String>,
    /// `in_sync`, `rebuilding`, `missing` or `faulty`, as the newest superblock says; `missing` if
    /// the drive is not present.
    pub state: String,
}

/// A spare of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareReport {
    /// Its UUID.
    pub uuid: String,
    /// The drive, if it is present.
    pub drive: Option<String>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// GROUP/VOLUME.
    pub name: String,
    /// Its identity.
    pub id: u64,
    /// How it keeps its data.
    pub kind: VolumeKind,
    /// The kind that it is being converted to. Its content is that of its present kind until the
    /// end.
    pub converting_to: Option<VolumeKind>,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes that were ever written, in whole chunks of the allocation map. Of a thin volume its
    /// blocks with content, as of the last checkpoint.
    pub written_bytes: u64,
    /// Bytes that cannot be read or computed, because too many members are missing. Of a thin
    /// volume that cannot be read at all, its whole size.
    pub lost_bytes: u64,
    /// How many of these may never have been written: the map of a thin volume cannot be read
    /// there, nor rebuilt.
    pub unknown_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
}

/// A volume offered to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReport {
    /// Its identity.
    pub id: u64,
    /// The volume, GROUP/VOLUME.
    pub volume: String,
    /// The protocol.
    pub protocol: String,
    /// Its address.
    pub address: String,
    /// Whether clients may write.
    pub read_only: bool,
}

/// Lists the content of the drives.
pub fn list(survey: &Survey) -> ListReport {
    let unopened = survey.unopened.iter().map(|unopened| DriveReport {
        message: Some(unopened.why.clone()),
        head: CopyReport::Unreadable,
        tail: CopyReport::Unreadable,
        ..blank(&unopened.name, DriveRole::Unreadable)
    });
    let drives = survey.drives.iter().enumerate().map(|(index, found)| drive(survey, index, found));
    ListReport {
        drives: drives.chain(unopened).collect(),
        groups: survey.groups.iter().map(|one| group(one, &survey.drives)).collect(),
    }
}

fn blank(name: &str, role: DriveRole) -> DriveReport {
    DriveReport {
        name: name.to_owned(),
        size_bytes: None,
        role,
        group: None,
        group_uuid: None,
        uuid: None,
        slot: None,
        epoch: None,
        clean: None,
        head: CopyReport::Absent,
        tail: CopyReport::Absent,
        holds: Vec::new(),
        message: None,
    }
}

fn drive(survey: &Survey, index: usize, found: &SurveyedDrive) -> DriveReport {
    let probe = &found.probe;
    let newest = probe.superblock();
    let report = DriveReport {
        size_bytes: Some(found.drive.size_bytes()),
        head: copy(&probe.head, newest),
        tail: copy(&probe.tail, newest),
        holds: probe.foreign.iter().map(ToString::to_string).collect(),
        ..blank(found.drive.name(), DriveRole::None)
    };
    let own = match &probe.superblock {
        Ok(own) => own,
        Err(why) => {
            let role = match why {
                Unusable::Superblock(SuperblockError::NotPurlin) | Unusable::TooSmall => DriveRole::None,
                Unusable::Superblock(_) => DriveRole::Damaged,
                Unusable::Unreadable(_) => DriveRole::Unreadable,
            };
            return DriveReport { role, message: Some(why.to_string()), ..report };
        }
    };
    let group = survey.groups.iter().find(|group| group.superblock.array == own.array);
    let excluded = group.and_then(|group| group.excluded.iter().find(|(other, _)| *other == index));
    let role = match (excluded, own.role) {
        (Some((_, Exclusion::OlderCopy { .. } | Exclusion::Duplicate { .. })), _) => DriveRole::Copy,
        (Some(_), _) => DriveRole::Stale,
        (None, Role::Member(_)) => DriveRole::Member,
        (None, Role::Spare) => DriveRole::Spare,
    };
    let slot = match own.role {
        Role::Member(slot) => Some(slot),
        Role::Spare => None,
    };
    DriveReport {
        role,
        group: Some(own.name.clone()),
        group_uuid: Some(own.array.to_string()),
        uuid: Some(own.drive.to_string()),
        slot,
        epoch: Some(own.epoch),
        clean: Some(own.clean),
        message: excluded.map(|(_, why)| why.to_string()),
        ..report
    }
}

fn copy(copy: &SuperblockCopy, newest: Option<&format::Superblock>) -> CopyReport {
    match copy {
        SuperblockCopy::Valid(own) if newest.is_some_and(|newest| newest != &**own) => CopyReport::Behind,
        SuperblockCopy::Valid(_) => CopyReport::Valid,
        SuperblockCopy::Bad(SuperblockError::NotPurlin) => CopyReport::Absent,
        SuperblockCopy::Bad(SuperblockError::UnknownVersion { .. } | SuperblockError::UnknownFeatures { .. }) => {
            CopyReport::Unknown
        }
        SuperblockCopy::Bad(_) => CopyReport::Damaged,
        SuperblockCopy::Unreadable(_) => CopyReport::Unreadable,
    }
}

fn group(group: &Group, drives: &[SurveyedDrive]) -> GroupReport {
    let superblock = &group.superblock;
    let shape = &superblock.shape;
    let volumes = Volumes::read(group, drives, &mut Vec::new());
    let map = Map::read(group, drives, &mut Vec::new());
    let lost = read_lost(group, drives, &mut Vec::new());
    let mut warnings = group.warnings(drives);
    warnings.extend(volumes.unknown.iter().map(|why| format!("the table of volumes cannot be read: {why}")));
    warnings.extend(group.check_one_truth(drives).err().map(|error| error.to_string()));
    let slots: Vec<usize> = (0..group.members.len()).collect();
    let missing =
        slots.chunks(shape.members_per_set()).map(|set| set.iter().filter(|slot| !group.is_in_sync(**slot)).count());
    let missing = missing.max().unwrap_or(0);
    let health = match missing {
        0 => Health::Optimal,
        some if some <= shape.survives() => Health::Degraded,
        _ => Health::Failed,
    };
    let shown = shown_volumes(group, drives, (&map, &lost), &volumes, &mut warnings);
    let name_of = |id: u64| {
        let volume = volumes.catalogue.volumes.iter().find(|volume| volume.id == id);
        volume.map_or_else(|| id.to_string(), |volume| format!("{}/{}", group.name(), volume.name))
    };
    GroupReport {
        name: group.name().to_owned(),
        uuid: superblock.array.to_string(),
        level: shape.level.to_string(),
        health,
        member_count: shape.members,
        set_count: shape.sets,
        data_count: shape.data_per_set() as u16,
        losses_max: shape.survives() as u16,
        losses_left: shape.survives().saturating_sub(missing) as u16,
        strip_bytes: shape.strip_bytes.into(),
        capacity_bytes: superblock.layout.capacity_bytes(shape),
        epoch: superblock.epoch,
        clean: superblock.clean,
        created_unix_s: superblock.created_unix_s,
        members: slots.iter().map(|&slot| member(group, drives, slot)).collect(),
        spares: superblock.spares.iter().map(|uuid| spare(group, drives, uuid)).collect(),
        volumes: shown,
        exports: volumes
            .catalogue
            .exports
            .iter()
            .map(|export| ExportReport {
                id: export.id,
                volume: name_of(export.volume),
                protocol: export.kind.protocol().to_owned(),
                address: export.kind.address(),
                read_only: export.kind.read_only(),
            })
            .collect(),
        warnings,
    }
}

/// The volumes. Those parts of thin volumes that cannot be read are among the warnings.
fn shown_volumes(
    group: &Group,
    drives: &[SurveyedDrive],
    (map, lost): (&Map, &[(u64, u64)]),
    volumes: &Volumes,
    warnings: &mut Vec<String>,
) -> Vec<VolumeReport> {
    let log = Log::read(group, drives, &mut Vec::new());
    let mut stores = BTreeMap::new();
    for pool in volumes.catalogue.thin.as_slice() {
        for store in &pool.stores {
            let query = ThinQuery::new(pool, store, &volumes.catalogue.volumes);
            match ThinStore::open(group, drives, (map, &log), query) {
                Ok(opened) => drop(stores.insert(store.id, opened)),
                Err(why) => warnings.push(format!("thin volumes cannot be read: {why}")),
            }
        }
    }
    let shown = |record: &VolumeRecord| {
        let mut shown = volume(group, map, lost, record);
        if record.kind == VolumeKind::Thin {
            match stores.get_mut(&record.thin.store) {
                Some(store) => {
                    shown.written_bytes = store.mapped_bytes(record.id as u32);
                    let lost = store.lost(record.id as u32, record.size_bytes);
                    (shown.lost_bytes, shown.unknown_bytes) = (lost.bytes, lost.unknown_bytes);
                }
                None => (shown.lost_bytes, shown.unknown_bytes) = (record.size_bytes, record.size_bytes),
            }
        }
        shown
    };
    let shown: Vec<VolumeReport> = volumes.catalogue.volumes.iter().map(shown).collect();
    warnings.extend(stores.values().flat_map(ThinStore::messages));
    let unknown = shown.iter().filter(|volume| volume.unknown_bytes > 0);
    warnings.extend(unknown.map(|volume| {
        let (bytes, name) = (volume.unknown_bytes, &volume.name);
        format!("{bytes} bytes of {name} count as lost, but may never have been written: their map is lost")
    }));
    shown
}

fn member(group: &Group, drives: &[SurveyedDrive], slot: usize) -> MemberReport {
    let entry = group.superblock.members[slot];
    let drive = group.members[slot].map(|index| drives[index].drive.name().to_owned());
    let state = match entry.state {
        MemberState::Faulty => "faulty",
        _ if drive.is_none() => "missing",
        MemberState::InSync => "in_sync",
        MemberState::Rebuilding => "rebuilding",
        MemberState::Missing => "missing",
    };
    let set = group.superblock.shape.set_of(slot).0 as u16;
    MemberReport { slot: slot as u16, set, uuid: entry.uuid.to_string(), drive, state: state.to_owned() }
}

fn spare(group: &Group, drives: &[SurveyedDrive], uuid: &format::Uuid) -> SpareReport {
    let is_it = |index: &&usize| drives[**index].probe.superblock().is_some_and(|own| own.drive == *uuid);
    let drive = group.spares.iter().find(is_it).map(|index| drives[*index].drive.name().to_owned());
    SpareReport { uuid: uuid.to_string(), drive }
}

fn volume(group: &Group, map: &Map, lost: &[(u64, u64)], record: &VolumeRecord) -> VolumeReport {
    let (mut written_bytes, mut lost_bytes) = (0, 0);
    for piece in Walk::new(group, map, lost, record) {
        written_bytes += if piece.written == Some(true) { piece.len } else { 0 };
        lost_bytes += if piece.is_lost(group) { piece.len } else { 0 };
    }
    VolumeReport {
        name: format!("{}/{}", group.name(), record.name),
        id: record.id,
        kind: record.kind,
        converting_to: record.conversion.as_ref().map(|conversion| conversion.to),
        size_bytes: record.size_bytes,
        written_bytes,
        lost_bytes,
        unknown_bytes: 0,
        created_unix_s: record.created_unix_s,
    }
}

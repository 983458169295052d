//! Checks whether everything is as the format says.

use format::{MemberState, VolumeKind, VolumeRecord};
use serde::{Deserialize, Serialize};

use crate::Progress;
use crate::catalogue::Volumes;
use crate::finding::{Finding, Structure};
use crate::group::{Exclusion, Group};
use crate::log::{Log, LogCount};
use crate::map::Map;
use crate::parity::{ParityCheck, ParityCount};
use crate::probe::SuperblockCopy;
use crate::survey::{Survey, SurveyedDrive};
use crate::thin::{ThinQuery, ThinStore};

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The groups that were checked.
    pub groups: Vec<CheckedGroup>,
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
    /// Whether everything that was named could be checked: each drive was opened, and at least one
    /// group was found.
    pub complete: bool,
}

/// A group, and how much of it was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedGroup {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its members.
    pub member_count: u16,
    /// Members that are present and used.
    pub present_count: u16,
    /// Valid copies of superblocks on all its drives.
    pub superblock_copy_count: u64,
    /// Blocks of its allocation map.
    pub map_block_count: u64,
    /// Valid copies of these blocks on all members.
    pub map_copy_count: u64,
    /// Valid copies of its catalogue on all members.
    pub catalogue_copy_count: u64,
    /// Its volumes.
    pub volume_count: u64,
    /// Its log.
    pub log: LogCount,
    /// The comparison of data and parity, if it was requested.
    pub parity: Option<ParityCount>,
    /// Sentences for people about facts that are not errors but worth knowing.
    pub warnings: Vec<String>,
}

/// Checks every structure on the drives and, with `parity`, all data that was ever written.
pub fn check(survey: &Survey, parity: bool, progress: Progress<'_>) -> CheckReport {
    let mut findings = Vec::new();
    for unopened in &survey.unopened {
        findings.push(on_drive(&unopened.name, unopened.why.clone()));
    }
    for found in &survey.drives {
        check_drive(survey, found, &mut findings);
    }
    let groups = survey.groups.iter().map(|group| check_group(survey, group, parity, progress, &mut findings));
    let groups: Vec<CheckedGroup> = groups.collect();
    let complete = survey.unopened.is_empty() && !groups.is_empty();
    CheckReport { groups, findings, complete }
}

fn on_drive(name: &str, message: String) -> Finding {
    Finding {
        structure: Structure::Drive,
        group: None,
        drive: Some(name.to_owned()),
        slot: None,
        offset_bytes: None,
        len_bytes: None,
        message,
    }
}

/// Reports copies of a drive's superblock that are damaged or differ.
fn check_drive(survey: &Survey, found: &SurveyedDrive, findings: &mut Vec<Finding>) {
    let name = found.drive.name();
    let probe = &found.probe;
    let own = match &probe.superblock {
        Ok(own) => own,
        Err(why) => {
            let holds: String = probe.foreign.iter().map(|foreign| format!("; it holds {foreign}")).collect();
            findings.push(on_drive(name, format!("{why}{holds}")));
            return;
        }
    };
    let newest = survey.groups.iter().find(|group| group.superblock.array == own.array);
    let slot = match own.role {
        format::Role::Member(slot) => Some(slot),
        format::Role::Spare => None,
    };
    for (copy, place, offset) in [(&probe.head, "head", probe.offsets[0]), (&probe.tail, "tail", probe.offsets[1])] {
        let message = match copy {
            SuperblockCopy::Valid(copy) if **copy == *own => continue,
            SuperblockCopy::Valid(copy) => {
                format!(
                    "the superblock at the {place} is behind: epoch {}, the other copy has {}",
                    copy.epoch, own.epoch
                )
            }
            SuperblockCopy::Bad(error) => format!("the superblock at the {place} is damaged: {error}"),
            SuperblockCopy::Unreadable(why) => format!("the superblock at the {place} cannot be read: {why}"),
        };
        findings.push(Finding {
            structure: Structure::Superblock,
            group: newest.map(|group| group.name().to_owned()),
            slot,
            offset_bytes: Some(offset),
            len_bytes: Some(format::BLOCK as u64),
            ..on_drive(name, message)
        });
    }
}

fn check_group(
    survey: &Survey,
    group: &Group,
    parity: bool,
    progress: Progress<'_>,
    findings: &mut Vec<Finding>,
) -> CheckedGroup {
    let drives = &survey.drives[..];
    check_members(group, drives, findings);
    let map = Map::read(group, drives, findings);
    let volumes = Volumes::read(group, drives, findings);
    let log = Log::read(group, drives, findings);
    for &(offset, len) in &log.lost {
        let message =
            format!("bytes {offset} to {} of the group were lost in a crash, and not written again", offset + len);
        findings.push(Finding::group(group, Structure::Log, message));
    }
    let records = &volumes.catalogue.volumes;
    if let Some(pool) = &volumes.catalogue.thin {
        for store in &pool.stores {
            let opened = ThinStore::open(group, drives, (&map, &log), ThinQuery::new(pool, store, records));
            findings.extend(check_thin(group, store.id, opened, records));
        }
    }
    let parity = parity.then(|| {
        let (count, found) = ParityCheck::new(group, drives, &log, records).run(&map, progress);
        findings.extend(found);
        count
    });
    let of_group =
        |found: &&SurveyedDrive| found.probe.superblock().is_some_and(|own| own.array == group.superblock.array);
    let copies = |found: &SurveyedDrive| {
        [&found.probe.head, &found.probe.tail].iter().filter(|copy| matches!(copy, SuperblockCopy::Valid(_))).count()
    };
    CheckedGroup {
        name: group.name().to_owned(),
        uuid: group.superblock.array.to_string(),
        member_count: group.members.len() as u16,
        present_count: group.present().count() as u16,
        superblock_copy_count: drives.iter().filter(of_group).map(copies).sum::<usize>() as u64,
        map_block_count: map.block_count(),
        map_copy_count: map.copies,
        catalogue_copy_count: volumes.copies,
        volume_count: records.len() as u64,
        log: log.count,
        parity,
        warnings: group.warnings(drives),
    }
}

/// Reports what cannot be read of the maps of the thin volumes in a store.
fn check_thin(group: &Group, id: u16, store: Result<ThinStore<'_>, String>, records: &[VolumeRecord]) -> Vec<Finding> {
    let finding = |message| Finding::group(group, Structure::Thin, message);
    let mut store = match store {
        Ok(store) => store,
        Err(why) => return vec![finding(format!("thin volumes cannot be read: {why}"))],
    };
    let mut findings = Vec::new();
    let is_in = |record: &&VolumeRecord| record.kind == VolumeKind::Thin && record.thin.store == id;
    for record in records.iter().filter(is_in) {
        let found = store.check(record.id as u32, (&record.name, record.size_bytes));
        findings.extend(found.into_iter().map(finding));
    }
    store.messages().into_iter().map(finding).chain(findings).collect()
}

/// Reports slots without a drive, and members whose superblocks disagree.
fn check_members(group: &Group, drives: &[SurveyedDrive], findings: &mut Vec<Finding>) {
    let newest = &group.superblock;
    if let Some((drive, other)) = group.divided {
        let (drive, other) = (drives[drive].drive.name(), drives[other].drive.name());
        let message = format!("{drive} went on without {other} while that went on without it");
        findings.push(Finding::group(group, Structure::Member, message));
    }
    for (index, why) in &group.excluded {
        let message = match why {
            Exclusion::Duplicate { other } | Exclusion::OlderCopy { other } => {
                format!("{why}, {}", drives[*other].drive.name())
            }
            _ => why.to_string(),
        };
        let group = Some(group.name().to_owned());
        findings.push(Finding { group, ..on_drive(drives[*index].drive.name(), message) });
    }
    for (slot, entry) in newest.members.iter().enumerate() {
        let Some(index) = group.members[slot] else {
            let why = match entry.state {
                MemberState::InSync => format!("its drive {} is not there", entry.uuid),
                state => format!("it is {state}"),
            };
            let message = format!("slot {slot} has no drive to use: {why}");
            findings.push(Finding::member(group, drives, slot, Structure::Member, message));
            continue;
        };
        if entry.state == MemberState::Rebuilding {
            let done = newest.rebuild.filter(|rebuild| usize::from(rebuild.member) == slot);
            let done = done.map_or(0, |rebuild| rebuild.next_chunk);
            let message = format!(
                "slot {slot} is being rebuilt: {done} of {} allocation chunks are whole",
                newest.layout.chunk_count
            );
            findings.push(Finding::member(group, drives, slot, Structure::Member, message));
        }
        let (have, need) = (drives[index].drive.size_bytes(), newest.layout.member_bytes);
        if have < need {
            let message = format!("has {have} bytes, members need {need}: its end is cut off");
            findings.push(Finding::member(group, drives, slot, Structure::Member, message));
        }
        let own = drives[index].probe.superblock().expect("a member has a superblock");
        let same = format::Superblock { role: newest.role, drive: newest.drive, ..own.clone() };
        let message = match own.epoch == newest.epoch {
            true if same == *newest => continue,
            true => format!("its superblock differs from others of the same epoch {}", own.epoch),
            false => format!("its superblock is behind: epoch {}, the newest is {}", own.epoch, newest.epoch),
        };
        findings.push(Finding::member(group, drives, slot, Structure::Superblock, message));
    }
}

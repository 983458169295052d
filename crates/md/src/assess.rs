//! Decides which drives form an array, and whether the array can be read from them.
//!
//! The rules are md's. The superblock with the most events counts, also for the roles of the other
//! drives. A drive that missed more than one event is stale.

use std::ops::Range;

use crate::examine::Candidate;
use crate::geometry::{Geometry, Level, Numbers};
use crate::reason::{LeftOut, Refusal, level_name};
use crate::superblock::{ArrayId, Features, Role, Superblock, Version};

/// Events that a member may have missed: before a stop, the last superblocks are written one after
/// the other.
const EVENTS_MISSED_MAX: u64 = 1;

/// Properties of an array, whether or not it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Identity.
    pub array: ArrayId,
    /// Name, as mdadm shows it.
    pub name: String,
    /// Version of its metadata.
    pub version: Version,
    /// Level in mdadm's words.
    pub level: String,
    /// Layout in mdadm's words. Empty if the level has only one, or if it is unknown.
    pub layout: String,
    /// Sectors of a chunk; 0 if the level has none.
    pub chunk_sectors: u64,
    /// Number of slots.
    pub disks: u32,
    /// Capacity in sectors; 0 if unknown.
    pub sectors: u64,
    /// Event count of the newest superblock.
    pub events: u64,
    /// Whether it was stopped in order, so its redundancy fits its data.
    pub clean: bool,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// When its newest superblock was written, in seconds since 1970.
    pub updated_unix_s: u64,
}

/// A member, and the location of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPlace {
    /// Index of its candidate.
    pub candidate: usize,
    /// First sector of its data on the drive.
    pub data_offset: u64,
    /// Sectors of the drive whose content is not valid.
    pub bad: Vec<Range<u64>>,
}

/// An array that can be read.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// Location of each sector.
    pub geometry: Geometry,
    /// Members by slot.
    pub members: Vec<Option<MemberPlace>>,
    /// Sectors of each member up to which parity fits the data.
    pub trusted_sectors: u64,
}

impl Assembly {
    /// Slots without a member.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&slot| self.members[slot].is_none()).collect()
    }
}

/// The result for some drives of one array.
#[derive(Debug, Clone)]
pub struct Assessment {
    /// Properties of the array.
    pub description: Description,
    /// Candidates that are not read, by index.
    pub left_out: Vec<(usize, LeftOut)>,
    /// The readable array, or why it cannot be read.
    pub assembly: Result<Assembly, Refusal>,
}

/// The candidates of each array, by index. Arrays are in the order of their first appearance.
pub fn sets(candidates: &[&Candidate]) -> Vec<Vec<usize>> {
    let mut sets: Vec<(ArrayId, Vec<usize>)> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let array = candidate.superblock.array;
        match sets.iter_mut().find(|(known, _)| *known == array) {
            Some((_, set)) => set.push(index),
            None => sets.push((array, vec![index])),
        }
    }
    sets.into_iter().map(|(_, set)| set).collect()
}

/// Assesses drives of one array: its properties, and whether it can be read. With
/// `allow_inconsistent`, data that was being written when the array was last used may be computed
/// from parity that does not fit it, like mdadm's `--force`.
///
/// # Panics
/// If there is no candidate.
pub fn assess(candidates: &[&Candidate], allow_inconsistent: bool) -> Assessment {
    let newest = candidates.iter().map(|candidate| candidate.superblock.events).max().expect("an array has a drive");
    let fresh = || candidates.iter().map(|candidate| &candidate.superblock).filter(|own| own.events == newest);
    // Prefers a member's superblock: a spare does not take part in what members record about each
    // other.
    let freshest = fresh().find(|own| is_member(own)).or_else(|| fresh().next()).expect("one has the most events");
    let mut members =
        Members { slots: vec![None; freshest.disks.min(crate::ROLES_MAX as u32) as usize], left_out: Vec::new() };
    let seated = members.seat(candidates, freshest);
    let geometry = check(freshest).and_then(|level| geometry(level, freshest, candidates, &members.slots));
    let mut description = describe(freshest);
    if let Ok(geometry) = &geometry {
        description.layout = geometry.layout_name();
        description.chunk_sectors = geometry.chunk_sectors();
        description.sectors = geometry.sectors();
        members.check_sizes(candidates, geometry);
    }
    let disowns = |own: &Superblock| !matches!(own.role_of(freshest.device_number), Role::Member(_));
    let split = is_member(freshest) && fresh().any(|own| is_member(own) && disowns(own));
    let assembly = match geometry {
        Err(refusal) => Err(refusal),
        Ok(_) if split => Err(Refusal::SplitBrain),
        Ok(geometry) => {
            seated.and_then(|()| assemble(geometry, freshest, candidates, &members.slots, allow_inconsistent))
        }
    };
    Assessment { description, left_out: members.left_out, assembly }
}

/// Whether the device's own superblock lists it as a member.
fn is_member(superblock: &Superblock) -> bool {
    matches!(superblock.role_of(superblock.device_number), Role::Member(_))
}

fn describe(freshest: &Superblock) -> Description {
    Description {
        array: freshest.array,
        name: freshest.name.clone(),
        version: freshest.version,
        level: level_name(freshest.level),
        layout: String::new(),
        chunk_sectors: 0,
        disks: freshest.disks,
        sectors: 0,
        events: freshest.events,
        clean: freshest.is_clean(),
        created_unix_s: freshest.created_unix_s,
        updated_unix_s: freshest.updated_unix_s,
    }
}

/// Whether this kind of array is supported.
fn check(freshest: &Superblock) -> Result<Level, Refusal> {
    let features = freshest.features;
    if features.unknown() != Features::default() {
        return Err(Refusal::Features(features.unknown().0));
    }
    if features.any(Features(Features::RESHAPE.0 | Features::RESHAPE_BACKWARDS.0 | Features::NEW_OFFSET.0)) {
        return Err(Refusal::Reshape);
    }
    if features.any(Features::CLUSTERED) {
        return Err(Refusal::Clustered);
    }
    if features.any(Features::JOURNAL) {
        return Err(Refusal::Journal);
    }
    Level::of_md(freshest.level).ok_or(Refusal::Level(freshest.level))
}

fn geometry(
    level: Level,
    freshest: &Superblock,
    candidates: &[&Candidate],
    slots: &[Option<usize>],
) -> Result<Geometry, Refusal> {
    let mut data_sectors = Vec::new();
    if level == Level::Raid0 {
        let missing: Vec<usize> = (0..slots.len()).filter(|&slot| slots[slot].is_none()).collect();
        if !missing.is_empty() {
            return Err(Refusal::Missing { level, disks: slots.len(), missing });
        }
        data_sectors = slots.iter().flatten().map(|&index| candidates[index].superblock.data_sectors).collect();
    }
    let numbers = Numbers {
        level,
        layout: freshest.layout,
        raid0_layout: freshest.features.any(Features::RAID0_LAYOUT),
        disks: freshest.disks,
        chunk_sectors: freshest.chunk_sectors,
        size_sectors: freshest.size_sectors,
        data_sectors: &data_sectors,
    };
    Geometry::new(&numbers).map_err(Refusal::Geometry)
}

/// The assignment of candidates to slots.
struct Members {
    /// Index of the candidate, by slot.
    slots: Vec<Option<usize>>,
    left_out: Vec<(usize, LeftOut)>,
}

impl Members {
    /// Assigns each candidate to its slot, or records the reason why it has none.
    fn seat(&mut self, candidates: &[&Candidate], freshest: &Superblock) -> Result<(), Refusal> {
        let mut contested = None;
        let mut replacements = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            match slot(candidate, freshest, self.slots.len()) {
                Err(reason) => self.left_out.push((index, reason)),
                Ok(slot) if candidate.superblock.features.any(Features::REPLACEMENT) => {
                    replacements.push((slot, index))
                }
                Ok(slot) => match &mut self.slots[usize::from(slot)] {
                    Some(_) => contested = contested.or(Some(slot)),
                    free => *free = Some(index),
                },
            }
        }
        // A complete replacement can take the place of a missing member.
        for (slot, index) in replacements {
            match &mut self.slots[usize::from(slot)] {
                Some(_) => self.left_out.push((index, LeftOut::Replacement)),
                free => *free = Some(index),
            }
        }
        self.left_out.sort_by_key(|(index, _)| *index);
        contested.map_or(Ok(()), |slot| Err(Refusal::TwoDrives(slot)))
    }

    /// Removes members whose drives cannot hold the data that the array needs from them.
    fn check_sizes(&mut self, candidates: &[&Candidate], geometry: &Geometry) {
        for (slot, seat) in self.slots.iter_mut().enumerate() {
            let Some(index) = *seat else { continue };
            let Candidate { superblock, drive_sectors, sector_bytes, .. } = candidates[index];
            let (offset, used) = (superblock.data_offset, geometry.used_sectors(slot));
            let end = offset.saturating_add(used);
            let has = offset.saturating_add(superblock.data_sectors).min(*drive_sectors);
            let reason = if end > has {
                LeftOut::TooSmall { end, has }
            } else if !(offset * crate::SECTOR).is_multiple_of(u64::from(*sector_bytes)) {
                LeftOut::Alignment { data_offset: offset, sector_bytes: *sector_bytes }
            } else {
                continue;
            };
            *seat = None;
            self.left_out.push((index, reason));
        }
        self.left_out.sort_by_key(|(index, _)| *index);
    }
}

/// The slot of a candidate.
fn slot(candidate: &Candidate, freshest: &Superblock, slots: usize) -> Result<u16, LeftOut> {
    let own = &candidate.superblock;
    let is_fresh = own.events.saturating_add(EVENTS_MISSED_MAX) >= freshest.events;
    let slot = match freshest.role_of(own.device_number) {
        Role::Spare if is_fresh || !is_member(own) => return Err(LeftOut::Spare),
        Role::Faulty => return Err(LeftOut::Faulty),
        Role::Journal => return Err(LeftOut::Journal),
        Role::Member(slot) if is_fresh => slot,
        Role::Member(_) | Role::Spare => {
            return Err(LeftOut::Stale { events: own.events, newest: freshest.events });
        }
    };
    if usize::from(slot) >= slots {
        return Err(LeftOut::NoSuchSlot(slot));
    }
    let shape = |of: &Superblock| (of.level, of.layout, of.chunk_sectors, of.disks, of.size_sectors);
    if shape(own) != shape(freshest) {
        return Err(LeftOut::OtherShape);
    }
    // A rebuild whose position is the maximum is complete.
    if let Some(done_sectors) = own.recovered_sectors.filter(|&sectors| sectors != u64::MAX) {
        return Err(LeftOut::Rebuilding { done_sectors, total_sectors: own.size_sectors });
    }
    candidate.bad.as_ref().map(|_| slot).map_err(|reason| *reason)
}

fn assemble(
    geometry: Geometry,
    freshest: &Superblock,
    candidates: &[&Candidate],
    slots: &[Option<usize>],
    allow_inconsistent: bool,
) -> Result<Assembly, Refusal> {
    let missing: Vec<usize> = (0..slots.len()).filter(|&slot| slots[slot].is_none()).collect();
    if !geometry.is_readable(|slot| slots[slot].is_some()) {
        return Err(Refusal::Missing { level: geometry.level(), disks: slots.len(), missing });
    }
    let trusted_sectors = match freshest.resynced_sectors {
        Some(sectors) if !allow_inconsistent => sectors,
        _ => u64::MAX,
    };
    if trusted_sectors != u64::MAX && needs_parity(&geometry, &missing) {
        return Err(Refusal::DirtyDegraded { missing });
    }
    let place = |index: usize| {
        let Candidate { superblock, bad, .. } = candidates[index];
        let bad = bad.clone().unwrap_or_default();
        MemberPlace { candidate: index, data_offset: superblock.data_offset, bad }
    };
    let members = slots.iter().map(|seat| seat.map(place)).collect();
    Ok(Assembly { geometry, members, trusted_sectors })
}

/// Whether missing disks hold data, rather than only parity.
fn needs_parity(geometry: &Geometry, missing: &[usize]) -> bool {
    let Some(parity) = geometry.parity() else { return false };
    // The pattern repeats after this many rows, or fewer.
    (0..geometry.disk_count() as u64).any(|row| parity.row(row).data.iter().any(|disk| missing.contains(disk)))
}

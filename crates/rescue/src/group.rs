//! Finds which drives form a group: docs/format/README.md, "Reading an array by hand".

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use format::{CrashSafety, MemberState, Role, Superblock, Uuid};

use crate::error::RescueError;
use crate::geometry::Geometry;
use crate::survey::SurveyedDrive;

/// Why a drive of the array is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exclusion {
    /// The drive was removed from the group, or missed writes while it was absent.
    Stale {
        /// The last epoch that the drive saw.
        epoch: u64,
        /// The newest epoch of the group.
        newest: u64,
        /// Whether its superblock has no live drive in common with the newest one, so it was run
        /// alone.
        apart: bool,
    },
    /// A spare that is no longer listed.
    Unlisted,
    /// An older copy of another drive.
    OlderCopy {
        /// Index of the other drive.
        other: usize,
    },
    /// A copy of a member from an earlier time: the member has had superblocks since then.
    OlderMember {
        /// The epoch of the copy.
        epoch: u64,
        /// An epoch that the member had.
        held: u64,
    },
    /// As new as another drive with the same identity. It is impossible to tell which is right.
    Duplicate {
        /// Index of the other drive.
        other: usize,
    },
}

impl fmt::Display for Exclusion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exclusion::Stale { epoch, newest, apart } => {
                write!(formatter, "stale: its last epoch is {epoch}, the group's is {newest}")?;
                if *apart { write!(formatter, "; it was run without the others") } else { Ok(()) }
            }
            Exclusion::Unlisted => write!(formatter, "no longer a spare of the group"),
            Exclusion::OlderMember { epoch, held } => {
                write!(formatter, "an older copy of a member: its epoch is {epoch}, the member had at least {held}")
            }
            Exclusion::OlderCopy { .. } => write!(formatter, "an older copy of another drive"),
            Exclusion::Duplicate { .. } => write!(formatter, "carries the same identity as another drive"),
        }
    }
}

/// An array, with the drives that are present.
#[derive(Debug, Clone)]
pub struct Group {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The drive index of each slot, if a usable drive is present.
    pub members: Vec<Option<usize>>,
    /// Indices of the spares that are present.
    pub spares: Vec<usize>,
    /// Drives of this array that are not used, and why.
    pub excluded: Vec<(usize, Exclusion)>,
    /// Two drives that were run without each other.
    pub(crate) divided: Option<(usize, usize)>,
    pub(crate) geometry: Geometry,
    /// Bytes of the data region that the largest member can hold. Less than the superblock says if
    /// all members are cut off.
    pub(crate) data_bytes: u64,
}

/// The drives that a superblock lists as live.
fn live(superblock: &Superblock) -> impl Iterator<Item = Uuid> + '_ {
    superblock.members.iter().filter(|entry| entry.state.takes_writes()).map(|entry| entry.uuid)
}

impl Group {
    /// The groups that the drives belong to.
    pub(crate) fn find(drives: &[SurveyedDrive]) -> Vec<Group> {
        let mut arrays: BTreeMap<Uuid, Vec<(usize, &Superblock)>> = BTreeMap::new();
        for (index, found) in drives.iter().enumerate() {
            if let Some(superblock) = found.probe.superblock() {
                arrays.entry(superblock.array).or_default().push((index, superblock));
            }
        }
        arrays.into_values().map(|members| Group::of(&members).on(drives)).collect()
    }

    fn of(found: &[(usize, &Superblock)]) -> Group {
        let newest = found.iter().map(|(_, own)| *own).max_by_key(|own| own.epoch).expect("an array has a drive");
        let mut group = Group {
            superblock: newest.clone(),
            members: vec![None; newest.members.len()],
            spares: Vec::new(),
            excluded: Vec::new(),
            divided: divided(newest, found),
            geometry: Geometry::new(&newest.shape, &newest.layout),
            data_bytes: 0,
        };
        for &(index, own) in found {
            let twins = found.iter().filter(|(other, twin)| *other != index && twin.drive == own.drive);
            let rival = twins.max_by_key(|(_, twin)| twin.epoch).filter(|(_, twin)| twin.epoch >= own.epoch);
            let exclusion = match rival {
                Some((other, twin)) if twin.epoch > own.epoch => Some(Exclusion::OlderCopy { other: *other }),
                Some((other, _)) => Some(Exclusion::Duplicate { other: *other }),
                None => group.take(index, own),
            };
            group.excluded.extend(exclusion.map(|why| (index, why)));
        }
        group
    }

    /// Sets `data_bytes` from the sizes of the drives.
    fn on(mut self, drives: &[SurveyedDrive]) -> Group {
        self.data_bytes = self.held(drives, self.geometry.data_offset, self.geometry.data_len);
        self
    }

    /// The bytes of a region of `len` bytes at `offset` that the largest member can hold, counted
    /// from its start. Sizes in a superblock are not trusted: a cut-off image must cost no more
    /// than its own size.
    pub(crate) fn held(&self, drives: &[SurveyedDrive], offset: u64, len: u64) -> u64 {
        let sizes = self.members.iter().flatten().map(|&index| drives[index].drive.size_bytes());
        sizes.max().unwrap_or(0).saturating_sub(offset).min(len)
    }

    /// As [`Group::held`], for the member in one slot.
    pub(crate) fn held_by(&self, drives: &[SurveyedDrive], slot: usize, offset: u64, len: u64) -> u64 {
        let size = self.members[slot].map_or(0, |index| drives[index].drive.size_bytes());
        size.saturating_sub(offset).min(len)
    }

    /// Assigns a drive to its slot or to the spares, or returns why it is not used.
    fn take(&mut self, index: usize, own: &Superblock) -> Option<Exclusion> {
        let newest = &self.superblock;
        let place = newest.members.iter().position(|entry| entry.uuid == own.drive);
        let is_in_sync = |place: usize| newest.members[place].state == MemberState::InSync;
        if place.is_some_and(is_in_sync) && !newest.is_up_to_date(own) {
            return Some(Exclusion::OlderMember { epoch: own.epoch, held: newest.held_epoch });
        }
        if let Some(place) = place.filter(|&place| newest.members[place].state.takes_writes()) {
            self.members[place] = Some(index);
            return None;
        }
        if place.is_none() && newest.spares.contains(&own.drive) {
            self.spares.push(index);
            return None;
        }
        if place.is_none() && own.role == Role::Spare {
            return Some(Exclusion::Unlisted);
        }
        let apart = !live(own).any(|uuid| live(newest).any(|other| other == uuid));
        Some(Exclusion::Stale { epoch: own.epoch, newest: newest.epoch, apart })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.superblock.name
    }

    /// Refuses conflicts that only the operator can resolve: a divided group, and two drives with
    /// one identity.
    ///
    /// # Errors
    /// [`RescueError::Divided`], [`RescueError::Duplicate`].
    pub fn check_one_truth(&self, drives: &[SurveyedDrive]) -> Result<(), RescueError> {
        let name = |index: usize| drives[index].drive.name().to_owned();
        if let Some((drive, other)) = self.divided {
            return Err(RescueError::Divided { drive: name(drive), other: name(other) });
        }
        let twin = self.excluded.iter().find_map(|(index, why)| match why {
            Exclusion::Duplicate { other } => Some((*index, *other)),
            _ => None,
        });
        twin.map_or(Ok(()), |(drive, other)| Err(RescueError::Duplicate { drive: name(drive), other: name(other) }))
    }

    /// Whether the member in `slot` is present and has its data in allocation chunk `chunk`.
    pub(crate) fn is_whole(&self, slot: usize, chunk: u64) -> bool {
        if self.members[slot].is_none() {
            return false;
        }
        match self.superblock.members[slot].state {
            MemberState::InSync => true,
            MemberState::Rebuilding => self
                .superblock
                .rebuild
                .is_some_and(|rebuild| usize::from(rebuild.member) == slot && chunk < rebuild.next_chunk),
            MemberState::Missing | MemberState::Faulty => false,
        }
    }

    /// Whether the member in `slot` is present and has all its data.
    pub(crate) fn is_in_sync(&self, slot: usize) -> bool {
        self.members[slot].is_some() && self.superblock.members[slot].state == MemberState::InSync
    }

    /// The slots of the present members, in sync or rebuilding.
    pub(crate) fn present(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|&slot| self.members[slot].is_some())
    }

    /// The strips of set `set` that are missing from the row at `offset` of the data region.
    pub(crate) fn lost_strips(&self, set: u64, offset: u64) -> Vec<usize> {
        let chunk = self.geometry.chunk_of(set, offset);
        (0..self.geometry.width)
            .filter(|&strip| !self.is_whole(self.geometry.slot_of(set, offset, strip), chunk))
            .collect()
    }

    /// Whether more members of a set lack some of their data than the level survives.
    pub(crate) fn lacks_data(&self) -> bool {
        let slots: Vec<usize> = (0..self.members.len()).collect();
        let mut sets = slots.chunks(self.geometry.width);
        let lacking = |set: &[usize]| set.iter().filter(|&&slot| !self.is_in_sync(slot)).count();
        self.data_bytes < self.geometry.data_len || sets.any(|set| lacking(set) > self.geometry.parity_count)
    }

    /// Reads from a member.
    ///
    /// # Errors
    /// The error of the drive.
    ///
    /// # Panics
    /// If there is no drive in the slot.
    pub(crate) fn read(&self, drives: &[SurveyedDrive], slot: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let drive = self.members[slot].expect("only members that are there are read");
        drives[drive].drive.read_at(offset, buf)
    }

    /// Facts to consider before trusting data of this group.
    pub fn warnings(&self, drives: &[SurveyedDrive]) -> Vec<String> {
        let mut warnings = Vec::new();
        let missing: Vec<String> =
            (0..self.members.len()).filter(|&slot| self.members[slot].is_none()).map(|slot| slot.to_string()).collect();
        let superblock = &self.superblock;
        if !superblock.clean && superblock.shape.survives() > 0 && !missing.is_empty() {
            let what = match superblock.crash_safety {
                CrashSafety::Off => {
                    "and members are missing: what was being written at the end may be inconsistent, in its stripes also \
                     blocks that were not being written"
                }
                CrashSafety::On | CrashSafety::Strict => {
                    "and members are missing: what was being written at the end is read by the log"
                }
            };
            warnings.push(format!("the group was not stopped in order, {what}"));
        }
        let unseen = superblock.members.iter().enumerate().filter(|(slot, entry)| {
            let here = |found: &SurveyedDrive| found.probe.superblock().is_some_and(|own| own.drive == entry.uuid);
            entry.state.takes_writes() && self.members[*slot].is_none() && !drives.iter().any(here)
        });
        let unseen: Vec<String> = unseen.map(|(slot, _)| slot.to_string()).collect();
        if !unseen.is_empty() {
            warnings.push(format!(
                "slot {} is not among the drives: if it was used after the others, what is read here is old",
                unseen.join(", ")
            ));
        }
        for (index, why) in &self.excluded {
            warnings.push(format!("{} is not used: {why}", drives[*index].drive.name()));
        }
        warnings
    }
}

/// A drive that was run, in another line of runs, without a drive that the newest superblock lists
/// as live. None of the drives that it lists as live is live in the newest superblock.
fn divided(newest: &Superblock, found: &[(usize, &Superblock)]) -> Option<(usize, usize)> {
    found.iter().find_map(|(index, own)| {
        let counts_itself = live(own).any(|uuid| uuid == own.drive);
        if newest.follows(own) || !counts_itself || live(own).any(|uuid| live(newest).any(|other| other == uuid)) {
            return None;
        }
        let without = own.members.iter().filter(|entry| !entry.state.takes_writes()).map(|entry| entry.uuid);
        let current = without.filter(|uuid| live(newest).any(|other| other == *uuid));
        let other = current.filter_map(|uuid| found.iter().find(|(_, other)| other.drive == uuid)).next();
        other.map(|(other, _)| (*index, *other))
    })
}

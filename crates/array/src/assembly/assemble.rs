//! Finds out which group a set of drives is, from the drives alone.
//!
//! The superblock with the highest epoch is true. A drive belongs to the group if that superblock
//! lists it as in sync, being rebuilt, or a spare. Every other drive is refused with a reason and
//! left as it is. Neither the order nor the names of the drives matter.
//!
//! A crash can leave a member with an older superblock than others. A drive that was replaced by a
//! copy of itself from an earlier time has an older one, too, and old content. The newest
//! superblock tells them apart: it names an epoch that all members in sync have had.

use drive::{BlockError, Drive, DriveError, Env, join_all};
use format::{MemberState, Role, SlotError, Superblock, SuperblockError, Uuid};
use thiserror::Error;

use crate::assembly::probe::{foreign_on, superblock_on};
use crate::drives::bounded::Bounded;

/// Why a drive is not part of the group.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It could not be read.
    #[error("{0}")]
    Drive(DriveError),
    /// It holds something else.
    #[error("not a Purlin drive: it holds {0}")]
    Foreign(String),
    /// It holds nothing known.
    #[error("not a Purlin drive")]
    NotPurlin,
    /// Its superblock cannot be used.
    #[error("{0}")]
    Superblock(SuperblockError),
    /// It belongs to another array.
    #[error("belongs to another array, {name} ({array})")]
    OtherArray {
        /// That array's name.
        name: String,
        /// That array.
        array: Uuid,
    },
    /// It was taken out of the group, or missed writes while it was disconnected.
    #[error("stale: it left as member {member} at epoch {epoch}, the group is at epoch {newest}")]
    Stale {
        /// The place it had.
        member: u16,
        /// The last epoch it saw.
        epoch: u64,
        /// The group's epoch.
        newest: u64,
    },
    /// It is a copy of a member from an earlier time: the member has had superblocks since then.
    #[error("an older copy of member {member}: its epoch is {epoch}, and the member had at least {held}")]
    OlderCopy {
        /// The member.
        member: u16,
        /// The epoch of the copy.
        epoch: u64,
        /// An epoch that the member had.
        held: u64,
    },
    /// The group does not list it any more.
    #[error("no longer part of the group: at epoch {newest} its place is taken or its spare was removed")]
    Unlisted {
        /// The group's epoch.
        newest: u64,
    },
    /// Two drives carry one identity: one is a copy of the other.
    #[error("carries the same identity as {other}: one of them is a copy")]
    Duplicate {
        /// The other drive's name.
        other: String,
    },
    /// The end of the drive was cut off.
    #[error("has {have} bytes, the group's members need {need}")]
    TooSmall {
        /// Bytes needed.
        need: u64,
        /// Bytes there are.
        have: u64,
    },
}

/// Why a group cannot be assembled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AssembleError {
    /// No drive has a superblock.
    #[error("none of the drives belongs to a Purlin array: {0}")]
    Nothing(String),
    /// The drives belong to several arrays.
    #[error("the drives belong to different arrays: {0}")]
    SeveralArrays(String),
    /// Two drives claim to be the same one.
    #[error("{drive} carries the same identity as {other}: one of them is a copy, leave it out")]
    Duplicate {
        /// One drive's name.
        drive: String,
        /// The other's.
        other: String,
    },
    /// Too many members are missing.
    #[error("{missing} members of a set are missing, {level} survives {survives}: {why}")]
    TooFew {
        /// Members missing in the worst set.
        missing: usize,
        /// The level.
        level: String,
        /// How many may be missing.
        survives: usize,
        /// Which ones, and why.
        why: String,
    },
    /// The group was run twice, each time with other members. Only the operator can tell which half
    /// is wanted.
    #[error("{drive} went on without {other} while that went on without it: leave out the drives of one half")]
    Divided {
        /// A drive of one half.
        drive: String,
        /// One of the other.
        other: String,
    },
    /// The recovery after a crash failed, or the superblocks could not be written.
    #[error("{0}")]
    Block(BlockError),
    /// No member can read one of the group's own structures. It may exist all the same, and then
    /// data would be taken for absent.
    #[error("the {0} cannot be read from any member")]
    Unreadable(&'static str),
    /// Something in the group's own structures is wrong on every member.
    #[error("the catalogue of volumes is damaged on every member")]
    Catalogue,
    /// The catalogue is of a newer version of this program.
    #[error("the catalogue of volumes cannot be read by this version of Purlin, which may be too old: {0}")]
    UnknownCatalogue(SlotError),
}

/// A group, as it was found on a set of drives.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// The newest superblock.
    pub superblock: Superblock,
    /// For each slot the index of its drive among those given, if it is there.
    pub members: Vec<Option<usize>>,
    /// Indices of the spares.
    pub spares: Vec<usize>,
    /// Drives that are left out, by index, and why.
    pub refused: Vec<(usize, Refusal)>,
}

impl Assembly {
    /// Slots without a usable drive.
    pub fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|&index| self.members[index].is_none())
    }
}

/// Reads the superblocks of some drives and finds out which group they are. Changes nothing. A
/// drive that does not answer is left out.
///
/// # Errors
/// [`AssembleError`] if they are not enough of one group.
pub async fn assemble<E: Env>(env: &E, drives: &[E::Drive]) -> Result<Assembly, AssembleError> {
    let mut refused: Vec<(usize, Refusal)> = Vec::new();
    let mut found: Vec<(usize, Superblock)> = Vec::new();
    // At the same time: one after the other, the time limits of drives that do not answer would add
    // up.
    for (index, looked) in join_all(drives.iter().map(|drive| look(env, drive))).await.into_iter().enumerate() {
        match looked {
            Ok(superblock) => found.push((index, superblock)),
            Err(refusal) => refused.push((index, refusal)),
        }
    }
    let name = |index: usize| drives[index].info().name.clone();
    judge(found, refused, &name, &|index| drives[index].info().size_bytes)
}

/// Finds out which group a set of drives is, after their superblocks were read. `found` has the
/// superblocks by the index of the drive, `refused` the other drives.
///
/// # Errors
/// [`AssembleError`] if they are not enough of one group.
pub fn judge(
    found: Vec<(usize, Superblock)>,
    mut refused: Vec<(usize, Refusal)>,
    name: &impl Fn(usize) -> String,
    size_bytes: &impl Fn(usize) -> u64,
) -> Result<Assembly, AssembleError> {
    let Some(newest) = found.iter().map(|(_, superblock)| superblock).max_by_key(|superblock| superblock.epoch) else {
        let why = refused.iter().map(|(index, refusal)| format!("{}: {refusal}", name(*index)));
        return Err(AssembleError::Nothing(why.collect::<Vec<_>>().join("; ")));
    };
    let mut newest = newest.clone();
    if found.iter().any(|(_, superblock)| superblock.array != newest.array) {
        let belongs = found.iter().map(|(index, own)| format!("{} to {} ({})", name(*index), own.name, own.array));
        return Err(AssembleError::SeveralArrays(belongs.collect::<Vec<_>>().join(", ")));
    }
    let mut members = vec![None; newest.members.len()];
    let mut spares = Vec::new();
    for (position, (index, own)) in found.iter().enumerate() {
        if let Some((other, _)) = found[..position].iter().find(|(_, other)| other.drive == own.drive) {
            return Err(AssembleError::Duplicate { drive: name(*index), other: name(*other) });
        }
        let (have, need) = (size_bytes(*index), newest.layout.member_bytes);
        let place = newest.members.iter().position(|entry| entry.uuid == own.drive);
        let refusal = match place {
            _ if have < need => Refusal::TooSmall { need, have },
            Some(place) if newest.members[place].state == MemberState::InSync && !newest.is_up_to_date(own) => {
                Refusal::OlderCopy { member: place as u16, epoch: own.epoch, held: newest.held_epoch }
            }
            Some(place) if newest.members[place].state.takes_writes() => {
                // It may be a copy from an earlier time: its rebuild begins anew.
                newest.rebuild =
                    newest.rebuild.filter(|at| usize::from(at.member) != place || newest.is_up_to_date(own));
                members[place] = Some(*index);
                continue;
            }
            Some(place) => Refusal::Stale { member: place as u16, epoch: own.epoch, newest: newest.epoch },
            None if newest.spares.contains(&own.drive) => {
                spares.push(*index);
                continue;
            }
            None => match own.role {
                Role::Member(member) => Refusal::Stale { member, epoch: own.epoch, newest: newest.epoch },
                Role::Spare => Refusal::Unlisted { newest: newest.epoch },
            },
        };
        refused.push((*index, refusal));
    }
    check_one_line(&newest, &found, name)?;
    let assembly = Assembly { superblock: newest, members, spares, refused };
    check_enough(&assembly, name)?;
    Ok(assembly)
}

/// The superblock of a drive, or why it has none that can be used.
async fn look<E: Env>(env: &E, drive: &E::Drive) -> Result<Superblock, Refusal> {
    let drive = Bounded::new(env, drive);
    let error = match superblock_on(&drive).await.map_err(Refusal::Drive)? {
        Ok(superblock) => return Ok(superblock),
        Err(error) => error,
    };
    if error != SuperblockError::NotPurlin {
        return Err(Refusal::Superblock(error));
    }
    let holds: Vec<String> =
        foreign_on(&drive).await.map_err(Refusal::Drive)?.iter().map(ToString::to_string).collect();
    Err(if holds.is_empty() { Refusal::NotPurlin } else { Refusal::Foreign(holds.join(", ")) })
}

/// Checks that the drives have one history. Two histories exist if a drive went on without all of
/// the members that the newest superblock counts on. That takes a level that survives the loss of
/// half of its members, two runs with one half each, and a third with both.
fn check_one_line(
    newest: &Superblock,
    found: &[(usize, Superblock)],
    name: &impl Fn(usize) -> String,
) -> Result<(), AssembleError> {
    let live = |superblock: &Superblock| -> Vec<Uuid> {
        superblock.members.iter().filter(|entry| entry.state.takes_writes()).map(|entry| entry.uuid).collect()
    };
    let current = live(newest);
    for (index, own) in found.iter().filter(|(_, own)| !newest.follows(own)) {
        let believed = live(own);
        let apart = believed.contains(&own.drive) && !believed.iter().any(|uuid| current.contains(uuid));
        let without = own.members.iter().filter(|entry| !entry.state.takes_writes()).map(|entry| entry.uuid);
        let other = without
            .filter(|uuid| current.contains(uuid))
            .find_map(|uuid| found.iter().find(|(_, other)| other.drive == uuid).map(|(other, _)| *other));
        if let Some(other) = other.filter(|_| apart) {
            return Err(AssembleError::Divided { drive: name(*index), other: name(other) });
        }
    }
    Ok(())
}

/// Checks that each set has as many members in sync as a stripe has data strips.
pub(crate) fn check_enough(assembly: &Assembly, name: &impl Fn(usize) -> String) -> Result<(), AssembleError> {
    let shape = assembly.superblock.shape;
    let in_sync = |place: &usize| {
        assembly.members[*place].is_some() && assembly.superblock.members[*place].state == MemberState::InSync
    };
    let places: Vec<usize> = (0..assembly.members.len()).collect();
    let worst =
        places.chunks(shape.members_per_set()).max_by_key(|set| set.iter().filter(|place| !in_sync(place)).count());
    let worst = worst.expect("a group has a set");
    let missing: Vec<usize> = worst.iter().copied().filter(|place| !in_sync(place)).collect();
    if missing.len() <= shape.survives() {
        return Ok(());
    }
    let why = |&place: &usize| {
        let entry = assembly.superblock.members[place];
        format!(
            "member {place} ({}) is {}",
            entry.uuid,
            if assembly.members[place].is_none() && entry.state == MemberState::InSync {
                "not among the drives"
            } else {
                entry.state.name()
            }
        )
    };
    let refused = assembly.refused.iter().map(|(index, refusal)| format!("{}: {refusal}", name(*index)));
    Err(AssembleError::TooFew {
        missing: missing.len(),
        level: shape.level.to_string(),
        survives: shape.survives(),
        why: missing.iter().map(why).chain(refused).collect::<Vec<_>>().join("; "),
    })
}

//! The superblock: identity and state of a drive and of its array.
//!
//! Every member and spare carries two identical copies, in the first and in the last whole block of
//! the drive. A writer writes the tail, flushes, writes the head, and flushes, so one copy is
//! intact at any time.
//!
//! Invariants of a [`Superblock`] (verified by [`Superblock::check`], before every encode and after
//! every decode):
//! 1. The shape and the layout keep their own invariants.
//! 2. There is one entry per member. The drive is listed in the slot or among the spares, as its
//!    role says.
//! 3. No two present drives of the array have the same identity.
//! 4. A rebuild checkpoint names a member that is being rebuilt, and a position within the group's
//!    allocation chunks.
//! 5. The first epoch of a run is at most the superblock's epoch, and above that of the run before.

mod copies;
mod disk;
mod runs;
mod show;

use thiserror::Error;

use crate::COUNTER_MAX;
use crate::layout::Layout;
use crate::shape::{Shape, ShapeError};
use crate::uuid::Uuid;

pub use copies::{Copies, newest, superblock_offsets};
pub use disk::SUPERBLOCK_VERSION;
pub use runs::{RUNS_BEFORE, Run, Runs};

/// Longest name of an array, volume or export, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Most spares of an array.
pub const SPARES_MAX: usize = 16;

/// State of a member slot. The numbers are those on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MemberState {
    /// Holds all its data.
    InSync = 1,
    /// A new drive that is being filled; see [`Superblock::rebuild`].
    Rebuilding = 2,
    /// Absent, or its data is stale.
    Missing = 3,
    /// Removed because it failed.
    Faulty = 4,
}

impl MemberState {
    /// The state with this number on a drive.
    pub fn from_number(number: u8) -> Option<MemberState> {
        [Self::InSync, Self::Rebuilding, Self::Missing, Self::Faulty].into_iter().find(|state| *state as u8 == number)
    }

    /// Whether the drive in the slot takes part in writes: it holds all its data, or is being
    /// filled. The group goes on without the drive of any other state.
    pub fn takes_writes(self) -> bool {
        matches!(self, MemberState::InSync | MemberState::Rebuilding)
    }

    /// The name that commands and documents use.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::InSync => "in-sync",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Missing => "missing",
            MemberState::Faulty => "faulty",
        }
    }
}

/// One slot of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberEntry {
    /// The drive in this slot, or the last one that was. [`Uuid::NIL`] only if the slot is missing
    /// and its drive was never known.
    pub uuid: Uuid,
    /// State of that drive.
    pub state: MemberState,
}

/// Role of a drive in its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The member in this slot, from 0.
    Member(u16),
    /// A spare that waits to replace a member.
    Spare,
}

/// Progress of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuild {
    /// The slot being filled.
    pub member: u16,
    /// Allocation chunks below this one are filled.
    pub next_chunk: u64,
}

/// How much a crash in the middle of writes may cost. The numbers are those on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum CrashSafety {
    /// No log. After a crash the parity is computed anew from the data. If a member was lost before
    /// the crash, or is lost with it, blocks may be lost that were not being written. Suitable for
    /// levels without redundancy, and for data that can be recreated.
    #[default]
    Off = 0,
    /// Blocks that were not being written never change. Blocks under way are old or new. They are
    /// an error only if a member is lost in the same crash and several strips of the stripe were
    /// being written.
    On = 1,
    /// Like [`CrashSafety::On`], without the exception: partial and whole stripes are written
    /// twice.
    Strict = 2,
}

impl CrashSafety {
    /// All of them.
    pub const ALL: [CrashSafety; 3] = [CrashSafety::Off, CrashSafety::On, CrashSafety::Strict];

    /// The variant with this number on a drive.
    pub fn from_number(number: u8) -> Option<CrashSafety> {
        CrashSafety::ALL.into_iter().find(|safety| *safety as u8 == number)
    }

    /// The name that commands and documents use.
    pub fn name(self) -> &'static str {
        match self {
            CrashSafety::Off => "off",
            CrashSafety::On => "on",
            CrashSafety::Strict => "strict",
        }
    }
}

/// Features that the array uses, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// A program that does not know one of these must not touch the array.
    pub incompatible: u64,
    /// A program that does not know one of these may read, but must not write.
    pub read_only_compatible: u64,
    /// A program that does not know one of these may write. It clears the bit when it writes a
    /// superblock.
    pub compatible: u64,
}

impl Features {
    /// Every bit that this program knows.
    pub const KNOWN: Features = Features {
        incompatible: Features::LOG
            | Features::CHECKSUMS
            | Features::CATALOGUE_2
            | Features::INTENT_LOG
            | Features::THIN,
        read_only_compatible: 0,
        compatible: 0,
    };

    /// Incompatible: a log is written, which must be replayed after a crash. Set unless crash
    /// safety is off.
    pub const LOG: u64 = 1;

    /// Incompatible: a program that writes data or parity must write their checksums, too. Only
    /// together with a log.
    pub const CHECKSUMS: u64 = 2;

    /// Incompatible: catalogues may be of version 2. The bit is set before the first one is
    /// written, and stays set. A program that knows only version 1 would otherwise take an older
    /// copy for the newest.
    pub const CATALOGUE_2: u64 = 1 << 2;

    /// Incompatible: the second half of the log's rings belongs to the [intent
    /// log](crate::intent_log). The bit is set before its first frame is written, and stays set.
    pub const INTENT_LOG: u64 = 1 << 3;

    /// Incompatible: catalogues may be of version 3, and the group may have [thin
    /// volumes](crate::thin). The bit is set before the first such catalogue is written, and stays
    /// set.
    pub const THIN: u64 = 1 << 4;
}

/// Identity and state of a drive and of its array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Format version: [`SUPERBLOCK_VERSION`].
    pub version: u32,
    /// Features in use.
    pub features: Features,
    /// Identity of the array.
    pub array: Uuid,
    /// Name of the array, for people; see [`check_name`].
    pub name: String,
    /// Identity of this drive.
    pub drive: Uuid,
    /// Role of this drive in the array.
    pub role: Role,
    /// Grows with every change of the superblock. The highest epoch of an array is the valid one.
    /// The first is 1.
    pub epoch: u64,
    /// Every member that is in sync here has had a superblock of at least this epoch. 0: unknown. A
    /// drive in such a slot with a lower epoch is an older copy of the member.
    pub held_epoch: u64,
    /// The array was stopped in order, with no write under way.
    pub clean: bool,
    /// How much a crash may cost.
    pub crash_safety: CrashSafety,
    /// Frames of the log with another generation mean nothing.
    pub log_generation: u64,
    /// The run that wrote this superblock, and those before.
    pub runs: Runs,
    /// Level, members and strip size: how data is spread.
    pub shape: Shape,
    /// One entry per slot.
    pub members: Vec<MemberEntry>,
    /// Drives that wait to replace a member.
    pub spares: Vec<Uuid>,
    /// Where the regions of a member lie.
    pub layout: Layout,
    /// Progress of the rebuild, if there is one.
    pub rebuild: Option<Rebuild>,
    /// When the array was created, in seconds since 1970.
    pub created_unix_s: u64,
}

/// Why bytes are not a superblock that this program can use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// The magic is missing, or there are fewer bytes than a superblock.
    #[error("not a Purlin superblock")]
    NotPurlin,
    /// The bytes were damaged or written only in part.
    #[error("the checksum of the superblock does not match")]
    Checksum,
    /// Written by another version of Purlin.
    #[error("superblock of version {found}, this program reads version {SUPERBLOCK_VERSION}")]
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// The array uses features that this program does not know.
    #[error("the array uses features this program does not know (incompatible bits {bits:#x})")]
    UnknownFeatures {
        /// The unknown bits.
        bits: u64,
    },
    /// The checksum is right, but a field is out of range.
    #[error("the field `{field}` of the superblock is invalid")]
    Invalid {
        /// Which field.
        field: &'static str,
    },
    /// Head and tail are intact, but belong to different arrays or drives. It is impossible to tell
    /// which of them is right.
    #[error("the head of the drive belongs to array {head}, its tail to array {tail}")]
    TwoArrays {
        /// Array of the copy at the head.
        head: Uuid,
        /// Array of the copy at the tail.
        tail: Uuid,
    },
}

impl Superblock {
    /// Verifies the invariants.
    ///
    /// # Errors
    /// [`SuperblockError::Invalid`] with the first field that breaks one.
    pub fn check(&self) -> Result<(), SuperblockError> {
        let holds = |condition, field| if condition { Ok(()) } else { Err(SuperblockError::Invalid { field }) };
        holds(self.version == SUPERBLOCK_VERSION, "version")?;
        holds(!self.array.is_nil(), "array")?;
        holds(check_name(&self.name).is_ok(), "name")?;
        holds(!self.drive.is_nil(), "drive")?;
        holds((1..=COUNTER_MAX).contains(&self.epoch), "epoch")?;
        holds(self.held_epoch < self.epoch, "held_epoch")?;
        holds(self.log_generation <= COUNTER_MAX, "log_generation")?;
        holds(self.runs_are_in_order(), "runs")?;
        let logs = self.features.incompatible & Features::LOG != 0;
        holds(logs == (self.crash_safety != CrashSafety::Off), "crash_safety")?;
        let sums = self.features.incompatible & Features::CHECKSUMS != 0;
        holds(sums == self.layout.checksums.is_some() && (logs || !sums), "checksums")?;
        self.shape.check().map_err(|_: ShapeError| SuperblockError::Invalid { field: "shape" })?;
        self.layout.check(&self.shape).map_err(|bad| SuperblockError::Invalid { field: bad.0 })?;
        holds(self.members.len() == usize::from(self.shape.members), "members")?;
        for entry in &self.members {
            holds(!entry.uuid.is_nil() || entry.state == MemberState::Missing, "members")?;
        }
        holds(self.spares.len() <= SPARES_MAX && !self.spares.iter().any(Uuid::is_nil), "spares")?;
        holds(self.drives_are_distinct(), "members")?;
        holds(self.role_is_listed(), "role")?;
        let Some(Rebuild { member, next_chunk }) = self.rebuild else { return Ok(()) };
        let state = self.members.get(usize::from(member)).map(|entry| entry.state);
        holds(state == Some(MemberState::Rebuilding) && next_chunk <= self.layout.chunk_count, "rebuild")
    }

    /// Whether a drive with the superblock `own` holds what the member in its slot holds, according
    /// to this superblock, which is the newest one. Only a copy that was made earlier does not: the
    /// member has had superblocks since then.
    pub fn is_up_to_date(&self, own: &Superblock) -> bool {
        own.epoch >= self.held_epoch
    }

    /// Whether an unknown feature forbids writing to this array.
    pub fn is_read_only(&self) -> bool {
        self.features.read_only_compatible & !Features::KNOWN.read_only_compatible != 0
    }

    /// Whether the second half of the log's rings belongs to the [intent log](crate::intent_log).
    pub fn has_intent_log(&self) -> bool {
        self.features.incompatible & Features::INTENT_LOG != 0
    }

    fn drives_are_distinct(&self) -> bool {
        let members = self.members.iter().map(|entry| entry.uuid).filter(|uuid| !uuid.is_nil());
        let mut all: Vec<Uuid> = members.chain(self.spares.iter().copied()).collect();
        all.sort_unstable();
        all.windows(2).all(|pair| pair[0] != pair[1])
    }

    fn role_is_listed(&self) -> bool {
        match self.role {
            Role::Member(slot) => self.members.get(usize::from(slot)).is_some_and(|entry| entry.uuid == self.drive),
            Role::Spare => self.spares.contains(&self.drive),
        }
    }
}

/// Checks the name of an array, volume or export: 1 to 64 of `a-z`, `0-9`, `.`, `_`, `-`, starting
/// with a letter or digit.
///
/// # Errors
/// The rule that is broken, as a sentence to show.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let bytes = name.as_bytes();
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    match bytes.first() {
        None => Err("a name has at least one character"),
        Some(first) if !alphanumeric(first) => Err("a name starts with a lower-case letter or a digit"),
        Some(_) if bytes.len() > NAME_BYTES_MAX => Err("a name has at most 64 characters"),
        Some(_) if bytes.iter().all(|byte| alphanumeric(byte) || b"._-".contains(byte)) => Ok(()),
        Some(_) => Err("a name holds only lower-case letters, digits, `.`, `_` and `-`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "0", "tank-1.x_y", &"a".repeat(64)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "-a", ".a", "A", "a b", "a/b", "ä", "a\0", &"a".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}

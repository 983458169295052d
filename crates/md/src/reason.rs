//! Why a drive or an array is not read: one clause each, to be put behind a name.

use thiserror::Error;

use crate::bad_blocks::BadBlocksError;
use crate::geometry::{GeometryError, Level};

/// Why a drive of an array is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LeftOut {
    /// The array went on without it.
    #[error("stale: its superblock has seen {events} events, the newest {newest}")]
    Stale {
        /// Of this drive.
        events: u64,
        /// Of the array.
        newest: u64,
    },
    /// It waits for work.
    #[error("a spare")]
    Spare,
    /// The others say that it failed.
    #[error("marked faulty")]
    Faulty,
    /// It is the journal.
    #[error("the array's journal")]
    Journal,
    /// It does not have all of its data.
    #[error("its rebuild has not ended: {done_sectors} of {total_sectors} sectors are done")]
    Rebuilding {
        /// What it has.
        done_sectors: u64,
        /// What it should have.
        total_sectors: u64,
    },
    /// The member that it is to replace is there.
    #[error("the replacement of a member that is still there")]
    Replacement,
    /// Its role is none that the array has.
    #[error("its slot {0} is not one of the array")]
    NoSuchSlot(u16),
    /// It describes another shape than the newest superblock.
    #[error("its superblock describes another shape than the newest")]
    OtherShape,
    /// The drive ends before its data do.
    #[error("too small: its data would end at sector {end}, of {has}")]
    TooSmall {
        /// Where the data would end.
        end: u64,
        /// Where what may be used ends.
        has: u64,
    },
    /// The drive's sectors are larger than what data are aligned to.
    #[error("its data begin at sector {data_offset}, which its sectors of {sector_bytes} bytes do not allow")]
    Alignment {
        /// First sector of the data.
        data_offset: u64,
        /// Bytes of the drive's own sectors.
        sector_bytes: u32,
    },
    /// Which of its blocks are good is not known.
    #[error("{0}")]
    BadBlocks(BadBlocksError),
    /// Its list of bad blocks cannot be read.
    #[error("its list of bad blocks cannot be read")]
    BadBlocksUnreadable,
}

/// Why an array is not read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A level that is not read here.
    #[error("its level is {}: raid0, raid1, raid4, raid5, raid6 and raid10 are read", level_name(*.0))]
    Level(i32),
    /// A newer md, or something else than what is known of it.
    #[error("it uses features that are not known here ({0:#x})")]
    Features(u32),
    /// Data are on their way from one place to another.
    #[error("it is being reshaped: let md finish that first")]
    Reshape,
    /// Other machines may be writing.
    #[error("it is a clustered array, which other machines may be using")]
    Clustered,
    /// The newest data may be in the journal.
    #[error("it has a write journal, whose content would be missing: remove the journal with md first")]
    Journal,
    /// Its numbers make no array that can be read.
    #[error("it cannot be read: {0}")]
    Geometry(GeometryError),
    /// The members' own opinions contradict each other.
    #[error(
        "its drives have gone separate ways (each says that the other failed): give only those of the side to be read"
    )]
    SplitBrain,
    /// Two drives have one place, such as a drive and a copy of it.
    #[error("two of its drives claim slot {0}: give only one of them")]
    TwoDrives(u16),
    /// Not enough of it is there.
    #[error("too few of its members can be read: {} of {disks} are missing ({level}, slots {})", .missing.len(), slots(.missing))]
    Missing {
        /// The level.
        level: Level,
        /// Slots that the array has.
        disks: usize,
        /// Slots without a member that can be read.
        missing: Vec<usize>,
    },
    /// What is missing would be computed from parity that may not fit.
    #[error(
        "it was not stopped cleanly and is degraded (slots {} are missing): what was being written may be computed wrongly, so md \
         does not start it without --force", slots(.missing)
    )]
    DirtyDegraded {
        /// Slots without a member that can be read.
        missing: Vec<usize>,
    },
}

/// A level in mdadm's words.
pub(crate) fn level_name(level: i32) -> String {
    match (Level::of_md(level), level) {
        (Some(level), _) => level.to_string(),
        (None, -1) => "linear".into(),
        (None, -4) => "multipath".into(),
        (None, -5) => "faulty".into(),
        (None, level) => format!("number {level}"),
    }
}

fn slots(slots: &[usize]) -> String {
    slots.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

//! Why a drive or an array is not read. Each reason is one clause, to be put after a name.

use thiserror::Error;

use crate::bad_blocks::BadBlocksError;
use crate::geometry::{GeometryError, Level};

/// Why a drive of an array is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LeftOut {
    /// The array continued without it.
    #[error("stale: its superblock has seen {events} events, the newest {newest}")]
    Stale {
        /// Events of this drive.
        events: u64,
        /// Events of the array.
        newest: u64,
    },
    /// It is not in use.
    #[error("a spare")]
    Spare,
    /// Other members record that it failed.
    #[error("marked faulty")]
    Faulty,
    /// It is the journal.
    #[error("the array's journal")]
    Journal,
    /// It does not have all of its data yet.
    #[error("its rebuild has not ended: {done_sectors} of {total_sectors} sectors are done")]
    Rebuilding {
        /// Sectors that it has.
        done_sectors: u64,
        /// Sectors that it should have.
        total_sectors: u64,
    },
    /// The member that it is to replace is still present.
    #[error("the replacement of a member that is still there")]
    Replacement,
    /// The array has no such slot.
    #[error("its slot {0} is not one of the array")]
    NoSuchSlot(u16),
    /// It describes another shape than the newest superblock.
    #[error("its superblock describes another shape than the newest")]
    OtherShape,
    /// The drive ends before its data does.
    #[error("too small: its data would end at sector {end}, of {has}")]
    TooSmall {
        /// End of the data.
        end: u64,
        /// End of the usable range.
        has: u64,
    },
    /// The drive's sectors are larger than the alignment of its data.
    #[error("its data begin at sector {data_offset}, which its sectors of {sector_bytes} bytes do not allow")]
    Alignment {
        /// First sector of the data.
        data_offset: u64,
        /// Bytes of the drive's own sectors.
        sector_bytes: u32,
    },
    /// It is unknown which of its blocks are good.
    #[error("{0}")]
    BadBlocks(BadBlocksError),
    /// Its list of bad blocks cannot be read.
    #[error("its list of bad blocks cannot be read")]
    BadBlocksUnreadable,
}

/// Why an array is not read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// An unsupported level.
    #[error("its level is {}: raid0, raid1, raid4, raid5, raid6 and raid10 are read", level_name(*.0))]
    Level(i32),
    /// Features that this program does not know, for example of a newer md.
    #[error("it uses features that are not known here ({0:#x})")]
    Features(u32),
    /// A reshape is moving data.
    #[error("it is being reshaped: let md finish that first")]
    Reshape,
    /// Other machines may be writing to it.
    #[error("it is a clustered array, which other machines may be using")]
    Clustered,
    /// The newest data may be in the journal.
    #[error("it has a write journal, whose content would be missing: remove the journal with md first")]
    Journal,
    /// Its numbers do not describe a readable array.
    #[error("it cannot be read: {0}")]
    Geometry(GeometryError),
    /// Members contradict each other about who failed.
    #[error(
        "its drives have gone separate ways (each says that the other failed): give only those of the side to be read"
    )]
    SplitBrain,
    /// Two drives claim the same slot, for example a drive and a copy of it.
    #[error("two of its drives claim slot {0}: give only one of them")]
    TwoDrives(u16),
    /// Too many members are missing.
    #[error("too few of its members can be read: {} of {disks} are missing ({level}, slots {})", .missing.len(), slots(.missing))]
    Missing {
        /// The level.
        level: Level,
        /// Number of slots of the array.
        disks: usize,
        /// Slots without a member that can be read.
        missing: Vec<usize>,
    },
    /// Missing data would have to be computed from parity that may not fit.
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

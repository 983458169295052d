//! How a group spreads its data over its members.
//!
//! Invariants of a [`Shape`] (kept by [`ShapeBuilder`], verified by [`Shape::check`]):
//! 1. `members` is 1 to 64 and divisible by `sets`. Only RAID 0 allows a single member.
//! 2. In each set, any `parity` members may be lost.
//! 3. `strip_bytes` is a power of two from 4 KiB to 1 MiB.

mod builder;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

pub use self::builder::ShapeBuilder;

/// Fewest members of a group. Only RAID 0 may have one.
pub const MEMBERS_MIN: u16 = 1;

/// Most members of a group. The superblock has this many slots, and a bit set of members fits one
/// `u64`.
pub const MEMBERS_MAX: u16 = 64;

/// Most parity strips of a stripe (level `nm`). Beyond eight losses at once, mirrors are the better
/// choice.
pub const PARITY_MAX: u8 = 8;

/// Most copies of a mirror.
pub const COPIES_MAX: u8 = 4;

/// Smallest strip: one block.
pub const STRIP_BYTES_MIN: u32 = 4 << 10;

/// Largest strip: above this, a stripe no longer fits the caches while its parity is computed.
pub const STRIP_BYTES_MAX: u32 = 1 << 20;

/// Default strip size.
pub const DEFAULT_STRIP_BYTES: u32 = 64 << 10;

/// How redundancy is made. The numbers are those in the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Striping without redundancy.
    Raid0 = 0,
    /// Every member holds the same.
    Raid1 = 1,
    /// One parity strip (P) per stripe.
    Raid5 = 5,
    /// Two parity strips (P, Q) per stripe.
    Raid6 = 6,
    /// Three parity strips (P, Q, R) per stripe.
    Raid7 = 7,
    /// Striping over mirrors.
    Raid10 = 10,
    /// Striping over several raid5 sets.
    Raid50 = 50,
    /// Striping over several raid6 sets.
    Raid60 = 60,
    /// Any number of parity strips up to [`PARITY_MAX`].
    Nm = 100,
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 9] = [
        Level::Raid0,
        Level::Raid1,
        Level::Raid10,
        Level::Raid5,
        Level::Raid6,
        Level::Raid7,
        Level::Nm,
        Level::Raid50,
        Level::Raid60,
    ];

    /// The name that commands and documents use.
    pub fn name(self) -> &'static str {
        match self {
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid10 => "raid10",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
            Level::Raid7 => "raid7",
            Level::Nm => "nm",
            Level::Raid50 => "raid50",
            Level::Raid60 => "raid60",
        }
    }

    /// The level with this number in a superblock.
    pub fn from_number(number: u8) -> Option<Level> {
        Level::ALL.into_iter().find(|level| *level as u8 == number)
    }

    /// Whether strips are copies instead of data and parity.
    pub fn is_mirror(self) -> bool {
        matches!(self, Level::Raid1 | Level::Raid10)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// No level has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown level `{text}`: expected raid0, raid1, raid10, raid5, raid6, raid7, nm, raid50 or raid60")]
pub struct UnknownLevel {
    /// The text that was given.
    pub text: String,
}

impl FromStr for Level {
    type Err = UnknownLevel;

    /// Parses a name. `raid-tp` and `triple` are raid7, `n+m` is nm; case does not matter.
    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        let lower = text.to_ascii_lowercase();
        match lower.as_str() {
            "raid-tp" | "triple" => Ok(Level::Raid7),
            "n+m" => Ok(Level::Nm),
            name => Level::ALL
                .into_iter()
                .find(|level| level.name() == name)
                .ok_or_else(|| UnknownLevel { text: text.to_owned() }),
        }
    }
}

/// Level, members, sets, redundancy and strip size of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// How redundancy is made.
    pub level: Level,
    /// Members in all sets together.
    pub members: u16,
    /// Sets that data is striped over, with `members / sets` members each. 1 for levels without
    /// sets. Set `s` holds the `members / sets` members from `s * members / sets` on.
    pub sets: u16,
    /// Members of each set that may be lost: parity strips per stripe, or the number of copies
    /// minus one for mirrors.
    pub parity_count: u8,
    /// Bytes of one strip on one member.
    pub strip_bytes: u32,
}

/// Why a group cannot have a shape.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// Too few or too many members for any group.
    #[error("a group has {MEMBERS_MIN} to {MEMBERS_MAX} members, not {members}")]
    Members {
        /// Members asked for.
        members: u16,
    },
    /// Too few members for the level.
    #[error("{level} needs at least {need} members{per_set}, not {have}", per_set = if *per_set { " in each set" } else { "" })]
    TooFewMembers {
        /// The level.
        level: Level,
        /// Fewest members.
        need: u16,
        /// Members asked for.
        have: u16,
        /// Both numbers count members per set.
        per_set: bool,
    },
    /// A mirror with too many or too few copies.
    #[error("{level} keeps 2 to {COPIES_MAX} copies, not {copies}")]
    Copies {
        /// The level.
        level: Level,
        /// Copies asked for.
        copies: u16,
    },
    /// raid1 keeps a copy on each member.
    #[error("raid1 keeps a copy on each member: {members} members are {members} copies, not {copies}")]
    CopiesAreMembers {
        /// Members asked for.
        members: u16,
        /// Copies asked for.
        copies: u8,
    },
    /// The members cannot be divided evenly.
    #[error("{members} members cannot be divided into {parts} {what} of equal size")]
    NotDivisible {
        /// Members asked for.
        members: u16,
        /// The divisor.
        parts: u16,
        /// The name of the parts.
        what: &'static str,
    },
    /// A level with sets was requested with fewer than two sets.
    #[error("{level} stripes over at least 2 sets, not {sets}")]
    Sets {
        /// The level.
        level: Level,
        /// Sets asked for.
        sets: u16,
    },
    /// `nm` was requested without a parity M, or with one out of range.
    #[error("nm needs a parity of 1 to {PARITY_MAX}{}", given.map_or(String::new(), |given| format!(", not {given}")))]
    Parity {
        /// Parity asked for.
        given: Option<u8>,
    },
    /// A number was given that this level fixes to another value or does not have.
    #[error("{level} has no choice of {what}: leave it out{}", fixed.map_or(String::new(), |fixed| format!(" (it is {fixed})")))]
    NotForLevel {
        /// The level.
        level: Level,
        /// Name of the number.
        what: &'static str,
        /// Its value at this level, if the level has one.
        fixed: Option<u16>,
    },
    /// The strip size is not a power of two from 4 KiB to 1 MiB.
    #[error("a strip is a power of two from 4 KiB to 1 MiB, not {strip_bytes} bytes")]
    Strip {
        /// Strip size asked for, in bytes.
        strip_bytes: u32,
    },
    /// The fields contradict each other; a [`ShapeBuilder`] never makes such a shape.
    #[error("the fields of this {level} shape contradict each other")]
    Contradiction {
        /// The level.
        level: Level,
    },
}

impl Shape {
    /// Begins a shape. Its [`build`](ShapeBuilder::build) checks all rules and fills in omitted
    /// numbers.
    ///
    /// # Examples
    /// ```
    /// use format::{Level, Shape};
    /// let shape = Shape::of(Level::Raid60, 12).sets(2).strip_bytes(64 << 10).build()?;
    /// assert_eq!((shape.members_per_set(), shape.data_per_set(), shape.survives()), (6, 4, 2));
    /// assert_eq!(Shape::of(Level::Raid60, 12).build(), Ok(shape), "these are the defaults");
    /// # Ok::<(), format::ShapeError>(())
    /// ```
    pub fn of(level: Level, members: u16) -> ShapeBuilder {
        ShapeBuilder::new(level, members)
    }

    /// Checks that the fields are what [`Shape::of`] makes of them.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), ShapeError> {
        let Shape { level, members, sets, parity_count, strip_bytes } = *self;
        let parity = (!level.is_mirror()).then_some(parity_count);
        let copies = level.is_mirror().then_some(parity_count.saturating_add(1));
        let same =
            Shape::of(level, members).parity(parity).copies(copies).sets(sets).strip_bytes(strip_bytes).build()?;
        if same == *self { Ok(()) } else { Err(ShapeError::Contradiction { level }) }
    }

    /// Members of one set.
    pub fn members_per_set(&self) -> usize {
        usize::from(self.members / self.sets)
    }

    /// Strips of user data in one stripe of one set: k. One for mirrors.
    pub fn data_per_set(&self) -> usize {
        if self.is_mirror() { 1 } else { self.members_per_set() - usize::from(self.parity_count) }
    }

    /// Whether strips are copies instead of data and parity.
    pub fn is_mirror(&self) -> bool {
        self.level.is_mirror()
    }

    /// m: any m members of a set may be lost without losing data.
    pub fn survives(&self) -> usize {
        usize::from(self.parity_count)
    }

    /// The set that a member belongs to, and its place in it.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn set_of(&self, member: usize) -> (usize, usize) {
        assert!(member < usize::from(self.members), "member {member} of {}", self.members);
        (member / self.members_per_set(), member % self.members_per_set())
    }
}

impl fmt::Display for Shape {
    /// `raid60 of 12 members: 2 sets of 4+2, strips of 64 KiB`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {} members: ", self.level, self.members)?;
        if self.sets > 1 {
            write!(formatter, "{} sets of ", self.sets)?;
        }
        match self.is_mirror() {
            true => write!(formatter, "{} copies", self.members_per_set())?,
            false => write!(formatter, "{}+{}", self.data_per_set(), self.parity_count)?,
        }
        write!(formatter, ", strips of {} KiB", self.strip_bytes >> 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(level: Level, members: u16, sets: Option<u16>) -> Result<Shape, ShapeError> {
        Shape::of(level, members).sets(sets).build()
    }

    #[test]
    fn each_level_needs_its_fewest_members_and_takes_64() {
        for (level, need) in [(Level::Raid0, 1), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid7, 5)] {
            assert!(shape(level, need - 1, None).is_err(), "{level}");
            assert_eq!(shape(level, need, None).unwrap().members_per_set(), usize::from(need));
            assert!(shape(level, 64, None).is_ok());
            assert_eq!(shape(level, 65, None), Err(ShapeError::Members { members: 65 }));
        }
        for (level, need) in [(Level::Raid50, 6), (Level::Raid60, 8)] {
            assert!(shape(level, need - 2, None).is_err(), "{level}");
            assert_eq!(shape(level, need, None).unwrap().sets, 2);
            assert!(shape(level, need + 1, None).is_err(), "an odd member is left over");
            assert!(shape(level, need, Some(1)).is_err());
            assert!(shape(level, need, Some(0)).is_err());
        }
    }

    #[test]
    fn one_drive_alone_is_raid0_and_nothing_else() {
        let alone = shape(Level::Raid0, 1, None).unwrap();
        assert_eq!((alone.data_per_set(), alone.survives(), alone.check()), (1, 0, Ok(())));
        let levels = [Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6, Level::Raid7, Level::Raid50];
        levels.into_iter().for_each(|level| assert!(shape(level, 1, None).is_err(), "{level}"));
        assert!(Shape::of(Level::Raid1, 1).copies(1).build().is_err());
        assert!(Shape::of(Level::Nm, 1).parity(1).build().is_err());
    }

    #[test]
    fn a_mirror_keeps_two_to_four_copies() {
        for members in 2..=4 {
            let shape = shape(Level::Raid1, members, None).unwrap();
            assert_eq!((shape.data_per_set(), shape.survives()), (1, usize::from(members) - 1));
        }
        assert!(shape(Level::Raid1, 5, None).is_err());
        let raid10 = |members, copies: Option<u8>| Shape::of(Level::Raid10, members).copies(copies).build();
        assert_eq!(raid10(4, None).unwrap().sets, 2);
        assert_eq!(raid10(12, Some(4)).unwrap().survives(), 3);
        assert!(raid10(5, None).is_err() && raid10(2, None).is_err() && raid10(10, Some(5)).is_err());
        assert!(raid10(4, Some(0)).is_err() && raid10(4, Some(1)).is_err());
    }

    #[test]
    fn nm_must_say_its_parity_and_keeps_two_data_members() {
        let nm = |members, parity: Option<u8>| Shape::of(Level::Nm, members).parity(parity).build();
        assert_eq!(nm(10, None), Err(ShapeError::Parity { given: None }));
        assert!(nm(10, Some(0)).is_err() && nm(11, Some(9)).is_err() && nm(9, Some(8)).is_err());
        assert_eq!(nm(10, Some(8)).unwrap().data_per_set(), 2);
        assert_eq!(nm(3, Some(1)).unwrap().survives(), 1);
    }

    #[test]
    fn numbers_a_level_does_not_have_are_refused_and_agreeing_ones_are_taken() {
        let raid6 = Shape::of(Level::Raid6, 6);
        assert_eq!(raid6.parity(2).sets(1).build(), raid6.build());
        for wrong in [raid6.parity(3), raid6.copies(2), raid6.sets(2)].map(ShapeBuilder::build) {
            assert!(matches!(wrong, Err(ShapeError::NotForLevel { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn the_strip_is_a_power_of_two_from_4_kib_to_1_mib() {
        for strip in [0, 1, 2048, 4097, 12288, 2 << 20] {
            assert!(Shape::of(Level::Raid0, 2).strip_bytes(strip).build().is_err(), "{strip}");
        }
        for strip in (12..=20).map(|power| 1 << power) {
            assert!(Shape::of(Level::Raid0, 2).strip_bytes(strip).build().is_ok(), "{strip}");
        }
    }

    #[test]
    fn every_shape_that_can_be_made_passes_its_own_check_and_no_other_does() {
        let mut valid = 0;
        for level in Level::ALL {
            for (members, sets, parity_count) in
                (0..70).flat_map(|members| (0..6).flat_map(move |sets| (0..10).map(move |m| (members, sets, m))))
            {
                let shape = Shape { level, members, sets, parity_count, strip_bytes: DEFAULT_STRIP_BYTES };
                if shape.check().is_ok() {
                    valid += 1;
                    assert!(
                        shape.data_per_set() >= 1
                            && shape.members_per_set() * usize::from(sets) == usize::from(members)
                    );
                }
            }
        }
        assert!(valid > 500, "{valid}");
    }

    #[test]
    fn names_are_read_back_and_synonyms_accepted() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(Level::from_number(level as u8), Some(level));
        }
        assert_eq!("raid-tp".parse(), Ok(Level::Raid7));
        assert_eq!("Triple".parse(), Ok(Level::Raid7));
        assert_eq!("N+M".parse(), Ok(Level::Nm));
        assert!("raid4".parse::<Level>().is_err());
    }

    #[test]
    fn refusals_are_sentences() {
        let sentence = |result: Result<Shape, ShapeError>| result.unwrap_err().to_string();
        assert_eq!(sentence(shape(Level::Raid5, 2, None)), "raid5 needs at least 3 members, not 2");
        assert_eq!(sentence(shape(Level::Raid50, 4, None)), "raid50 needs at least 3 members in each set, not 2");
        assert_eq!(sentence(Shape::of(Level::Nm, 4).build()), "nm needs a parity of 1 to 8");
        assert_eq!(
            sentence(Shape::of(Level::Raid5, 4).parity(2).build()),
            "raid5 has no choice of parity: leave it out (it is 1)"
        );
        assert_eq!(
            shape(Level::Raid60, 12, None).unwrap().to_string(),
            "raid60 of 12 members: 2 sets of 4+2, strips of 64 KiB"
        );
    }
}

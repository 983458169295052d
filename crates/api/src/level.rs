//! RAID levels, and which shapes they can have.
//!
//! Invariants of a [`Layout`]:
//! - `set_count * set_member_count` members in all, 2 to 64.
//! - For parity levels `data_count + parity_count == set_member_count` and `copy_count == 1`.
//! - For mirrors `copy_count` divides `set_member_count` and `parity_count == 0`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;

/// Most members of a group.
const MEMBERS_MAX: u32 = 64;
/// Most parity strips of a stripe.
const PARITY_MAX: u32 = 8;
/// Most copies of a mirror.
const COPIES_MAX: u32 = 4;

/// How a group protects its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Striped, no protection.
    Raid0,
    /// 2 to 4 copies, one on each drive.
    Raid1,
    /// Striped over mirrors.
    Raid10,
    /// One parity strip.
    Raid5,
    /// Two parity strips, P and Q.
    Raid6,
    /// Three parity strips.
    RaidTp,
    /// Striped over sets of RAID 5.
    Raid50,
    /// Striped over sets of RAID 6.
    Raid60,
    /// N data and M parity strips, M from 1 to 8.
    Nm,
    /// A level that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl Level {
    /// Every level that can be asked for.
    pub const ALL: [Level; 9] = [
        Level::Raid0,
        Level::Raid1,
        Level::Raid10,
        Level::Raid5,
        Level::Raid6,
        Level::RaidTp,
        Level::Raid50,
        Level::Raid60,
        Level::Nm,
    ];

    /// The name in requests, answers and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid10 => "raid10",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
            Level::RaidTp => "raidtp",
            Level::Raid50 => "raid50",
            Level::Raid60 => "raid60",
            Level::Nm => "nm",
            Level::Unknown => "unknown",
        }
    }

    /// The name in sentences.
    pub fn title(self) -> &'static str {
        match self {
            Level::Raid0 => "RAID 0",
            Level::Raid1 => "RAID 1",
            Level::Raid10 => "RAID 10",
            Level::Raid5 => "RAID 5",
            Level::Raid6 => "RAID 6",
            Level::RaidTp => "triple parity",
            Level::Raid50 => "RAID 50",
            Level::Raid60 => "RAID 60",
            Level::Nm => "N+M",
            Level::Unknown => "an unknown level",
        }
    }

    /// The name in the middle of a sentence, with its article.
    fn a_title(self) -> String {
        match self {
            Level::RaidTp => "a triple parity group".to_owned(),
            Level::Nm => "an N+M group".to_owned(),
            other => format!("a {} group", other.title()),
        }
    }

    /// Parity strips of each stripe, where the level alone decides.
    fn fixed_parity(self) -> Option<u32> {
        match self {
            Level::Raid5 | Level::Raid50 => Some(1),
            Level::Raid6 | Level::Raid60 => Some(2),
            Level::RaidTp => Some(3),
            _ => None,
        }
    }

    /// The level takes `sets`.
    fn has_sets(self) -> bool {
        matches!(self, Level::Raid50 | Level::Raid60)
    }

    /// The level keeps copies.
    fn has_copies(self) -> bool {
        matches!(self, Level::Raid1 | Level::Raid10)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Level {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Level, Invalid> {
        let plain: String =
            text.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
        Ok(match plain.as_str() {
            "raid0" | "0" => Level::Raid0,
            "raid1" | "1" | "mirror" => Level::Raid1,
            "raid10" | "10" => Level::Raid10,
            "raid5" | "5" => Level::Raid5,
            "raid6" | "6" => Level::Raid6,
            "raidtp" | "tp" | "triple" | "tripleparity" => Level::RaidTp,
            "raid50" | "50" => Level::Raid50,
            "raid60" | "60" => Level::Raid60,
            "nm" => Level::Nm,
            _ => {
                return Err(Invalid::new(format!(
                    "{text:?} is not a level: choose raid0, raid1, raid10, raid5, raid6, raidtp, raid50, raid60 or nm"
                )));
            }
        })
    }
}

/// The shape of a group: how many strips of which kind a stripe has, and how many sets there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The level.
    pub level: Level,
    /// Members in all.
    pub member_count: u32,
    /// Members of one set; the whole group where the level has no sets.
    pub set_member_count: u32,
    /// Sets, 1 where the level has none.
    pub set_count: u32,
    /// Data strips of a stripe of one set.
    pub data_count: u32,
    /// Parity strips of a stripe of one set.
    pub parity_count: u32,
    /// Copies of each data strip, itself included: 1 without mirrors.
    pub copy_count: u32,
}

impl Layout {
    /// The shape that a level gives to so many drives.
    ///
    /// - `parity`: only for N+M, where it is needed.
    /// - `copies`: only for mirrors. RAID 1: all drives, if at all said then their count. RAID 10: 2 by default.
    /// - `sets`: only for RAID 50 and 60, where it is 2 by default.
    ///
    /// # Errors
    /// A sentence that says which number doesn't fit, and what would.
    pub fn new(
        level: Level,
        member_count: u32,
        parity: Option<u32>,
        copies: Option<u32>,
        sets: Option<u32>,
    ) -> Result<Layout, Invalid> {
        let title = level.title();
        if level == Level::Unknown {
            return Err(Invalid::new("the level is unknown"));
        }
        if parity.is_some() && level != Level::Nm {
            return Err(Invalid::new(match level.fixed_parity() {
                Some(fixed) => {
                    let strips = if fixed == 1 { "parity strip" } else { "parity strips" };
                    format!("{title} has {fixed} {strips}: leave the parity out, or use level nm")
                }
                None => format!("{title} has no parity: leave it out, or use level nm"),
            }));
        }
        if copies.is_some() && !level.has_copies() {
            return Err(Invalid::new(format!("{title} keeps no copies: leave them out, or use level raid1 or raid10")));
        }
        if sets.is_some() && !level.has_sets() {
            return Err(Invalid::new(format!("{title} has no sets: leave them out, or use level raid50 or raid60")));
        }
        if !(2..=MEMBERS_MAX).contains(&member_count) {
            return Err(Invalid::new(format!("a group has 2 to {MEMBERS_MAX} members, not {member_count}")));
        }
        if level.has_copies() {
            return Layout::mirrored(level, member_count, copies);
        }

        let set_count = if level.has_sets() { sets.unwrap_or(2) } else { 1 };
        if level.has_sets() && set_count < 2 {
            return Err(Invalid::new(format!("{title} has at least 2 sets, not {set_count}")));
        }
        if !member_count.is_multiple_of(set_count) {
            return Err(Invalid::new(format!("{member_count} drives don't make {set_count} equal sets")));
        }
        let set_member_count = member_count / set_count;
        let parity_count = match (level, parity) {
            (Level::Raid0, _) => 0,
            (Level::Nm, Some(parity)) if (1..=PARITY_MAX).contains(&parity) => parity,
            (Level::Nm, Some(parity)) => {
                return Err(Invalid::new(format!("N+M has 1 to {PARITY_MAX} parity strips, not {parity}")));
            }
            (Level::Nm, None) => return Err(Invalid::new("N+M needs a parity count, 1 to 8")),
            (level, _) => level.fixed_parity().expect("every other level has its own parity count"),
        };
        // One data strip with parity would be a mirror under another name.
        let set_member_count_min = if parity_count == 0 { 2 } else { parity_count + 2 };
        if set_member_count < set_member_count_min {
            let each = if level.has_sets() { " in each set" } else { "" };
            return Err(Invalid::new(format!(
                "{} needs at least {set_member_count_min} drives{each}, and has {set_member_count}",
                level.a_title()
            )));
        }
        Ok(Layout {
            level,
            member_count,
            set_member_count,
            set_count,
            data_count: set_member_count - parity_count,
            parity_count,
            copy_count: 1,
        })
    }

    fn mirrored(level: Level, member_count: u32, copies: Option<u32>) -> Result<Layout, Invalid> {
        let title = level.title();
        let copy_count = copies.unwrap_or(if level == Level::Raid1 { member_count } else { 2 });
        if !(2..=COPIES_MAX).contains(&copy_count) {
            return Err(Invalid::new(format!("{title} keeps 2 to {COPIES_MAX} copies, not {copy_count}")));
        }
        if level == Level::Raid1 && copy_count != member_count {
            return Err(Invalid::new(format!(
                "RAID 1 keeps one copy on each drive: {member_count} drives make {member_count} copies, not {copy_count}"
            )));
        }
        if level == Level::Raid10 && (!member_count.is_multiple_of(copy_count) || member_count < 2 * copy_count) {
            return Err(Invalid::new(format!(
                "RAID 10 with {copy_count} copies needs a multiple of {copy_count} drives, at least {}, and has \
                 {member_count}",
                2 * copy_count
            )));
        }
        Ok(Layout {
            level,
            member_count,
            set_member_count: member_count,
            set_count: 1,
            data_count: member_count / copy_count,
            parity_count: 0,
            copy_count,
        })
    }

    /// How many members may be lost, whichever they are, without losing data.
    pub fn losses_max(&self) -> u32 {
        self.parity_count.max(self.copy_count - 1)
    }

    /// The share of all members' bytes that holds data, as a fraction.
    pub fn data_fraction(&self) -> (u32, u32) {
        (self.data_count * self.set_count, self.member_count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(level: Level, members: u32) -> Result<(u32, u32, u32, u32), String> {
        Layout::new(level, members, None, None, None)
            .map(|l| (l.data_count, l.parity_count, l.copy_count, l.set_count))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_level_and_its_drives_make_a_shape() {
        assert_eq!(shape(Level::Raid0, 2), Ok((2, 0, 1, 1)));
        assert_eq!(shape(Level::Raid1, 3), Ok((1, 0, 3, 1)));
        assert_eq!(shape(Level::Raid10, 6), Ok((3, 0, 2, 1)));
        assert_eq!(shape(Level::Raid5, 3), Ok((2, 1, 1, 1)));
        assert_eq!(shape(Level::Raid6, 10), Ok((8, 2, 1, 1)));
        assert_eq!(shape(Level::RaidTp, 5), Ok((2, 3, 1, 1)));
        assert_eq!(shape(Level::Raid50, 6), Ok((2, 1, 1, 2)));
        assert_eq!(shape(Level::Raid60, 8), Ok((2, 2, 1, 2)));
        let wide = Layout::new(Level::Nm, 64, Some(8), None, None).unwrap();
        assert_eq!((wide.data_count, wide.parity_count, wide.losses_max()), (56, 8, 8));
    }

    #[test]
    fn a_shape_that_makes_no_sense_is_refused_word_by_word() {
        let refuse = |level, members, parity, copies, sets| {
            Layout::new(level, members, parity, copies, sets).unwrap_err().to_string()
        };
        assert_eq!(refuse(Level::Raid6, 3, None, None, None), "a RAID 6 group needs at least 4 drives, and has 3");
        assert_eq!(
            refuse(Level::Raid60, 6, None, None, None),
            "a RAID 60 group needs at least 4 drives in each set, and has 3"
        );
        assert_eq!(
            refuse(Level::RaidTp, 4, None, None, None),
            "a triple parity group needs at least 5 drives, and has 4"
        );
        assert_eq!(refuse(Level::Raid0, 1, None, None, None), "a group has 2 to 64 members, not 1");
        assert_eq!(refuse(Level::Raid5, 65, None, None, None), "a group has 2 to 64 members, not 65");
        assert_eq!(refuse(Level::Raid50, 7, None, None, Some(2)), "7 drives don't make 2 equal sets");
        assert_eq!(refuse(Level::Raid50, 6, None, None, Some(1)), "RAID 50 has at least 2 sets, not 1");
        assert_eq!(
            refuse(Level::Raid5, 6, None, None, Some(2)),
            "RAID 5 has no sets: leave them out, or use level raid50 or raid60"
        );
        assert_eq!(
            refuse(Level::Raid6, 6, Some(3), None, None),
            "RAID 6 has 2 parity strips: leave the parity out, or use level nm"
        );
        assert_eq!(refuse(Level::Raid0, 6, Some(3), None, None), "RAID 0 has no parity: leave it out, or use level nm");
        assert_eq!(
            refuse(Level::Raid6, 6, None, Some(2), None),
            "RAID 6 keeps no copies: leave them out, or use level raid1 or raid10"
        );
        assert_eq!(refuse(Level::Nm, 6, None, None, None), "N+M needs a parity count, 1 to 8");
        assert_eq!(refuse(Level::Nm, 20, Some(9), None, None), "N+M has 1 to 8 parity strips, not 9");
        assert_eq!(refuse(Level::Raid1, 5, None, None, None), "RAID 1 keeps 2 to 4 copies, not 5");
        assert_eq!(
            refuse(Level::Raid1, 4, None, Some(2), None),
            "RAID 1 keeps one copy on each drive: 4 drives make 4 copies, not 2"
        );
        assert_eq!(
            refuse(Level::Raid10, 5, None, None, None),
            "RAID 10 with 2 copies needs a multiple of 2 drives, at least 4, and has 5"
        );
    }

    #[test]
    fn a_level_reads_back_under_its_name() {
        for level in Level::ALL {
            assert_eq!(level.as_str().parse::<Level>(), Ok(level));
            assert_eq!(serde_json::to_string(&level).unwrap(), format!("\"{level}\""));
        }
        assert_eq!("RAID-6".parse::<Level>(), Ok(Level::Raid6));
        assert_eq!("N+M".parse::<Level>(), Ok(Level::Nm));
        assert_eq!(
            "raid7".parse::<Level>().unwrap_err().to_string(),
            "\"raid7\" is not a level: choose raid0, raid1, raid10, raid5, raid6, raidtp, raid50, raid60 or nm"
        );
    }

    proptest! {
        #[test]
        fn every_accepted_shape_adds_up(
            level in proptest::sample::select(Level::ALL.to_vec()), members in 0u32..80,
            parity in proptest::option::of(0u32..10), copies in proptest::option::of(0u32..6),
            sets in proptest::option::of(0u32..10),
        ) {
            if let Ok(l) = Layout::new(level, members, parity, copies, sets) {
                prop_assert_eq!(l.set_count * l.set_member_count, members);
                prop_assert!((2..=64).contains(&l.member_count) && l.data_count >= 1 && l.copy_count >= 1);
                prop_assert_eq!((l.data_count + l.parity_count) * l.copy_count, l.set_member_count);
                prop_assert!(l.parity_count == 0 || l.copy_count == 1);
            }
        }
    }
}

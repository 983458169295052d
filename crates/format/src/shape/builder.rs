//! Making a shape: the numbers that a level needs, fixes or chooses by default.

use super::{
    COPIES_MAX, DEFAULT_STRIP_BYTES, Level, MEMBERS_MAX, MEMBERS_MIN, PARITY_MAX, STRIP_BYTES_MAX, STRIP_BYTES_MIN,
    Shape, ShapeError,
};

/// A shape in the making, begun by [`Shape::of`]. A number that the level fixes may be omitted, or
/// given with that value. `None` omits a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct ShapeBuilder {
    level: Level,
    members: u16,
    parity: Option<u8>,
    copies: Option<u8>,
    sets: Option<u16>,
    strip_bytes: Option<u32>,
}

impl ShapeBuilder {
    pub(super) fn new(level: Level, members: u16) -> ShapeBuilder {
        ShapeBuilder { level, members, parity: None, copies: None, sets: None, strip_bytes: None }
    }

    /// Parity strips of a stripe: M of level `nm`, which needs it.
    pub fn parity(self, parity: impl Into<Option<u8>>) -> ShapeBuilder {
        ShapeBuilder { parity: parity.into(), ..self }
    }

    /// Copies that `raid10` keeps, 2 by default.
    pub fn copies(self, copies: impl Into<Option<u8>>) -> ShapeBuilder {
        ShapeBuilder { copies: copies.into(), ..self }
    }

    /// Sets that `raid50` and `raid60` stripe over, 2 by default.
    pub fn sets(self, sets: impl Into<Option<u16>>) -> ShapeBuilder {
        ShapeBuilder { sets: sets.into(), ..self }
    }

    /// Bytes of one strip on one member, [`DEFAULT_STRIP_BYTES`] by default.
    pub fn strip_bytes(self, strip_bytes: impl Into<Option<u32>>) -> ShapeBuilder {
        ShapeBuilder { strip_bytes: strip_bytes.into(), ..self }
    }

    /// Checks all rules and fills in omitted numbers.
    ///
    /// # Errors
    /// The first rule that is broken, as one sentence.
    pub fn build(self) -> Result<Shape, ShapeError> {
        let ShapeBuilder { level, members, parity, copies, sets: sets_chosen, strip_bytes } = self;
        let strip_bytes = strip_bytes.unwrap_or(DEFAULT_STRIP_BYTES);
        if !(MEMBERS_MIN..=MEMBERS_MAX).contains(&members) {
            return Err(ShapeError::Members { members });
        }
        if !strip_bytes.is_power_of_two() || !(STRIP_BYTES_MIN..=STRIP_BYTES_MAX).contains(&strip_bytes) {
            return Err(ShapeError::Strip { strip_bytes });
        }
        if copies.is_some() && !level.is_mirror() {
            return Err(ShapeError::NotForLevel { level, what: "copies", fixed: None });
        }
        let (sets, parity_count) = match level {
            Level::Raid0 => (1, 0),
            Level::Raid1 => (1, raid1_copies(members, copies)? - 1),
            Level::Raid10 => raid10(members, copies)?,
            Level::Raid5 => (1, 1),
            Level::Raid6 => (1, 2),
            Level::Raid7 => (1, 3),
            Level::Nm => (1, nm_parity(parity)?),
            Level::Raid50 => (nested_sets(level, members, sets_chosen)?, 1),
            Level::Raid60 => (nested_sets(level, members, sets_chosen)?, 2),
        };
        if sets_chosen.is_some_and(|chosen| chosen != sets) {
            return Err(ShapeError::NotForLevel { level, what: "sets", fixed: Some(sets) });
        }
        if parity.is_some_and(|chosen| level.is_mirror() || chosen != parity_count) {
            let fixed = (!level.is_mirror()).then_some(u16::from(parity_count));
            return Err(ShapeError::NotForLevel { level, what: "parity", fixed });
        }
        let (need, have) = (members_min_of_set(level, parity_count), members / sets);
        if have < need {
            return Err(ShapeError::TooFewMembers { level, need, have, per_set: sets > 1 });
        }
        Ok(Shape { level, members, sets, parity_count, strip_bytes })
    }
}

/// Fewest members of one set: two data strips besides the parity, or all copies of a mirror. RAID 0
/// may have one drive: a group for its volumes, without redundancy.
fn members_min_of_set(level: Level, parity_count: u8) -> u16 {
    match level {
        Level::Raid0 => 1,
        _ if level.is_mirror() => u16::from(parity_count) + 1,
        _ => u16::from(parity_count) + 2,
    }
}

fn raid1_copies(members: u16, copies: Option<u8>) -> Result<u8, ShapeError> {
    if let Some(copies) = copies.filter(|&copies| u16::from(copies) != members) {
        return Err(ShapeError::CopiesAreMembers { members, copies });
    }
    match u8::try_from(members) {
        Ok(copies) if (2..=COPIES_MAX).contains(&copies) => Ok(copies),
        _ => Err(ShapeError::Copies { level: Level::Raid1, copies: members }),
    }
}

fn raid10(members: u16, copies: Option<u8>) -> Result<(u16, u8), ShapeError> {
    let level = Level::Raid10;
    let copies = copies.unwrap_or(2);
    if !(2..=COPIES_MAX).contains(&copies) {
        return Err(ShapeError::Copies { level, copies: u16::from(copies) });
    }
    let width = u16::from(copies);
    if !members.is_multiple_of(width) {
        return Err(ShapeError::NotDivisible { members, parts: width, what: "copies" });
    }
    match members / width {
        sets @ 2.. => Ok((sets, copies - 1)),
        sets => Err(ShapeError::Sets { level, sets }),
    }
}

fn nm_parity(parity: Option<u8>) -> Result<u8, ShapeError> {
    parity.filter(|parity| (1..=PARITY_MAX).contains(parity)).ok_or(ShapeError::Parity { given: parity })
}

fn nested_sets(level: Level, members: u16, sets: Option<u16>) -> Result<u16, ShapeError> {
    let sets = sets.unwrap_or(2);
    if sets < 2 {
        return Err(ShapeError::Sets { level, sets });
    }
    if !members.is_multiple_of(sets) {
        return Err(ShapeError::NotDivisible { members, parts: sets, what: "sets" });
    }
    Ok(sets)
}

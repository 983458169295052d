//! What members that left do not have: a drive that comes back gets that and no more.
//!
//! Kept in memory only, by unit, for as long as the group runs. After a restart, or a crash of the
//! group, a drive that comes back is filled like a new one.
//!
//! Invariants:
//! 1. A unit that was written and that some member may not have on its medium is in `touched` or
//!    `flushing`: it enters before its write is acknowledged, and leaves only after a flush of all
//!    members that began after the write had ended.
//! 2. What `touched` and `flushing` hold when a member leaves, it counts as having missed, and
//!    every unit that is written while it is away. So its drive has all other units as they are,
//!    whatever its cache lost.
//! 3. A unit is taken from what a returning member missed only under the unit's lock, once it is
//!    written there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use crate::geometry::{Geometry, MemberIndex, UnitIndex};
use crate::marks::BlockSet;
use crate::shared::DriveId;

/// The member is there, or nothing is known of what it missed.
const UNKNOWN: u32 = 0;
/// The member is away; what is written is noted.
const AWAY: u32 = 1;
/// From here on: the drive that came back, and this.
const BACK: u32 = 2;

#[derive(Debug, Default)]
struct Absence {
    state: AtomicU32,
    units: OnceLock<BlockSet>,
}

/// Of all members.
#[derive(Debug)]
pub(crate) struct Missed {
    unit_count: u64,
    /// Of the group's shape: units take turns in the sets, which have this many members each.
    sets: u64,
    strips: usize,
    touched: BlockSet,
    flushing: BlockSet,
    /// Somebody's flush has taken `flushing`.
    flush_under_way: AtomicBool,
    members: Box<[Absence]>,
    /// Members that are away.
    away: AtomicUsize,
}

impl Missed {
    /// For a group whose members are there, or were not when it was assembled.
    pub fn new(geometry: &Geometry) -> Self {
        let (unit_count, sets, strips, members) =
            (geometry.unit_count(), geometry.sets, geometry.strips(), geometry.members());
        Missed {
            unit_count,
            sets,
            strips,
            touched: BlockSet::new(unit_count as usize),
            flushing: BlockSet::new(unit_count as usize),
            flush_under_way: AtomicBool::new(false),
            members: (0..members).map(|_| Absence::default()).collect(),
            away: AtomicUsize::new(0),
        }
    }

    /// A unit is being written, or has been. To be called before its strips are written, and again
    /// before the write is acknowledged: in between a flush may begin, or a member leave.
    #[inline]
    pub fn note(&self, unit: UnitIndex) {
        if !self.touched.contains(unit.0) {
            self.touched.insert(unit.0);
        }
        // Whoever takes the marks of a member that leaves has said before that it is away: one of
        // the two sees the other.
        fence(Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) > 0 {
            self.note_for_the_absent(unit);
        }
    }

    #[cold]
    fn note_for_the_absent(&self, unit: UnitIndex) {
        let first = (unit.0 % self.sets) as usize * self.strips;
        let in_set = &self.members[first..first + self.strips];
        for absence in in_set.iter().filter(|absence| absence.state.load(Ordering::SeqCst) == AWAY) {
            absence.units.get().expect("made before the member is away").insert(unit.0);
        }
    }

    /// A unit's content stays what it was, and is written anew to a member that lacks it.
    pub fn note_restored(&self, unit: UnitIndex) {
        self.touched.insert(unit.0);
    }

    /// A flush of all members begins. Says no if another one is under way that takes care of the
    /// marks.
    pub fn flush_begins(&self) -> bool {
        let mine = !self.flush_under_way.swap(true, Ordering::SeqCst);
        if mine {
            self.touched.move_to(&self.flushing);
        }
        mine
    }

    /// It has ended; `whole` if all members that are there have done it.
    pub fn flush_ended(&self, whole: bool) {
        if whole {
            self.flushing.clear();
        } else {
            self.flushing.move_to(&self.touched);
        }
        self.flush_under_way.store(false, Ordering::SeqCst);
    }

    /// A member that had everything, or was getting what it missed, has left. To be called once all
    /// shards leave it out of what they begin.
    pub fn leave(&self, member: MemberIndex) {
        let absence = &self.members[usize::from(member.0)];
        let units = absence.units.get_or_init(|| BlockSet::new(self.unit_count as usize));
        if absence.state.swap(AWAY, Ordering::SeqCst) != AWAY {
            self.away.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        let set = (usize::from(member.0) / self.strips) as u64;
        // In the order in which a flush moves them, and a flush that failed moves them back.
        for _ in 0..2 {
            let marked = BlockSet::all_of(&self.touched, &self.flushing);
            marked.into_iter().filter(|unit| unit % self.sets == set).for_each(|unit| {
                units.insert(unit);
            });
        }
    }

    /// A member that is away lacks a unit that it did not miss: its drive will be another one.
    pub fn add(&self, member: MemberIndex, unit: UnitIndex) {
        let absence = &self.members[usize::from(member.0)];
        if let Some(units) = absence.units.get() {
            units.insert(unit.0);
        }
    }

    /// Nothing is known of what a member missed, or it is whole again.
    pub fn forget(&self, member: MemberIndex) {
        let absence = &self.members[usize::from(member.0)];
        if absence.state.swap(UNKNOWN, Ordering::SeqCst) == AWAY {
            self.away.fetch_sub(1, Ordering::SeqCst);
        }
        if let Some(units) = absence.units.get() {
            units.clear();
        }
    }

    /// What the member missed is known.
    pub fn is_known(&self, member: MemberIndex) -> bool {
        self.members[usize::from(member.0)].state.load(Ordering::SeqCst) == AWAY
    }

    /// The member's drive has come back, as `drive`: what it did not miss counts as whole from now
    /// on. To be called once the member's slot has the drive: whoever leaves it out until then has
    /// noted that it missed that.
    pub fn come_back(&self, member: MemberIndex, drive: DriveId) {
        let absence = &self.members[usize::from(member.0)];
        if absence.state.swap(BACK + u32::from(drive.0), Ordering::SeqCst) == AWAY {
            self.away.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn of_drive(&self, drive: DriveId) -> Option<&BlockSet> {
        let back = BACK + u32::from(drive.0);
        let absence = self.members.iter().find(|absence| absence.state.load(Ordering::SeqCst) == back)?;
        absence.units.get()
    }

    /// The drive came back, and has what the unit should hold there.
    pub fn has_unit(&self, drive: DriveId, unit: UnitIndex) -> bool {
        self.of_drive(drive).is_some_and(|units| !units.contains(unit.0))
    }

    /// The drive came back and got the unit.
    pub fn got(&self, drive: DriveId, unit: UnitIndex) {
        if let Some(units) = self.of_drive(drive) {
            units.remove(unit.0);
        }
    }

    /// The first unit from `unit` on that a drive lacks which came back; the unit itself for any
    /// other drive.
    pub fn next(&self, drive: DriveId, unit: UnitIndex) -> Option<UnitIndex> {
        match self.of_drive(drive) {
            Some(units) => units.next(unit.0).map(UnitIndex),
            None => Some(unit),
        }
    }

    /// Units that a drive lacks which came back. `None`: another drive.
    pub fn count(&self, drive: DriveId) -> Option<u64> {
        self.of_drive(drive).map(BlockSet::len)
    }
}

#[cfg(test)]
mod tests {
    use format::{Layout, Level, Shape};

    use super::*;

    const MEMBER: MemberIndex = MemberIndex(1);
    const DRIVE: DriveId = DriveId(9);

    fn group() -> Missed {
        let shape = Shape::new(Level::Raid5, 3, None, None, None, 64 << 10).expect("a shape");
        let layout = Layout::plan(&shape, 1 << 30, true).expect("a layout");
        Missed::new(&Geometry::new(&shape, &layout, 4096))
    }

    fn missed(missed: &Missed) -> Vec<u64> {
        missed.come_back(MEMBER, DRIVE);
        let mut units = Vec::new();
        let mut next = missed.next(DRIVE, UnitIndex(0));
        while let Some(unit) = next {
            units.push(unit.0);
            next = missed.next(DRIVE, UnitIndex(unit.0 + 1));
        }
        units
    }

    #[test]
    fn what_was_flushed_before_a_member_left_it_did_not_miss() {
        let group = group();
        group.note(UnitIndex(1));
        group.note(UnitIndex(2));
        assert!(group.flush_begins());
        group.note(UnitIndex(2));
        group.note(UnitIndex(3));
        group.flush_ended(true);
        group.leave(MEMBER);
        group.note(UnitIndex(700));
        assert_eq!(missed(&group), [2, 3, 700]);
        assert!(group.has_unit(DRIVE, UnitIndex(1)) && !group.has_unit(DRIVE, UnitIndex(3)));
        group.got(DRIVE, UnitIndex(3));
        assert!(group.has_unit(DRIVE, UnitIndex(3)) && group.count(DRIVE) == Some(2));
        assert!(!group.has_unit(DriveId(8), UnitIndex(1)), "of another drive nothing is known");
    }

    #[test]
    fn a_flush_that_fails_or_comes_second_takes_nothing_away() {
        let group = group();
        group.note(UnitIndex(5));
        assert!(group.flush_begins() && !group.flush_begins());
        group.flush_ended(false);
        group.leave(MEMBER);
        assert_eq!(missed(&group), [5]);
    }

    #[test]
    fn a_member_that_leaves_in_the_middle_of_a_flush_missed_what_was_to_be_flushed() {
        let group = group();
        group.note(UnitIndex(5));
        assert!(group.flush_begins());
        group.leave(MEMBER);
        group.flush_ended(true);
        assert_eq!(missed(&group), [5]);
    }

    #[test]
    fn a_member_that_leaves_again_still_lacks_what_it_did_not_get() {
        let group = group();
        group.leave(MEMBER);
        group.note(UnitIndex(5));
        group.note(UnitIndex(6));
        group.come_back(MEMBER, DRIVE);
        group.got(DRIVE, UnitIndex(5));
        assert!(group.flush_begins());
        group.flush_ended(true);
        group.leave(MEMBER);
        assert!(group.is_known(MEMBER));
        assert_eq!(missed(&group), [6]);
        group.forget(MEMBER);
        assert!(!group.is_known(MEMBER) && group.count(DRIVE).is_none());
    }
}

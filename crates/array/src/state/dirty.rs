//! The dirty regions of members that left: a drive that comes back gets those and no more.
//!
//! They are kept in memory only, by stripe group, for as long as the group runs. After a restart,
//! or a crash of the group, a drive that comes back is filled like a new one.
//!
//! Invariants:
//! 1. A stripe group that was written, and that some member may not have on its medium, is in
//!    `touched` or `flushing`. It enters when its write begins, and again before the write is
//!    acknowledged. It leaves only after a flush of all members. If that flush began after the
//!    write had ended, all members have the write.
//! 2. When a member leaves, all of `touched` and `flushing` counts as missed by it, and so does
//!    every stripe group that is written while it is disconnected. So its drive has all other
//!    stripe groups as they are, even if its cache lost data.
//! 3. Dirty regions are used only after all writes have ended that began before the member left.
//!    A flush can take the mark of a write that is under way, and the write sets it again at its
//!    end.
//! 4. A stripe group is removed from the dirty regions of a returning member only under its lock,
//!    after it was written there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

use crate::geometry::{Geometry, MemberIndex, StripeGroup};
use crate::state::slot::DriveId;
use crate::util::marks::BlockSet;

/// The member is present, or its dirty regions are unknown.
const UNKNOWN: u32 = 0;
/// The member is disconnected. Writes are noted.
const AWAY: u32 = 1;
/// First value for a drive that came back: this plus the number of the drive.
const BACK: u32 = 2;

#[derive(Debug, Default)]
struct Absence {
    state: AtomicU32,
    /// How often the member has left.
    count: AtomicU32,
    stripe_groups: OnceLock<BlockSet>,
}

/// Dirty regions of all members.
#[derive(Debug)]
pub(crate) struct DirtyRegions {
    stripe_group_count: u64,
    /// Shape of the group: stripe groups are dealt to the sets in turn, and each set has `strips`
    /// members.
    sets: u64,
    strips: usize,
    touched: BlockSet,
    flushing: BlockSet,
    /// A flush has taken `flushing`.
    flush_under_way: AtomicBool,
    members: Box<[Absence]>,
    /// Number of members that are disconnected.
    disconnected: AtomicUsize,
}

impl DirtyRegions {
    /// For a group whose members are present, or were missing when it was assembled.
    pub fn new(geometry: &Geometry) -> Self {
        let (stripe_group_count, sets, strips, members) =
            (geometry.stripe_group_count(), geometry.sets, geometry.strips(), geometry.members());
        DirtyRegions {
            stripe_group_count,
            sets,
            strips,
            touched: BlockSet::new(stripe_group_count as usize),
            flushing: BlockSet::new(stripe_group_count as usize),
            flush_under_way: AtomicBool::new(false),
            members: (0..members).map(|_| Absence::default()).collect(),
            disconnected: AtomicUsize::new(0),
        }
    }

    /// A stripe group is being written, or has been. Call this before its strips are written, and
    /// again before the write is acknowledged. In between a flush may begin or a member may leave.
    #[inline]
    pub fn note(&self, stripe_group: StripeGroup) {
        if !self.touched.contains(stripe_group.0) {
            self.touched.insert(stripe_group.0);
        }
        // [`DirtyRegions::leave`] first marks the member as disconnected, then takes the marks. So
        // either it sees this mark, or this task sees that the member is disconnected.
        fence(Ordering::SeqCst);
        if self.disconnected.load(Ordering::SeqCst) > 0 {
            self.note_for_the_absent(stripe_group);
        }
    }

    #[cold]
    fn note_for_the_absent(&self, stripe_group: StripeGroup) {
        let first = (stripe_group.0 % self.sets) as usize * self.strips;
        let in_set = &self.members[first..first + self.strips];
        for absence in in_set.iter().filter(|absence| absence.state.load(Ordering::SeqCst) == AWAY) {
            absence.stripe_groups.get().expect("made before the member is away").insert(stripe_group.0);
        }
    }

    /// The content of a stripe group stays the same, and is written again to a member that lacks
    /// it.
    pub fn note_restored(&self, stripe_group: StripeGroup) {
        self.touched.insert(stripe_group.0);
    }

    /// A flush of all members begins. Returns false if another flush is under way, which takes care
    /// of the marks.
    pub fn flush_begins(&self) -> bool {
        let mine = !self.flush_under_way.swap(true, Ordering::SeqCst);
        if mine {
            self.touched.move_to(&self.flushing);
        }
        mine
    }

    /// The flush has ended. `whole`: all members that are present have done it.
    pub fn flush_ended(&self, whole: bool) {
        if whole {
            self.flushing.clear();
        } else {
            self.flushing.move_to(&self.touched);
        }
        self.flush_under_way.store(false, Ordering::SeqCst);
    }

    /// A member that had all its data, or was getting its dirty regions, has left. Call this once
    /// all shards skip it in new operations.
    pub fn leave(&self, member: MemberIndex) {
        let absence = &self.members[usize::from(member.0)];
        let stripe_groups = absence.stripe_groups.get_or_init(|| BlockSet::new(self.stripe_group_count as usize));
        absence.count.fetch_add(1, Ordering::SeqCst);
        if absence.state.swap(AWAY, Ordering::SeqCst) != AWAY {
            self.disconnected.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        let set = (usize::from(member.0) / self.strips) as u64;
        // In the order in which a flush moves the marks, and in which a failed flush moves them
        // back.
        for _ in 0..2 {
            let marked = BlockSet::all_of(&self.touched, &self.flushing);
            marked.into_iter().filter(|stripe_group| stripe_group % self.sets == set).for_each(|stripe_group| {
                stripe_groups.insert(stripe_group);
            });
        }
    }

    /// A member that is disconnected lacks a stripe group that it did not miss, because it will be
    /// on another drive.
    pub fn add(&self, member: MemberIndex, stripe_group: StripeGroup) {
        let absence = &self.members[usize::from(member.0)];
        if let Some(stripe_groups) = absence.stripe_groups.get() {
            stripe_groups.insert(stripe_group.0);
        }
    }

    /// The dirty regions of a member are unknown from now on, or it has all its data again.
    pub fn forget(&self, member: MemberIndex) {
        let absence = &self.members[usize::from(member.0)];
        if absence.state.swap(UNKNOWN, Ordering::SeqCst) == AWAY {
            self.disconnected.fetch_sub(1, Ordering::SeqCst);
        }
        if let Some(stripe_groups) = absence.stripe_groups.get() {
            stripe_groups.clear();
        }
    }

    /// Whether the dirty regions of the member are known.
    pub fn is_known(&self, member: MemberIndex) -> bool {
        self.members[usize::from(member.0)].state.load(Ordering::SeqCst) == AWAY
    }

    /// The number of the member's absence, if it is disconnected and its dirty regions are known.
    pub fn absence(&self, member: MemberIndex) -> Option<u32> {
        let count = self.members[usize::from(member.0)].count.load(Ordering::SeqCst);
        self.is_known(member).then_some(count)
    }

    /// The member's drive has come back, as `drive`. Stripe groups outside its dirty regions count
    /// as whole from now on. Call this once the member's slot has the drive. Writes that skipped
    /// the drive until then have noted that it missed them.
    pub fn come_back(&self, member: MemberIndex, drive: DriveId) {
        let absence = &self.members[usize::from(member.0)];
        if absence.state.swap(BACK + u32::from(drive.0), Ordering::SeqCst) == AWAY {
            self.disconnected.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn of_drive(&self, drive: DriveId) -> Option<&BlockSet> {
        let back = BACK + u32::from(drive.0);
        let absence = self.members.iter().find(|absence| absence.state.load(Ordering::SeqCst) == back)?;
        absence.stripe_groups.get()
    }

    /// Whether the drive came back and has its data of the stripe group.
    pub fn has_stripe_group(&self, drive: DriveId, stripe_group: StripeGroup) -> bool {
        self.of_drive(drive).is_some_and(|stripe_groups| !stripe_groups.contains(stripe_group.0))
    }

    /// The drive came back and got the stripe group.
    pub fn got(&self, drive: DriveId, stripe_group: StripeGroup) {
        if let Some(stripe_groups) = self.of_drive(drive) {
            stripe_groups.remove(stripe_group.0);
        }
    }

    /// The first stripe group from `stripe_group` on that a returned drive lacks. For any other
    /// drive: `stripe_group` itself.
    pub fn next(&self, drive: DriveId, stripe_group: StripeGroup) -> Option<StripeGroup> {
        match self.of_drive(drive) {
            Some(stripe_groups) => stripe_groups.next(stripe_group.0).map(StripeGroup),
            None => Some(stripe_group),
        }
    }

    /// Number of stripe groups that a returned drive lacks. `None` for any other drive.
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

    fn group() -> DirtyRegions {
        let shape = Shape::of(Level::Raid5, 3).strip_bytes(64 << 10).build().expect("a shape");
        let layout = Layout::plan(&shape, 1 << 30, true).expect("a layout");
        DirtyRegions::new(&Geometry::new(&shape, &layout, 4096))
    }

    fn dirty(dirty: &DirtyRegions) -> Vec<u64> {
        dirty.come_back(MEMBER, DRIVE);
        let mut stripe_groups = Vec::new();
        let mut next = dirty.next(DRIVE, StripeGroup(0));
        while let Some(stripe_group) = next {
            stripe_groups.push(stripe_group.0);
            next = dirty.next(DRIVE, StripeGroup(stripe_group.0 + 1));
        }
        stripe_groups
    }

    #[test]
    fn what_was_flushed_before_a_member_left_it_did_not_miss() {
        let group = group();
        group.note(StripeGroup(1));
        group.note(StripeGroup(2));
        assert!(group.flush_begins());
        group.note(StripeGroup(2));
        group.note(StripeGroup(3));
        group.flush_ended(true);
        group.leave(MEMBER);
        group.note(StripeGroup(700));
        assert_eq!(dirty(&group), [2, 3, 700]);
        assert!(group.has_stripe_group(DRIVE, StripeGroup(1)) && !group.has_stripe_group(DRIVE, StripeGroup(3)));
        group.got(DRIVE, StripeGroup(3));
        assert!(group.has_stripe_group(DRIVE, StripeGroup(3)) && group.count(DRIVE) == Some(2));
        assert!(!group.has_stripe_group(DriveId(8), StripeGroup(1)), "of another drive nothing is known");
    }

    #[test]
    fn a_flush_that_fails_or_comes_second_takes_nothing_away() {
        let group = group();
        group.note(StripeGroup(5));
        assert!(group.flush_begins() && !group.flush_begins());
        group.flush_ended(false);
        group.leave(MEMBER);
        assert_eq!(dirty(&group), [5]);
    }

    #[test]
    fn a_member_that_leaves_in_the_middle_of_a_flush_missed_what_was_to_be_flushed() {
        let group = group();
        group.note(StripeGroup(5));
        assert!(group.flush_begins());
        group.leave(MEMBER);
        group.flush_ended(true);
        assert_eq!(dirty(&group), [5]);
    }

    #[test]
    fn a_member_that_leaves_again_still_lacks_what_it_did_not_get() {
        let group = group();
        group.leave(MEMBER);
        group.note(StripeGroup(5));
        group.note(StripeGroup(6));
        group.come_back(MEMBER, DRIVE);
        group.got(DRIVE, StripeGroup(5));
        assert!(group.flush_begins());
        group.flush_ended(true);
        group.leave(MEMBER);
        assert_eq!(group.absence(MEMBER), Some(2));
        assert_eq!(dirty(&group), [6]);
        group.forget(MEMBER);
        assert!(!group.is_known(MEMBER) && group.count(DRIVE).is_none());
    }
}

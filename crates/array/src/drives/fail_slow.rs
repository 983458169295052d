//! Fail-slow policy: what the leader does about members that are slow for long, or do not answer at
//! all.
//!
//! Shards tell the leader once a second of each member that they find slow
//! ([`crate::drives::in_flight`]). After [`SECONDS_REPORTED`] such seconds the member is reported.
//! After [`SECONDS_RETIRED`] it is taken out of service, if that is enabled, a spare can take its
//! place, and no other member of its set is lost. After a minute without a slow second the count
//! starts again.
//!
//! A member that has lost an operation ([`crate::drives::in_flight`]) is *given up* at once: all
//! shards end the operations that wait for it. So nothing waits for it again, not even the change
//! of the superblocks. A member that the group cannot do without stays.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use drive::{Env, Nanos};
use format::MemberState;

use crate::array::ArrayShard;
use crate::geometry::MemberIndex;
use crate::state::cause::Cause;
use crate::state::errors::Failed;
use crate::state::event::Event;
use crate::state::shared::Shared;
use crate::state::slot::{DriveId, Slot};
use crate::state::slow::SlowSeconds;

/// Slow seconds before a member is reported: a drive's garbage collection is not worth an event.
const SECONDS_REPORTED: u32 = 5;

/// Slow seconds before a member is retired: rebuilding costs more than a bad half minute.
const SECONDS_RETIRED: u32 = 60;

const SECOND_NANOS: Nanos = 1_000_000_000;

/// Reports within this time after a counted one belong to the same second.
const SECOND: Nanos = 900_000_000;

/// Time without a slow second after which the count starts again.
const FORGIVEN_AFTER: Nanos = 60_000_000_000;

impl Shared {
    /// The slot of a drive that is in sync or being rebuilt.
    pub(crate) fn member_of(&self, drive: DriveId) -> Option<MemberIndex> {
        self.slots().find(|(_, slot)| slot.drive == drive && slot.state.takes_writes()).map(|(member, _)| member)
    }

    /// Notes that a shard has seen an answer of the drive, to any operation.
    pub(crate) fn note_answer(&self, drive: DriveId, now: Nanos) {
        if let Some(seat) = self.seat_of(drive) {
            self.answered[seat].fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Whether no shard has seen an answer of the drive for `limit`. A drive without a slot counts
    /// as silent.
    pub(crate) fn is_silent_for(&self, drive: DriveId, limit: Nanos, now: Nanos) -> bool {
        let answered = self.seat_of(drive).map(|seat| self.answered[seat].load(Ordering::Relaxed));
        answered.is_none_or(|answered| now.saturating_sub(answered) >= limit)
    }

    /// The drives that are given up: no operation waits for them. Their slots may not show it yet.
    pub(crate) fn given_up(&self) -> Vec<DriveId> {
        let drives = self.given_up.iter().map(|drive| drive.load(Ordering::Acquire));
        drives.filter_map(|drive| drive.checked_sub(1)).map(|drive| DriveId(drive as u16)).collect()
    }

    pub(crate) fn is_given_up(&self, member: MemberIndex, drive: DriveId) -> bool {
        self.given_up[usize::from(member.0)].load(Ordering::Acquire) == u32::from(drive.0) + 1
    }

    fn set_given_up(&self, seat: usize, drive: Option<DriveId>) {
        let mark = drive.map_or(0, |drive| u32::from(drive.0) + 1);
        self.given_up[seat].store(mark, Ordering::Release);
    }

    /// The index of a used drive in the lists by member (`answered`, `given_up`). The replacement
    /// comes after all members.
    fn seat_of(&self, drive: DriveId) -> Option<usize> {
        let behind = || self.is_replacement(drive).then_some(self.answered.len() - 1);
        self.member_of(drive).map(|member| usize::from(member.0)).or_else(behind)
    }

    /// Notes that a new replacement has answered, and that it is not given up.
    pub(crate) fn welcome_replacement(&self, now: Nanos) {
        let seat = self.answered.len() - 1;
        self.answered[seat].store(now, Ordering::Relaxed);
        self.set_given_up(seat, None);
    }
}

impl<E: Env> ArrayShard<E> {
    /// Counts a slow second of a member, as a shard reports it. Leader only.
    pub fn note_slow(self: &Rc<Self>, member: MemberIndex, drive: DriveId) {
        let slot = self.shared.slot(member);
        if slot != (Slot { drive, state: MemberState::InSync }) {
            return;
        }
        let leader = self.leader();
        let now = self.env.now();
        let mut slow = leader.slow.borrow_mut();
        let seconds = slow.entry(drive).or_default();
        match seconds.last.map(|last| now.saturating_sub(last)) {
            Some(0..SECOND) => return, // Another shard has told of this second.
            Some(since) if since > FORGIVEN_AFTER => *seconds = SlowSeconds::default(),
            _ => {}
        }
        (seconds.count, seconds.last) = (seconds.count + 1, Some(now));
        let tells = seconds.count >= SECONDS_REPORTED && !seconds.reported;
        seconds.reported |= tells;
        let retires = seconds.count >= SECONDS_RETIRED && self.shared.settings.get().retire_slow;
        drop(slow);
        if tells {
            (leader.listener)(Event::MemberSlow { member, drive });
        }
        let set = u64::from(member.0) / self.shared.geometry.strips() as u64;
        if retires && self.shared.lost_in_set(set) == 0 && self.fitting_spare().is_some() {
            leader.slow.borrow_mut().remove(&drive);
            (leader.listener)(Event::MemberRetired { member, drive });
            let inner = self.clone();
            self.env.spawn(async move {
                inner.fail_in_place(member, drive, Cause::Slow).await;
            });
        }
    }

    /// Whether the member was reported as slow, and its last slow second is recent.
    pub fn is_slow(&self, drive: DriveId) -> bool {
        let slow = self.leader().slow.borrow();
        let now = self.env.now();
        let is_recent = |last: Nanos| now.saturating_sub(last) <= FORGIVEN_AFTER;
        slow.get(&drive).is_some_and(|seconds| seconds.reported && seconds.last.is_some_and(is_recent))
    }

    /// The cause for a member that is given up.
    pub fn silent(&self) -> Cause {
        Cause::Silent { seconds: self.shared.settings.time_limit() / SECOND_NANOS }
    }

    /// Gives up a member that has not answered within the time limit. Returns false if the group
    /// cannot do without it. Leader only.
    pub fn give_up(self: &Rc<Self>, member: MemberIndex, drive: DriveId) -> bool {
        let shared = &self.shared;
        let slot = shared.slot(member);
        if shared.is_replacement(drive) {
            shared.set_given_up(shared.answered.len() - 1, Some(drive));
            let inner = self.clone();
            self.env.spawn(async move {
                inner.fail_in_place(member, drive, inner.silent()).await;
            });
            return true;
        }
        if slot.drive != drive || !slot.state.takes_writes() {
            return true;
        }
        if shared.is_given_up(member, drive) {
            return true;
        }
        shared.count_error(member, Failed::Other);
        if slot.state == MemberState::InSync {
            let strips = shared.geometry.strips();
            let first = usize::from(member.0) / strips * strips;
            let is_left = |index: &usize| {
                let member = MemberIndex(*index as u16);
                let slot = shared.slot(member);
                slot.state == MemberState::InSync && !shared.is_given_up(member, slot.drive)
            };
            let left = (first..first + strips).filter(is_left).count();
            if left <= shared.geometry.data {
                (self.leader().listener)(Event::MemberNeeded { member, drive, cause: self.silent() });
                return false;
            }
        }
        shared.set_given_up(usize::from(member.0), Some(drive));
        let inner = self.clone();
        self.env.spawn(async move {
            if !inner.fail_in_place(member, drive, inner.silent()).await {
                inner.shared.set_given_up(usize::from(member.0), None);
            }
        });
        true
    }
}

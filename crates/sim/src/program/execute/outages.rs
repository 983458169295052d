//! Paths to drives that fail for a while, groups that cannot be started meanwhile, and members that
//! come back afterwards.

use std::time::Duration;

use ::drive::Env;
use array::{JoinError, MemberIndex};
use format::{BLOCK, Role, Superblock, superblock_offsets};

use super::{Run, living, new_drive};
use crate::engine::{Group, uuid};
use crate::program::Step;
use crate::program::promise::{Fault, is_pause};
use crate::{Broken, Outage, SimDrive};

/// The minimum wait before a group that could not be started is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// After this the group has repeated failed writes of superblocks, and of strips that failed in a
/// short outage.
pub(super) const LOOKS_AGAIN: Duration = Duration::from_secs(3);
/// Attempts to start a group: one for each outage, and some.
const ATTEMPTS_MAX: usize = 60;

/// An outage that comes with the next attempt to start the group.
pub(super) struct Due {
    drives: Vec<SimDrive>,
    how: Broken,
    after: u64,
    lasts: Duration,
    fault: Fault,
    is_of_all: bool,
}

/// An outage that was armed.
pub(super) struct Armed {
    outage: Outage,
    how: Broken,
    at_start: bool,
    /// It had not begun when the crash came, so it may come in the middle of the recovery.
    in_recovery: bool,
    is_of_all: bool,
}

impl Run {
    pub(super) fn outage(&mut self, step: &Step, is_of_all: bool) {
        let Step::Outage { members, how, at_start, after, us } = step else { return };
        let fault = match (at_start, is_of_all) {
            _ if is_pause(step) => Fault::Slow,
            (false, false) => Fault::Outage,
            (false, true) => Fault::OutageOfAll,
            (true, false) => Fault::OutageAtStart,
            (true, true) => Fault::OutageOfAllAtStart,
        };
        let drives = members.iter().filter(|&&member| !self.ledger.is_lost(member));
        let drives: Vec<SimDrive> = drives.filter_map(|&member| self.drive(member)).collect();
        let lasts = Duration::from_micros(*us);
        let due = Due { drives, how: *how, after: *after, lasts, fault, is_of_all };
        match at_start {
            true => self.due.push(due),
            false => self.arm(due, false),
        }
    }

    fn arm(&mut self, due: Due, at_start: bool) {
        let Due { drives, how, after, lasts, fault, is_of_all } = due;
        let tally = self.tally.clone();
        let begun = move || *tally.borrow_mut().faults.entry(fault).or_default() += 1;
        let outage = Outage::arm(&self.sim.env(), &drives, how, after, lasts, self.rng.fork(), begun);
        self.outages.retain(|armed| !armed.outage.is_over());
        if is_of_all {
            // It is unknown which members leave: a member that is unreachable then may be one more
            // than the group survives.
            for armed in &mut self.outages {
                armed.outage.call_off();
                armed.is_of_all = true;
            }
            self.due.iter_mut().for_each(|due| due.is_of_all = true);
        }
        self.outages.push(Armed { outage, how, at_start, in_recovery: false, is_of_all });
    }

    /// Outages that are due with a start on these drives begin to count.
    pub(super) fn arm_due(&mut self, drives: &[SimDrive]) {
        for due in std::mem::take(&mut self.due) {
            self.arm(due, true);
        }
        // Where too many drives are absent, every drive with an older state of the group is absent
        // as well: alone, it would not know that it is stale.
        let epochs: Vec<u64> = drives.iter().map(|drive| newest_superblock(drive).map_or(0, |own| own.epoch)).collect();
        let newest = epochs.iter().copied().max();
        for (drive, _) in drives.iter().zip(&epochs).filter(|(_, epoch)| Some(**epoch) != newest) {
            self.outages.iter().filter(|armed| armed.is_of_all).for_each(|armed| armed.outage.spread(drive));
        }
    }

    /// Outages of more members than the group survives that are pending or under way.
    pub(super) fn excuse(&self) -> Vec<Outage> {
        let all = self.outages.iter().filter(|armed| armed.is_of_all && !armed.outage.is_over());
        all.map(|armed| armed.outage.clone()).collect()
    }

    /// An outage is pending or under way.
    pub(super) fn is_troubled(&self) -> bool {
        !self.outages.iter().all(|armed| armed.outage.is_over())
    }

    /// How often more drives were pulled than the group survives. Handles opened before such an
    /// outage stay useless when the drives are back.
    pub(super) fn pulled(&self) -> usize {
        let is_pulled = |armed: &&Armed| armed.is_of_all && armed.how.is_disconnected() && armed.outage.has_begun();
        self.outages.iter().filter(is_pulled).count()
    }

    /// The machine crashed: outages that have not begun come while the group is started, or later.
    pub(super) fn note_crash(&mut self) {
        for armed in &mut self.outages {
            armed.in_recovery |= !armed.outage.has_begun();
        }
    }

    /// The path to the drive failed at an attempt to start the group, or may have failed.
    pub(super) fn failed_at_start(&self, drive: &SimDrive) -> bool {
        let of_starts = self.outages.iter().filter(|armed| armed.at_start || armed.in_recovery);
        of_starts.into_iter().any(|armed| armed.outage.has_begun() && armed.outage.is_of(drive))
    }

    /// Cancels outages that have not begun, and waits for the end of those that have.
    /// `only_of_all`: only those of more members than the group survives.
    pub(super) fn end_outages(&mut self, only_of_all: bool) {
        // If no outage is under way, do not wait: the machine may be stopped already.
        if self.call_off_outages(only_of_all).iter().any(|outage| !outage.is_over()) {
            self.sim.block_on(self.outages_end(only_of_all));
        }
    }

    /// As [`Run::end_outages`], where the machine may be stopped meanwhile.
    pub(super) async fn outages_end(&self, only_of_all: bool) {
        let ending = self.call_off_outages(only_of_all);
        while !ending.iter().all(Outage::is_over) {
            self.sim.env().sleep(TRY_AGAIN).await;
        }
    }

    fn call_off_outages(&self, only_of_all: bool) -> Vec<Outage> {
        let all = self.outages.iter().filter(|armed| armed.is_of_all || !only_of_all);
        let ending: Vec<Outage> = all.map(|armed| armed.outage.clone()).collect();
        ending.iter().for_each(Outage::call_off);
        ending
    }

    /// Starts the group. Repeats this while the path to its drives fails, as the daemon does.
    pub(super) fn start(&mut self, mut drives: Vec<SimDrive>, shards: usize) -> Group {
        drives.append(&mut self.disconnected);
        self.arm_due(&drives);
        let mut failed = Vec::new();
        while failed.len() < ATTEMPTS_MAX {
            let (disconnected, there): (Vec<SimDrive>, Vec<SimDrive>) =
                living(&drives).into_iter().partition(SimDrive::is_disconnected);
            let troubled = self.is_troubled();
            let pulled = self.pulled();
            let env = self.sim.env();
            let opened = self.sim.block_on(Group::try_open_over(env.clone(), there, self.ways.clone(), shards));
            let is_dead = self.pulled() > pulled;
            match opened {
                Ok(group) if !is_dead => {
                    for armed in self.outages.iter().filter(|armed| armed.at_start) {
                        armed.outage.call_off();
                    }
                    self.disconnected = disconnected;
                    return group;
                }
                Ok(group) => {
                    // The group was just started, and its drives are gone.
                    self.sim.block_on(group.abandon());
                    failed.push("its drives are gone".to_owned());
                }
                Err(error) => {
                    assert!(troubled, "the group can be assembled: {error}");
                    failed.push(error.to_string());
                }
            }
            self.tally.borrow_mut().unstarted += 1;
            let under_way: Vec<Outage> = self.outages.iter().map(|armed| armed.outage.clone()).collect();
            self.sim.block_on(async {
                env.sleep(TRY_AGAIN).await;
                while under_way.iter().any(Outage::is_under_way) {
                    env.sleep(TRY_AGAIN).await;
                }
            });
            drives = drives.iter().map(SimDrive::reopen).collect();
        }
        panic!("the group is not started in {ATTEMPTS_MAX} attempts: {failed:?}");
    }

    /// Brings back members that left because they were unreachable: by the old drive, or by a new
    /// one if no drive knows the slot any more. Says whether there was one.
    pub(super) fn reconnect_all(&mut self) -> bool {
        let mut was_one = false;
        let remote = self.setup.remote;
        for member in (0..usize::from(self.setup.shape.members)).filter(|&member| !remote.has(member)) {
            self.sim.block_on(self.group().jobs_end());
            let is_out = !self.group().state(member).takes_writes();
            if !is_out || self.ledger.is_lost(member) || !self.group().leader().status().spares.is_empty() {
                continue;
            }
            was_one = true;
            // The drive that was to be filled there before is not there any more.
            self.filling.retain(|&filling| filling != member);
            let drive = self.take_former(member).unwrap_or_else(|| new_drive(&self.sim, &self.setup, "n"));
            let identity = uuid(&mut self.rng);
            let group = self.group.as_mut().expect("there is a group between steps");
            let replaced = self.sim.block_on(async {
                let id = group.install(drive);
                group.leader().replace(MemberIndex(member as u16), id, identity).await
            });
            match replaced {
                Ok(()) => self.filling.push(member),
                // The preparation of the drive failed: try again.
                Err(JoinError::Block(_)) => {}
                Err(error) => panic!("the drive that was there fits: {error}"),
            }
        }
        was_one
    }

    /// Removes the drive that was last in a member's slot from its list.
    fn take_former(&mut self, member: usize) -> Option<SimDrive> {
        let group = self.group.as_mut().expect("there is a group between steps");
        let array = group.leader().shared().array;
        let slots = group.leader().shared().slots();
        let in_use: Vec<u32> = slots
            .filter(|(_, slot)| slot.state.takes_writes())
            .map(|(_, slot)| group.drives[usize::from(slot.drive.0)].index())
            .collect();
        let places = (0..group.drives.len()).filter(|place| !group.released.contains(place));
        let listed = places.map(|place| (Some(place), group.drives[place].clone()));
        let all = listed.chain(self.disconnected.iter().map(|drive| (None, drive.clone())));
        let was_it = |drive: &SimDrive| {
            let own = newest_superblock(drive).filter(|own| own.array == array)?;
            let is_free = !in_use.contains(&drive.index()) && !drive.is_failed() && !drive.is_mute();
            (is_free && own.role == Role::Member(member as u16)).then_some(own.epoch)
        };
        let known = all.filter_map(|(place, drive)| Some((was_it(&drive)?, place, drive)));
        let (_, place, drive) = known.max_by_key(|(epoch, ..)| *epoch)?;
        match place {
            Some(place) => group.released.push(place),
            None => self.disconnected.retain(|disconnected| disconnected.index() != drive.index()),
        }
        Some(drive.reopen())
    }
}

fn newest_superblock(drive: &SimDrive) -> Option<Superblock> {
    let copies = superblock_offsets(::drive::Drive::info(drive).size_bytes)?;
    let copies = copies.into_iter().filter_map(|at| Superblock::decode(&drive.read_raw(at, BLOCK as u64)).ok());
    copies.max_by_key(|copy| copy.epoch)
}

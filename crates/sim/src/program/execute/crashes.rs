//! Crashes and restarts in a program: the group ends, and is assembled again.

use format::BLOCK;

use super::{Run, living};
use crate::SimDrive;
use crate::engine::Group;
use crate::engine::history::{self, Loss, Request, perform};
use crate::program::CrashKind;
use crate::program::promise::Fault;

/// A pending crash.
pub(super) struct Cut {
    pub(super) kind: CrashKind,
    pub(super) lost: Vec<usize>,
    pub(super) again: Vec<u64>,
}

impl Run {
    /// The crash comes after this many more drive operations.
    pub(super) fn arm_crash(&mut self, after: u64, cut: Cut) {
        let degraded = (0..usize::from(self.setup.shape.members)).any(|member| self.ledger.is_lost(member));
        self.count(match cut.kind {
            CrashKind::Kill => Fault::Kill,
            CrashKind::PowerCut if degraded => Fault::PowerCutDegraded,
            CrashKind::PowerCut => Fault::PowerCut,
        });
        cut.lost.iter().for_each(|_| self.count(Fault::LostInPowerCut));
        self.sim.stop_after(after);
        self.cut = Some(cut);
    }

    /// The pending crash happens now, and the group is started again.
    pub(super) fn crash(&mut self) {
        let cut = self.cut.take().expect("there is a crash when the program says so");
        self.ledger.disarm();
        self.note_crash();
        self.notice();
        let lost: Vec<SimDrive> = cut.lost.iter().filter_map(|&member| self.drive(member)).collect();
        let group = self.group.take().expect("there is a group between steps");
        let shards = group.shards.len();
        let mut drives = match cut.kind {
            CrashKind::PowerCut => group.cut(&self.sim),
            CrashKind::Kill => group.kill(&self.sim),
        };
        self.leave_out_unfinished(&mut drives);
        lost.iter().for_each(SimDrive::fail);
        match cut.kind {
            CrashKind::PowerCut => self.history.borrow_mut().power_cut(),
            CrashKind::Kill => self.history.borrow_mut().killed(),
        }
        let mut losses = self.noticed.0.take();
        // Other lost members went without notice, or in the step that was interrupted.
        for member in (0..usize::from(self.setup.shape.members)).filter(|&member| self.ledger.is_lost(member)) {
            if losses.iter().all(|loss| loss.member != member) {
                losses.push(Loss::in_power_cut(member));
            }
        }
        self.tally.borrow_mut().crashes += 1;
        for &after in &cut.again {
            self.count(match cut.kind {
                CrashKind::PowerCut => Fault::PowerCutInRecovery,
                CrashKind::Kill => Fault::Kill,
            });
            self.tally.borrow_mut().crashes += 1;
            self.sim.stop_after(after);
            self.arm_due(&drives);
            let there: Vec<SimDrive> = living(&drives).into_iter().filter(|drive| !drive.is_disconnected()).collect();
            let (env, mut rng) = (self.sim.env(), self.rng.fork());
            let (troubled, pulled) = (self.is_troubled(), self.pulled());
            self.sim.try_block_on(async {
                let group = match Group::try_open_over(env, there, self.ways.clone(), shards).await {
                    Ok(group) => group,
                    Err(_) if troubled => return,
                    Err(error) => panic!("the group can be assembled: {error}"),
                };
                if self.excuse().is_empty() && self.pulled() == pulled {
                    let losses = self.with_those_disconnected(&group, &losses);
                    history::settle_with(&group, &self.history, &mut rng, &losses).await;
                }
            });
            match cut.kind {
                CrashKind::PowerCut => self.sim.power_cut(),
                CrashKind::Kill => self.sim.kill(),
            }
            drives = drives.iter().map(SimDrive::reopen).collect();
        }
        self.open(drives, shards, &losses, true);
    }

    fn open(&mut self, drives: Vec<SimDrive>, shards: usize, lost: &[Loss], settle: bool) {
        let group = self.start(drives, shards);
        self.tally.borrow_mut().recoveries += 1;
        if settle {
            self.end_outages(true);
            let lost = self.with_those_disconnected(&group, lost);
            let mut rng = self.rng.fork();
            self.sim.block_on(history::settle_with(&group, &self.history, &mut rng, &lost));
            // Blocks are lost and found in units of 4 KiB, for any sector size of the drives.
            let starts = self.history.borrow().unreadable();
            let mut starts: Vec<u64> = starts.into_iter().map(|start| start / BLOCK as u64 * BLOCK as u64).collect();
            starts.dedup();
            self.sim.block_on(async {
                for start in starts {
                    let write = Request::Write { fua: false };
                    let written = perform(group.leader(), &self.history, write, start, BLOCK as u64).await;
                    written.expect("a block that cannot be read can be written");
                    let read = perform(group.leader(), &self.history, Request::Read, start, BLOCK as u64).await;
                    read.expect("a block that was written can be read");
                }
            });
        }
        self.group = Some(group);
    }

    /// The losses, and the members that were unreachable when the group was assembled, or at an
    /// attempt to do so.
    fn with_those_disconnected(&self, group: &Group, losses: &[Loss]) -> Vec<Loss> {
        let mut losses = losses.to_vec();
        for member in
            (0..usize::from(self.setup.shape.members)).filter(|&member| self.ledger.may_be_disconnected(member))
        {
            let is_there = group.state(member).takes_writes();
            let was_disconnected = is_there && self.failed_at_start(group.member(member));
            if (!is_there || was_disconnected) && losses.iter().all(|loss| loss.member != member) {
                losses.push(Loss::in_power_cut(member));
            }
        }
        losses
    }

    pub(super) fn restart(&mut self, without: &[usize], shards: usize) {
        self.end_outages(true);
        let group = self.group.take().expect("there is a group between steps");
        let absent: Vec<(usize, u32)> = without
            .iter()
            .filter(|&&member| group.state(member).takes_writes())
            .map(|&member| (member, group.member(member).index()))
            .collect();
        let mut drives = self.sim.block_on(group.stop());
        self.history.borrow_mut().stopped();
        // No task of the old assembly may continue.
        self.sim.kill_tasks();
        self.leave_out_unfinished(&mut drives);
        let mut left = Vec::new();
        for drive in drives {
            match absent.iter().find(|(_, absent)| *absent == drive.index()) {
                Some((member, _)) => self.removed.push((*member, drive)),
                None => left.push(drive),
            }
        }
        self.open(left, shards, &[], false);
    }
}

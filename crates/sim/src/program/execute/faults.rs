//! Faults in a program, and their repair: faults of drives, mishaps on the path to targets, and new
//! drives for old ones.

use std::time::Duration;

use ::drive::Env;
use array::{Geometry, JoinError, MemberIndex};
use format::{BLOCK, MemberState};

use super::{Run, new_drive};
use crate::engine::history::{self, Request, perform};
use crate::engine::{look, uuid};
use crate::program::promise::Fault;
use crate::program::{Mishap, Silent};
use crate::{SimConnection, SimDrive, Way};

impl Run {
    pub(super) fn mishap(&mut self, member: usize, what: Mishap, after_us: u64, ms: u64) {
        self.count(what.fault());
        let (target, _) = self.targets[&member].clone();
        let (network, mut rng, env) = (self.sim.network(), self.rng.fork(), self.sim.env().between_machines());
        let (lasts, mishaps) = (Duration::from_millis(ms), self.mishaps.clone());
        mishaps.set(mishaps.get() + 1);
        // Independent of the state of the machine meanwhile.
        env.clone().spawn(async move {
            env.sleep(Duration::from_micros(after_us)).await;
            let addresses = target.addresses();
            let connections: Vec<SimConnection> =
                addresses.iter().flat_map(|address| network.connections(address)).collect();
            match what {
                Mishap::Reset => connections.iter().for_each(SimConnection::reset),
                Mishap::TimeOut => connections.iter().for_each(SimConnection::time_out),
                Mishap::Stall(way) => {
                    let mut stall = |connection: &SimConnection| {
                        connection.stall(way, Duration::from_micros(rng.below(ms * 1000)));
                    };
                    connections.iter().for_each(&mut stall);
                }
                Mishap::Split { to_target, to_host } => {
                    let cut: Vec<Way> = [(to_target, Way::ToTarget), (to_host, Way::ToHost)]
                        .into_iter()
                        .filter_map(|(is_cut, way)| is_cut.then_some(way))
                        .collect();
                    // One of several paths, or all.
                    let hit = if rng.chance(1, 2) { addresses } else { &addresses[..1] };
                    hit.iter().for_each(|address| cut.iter().for_each(|way| network.cut(address, *way)));
                    env.sleep(lasts).await;
                    hit.iter().for_each(|address| network.heal_all(address));
                }
                Mishap::TargetPower => {
                    target.power_cut(&mut rng);
                    env.sleep(lasts).await;
                    target.start();
                }
                Mishap::TargetKill => {
                    target.kill();
                    env.sleep(lasts).await;
                    target.start();
                }
            }
            mishaps.set(mishaps.get() - 1);
        });
    }

    /// Waits until every target can be reached, and brings back members that left because they were
    /// unreachable. Says whether there was one.
    pub(super) fn bring_back_remote(&mut self) -> bool {
        let mishaps = self.mishaps.clone();
        if self.targets.is_empty() {
            return false;
        }
        let Some(group) = self.group.as_mut() else { return false };
        let (mut rng, mut was_one, network) = (self.rng.fork(), false, self.sim.network());
        let targets = &self.targets;
        self.sim.block_on(async {
            while mishaps.get() > 0 {
                group.env.sleep(Duration::from_secs(1)).await;
            }
            // Two mishaps may have overlapped.
            for (target, _) in targets.values() {
                target.start();
                target.addresses().iter().for_each(|address| network.heal_all(address));
            }
            group.until_reached().await;
            group.jobs_end().await;
            for (&member, (_, drive)) in targets {
                while !group.state(member).takes_writes() {
                    was_one = true;
                    if group.bring_back(member, drive, &mut rng).await {
                        break;
                    }
                    group.env.sleep(Duration::from_secs(1)).await;
                }
            }
        });
        was_one
    }

    pub(super) fn media(&mut self, member: usize, start: u64, len: u64) {
        self.count(Fault::Media);
        self.damaged = true;
        let group = self.group();
        let Some(drive) = self.drive(member) else { return };
        let geometry = &group.leader().shared().geometry;
        let data_len = geometry.bands * geometry.stripe_group_bytes;
        let start = start % data_len;
        let end = (start + len.max(1)).min(data_len);
        drive.media_error(geometry.data_start + start..geometry.data_start + end);
    }

    pub(super) fn silent(&mut self, member: usize, fault: Silent, start: u64, len: u64) {
        self.count(Fault::Silent);
        self.damaged = true;
        self.end_outages(true);
        if !self.setup.protection.has_checksums() {
            // One at a time, with no other fault.
            self.settle();
        }
        let (start, len) = self.fit(start, len);
        let group = self.group();
        let geometry = group.leader().shared().geometry.clone();
        let Some(drive) = self.drive(member) else { return };
        let place = geometry.place(start);
        let here = geometry.drive_offset(place.stripe_group, place.offset);
        match fault {
            Silent::Rot => {}
            Silent::LostWrite => drive.lose_writes(1),
            Silent::Misdirected => {
                if let Some(elsewhere) = self.elsewhere(&geometry, start, len) {
                    drive.misdirect_next_write(elsewhere);
                }
            }
        }
        self.sim.block_on(async {
            let write = Request::Write { fua: false };
            perform(group.leader(), &self.history, write, start, len).await.expect("nothing is seen to be wrong");
        });
        match fault {
            Silent::Rot => drive.corrupt(here, geometry.sector_bytes),
            Silent::LostWrite => drive.lose_writes(0),
            Silent::Misdirected => drive.direct_writes(),
        }
        if !self.setup.protection.has_checksums() {
            self.scrub();
        }
        // The lost data may have been a part of the log or of the checksums: after a scrub they are
        // not needed.
        let flushed = self.sim.block_on(perform(self.group().leader(), &self.history, Request::Flush, 0, 0));
        flushed.expect("nothing is seen to be wrong");
        let mut rng = self.rng.fork();
        self.sim.block_on(history::verify_latest(self.group(), &self.history, &mut rng));
    }

    /// The offset at which a misdirected write to a member lands while these bytes of the group are
    /// written. Without checksums the damage there is unnoticed until the next scrub, so the offset
    /// is in none of the rows that are computed from at the same time.
    fn elsewhere(&self, geometry: &Geometry, start: u64, len: u64) -> Option<u64> {
        const TRIES: usize = 50;
        let mut rng = self.rng.clone();
        let lands = || {
            geometry.data_start
                + rng.below(geometry.bands * geometry.stripe_group_bytes / geometry.sector_bytes)
                    * geometry.sector_bytes
        };
        let mut places = std::iter::repeat_with(lands).take(TRIES);
        if self.setup.protection.has_checksums() {
            return places.next();
        }
        // No operation is longer, neither a frame of the log with its head, nor a allocation chunk
        // that is written for the first time.
        let reach = len.max(geometry.chunk_bytes) + 4 * BLOCK as u64;
        let stripe = geometry.data as u64 * geometry.strip_bytes;
        let stripes = (start / stripe..(start + len).div_ceil(stripe)).map(|index| geometry.place(index * stripe));
        let rows: Vec<u64> = stripes.map(|place| geometry.drive_offset(place.stripe_group, place.offset)).collect();
        places.find(|at| rows.iter().all(|row| at + reach <= *row || row + geometry.strip_bytes <= *at))
    }

    pub(super) fn replace(&mut self, member: usize, spare: bool) {
        self.end_outages(true);
        let name = format!("r{}", self.group().drives.len());
        let fresh = new_drive(&self.sim, &self.setup, &name);
        let drive = match self.old_drive(member).filter(|_| !spare && self.rng.chance(1, 2)) {
            // The old drive, without the content of its cache. The list has a drive once.
            Some(place) => {
                let old = std::mem::replace(&mut self.group.as_mut().expect("it has a drive").drives[place], fresh);
                old.fail();
                old.power_cut(&mut self.rng.fork());
                old.revive()
            }
            None => fresh,
        };
        let identity = uuid(&mut self.rng);
        let (index, troubled) = (MemberIndex(member as u16), self.is_troubled());
        let group = self.group.as_mut().expect("there is a group between steps");
        self.sim.block_on(async {
            if group.state(member).takes_writes() {
                // The fault that was to fail it has not happened yet.
                let state = group.leader().fail_member(index).await;
                state.expect("no more members are lost than the level survives");
            }
            let id = group.install(drive);
            if spare && group.state(member) == MemberState::Faulty {
                group.leader().add_spare(id, identity).await.expect("the drive fits");
            } else if group.state(member) != MemberState::InSync {
                let replaced = group.leader().replace(index, id, identity).await;
                // A spare that waited since an earlier step may have been faster.
                let is_taken = matches!(replaced, Ok(()) | Err(JoinError::Busy(_)));
                // A path that fails meanwhile does not mean that the drive does not fit. It is
                // tried again when everything is settled.
                let is_excused = troubled && matches!(replaced, Err(JoinError::Block(_)));
                assert!(is_taken || is_excused, "{replaced:?}");
            }
        });
        self.filling.push(member);
    }

    /// Begins to copy a member to a new drive.
    pub(super) fn exchange(&mut self, member: usize) {
        let drive = new_drive(&self.sim, &self.setup, &format!("x{}", self.group().drives.len()));
        let (identity, troubled) = (uuid(&mut self.rng), self.is_troubled());
        let group = self.group.as_mut().expect("there is a group between steps");
        if group.state(member) != MemberState::InSync {
            return;
        }
        self.exchanged = Some(drive.index());
        let begun = self.sim.block_on(async {
            let id = group.install(drive);
            group.leader().replace(MemberIndex(member as u16), id, identity).await
        });
        assert!(begun.is_ok() || troubled, "{begun:?}");
    }

    /// An unfinished copy is an unrequested spare: it is left out of the next assembly.
    pub(super) fn leave_out_unfinished(&mut self, drives: &mut Vec<SimDrive>) {
        let Some(exchanged) = self.exchanged.take() else { return };
        let Ok(assembly) = look(&self.sim, drives) else { return };
        if assembly.spares.iter().any(|&spare| drives[spare].index() == exchanged) {
            drives.retain(|drive| drive.index() != exchanged);
        }
    }

    pub(super) fn bring_back(&mut self, member: usize) {
        self.count(Fault::StaleReturn);
        let removed: Vec<usize> = (0..self.removed.len()).filter(|&index| self.removed[index].0 == member).collect();
        for index in removed.into_iter().rev() {
            let (_, drive) = self.removed.remove(index);
            let group = self.group.as_mut().expect("there is a group between steps");
            group.install(drive.revive());
        }
        // Drives that died or fell silent are still in the list, and are used again if they live.
        let group = self.group.as_mut().expect("there is a group between steps");
        group.drives.iter().for_each(SimDrive::unmute);
        group.drives.iter_mut().filter(|drive| drive.is_failed()).for_each(|drive| *drive = drive.revive());
    }
}

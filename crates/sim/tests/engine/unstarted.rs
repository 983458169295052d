//! Groups that cannot be started: their drives fail meanwhile, or no drive can read a structure
//! that the group needs.

use std::time::Duration;

use array::AssembleError;
use drive::{DriveError, Env};
use format::log::{LOST_SLOT_BYTES, LOST_SLOTS, lost_slot_offset};
use format::{
    BLOCK, CATALOGUE_SLOTS, Layout, MAP_SLOTS, Shape, catalogue_slot_bytes, catalogue_slot_offset, map_slot_offset,
};
use sim::{Latency, OpKind, Rng, Sim, SimDrive};

use crate::group::*;
use crate::history::{History, Loss, Shared, settle_with, verify_latest, work_for_a_crash};

/// A group whose power was cut in the middle of its work.
fn crashed(sim: &Sim, shape: Shape, rng: &mut Rng) -> (Vec<SimDrive>, Shared) {
    let group = Group::create(sim, shape, new_drives(sim, usize::from(shape.members), 640 * KIB, 512), 2);
    let history = History::shared(&group);
    sim.stop_after(260);
    let mut fork = rng.fork();
    let end = sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, 60, 5));
    assert!(end.is_none(), "{shape}: the crash comes in the middle of the work");
    (group.cut(sim), history)
}

/// Reads everything after the crash, at each start of the group. Data that one member lacked while
/// the others were still there may be lost.
fn check(sim: &Sim, shape: Shape, drives: Vec<SimDrive>, history: &Shared, rng: &mut Rng) {
    let group = Group::open(sim, drives, 2);
    let lost: Vec<Loss> = (0..usize::from(shape.members)).map(Loss::in_power_cut).collect();
    sim.block_on(settle_with(&group, history, rng, &lost));
    if shape.survives() > 0 && group.all_in_sync() {
        assert_eq!(sim.block_on(group.differences()), 0, "{shape}: the parity fits");
    }
    let drives = sim.block_on(group.stop());
    history.borrow_mut().stopped();
    sim.kill_tasks();
    let group = Group::open(sim, drives, 1);
    sim.block_on(verify_latest(&group, history, rng));
}

/// All cables come off during each attempt to start a group, later every time. Returns how often an
/// attempt failed when the group was about to start.
fn falls_apart(shape: Shape, seed: u64) -> u64 {
    let sim = Sim::new(seed);
    let mut rng = sim.rng();
    let (mut drives, history) = crashed(&sim, shape, &mut rng);
    let (mut after, mut unstarted) = (0, 0);
    let group = loop {
        drives.iter().for_each(|drive| drive.fail_after(after + rng.below(12)));
        match sim.block_on(Group::try_open(sim.env(), drives.clone(), 2)) {
            Ok(group) => break group,
            Err(error) => unstarted += u64::from(matches!(error, AssembleError::Block(_))),
        }
        drives.iter().for_each(|drive| _ = drive.take_counts());
        sim.run_until_idle();
        let written: u64 = drives.iter().map(|drive| drive.take_counts().writes).sum();
        assert_eq!(written, 0, "{shape}: something goes on writing");
        assert!(drives.iter().all(|drive| drive.in_flight() == 0), "{shape}: something is in flight");
        drives = drives.iter().map(SimDrive::revive).collect();
        after += 1;
        assert!(after < 2000, "{shape}: it is never started");
    };
    let drives: Vec<SimDrive> = group.drives.iter().map(SimDrive::revive).collect();
    drop(group);
    sim.kill_tasks();
    check(&sim, shape, drives, &history, &mut rng);
    unstarted
}

#[test]
fn a_group_that_could_not_be_started_leaves_its_drives_as_a_crash_does_and_can_be_tried_again() {
    let mut unstarted = 0;
    for seed in seeds(3) {
        unstarted += every_level(8 * KIB).into_iter().map(|shape| falls_apart(shape, seed)).sum::<u64>();
    }
    assert!(unstarted > 0, "all of them failed before they were about to start");
}

#[test]
fn a_moment_without_any_drive_while_a_group_is_started_costs_nothing_that_was_acknowledged() {
    let mut refused = 0;
    for seed in seeds(4) {
        for shape in every_level(8 * KIB) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let (drives, history) = crashed(&sim, shape, &mut rng);
            drives.iter().for_each(|drive| drive.set_latency(Latency::between(10_000, 100_000)));
            let group = loop {
                // The times have any magnitude, so that some are as short as an operation.
                let (begin, end) = (rng.range(16..24), rng.range(12..20));
                let (begin, end) = (rng.below(1 << begin), rng.below(1 << end));
                let errors = if rng.chance(1, 2) { 0 } else { rng.range(2..200) };
                let mut opened = None;
                let env = sim.env();
                sim.block_on(both(
                    async { opened = Some(Group::try_open(sim.env(), drives.clone(), 2).await) },
                    async {
                        env.sleep(Duration::from_nanos(begin)).await;
                        match errors {
                            0 => drives.iter().for_each(SimDrive::fail),
                            // The path fails: reads end with errors, after some time.
                            _ => drives.iter().for_each(|drive| {
                                let error = DriveError::Media { offset: 0, len: 4096 };
                                (0..errors).for_each(|_| drive.error_next(OpKind::Read, error.clone()));
                            }),
                        }
                        env.sleep(Duration::from_nanos(end)).await;
                        drives.iter().for_each(|drive| _ = drive.revive());
                    },
                ));
                match opened.expect("it has an end") {
                    Ok(group) => break group,
                    Err(_) => refused += 1,
                }
            };
            drop(group);
            sim.kill_tasks();
            check(&sim, shape, drives, &history, &mut rng);
        }
    }
    assert!(refused > 0, "no attempt met it");
}

/// The place of a structure on a member.
type RegionOf = fn(&Layout) -> std::ops::Range<u64>;

const STRUCTURES: [(&str, RegionOf); 3] = [
    ("allocation map", |layout| {
        let start = map_slot_offset(layout, 0, 0);
        start..start + MAP_SLOTS * BLOCK as u64
    }),
    ("list of lost blocks", |layout| {
        lost_slot_offset(layout, 0)..lost_slot_offset(layout, LOST_SLOTS - 1) + LOST_SLOT_BYTES as u64
    }),
    ("catalogue of volumes", |layout| {
        catalogue_slot_offset(layout, 0)
            ..catalogue_slot_offset(layout, CATALOGUE_SLOTS - 1) + catalogue_slot_bytes(layout)
    }),
];

#[test]
fn what_no_member_can_read_stops_the_assembly_and_is_not_taken_for_nothing() {
    for shape in every_level(8 * KIB) {
        for (name, place) in STRUCTURES {
            let sim = Sim::new(7);
            let mut rng = sim.rng();
            let members = usize::from(shape.members);
            let group = Group::create(&sim, shape, new_drives(&sim, members, 640 * KIB, 512), 2);
            let mut model = Model::new(group.size());
            sim.block_on(work(&group, &mut model, &mut rng, 10, 4));
            let drives = sim.block_on(group.stop());
            sim.kill_tasks();
            // One member that can read the structure is enough.
            let able = rng.below(members as u64) as usize;
            let damage = |drive: &SimDrive| drive.media_error(place(&superblock(drive).layout));
            drives.iter().enumerate().filter(|(member, _)| *member != able).for_each(|(_, drive)| damage(drive));
            let group = Group::open(&sim, drives, 2);
            sim.block_on(verify(&group, &model, &mut rng));
            let drives = sim.block_on(group.stop());
            sim.kill_tasks();
            drives.iter().for_each(damage);
            match sim.block_on(Group::try_open(sim.env(), drives, 2)) {
                // Without a log no range is ever listed.
                Ok(_) if shape.survives() == 0 && name == "list of lost blocks" => {}
                Err(AssembleError::Unreadable(what)) => assert_eq!(what, name, "{shape}"),
                Err(other) => panic!("{shape}: {other}"),
                Ok(_) => panic!("{shape}: started without its {name}"),
            }
        }
    }
}

//! Members that take operations and never answer them, while their group is assembled.

use array::{AssembleError, MemberIndex, Refusal, load};
use drive::{Drive, DriveError, Nanos};
use format::{Level, MemberState, Shape};
use sim::{Rng, Sim, SimDrive};

use crate::group::*;
use crate::history::{self, History, Loss, Request, perform, verify_latest, work_for_a_crash};

const LIMIT: Nanos = 30_000_000_000;

const SILENT: Refusal = Refusal::Drive(DriveError::Silent { seconds: 30 });

/// A group with some data, stopped in order.
fn stopped(sim: &Sim, shape: Shape, spares: usize, rng: &mut Rng) -> (Vec<SimDrive>, Model) {
    let drives = new_drives(sim, usize::from(shape.members) + spares, 640 * KIB, 512);
    let group = Group::create(sim, shape, drives, 2);
    let mut model = Model::new(group.size());
    sim.block_on(work(&group, &mut model, rng, 20, 4));
    (sim.block_on(group.stop()), model)
}

fn survivable() -> impl Iterator<Item = Shape> {
    every_level(8 * KIB).into_iter().filter(|shape| shape.survives() > 0)
}

/// As many members of a set as the level can lose.
fn any_loss(shape: Shape, rng: &mut Rng) -> Vec<usize> {
    let mut members: Vec<usize> = (0..shape.members_per_set()).collect();
    rng.shuffle(&mut members);
    members.truncate(shape.survives());
    members
}

#[test]
fn members_that_never_answer_are_left_out_of_the_assembly_and_named_with_the_reason() {
    for shape in survivable() {
        let sim = Sim::new(1);
        let mut rng = sim.rng();
        let (drives, mut model) = stopped(&sim, shape, 0, &mut rng);
        let silent = any_loss(shape, &mut rng);
        silent.iter().for_each(|&member| drives[member].mute_after(0));
        let began = sim.now();
        let group = Group::open(&sim, drives, 2);
        assert!(sim.now() - began < LIMIT + LIMIT / 10, "{shape}: all of them are waited for together");
        let mut named: Vec<usize> = group.left_out.iter().map(|(index, _)| *index).collect();
        named.sort_unstable();
        assert!(group.left_out.iter().all(|(_, why)| *why == SILENT), "{shape}: {:?}", group.left_out);
        assert!(
            silent.iter().all(|member| named.contains(member)) && named.len() == silent.len(),
            "{shape}: {named:?}"
        );
        sim.block_on(async {
            verify(&group, &model, &mut rng).await;
            work(&group, &mut model, &mut rng, 10, 4).await;
        });
        // They answer, late.
        group.drives.iter().for_each(SimDrive::unmute);
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 10, 4).await;
            verify(&group, &model, &mut rng).await;
        });
        let drives = sim.block_on(group.stop());
        let group = Group::open(&sim, drives, 2);
        let is_stale = |(index, why): &(usize, Refusal)| silent.contains(index) && matches!(why, Refusal::Stale { .. });
        assert!(group.left_out.iter().all(is_stale), "{shape}: they missed writes, {:?}", group.left_out);
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

/// How a group was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Stopped,
    PowerCut,
    Killed,
}

/// Leaves a group, and assembles it while `member` falls silent after `after` operations. Returns
/// how many operations the member got meanwhile.
fn falls_silent(shape: Shape, left: Left, member: usize, after: Option<u64>) -> u64 {
    let sim = Sim::new(u64::from(shape.members));
    let mut rng = sim.rng();
    let group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), 640 * KIB, 512), 2);
    let history = History::shared(&group);
    if left != Left::Stopped {
        sim.stop_after(260);
    }
    let mut fork = rng.fork();
    let rounds = if left == Left::Stopped { 8 } else { 60 };
    let end = sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, rounds, 5));
    assert_eq!(end.is_some(), left == Left::Stopped, "{shape}: the crash comes in the middle of the work");
    let drives = match left {
        Left::Stopped => {
            let drives = sim.block_on(group.stop());
            history.borrow_mut().stopped();
            sim.kill_tasks();
            drives
        }
        Left::PowerCut => group.cut(&sim),
        Left::Killed => {
            history.borrow_mut().killed();
            group.kill(&sim)
        }
    };
    let silent = drives[member].clone();
    silent.take_counts();
    if let Some(after) = after {
        silent.mute_after(after);
    }
    let began = sim.now();
    let mut group = Group::open(&sim, drives, 2);
    let (took, asked) = (sim.now() - began, silent.take_counts());
    let what = format!("{shape}, {left:?}, member {member} silent after {after:?}");
    // The check of what is in flight runs at an interval.
    let limit = if silent.is_mute() { LIMIT + LIMIT / 10 } else { LIMIT / 10 };
    assert!(took < limit, "{what}: {} ms", took / 1_000_000);
    let is_in = group.state(member) == MemberState::InSync;
    assert_eq!(is_in, group.left_out.is_empty() && group.state(member) != MemberState::Faulty, "{what}");
    assert!(
        group.left_out.iter().all(|(index, why)| *index == member && *why == SILENT),
        "{what}: {:?}",
        group.left_out
    );
    let size = group.size();
    sim.block_on(async {
        history::settle_with(&group, &history, &mut rng, &[Loss::in_power_cut(member)]).await;
        perform(group.leader(), &history, Request::Write { fua: false }, 0, size / 2).await.expect("writable");
        silent.unmute();
        perform(group.leader(), &history, Request::Write { fua: false }, size / 2, size / 2).await.expect("writable");
        verify_latest(&group, &history, &mut rng).await;
    });
    let drives = sim.block_on(group.stop());
    history.borrow_mut().stopped();
    sim.kill_tasks();
    group = Group::open(&sim, drives, 1);
    sim.block_on(async {
        verify_latest(&group, &history, &mut rng).await;
        if !group.all_in_sync() {
            let id = group.install(SimDrive::new(&sim.env(), "new", 640 * KIB, 512));
            let replaced = group.leader().replace(MemberIndex(member as u16), id, uuid(&mut rng)).await;
            replaced.expect("the drive fits");
        }
        assert_eq!(group.differences().await, 0, "{what}");
        verify_latest(&group, &history, &mut rng).await;
    });
    asked.reads + asked.writes + asked.flushes + asked.zeroes + asked.discards
}

#[test]
fn a_member_may_fall_silent_at_any_operation_of_an_assembly() {
    let shapes = [shape(Level::Raid1, 2, 64 * KIB), shape(Level::Raid5, 3, 4 * KIB), shape(Level::Raid6, 4, 16 * KIB)];
    for shape in shapes {
        for left in [Left::Stopped, Left::PowerCut, Left::Killed] {
            let asked = falls_silent(shape, left, 1, None);
            assert!(asked >= if left == Left::Stopped { 6 } else { 18 }, "{shape}, {left:?}: {asked} operations");
            for after in 0..=asked {
                falls_silent(shape, left, 1, Some(after));
            }
        }
    }
}

#[test]
fn more_silent_members_than_the_level_survives_are_an_error_that_names_them_and_harm_nothing() {
    for shape in survivable() {
        let sim = Sim::new(2);
        let mut rng = sim.rng();
        let (drives, model) = stopped(&sim, shape, 0, &mut rng);
        let mut silent = any_loss(shape, &mut rng);
        silent.extend((0..shape.members_per_set()).find(|member| !silent.contains(member)));
        silent.iter().for_each(|&member| drives[member].mute_after(0));
        let began = sim.now();
        let error = look(&sim, &drives).expect_err("they are too many").to_string();
        assert!(sim.now() - began < LIMIT + LIMIT / 10, "{shape}");
        for &member in &silent {
            let names_it = format!("{}: the drive has not answered for 30 s", drives[member].info().name);
            assert!(error.contains(&names_it), "{shape}: {error}");
        }
        drives.iter().for_each(SimDrive::unmute);
        // One member after the other: the group survives the loss of all but the last.
        let assembly = look(&sim, &drives).expect("all members are there");
        silent.iter().for_each(|&member| drives[member].mute_after(0));
        let (env, members) = (sim.env(), in_machine(&drives));
        let taken_over = load(&env, &assembly, &members, None, Box::new(|_| ()));
        let Err(AssembleError::TooFew { why, .. }) = sim.block_on(taken_over).map(drop) else { panic!("{shape}") };
        assert!(why.contains("has not answered"), "{shape}: {why}");
        drives.iter().for_each(SimDrive::unmute);
        let group = Group::open(&sim, drives, 1);
        assert!(group.all_in_sync(), "{shape}");
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

#[test]
fn a_spare_that_never_answers_is_not_waited_for_and_stays_a_spare() {
    let sim = Sim::new(3);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid5, 3, 8 * KIB);
    let (drives, model) = stopped(&sim, shape, 1, &mut rng);
    // The spare falls silent when its superblock is first read, and when it is identified.
    for after in [0, 2] {
        drives[3].mute_after(after);
        let began = sim.now();
        let group = Group::open(&sim, drives.clone(), 1);
        assert!(sim.now() - began < LIMIT + LIMIT / 10);
        assert_eq!((group.left_out.as_slice(), group.leader().status().spares.len()), (&[(3, SILENT)][..], 0));
        sim.block_on(async {
            verify(&group, &model, &mut rng).await;
            group.leader().set_catalogue(group.leader().catalogue()).await.expect("it fits");
        });
        sim.block_on(group.stop());
        drives[3].unmute();
        let group = Group::open(&sim, drives.clone(), 1);
        assert_eq!((group.left_out.len(), group.leader().status().spares.len()), (0, 1));
        sim.block_on(group.stop());
    }
}

#[test]
fn a_superblock_one_of_whose_copies_is_never_answered_is_not_believed() {
    // The drive may be the newest, and it would not answer the next operation either.
    let sim = Sim::new(4);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 4, 8 * KIB);
    let (drives, _) = stopped(&sim, shape, 0, &mut rng);
    drives[0].mute_after(1);
    let assembly = look(&sim, &drives).expect("three are there");
    assert_eq!((assembly.members[0], assembly.refused), (None, vec![(0, SILENT)]));
}

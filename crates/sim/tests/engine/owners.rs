//! Stripe groups change the shards that own them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use array::{MemberIndex, Owners};
use drive::{Buf, Env, WriteZeroes, join_all};
use format::{Level, Shape};
use sim::{Latency, Rng, Sim};

use crate::crash::{check, check_redundancy};
use crate::group::*;
use crate::history::{History, work_for_a_crash};

fn shapes() -> Vec<Shape> {
    vec![
        shape(Level::Raid0, 3, 8 * KIB),
        shape(Level::Raid10, 4, 4 * KIB),
        shape(Level::Raid5, 3, 4 * KIB),
        shape(Level::Raid6, 4, 16 * KIB),
        shape(Level::Raid7, 6, 8 * KIB),
        shape(Level::Raid50, 6, 4 * KIB),
    ]
}

/// Random owners among a group's shards.
fn any_owners(rng: &mut Rng, shards: usize) -> Owners {
    Owners { first: rng.index(shards), count: 1 + rng.index(shards), run: 1 + rng.below(3) }
}

/// Changes the owners of stripe groups again and again while the group runs. Counts the changes.
/// The group may get an intent log at some time: the logs of all owners become shorter then.
fn keep_changing(group: &Group, rng: &mut Rng, changes: Rc<Cell<usize>>, adds_intent_log: bool) {
    let (leader, env, mut rng) = (group.leader().clone(), group.env.clone(), rng.fork());
    let shards = group.shards.len();
    env.clone().spawn(async move {
        loop {
            env.sleep(Duration::from_micros(rng.below(2000))).await;
            if leader.shared().is_stopped() {
                return;
            }
            if adds_intent_log && rng.chance(1, 8) {
                leader.add_intent_log().await.expect("nothing but the power fails");
            }
            let before = leader.owners();
            let changed = leader.own(any_owners(&mut rng, shards)).await.expect("nothing but the power fails");
            changes.set(changes.get() + usize::from(changed && leader.owners() != before));
        }
    });
}

#[test]
fn stripe_groups_that_change_their_owners_under_load_lose_nothing_whenever_the_power_fails() {
    let changes = Rc::new(Cell::new(0));
    for seed in seeds(150) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes = shapes();
        let shape = *rng.pick(&shapes);
        let drives = new_drives(&sim, usize::from(shape.members), MIB, *rng.pick(&[512, 4096]));
        let mut group = Group::create(&sim, shape, drives, 2 + rng.index(3));
        let history = History::shared(&group);
        for _ in 0..rng.range(1..4) {
            keep_changing(&group, &mut rng, changes.clone(), seed % 2 == 1);
            sim.stop_after(rng.below(1200));
            let (rounds, width) = (1 + rng.index(16), 1 + rng.index(8));
            let mut fork = rng.fork();
            sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, rounds, width));
            group = group.power_cut(&sim);
            check(&sim, &group, &history, shape, &mut rng);
        }
        check_redundancy(&sim, group, &history, shape, &mut rng);
    }
    assert!(changes.get() > 100, "{} changes show nothing", changes.get());
}

#[test]
fn a_crash_at_every_point_of_a_change_of_owners_or_of_logs_keeps_what_was_promised() {
    for (number, &shape) in shapes()[1..4].iter().enumerate() {
        let run = |stop: Option<u64>| {
            let sim = Sim::new(number as u64);
            let mut rng = sim.rng();
            let group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), MIB, 4096), 3);
            let history = History::shared(&group);
            let mut fork = rng.fork();
            sim.block_on(work_for_a_crash(&group, &history, &mut fork, 3, 6));
            let before = sim.ops_done();
            if let Some(stop) = stop {
                sim.stop_after(stop);
            }
            sim.try_block_on(async {
                let leader = group.leader();
                assert_eq!(leader.own(Owners { first: 1, count: 1, run: 1 }).await, Ok(true));
                work_for_a_crash(&group, &history, &mut fork, 1, 4).await;
                assert_eq!(leader.add_intent_log().await, Ok(true));
                let intents = leader.intent_log(1, (0, 1), 1).expect("there is room");
                intents.append(vec![0xFF; 100], Vec::new(), false).await.expect("nothing but the power fails");
                work_for_a_crash(&group, &history, &mut fork, 1, 4).await;
                assert_eq!(leader.own(Owners { first: 2, count: 2, run: 2 }).await, Ok(true));
                work_for_a_crash(&group, &history, &mut fork, 1, 4).await;
            });
            let ops = sim.ops_done() - before;
            if stop.is_some() {
                let group = group.power_cut(&sim);
                check(&sim, &group, &history, shape, &mut rng);
                check_redundancy(&sim, group, &history, shape, &mut rng);
            }
            ops
        };
        let ops = run(None);
        for stop in 0..=ops {
            run(Some(stop));
        }
    }
}

#[test]
fn a_rebuild_knows_what_it_has_done_when_stripe_groups_change_their_owners() {
    let changes = Rc::new(Cell::new(0));
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid5, 4, 4 * KIB);
        let mut group = Group::create(&sim, shape, new_drives(&sim, 4, 2 * MIB, 512), 3);
        let history = History::shared(&group);
        let drive = new_drives(&sim, 1, 2 * MIB, 512).remove(0);
        sim.block_on(async {
            let zeroes = WriteZeroes { keep_allocated: true, ..WriteZeroes::default() };
            group.leader().write_zeroes(0, group.size(), zeroes).await.expect("writable");
            group.leader().fail_member(MemberIndex(1)).await.expect("one may be lost");
            let drive = group.install(drive);
            group.leader().replace(MemberIndex(1), drive, uuid(&mut rng)).await.expect("it fits");
            keep_changing(&group, &mut rng, changes.clone(), false);
            work_for_a_crash(&group, &history, &mut rng, 12, 8).await;
            group.jobs_end().await;
            assert_eq!(group.differences().await, 0, "what was written meanwhile is on the new drive, too");
        });
    }
    assert!(changes.get() > 100, "{} changes show nothing", changes.get());
}

#[test]
fn fewer_owners_write_fewer_frames_for_the_same_load() {
    let shape = shape(Level::Raid6, 6, 16 * KIB);
    let writes_of = |owners: Owners| {
        let sim = Sim::new(7);
        let group = Group::create(&sim, shape, new_drives(&sim, 6, 8 * MIB, 4096), 4);
        group.drives.iter().for_each(|drive| drive.set_latency(Latency::IMMEDIATE));
        sim.block_on(async {
            for at in (0..group.size()).step_by(MIB as usize) {
                let len = MIB.min(group.size() - at);
                group.leader().write(at, Buf::from(vec![1; len as usize]), false).await.expect("writable");
            }
            assert_eq!(group.leader().own(owners).await, Ok(true));
            group.take_counts();
            for round in 0..8u64 {
                let stripe_groups = group.size() / (64 * KIB);
                let write = |index: u64| {
                    let at = (index * 7 + round * 3) % stripe_groups * (64 * KIB) + round * 4 * KIB;
                    group.leader().write(at, Buf::from(vec![2; 4096]), false)
                };
                join_all((0..16).map(write)).await.into_iter().for_each(|written| written.expect("writable"));
            }
            group.take_counts().writes
        })
    };
    let [all, one] = [Owners::all(4), Owners { first: 0, count: 1, run: 1 }].map(writes_of);
    assert!(one * 5 < all * 4, "{one} writes of drives with one owner, {all} with four");
}

#[test]
fn a_large_write_goes_to_the_owner_of_its_run_and_needs_one_frame_on_each_member() {
    let shape = shape(Level::Raid6, 6, 16 * KIB);
    let frames_of = |run: u64| {
        let sim = Sim::new(7);
        let group = Group::create(&sim, shape, new_drives(&sim, 6, 64 * MIB, 4096), 4);
        let geometry = &group.leader().shared().geometry;
        let (bytes, rows) = (
            4 * geometry.stripe_group_bytes * geometry.data as u64,
            4 * geometry.stripe_group_bytes / geometry.strip_bytes,
        );
        sim.block_on(async {
            let write = async |byte| {
                let written = group.leader().write(0, Buf::from(vec![byte; bytes as usize]), false);
                written.await.expect("writable");
            };
            write(1).await;
            assert_eq!(group.leader().own(Owners { run, ..Owners::all(4) }).await, Ok(true));
            group.take_counts();
            write(2).await;
            group.take_counts().writes - rows * geometry.strips() as u64
        })
    };
    assert_eq!((frames_of(1), frames_of(4)), (12, 6), "four stripe groups, each of another owner or all of one");
}

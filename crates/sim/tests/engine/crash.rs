//! The power fails at any moment, with all members there.

use std::time::Duration;

use array::{MemberIndex, ScrubMode};
use drive::{Buf, BufMut, DriveError, Env};
use format::{Catalogue, CrashSafety, Level, Shape};
use sim::{OpKind, Rng, Sim, SimDrive};

use crate::group::*;
use crate::history::{History, Shared, settle, verify_latest, work_for_a_crash};

fn small_shapes() -> Vec<Shape> {
    vec![
        shape(Level::Raid0, 3, 8 * KIB),
        shape(Level::Raid1, 2, 64 * KIB),
        shape(Level::Raid1, 3, 64 * KIB),
        shape(Level::Raid10, 4, 4 * KIB),
        shape(Level::Raid5, 3, 4 * KIB),
        shape(Level::Raid5, 4, 64 * KIB),
        shape(Level::Raid6, 4, 16 * KIB),
        shape(Level::Raid6, 6, 4 * KIB),
        shape(Level::Raid7, 6, 8 * KIB),
        valid(Shape::of(Level::Nm, 7).parity(4), 4 * KIB),
        shape(Level::Raid50, 6, 4 * KIB),
    ]
}

/// A group, its history, and what a test needs to crash it again and again.
fn start(sim: &Sim, rng: &mut Rng) -> (Group, Shared, Shape) {
    let shape = *rng.pick(&small_shapes());
    let sector = *rng.pick(&[512, 512, 4096]);
    let drives = new_drives(sim, usize::from(shape.members), 384 * KIB, sector);
    let group = Group::create(sim, shape, drives, 1 + rng.index(3));
    let history = History::shared(&group);
    (group, history, shape)
}

/// After a crash: everything is as promised, before and after the resync, and the parity fits.
pub fn check(sim: &Sim, group: &Group, history: &Shared, shape: Shape, rng: &mut Rng) {
    sim.block_on(async {
        settle(group, history, rng).await;
        group.jobs_end().await;
        verify_latest(group, history, rng).await;
        if shape.survives() > 0 {
            assert_eq!(group.differences().await, 0, "{shape}: the resync made the parity fit");
        }
    });
}

/// At the end: as many members are lost as the level survives, and all data is still there.
pub fn check_redundancy(sim: &Sim, group: Group, history: &Shared, shape: Shape, rng: &mut Rng) {
    let model = history.borrow().model(group.size());
    let drives = sim.block_on(group.stop());
    verify_without_members(sim, &drives, shape, &model, rng, 2);
}

#[test]
fn what_was_flushed_survives_crashes_and_what_was_under_way_is_old_or_new() {
    for seed in seeds(150) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (mut group, history, shape) = start(&sim, &mut rng);
        for _ in 0..rng.range(1..4) {
            sim.stop_after(rng.below(400));
            let rounds = rng.index(12);
            let width = 1 + rng.index(8);
            let mut fork = rng.fork();
            sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, rounds, width));
            group = group.power_cut(&sim);
            check(&sim, &group, &history, shape, &mut rng);
        }
        check_redundancy(&sim, group, &history, shape, &mut rng);
    }
}

#[test]
fn a_crash_at_every_point_of_a_short_program_keeps_what_was_promised() {
    let shapes = [shape(Level::Raid5, 3, 4 * KIB), shape(Level::Raid6, 4, 64 * KIB), shape(Level::Raid1, 2, 64 * KIB)];
    for (number, &shape) in shapes.iter().enumerate() {
        let run = |stop: Option<u64>| {
            let sim = Sim::new(number as u64);
            let mut rng = sim.rng();
            let drives = new_drives(&sim, usize::from(shape.members), 640 * KIB, 512);
            let group = Group::create(&sim, shape, drives, 2);
            let history = History::shared(&group);
            let before = sim.ops_done();
            if let Some(stop) = stop {
                sim.stop_after(stop);
            }
            let mut fork = rng.fork();
            sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, 6, 4));
            let ops = sim.ops_done() - before;
            if stop.is_some() {
                let group = group.power_cut(&sim);
                check(&sim, &group, &history, shape, &mut rng);
                check_redundancy(&sim, group, &history, shape, &mut rng);
            }
            ops
        };
        let ops = run(None);
        assert!(ops > 40, "{shape}: {ops} operations are no program");
        for stop in 0..=ops {
            run(Some(stop));
        }
    }
}

#[test]
fn a_crash_during_recovery_changes_nothing() {
    for seed in seeds(80) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (mut group, history, shape) = start(&sim, &mut rng);
        let shards = group.shards.len();
        sim.stop_after(rng.range(50..400));
        let mut fork = rng.fork();
        sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, 10, 6));
        for _ in 0..3 {
            let drives = group.cut(&sim);
            // During the assembly, the first requests or the resync.
            sim.stop_after(rng.below(80));
            let opened = sim.try_block_on(Group::open_async(sim.env(), drives.clone(), shards));
            let Some(opened) = opened else {
                sim.power_cut();
                let drives = drives.iter().map(SimDrive::reopen).collect();
                group = Group::open(&sim, drives, shards);
                sim.block_on(settle(&group, &history, &mut rng));
                continue;
            };
            group = opened;
            let mut fork = rng.fork();
            sim.try_block_on(async {
                settle(&group, &history, &mut fork).await;
                work_for_a_crash(&group, &history, &mut fork, 3, 3).await;
            });
        }
        let group = group.power_cut(&sim);
        check(&sim, &group, &history, shape, &mut rng);
        check_redundancy(&sim, group, &history, shape, &mut rng);
    }
}

#[test]
fn a_flush_or_fua_beside_a_flush_waits_for_the_map_too() {
    // Regression: a flush that found the allocation map being written by another flush took the map
    // for clean, and returned too early.
    for seed in seeds(600) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid1, 2, 64 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 2, 640 * KIB, 512), 1);
        let promised = std::cell::Cell::new(0);
        let mut pauses = rng.fork();
        // The superblocks take four operations, the write two: the flush is in flight.
        sim.stop_after(rng.range(8..14));
        sim.try_block_on(async {
            let leader = group.leader();
            leader.write(0, Buf::from(vec![1; 4096]), false).await.expect("writable");
            let first = leader.flush();
            let pause = pauses.below(100_000);
            let second = async {
                group.env.sleep(Duration::from_nanos(pause)).await;
                if seed % 2 == 0 {
                    leader.flush().await.expect("flushes");
                    promised.set(1);
                } else {
                    leader.write(0, Buf::from(vec![2; 4096]), true).await.expect("writable");
                    promised.set(2);
                }
            };
            both(async { first.await.expect("flushes") }, second).await;
        });
        let group = group.power_cut(&sim);
        let read = sim.block_on(group.leader().read(0, BufMut::zeroed(4096))).expect("readable");
        let promised = promised.get();
        assert!(promised == 0 || read.iter().all(|&byte| byte == promised), "{} instead of {promised}", read[0]);
    }
}

#[test]
fn an_orderly_stop_in_the_middle_of_a_resync_does_not_end_it() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&small_shapes()[1..]);
        let drives = new_drives(&sim, usize::from(shape.members), 640 * KIB, 512);
        let group = Group::create(&sim, shape, drives, 1 + rng.index(2));
        let history = History::shared(&group);
        let mut fork = rng.fork();
        sim.block_on(async {
            for at in (0..group.size()).step_by(64 * KIB as usize) {
                let len = (64 * KIB).min(group.size() - at);
                group
                    .leader()
                    .write_zeroes(at, len, drive::WriteZeroes { keep_allocated: true, ..Default::default() })
                    .await
                    .expect("writable");
            }
        });
        sim.stop_after(rng.range(100..500));
        sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, 30, 8));
        let mut group = group.power_cut(&sim);
        let shards = group.shards.len();
        sim.block_on(settle(&group, &history, &mut rng));
        for _ in 0..3 {
            sim.run_for(Duration::from_micros(rng.below(300)));
            let drives = sim.block_on(group.stop());
            sim.run_for(Duration::from_millis(10));
            group = Group::open(&sim, drives, shards);
        }
        check(&sim, &group, &history, shape, &mut rng);
        check_redundancy(&sim, group, &history, shape, &mut rng);
    }
}

#[test]
fn a_member_that_was_away_after_a_crash_is_not_mixed_in() {
    // Regression: after a crash the group went on without a member, and did not store that on the
    // other members before it wrote.
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes: Vec<Shape> = small_shapes().into_iter().filter(|shape| shape.survives() > 0).collect();
        let shape = *rng.pick(&shapes);
        let members = usize::from(shape.members);
        let group = Group::create(&sim, shape, new_drives(&sim, members, 384 * KIB, 512), 1);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 10, 4).await;
            group.leader().flush().await.expect("flushes");
        });
        if seed % 3 == 0 {
            // An interrupted change of the superblocks leaves some drives ahead.
            sim.stop_after(rng.below(2 * members as u64));
            sim.try_block_on(group.leader().fail_member(MemberIndex(rng.index(members) as u16)));
        }
        let all = group.cut(&sim);
        let disconnected = rng.index(members);
        let mut left = all.clone();
        let absent = left.remove(disconnected);
        let Ok(_) = look(&sim, &left) else { continue };
        let group = Group::open(&sim, left, 1);
        sim.block_on(async {
            // Everything is degraded, so nothing may be in flight at the crash.
            work(&group, &mut model, &mut rng, 10, 4).await;
            group.leader().flush().await.expect("flushes");
        });
        let mut drives = group.cut(&sim);
        drives.insert(rng.index(members), absent.reopen());
        // An interrupted change may have left the drive with a superblock in which it goes on
        // alone.
        if matches!(look(&sim, &drives), Err(array::AssembleError::Divided { .. })) {
            assert!(seed % 3 == 0, "{shape}");
            continue;
        }
        let group = Group::open(&sim, drives, 1);
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

#[test]
fn a_saved_catalogue_survives_and_an_interrupted_one_is_old_or_new() {
    let catalogue = |next_id| Catalogue { next_id, ..Catalogue::default() };
    for seed in seeds(150) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&small_shapes());
        let mut group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), 384 * KIB, 512), 1);
        let mut saved = 1;
        for _ in 0..4 {
            sim.stop_after(rng.below(60));
            let last = std::cell::Cell::new(saved);
            sim.try_block_on(async {
                for next_id in saved + 1..saved + 6 {
                    // Every other one also removes all earlier versions from the members.
                    let saving = group.leader();
                    match next_id % 2 {
                        0 => saving.set_catalogue(catalogue(next_id)).await.expect("it fits"),
                        _ => saving.replace_catalogue(catalogue(next_id)).await.expect("it fits"),
                    }
                    last.set(next_id);
                }
            });
            let drives = group.cut(&sim);
            // Members that are lost together with the power do not take the catalogue along.
            let lost = rng.index(shape.survives() + 1);
            let mut left = drives.clone();
            rng.shuffle(&mut left);
            left.truncate(drives.len() - lost);
            let found = sim.block_on(Group::open_async(sim.env(), left, 1)).leader().catalogue().next_id;
            assert!(found == last.get() || found == last.get() + 1, "{found} instead of {}", last.get());
            group = Group::open(&sim, drives, 1);
            let found = group.leader().catalogue().next_id;
            assert!(found == last.get() || found == last.get() + 1, "{found} instead of {}", last.get());
            saved = found;
        }
    }
}

#[test]
fn a_new_name_survives_and_an_interrupted_one_is_old_or_new() {
    for seed in seeds(150) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&small_shapes());
        let mut group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), 384 * KIB, 512), 1);
        // Names are numbers: the last one that was acknowledged, and the last one that was
        // requested.
        let (given, asked) = (std::cell::Cell::new(1), std::cell::Cell::new(1));
        sim.block_on(group.leader().rename("1".to_owned())).expect("members take it");
        for _ in 0..4 {
            sim.stop_after(rng.below(60));
            sim.try_block_on(async {
                for _ in 0..5 {
                    asked.set(asked.get() + 1);
                    group.leader().rename(asked.get().to_string()).await.expect("members take it");
                    given.set(asked.get());
                }
            });
            let drives = group.cut(&sim);
            let lost = rng.index(shape.survives() + 1);
            let mut left = drives.clone();
            rng.shuffle(&mut left);
            left.truncate(drives.len() - lost);
            let check = |group: &Group| {
                let name = group.leader().status().superblock.name;
                let number: u64 = name.parse().expect("a number");
                assert!((given.get()..=asked.get()).contains(&number), "{name}, given {given:?}, asked {asked:?}");
            };
            check(&sim.block_on(Group::open_async(sim.env(), left, 1)));
            group = Group::open(&sim, drives, 1);
            check(&group);
        }
    }
}

#[test]
fn two_crashes_and_a_lost_member_do_not_bring_back_an_old_map_or_catalogue() {
    // Regression: a crash left a block of the allocation map on one member only. The next version
    // was based on it and overwrote the older version on all other members. After another power cut
    // with that member lost, no version was left.
    for seed in seeds(300) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid1, 2, 64 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 2, MIB, 512), 1);
        let mut group = Some(group);
        let catalogue = |next_id| Catalogue { next_id, ..Catalogue::default() };
        let warm = 3 * 128 * KIB;
        sim.block_on(async {
            let leader = group.as_ref().expect("there").leader();
            leader.write(warm, Buf::from(vec![9; 4096]), true).await.expect("writable");
            leader.set_catalogue(catalogue(9)).await.expect("it fits");
        });
        for _ in 0..3 {
            let cut = group.take().expect("there");
            sim.stop_after(rng.below(20));
            sim.try_block_on(async {
                let leader = cut.leader();
                leader.write(rng.below(3) * 128 * KIB, Buf::from(vec![1; 4096]), true).await.expect("writable");
                leader.set_catalogue(catalogue(10 + rng.below(5))).await.expect("it fits");
            });
            group = Some(cut.power_cut(&sim));
        }
        let drives = group.expect("there").cut(&sim);
        let group = Group::open(&sim, vec![rng.pick(&drives).clone()], 1);
        let read = sim.block_on(group.leader().read(warm, BufMut::zeroed(4096))).expect("readable");
        assert!(read.iter().all(|&byte| byte == 9), "a chunk that was durable is gone");
        assert!(group.leader().catalogue().next_id >= 9, "the catalogue is gone");
    }
}

#[test]
fn a_mirror_does_not_go_back_from_new_to_old_after_a_crash() {
    // Copies may differ until the resync has passed: all reads have to use the same copy.
    for seed in seeds(100) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&[
            shape(Level::Raid1, 2, 64 * KIB),
            shape(Level::Raid1, 3, 1024 * KIB),
            shape(Level::Raid10, 4, 4 * KIB),
        ]);
        let group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), 2 * MIB, 512), 1);
        let history = History::shared(&group);
        sim.block_on(async {
            for at in (0..group.size()).step_by(64 * KIB as usize) {
                let how = drive::WriteZeroes { keep_allocated: true, ..Default::default() };
                let len = (64 * KIB).min(group.size() - at);
                group.leader().write_zeroes(at, len, how).await.expect("writable");
            }
            group.leader().flush().await.expect("flushes");
        });
        sim.stop_after(rng.below(100));
        let mut fork = rng.fork();
        sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, 30, 8));
        let group = group.power_cut(&sim);
        check(&sim, &group, &history, shape, &mut rng);
    }
}

#[test]
fn these_tests_can_fail_drives_that_ignore_flushes_lose_data() {
    let mut lost = 0;
    for seed in 0..30 {
        let sim = Sim::new(seed);
        let shape = shape(Level::Raid6, 4, 64 * KIB);
        let drives = new_drives(&sim, 4, 640 * KIB, 512);
        let group = Group::create_with(&sim, shape, Protection::plain(CrashSafety::On), drives, 1);
        sim.block_on(async {
            group.leader().write(0, Buf::from(vec![1; 4096]), true).await.expect("writable");
            group.drives.iter().for_each(|drive| drive.ignore_flushes(true));
            group.leader().write(0, Buf::from(vec![2; 4096]), true).await.expect("writable");
        });
        let group = group.power_cut(&sim);
        let read = sim.block_on(group.leader().read(0, BufMut::zeroed(4096))).expect("readable");
        lost += u64::from(read.iter().any(|&byte| byte != 2));
    }
    assert!(lost > 0, "a drive that lies is found out by these tests");
}

#[test]
fn a_group_that_was_stopped_in_order_needs_no_resync() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 4, 64 * KIB);
    let group = Group::create(&sim, shape, new_drives(&sim, 4, 640 * KIB, 512), 2);
    let mut model = Model::new(group.size());
    sim.block_on(work(&group, &mut model, &mut rng, 10, 4));
    assert!(!superblock(&group.drives[0]).clean);
    let drives = sim.block_on(group.stop());
    assert!(drives.iter().all(|drive| superblock(drive).clean));
    sim.power_cut();
    let group = Group::open(&sim, drives.iter().map(SimDrive::reopen).collect(), 1);
    assert!(group.leader().status().jobs.is_empty());
    assert!(group.leader().start_scrub(ScrubMode::Report));
    sim.block_on(verify(&group, &model, &mut rng));
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill_for_what_is_kept_outlives_it() {
    // Without the warm-restart state it is lost, so this test can fail.
    for forget in [false, true] {
        let sim = Sim::new(3);
        let shape = shape(Level::Raid6, 4, 64 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 4, 640 * KIB, 512), 2);
        sim.block_on(async {
            group.leader().write(4096, Buf::from(vec![1; 4096]), false).await.expect("writable");
        });
        let drives = group.kill(&sim);
        if forget {
            sim.forget_warm();
        }
        let group = Group::open(&sim, drives, 2);
        let read = sim.block_on(group.leader().read(4096, BufMut::zeroed(4096))).expect("readable");
        assert_eq!(read.iter().all(|&byte| byte == 1), !forget);
    }
}

#[test]
fn a_catalogue_that_was_saved_survives_attempts_that_failed() {
    // Regression: the attempt after a failed one was written over the newest version that was
    // durable.
    let shape = shape(Level::Raid0, 2, 16 * KIB);
    for seed in seeds(300) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let group = Group::create(&sim, shape, new_drives(&sim, 2, 640 * KIB, 512), 1);
        let catalogue = |next_id| Catalogue { next_id, ..Catalogue::default() };
        let kind = *rng.pick(&[OpKind::Write, OpKind::Flush]);
        sim.block_on(async {
            for next_id in [2, 3] {
                group.leader().set_catalogue(catalogue(next_id)).await.expect("it fits");
            }
            for next_id in 4..5 + rng.below(3) {
                // Two errors, since a failed operation is retried once.
                (0..2).for_each(|_| group.drives[1].error_next(kind, DriveError::Os { operation: "try", errno: 5 }));
                group.leader().set_catalogue(catalogue(next_id)).await.expect_err("a member did not take it");
            }
        });
        sim.stop_after(rng.below(6));
        sim.try_block_on(async {
            // The result does not matter.
            let _ = group.leader().set_catalogue(catalogue(9)).await;
        });
        let group = group.power_cut(&sim);
        let found = group.leader().catalogue().next_id;
        assert!(found >= 3, "seed {seed}: version {found}, and 3 was durable");
    }
}

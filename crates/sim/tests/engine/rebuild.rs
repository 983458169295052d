//! A lost member is rebuilt on another drive, with load and further faults meanwhile.

use std::time::Duration;

use array::{Event, JoinError, MemberIndex};
use drive::{Buf, DriveError, Env};
use format::{CrashSafety, Level, MemberState, Shape};
use sim::{Latency, OpKind, Phase, Rng, Sim, SimDrive};

use crate::group::*;
use crate::rows::redundant_shapes;

/// Loses as many members as the level survives, but none of `spared`, and reads everything.
pub async fn verify_with_others_lost(group: &Group, model: &Model, rng: &mut Rng, spared: &[usize]) {
    let geometry = &group.leader().shared().geometry;
    let strips = geometry.strips();
    for set in 0..geometry.sets as usize {
        let mut others: Vec<usize> =
            (set * strips..(set + 1) * strips).filter(|member| !spared.contains(member)).collect();
        rng.shuffle(&mut others);
        for &member in others.iter().take(geometry.parity_count) {
            group.member(member).fail();
        }
    }
    verify(group, model, rng).await;
}

pub async fn until_in_sync(group: &Group) {
    for _ in 0..100_000 {
        if group.all_in_sync() {
            return;
        }
        group.env.sleep(Duration::from_millis(5)).await;
    }
    panic!("the group is not in sync after 500 s: {:?}, {:?}", group.leader().status(), group.events.borrow());
}

#[test]
fn a_hot_spare_replaces_a_lost_member_under_load() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&redundant_shapes(*rng.clone().pick(&[4 * KIB, 8 * KIB, 64 * KIB])));
        let members = usize::from(shape.members);
        let drives = new_drives(&sim, members + 1, 640 * KIB, 512);
        let group = Group::create(&sim, shape, drives, 1 + seed as usize % 4);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 15, 6).await;
            let lost = rng.index(members);
            group.drives[lost].fail_after(rng.below(20));
            work(&group, &mut model, &mut rng, 10, 6).await;
            group.drives[lost].fail();
            group.leader().flush().await.expect("the others flush");
            work(&group, &mut model, &mut rng, 20, 6).await;
            until_in_sync(&group).await;
            assert_eq!(group.leader().shared().slot(MemberIndex(lost as u16)).drive.0 as usize, members);
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
}

/// A group with a spare that was stopped, and started again without one of its members. Also
/// returns that member.
fn started_without_a_member(sim: &Sim, rng: &mut Rng) -> (Group, Model, usize) {
    let shape = *rng.pick(&redundant_shapes(8 * KIB));
    let members = usize::from(shape.members);
    let group = Group::create(sim, shape, new_drives(sim, members + 1, 640 * KIB, 512), 2);
    let mut model = Model::new(group.size());
    sim.block_on(work(&group, &mut model, rng, 15, 6));
    let mut drives = sim.block_on(group.stop());
    let lost = rng.index(members);
    drives.remove(lost);
    let group = Group::open(sim, drives, 2);
    assert_eq!((group.state(lost), group.leader().status().spares.len()), (MemberState::Missing, 1));
    (group, model, lost)
}

#[test]
fn a_hot_spare_replaces_a_member_that_is_missing_at_the_start_once_it_has_been_waited_for() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, mut model, lost) = started_without_a_member(&sim, &mut rng);
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 10, 6).await;
            group.env.sleep(Duration::from_secs(30)).await;
            assert_eq!(group.state(lost), MemberState::Missing, "it may come");
            group.env.sleep(Duration::from_secs(31)).await;
            work(&group, &mut model, &mut rng, 10, 6).await;
            until_in_sync(&group).await;
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
}

#[test]
fn a_hot_spare_replaces_a_missing_member_at_once_that_an_operator_fails() {
    for seed in seeds(10) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, model, lost) = started_without_a_member(&sim, &mut rng);
        sim.block_on(async {
            group.leader().fail_member(MemberIndex(lost as u16)).await.unwrap();
            group.env.sleep(Duration::from_secs(5)).await;
            assert_ne!(group.state(lost), MemberState::Missing);
            until_in_sync(&group).await;
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
}

#[test]
fn first_writes_discards_and_rewrites_race_a_rebuild() {
    let shapes = [
        shape(Level::Raid5, 3, 4 * KIB),
        shape(Level::Raid6, 4, 4 * KIB),
        shape(Level::Raid1, 2, 64 * KIB),
        shape(Level::Raid10, 4, 4 * KIB),
        shape(Level::Raid5, 4, 128 * KIB),
        valid(Shape::of(Level::Nm, 6).parity(4), 4 * KIB),
        shape(Level::Raid50, 6, 64 * KIB),
    ];
    for seed in seeds(500) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&shapes);
        let members = usize::from(shape.members);
        // Room for three to a dozen stripe groups.
        let bytes =
            196 * KIB + rng.range(3..13) * u64::from(shape.strip_bytes).max(128 * KIB / shape.data_per_set() as u64);
        let drives = new_drives(&sim, members, bytes / 4096 * 4096, 512);
        let mut group = Group::create(&sim, shape, drives, 1 + rng.index(4));
        let mut model = Model::new(group.size());
        let spare = SimDrive::new(&sim.env(), "spare", bytes / 4096 * 4096, 512);
        spare.set_latency(Latency::between(1_000, *rng.pick(&[2_000, 100_000, 2_000_000])));
        let id = group.install(spare);
        sim.block_on(async {
            for _ in 0..rng.below(8) {
                work(&group, &mut model, &mut rng, 1, 3).await;
            }
            let lost = rng.index(members);
            let identity = uuid(&mut rng);
            group.leader().fail_member(MemberIndex(lost as u16)).await.expect("one may be lost");
            let mut forks = (rng.fork(), rng.fork());
            let rounds = 1 + rng.index(40);
            let replace = async {
                group.env.sleep(Duration::from_nanos(forks.0.below(400_000))).await;
                group.leader().replace(MemberIndex(lost as u16), id, identity).await.expect("the drive fits");
            };
            let load = async {
                work(&group, &mut model, &mut forks.1, rounds, 4).await;
            };
            both(replace, load).await;
            until_in_sync(&group).await;
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
}

#[test]
fn a_rebuild_writes_allocated_chunks_only() {
    for shape in redundant_shapes(16 * KIB) {
        let sim = Sim::new(11);
        let members = usize::from(shape.members);
        let mut group = Group::create(&sim, shape, new_drives(&sim, members, 4 * MIB, 512), 2);
        let id = group.install(SimDrive::new(&sim.env(), "new", 4 * MIB, 512));
        let mut rng = sim.rng();
        let mut model = Model::new(group.size());
        sim.block_on(async {
            for at in [3, group.size() / 2, group.size() - 5000] {
                group.leader().write(at, Buf::from(vec![7; 5000]), false).await.expect("writable");
                model.bytes[at as usize..at as usize + 5000].fill(7);
            }
            group.leader().fail_member(MemberIndex(0)).await.expect("one may be lost");
            sim.trace_start();
            group.leader().replace(MemberIndex(0), id, uuid(&mut rng)).await.expect("the drive fits");
            until_in_sync(&group).await;
            let geometry = &group.leader().shared().geometry;
            let index = group.drives[usize::from(id.0)].index();
            let writes = sim.trace_take().into_iter().filter(|entry| {
                entry.drive_index == index
                    && (entry.phase, entry.kind) == (Phase::Done, OpKind::Write)
                    && entry.offset >= geometry.data_start
                    && entry.offset < geometry.data_start + geometry.bands * geometry.stripe_group_bytes
            });
            let written: u64 = writes.map(|entry| entry.len).sum();
            let chunks = group.leader().shared().map.allocated();
            assert!(written <= chunks * geometry.chunk_bytes, "{shape}: {written} bytes for {chunks} chunks");
            assert!(written >= geometry.chunk_bytes / 2, "{shape}: {written} bytes");
            verify_with_others_lost(&group, &model, &mut rng, &[0]).await;
        });
    }
}

#[test]
fn two_lost_members_are_rebuilt_on_two_spares() {
    for seed in seeds(30) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes: Vec<Shape> = every_level(4 * KIB).into_iter().filter(|shape| shape.survives() > 1).collect();
        let shape = *rng.pick(&shapes);
        let members = usize::from(shape.members);
        let group = Group::create(&sim, shape, new_drives(&sim, members + 2, 512 * KIB, 512), 1 + seed as usize % 3);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 20, 6).await;
            let one = rng.index(members);
            let other = (one + 1 + rng.index(members - 1)) % members;
            group.drives[one].fail();
            group.drives[other].fail_after(rng.below(100));
            work(&group, &mut model, &mut rng, 20, 6).await;
            group.drives[other].fail();
            work(&group, &mut model, &mut rng, 5, 6).await;
            group.leader().flush().await.expect("the others flush");
            until_in_sync(&group).await;
            verify_with_others_lost(&group, &model, &mut rng, &[one, other]).await;
        });
    }
}

#[test]
fn a_spare_that_fails_gives_way_to_the_next() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&redundant_shapes(8 * KIB));
        let members = usize::from(shape.members);
        let group = Group::create(&sim, shape, new_drives(&sim, members + 3, 512 * KIB, 512), 1 + seed as usize % 2);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 30, 6).await;
            let lost = rng.index(members);
            // The first spare is dead already or dies at once, the second one fails in the middle.
            if rng.chance(1, 2) {
                group.drives[members].fail();
            } else {
                group.drives[members].fail_after(rng.below(8));
            }
            group.drives[members + 1].fail_after(rng.below(40));
            group.drives[lost].fail();
            let rounds = rng.index(20);
            work(&group, &mut model, &mut rng, rounds, 4).await;
            group.leader().flush().await.expect("the others flush");
            until_in_sync(&group).await;
            // The second spare may have finished before its failure was due. It must not fail now.
            group.member(lost).fail_after(u64::MAX);
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
}

#[test]
fn media_errors_beside_a_rebuild_are_served_from_the_redundancy_that_is_left() {
    for seed in seeds(30) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes: Vec<Shape> = every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 1).collect();
        let shape = *rng.pick(&shapes);
        let members = usize::from(shape.members);
        let group = Group::create(&sim, shape, new_drives(&sim, members + 1, 512 * KIB, 512), 2);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 30, 6).await;
            let lost = rng.index(members);
            let bad = (lost + 1 + rng.index(members - 1)) % members;
            let geometry = group.leader().shared().geometry.clone();
            let data = geometry.bands * geometry.stripe_group_bytes;
            for _ in 0..4 {
                let at = geometry.data_start + rng.below(data / 512) * 512;
                group.drives[bad]
                    .media_error(at..at + 512 * rng.range(1..9).min((geometry.data_start + data - at) / 512));
            }
            group.drives[lost].fail();
            work(&group, &mut model, &mut rng, 5, 4).await;
            group.leader().flush().await.expect("the others flush");
            until_in_sync(&group).await;
            // The rebuild read what it needed; a scrub finds the rest of the bad places.
            assert_eq!(group.differences().await, 0);
            verify_with_others_lost(&group, &model, &mut rng, &[lost, bad]).await;
        });
    }
}

#[test]
fn a_rebuilt_member_has_the_map_and_the_catalogue_too() {
    for seed in seeds(10) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid1, 2, 64 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 3, 640 * KIB, 512), 1);
        let mut model = Model::new(group.size());
        let catalogue = format::Catalogue { next_id: 77, ..format::Catalogue::default() };
        let drives = sim.block_on(async {
            work(&group, &mut model, &mut rng, 20, 4).await;
            group.leader().set_catalogue(catalogue.clone()).await.expect("it fits");
            group.drives[0].fail();
            work(&group, &mut model, &mut rng, 5, 4).await;
            group.leader().flush().await.expect("the others flush");
            until_in_sync(&group).await;
            group.jobs_end().await;
            group.stop().await
        });
        let group = Group::open(&sim, vec![drives[2].clone()], 1);
        sim.block_on(verify(&group, &model, &mut rng));
        assert_eq!(group.leader().catalogue(), catalogue);
    }
}

#[test]
fn a_catalogue_saved_while_a_rebuild_ends_is_not_lost() {
    for seed in seeds(200) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid1, 2, 64 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 3, 640 * KIB, 512), 1);
        sim.block_on(async {
            group.leader().write(0, Buf::from(vec![1; 4096]), false).await.expect("writable");
            group.leader().fail_member(MemberIndex(0)).await.expect("one may be lost");
            let mut next_id = 1;
            while !group.all_in_sync() {
                next_id += 1;
                let catalogue = format::Catalogue { next_id, ..format::Catalogue::default() };
                group.leader().set_catalogue(catalogue).await.expect("it fits");
                group.env.sleep(Duration::from_nanos(rng.below(200_000))).await;
            }
            group.jobs_end().await;
            assert_eq!(group.leader().catalogue().next_id, next_id);
        });
        let group = group.power_cut(&sim);
        assert!(group.leader().catalogue().next_id > 1);
    }
}

#[test]
fn a_drive_that_does_not_fit_is_refused_and_nothing_changes() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid5, 3, 64 * KIB);
    let plain = Protection::plain(CrashSafety::On);
    let mut group = Group::create_with(&sim, shape, plain, new_drives(&sim, 3, 2 * MIB, 512), 1);
    let small = group.install(SimDrive::new(&sim.env(), "small", MIB, 512));
    let coarse = group.install(SimDrive::new(&sim.env(), "coarse", 2 * MIB, 4096));
    let fine = group.install(SimDrive::new(&sim.env(), "fine", 2 * MIB, 512));
    sim.block_on(async {
        let leader = group.leader();
        let epoch = superblock(&group.drives[0]).epoch;
        assert!(matches!(leader.add_spare(small, uuid(&mut rng)).await, Err(JoinError::TooSmall { .. })));
        assert!(matches!(leader.add_spare(coarse, uuid(&mut rng)).await, Err(JoinError::Sector { .. })));
        assert!(matches!(leader.replace(MemberIndex(0), small, uuid(&mut rng)).await, Err(JoinError::TooSmall { .. })));
        assert!(matches!(leader.replace(MemberIndex(0), coarse, uuid(&mut rng)).await, Err(JoinError::Sector { .. })));
        assert_eq!(leader.replace(MemberIndex(9), fine, uuid(&mut rng)).await, Err(JoinError::NoMember(9)));
        assert_eq!(leader.remove_spare(fine).await, Err(JoinError::NotASpare));
        assert_eq!(superblock(&group.drives[0]).epoch, epoch);
        leader.fail_member(MemberIndex(0)).await.expect("one may be lost");
        assert!(matches!(leader.fail_member(MemberIndex(1)).await, Err(JoinError::Block(_))));
        assert!(matches!(leader.replace(MemberIndex(0), small, uuid(&mut rng)).await, Err(JoinError::TooSmall { .. })));
        leader.add_spare(fine, uuid(&mut rng)).await.expect("the drive fits");
        until_in_sync(&group).await;
    });
}

#[test]
fn the_same_drive_can_come_back_as_a_replacement() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid6, 5, 4 * KIB);
        let mut group = Group::create(&sim, shape, new_drives(&sim, 5, 640 * KIB, 512), 2);
        let mut model = Model::new(group.size());
        let lost = rng.index(5);
        sim.block_on(work(&group, &mut model, &mut rng, 10, 4));
        let identity = superblock(&group.drives[lost]).drive;
        sim.block_on(group.leader().fail_member(MemberIndex(lost as u16))).expect("one may be lost");
        let id = group.install(group.drives[lost].clone());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 10, 4).await;
            let leader = group.leader();
            if seed % 2 == 0 {
                leader.replace(MemberIndex(lost as u16), id, identity).await.expect("the drive fits");
            } else {
                leader.add_spare(id, identity).await.expect("the drive fits");
            }
            work(&group, &mut model, &mut rng, 10, 4).await;
            until_in_sync(&group).await;
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
}

#[test]
fn rebuilds_are_told_and_shown() {
    let sim = Sim::new(5);
    let shape = shape(Level::Raid6, 5, 16 * KIB);
    let group = Group::create(&sim, shape, new_drives(&sim, 6, 640 * KIB, 512), 1);
    sim.block_on(async {
        group.leader().write(0, Buf::from(vec![1; 200_000]), false).await.expect("writable");
        group.drives[3].error_next(OpKind::Flush, DriveError::Os { operation: "flush", errno: 5 });
        group.drives[3].error_next(OpKind::Flush, DriveError::Os { operation: "flush", errno: 5 });
        group.leader().flush().await.expect("the others flush");
        until_in_sync(&group).await;
        group.jobs_end().await;
        let mut events = group.events.borrow().clone();
        events.retain(|event| !matches!(event, Event::Retried { .. }));
        assert!(matches!(events[0], Event::MemberFailed { member: MemberIndex(3), .. }), "{events:?}");
        assert!(matches!(events[1], Event::RebuildStarted { member: MemberIndex(3), .. }), "{events:?}");
        assert!(matches!(events[2], Event::RebuildFinished { member: MemberIndex(3), .. }), "{events:?}");
        let status = group.leader().status();
        assert_eq!(status.jobs.len(), 1);
        assert!(status.jobs[0].ended.is_some() && status.jobs[0].state == array::JobState::Done);
        assert_eq!(status.jobs[0].done_bytes, status.jobs[0].total_bytes);
        assert!(status.spares.is_empty());
    });
}

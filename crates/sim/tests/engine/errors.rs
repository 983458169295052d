//! Members that fail an operation, stay disconnected, or come back.

use std::time::Duration;

use array::{Event, MemberErrors, Refusal, StripeGroup};
use drive::{BlockError, Buf, BufMut, Drive, DriveError, Env, join_all};
use format::{BLOCK, Level, MemberState, Shape, Superblock, superblock_offsets};
use sim::{OpKind, Rng, Sim, SimDrive};

use crate::group::*;

fn redundant_shapes(strip: u64) -> Vec<Shape> {
    every_level(strip).into_iter().filter(|shape| shape.survives() > 0).collect()
}

/// A group that was written all over.
fn filled(sim: &Sim, shape: Shape, rng: &mut Rng, shards: usize) -> (Group, Model) {
    let group = Group::create(sim, shape, new_drives(sim, usize::from(shape.members), 640 * KIB, 512), shards);
    let mut model = Model::new(group.size());
    rng.fill(&mut model.bytes);
    sim.block_on(group.leader().write(0, Buf::from(model.bytes.clone()), false)).expect("writable");
    (group, model)
}

/// A random range of a member's data region, in sectors.
fn anywhere(group: &Group, rng: &mut Rng, sectors_max: u64) -> std::ops::Range<u64> {
    let geometry = &group.leader().shared().geometry;
    let sectors = geometry.bands * geometry.stripe_group_bytes / 512;
    let first = rng.below(sectors);
    let last = (first + rng.range(1..sectors_max + 1)).min(sectors);
    geometry.data_start + first * 512..geometry.data_start + last * 512
}

#[test]
fn an_unreadable_sector_is_served_from_redundancy_and_written_back() {
    for shape in redundant_shapes(16 * KIB) {
        for seed in 0..4 {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let (group, model) = filled(&sim, shape, &mut rng, 1 + seed as usize % 3);
            let bad = rng.index(usize::from(shape.members));
            let range = anywhere(&group, &mut rng, 16);
            group.drives[bad].media_error(range.clone());
            sim.block_on(async {
                // Users read only copies and data strips. A write or a scrub reads the others.
                verify(&group, &model, &mut rng).await;
                assert!(group.all_in_sync(), "{shape}: a medium that fails in one place is no failed member");
                assert_eq!(group.differences().await, 0);
                let buf = BufMut::zeroed((range.end - range.start) as usize);
                group.drives[bad].read(range.start, buf).await.expect("it was written back");
                assert!(group.leader().shared().counts().healed > 0, "{shape}");
                let errors = group.leader().status().members[bad].errors;
                assert!(errors.reads > 0 && errors.writes == 0 && errors.others == 0, "{shape}: {errors:?}");
                verify(&group, &model, &mut rng).await;
            });
        }
    }
}

#[test]
fn a_read_of_any_copy_heals_that_copy() {
    let shape = shape(Level::Raid1, 3, 64 * KIB);
    let sim = Sim::new(4);
    let mut rng = sim.rng();
    let (group, _) = filled(&sim, shape, &mut rng, 1);
    let start = group.leader().shared().geometry.data_start;
    group.drives.iter().enumerate().for_each(|(index, drive)| {
        // The copies take turns by offset. At each offset one of them is bad.
        for turn in 0..2 {
            let at = start + turn * 256 * KIB + index as u64 * 4096;
            drive.media_error(at..at + 4096);
        }
    });
    sim.block_on(async {
        let read = async |at: u64| group.leader().read(at, BufMut::zeroed(4096)).await.expect("there are other copies");
        for index in 0..3 {
            read(index * 4096).await;
            read(256 * KIB + index * 4096).await;
        }
    });
    assert_eq!(group.leader().shared().counts().healed, 2, "one bad copy was read in each turn");
}

#[test]
fn unreadable_sectors_under_load_are_never_wrong() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes = redundant_shapes(*rng.clone().pick(&[4 * KIB, 16 * KIB]));
        let shape = *rng.pick(&shapes);
        let (group, mut model) = filled(&sim, shape, &mut rng, 1 + seed as usize % 3);
        sim.block_on(async {
            for _ in 0..10 {
                let range = anywhere(&group, &mut rng, 40);
                rng.pick(&group.drives).media_error(range);
                work(&group, &mut model, &mut rng, 3, 5).await;
                // One at a time: two of them in the same place may exceed the redundancy.
                verify(&group, &model, &mut rng).await;
                assert_eq!(group.differences().await, 0, "{shape}");
            }
            assert!(group.all_in_sync());
        });
    }
}

#[test]
fn a_failed_write_makes_the_member_faulty_before_it_is_acknowledged() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&redundant_shapes(16 * KIB));
        let (group, mut model) = filled(&sim, shape, &mut rng, 1 + seed as usize % 3);
        let geometry = group.leader().shared().geometry.clone();
        let at = rng.below(group.size() / 4096) * 4096;
        let place = geometry.place(at);
        let bad = geometry.member(place.stripe_group, place.offset, place.role);
        // A save of checksums at the same time would use up the injected errors.
        sim.block_on(group.leader().flush()).expect("all flush");
        let error = DriveError::Media { offset: 0, len: 512 };
        for _ in 0..2 {
            group.drives[usize::from(bad.0)].error_next(OpKind::Write, error.clone());
        }
        sim.block_on(async {
            rng.pick(&group.shards).write(at, Buf::from(vec![0x5A; 4096]), false).await.expect("the others take it");
            // The write is acknowledged now.
            for (index, drive) in group.drives.iter().enumerate().filter(|(index, _)| *index != usize::from(bad.0)) {
                for offset in superblock_offsets(drive.info().size_bytes).unwrap() {
                    let bytes = drive.read_raw(offset, BLOCK as u64);
                    let superblock = Superblock::decode(&bytes).expect("a superblock");
                    let state = superblock.members[usize::from(bad.0)].state;
                    assert_eq!(state, MemberState::Faulty, "{shape}: on drive {index}");
                }
            }
            model.bytes[at as usize..at as usize + 4096].fill(0x5A);
            verify(&group, &model, &mut rng).await;
            work(&group, &mut model, &mut rng, 10, 4).await;
            verify(&group, &model, &mut rng).await;
            let failed = |event: &Event| matches!(event, Event::MemberFailed { member, .. } if *member == bad);
            assert!(group.events.borrow().iter().any(failed));
        });
        // The member comes back with its old content: it is refused.
        let drives = if seed % 2 == 0 {
            sim.block_on(group.stop())
        } else {
            sim.block_on(group.leader().flush()).expect("flushes");
            group.cut(&sim)
        };
        let drives: Vec<SimDrive> = drives.iter().map(SimDrive::revive).collect();
        let assembly = look(&sim, &drives).expect("enough members");
        assert_eq!(assembly.members[usize::from(bad.0)], None);
        let [(index, Refusal::Stale { member, epoch, newest })] = &assembly.refused[..] else {
            panic!("{:?}", assembly.refused)
        };
        assert_eq!((*index, *member), (usize::from(bad.0), bad.0));
        assert!(epoch < newest);
        let group = Group::open(&sim, drives, 1);
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

#[test]
fn a_path_error_that_goes_away_costs_nothing_but_a_retry() {
    for shape in redundant_shapes(16 * KIB) {
        let sim = Sim::new(1);
        let mut rng = sim.rng();
        let (group, mut model) = filled(&sim, shape, &mut rng, 1);
        sim.block_on(async {
            for kind in [OpKind::Read, OpKind::Write, OpKind::Flush] {
                for drive in &group.drives {
                    drive.error_next(kind, DriveError::Os { operation: "try", errno: 5 });
                }
            }
            work(&group, &mut model, &mut rng, 20, 4).await;
            group.leader().flush().await.expect("flushes");
            verify(&group, &model, &mut rng).await;
            assert!(group.all_in_sync(), "{shape}");
            let errors: Vec<MemberErrors> =
                group.leader().status().members.iter().map(|member| member.errors).collect();
            assert!(
                errors.iter().all(|errors| errors.reads + errors.writes + errors.others == 0),
                "{shape}: {errors:?}"
            );
            assert!(errors.iter().any(|errors| errors.retries > 0), "{shape}: {errors:?}");
        });
    }
}

#[test]
fn errors_beyond_redundancy_are_errors_and_never_wrong_bytes() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&every_level(16 * KIB));
        let (group, model) = filled(&sim, shape, &mut rng, 1 + seed as usize % 2);
        let mut failed = 0;
        sim.block_on(async {
            for drive in &group.drives {
                for _ in 0..4 {
                    drive.media_error(anywhere(&group, &mut rng, 200));
                }
            }
            for at in (0..group.size()).step_by(4096) {
                match rng.pick(&group.shards).read(at, BufMut::zeroed(4096)).await {
                    Ok(read) => same(&read, &model.bytes[at as usize..at as usize + 4096], at),
                    Err(BlockError::Lost { lost, survives }) => {
                        assert!(lost > survives);
                        failed += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(group.all_in_sync(), "the medium failed in places, no member did");
        });
        assert!(failed > 0 || shape.survives() > 1, "{shape}: the test hits something");
    }
}

#[test]
fn writing_what_was_lost_makes_it_readable_again() {
    for shape in every_level(16 * KIB) {
        let sim = Sim::new(9);
        let mut rng = sim.rng();
        let (group, mut model) = filled(&sim, shape, &mut rng, 1);
        sim.block_on(async {
            let start = group.leader().shared().geometry.data_start;
            group.drives.iter().for_each(|drive| drive.media_error(start..start + 16 * KIB));
            let leader = group.leader();
            let lost = leader.read(0, BufMut::zeroed(4096)).await;
            assert!(matches!(lost, Err(BlockError::Lost { .. })), "{shape}");
            let len = model.bytes.len().min(1 << 20);
            rng.fill(&mut model.bytes[..len]);
            leader.discard(0, group.size()).await.expect("discards");
            leader.write(0, Buf::from(model.bytes.clone()), false).await.expect("writable");
            verify(&group, &model, &mut rng).await;
        });
    }
}

#[test]
fn a_request_whose_caller_went_away_does_not_block_others() {
    // Regression: a flush that was dropped while it waited for its turn took the turn with it.
    for seed in seeds(100) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid5, 3, 16 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 3, 640 * KIB, 512), 1 + seed as usize % 2);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            for _ in 0..4 {
                let leader = group.leader();
                leader.write(0, Buf::from(vec![1; 4096]), false).await.expect("writable");
                model.bytes[..4096].fill(1);
                let flushes = join_all((0..4).map(|index| group.shards[index % group.shards.len()].flush()));
                give_up(&group, flushes, rng.below(300_000)).await;
                let saves = join_all((0..3).map(|_| leader.set_catalogue(format::Catalogue::default())));
                give_up(&group, saves, rng.below(300_000)).await;
                leader.discard(0, group.size()).await.expect("discards");
                model.bytes.fill(0);
                work(&group, &mut model, &mut rng, 2, 3).await;
            }
            leader_is_alive(&group).await;
            // The next flush still does the work that a dropped flush had taken over.
            group.leader().discard(0, group.size()).await.expect("discards");
            group.leader().flush().await.expect("flushes");
            group.leader().write(0, Buf::from(vec![3; 4096]), false).await.expect("writable");
            model.bytes.fill(0);
            model.bytes[..4096].fill(3);
            give_up(&group, group.leader().flush(), rng.below(300_000)).await;
            group.leader().flush().await.expect("flushes");
        });
        let group = group.power_cut(&sim);
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

/// Drops a future that is not done after `nanos`.
async fn give_up(group: &Group, future: impl Future, nanos: u64) {
    let mut future = Box::pin(future);
    let mut sleep = Box::pin(group.env.sleep(Duration::from_nanos(nanos)));
    std::future::poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() {
            return std::task::Poll::Ready(());
        }
        sleep.as_mut().poll(context)
    })
    .await;
}

async fn leader_is_alive(group: &Group) {
    group.leader().flush().await.expect("flushes");
    group.leader().set_catalogue(format::Catalogue::default()).await.expect("it fits");
}

#[test]
fn a_full_drive_says_so_where_the_group_cannot_do_without_it() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let (group, _) = filled(&sim, shape(Level::Raid0, 2, 16 * KIB), &mut rng, 1);
    let place = group.leader().shared().geometry.place(0);
    assert_eq!((place.stripe_group, place.offset), (StripeGroup(0), 0));
    group.drives[0].error_next(OpKind::Write, DriveError::NoSpace);
    group.drives[0].error_next(OpKind::Write, DriveError::NoSpace);
    let result = sim.block_on(group.leader().write(0, Buf::from(vec![1; 4096]), false));
    assert_eq!(result, Err(BlockError::NoSpace));
    assert_eq!(group.state(0), MemberState::InSync);
}

#[test]
fn checksums_that_the_path_fails_to_give_are_not_computed_from_what_it_does_not_give_either() {
    for seed in 1..=8 {
        for shape in every_level(8 * KIB) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), 640 * KIB, 512), 2);
            let mut model = Model::new(group.size());
            sim.block_on(work(&group, &mut model, &mut rng, 10, 4));
            let drives = sim.block_on(group.stop());
            sim.kill_tasks();
            // No checksum has been read yet when the path to all drives fails, which a kernel
            // reports as media errors.
            let group = Group::open(&sim, drives, 2);
            for drive in &group.drives {
                for _ in 0..rng.range(2..80) {
                    drive.error_next(OpKind::Read, DriveError::Media { offset: 0, len: 4096 });
                }
            }
            sim.block_on(async {
                for _ in 0..rng.range(1..20) {
                    let at = rng.below(group.size() / BLOCK as u64) * BLOCK as u64;
                    let _ = rng.pick(&group.shards).read(at, BufMut::zeroed(BLOCK)).await;
                }
            });
            group.drives.iter().for_each(|drive| _ = drive.revive());
            sim.block_on(verify(&group, &model, &mut rng));
            let drives = sim.block_on(group.stop());
            sim.kill_tasks();
            sim.block_on(verify(&Group::open(&sim, drives, 2), &model, &mut rng));
        }
    }
}

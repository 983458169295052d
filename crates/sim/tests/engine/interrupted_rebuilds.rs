//! A rebuild that is interrupted goes on at its checkpoint.

use std::time::Duration;

use array::{MemberIndex, StripeGroup};
use drive::{Buf, Env};
use format::{Level, MemberState, Shape};
use sim::{Latency, Rng, Sim, SimDrive};

use crate::group::*;
use crate::history::{History, Request, perform, settle, verify_latest};
use crate::rebuild::{until_in_sync, verify_with_others_lost};

/// A group with a slow spare in a lost member's place, some virtual seconds into the rebuild.
fn half_rebuilt(sim: &Sim, shape: Shape, rng: &mut Rng, shards: usize) -> (Group, Model, usize) {
    let members = usize::from(shape.members);
    let mut group = Group::create(sim, shape, new_drives(sim, members, 1536 * KIB, 512), shards);
    let mut model = Model::new(group.size());
    let spare = SimDrive::new(&sim.env(), "spare", 1536 * KIB, 512);
    let lost = rng.index(members);
    let id = group.install(spare.clone());
    sim.block_on(async {
        work(&group, &mut model, rng, 40, 6).await;
        group.leader().fail_member(MemberIndex(lost as u16)).await.expect("one may be lost");
        group.leader().replace(MemberIndex(lost as u16), id, uuid(rng)).await.expect("the drive fits");
        spare.set_latency(Latency::between(1_000_000_000, 8_000_000_000));
        let until = rng.range(5..60);
        for _ in 0..until {
            if rng.chance(1, 8) {
                work(&group, &mut model, rng, 1, 3).await;
            }
            group.env.sleep(Duration::from_secs(1)).await;
        }
        group.leader().flush().await.expect("flushes");
        spare.set_latency(Latency::USUAL);
    });
    (group, model, lost)
}

#[test]
fn an_interrupted_rebuild_goes_on_where_its_checkpoint_is() {
    let mut resumed = 0;
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes = [
            shape(Level::Raid5, 4, 16 * KIB),
            shape(Level::Raid6, 5, 4 * KIB),
            shape(Level::Raid1, 2, 64 * KIB),
            shape(Level::Raid10, 4, 4 * KIB),
        ];
        let shape = *rng.pick(&shapes);
        let shards = 1 + rng.index(3);
        let (group, model, lost) = half_rebuilt(&sim, shape, &mut rng, shards);
        let was_rebuilding = group.state(lost) == MemberState::Rebuilding;
        let drives = if rng.chance(1, 2) { sim.block_on(group.stop()) } else { group.cut(&sim) };
        let checkpoint = superblock(&drives[(lost + 1) % usize::from(shape.members)]).rebuild;
        resumed += u64::from(was_rebuilding && checkpoint.is_some_and(|rebuild| rebuild.next_chunk > 0));
        let drives: Vec<SimDrive> =
            drives.into_iter().filter(|drive| drive::Drive::info(drive).name != format!("d{lost}")).collect();
        let group = Group::open(&sim, drives, 1);
        sim.block_on(async {
            until_in_sync(&group).await;
            group.jobs_end().await;
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
    if seeds(60).end > 30 {
        assert!(resumed > 5, "only {resumed} rebuilds went on in the middle: the test is blind");
    }
}

#[test]
fn a_rebuild_on_another_drive_starts_from_the_beginning() {
    for seed in seeds(30) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid5, 4, 16 * KIB);
        let (group, mut model, lost) = half_rebuilt(&sim, shape, &mut rng, 2);
        let mut drives = if rng.chance(1, 2) { sim.block_on(group.stop()) } else { group.cut(&sim) };
        // Neither the half-rebuilt drive nor the first one comes back.
        drives.truncate(4);
        drives.remove(lost);
        let mut group = Group::open(&sim, drives, 2);
        let id = group.install(SimDrive::new(&sim.env(), "another", 1536 * KIB, 512));
        sim.block_on(async {
            if rng.chance(1, 2) {
                work(&group, &mut model, &mut rng, 5, 3).await;
            }
            group.leader().replace(MemberIndex(lost as u16), id, uuid(&mut rng)).await.expect("the drive fits");
            until_in_sync(&group).await;
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
}

#[test]
fn a_rebuild_that_stopped_at_an_unreadable_stripe_keeps_what_it_had_up_to_date() {
    // Regression: the rebuild stopped, the checkpoint stayed, and the stripe groups below it were
    // no longer written on the new drive. After a restart the rebuild went on at the checkpoint,
    // and the new drive was stale below it.
    let mut stopped_later = 0;
    for seed in seeds(30) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid5, 4, 16 * KIB);
        let mut group = Group::create(&sim, shape, new_drives(&sim, 4, 1536 * KIB, 512), 1 + rng.index(2));
        let mut model = Model::new(group.size());
        rng.fill(&mut model.bytes);
        let spare = SimDrive::new(&sim.env(), "spare", 1536 * KIB, 512);
        let lost = rng.index(4);
        let bad = (lost + 1 + rng.index(3)) % 4;
        let id = group.install(spare.clone());
        let size = group.size();
        sim.block_on(async {
            let leader = group.leader();
            leader.write(0, Buf::from(model.bytes.clone()), false).await.expect("writable");
            let geometry = leader.shared().geometry.clone();
            let last = geometry.data_start + geometry.bands * geometry.stripe_group_bytes;
            group.drives[bad].media_error(last - 4096..last);
            leader.fail_member(MemberIndex(lost as u16)).await.expect("one may be lost");
            leader.replace(MemberIndex(lost as u16), id, uuid(&mut rng)).await.expect("the drive fits");
            spare.set_latency(Latency::between(1_000_000_000, 4_000_000_000));
            group.jobs_end().await;
            spare.set_latency(Latency::USUAL);
            assert_eq!(group.state(lost), MemberState::Rebuilding, "it could not end");
            let start = superblock(group.member((lost + 1) % 4)).rebuild.map_or(0, |rebuild| rebuild.next_chunk);
            stopped_later += u64::from(start > 0);
            // All data is written anew, including the unreadable place.
            rng.fill(&mut model.bytes);
            for at in (0..size).step_by(48 * KIB as usize) {
                let new = model.bytes[at as usize..(at + 48 * KIB) as usize].to_vec();
                leader.write(at, Buf::from(new), false).await.expect("writable");
            }
            leader.flush().await.expect("flushes");
        });
        let drives = if rng.chance(1, 2) { sim.block_on(group.stop()) } else { group.cut(&sim) };
        let drives: Vec<SimDrive> =
            drives.into_iter().filter(|drive| drive::Drive::info(drive).name != format!("d{lost}")).collect();
        let group = Group::open(&sim, drives, 1);
        sim.block_on(async {
            until_in_sync(&group).await;
            group.jobs_end().await;
            verify_with_others_lost(&group, &model, &mut rng, &[lost]).await;
        });
    }
    assert!(stopped_later > 0, "the test never came past a checkpoint");
}

#[test]
fn two_interrupted_rebuilds_both_end_right() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid6, 5, 16 * KIB);
        let mut group = Group::create(&sim, shape, new_drives(&sim, 5, 1024 * KIB, 512), 1 + rng.index(2));
        let mut model = Model::new(group.size());
        let one = rng.index(5);
        let other = (one + 1 + rng.index(4)) % 5;
        let spares = [SimDrive::new(&sim.env(), "s0", MIB, 512), SimDrive::new(&sim.env(), "s1", MIB, 512)];
        let ids = spares.clone().map(|spare| group.install(spare));
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 30, 6).await;
            for (member, id) in [one, other].into_iter().zip(ids) {
                group.leader().fail_member(MemberIndex(member as u16)).await.expect("two may be lost");
                group.leader().replace(MemberIndex(member as u16), id, uuid(&mut rng)).await.expect("the drive fits");
            }
            spares.iter().for_each(|spare| spare.set_latency(Latency::between(1_000_000_000, 4_000_000_000)));
            group.env.sleep(Duration::from_secs(rng.range(10..60))).await;
            group.leader().flush().await.expect("flushes");
        });
        let mut group = Some(group);
        for _ in 0..rng.range(1..4) {
            let interrupted = group.take().expect("there");
            let drives = if rng.chance(1, 2) { sim.block_on(interrupted.stop()) } else { interrupted.cut(&sim) };
            let reopened = Group::open(&sim, drives, 1 + rng.index(2));
            sim.block_on(async {
                work(&reopened, &mut model, &mut rng, 2, 4).await;
                reopened.env.sleep(Duration::from_secs(rng.below(40))).await;
                reopened.leader().flush().await.expect("flushes");
            });
            group = Some(reopened);
        }
        spares.iter().for_each(|spare| spare.set_latency(Latency::USUAL));
        let group = group.expect("there");
        sim.block_on(async {
            until_in_sync(&group).await;
            verify_with_others_lost(&group, &model, &mut rng, &[one, other]).await;
        });
    }
}

#[test]
fn a_parity_strip_behind_the_checkpoint_of_a_drive_that_is_being_filled_is_right_after_a_crash() {
    // Regression (seed 504582): the only parity of a stripe was on such a drive, so no member held
    // a record. After a crash between the data and the parity, the rebuild went on behind the
    // stripe, and the next lost member also lost a block that no write had touched.
    let shape = shape(Level::Raid5, 3, 4 * KIB);
    let parity_strip = 2;
    let mut behind = 0;
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let mut group = Group::create(&sim, shape, new_drives(&sim, 3, 1536 * KIB, 4096), 1);
        let history = History::shared(&group);
        let lost = rng.index(3);
        let filled = SimDrive::new(&sim.env(), "filled", 1536 * KIB, 4096);
        filled.set_latency(Latency::between(1_000_000_000, 2_000_000_000));
        let id = group.install(filled);
        sim.block_on(async {
            let all = Request::Write { fua: true };
            perform(group.leader(), &history, all, 0, group.size()).await.expect("writable");
            group.leader().fail_member(MemberIndex(lost as u16)).await.expect("one may be lost");
            group.leader().replace(MemberIndex(lost as u16), id, uuid(&mut rng)).await.expect("the drive fits");
            while group.leader().status().jobs.iter().all(|job| job.done_bytes == 0) {
                group.env.sleep(Duration::from_millis(100)).await;
            }
        });
        let mut drives = sim.block_on(group.stop());
        drives.remove(lost);
        let Some(checkpoint) = superblock(&drives[0]).rebuild else { continue };
        let group = Group::open(&sim, drives, 1);
        let geometry = group.leader().shared().geometry.clone();
        // With one set and stripe groups of one allocation chunk, both have the same numbers.
        let stripe_group = StripeGroup(rng.below(checkpoint.next_chunk.max(1)));
        let mut rows = geometry.row_ranges().map(|row| row.start).collect::<Vec<u64>>();
        rows.retain(|&offset| usize::from(geometry.member(stripe_group, offset, parity_strip).0) == lost);
        let offset = geometry.offset(stripe_group, rng.index(parity_strip), *rng.pick(&rows));
        behind += u64::from(checkpoint.next_chunk > 0 && group.state(lost) == MemberState::Rebuilding);
        sim.stop_after(rng.below(30));
        let write = Request::Write { fua: rng.chance(1, 2) };
        let _ = sim.try_block_on(perform(group.leader(), &history, write, offset, 4 * KIB));
        let group = group.power_cut(&sim);
        group.drives.iter().for_each(|drive| drive.set_latency(Latency::USUAL));
        sim.block_on(async {
            settle(&group, &history, &mut rng).await;
            until_in_sync(&group).await;
            assert_eq!(group.differences().await, 0, "seed {seed}: data and parity agree");
            group.member((lost + 1) % 3).fail();
            verify_latest(&group, &history, &mut rng).await;
        });
    }
    if seeds(60).end > 30 {
        assert!(behind > 20, "only {behind} writes went behind a checkpoint: the test is blind");
    }
}

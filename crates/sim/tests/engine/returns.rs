//! A drive that left and comes back gets its dirty regions, and no more.

use std::time::Duration;

use array::{Cause, Event, MemberIndex};
use drive::{Buf, Env};
use format::{CrashSafety, Shape};
use sim::{OpKind, Phase, Rng, Sim, SimDrive};

use crate::group::*;
use crate::rebuild::{until_in_sync, verify_with_others_lost};

fn redundant_shapes(strip: u64) -> Vec<Shape> {
    every_level(strip).into_iter().filter(|shape| shape.survives() > 0).collect()
}

const DRIVE_BYTES: u64 = 2 * MIB;

/// A group that was written all over, durably. Its checksums are on or off.
fn filled(sim: &Sim, shape: Shape, rng: &mut Rng) -> (Group, Model) {
    let drives = new_drives(sim, usize::from(shape.members), DRIVE_BYTES, *rng.pick(&[512, 4096]));
    let protection = Protection { safety: CrashSafety::On, checksums: rng.chance(1, 2) };
    let group = Group::create_with(sim, shape, protection, drives, 1 + rng.index(3));
    let mut model = Model::new(group.size());
    rng.fill(&mut model.bytes);
    sim.block_on(async {
        group.leader().write(0, Buf::from(model.bytes.clone()), false).await.expect("writable");
        group.leader().flush().await.expect("flushes");
    });
    (group, model)
}

/// Pulls a member's drive. A random part of its cache is lost.
async fn pull(group: &Group, member: usize, rng: &mut Rng) -> SimDrive {
    let drive = group.member(member);
    drive.fail();
    drive.power_cut(rng);
    // The flush notices it at the latest.
    group.leader().flush().await.expect("the others flush");
    drive.clone()
}

/// The missed bytes that the group reported when a drive took a member's slot.
fn missed(group: &Group) -> Vec<Option<u64>> {
    let events = group.events.borrow();
    let started = |event: &Event| match event {
        Event::RebuildStarted { dirty_bytes, .. } => Some(*dirty_bytes),
        _ => None,
    };
    events.iter().filter_map(started).collect()
}

#[test]
fn a_drive_that_was_pulled_under_load_gets_what_it_missed() {
    for seed in seeds(120) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&redundant_shapes(*rng.clone().pick(&[4 * KIB, 16 * KIB, 64 * KIB])));
        let (mut group, mut model) = filled(&sim, shape, &mut rng);
        for _ in 0..1 + rng.index(3) {
            let lost = rng.index(usize::from(shape.members));
            let drive = sim.block_on(async {
                // Written, and not flushed on all members.
                let rounds = rng.index(4);
                work(&group, &mut model, &mut rng, rounds, 3).await;
                let mut forks = (rng.fork(), rng.fork());
                let drive = group.member(lost);
                let pulling = async {
                    group.env.sleep(Duration::from_nanos(forks.0.below(2_000_000))).await;
                    drive.fail();
                    drive.power_cut(&mut forks.0);
                };
                both(pulling, work(&group, &mut model, &mut forks.1, rounds, 4)).await;
                pull(&group, lost, &mut rng).await
            });
            let id = group.install(drive.revive());
            sim.block_on(async {
                let mut forks = (rng.fork(), rng.fork());
                let rounds = rng.index(12);
                let back = async {
                    group.env.sleep(Duration::from_nanos(forks.0.below(400_000))).await;
                    let identity = uuid(&mut forks.0);
                    group.leader().replace(MemberIndex(lost as u16), id, identity).await.expect("it is the old one");
                };
                both(back, work(&group, &mut model, &mut forks.1, rounds, 4)).await;
                until_in_sync(&group).await;
                verify(&group, &model, &mut rng).await;
            });
        }
        assert!(missed(&group).iter().all(Option::is_some), "seed {seed}: {:?}", group.events.borrow());
        sim.block_on(async {
            let spared: Vec<usize> =
                rng.chance(1, 2).then(|| rng.index(usize::from(shape.members))).into_iter().collect();
            verify_with_others_lost(&group, &model, &mut rng, &spared).await;
        });
    }
}

#[test]
fn a_drive_that_missed_one_write_gets_one_stripe_group() {
    for shape in redundant_shapes(16 * KIB) {
        let sim = Sim::new(5);
        let mut rng = sim.rng();
        let (mut group, mut model) = filled(&sim, shape, &mut rng);
        let drive = sim.block_on(pull(&group, 0, &mut rng));
        sim.block_on(group.leader().write(0, Buf::from(vec![9; 4096]), false)).expect("the others take it");
        model.bytes[..4096].fill(9);
        let id = group.install(drive.revive());
        let index = group.drives[usize::from(id.0)].index();
        sim.trace_start();
        sim.block_on(async {
            group.leader().replace(MemberIndex(0), id, uuid(&mut rng)).await.expect("it is the old one");
            until_in_sync(&group).await;
        });
        let stripe_group = group.leader().shared().geometry.stripe_group_bytes;
        let data_start = group.leader().shared().geometry.data_start;
        let data_end = data_start + group.leader().shared().geometry.bands * stripe_group;
        let writes = sim.trace_take().into_iter().filter(|entry| {
            entry.drive_index == index
                && (entry.phase, entry.kind) == (Phase::Done, OpKind::Write)
                && (data_start..data_end).contains(&entry.offset)
        });
        let bytes: u64 = writes.map(|entry| entry.len).sum();
        assert!(bytes <= stripe_group, "{shape}: {bytes} bytes for one stripe group of {stripe_group}");
        assert_eq!(missed(&group), [Some(stripe_group)], "{shape}");
        sim.block_on(verify_with_others_lost(&group, &model, &mut rng, &[]));
    }
}

#[test]
fn a_drive_that_was_written_elsewhere_is_filled_whole() {
    let sim = Sim::new(8);
    let mut rng = sim.rng();
    let shape = Shape::of(format::Level::Raid1, 2).strip_bytes(16 << 10).build().expect("a shape");
    let (mut group, model) = filled(&sim, shape, &mut rng);
    let drive = sim.block_on(pull(&group, 1, &mut rng)).revive();
    // Another machine runs its half of the mirror, and writes to it.
    let elsewhere = Group::open(&sim, vec![drive], 1);
    sim.block_on(async {
        elsewhere.leader().write(0, Buf::from(vec![1; 65536]), false).await.expect("half a mirror is enough");
    });
    let drive = sim.block_on(elsewhere.stop()).remove(0);
    let id = group.install(drive);
    sim.block_on(async {
        group.leader().replace(MemberIndex(1), id, uuid(&mut rng)).await.expect("it is filled");
        until_in_sync(&group).await;
        assert_eq!(missed(&group), [None]);
        verify_with_others_lost(&group, &model, &mut rng, &[1]).await;
    });
}

#[test]
fn a_spare_that_took_the_place_ends_what_was_known() {
    let sim = Sim::new(9);
    let mut rng = sim.rng();
    let shape = Shape::of(format::Level::Raid5, 4).strip_bytes(16 << 10).build().expect("a shape");
    let (mut group, mut model) = filled(&sim, shape, &mut rng);
    let old = sim.block_on(pull(&group, 2, &mut rng)).revive();
    let new = group.install(SimDrive::new(&sim.env(), "new", DRIVE_BYTES, 512));
    sim.block_on(async {
        group.leader().replace(MemberIndex(2), new, uuid(&mut rng)).await.expect("it fits");
        until_in_sync(&group).await;
        work(&group, &mut model, &mut rng, 5, 3).await;
        group.leader().fail_member(MemberIndex(2)).await.expect("one may be lost");
    });
    let id = group.install(old);
    sim.block_on(async {
        group.leader().replace(MemberIndex(2), id, uuid(&mut rng)).await.expect("it fits");
        until_in_sync(&group).await;
        assert_eq!(missed(&group), [None, None]);
        verify_with_others_lost(&group, &model, &mut rng, &[2]).await;
    });
}

#[test]
fn who_hears_late_that_a_drive_was_pulled_does_no_harm_to_the_spare_in_its_place() {
    for (index, shape) in redundant_shapes(16 * KIB).into_iter().enumerate() {
        let sim = Sim::new(index as u64);
        let mut rng = sim.rng();
        let (mut group, _) = filled(&sim, shape, &mut rng);
        let member = MemberIndex(1);
        let pulled = group.leader().status().members[1].drive.expect("it is there");
        let spare = group.install(SimDrive::new(&sim.env(), "spare", DRIVE_BYTES, 512));
        let identity = uuid(&mut rng);
        sim.block_on(async {
            group.leader().add_spare(spare, identity).await.expect("it fits");
            pull(&group, 1, &mut rng).await;
            while group.leader().status().members[1].drive != Some(spare) {
                group.env.sleep(Duration::from_micros(50)).await;
            }
            group.leader().fail_member_on(member, pulled, Cause::Pulled).await.expect("somebody else saw it");
            until_in_sync(&group).await;
        });
        assert_eq!(group.leader().status().members[1].drive, Some(spare), "{shape}");
    }
}

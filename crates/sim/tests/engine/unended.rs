//! Writes that members refuse which the group cannot do without.

use std::time::Duration;

use drive::{BlockError, Buf, BufMut, DriveError, Env};
use format::{BLOCK, CrashSafety, Level};
use sim::{OpKind, Rng, Sim, SimDrive};

use crate::group::*;

const ERROR: DriveError = DriveError::Os { operation: "simulated", errno: 5 };

/// A group that was written all over.
fn filled(sim: &Sim, shape: format::Shape, protection: Protection, rng: &mut Rng) -> (Group, Model) {
    let drives = new_drives(sim, usize::from(shape.members), 640 * KIB, 4096);
    let group = Group::create_with(sim, shape, protection, drives, 1);
    let mut model = Model::new(group.size());
    rng.fill(&mut model.bytes);
    sim.block_on(group.leader().write(0, Buf::from(model.bytes.clone()), true)).expect("writable");
    (group, model)
}

fn block_of(model: &Model, at: u64) -> &[u8] {
    &model.bytes[at as usize..at as usize + BLOCK]
}

#[test]
fn a_write_that_a_needed_member_refuses_changes_no_block_that_nobody_wrote() {
    // The story: the syndromes were new, the data strip was old, the member had to stay, and the record was settled: blocks of lost members
    // were computed from that, and what was wrong was written to the drive that took their place.
    let mut refused = 0;
    let mut unreadable = 0;
    let plain = [CrashSafety::On, CrashSafety::Strict, CrashSafety::Off].map(Protection::plain);
    for protection in plain.into_iter().chain([Protection::DEFAULT]) {
        for shape in every_level(4096) {
            for errors in 1..12 {
                let sim = Sim::new(errors);
                let mut rng = sim.rng();
                let (group, mut model) = filled(&sim, shape, protection, &mut rng);
                for lost in 0..shape.survives() {
                    group.drives[lost].fail();
                }
                let geometry = group.leader().shared().geometry.clone();
                let (at, member) = loop {
                    let at = rng.below(group.size() / BLOCK as u64) * BLOCK as u64;
                    let place = geometry.place(at);
                    let member = usize::from(geometry.member(place.unit, place.x, place.role).0);
                    let first = member / shape.members_per_set() * shape.members_per_set();
                    if member >= shape.survives() && (first == 0 || shape.survives() == 0) {
                        break (at, member);
                    }
                };
                let new = vec![0xA5; BLOCK];
                sim.block_on(async {
                    // Who is lost has left before.
                    verify(&group, &model, &mut rng).await;
                    group.leader().flush().await.expect("flushes");
                    for _ in 0..errors {
                        group.drives[member].error_next(OpKind::Write, ERROR);
                    }
                    let written = group.leader().write(at, Buf::from(new.clone()), false).await;
                    refused += u32::from(written.is_err());
                    for other in (0..group.size()).step_by(BLOCK).filter(|&other| other != at) {
                        match group.leader().read(other, BufMut::zeroed(BLOCK)).await {
                            Ok(read) => same(&read, block_of(&model, other), other),
                            Err(BlockError::Lost { .. }) if written.is_err() && shape.survives() > 0 => unreadable += 1,
                            Err(error) => panic!("{shape}, {protection}, {errors} errors: {error}"),
                        }
                    }
                    // The drive takes writes again, and nobody asks for these blocks meanwhile.
                    group.drives[member].revive();
                    sim.env().sleep(Duration::from_secs(120)).await;
                    let now = group.leader().read(at, BufMut::zeroed(BLOCK)).await.expect("readable");
                    match written {
                        Ok(()) => same(&now, &new, at),
                        Err(_) => assert!(*now == new[..] || *now == *block_of(&model, at), "{shape}, {protection}"),
                    }
                    model.bytes[at as usize..at as usize + BLOCK].copy_from_slice(&now);
                    verify(&group, &model, &mut rng).await;
                    group.leader().write(at, Buf::from(block_of(&model, at).to_vec()), true).await.expect("writable");
                    verify(&group, &model, &mut rng).await;
                });
            }
        }
    }
    assert!(refused > 100 && unreadable > 0, "refused {refused}, unreadable meanwhile {unreadable}");
}

#[test]
fn sets_that_are_well_go_on_beside_one_that_takes_no_writes_any_more() {
    for (level, sets, members) in [(Level::Raid10, 2, 4), (Level::Raid50, 2, 6), (Level::Raid60, 2, 8)] {
        let shape = match level {
            Level::Raid10 => shape(level, members, None, None, None, 4096),
            _ => shape(level, members, None, None, Some(sets), 4096),
        };
        let sim = Sim::new(3);
        let mut rng = sim.rng();
        let (group, mut model) = filled(&sim, shape, Protection::DEFAULT, &mut rng);
        let geometry = group.leader().shared().geometry.clone();
        let broken = |drive: &SimDrive| (0..100_000).for_each(|_| drive.error_next(OpKind::Write, ERROR));
        group.drives[..shape.members_per_set()].iter().for_each(broken);
        let (mut refused, mut taken) = (0, 0);
        sim.block_on(async {
            for round in 0..4 {
                for at in (0..group.size()).step_by(BLOCK) {
                    let new = vec![round; BLOCK];
                    let well = geometry.place(at).unit.0 % geometry.sets != 0;
                    match group.leader().write(at, Buf::from(new.clone()), false).await {
                        Ok(()) => {
                            assert!(well, "{shape}: the drives take nothing");
                            model.bytes[at as usize..at as usize + BLOCK].copy_from_slice(&new);
                            taken += 1;
                        }
                        Err(error) => {
                            assert!(!well, "{shape}: {error}");
                            refused += 1;
                        }
                    }
                }
            }
            for at in (0..group.size()).step_by(BLOCK) {
                if geometry.place(at).unit.0 % geometry.sets != 0 {
                    let read = group.leader().read(at, BufMut::zeroed(BLOCK)).await.expect("readable");
                    same(&read, block_of(&model, at), at);
                }
            }
        });
        assert!(refused > 200 && taken > 200, "{shape}: {refused} refused, {taken} taken");
    }
}

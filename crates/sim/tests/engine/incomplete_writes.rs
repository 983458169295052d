//! Writes that fail on members that the group cannot do without.

use std::time::Duration;

use drive::{BlockError, Buf, BufMut, DriveError, Env};
use format::{BLOCK, CrashSafety, Level};
use sim::{OpKind, Rng, Sim};

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
    // Regression: the parity was new, the data strip was old, the member had to stay, and the
    // record was completed. Blocks of lost members were computed from that, and the wrong data was
    // written to the drive that took their place.
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
                    let member = usize::from(geometry.member(place.stripe_group, place.offset, place.role).0);
                    let first = member / shape.members_per_set() * shape.members_per_set();
                    if member >= shape.survives() && (first == 0 || shape.survives() == 0) {
                        break (at, member);
                    }
                };
                let new = vec![0xA5; BLOCK];
                sim.block_on(async {
                    // The lost members have left before.
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
                    // The drive takes writes again, and these blocks get no requests meanwhile.
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
fn sets_that_are_well_go_on_beside_one_whose_media_take_no_writes_any_more() {
    // The incomplete writes of the broken set hold three things that the other sets need, too: open
    // records (255 on a shard), room in the log, and ranges that a power cut may make unknown (508
    // of a group).
    let raid60 = shape(Level::Raid60, 8, 4096);
    for (shape, shards, drive_mib) in [
        (shape(Level::Raid10, 4, 4096), 1, 24),
        (shape(Level::Raid50, 6, 4096), 1, 24),
        (raid60, 1, 24),
        (raid60, 4, 48),
    ] {
        let sim = Sim::new(3);
        let drives = new_drives(&sim, usize::from(shape.members), drive_mib << 20, 4096);
        let group = Group::create(&sim, shape, drives, shards);
        let mut model = Model::new(group.size());
        let geometry = group.leader().shared().geometry.clone();
        assert!(geometry.bands > 150, "a set has many stripe groups: {}", geometry.bands);
        let stripe = geometry.data * BLOCK;
        // One or two stripes of each stripe group, from the two sets in turn.
        let first_stripes = (0..group.size()).step_by(stripe).filter(|at| geometry.place(*at).offset < 8 * KIB);
        sim.block_on(async {
            for at in first_stripes.clone() {
                group.leader().write(at, Buf::zeroes(stripe), false).await.expect("writable");
            }
            group.leader().flush().await.expect("flushes");
        });
        let data = geometry.data_start..geometry.data_start + geometry.bands * geometry.stripe_group_bytes;
        group.drives[..shape.members_per_set()].iter().for_each(|drive| drive.refuse_writes(data.clone()));
        let (mut refused, mut taken) = (0, 0);
        sim.block_on(async {
            for round in 1..=3_u8 {
                for (index, at) in first_stripes.clone().enumerate() {
                    let well = !geometry.place(at).stripe_group.0.is_multiple_of(geometry.sets);
                    // Whole stripes leave an indeterminate range, single blocks do not.
                    let len = if !well || index / 2 % 2 == 0 { stripe } else { BLOCK };
                    let new = vec![round; len];
                    if !well && round > 1 && index % 64 != 0 {
                        continue;
                    }
                    match group.shards[index % shards].write(at, Buf::from(new.clone()), false).await {
                        Ok(()) => {
                            assert!(well, "{shape}: the media take nothing");
                            model.bytes[at as usize..at as usize + len].copy_from_slice(&new);
                            taken += 1;
                        }
                        Err(error) => {
                            assert!(!well, "{shape}: {error}");
                            refused += 1;
                        }
                    }
                }
            }
            for at in first_stripes {
                if !geometry.place(at).stripe_group.0.is_multiple_of(geometry.sets) {
                    let read = group.leader().read(at, BufMut::zeroed(stripe)).await.expect("readable");
                    same(&read, &model.bytes[at as usize..at as usize + stripe], at);
                }
            }
        });
        assert!(refused > 150 && taken > 500, "{shape}: {refused} refused, {taken} taken");
    }
}

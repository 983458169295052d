//! Long random work of every kind, compared with a model, with faults that the level survives.

use std::time::Duration;

use array::MemberIndex;
use drive::{DriveError, Env};
use format::{Level, MemberState, Shape};
use sim::{Latency, OpKind, Rng, Sim, SimDrive};

use crate::group::*;

/// A random fault. Each fault alone, and all of them one after the other, are within the promised
/// tolerance.
async fn misfortune(group: &mut Group, rng: &mut Rng, shape: Shape) {
    let spared = group.leader().shared().lost_in_any_set();
    let member = rng.index(usize::from(shape.members));
    let healthy = group.state(member) == MemberState::InSync;
    match rng.below(8) {
        0 | 1 if spared < shape.survives() && healthy => group.member(member).fail_after(rng.below(30)),
        2 if spared < shape.survives() && healthy => {
            let kind = *rng.pick(&[OpKind::Read, OpKind::Write, OpKind::Flush]);
            for _ in 0..2 {
                group.member(member).error_next(kind, DriveError::Os { operation: "try", errno: 5 });
            }
        }
        3 => group.member(member).slow(*rng.pick(&[1, 20, 500])),
        4 => {
            let latency = Latency::between(1_000, *rng.pick(&[1_000, 50_000, 900_000]));
            group.member(member).set_latency(latency.with_spikes(50, 20_000_000));
        }
        5 | 6 => {
            let lost = group.leader().shared().slots().find(|(_, slot)| slot.state == MemberState::Faulty);
            let Some((member, _)) = lost else { return };
            let number = group.drives.len();
            if number > 60 {
                return;
            }
            let bytes = drive::Drive::info(&group.drives[0]).size_bytes;
            let sector = drive::Drive::info(&group.drives[0]).sector_bytes;
            let id = group.install(SimDrive::new(&group.env, &format!("r{number}"), bytes, sector));
            let identity = uuid(rng);
            if rng.chance(1, 2) {
                group.leader().replace(member, id, identity).await.expect("the drive fits");
            } else {
                group.leader().add_spare(id, identity).await.expect("the drive fits");
            }
        }
        _ => {
            group.leader().start_scrub(array::ScrubMode::Repair);
        }
    }
}

trait LostInAnySet {
    fn lost_in_any_set(&self) -> usize;
}

impl LostInAnySet for std::sync::Arc<array::Shared> {
    fn lost_in_any_set(&self) -> usize {
        // A drive that is about to fail counts as lost already. There is at most one at a time, and
        // the test waits for its failure.
        (0..self.geometry.sets).map(|set| self.lost_in_set(set)).max().expect("a group has a set")
    }
}

#[test]
fn long_random_work_with_faults_reads_back_exactly() {
    for seed in seeds(120) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let strip = *rng.pick(&[4 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB]);
        let shape = *rng.pick(&every_level(strip));
        let sector = *rng.pick(&[512, 4096]);
        let bytes = (200 * KIB + 4 * strip.max(64 * KIB)).max(512 * KIB);
        let members = usize::from(shape.members);
        let mut group = Group::create(&sim, shape, new_drives(&sim, members, bytes, sector), 1 + rng.index(4));
        let mut model = Model::new(group.size());
        sim.block_on(async {
            for _ in 0..rng.range(2..10) {
                work(&group, &mut model, &mut rng, 4, 8).await;
                misfortune(&mut group, &mut rng, shape).await;
                work(&group, &mut model, &mut rng, 6, 8).await;
                // A planned failure has happened before the next fault.
                for index in 0..members {
                    let drive = group.member(index);
                    let (probe, flush) = (drive.clone(), drive.clone());
                    for _ in 0..40 {
                        let _ = drive::Drive::flush(&probe).await;
                    }
                    let _ = drive::Drive::read(&flush, 0, drive::BufMut::zeroed(4096)).await;
                }
                group.leader().flush().await.expect("enough members flush");
                work(&group, &mut model, &mut rng, 2, 4).await;
            }
            verify(&group, &model, &mut rng).await;
            group.jobs_end().await;
            verify(&group, &model, &mut rng).await;
        });
        // The content is the same after a stop and a new assembly.
        let shards = 1 + rng.index(3);
        let drives: Vec<SimDrive> = sim.block_on(group.stop());
        let living: Vec<SimDrive> = drives.into_iter().filter(|drive| !drive.is_failed()).collect();
        let group = Group::open(&sim, living, shards);
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

#[test]
fn single_bytes_and_odd_ranges_are_exact() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&every_level(4 * KIB));
        let members = usize::from(shape.members);
        let group = Group::create(&sim, shape, new_drives(&sim, members, 384 * KIB, 512), 1 + rng.index(3));
        let mut model = Model::new(group.size());
        sim.block_on(async {
            // All writes go to a few neighboring stripes, so that they conflict often.
            let area = group.size().min(96 * KIB);
            for _ in 0..60 {
                let writes: Vec<(u64, Vec<u8>)> = (0..rng.range(1..6))
                    .map(|_| {
                        let start = rng.below(area);
                        let mut bytes = vec![0; rng.range(1..2000).min(area - start) as usize];
                        rng.fill(&mut bytes);
                        (start, bytes)
                    })
                    .collect();
                let array = rng.pick(&group.shards);
                for (start, bytes) in &writes {
                    model.bytes[*start as usize..*start as usize + bytes.len()].copy_from_slice(bytes);
                    if rng.chance(1, 8) {
                        // The discard is within the range of the next write.
                        let middle = (*start + bytes.len() as u64 / 2).min(area - 1);
                        array.discard(middle, 1).await.expect("discards");
                    }
                    array.write(*start, drive::Buf::from(bytes.clone()), rng.chance(1, 8)).await.expect("writable");
                }
            }
            verify(&group, &model, &mut rng).await;
            if shape.survives() > 0 {
                group.leader().fail_member(MemberIndex(rng.index(members) as u16)).await.expect("one may be lost");
            }
            group.env.sleep(Duration::from_millis(1)).await;
            verify(&group, &model, &mut rng).await;
        });
    }
}

#[test]
fn wide_and_narrow_groups_with_small_and_large_strips_hold_their_bytes() {
    for (shape, bytes) in [
        (valid(Shape::of(Level::Nm, 64).parity(8), 4 * KIB), 512 * KIB),
        (shape(Level::Raid6, 64, 4 * KIB), 256 * KIB),
        (shape(Level::Raid10, 64, 4 * KIB), 512 * KIB),
        (valid(Shape::of(Level::Raid60, 64).sets(8), 4 * KIB), 512 * KIB),
        (shape(Level::Raid5, 3, 1024 * KIB), 5 * MIB),
        (shape(Level::Raid1, 2, 1024 * KIB), 3 * MIB),
        (valid(Shape::of(Level::Nm, 10).parity(8), 4 * KIB), 512 * KIB),
        (shape(Level::Raid0, 2, 4 * KIB), 512 * KIB),
    ] {
        let sim = Sim::new(1);
        let mut rng = sim.rng();
        let members = usize::from(shape.members);
        let group = Group::create(&sim, shape, new_drives(&sim, members, bytes, 512), 2);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 10, 6).await;
            for _ in 0..shape.survives() {
                let strips = shape.members_per_set();
                let set = rng.index(usize::from(shape.sets)) * strips;
                let member = set + rng.index(strips);
                let _ = group.leader().fail_member(MemberIndex(member as u16)).await;
            }
            work(&group, &mut model, &mut rng, 10, 6).await;
            verify(&group, &model, &mut rng).await;
        });
    }
}

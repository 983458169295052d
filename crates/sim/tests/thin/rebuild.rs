//! Members are rebuilt while thin volumes are in use.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use array::MemberIndex;
use drive::{Drive, Env};
use format::Shape;
use sim::engine::*;
use sim::thin::pool::{create, drive_bytes, group_of, open_with, volume_blocks};
use sim::thin::{Faults, Model, any_compression, random};
use sim::{Latency, Rng, Sim, SimDrive};

#[test]
fn random_runs_keep_what_was_flushed_and_acknowledged() {
    let mut faults = Faults::default();
    for seed in seeds(30) {
        // A run that fails is the last one that is named.
        println!("seed {seed}");
        faults.add(&random(seed, std::env::var("PURLIN_SIM_SEED").is_ok()));
    }
    println!("{faults}");
}

/// Members of each set, at random: as many as the level survives.
pub fn most_members(shape: &Shape, rng: &mut Rng) -> Vec<usize> {
    let per_set = shape.members_per_set();
    let sets = (0..usize::from(shape.sets)).map(|set| {
        let mut members: Vec<usize> = (set * per_set..(set + 1) * per_set).collect();
        rng.shuffle(&mut members);
        members.truncate(shape.survives());
        members
    });
    sets.flatten().collect()
}

/// Puts a new drive in the place of each of these members, which are lost.
pub async fn replace(group: &Group, new: &[array::DriveId], members: &[usize], rng: &mut Rng) {
    for (member, id) in members.iter().zip(new) {
        let member = MemberIndex(*member as u16);
        // It may have left the group already.
        let _ = group.leader().fail_member(member).await;
        group.leader().replace(member, *id, uuid(rng)).await.expect("the drive fits");
    }
}

/// Installs as many new drives.
pub fn install(group: &mut Group, sim: &Sim, shape: &Shape, count: usize, rng: &mut Rng) -> Vec<array::DriveId> {
    let drives = (0..count).map(|number| {
        let drive = SimDrive::new(&sim.env(), &format!("new{number}"), drive_bytes(shape), 512);
        drive.set_latency(Latency::between(1_000, *rng.pick(&[2_000, 20_000, 200_000])));
        group.install(drive)
    });
    drives.collect()
}

/// Cuts the power, or kills the process, and starts the group without these members.
pub fn crash_without(group: Group, sim: &Sim, is_kill: bool, members: &[usize]) -> Group {
    let lost: Vec<String> = members.iter().map(|member| group.member(*member).info().name.clone()).collect();
    let shards = group.shards.len();
    let mut drives = if is_kill { group.kill(sim) } else { group.cut(sim) };
    drives.retain(|drive| !drive.is_failed() && !lost.contains(&drive.info().name));
    Group::open(sim, drives, shards)
}

#[test]
fn frames_of_thin_volumes_survive_the_loss_of_all_members_that_had_them_before_a_rebuild() {
    let shapes: Vec<Shape> = every_level(4 * KIB).into_iter().filter(|shape| shape.survives() > 0).collect();
    for seed in seeds(4 * shapes.len() as u64) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shapes[seed as usize % shapes.len()];
        let mut group = group_of(&sim, &mut rng, shape);
        let model = RefCell::new(Model::default());
        let (blocks, compression) = (volume_blocks(&group), any_compression(&mut rng));
        let lost = most_members(&shape, &mut rng);
        let new = install(&mut group, &sim, &shape, lost.len(), &mut rng);
        sim.block_on(create(&group));
        let pool = sim.block_on(open_with(&group, blocks, compression));
        let is_kill = rng.chance(1, 3);
        sim.try_block_on(async {
            let (mut forks, ended) = ((rng.fork(), rng.fork()), Cell::new(false));
            for _ in 0..6 {
                pool.write_small(&model, &mut forks.0).await;
            }
            lost.iter().for_each(|member| group.member(*member).fail());
            let rebuild = async {
                replace(&group, &new, &lost, &mut forks.1).await;
                while !group.all_in_sync() {
                    group.env.sleep(Duration::from_micros(20)).await;
                }
                sim.stop_after(forks.1.below(30));
                ended.set(true);
            };
            let requests = async {
                while !ended.get() {
                    pool.write_small(&model, &mut forks.0).await;
                    group.env.sleep(Duration::from_micros(forks.0.below(5_000))).await;
                }
            };
            both(rebuild, requests).await;
        });
        assert!(group.all_in_sync(), "seed {seed}, {shape}");
        drop(pool);
        if is_kill {
            model.borrow_mut().killed();
        }
        let lost = most_members(&shape, &mut rng);
        let group = crash_without(group, &sim, is_kill, &lost);
        let pool = sim.block_on(open_with(&group, blocks, compression));
        sim.block_on(pool.observe_all(&model, &format!("seed {seed}, {shape}, members {lost:?} lost at last")));
    }
}

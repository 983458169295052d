//! Members on targets, compared with a model that knows every byte.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use array::Event;
use drive::{Buf, Env};
use format::{Level, Shape};
use sim::campaign::attempt;
use sim::{Latency, OpKind, Phase, Rng, Sim, SimConnection, SimDrive, SimEnv, Target, Way, Ways};

use crate::group::*;

const DRIVE_BYTES: u64 = MIB;

/// A group on two shards. Each member for which `remote` returns true is on a target of its own
/// with `addresses` addresses.
fn group(sim: &Sim, shape: Shape, remote: impl Fn(usize) -> bool, addresses: usize) -> (Group, Vec<Option<Target>>) {
    let drives = new_drives(sim, usize::from(shape.members), DRIVE_BYTES, 512);
    let mut ways = Ways::default();
    let target_of = |(index, drive): (usize, &SimDrive)| {
        let target = Target::new(sim, &format!("target{index}"), std::slice::from_ref(drive), addresses);
        ways.add(&target, std::slice::from_ref(drive));
        target
    };
    let mut target_of = target_of;
    let targets = drives.iter().enumerate().map(|(index, drive)| remote(index).then(|| target_of((index, drive))));
    let targets: Vec<Option<Target>> = targets.collect();
    (Group::create_over(sim, shape, Protection::DEFAULT, drives, Rc::new(ways), 2), targets)
}

fn raid5() -> Shape {
    shape(Level::Raid5, 3, 4 * KIB)
}

/// Runs `what` at random times.
async fn buggify(env: &SimEnv, rng: &mut Rng, times: usize, pause: Duration, mut what: impl FnMut(&mut Rng)) {
    for _ in 0..times {
        env.sleep(Duration::from_nanos(rng.below(pause.as_nanos() as u64))).await;
        what(rng);
    }
}

async fn until_in_sync(group: &Group) {
    for _ in 0..100_000 {
        if group.all_in_sync() {
            return;
        }
        group.env.sleep(Duration::from_millis(5)).await;
    }
    panic!("the group is not in sync after 500 s: {:?}, {:?}", group.leader().status(), group.events.borrow());
}

/// Everything can be read from member `remote`, with another member lost.
async fn verify_from(group: &Group, model: &Model, rng: &mut Rng, remote: usize) {
    let lost = (0..group.leader().shared().slots().count()).find(|member| *member != remote).expect("there are others");
    group.member(lost).fail();
    verify(group, model, rng).await;
}

/// Bytes of a member in the stripe groups that hold the changes in the model.
fn changed_bytes(group: &Group, model: &Model) -> u64 {
    let geometry = &group.leader().shared().geometry;
    let stripe_group_of = |offset: u64| geometry.place(offset).stripe_group.0;
    assert_eq!(geometry.sets, 1, "the stripe groups of a range follow on each other");
    let stripe_groups: BTreeSet<u64> = model
        .changed
        .iter()
        .flat_map(|&(start, len)| stripe_group_of(start)..=stripe_group_of(start + len - 1))
        .collect();
    stripe_groups.len() as u64 * geometry.stripe_group_bytes
}

/// How much each returning drive missed. `None`: it was rebuilt completely.
fn missed(group: &Group) -> Vec<Option<u64>> {
    let started = |event: &Event| match event {
        Event::RebuildStarted { dirty_bytes, .. } => Some(*dirty_bytes),
        _ => None,
    };
    group.events.borrow().iter().filter_map(started).collect()
}

#[test]
fn connections_may_be_reset_at_any_time() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, targets) = group(&sim, raid5(), |index| index < 2, 1);
        let mut model = Model::new(group.size());
        let network = sim.network();
        let mut forks = (rng.fork(), rng.fork());
        let mut resets = 0;
        sim.block_on(async {
            let buggify = buggify(&group.env, &mut forks.0, 30, Duration::from_millis(4), |rng| {
                let target = rng.pick(&targets[..2]).as_ref().expect("it has one");
                let connections = network.connections(&target.addresses()[0]);
                if !connections.is_empty() {
                    rng.pick(&connections).reset();
                    resets += 1;
                }
            });
            both(buggify, work(&group, &mut model, &mut forks.1, 40, 4)).await;
            verify(&group, &model, &mut rng).await;
        });
        assert!(resets > 10, "seed {seed}: {resets} resets");
        assert!(group.all_in_sync(), "seed {seed}: nobody was away for long: {:?}", group.events.borrow());
    }
}

#[test]
fn a_cut_member_leaves_after_its_time_and_gets_what_it_missed_and_no_more() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (mut group, targets) = group(&sim, raid5(), |index| index == 1, 1);
        let mut model = Model::new(group.size());
        let address = &targets[1].as_ref().expect("it has one").addresses()[0];
        let network = sim.network();
        // The upper limit of missed bytes, for each round.
        let mut most = Vec::new();
        sim.block_on(async {
            // If a member is cut off while a superblock is in flight, its drive becomes unknown to
            // the group and is rebuilt completely.
            work(&group, &mut model, &mut rng, 3, 3).await;
            for round in 0..2 {
                // Earlier writes are on all members.
                group.leader().flush().await.expect("nobody is away");
                model.changed.clear();
                let mut forks = (rng.fork(), rng.fork());
                // In one direction or in both: the target continues to execute commands, or its
                // answers do not reach the host.
                let ways = *rng.pick(&[&[Way::ToTarget][..], &[Way::ToHost], &[Way::ToTarget, Way::ToHost]]);
                let split = async {
                    group.env.sleep(Duration::from_nanos(forks.0.below(3_000_000))).await;
                    ways.iter().for_each(|way| network.cut(address, *way));
                };
                // Much work or little.
                let rounds = 1 + rng.index(15);
                both(split, work(&group, &mut model, &mut forks.1, rounds, 4)).await;
                assert!(round > 0 || sim.now() < 60_000_000_000, "requests waited for {} ns", sim.now());
                group.until_lost(1).await;
                let rounds = rng.index(5);
                work(&group, &mut model, &mut rng, rounds, 3).await;
                network.heal_all(address);
                let mut forks = (rng.fork(), rng.fork());
                let drive = group.member(1).clone();
                while !group.bring_back(1, &drive, &mut forks.0).await {
                    group.env.sleep(Duration::from_secs(1)).await;
                }
                most.push(changed_bytes(&group, &model));
                work(&group, &mut model, &mut forks.1, 5, 3).await;
                until_in_sync(&group).await;
                verify(&group, &model, &mut rng).await;
            }
            // Nothing that was delayed for long arrives any more.
            group.env.sleep(Duration::from_secs(60)).await;
            verify_from(&group, &model, &mut rng, 1).await;
        });
        let missed = missed(&group);
        assert_eq!(missed.len(), most.len(), "seed {seed}: {:?}", group.events.borrow());
        for (missed, most) in missed.iter().zip(&most) {
            assert!(missed.is_some_and(|missed| missed <= *most), "seed {seed}: {missed:?}, of {most} bytes");
        }
    }
}

#[test]
fn a_cut_member_that_missed_one_write_gets_one_stripe_group() {
    for ways in [&[Way::ToTarget][..], &[Way::ToHost], &[Way::ToTarget, Way::ToHost]] {
        let sim = Sim::new(5);
        let mut rng = sim.rng();
        let (mut group, targets) = group(&sim, raid5(), |index| index == 1, 1);
        let mut model = Model::new(group.size());
        rng.fill(&mut model.bytes);
        let address = &targets[1].as_ref().expect("it has one").addresses()[0];
        let network = sim.network();
        let stripe_group = group.leader().shared().geometry.stripe_group_bytes;
        let (data_start, bands) = (group.leader().shared().geometry.data_start, group.leader().shared().geometry.bands);
        assert!(bands > 4, "a stripe group is a small part of a member");
        let drive = group.member(1).clone();
        sim.block_on(async {
            group.leader().write(0, Buf::from(model.bytes.clone()), false).await.expect("writable");
            group.leader().flush().await.expect("flushes");
            ways.iter().for_each(|way| network.cut(address, *way));
            // The write waits until the member has left.
            let write = async {
                group.leader().write(0, Buf::from(vec![9; 4096]), false).await.expect("the others take it");
            };
            both(write, group.until_lost(1)).await;
            model.bytes[..4096].fill(9);
            network.heal_all(address);
            sim.trace_start();
            while !group.bring_back(1, &drive, &mut rng).await {
                group.env.sleep(Duration::from_secs(1)).await;
            }
            until_in_sync(&group).await;
        });
        assert_eq!(missed(&group), [Some(stripe_group)], "{ways:?}");
        let writes = sim.trace_take().into_iter().filter(|entry| {
            entry.drive_index == drive.index()
                && (entry.phase, entry.kind) == (Phase::Done, OpKind::Write)
                && (data_start..data_start + bands * stripe_group).contains(&entry.offset)
        });
        let bytes: u64 = writes.map(|entry| entry.len).sum();
        assert!(0 < bytes && bytes <= stripe_group, "{ways:?}: {bytes} bytes for one stripe group of {stripe_group}");
        sim.block_on(verify_from(&group, &model, &mut rng, 1));
    }
}

#[test]
fn a_target_that_lost_power_has_what_was_answered() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, targets) = group(&sim, raid5(), |index| index == 1, 1);
        let mut model = Model::new(group.size());
        let target = targets[1].as_ref().expect("it has one");
        sim.block_on(async {
            for _ in 0..3 {
                let mut forks = (rng.fork(), rng.fork());
                let failure = async {
                    group.env.sleep(Duration::from_nanos(forks.0.below(4_000_000))).await;
                    target.power_cut(&mut forks.0);
                    // The target is back within the time for which a member may be unreachable.
                    group.env.sleep(Duration::from_millis(forks.0.below(4000))).await;
                    target.start();
                };
                both(failure, work(&group, &mut model, &mut forks.1, 15, 4)).await;
            }
            verify(&group, &model, &mut rng).await;
            assert!(group.all_in_sync(), "seed {seed}: it was back in time: {:?}", group.events.borrow());
            verify_from(&group, &model, &mut rng, 1).await;
        });
    }
}

#[test]
fn a_target_may_be_restarted_under_load() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, targets) = group(&sim, raid5(), |index| index == 1, 1);
        let mut model = Model::new(group.size());
        let target = targets[1].as_ref().expect("it has one");
        sim.block_on(async {
            let mut forks = (rng.fork(), rng.fork());
            let restarts = async {
                for _ in 0..3 {
                    group.env.sleep(Duration::from_nanos(forks.0.below(3_000_000))).await;
                    target.kill();
                    group.env.sleep(Duration::from_millis(forks.0.below(4000))).await;
                    target.start();
                }
            };
            both(restarts, work(&group, &mut model, &mut forks.1, 40, 4)).await;
            assert!(group.all_in_sync(), "seed {seed}: {:?}", group.events.borrow());
            verify_from(&group, &model, &mut rng, 1).await;
        });
    }
}

#[test]
fn one_of_two_paths_may_be_cut() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, targets) = group(&sim, raid5(), |index| index == 1, 2);
        let mut model = Model::new(group.size());
        let addresses = targets[1].as_ref().expect("it has one").addresses();
        let network = sim.network();
        sim.block_on(async {
            for _ in 0..3 {
                let cut = rng.pick(addresses);
                let mut forks = (rng.fork(), rng.fork());
                let split = async {
                    group.env.sleep(Duration::from_nanos(forks.0.below(3_000_000))).await;
                    network.cut(cut, *forks.0.pick(&[Way::ToTarget, Way::ToHost]));
                };
                both(split, work(&group, &mut model, &mut forks.1, 15, 4)).await;
                group.env.sleep(Duration::from_secs(40)).await;
                group.take_out_lost().await;
                assert!(group.all_in_sync(), "seed {seed}: there was another path: {:?}", group.events.borrow());
                network.heal_all(cut);
                group.env.sleep(Duration::from_secs(20)).await;
            }
            verify_from(&group, &model, &mut rng, 1).await;
        });
    }
}

/// A group under load whose connections are reset. The target keeps the order of changes, or does
/// not.
fn reset_under_load(seed: u64, keeps_order: bool) {
    let sim = Sim::new(seed);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid1, 2, 4 * KIB);
    let (group, targets) = group(&sim, shape, |index| index == 1, 1);
    let target = targets[1].as_ref().expect("it has one");
    target.keep_order(keeps_order);
    group.member(1).set_latency(Latency::USUAL.with_spikes(3, 20_000_000));
    let mut model = Model::new(group.size());
    let network = sim.network();
    sim.block_on(async {
        let mut forks = (rng.fork(), rng.fork());
        let resets = buggify(&group.env, &mut forks.0, 40, Duration::from_millis(70), |_| {
            network.connections(&target.addresses()[0]).iter().for_each(SimConnection::reset);
        });
        // The same block is written again and again.
        let data_start = group.leader().shared().geometry.data_start;
        let writes = async {
            for round in 1..40 {
                for byte in [2 * round, 2 * round + 1] {
                    let bytes = Buf::from(vec![byte; 4096]);
                    group.leader().write(0, bytes, false).await.expect("it is there again in time");
                }
                group.env.sleep(Duration::from_millis(30)).await;
                assert_eq!(group.member(1).read_raw(data_start, 1), [2 * round + 1], "seed {seed}");
            }
            model.bytes[..4096].fill(79);
        };
        both(resets, writes).await;
        group.env.sleep(Duration::from_secs(1)).await;
        verify_from(&group, &model, &mut forks.1, 1).await;
    });
}

#[test]
fn what_a_reset_connection_left_at_a_target_does_not_overtake_what_came_after_it() {
    (0..10).for_each(|seed| reset_under_load(seed, true));
    let found = (0..10).filter(|&seed| attempt(|| reset_under_load(seed, false)).is_err()).count();
    assert!(found > 0, "without the order this test can fail");
}

#[test]
fn a_killed_process_and_a_split_lose_nothing() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, targets) = group(&sim, raid5(), |index| index == 1, 1);
        let mut model = Model::new(group.size());
        let address = &targets[1].as_ref().expect("it has one").addresses()[0];
        let network = sim.network();
        sim.block_on(work(&group, &mut model, &mut rng, 10, 4));
        // Many writes are in flight, with no task waiting for them, when the process is killed.
        let array = group.leader().clone();
        let bytes = model.bytes.clone();
        sim.env().spawn(async move {
            let again = bytes.chunks(4096).enumerate().map(|(index, block)| (index as u64 * 4096, block.to_vec()));
            for (at, block) in again {
                array.write(at, Buf::from(block), false).await.expect("one may be lost");
            }
        });
        sim.run_for(Duration::from_nanos(rng.below(3_000_000)));
        network.cut(address, *rng.pick(&[Way::ToTarget, Way::ToHost]));
        sim.run_for(Duration::from_nanos(rng.below(3_000_000_000)));
        let ways = group.ways.clone();
        let drives = group.kill(&sim);
        sim.run_for(Duration::from_nanos(rng.below(6_000_000_000)));
        network.heal_all(address);
        let group = sim.block_on(Group::open_over(sim.env(), drives, ways, 2));
        sim.block_on(async {
            verify(&group, &model, &mut rng).await;
            work(&group, &mut model, &mut rng, 10, 4).await;
            group.env.sleep(Duration::from_secs(60)).await;
            verify_from(&group, &model, &mut rng, 1).await;
        });
    }
}

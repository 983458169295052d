//! Thin volumes over a real group: random programs beside a model, power cuts, kills, full pools,
//! lost members.

mod convert;
mod crashes;
mod damage;
mod full;
mod full_degraded;
mod idle;
mod pace;
mod rebuild;
mod repack;
mod settings;
mod stores;

use std::cell::RefCell;

use drive::{Block, Buf, BufMut, join_all};
use format::Uuid;
use format::thin::anchor::{ANCHOR_BYTES, ANCHOR_DISTANCE_BYTES, Anchor};
use sim::engine::*;
use sim::thin::{Model, any_compression};
use sim::{Rng, Sim, SimEnv};
use volume::thin::{ArrayBacking, Thin};

use sim::thin::pool::{ARRAY, create, create_with, extents, group, group_of, open, open_with, volume_blocks};

#[test]
fn a_thin_volume_reads_as_it_was_written() {
    for seed in seeds(30) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let model = RefCell::new(Model::default());
        sim.block_on(async {
            create(&group).await;
            let compression = any_compression(&mut rng);
            let pool = open_with(&group, volume_blocks(&group), compression).await;
            pool.work(&model, &mut rng, 150).await;
            pool.observe_all(&model, &format!("seed {seed}, {shape}")).await;
        });
    }
}

#[test]
fn what_was_flushed_survives_power_cuts_and_what_was_acknowledged_survives_kills() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (mut group, shape) = group(&sim, &mut rng);
        let model = RefCell::new(Model::default());
        let blocks = volume_blocks(&group);
        let compression = any_compression(&mut rng);
        sim.block_on(create(&group));
        let mut pool = sim.block_on(open_with(&group, blocks, compression));
        for round in 0..1 + rng.index(4) {
            sim.stop_after(rng.below(3000));
            let mut fork = rng.fork();
            let steps = 1 + rng.index(120);
            sim.try_block_on(pool.work(&model, &mut fork, steps));
            let (is_kill, shards) = (rng.chance(1, 3), group.shards.len());
            if is_kill {
                model.borrow_mut().killed();
            }
            drop(pool);
            let drives = if is_kill { group.kill(&sim) } else { group.cut(&sim) };
            group = Group::open(&sim, drives, shards);
            pool = sim.block_on(open_with(&group, blocks, compression));
            let context =
                format!("seed {seed}, {shape}, round {round}, {}", if is_kill { "kill" } else { "power cut" });
            sim.block_on(pool.observe_all(&model, &context));
            pool.check_space();
        }
    }
}

/// Writes or zeroes random bytes, each byte by one request at most.
async fn scribble(volume: &Thin<ArrayBacking<SimEnv>>, rng: &mut Rng, bytes: &mut [u8]) {
    let mut requests = Vec::new();
    let mut at = rng.index(9000);
    while at < bytes.len() {
        let most = if rng.chance(1, 3) { 40_000 } else { 3000 };
        let end = (at + 1 + rng.index(most)).min(bytes.len());
        let is_hole = rng.chance(1, 4);
        if is_hole {
            bytes[at..end].fill(0);
        } else {
            rng.fill(&mut bytes[at..end]);
        }
        requests.push((at as u64, bytes[at..end].to_vec(), is_hole));
        at = end + rng.index(9000);
    }
    let perform = |(offset, data, is_hole): (u64, Vec<u8>, bool)| async move {
        if is_hole {
            volume.discard(offset, data.len() as u64).await
        } else {
            volume.write(offset, Buf::from(data), false).await
        }
    };
    let answers = join_all(requests.into_iter().map(perform)).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[test]
fn requests_on_different_bytes_of_a_block_at_the_same_time_all_take_effect() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        sim.block_on(async {
            create(&group).await;
            let pool = open(&group, volume_blocks(&group)).await;
            let volume = &pool.volumes[0];
            let mut bytes = vec![0; 1 << 20];
            for _ in 0..6 {
                scribble(volume, &mut rng, &mut bytes).await;
                let from = rng.index(bytes.len());
                let read = volume.read(from as u64, BufMut::zeroed(bytes.len() - from)).await.expect("readable");
                assert!(read[..] == bytes[from..], "seed {seed}, {shape}");
            }
        });
    }
}

#[test]
fn many_small_discards_do_not_use_up_the_free_segments() {
    for seed in seeds(16) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let group = group_of(&sim, &mut rng, every_level(4 * KIB)[seed as usize % 16]);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        sim.block_on(async {
            create(&group).await;
            let pool = open(&group, blocks).await;
            // Every second block is a hole of its own: 32 bytes of an index, and no content.
            let end = blocks;
            for start in (0..end).step_by(40) {
                pool.write(&model, 1, start..(start + 40).min(end), false).await;
            }
            pool.store.land_all().await.expect("lands");
            for start in (0..end).step_by(2) {
                if rng.chance(1, 50) {
                    pool.write(&model, 2, start..start + 1 + rng.below(4), false).await;
                }
                pool.punch(&model, 1, start..start + 1, false).await;
            }
            pool.store.land_all().await.expect("lands");
            pool.check_space();
            pool.observe_all(&model, &format!("seed {seed}")).await;
        });
    }
}

#[test]
fn as_many_members_as_the_level_survives_may_be_lost_in_a_power_cut() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        let compression = any_compression(&mut rng);
        sim.block_on(create(&group));
        let pool = sim.block_on(open_with(&group, blocks, compression));
        sim.stop_after(rng.below(3000));
        let mut fork = rng.fork();
        sim.try_block_on(pool.work(&model, &mut fork, 80));
        drop(pool);
        let shards = group.shards.len();
        let mut left = Vec::new();
        for set in group.cut(&sim).chunks(shape.members_per_set()) {
            let mut set = set.to_vec();
            for _ in 0..shape.survives() {
                set.remove(rng.index(set.len()));
            }
            left.extend(set);
        }
        let group = Group::open(&sim, left, shards);
        let pool = sim.block_on(open_with(&group, blocks, compression));
        sim.block_on(pool.observe_all(&model, &format!("seed {seed}, {shape}, members lost")));
    }
}

#[test]
fn frames_of_an_earlier_store_have_another_generation() {
    // They stay on the members, and may have the same numbers as those of the new store.
    let sim = Sim::new(0);
    let mut rng = sim.rng();
    let (group, _) = group(&sim, &mut rng);
    let generations = [[1; 16], [2; 16]].map(|key| {
        sim.block_on(create_with(&group, key));
        let address = extents(&group)[0].start_byte + ANCHOR_DISTANCE_BYTES;
        let bytes = sim.block_on(group.leader().read(address, BufMut::zeroed(ANCHOR_BYTES))).expect("readable");
        Anchor::decode(&bytes, &Uuid::from_bytes(ARRAY)).expect("an anchor").intent_generation
    });
    // Each opening takes the next one.
    assert!(generations[0].abs_diff(generations[1]) >= 1 << 20, "{generations:?}");
}

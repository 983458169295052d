//! Quotas, reserves, and writes that wait for space.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use drive::{Block, BlockError, Buf, Env, join_all};
use sim::Sim;
use sim::engine::*;
use sim::thin::{BLOCK, Model, any_compression};
use volume::thin::Compression;

use sim::thin::pool::{create, group, group_of, open, open_with, volume_blocks};

#[test]
fn a_quota_bounds_the_blocks_with_content_and_nothing_else() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let context = format!("seed {seed}, {shape}");
        let model = RefCell::new(Model::default());
        sim.block_on(async {
            create(&group).await;
            let compression = any_compression(&mut rng);
            let pool = open_with(&group, volume_blocks(&group), compression).await;
            let quota = 50 + rng.below(pool.blocks / 3);
            pool.change_settings(1, |settings| settings.quota_bytes = Some(quota * BLOCK));
            for _ in 0..8 {
                pool.work(&model, &mut rng, 10).await;
                pool.store.land_all().await.expect("lands");
                assert!(pool.store.mapped(1).0 <= quota, "{context}");
            }
            // Exactly as many blocks as the quota has.
            pool.punch(&model, 1, 0..pool.blocks, false).await;
            let answers =
                join_all((0..pool.blocks).map(|block| pool.has_room(&model, 1, block..block + 1, false))).await;
            assert_eq!(answers.iter().filter(|answer| **answer).count() as u64, quota, "{context}");
            let block = answers.iter().position(|answer| *answer).expect("some were written") as u64;
            assert!(pool.has_room(&model, 1, block..block + 1, false).await, "{context}: an overwrite");
            let other = answers.iter().position(|answer| !*answer).expect("some were refused") as u64;
            pool.punch(&model, 1, block..block + 1, false).await;
            assert!(pool.has_room(&model, 1, other..other + 1, false).await, "{context}: after a discard");
            assert!(pool.has_room(&model, 2, 0..20, false).await, "{context}: the other volume");
            pool.observe_all(&model, &context).await;
        });
    }
}

#[test]
fn a_reserve_is_there_for_its_volume_when_the_pool_is_full() {
    let shapes = every_level(4 * KIB);
    for seed in seeds(shapes.len() as u64) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shapes[seed as usize];
        let group = group_of(&sim, &mut rng, shape);
        let model = RefCell::new(Model::default());
        sim.block_on(async {
            create(&group).await;
            // Versions that do not compress need all of it.
            let pool = open_with(&group, 2 * volume_blocks(&group), [Compression::Lz4, Compression::Lz4]).await;
            let reserve = pool.store.space().limit / BLOCK / 4;
            pool.change_settings(2, |settings| settings.reserve_bytes = reserve * BLOCK);
            assert!(pool.store.space().reserved >= reserve * BLOCK);
            for block in 0..pool.blocks {
                if !pool.has_room(&model, 1, block..block + 1, false).await {
                    break;
                }
            }
            let space = pool.store.space();
            assert!(space.used() + space.reserved <= space.limit + space.limit / 64, "{shape}");
            for block in 0..reserve {
                assert!(pool.has_room(&model, 2, block..block + 1, false).await, "{shape}: block {block} of {reserve}");
            }
            pool.observe_all(&model, &shape).await;
        });
    }
}

#[test]
fn a_write_waits_for_space_as_long_as_its_volume_says() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let model = RefCell::new(Model::default());
        sim.block_on(async {
            create(&group).await;
            let pool = open(&group, volume_blocks(&group)).await;
            pool.fill(&model, 1).await;
            let wait = Duration::from_secs(5);
            pool.change_settings(1, |settings| settings.wait = wait);
            let (volume, data) = (&pool.volumes[0], || Buf::zeroes(BLOCK as usize));
            let free = (0..pool.blocks).find(|block| !model.borrow().mapped().contains(&(1, *block)));
            let free = free.expect("some were refused") * BLOCK;
            let before = group.env.now();
            assert_eq!(volume.write(free, data(), false).await, Err(BlockError::NoSpace), "{shape}");
            let waited = Duration::from_nanos(group.env.now() - before);
            assert!((wait..wait * 2).contains(&waited), "{shape}: {waited:?}");
            let (env, other, bytes) = (group.env.clone(), pool.volumes[1].clone(), pool.blocks * BLOCK);
            group.env.spawn(async move {
                env.sleep(wait / 2).await;
                other.discard(0, bytes).await.expect("discards");
            });
            assert_eq!(volume.write(free, data(), false).await, Ok(()), "{shape}");
        });
    }
}

#[test]
fn a_waiting_write_delays_no_change_of_its_volume() {
    let sim = Sim::new(3);
    let mut rng = sim.rng();
    let (group, _) = group(&sim, &mut rng);
    let model = RefCell::new(Model::default());
    sim.block_on(async {
        create(&group).await;
        let pool = open(&group, volume_blocks(&group)).await;
        pool.fill(&model, 1).await;
        let long = Duration::from_secs(3600);
        let free = (0..pool.blocks).find(|block| !model.borrow().mapped().contains(&(1, *block)));
        let free = free.expect("some were refused") * BLOCK;
        let answers = Rc::new(RefCell::new(Vec::new()));
        let begin = async || {
            pool.change_settings(1, |settings| settings.wait = long);
            let (volume, answered) = (pool.volumes[0].clone(), answers.clone());
            group.env.spawn(async move {
                let answer = volume.write(free, Buf::zeroes(BLOCK as usize), false).await;
                answered.borrow_mut().push(answer);
            });
            group.env.sleep(Duration::from_secs(1)).await;
            assert!(answers.borrow().is_empty(), "it waits");
        };
        let (volume, size) = (&pool.volumes[0], pool.blocks * BLOCK);
        let ended = async || {
            group.env.sleep(Duration::from_secs(1)).await;
            assert_eq!(answers.take(), [Err(BlockError::NoSpace)]);
        };
        let began = group.env.now();
        begin().await;
        volume.resize(size).await.expect("the size stays");
        volume.resize(2 * size).await.expect("it grows");
        group.env.sleep(Duration::from_secs(1)).await;
        assert!(answers.borrow().is_empty(), "it still waits");
        pool.change_settings(1, |settings| settings.wait = Duration::ZERO);
        ended().await;
        begin().await;
        volume.resize(size / 2).await.expect("it shrinks");
        ended().await;
        volume.resize(size).await.expect("it grows");
        pool.change_settings(1, |settings| settings.wait = Duration::ZERO);
        pool.fill(&model, 1).await;
        begin().await;
        volume.close().await;
        ended().await;
        let took = Duration::from_nanos(group.env.now() - began);
        assert!(took < long / 60, "{took:?}");
    });
}

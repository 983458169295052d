//! Full pools that lose as many members as their group survives.

use std::cell::RefCell;
use std::time::Duration;

use drive::Env;
use format::{Level, Shape};
use sim::engine::*;
use sim::thin::pool::{Pool, create, group_of, open_lines, volume_blocks};
use sim::thin::{BLOCK, Model};
use sim::{Rng, Sim};
use volume::thin::Compression;

use crate::rebuild::{crash_without, install, most_members, replace};

fn shapes() -> [Shape; 6] {
    [
        shape(Level::Raid6, 4, 4 * KIB),
        shape(Level::Raid5, 3, 4 * KIB),
        shape(Level::Raid6, 6, 4 * KIB),
        shape(Level::Raid1, 3, 4 * KIB),
        shape(Level::Raid60, 8, 4 * KIB),
        valid(Shape::of(Level::Nm, 8).parity(4), 4 * KIB),
    ]
}

/// Requests on a full pool: reads, flushes, writes in place of others, discards, and writes in the
/// space of those.
async fn use_full(pool: &Pool, model: &RefCell<Model>, rng: &mut Rng, context: &str) {
    let is_plain = pool.compression == [Compression::Off; 2];
    let mapped: Vec<(u32, u64)> = model.borrow().mapped();
    for _ in 0..mapped.len() / 8 {
        let &(line, block) = rng.pick(&mapped);
        let has_room = pool.has_room(model, line, block..block + 1, rng.chance(1, 8)).await;
        // A block that was compressed may need more.
        assert!(has_room || !is_plain, "{context}: an overwrite is refused");
        let &(line, block) = rng.pick(&mapped);
        pool.check(model, line, block..block + 1).await;
    }
    pool.flush(model).await;
    let (line, start) = (*rng.pick(&pool.lines), rng.below(pool.blocks / 2));
    let before = pool.store.space().used();
    pool.punch(model, line, start..start + pool.blocks / 2, false).await;
    let freed = (before - pool.store.space().used()) / BLOCK;
    for block in start..start + freed / 2 {
        let has_room = pool.has_room(model, line, block..block + 1, false).await;
        assert!(has_room, "{context}: freed space is not used");
    }
    pool.check_space();
}

/// Deletes a volume, waits until its space is free, and fills the pool with the new one.
async fn use_space_of_deleted(pool: &mut Pool, group: &Group, model: &RefCell<Model>, context: &str) {
    let (old, new) = (pool.lines[0], pool.lines[0].max(pool.lines[1]) + 1);
    let freed = pool.store.mapped(old).1;
    model.borrow_mut().deleted(old);
    pool.replace_volume(group, old, new);
    while pool.store.lines().contains(&old) {
        group.env.sleep(Duration::from_millis(1)).await;
    }
    pool.fill(model, 16).await;
    let (space, used) = (pool.store.space(), pool.store.mapped(new).1);
    assert!(used >= freed / 2, "{context}: {used} of {freed} freed bytes are used, {space:?}");
    pool.check_space();
}

/// Loses these members at once: with the power, or in the middle of requests.
fn lose(
    (sim, rng): (&Sim, &mut Rng),
    (group, pool, model): (Group, Pool, &RefCell<Model>),
    (lost, is_cut): (&[usize], bool),
) -> (Group, Pool) {
    if !is_cut {
        lost.iter().for_each(|member| group.member(*member).fail_after(rng.below(200)));
        sim.block_on(pool.work(model, rng, 20));
        lost.iter().for_each(|member| group.member(*member).fail());
        return (group, pool);
    }
    let (blocks, compression, lines) = (pool.blocks, pool.compression, pool.lines);
    sim.stop_after(rng.below(500));
    let mut fork = rng.fork();
    sim.try_block_on(pool.work(model, &mut fork, 20));
    drop(pool);
    let group = crash_without(group, sim, false, lost);
    let pool = sim.block_on(open_lines(&group, blocks, compression, lines));
    (group, pool)
}

#[test]
fn a_full_pool_that_loses_members_serves_frees_space_and_is_rebuilt() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (shape, is_plain) = (shapes()[seed as usize % shapes().len()], rng.chance(1, 2));
        // The first two levels have both.
        let is_cut = (seed + seed / shapes().len() as u64).is_multiple_of(2);
        let context = format!("seed {seed}, {shape}, {}", if is_cut { "power cut" } else { "drives die" });
        let mut group = group_of(&sim, &mut rng, shape);
        let model = RefCell::new(Model::default());
        let compression = if is_plain { [Compression::Off; 2] } else { [Compression::Lz4, Compression::Zstd(1)] };
        let blocks = volume_blocks(&group) * if is_plain { 1 } else { 2 };
        sim.block_on(create(&group));
        let mut pool = sim.block_on(open_lines(&group, blocks, compression, [1, 2]));
        sim.block_on(pool.fill(&model, 1 + rng.below(24)));
        let space = pool.store.space();
        assert!(space.used() >= space.limit / 10 * 9, "{context}: {space:?}");
        let lost = most_members(&shape, &mut rng);
        (group, pool) = lose((&sim, &mut rng), (group, pool, &model), (&lost, is_cut));
        sim.block_on(async {
            if is_cut {
                pool.observe_all(&model, &context).await;
            }
            use_full(&pool, &model, &mut rng, &context).await;
            use_space_of_deleted(&mut pool, &group, &model, &context).await;
        });
        let new = install(&mut group, &sim, &shape, lost.len(), &mut rng);
        sim.block_on(async {
            replace(&group, &new, &lost, &mut rng).await;
            while !group.all_in_sync() {
                pool.work(&model, &mut rng, 1).await;
            }
            pool.fill(&model, 8).await;
            use_full(&pool, &model, &mut rng, &context).await;
            pool.flush(&model).await;
        });
        let lines = pool.lines;
        drop(pool);
        let lost = most_members(&shape, &mut rng);
        let group = crash_without(group, &sim, false, &lost);
        let pool = sim.block_on(open_lines(&group, blocks, compression, lines));
        sim.block_on(pool.observe_all(&model, &format!("{context}, members {lost:?} lost at last")));
        pool.check_space();
    }
}

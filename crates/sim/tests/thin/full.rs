//! Full pools: writes are refused, everything else goes on, and freed space is used again.

use std::cell::RefCell;

use drive::{Block, BufMut};
use sim::Sim;
use sim::engine::*;

use volume::thin::Compression;

use sim::thin::pool::{Pool, create, group_of, open, open_with, volume_blocks};
use sim::thin::{BLOCK, Model};

fn used_share(pool: &Pool) -> (u64, u64) {
    let space = pool.store.space();
    (space.used(), space.limit)
}

#[test]
fn a_full_pool_refuses_writes_and_does_everything_else() {
    let shapes = every_level(4 * KIB);
    for seed in seeds(2 * shapes.len() as u64) {
        let (shape, is_plain) = (shapes[seed as usize / 2 % shapes.len()], seed.is_multiple_of(2));
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let mut group = group_of(&sim, &mut rng, shape);
        let model = RefCell::new(Model::default());
        let compression = if is_plain { [Compression::Off; 2] } else { [Compression::Lz4, Compression::Zstd(1)] };
        // Compressed blocks take less than half of their size.
        let blocks = volume_blocks(&group) * if is_plain { 1 } else { 2 };
        let context = format!("seed {seed}, {shape}, strip {}, compression {compression:?}", shape.strip_bytes);
        sim.block_on(create(&group));
        let mut pool = sim.block_on(open_with(&group, blocks, compression));
        for round in 0..1 + rng.index(2) {
            sim.block_on(async {
                pool.fill(&model, 1 + rng.below(24)).await;
                let (used, limit) = used_share(&pool);
                assert!(used >= limit / 10 * 9, "{context}, round {round}: {used} of {limit} bytes are used");
                pool.observe_all(&model, &context).await;
                pool.flush(&model).await;
                // Mapped blocks can be written again, as often as one likes.
                let mapped: Vec<(u32, u64)> = model.borrow().mapped();
                for _ in 0..mapped.len() / 3 {
                    let &(line, block) = rng.pick(&mapped);
                    let has_room = pool.has_room(&model, line, block..block + 1, false).await;
                    // A block that was compressed may need more.
                    assert!(has_room || !is_plain, "{context}: an overwrite is refused");
                    let (used, limit) = used_share(&pool);
                    // Nodes of maps get a little longer.
                    assert!(used <= limit + limit / 64, "{context}: {used} of {limit} bytes are used");
                }
                pool.check_space();
                // Discarded space can be used at once.
                let (line, start) = (1 + rng.index(2) as u32, rng.below(blocks / 2));
                let before = pool.store.space().used();
                pool.punch(&model, line, start..start + blocks / 2, false).await;
                let freed = (before - pool.store.space().used()) / BLOCK;
                for block in start..start + freed / 2 {
                    assert!(
                        pool.has_room(&model, line, block..block + 1, false).await,
                        "{context}: freed space is not used"
                    );
                }
                pool.fill(&model, 1 + rng.below(24)).await;
                pool.observe_all(&model, &context).await;
                pool.check_space();
            });
            let shards = group.shards.len();
            drop(pool);
            model.borrow_mut().killed();
            let drives = group.kill(&sim);
            group = Group::open(&sim, drives, shards);
            pool = sim.block_on(open_with(&group, blocks, compression));
            sim.block_on(pool.observe_all(&model, &format!("{context}, round {round}, killed")));
        }
    }
}

#[test]
fn a_full_pool_takes_discards_and_flushes_only() {
    let shape = every_level(4 * KIB)[10];
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let group = group_of(&sim, &mut rng, shape);
    let model = RefCell::new(Model::default());
    sim.block_on(async {
        create(&group).await;
        let pool = open(&group, volume_blocks(&group)).await;
        pool.fill(&model, 7).await;
        let volume = &pool.volumes[0];
        let buf = BufMut::zeroed(BLOCK as usize);
        assert!(volume.read(0, buf).await.is_ok() && volume.flush().await.is_ok());
        // Parts of blocks: those without content stay so, and the others need no more space.
        let used = pool.store.space().used();
        let end = pool.blocks * BLOCK;
        assert!(volume.discard(end - BLOCK + 512, 512).await.is_ok());
        assert!(pool.store.space().used() <= used, "a discard takes space");
        assert!(volume.discard(512, 8 * BLOCK).await.is_ok());
        let mut read = volume.read(0, BufMut::zeroed(10 * BLOCK as usize)).await.expect("readable");
        assert!(read.split_off(512)[..8 * BLOCK as usize].iter().all(|byte| *byte == 0));
        // Many small discards. Each is a record in the log and in a run.
        let mapped: Vec<(u32, u64)> = model.borrow().mapped();
        for &(line, block) in &mapped {
            assert!(pool.volumes[line as usize - 1].discard(block * BLOCK, BLOCK).await.is_ok());
        }
        assert_eq!(pool.store.space().used(), pool.store.space().segments.live_nodes);
    });
}

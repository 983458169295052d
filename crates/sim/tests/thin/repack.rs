//! Content is stored anew: packed again when it is cold, and in order when it is read in order.

use std::cell::RefCell;
use std::time::Duration;

use drive::{Block, BufMut, Env, join_all};
use format::Level;
use format::thin::Codec;
use format::thin::batch::BatchIndex;
use sim::engine::*;
use sim::thin::{BLOCK, Model};
use sim::{Rng, Sim};
use volume::thin::Compression;

use sim::thin::pool::{KEY, Pool, create, extents, group, group_of, open_with, small_grid, volume_blocks};

const COLD_AFTER: Duration = Duration::from_secs(100);

/// Time enough for all that is due.
const WORK: Duration = Duration::from_secs(50);

async fn pass(group: &Group, pool: &Pool, time: Duration) {
    group.env.sleep(time).await;
    pool.store.look_for_work();
    group.env.sleep(WORK).await;
}

/// Writes a part of a volume, so that nothing has to be collected. Two of three pieces compress
/// well or a little.
async fn write(pool: &Pool, model: &RefCell<Model>, line: u32) {
    let pieces = (0..pool.blocks / 8).step_by(6);
    join_all(pieces.map(|start| pool.write(model, line, start..start + 6, false))).await;
    pool.store.land_all().await.expect("lands");
}

#[test]
fn cold_content_is_packed_again_and_is_as_before() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        let compression = *rng.pick(&[Compression::Off, Compression::Lz4]);
        let compression = [compression, Compression::Lz4];
        let context = format!("seed {seed}, {shape}, {compression:?}");
        sim.block_on(async {
            create(&group).await;
            let pool = open_with(&group, blocks, compression).await;
            [1, 2].iter().for_each(|line| pool.change_settings(*line, |it| it.repack_after = Some(COLD_AFTER)));
            write(&pool, &model, 1).await;
            // The turn begins: what comes later is not cold at the end of it.
            pool.store.look_for_work();
            write(&pool, &model, 2).await;
            let bytes = |line| pool.store.mapped(line).1;
            let before = [bytes(1), bytes(2)];
            pass(&group, &pool, COLD_AFTER - 2 * WORK).await;
            assert_eq!([bytes(1), bytes(2)], before, "{context}: nothing is cold yet");
            pass(&group, &pool, WORK).await;
            assert!(bytes(1) < before[0] * 19 / 20, "{context}: {} of {}", bytes(1), before[0]);
            assert_eq!(bytes(2), before[1], "{context}: it is not cold yet");
            pass(&group, &pool, COLD_AFTER).await;
            assert!(bytes(2) < before[1] * 19 / 20, "{context}: {} of {}", bytes(2), before[1]);
            pool.check_space();
            let counts = pool.store.counts();
            assert!(counts.repacked_to_bytes < counts.repacked_from_bytes);
            // Content that did not get smaller is not tried again.
            pass(&group, &pool, COLD_AFTER).await;
            assert_eq!(pool.store.counts().repacked_from_bytes, counts.repacked_from_bytes, "{context}");
            pool.flush(&model).await;
        });
        let group = Group::open(&sim, group.cut(&sim), 1);
        sim.block_on(async {
            let pool = open_with(&group, blocks, compression).await;
            pool.observe_all(&model, &context).await;
            pool.check_space();
        });
    }
}

/// Drive reads while a volume is read in order.
async fn reads_in_order(group: &Group, pool: &Pool, model: &RefCell<Model>, line: u32) -> u64 {
    group.take_counts();
    pool.check_in_order(model, line).await;
    group.take_counts().reads
}

#[test]
fn content_that_is_read_in_order_is_stored_in_order() {
    for seed in seeds(8) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&[shape(Level::Raid5, 3, 64 * KIB), shape(Level::Raid0, 2, 64 * KIB)]);
        let group = group_of(&sim, &mut rng, shape);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        let compression = [*rng.pick(&[Compression::Off, Compression::Lz4]); 2];
        let context = format!("seed {seed}, {shape}, {compression:?}");
        sim.block_on(async {
            create(&group).await;
            let pool = open_with(&group, blocks, compression).await;
            [1, 2].iter().for_each(|line| pool.change_settings(*line, |settings| settings.repack_after = None));
            let mut order: Vec<u64> = (0..blocks / 4).collect();
            for line in [2, 1] {
                for some in order.chunks(64) {
                    join_all(some.iter().map(|block| pool.write(&model, line, *block..block + 1, false))).await;
                }
                rng.shuffle(&mut order);
            }
            pool.store.land_all().await.expect("lands");
            let before = reads_in_order(&group, &pool, &model, 1).await;
            pass(&group, &pool, Duration::ZERO).await;
            let reordered = pool.store.counts().reordered_bytes;
            assert!(reordered > 0, "{context}");
            let after = reads_in_order(&group, &pool, &model, 1).await;
            let of_one_in_order = reads_in_order(&group, &pool, &model, 2).await;
            assert!(after < before / 3 && after < 2 * of_one_in_order, "{context}: {after} reads, {before} before");
            pass(&group, &pool, Duration::ZERO).await;
            assert_eq!(pool.store.counts().reordered_bytes, reordered, "{context}: it is in order");
            pool.check_space();
            pool.flush(&model).await;
        });
        let group = Group::open(&sim, group.cut(&sim), 1);
        sim.block_on(async {
            let pool = open_with(&group, blocks, compression).await;
            pool.observe_all(&model, &context).await;
        });
    }
}

/// Changes a byte of each plain fragment, in the way of a drive that returns wrong bytes.
async fn damage_plain_fragments(group: &Group, rng: &mut Rng) {
    let grid = small_grid(group);
    for id in extents(group).iter().flat_map(|extent| grid.segments(extent)) {
        let start = grid.start(id);
        let buf = BufMut::zeroed(grid.segment_bytes as usize);
        let bytes = group.leader().read(start, buf).await.expect("readable");
        for at in (0..bytes.len()).step_by(grid.unit_bytes as usize) {
            let Ok(index) = BatchIndex::decode(&bytes[at..], &KEY, start + at as u64, 0) else { continue };
            for (record, place) in index.records.fragments.iter().zip(index.records.contents(0)) {
                if record.codec == Codec::Plain {
                    let address = start + (at + place.start) as u64;
                    let buf = BufMut::zeroed(place.len());
                    let mut content = group.leader().read(address, buf).await.expect("readable");
                    content[rng.index(place.len())] ^= 1;
                    group.leader().write(address, content.freeze(), false).await.expect("writable");
                }
            }
        }
    }
}

#[test]
fn damaged_content_is_not_stored_anew() {
    for seed in seeds(8) {
        let is_damaged = seed % 2 == 0;
        let sim = Sim::new(seed / 2);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        sim.block_on(async {
            create(&group).await;
            let pool = open_with(&group, blocks, [Compression::Off; 2]).await;
            write(&pool, &model, 1).await;
            pool.store.checkpoint().await.expect("makes a checkpoint");
            if is_damaged {
                damage_plain_fragments(&group, &mut rng).await;
            }
            let read = async || {
                let buf = BufMut::zeroed((pool.blocks * BLOCK) as usize);
                pool.volumes[0].read(0, buf).await.expect("readable")
            };
            let before = read().await;
            pool.store.repack_once(1).await.expect("packs what is right");
            assert_eq!(pool.store.counts().repacked_from_bytes == 0, is_damaged, "seed {seed}, {shape}");
            assert!(read().await[..] == before[..], "seed {seed}, {shape}");
        });
    }
}

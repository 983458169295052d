//! Content is stored anew: packed again when it is cold, and in order when it is read in order.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use drive::{Block, Buf, BufMut, Env, join_all};
use format::Level;
use format::thin::Codec;
use format::thin::batch::BatchIndex;
use sim::engine::*;
use sim::thin::{BLOCK, Model};
use sim::{Rng, Sim};
use volume::thin::Compression;

use sim::thin::pool::{KEY, Pool, create, extents, group, group_of, open, open_with, small_grid, volume_blocks};

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

/// Bytes of a block that no other version has, and that compress well.
fn version(number: u8) -> Vec<u8> {
    vec![number; BLOCK as usize]
}

/// The place of a run whose first content is this one.
async fn run_with(group: &Group, content: &[u8]) -> Option<u64> {
    let grid = small_grid(group);
    for id in extents(group).iter().flat_map(|extent| grid.segments(extent)) {
        let start = grid.start(id);
        let buf = BufMut::zeroed(grid.segment_bytes as usize);
        let bytes = group.leader().read(start, buf).await.expect("readable");
        let Ok(index) = BatchIndex::decode(&bytes, &KEY, start, 0) else { continue };
        let first = index.records.contents(0).next();
        if first.is_some_and(|place| bytes[place].starts_with(content)) {
            return Some(start);
        }
    }
    None
}

/// A task has read content, and another one writes that anew, twice. The first time frees the
/// segment that it was in, and the second time fills that again, in the same way.
#[test]
fn a_copy_does_not_replace_what_came_into_the_same_place_meanwhile() {
    for wait in [100, 300, 500, 1000].map(Duration::from_micros) {
        let sim = Sim::new(5);
        let mut rng = sim.rng();
        let group = group_of(&sim, &mut rng, shape(Level::Raid5, 3, 16 * KIB));
        sim.block_on(async {
            create(&group).await;
            let pool = open_with(&group, volume_blocks(&group), [Compression::Off; 2]).await;
            [1, 2].iter().for_each(|line| pool.change_settings(*line, |settings| settings.repack_after = None));
            let blocks = small_grid(&group).segment_bytes / BLOCK - 1;
            // Exactly a segment.
            let write = async |number: u8| {
                let bytes = version(number).repeat(blocks as usize);
                pool.volumes[0].write(0, Buf::from(bytes), false).await.expect("there is space");
                pool.store.land_all().await.expect("lands");
            };
            write(1).await;
            for start in (256..pool.blocks).step_by(16) {
                pool.volumes[0].write(start * BLOCK, Buf::from(version(9)), false).await.expect("there is space");
            }
            pool.store.land_all().await.expect("lands");
            pool.store.checkpoint().await.expect("makes a checkpoint");
            let place = run_with(&group, &version(1)).await.expect("it is in a run");
            let is_packing = Cell::new(true);
            let pack = async {
                pool.store.repack_once(1).await.expect("packs");
                is_packing.set(false);
            };
            let overwrite = async {
                group.env.sleep(wait).await;
                write(2).await;
                pool.store.checkpoint().await.expect("makes a checkpoint");
                write(3).await;
                assert!(is_packing.get(), "the copies came before the writes");
                assert_eq!(run_with(&group, &version(3)).await, Some(place), "the segment was not filled again");
            };
            both(pack, overwrite).await;
            let read = pool.volumes[0].read(0, BufMut::zeroed((blocks * BLOCK) as usize)).await.expect("readable");
            let wrong = read.chunks(BLOCK as usize).position(|block| *block != version(3));
            assert_eq!(wrong, None, "after {wait:?}");
        });
    }
}

/// Damages the leaves of a volume's map.
async fn damage_leaves(group: &Group, line: u32) {
    let grid = small_grid(group);
    for id in extents(group).iter().flat_map(|extent| grid.segments(extent)) {
        let start = grid.start(id);
        let buf = BufMut::zeroed(grid.segment_bytes as usize);
        let mut bytes = group.leader().read(start, buf).await.expect("readable");
        let mut at = 0;
        while at < bytes.len() {
            let Ok(index) = BatchIndex::decode(&bytes[at..], &KEY, start + at as u64, 0) else {
                at += grid.unit_bytes as usize;
                continue;
            };
            let places: Vec<_> = index.records.contents(0).skip(index.records.fragments.len()).collect();
            for (_, place) in index.records.nodes.iter().zip(places).filter(|(node, _)| node.line == line) {
                bytes[at + place.end - 1] ^= 1;
            }
            at += index.batch_bytes;
        }
        group.leader().write(start, bytes.freeze(), false).await.expect("writable");
    }
}

#[test]
fn a_map_that_cannot_be_read_does_not_keep_other_volumes_from_being_packed() {
    let sim = Sim::new(6);
    let mut rng = sim.rng();
    let group = group_of(&sim, &mut rng, shape(Level::Raid5, 3, 16 * KIB));
    let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
    sim.block_on(async {
        create(&group).await;
        let pool = open(&group, blocks).await;
        write(&pool, &model, 1).await;
        write(&pool, &model, 2).await;
        pool.store.stop().await.expect("stops");
        damage_leaves(&group, 1).await;
        let pool = open(&group, blocks).await;
        [1, 2].iter().for_each(|line| pool.change_settings(*line, |it| it.repack_after = Some(COLD_AFTER)));
        let before = pool.store.mapped(2).1;
        pool.store.look_for_work();
        for _ in 0..3 {
            pass(&group, &pool, COLD_AFTER).await;
        }
        assert!(pool.volumes[0].read(0, BufMut::zeroed(BLOCK as usize)).await.is_err(), "the map is damaged");
        assert!(pool.store.mapped(2).1 < before, "{} of {before}", pool.store.mapped(2).1);
        write(&pool, &model, 2).await;
        pool.check_in_order(&model, 2).await;
    });
}

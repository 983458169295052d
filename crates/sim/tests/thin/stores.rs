//! Several stores in one group, on different shards: they use the intent log together, and give
//! each other space.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use drive::{Block, Buf, BufMut, Env, join_all};
use format::{ExtentRecord, Uuid};
use sim::engine::*;
use sim::thin::{BLOCK, Model, any_compression};
use sim::{Rng, Sim, SimEnv};
use volume::thin::{ArrayBacking, Compression, PoolSpace, SpaceWanted, Thin, ThinStore, VolumeSettings};

use sim::thin::pool::{ARRAY, Pool, SMALL, small_grid};

const STORES: usize = 2;

/// Segments of each store at first.
const SEGMENTS: u64 = 24;

/// Drives with room for two rings of the intent log.
const DRIVE_BYTES: u64 = 24 * MIB;

/// The extents of each store: the part of a group's catalogue that matters here. It is durable.
type Catalogue = Rc<RefCell<Vec<Vec<ExtentRecord>>>>;

fn backing(group: &Group, store: usize) -> ArrayBacking<SimEnv> {
    let array = group.shards[store % group.shards.len()].clone();
    ArrayBacking::new(group.env.clone(), array, (store, STORES))
}

/// Makes an empty store in each extent of the pool.
async fn create(group: &Group) -> Catalogue {
    assert!(group.leader().add_intent_log().await.is_ok());
    let bytes = small_grid(group).segment_bytes;
    let extent = |first: u64| vec![ExtentRecord { start_byte: first * bytes, len_bytes: SEGMENTS * bytes }];
    let catalogue: Vec<_> = [1, SEGMENTS + 3].into_iter().map(extent).collect();
    for (number, extents) in catalogue.iter().enumerate() {
        let (backing, array) = (backing(group, number), Uuid::from_bytes(ARRAY));
        ThinStore::create(&backing, array, [number as u8; 16], small_grid(group), extents)
            .await
            .expect("a store is made");
    }
    Rc::new(RefCell::new(catalogue))
}

/// Opens all stores. Each has two volumes.
async fn open(group: &Group, catalogue: &Catalogue, compression: [Compression; 2]) -> Vec<Pool> {
    let space = PoolSpace::new(|| ());
    let mut pools = Vec::new();
    let stores = catalogue.borrow().clone();
    for (number, extents) in stores.iter().enumerate() {
        let (grid, array, blocks) = (small_grid(group), Uuid::from_bytes(ARRAY), volume_blocks(group));
        let store = ThinStore::open(backing(group, number), array, grid, extents, SMALL).await;
        let store = store.expect("the store opens");
        store.join(space.clone());
        for (line, compression) in (1..).zip(compression) {
            store.set_settings(line, VolumeSettings { compression, ..VolumeSettings::default() });
        }
        let volumes = (1..=2).map(|line| Thin::new(store.clone(), line, blocks * BLOCK)).collect();
        pools.push(Pool {
            store,
            volumes,
            lines: [1, 2],
            blocks,
            compression,
            drives_filled: Rc::default(),
            capacity_bytes: None,
        });
    }
    let stores: Vec<_> = pools.iter().map(|pool| Rc::downgrade(&pool.store)).collect();
    let (env, catalogue) = (group.env.clone(), catalogue.clone());
    group.env.spawn(async move {
        loop {
            env.sleep(Duration::from_micros(100)).await;
            let Some(stores) = stores.iter().map(|store| store.upgrade()).collect::<Option<Vec<_>>>() else { return };
            exchange(&space, &stores, &catalogue).await;
        }
    });
    pools
}

/// Moves segments to the stores that need some, as the daemon does in a group without free space.
async fn exchange(space: &Arc<PoolSpace>, stores: &[sim::thin::pool::Store], catalogue: &Catalogue) {
    for (to, store) in stores.iter().enumerate() {
        let wanted = store.wants_space();
        if wanted == SpaceWanted::No {
            continue;
        }
        let (search, from) = (space.begin_search(wanted), 1 - to);
        let given = match wanted {
            SpaceWanted::Now => stores[from].give_up(3).await.unwrap_or_default(),
            _ => Vec::new(),
        };
        if given.is_empty() {
            store.refuse_space(wanted, search);
            continue;
        }
        move_extents(&mut catalogue.borrow_mut(), (from, to), &given);
        // It fails only if the store has failed.
        let _ = store.add_extents(&given).await;
    }
}

/// The first segment of a store has its anchors, and is never given up.
fn move_extents(all: &mut [Vec<ExtentRecord>], (from, to): (usize, usize), given: &[ExtentRecord]) {
    for gone in given {
        let parts = all[from].iter().flat_map(|extent| {
            let (end, gone_end) = (extent.start_byte + extent.len_bytes, gone.start_byte + gone.len_bytes);
            let parts = [(extent.start_byte, end.min(gone.start_byte)), (extent.start_byte.max(gone_end), end)];
            parts.into_iter().filter(|(start, end)| start < end)
        });
        all[from] = parts.map(|(start, end)| ExtentRecord { start_byte: start, len_bytes: end - start }).collect();
    }
    all[to].extend(given);
}

fn group_of_two_shards(sim: &Sim, rng: &mut Rng) -> (Group, format::Shape) {
    let shape = *rng.pick(&every_level(4 * KIB));
    let drives = new_drives(sim, usize::from(shape.members), DRIVE_BYTES, 512);
    (Group::create(sim, shape, drives, 2), shape)
}

/// Blocks of each volume: more than a store has at first.
fn volume_blocks(group: &Group) -> u64 {
    SEGMENTS * small_grid(group).segment_bytes * 6 / 5 / BLOCK
}

/// Bytes that are live, and that may be, in all stores together.
fn fill(pools: &[Pool]) -> (u64, u64) {
    let spaces = pools.iter().map(|pool| pool.store.space());
    spaces.fold((0, 0), |(used, limit), space| (used + space.used(), limit + space.limit))
}

/// Writes a volume from its begin until there is no space.
async fn fill_volume(volume: &Thin<ArrayBacking<SimEnv>>, blocks: u64) -> u64 {
    for block in 0..blocks {
        if volume.write(block * BLOCK, Buf::from(vec![7; BLOCK as usize]), false).await.is_err() {
            return block;
        }
    }
    blocks
}

#[test]
fn a_store_gets_the_space_that_another_one_can_do_without() {
    for seed in seeds(10) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group_of_two_shards(&sim, &mut rng);
        sim.block_on(async {
            let catalogue = create(&group).await;
            let pools = open(&group, &catalogue, [Compression::Off; 2]).await;
            let (context, blocks) = (format!("seed {seed}, {shape}"), volume_blocks(&group));
            let own = pools[0].store.space().limit / BLOCK;
            for (full, empty) in [(0, 1), (1, 0), (0, 1)] {
                let written = fill_volume(&pools[full].volumes[0], blocks).await;
                assert!(written > own * 5 / 4, "{context}: {written} blocks, of its own {own}");
                let (used, limit) = fill(&pools);
                assert!(used * 10 > limit * 9 || written == blocks, "{context}: refused at {used} of {limit}");
                // The other volume has at once what this one does not need any more.
                pools[full].volumes[0].discard(0, blocks * BLOCK).await.expect("discards");
                let write = pools[empty].volumes[1].write(0, Buf::from(vec![8; 4 * BLOCK as usize]), false);
                write.await.unwrap_or_else(|error| panic!("{context}: {error}"));
            }
        });
    }
}

#[test]
fn stores_that_exchange_space_survive_power_cuts_and_kills() {
    let mut exchanged = 0;
    for seed in seeds(24) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (mut group, shape) = group_of_two_shards(&sim, &mut rng);
        let models = [RefCell::new(Model::default()), RefCell::new(Model::default())];
        let compression = any_compression(&mut rng);
        let catalogue = sim.block_on(create(&group));
        let first = catalogue.borrow().clone();
        let mut pools = sim.block_on(open(&group, &catalogue, compression));
        for round in 0..1 + rng.index(4) {
            sim.stop_after(rng.below(6000));
            let (mut forks, busy) = ([rng.fork(), rng.fork()], rng.index(2));
            let steps = [1 + rng.index(100), 1 + rng.index(100)];
            sim.try_block_on(async {
                let work = pools.iter().zip(&models).zip(&mut forks).enumerate();
                let work = work.map(|(number, ((pool, model), fork))| async move {
                    if number == busy {
                        // It needs more than it has.
                        pool.write_all(model, fork).await;
                    }
                    pool.work(model, fork, steps[number]).await;
                });
                join_all(work).await;
            });
            let is_kill = rng.chance(1, 3);
            if is_kill {
                models.iter().for_each(|model| model.borrow_mut().killed());
            }
            drop(pools);
            let drives = if is_kill { group.kill(&sim) } else { group.cut(&sim) };
            group = Group::open(&sim, drives, 2);
            pools = sim.block_on(open(&group, &catalogue, compression));
            for (number, (pool, model)) in pools.iter().zip(&models).enumerate() {
                let context = format!("seed {seed}, {shape}, round {round}, store {number}, kill: {is_kill}");
                sim.block_on(pool.observe_all(model, &context));
                pool.check_space();
            }
        }
        exchanged += usize::from(*catalogue.borrow() != first);
    }
    assert!(exchanged > 6, "space was exchanged in {exchanged} programs only");
}

#[test]
fn a_store_gives_up_no_segment_that_it_needs_after_a_power_cut() {
    let mut given = 0;
    for seed in seeds(10) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (mut group, shape) = group_of_two_shards(&sim, &mut rng);
        let catalogue = sim.block_on(create(&group));
        let bytes = 4 * small_grid(&group).segment_bytes;
        sim.block_on(async {
            let pools = open(&group, &catalogue, [Compression::Off; 2]).await;
            let (store, volume) = (&pools[0].store, &pools[0].volumes[0]);
            volume.write(0, Buf::from(vec![1; bytes as usize]), true).await.expect("there is room");
            store.checkpoint().await.expect("a checkpoint");
            // Nothing is live in the old segments any more, but the durable checkpoint leads there.
            volume.write(0, Buf::from(vec![2; bytes as usize]), false).await.expect("there is room");
            store.land_all().await.expect("it gets into the map");
            let extents = store.give_up(4).await.expect("the store works");
            move_extents(&mut catalogue.borrow_mut(), (0, 1), &extents);
            pools[1].store.add_extents(&extents).await.expect("the other store takes them");
            given += extents.len();
        });
        let drives = group.cut(&sim);
        group = Group::open(&sim, drives, 2);
        sim.block_on(async {
            let pools = open(&group, &catalogue, [Compression::Off; 2]).await;
            let read = pools[0].volumes[0].read(0, BufMut::zeroed(bytes as usize)).await.expect("it is readable");
            let is_whole = |block: &[u8]| block.iter().all(|byte| *byte == block[0] && matches!(byte, 1 | 2));
            assert!(read.chunks(BLOCK as usize).all(is_whole), "seed {seed}, {shape}");
        });
    }
    assert!(given > 0, "nothing was given up");
}

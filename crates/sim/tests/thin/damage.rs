//! Damaged metadata with right checksums: requests get errors, and nothing panics.

use drive::{Block, Buf, BufMut};
use format::thin::anchor::{ANCHOR_BYTES, ANCHOR_DISTANCE_BYTES};
use format::thin::batch::BatchIndex;
use format::{BLOCK, Uuid};
use gf::crc32c;
use sim::engine::*;
use sim::{Rng, Sim};
use std::cell::RefCell;
use volume::thin::{ArrayBacking, OpenThinError, Thin, ThinStore};

use sim::thin::Model;
use sim::thin::pool::{ARRAY, KEY, Pool, SMALL, create, extents, group, open, small_grid, volume_blocks};

/// Metadata whose checksum is at `checksum`.
struct Place {
    address: u64,
    bytes: usize,
    checksum: usize,
}

/// Anchors, nodes and indexes of runs, also old ones.
async fn places(group: &Group) -> Vec<Place> {
    let (grid, mut places) = (small_grid(group), Vec::new());
    let ids: Vec<u64> = extents(group).iter().flat_map(|extent| grid.segments(extent)).collect();
    let anchors = [0, ANCHOR_DISTANCE_BYTES].map(|from| grid.start(ids[0]) + from);
    places.extend(anchors.map(|address| Place { address, bytes: ANCHOR_BYTES, checksum: 12 }));
    for id in ids {
        let start = grid.start(id);
        let bytes = BufMut::zeroed(grid.segment_bytes as usize);
        let bytes = group.leader().read(start, bytes).await.expect("readable");
        for at in (0..bytes.len()).step_by(grid.unit_bytes as usize) {
            let address = start + at as u64;
            let Ok(index) = BatchIndex::decode(&bytes[at..], &KEY, address, 0) else { continue };
            places.push(Place { address, bytes: index.records.index_bytes(), checksum: 12 });
            let nodes = index.records.contents(0).skip(index.records.fragments.len());
            places.extend(nodes.map(|range| Place {
                address: address + range.start as u64,
                bytes: range.len(),
                checksum: 0,
            }));
        }
    }
    places
}

/// Changes a field, and makes the checksum right again.
async fn damage(group: &Group, rng: &mut Rng, place: &Place) {
    let start = place.address / BLOCK as u64 * BLOCK as u64;
    let from = (place.address - start) as usize;
    let bytes = (from + place.bytes).next_multiple_of(BLOCK);
    let mut all = group.leader().read(start, BufMut::zeroed(bytes)).await.expect("readable");
    let node = &mut all[from..from + place.bytes];
    let field = rng.index(place.bytes / 4) * 4;
    let other = rng.index(place.bytes / 4) * 4;
    let value = u32::from_le_bytes(node[field..field + 4].try_into().expect("4 bytes"));
    let changed = match rng.index(5) {
        0 => value ^ 1 << rng.index(32),
        1 => value.wrapping_add(1),
        2 => value.wrapping_sub(1),
        3 => u32::from_le_bytes(node[other..other + 4].try_into().expect("4 bytes")),
        _ => rng.below(1 << 32) as u32,
    };
    node[field..field + 4].copy_from_slice(&changed.to_le_bytes());
    node[place.checksum..place.checksum + 4].fill(0);
    let checksum = crc32c(node);
    node[place.checksum..place.checksum + 4].copy_from_slice(&checksum.to_le_bytes());
    group.leader().write(start, all.freeze(), false).await.expect("writable");
}

/// Uses the store in all ways. Anything may fail.
async fn use_store(group: &Group, rng: &mut Rng, blocks: u64) -> bool {
    let backing = ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1));
    let (grid, extents) = (small_grid(group), extents(group));
    let Ok(store) = ThinStore::open(backing, Uuid::from_bytes(ARRAY), grid, &extents, SMALL).await else {
        return false;
    };
    let mut all_is_well = true;
    for line in 1..=2 {
        let volume = Thin::new(store.clone(), line, blocks * BLOCK as u64);
        for block in (0..blocks).step_by(5) {
            let offset = block * BLOCK as u64;
            let buf = BufMut::zeroed(5 * BLOCK.min((blocks - block) as usize * BLOCK));
            all_is_well &= volume.extents(offset, BLOCK as u64).await.is_ok();
            all_is_well &= match rng.index(4) {
                0 => volume.write(offset, Buf::from(vec![1; BLOCK]), rng.chance(1, 8)).await.is_ok(),
                1 => volume.discard(offset, BLOCK as u64).await.is_ok(),
                _ => volume.read(offset.min(volume.size_bytes() - buf.len() as u64), buf).await.is_ok(),
            };
        }
        all_is_well &= volume.flush().await.is_ok();
    }
    all_is_well && store.stop().await.is_ok()
}

#[test]
fn damaged_metadata_gives_errors_and_no_panic() {
    let (mut harmless, mut found) = (0, 0);
    for seed in seeds(120) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, _) = group(&sim, &mut rng);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        sim.block_on(async {
            create(&group).await;
            let pool = open(&group, blocks).await;
            pool.work(&model, &mut rng, 25).await;
            if rng.chance(1, 2) {
                assert!(pool.store.stop().await.is_ok());
            } else {
                pool.flush(&model).await;
            }
            drop(pool);
            let places = places(&group).await;
            for _ in 0..1 + rng.index(3) {
                let place = rng.pick(&places);
                damage(&group, &mut rng, place).await;
            }
        });
        let drives = group.kill(&sim);
        let group = Group::open(&sim, drives, 1);
        let is_harmless = sim.block_on(use_store(&group, &mut rng, blocks));
        (harmless, found) = (harmless + u32::from(is_harmless), found + u32::from(!is_harmless));
    }
    assert!(harmless > 0 && found > 0, "{harmless} damages without an error, {found} with one");
}

/// Writes with checkpoints in between, and many after the last one: they fill segments that the
/// last checkpoint freed.
async fn fill_freed_segments(pool: &Pool, model: &RefCell<Model>, rng: &mut Rng) {
    for _ in 0..3 {
        pool.work(model, rng, 40).await;
        assert!(pool.store.checkpoint().await.is_ok());
    }
    pool.work(model, rng, 40).await;
    pool.flush(model).await;
}

#[test]
fn a_store_with_a_damaged_anchor_is_not_opened() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        sim.block_on(async {
            create(&group).await;
            let pool = open(&group, blocks).await;
            fill_freed_segments(&pool, &model, &mut rng).await;
            drop(pool);
            let address = places(&group).await[rng.index(2)].address;
            let mut anchor = group.leader().read(address, BufMut::zeroed(ANCHOR_BYTES)).await.expect("readable");
            anchor[rng.index(120)] ^= 1 << rng.index(8);
            group.leader().write(address, anchor.freeze(), true).await.expect("writable");
        });
        let group = Group::open(&sim, group.kill(&sim), 1);
        sim.block_on(async {
            let backing = ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1));
            let array = Uuid::from_bytes(ARRAY);
            let opened = ThinStore::open(backing, array, small_grid(&group), &extents(&group), SMALL).await;
            let refusal = opened.map(|_| ()).expect_err("a segment of the older checkpoint may be in use again");
            assert!(matches!(refusal, OpenThinError::Anchor(_)), "seed {seed}, {shape}: {refusal}");
        });
    }
}

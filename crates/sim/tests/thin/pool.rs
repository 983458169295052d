//! A store over a simulated group, its volumes, and requests to them.

use std::cell::RefCell;
use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, WriteZeroes, join_all};
use format::{ExtentRecord, Shape, Uuid};
use sim::engine::*;
use sim::{Rng, Sim, SimDrive, SimEnv};
use volume::thin::{ArrayBacking, Compression, Grid, Thin, ThinStore, Tuning, VolumeSettings};

use sim::thin::{BLOCK, Model, content};

pub type Store = Rc<ThinStore<ArrayBacking<SimEnv>>>;

/// Small limits, so that a short program reaches them all.
pub const SMALL: Tuning = Tuning {
    changes_max: 300,
    checkpoint_bytes_max: 256 << 10,
    cached_leaves_max: 4,
    pending_bytes_max: 512 << 10,
    run_bytes_max: 256 << 10,
};

/// A store and its volumes.
pub struct Pool {
    pub store: Store,
    pub volumes: Vec<Thin<ArrayBacking<SimEnv>>>,
    pub blocks: u64,
    pub compression: [Compression; 2],
}

/// Segments of one or several bands of at least 64 KiB.
pub fn small_grid(group: &Group) -> Grid {
    let geometry = &group.leader().shared().geometry;
    let band = geometry.band_bytes();
    Grid { segment_bytes: (128 * KIB).div_ceil(band) * band, unit_bytes: geometry.whole_write_bytes() }
}

/// Segments of a pool: all but three, which stay between and behind its extents.
pub fn segments(group: &Group) -> u64 {
    let all = group.size() / small_grid(group).segment_bytes;
    assert!(all >= 30, "the group has {all} segments only");
    all - 3
}

/// The pool is in two extents.
pub fn extents(group: &Group) -> Vec<ExtentRecord> {
    let (grid, segments) = (small_grid(group), segments(group));
    let half = segments / 2;
    vec![
        ExtentRecord { start_byte: grid.segment_bytes, len_bytes: half * grid.segment_bytes },
        ExtentRecord { start_byte: (half + 2) * grid.segment_bytes, len_bytes: (segments - half) * grid.segment_bytes },
    ]
}

pub const ARRAY: [u8; 16] = [5; 16];
pub const KEY: [u8; 16] = [9; 16];

pub async fn create(group: &Group) {
    create_with(group, KEY).await;
}

/// Makes an empty store with a key of its own.
pub async fn create_with(group: &Group, key: [u8; 16]) {
    assert!(group.leader().add_intent_log().await.is_ok());
    let (grid, backing) = (small_grid(group), ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1)));
    let extents = extents(group);
    ThinStore::create(&backing, Uuid::from_bytes(ARRAY), key, grid, &extents).await.expect("a store is made");
}

pub async fn open(group: &Group, blocks: u64) -> Pool {
    open_with(group, blocks, [Compression::Off; 2]).await
}

/// A store whose volumes are compressed.
pub async fn open_with(group: &Group, blocks: u64, compression: [Compression; 2]) -> Pool {
    let backing = ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1));
    let (grid, array) = (small_grid(group), Uuid::from_bytes(ARRAY));
    let extents = extents(group);
    let store = ThinStore::open(backing, array, grid, &extents, SMALL).await.expect("the store opens");
    (1..).zip(compression).for_each(|(line, compression)| {
        store.set_settings(line, VolumeSettings { compression, ..VolumeSettings::default() })
    });
    let volumes = (1..=2).map(|line| Thin::new(store.clone(), line, blocks * BLOCK)).collect();
    Pool { store, volumes, blocks, compression }
}

impl Pool {
    pub async fn write(&self, model: &RefCell<Model>, line: u32, blocks: std::ops::Range<u64>, fua: bool) {
        let version = model.borrow().version();
        model.borrow_mut().begin(line, blocks.clone(), version);
        let bytes: Vec<u8> = blocks.clone().flat_map(|block| content(line, block, version)).collect();
        let volume = &self.volumes[line as usize - 1];
        match volume.write(blocks.start * BLOCK, Buf::from(bytes), fua).await {
            Ok(()) => model.borrow_mut().end(line, blocks, version, fua),
            Err(BlockError::NoSpace) => {}
            Err(error) => panic!("a write fails: {error}"),
        }
    }

    pub async fn punch(&self, model: &RefCell<Model>, line: u32, blocks: std::ops::Range<u64>, fua: bool) {
        model.borrow_mut().begin(line, blocks.clone(), 0);
        let (volume, len) = (&self.volumes[line as usize - 1], (blocks.end - blocks.start) * BLOCK);
        let how = WriteZeroes { fua, ..WriteZeroes::default() };
        let zeroed = volume.write_zeroes(blocks.start * BLOCK, len, how).await;
        zeroed.expect("zeroing needs no space");
        model.borrow_mut().end(line, blocks, 0, fua);
    }

    pub async fn check(&self, model: &RefCell<Model>, line: u32, blocks: std::ops::Range<u64>) {
        let volume = &self.volumes[line as usize - 1];
        let buf = BufMut::zeroed(((blocks.end - blocks.start) * BLOCK) as usize);
        let bytes = volume.read(blocks.start * BLOCK, buf).await.expect("readable");
        for (block, bytes) in blocks.zip(bytes.chunks(BLOCK as usize)) {
            let allowed = model.borrow().readable(line, block);
            let fits = allowed.iter().any(|version| *bytes == content(line, block, *version));
            assert!(fits, "line {line}, block {block} is none of {allowed:?}");
        }
    }

    /// Reads everything, and takes what is there for the only content.
    pub async fn observe_all(&self, model: &RefCell<Model>, context: &dyn std::fmt::Display) {
        for line in 1..=2u32 {
            let mut at = 0;
            while at < self.blocks {
                let blocks = at..(at + 64).min(self.blocks);
                let buf = BufMut::zeroed(((blocks.end - at) * BLOCK) as usize);
                let bytes = self.volumes[line as usize - 1].read(at * BLOCK, buf).await.expect("readable");
                for (block, bytes) in blocks.clone().zip(bytes.chunks(BLOCK as usize)) {
                    model.borrow_mut().observe(line, block, bytes, context);
                }
                at = blocks.end;
            }
        }
    }

    pub fn check_space(&self) {
        let mapped = [1, 2].map(|line| self.store.mapped(line));
        let (blocks, live_bytes) = (mapped[0].0 + mapped[1].0, mapped[0].1 + mapped[1].1);
        assert_eq!(self.store.space().segments.live_data, live_bytes, "segments and maps agree");
        if self.compression == [Compression::Off; 2] {
            assert_eq!(live_bytes, blocks * BLOCK, "blocks are stored as they are");
        } else {
            assert!(live_bytes <= blocks * BLOCK, "a copy takes more than the blocks");
        }
    }

    pub fn range(&self, rng: &mut Rng, max: u64) -> std::ops::Range<u64> {
        let start = rng.below(self.blocks);
        start..(start + 1 + rng.below(max)).min(self.blocks)
    }

    /// Writes each volume once.
    pub async fn write_all(&self, model: &RefCell<Model>, rng: &mut Rng) {
        for line in [1, 2] {
            for start in (0..self.blocks).step_by(50) {
                self.write(model, line, start..(start + 50).min(self.blocks), rng.chance(1, 20)).await;
            }
        }
    }

    /// Random requests, one after the other or several on different blocks at once.
    pub async fn work(&self, model: &RefCell<Model>, rng: &mut Rng, steps: usize) {
        for _ in 0..steps {
            let line = 1 + rng.index(2) as u32;
            match rng.index(10) {
                0..=3 => {
                    let many = 1 + rng.index(8);
                    let step = self.blocks / many as u64;
                    let mut writes = Vec::new();
                    for number in 0..many as u64 {
                        let start = number * step + rng.below(step);
                        let end = (start + 1 + rng.below(4)).min((number + 1) * step);
                        writes.push(self.write(model, line, start..end, rng.chance(1, 10)));
                    }
                    join_all(writes).await;
                }
                4..=5 => self.write(model, line, self.range(rng, 80), rng.chance(1, 4)).await,
                6 => self.punch(model, line, self.range(rng, 200), rng.chance(1, 4)).await,
                7..=8 => self.check(model, line, self.range(rng, 40)).await,
                _ => {
                    self.store_flush(model).await;
                }
            }
            self.check_space();
        }
    }

    pub async fn store_flush(&self, model: &RefCell<Model>) {
        self.volumes[0].flush().await.expect("flushes");
        model.borrow_mut().flushed();
    }
}

pub fn group(sim: &Sim, rng: &mut Rng) -> (Group, Shape) {
    let shape = *rng.pick(&every_level(4 * KIB));
    (group_of(sim, rng, shape), shape)
}

pub fn group_of(sim: &Sim, rng: &mut Rng, shape: Shape) -> Group {
    let drives = new_drives(sim, usize::from(shape.members), drive_bytes(&shape), 512);
    Group::create(sim, shape, drives, 1 + rng.index(2))
}

/// Drives on which a group of this shape has about 40 small segments.
pub fn drive_bytes(shape: &Shape) -> u64 {
    let data = u64::from(shape.sets) * shape.data_per_set() as u64;
    let band = 32 * KIB * data;
    let segment = (128 * KIB).div_ceil(band) * band;
    (40 * segment / data + 2 * MIB).next_multiple_of(MIB)
}

/// Blocks of each volume: together more than the pool has.
pub fn volume_blocks(group: &Group) -> u64 {
    segments(group) * small_grid(group).segment_bytes * 3 / 5 / BLOCK
}

pub fn reopen(sim: &Sim, drives: Vec<SimDrive>, shards: usize) -> Group {
    Group::open(sim, drives, shards)
}

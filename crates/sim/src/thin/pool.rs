//! A store over a simulated group, its volumes, and requests to them.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use drive::{Block, BlockError, Buf, BufMut, Env, WriteZeroes, join_all};
use format::{ExtentRecord, Shape, Uuid};
use volume::thin::{ArrayBacking, Compression, Grid, Thin, ThinStore, Tuning, VolumeSettings};

use super::model::{BLOCK, Model, content};
use crate::engine::{Group, KIB, MIB, every_level, new_drives};
use crate::{Rng, Sim, SimEnv};

/// A store over the real array.
pub type Store = Rc<ThinStore<ArrayBacking<SimEnv>>>;

/// Small limits, so that a short program reaches them all.
pub const SMALL: Tuning = Tuning {
    changes_max: 300,
    checkpoint_bytes_max: 256 << 10,
    cached_leaves_max: 4,
    pending_bytes_max: 512 << 10,
    run_bytes_max: 256 << 10,
};

/// Content of compressed volumes is packed again if it was not written for so long.
const COLD_AFTER: Duration = Duration::from_millis(5);

/// The identity of the array in the anchors.
pub const ARRAY: [u8; 16] = [5; 16];

/// The key of a store.
pub const KEY: [u8; 16] = [9; 16];

/// A store and its volumes.
pub struct Pool {
    /// The store.
    pub store: Store,
    /// The two volumes.
    pub volumes: Vec<Thin<ArrayBacking<SimEnv>>>,
    /// The lines of the volumes.
    pub lines: [u32; 2],
    /// Blocks of each volume.
    pub blocks: u64,
    /// How each volume is compressed.
    pub compression: [Compression; 2],
    /// How often a drive was about to get in sync since the store was opened.
    pub drives_filled: Rc<Cell<u32>>,
    /// Bytes of the segments of the store. `None`: they change.
    pub capacity_bytes: Option<u64>,
}

/// Segments of one or several bands of at least 64 KiB.
pub fn small_grid(group: &Group) -> Grid {
    let geometry = &group.leader().shared().geometry;
    let band = geometry.band_bytes();
    Grid { segment_bytes: (128 * KIB).div_ceil(band) * band, unit_bytes: geometry.whole_write_bytes() }
}

/// Segments of a pool: all but three, which stay between and behind its extents.
///
/// # Panics
/// If the group is too small.
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

/// Makes an empty store.
pub async fn create(group: &Group) {
    create_with(group, KEY).await;
}

/// Makes an empty store with a key of its own.
///
/// # Panics
/// If that fails.
pub async fn create_with(group: &Group, key: [u8; 16]) {
    assert!(group.leader().add_intent_log().await.is_ok());
    let (grid, backing) = (small_grid(group), ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1)));
    let extents = extents(group);
    ThinStore::create(&backing, Uuid::from_bytes(ARRAY), key, grid, &extents).await.expect("a store is made");
}

/// Opens the store. Its volumes are not compressed.
pub async fn open(group: &Group, blocks: u64) -> Pool {
    open_with(group, blocks, [Compression::Off; 2]).await
}

/// A store whose volumes are compressed.
pub async fn open_with(group: &Group, blocks: u64, compression: [Compression; 2]) -> Pool {
    open_lines(group, blocks, compression, [1, 2]).await
}

/// A store whose volumes have these lines. As in the daemon, drives can get in sync from then on,
/// and other lines are deleted: they are of volumes whose deletion was interrupted.
///
/// # Panics
/// If the store does not open.
pub async fn open_lines(group: &Group, blocks: u64, compression: [Compression; 2], lines: [u32; 2]) -> Pool {
    let backing = ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1));
    let (grid, array) = (small_grid(group), Uuid::from_bytes(ARRAY));
    let extents = extents(group);
    let store = ThinStore::open(backing, array, grid, &extents, SMALL).await.expect("the store opens");
    let (weak, drives_filled) = (Rc::downgrade(&store), Rc::new(Cell::new(0)));
    let count = drives_filled.clone();
    group.leader().before_in_sync(Rc::new(move || {
        count.set(count.get() + 1);
        let store = weak.upgrade();
        Box::pin(async move {
            match store {
                Some(store) => store.reclaim_all_intents().await,
                None => Ok(()),
            }
        })
    }));
    let volumes = lines.map(|line| Thin::new(store.clone(), line, blocks * BLOCK)).into();
    let capacity_bytes = Some(segments(group) * grid.segment_bytes);
    let pool = Pool { store, volumes, lines, blocks, compression, drives_filled, capacity_bytes };
    pool.store.lines().into_iter().filter(|line| !lines.contains(line)).for_each(|line| pool.delete(group, line));
    lines.into_iter().for_each(|line| pool.change_settings(line, |_| ()));
    pool
}

impl Pool {
    fn place(&self, line: u32) -> usize {
        self.lines.iter().position(|other| *other == line).expect("a line of a volume")
    }

    /// The volume with this line.
    pub fn volume(&self, line: u32) -> &Thin<ArrayBacking<SimEnv>> {
        &self.volumes[self.place(line)]
    }

    /// Changes how a volume uses the store.
    pub fn change_settings(&self, line: u32, change: impl FnOnce(&mut VolumeSettings)) {
        let compression = self.compression[self.place(line)];
        let repack_after = (compression != Compression::Off).then_some(COLD_AFTER);
        let mut settings = VolumeSettings { compression, repack_after, ..VolumeSettings::default() };
        change(&mut settings);
        self.store.set_settings(line, settings);
    }

    /// Begins to delete the content of a volume that is not used any more.
    fn delete(&self, group: &Group, line: u32) {
        let store = self.store.clone();
        group.env.spawn(async move {
            match store.delete(line).await {
                Ok(()) | Err(BlockError::Stopped) => {}
                Err(error) => panic!("line {line} cannot be deleted: {error}"),
            }
        });
    }

    /// Deletes a volume, and has a new one in its place.
    pub fn replace_volume(&mut self, group: &Group, line: u32, new: u32) {
        let place = self.place(line);
        self.lines[place] = new;
        self.volumes[place] = Thin::new(self.store.clone(), new, self.blocks * BLOCK);
        self.change_settings(new, |_| ());
        self.delete(group, line);
    }

    /// Writes blocks, and returns whether there was room.
    ///
    /// # Panics
    /// If the write fails for another reason.
    pub async fn has_room(&self, model: &RefCell<Model>, line: u32, blocks: Range<u64>, fua: bool) -> bool {
        let version = model.borrow().version();
        model.borrow_mut().begin(line, blocks.clone(), version);
        let bytes: Vec<u8> = blocks.clone().flat_map(|block| content(line, block, version)).collect();
        match self.volume(line).write(blocks.start * BLOCK, Buf::from(bytes), fua).await {
            Ok(()) => {
                model.borrow_mut().end(line, blocks, version, fua);
                true
            }
            Err(BlockError::NoSpace) => false,
            Err(error) => panic!("a write fails: {error}"),
        }
    }

    /// Writes blocks. There may be no room.
    pub async fn write(&self, model: &RefCell<Model>, line: u32, blocks: Range<u64>, fua: bool) {
        self.has_room(model, line, blocks, fua).await;
    }

    /// Four writers fill both volumes until each was refused, or has written its half.
    pub async fn fill(&self, model: &RefCell<Model>, step: u64) {
        let half = self.blocks / 2;
        let writers = (0..4u64).map(|writer| async move {
            let (line, start) = (self.lines[(writer / 2) as usize], writer % 2 * half);
            let mut at = start;
            while at < start + half && self.has_room(model, line, at..(at + step).min(start + half), false).await {
                at += step;
            }
        });
        join_all(writers).await;
    }

    /// Zeroes blocks.
    ///
    /// # Panics
    /// If that fails.
    pub async fn punch(&self, model: &RefCell<Model>, line: u32, blocks: Range<u64>, fua: bool) {
        model.borrow_mut().begin(line, blocks.clone(), 0);
        let len = (blocks.end - blocks.start) * BLOCK;
        let how = WriteZeroes { fua, ..WriteZeroes::default() };
        let zeroed = self.volume(line).write_zeroes(blocks.start * BLOCK, len, how).await;
        zeroed.expect("zeroing needs no space");
        model.borrow_mut().end(line, blocks, 0, fua);
    }

    /// Reads blocks, and compares them with the model.
    ///
    /// # Panics
    /// If they are not there.
    pub async fn check(&self, model: &RefCell<Model>, line: u32, blocks: Range<u64>) {
        let buf = BufMut::zeroed(((blocks.end - blocks.start) * BLOCK) as usize);
        let bytes = self.volume(line).read(blocks.start * BLOCK, buf).await.expect("readable");
        for (block, bytes) in blocks.zip(bytes.chunks(BLOCK as usize)) {
            let allowed = model.borrow().readable(line, block);
            let fits = allowed.iter().any(|version| *bytes == content(line, block, *version));
            assert!(fits, "line {line}, block {block} is none of {allowed:?}");
        }
    }

    /// Reads a volume from its start to its end: what is scattered is stored in order then.
    pub async fn check_in_order(&self, model: &RefCell<Model>, line: u32) {
        for start in (0..self.blocks).step_by(64) {
            self.check(model, line, start..(start + 64).min(self.blocks)).await;
        }
    }

    /// Reads everything, and takes what is there for the only content.
    ///
    /// # Panics
    /// If a block has content that the model does not allow.
    pub async fn observe_all(&self, model: &RefCell<Model>, context: &dyn Display) {
        for line in self.lines {
            let mut at = 0;
            while at < self.blocks {
                let blocks = at..(at + 64).min(self.blocks);
                let buf = BufMut::zeroed(((blocks.end - at) * BLOCK) as usize);
                let bytes = self.volume(line).read(at * BLOCK, buf).await;
                let bytes = bytes.unwrap_or_else(|error| panic!("{context}: line {line}, block {at}: {error}"));
                for (block, bytes) in blocks.clone().zip(bytes.chunks(BLOCK as usize)) {
                    model.borrow_mut().observe(line, block, bytes, context);
                }
                at = blocks.end;
            }
        }
    }

    /// Every byte of the store is free, live, or garbage, and the maps have the live ones.
    ///
    /// # Panics
    /// If the store counts otherwise.
    pub fn check_space(&self) {
        let capacity_bytes = self.capacity_bytes.unwrap_or_else(|| self.store.space().segments.total);
        super::check_sums(&self.store, capacity_bytes);
        let mapped = self.store.lines().into_iter().map(|line| self.store.mapped(line));
        let (blocks, live_bytes) = mapped.fold((0, 0), |sum, line| (sum.0 + line.0, sum.1 + line.1));
        if self.compression == [Compression::Off; 2] {
            assert_eq!(live_bytes, blocks * BLOCK, "blocks are stored as they are");
        } else {
            assert!(live_bytes <= blocks * BLOCK, "a copy takes more than the blocks");
        }
    }

    /// Random blocks, at most `max` of them.
    pub fn range(&self, rng: &mut Rng, max: u64) -> Range<u64> {
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
            let line = *rng.pick(&self.lines);
            self.store.look_for_work();
            match rng.index(40) {
                0..=15 => {
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
                16..=23 => self.write(model, line, self.range(rng, 80), rng.chance(1, 4)).await,
                24..=27 => self.punch(model, line, self.range(rng, 200), rng.chance(1, 4)).await,
                28..=34 => self.check(model, line, self.range(rng, 40)).await,
                35 => self.check_in_order(model, line).await,
                36 if self.compression[self.place(line)] != Compression::Off => {
                    assert!(self.store.repack_once(line).await.is_ok());
                }
                _ => {
                    self.flush(model).await;
                }
            }
            self.check_space();
        }
    }

    /// Writes a block, and at times flushes. Few such writes fill a run, so the intent log has the
    /// only durable copies of most of them.
    pub async fn write_small(&self, model: &RefCell<Model>, rng: &mut Rng) {
        let (line, block) = (*rng.pick(&self.lines), rng.below(self.blocks));
        self.write(model, line, block..block + 1, rng.chance(1, 2)).await;
        if rng.chance(1, 3) {
            self.flush(model).await;
        }
    }

    /// Flushes. No other request may be under way.
    ///
    /// # Panics
    /// If that fails.
    pub async fn flush(&self, model: &RefCell<Model>) {
        self.volumes[0].flush().await.expect("flushes");
        model.borrow_mut().flushed();
    }
}

/// A group of a random level.
pub fn group(sim: &Sim, rng: &mut Rng) -> (Group, Shape) {
    let shape = *rng.pick(&every_level(4 * KIB));
    (group_of(sim, rng, shape), shape)
}

/// A group of this shape.
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

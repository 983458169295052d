//! Thin volumes over a real group: random programs beside a model, power cuts, kills, full pools,
//! lost members.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, WriteZeroes, join_all};
use format::{ExtentRecord, Shape, Uuid};
use sim::engine::*;
use sim::{Rng, Sim, SimDrive, SimEnv};
use volume::thin::{ArrayBacking, Grid, Thin, ThinStore, Tuning};

type Store = Rc<ThinStore<ArrayBacking<SimEnv>>>;

const BLOCK: u64 = 4096;

/// Small limits, so that a short program reaches them all.
const SMALL: Tuning = Tuning {
    changes_max: 300,
    dirty_leaves_max: 64,
    cached_leaves_max: 4,
    pending_bytes_max: 512 << 10,
    run_bytes_max: 256 << 10,
};

/// The content of a block: its line, number and version, or zeroes.
fn content(line: u32, block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK as usize];
    }
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    for word in 0..BLOCK / 32 {
        [u64::from(line), block, version, word].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    }
    bytes
}

/// The versions of a block that a read may give, from the last durable one on.
#[derive(Debug, Clone, Default)]
struct Versions {
    /// Each with whether its request was answered with success.
    entries: Vec<(u64, bool)>,
}

/// The state of all blocks. Requests on one block do not overlap in time.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<(u32, u64), Versions>,
    next: Cell<u64>,
}

impl Model {
    fn version(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    fn begin(&mut self, line: u32, blocks: std::ops::Range<u64>, version: u64) {
        for block in blocks {
            let versions = self.blocks.entry((line, block)).or_insert(Versions { entries: vec![(0, true)] });
            versions.entries.push((version, false));
        }
    }

    fn end(&mut self, line: u32, blocks: std::ops::Range<u64>, version: u64, durable: bool) {
        for block in blocks {
            let versions = self.blocks.get_mut(&(line, block)).expect("it was begun");
            let last = versions.entries.last_mut().expect("it was begun");
            assert_eq!(last.0, version);
            last.1 = true;
            if durable {
                versions.entries = vec![*last];
            }
        }
    }

    /// A flush was answered, during which no other request was under way.
    fn flushed(&mut self) {
        for versions in self.blocks.values_mut() {
            let done = versions.entries.iter().rposition(|(_, done)| *done).expect("the first one is");
            versions.entries.drain(..done);
        }
    }

    /// The process was killed: what was answered is there.
    fn killed(&mut self) {
        self.flushed();
    }

    /// A read gave this content. From now on it is the only one.
    fn observe(&mut self, line: u32, block: u64, bytes: &[u8], context: &str) {
        let none = Versions { entries: vec![(0, true)] };
        let versions = self.blocks.get(&(line, block)).unwrap_or(&none).entries.clone();
        let seen = versions.iter().find(|(version, _)| *bytes == content(line, block, *version));
        let found = || {
            let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
            format!("line {}, block {}, version {}", word(0), word(1), word(2))
        };
        let (version, _) = seen.unwrap_or_else(|| {
            panic!("{context}: line {line}, block {block} has {}, and not one of {versions:?}", found())
        });
        self.blocks.insert((line, block), Versions { entries: vec![(*version, true)] });
    }

    /// The versions that a read may give without a crash.
    fn readable(&self, line: u32, block: u64) -> Vec<u64> {
        let Some(versions) = self.blocks.get(&(line, block)) else { return vec![0] };
        let done = versions.entries.iter().rposition(|(_, done)| *done).expect("the first one is");
        versions.entries[done..].iter().map(|(version, _)| *version).collect()
    }
}

/// A store and its volumes.
struct Pool {
    store: Store,
    volumes: Vec<Thin<ArrayBacking<SimEnv>>>,
    blocks: u64,
}

/// Segments of one or several bands of at least 64 KiB.
fn small_grid(group: &Group) -> Grid {
    let geometry = &group.leader().shared().geometry;
    let band = geometry.band_bytes();
    Grid { segment_bytes: (128 * KIB).div_ceil(band) * band, unit_bytes: geometry.whole_write_bytes() }
}

/// Segments of a pool: all but three, which stay between and behind its extents.
fn segments(group: &Group) -> u64 {
    let all = group.size() / small_grid(group).segment_bytes;
    assert!(all >= 30, "the group has {all} segments only");
    all - 3
}

/// The pool is in two extents.
fn extents(group: &Group) -> Vec<ExtentRecord> {
    let (grid, segments) = (small_grid(group), segments(group));
    let half = segments / 2;
    vec![
        ExtentRecord { start_byte: grid.segment_bytes, len_bytes: half * grid.segment_bytes },
        ExtentRecord { start_byte: (half + 2) * grid.segment_bytes, len_bytes: (segments - half) * grid.segment_bytes },
    ]
}

const ARRAY: [u8; 16] = [5; 16];

async fn create(group: &Group) {
    assert!(group.leader().add_intent_log().await.is_ok());
    let (grid, backing) = (small_grid(group), ArrayBacking::new(group.env.clone(), group.leader().clone()));
    let extents = extents(group);
    ThinStore::create(&backing, Uuid::from_bytes(ARRAY), [9; 16], grid, &extents).await.expect("a store is made");
}

async fn open(group: &Group, blocks: u64) -> Pool {
    let backing = ArrayBacking::new(group.env.clone(), group.leader().clone());
    let (grid, array) = (small_grid(group), Uuid::from_bytes(ARRAY));
    let extents = extents(group);
    let store = ThinStore::open(backing, array, grid, &extents, SMALL).await.expect("the store opens");
    let volumes = (1..=2).map(|line| Thin::new(store.clone(), line, blocks * BLOCK)).collect();
    Pool { store, volumes, blocks }
}

impl Pool {
    async fn write(&self, model: &RefCell<Model>, line: u32, blocks: std::ops::Range<u64>, fua: bool) {
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

    async fn punch(&self, model: &RefCell<Model>, line: u32, blocks: std::ops::Range<u64>, fua: bool) {
        model.borrow_mut().begin(line, blocks.clone(), 0);
        let (volume, len) = (&self.volumes[line as usize - 1], (blocks.end - blocks.start) * BLOCK);
        let how = WriteZeroes { fua, ..WriteZeroes::default() };
        let zeroed = volume.write_zeroes(blocks.start * BLOCK, len, how).await;
        zeroed.expect("zeroing needs no space");
        model.borrow_mut().end(line, blocks, 0, fua);
    }

    async fn check(&self, model: &RefCell<Model>, line: u32, blocks: std::ops::Range<u64>) {
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
    async fn observe_all(&self, model: &RefCell<Model>, context: &str) {
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

    fn check_space(&self) {
        let mapped = [1, 2].map(|line| self.store.mapped(line));
        let (blocks, live_bytes) = (mapped[0].0 + mapped[1].0, mapped[0].1 + mapped[1].1);
        assert_eq!(self.store.space().segments.live_data, live_bytes, "segments and maps agree");
        assert_eq!(live_bytes, blocks * BLOCK, "blocks are stored as they are");
    }

    fn range(&self, rng: &mut Rng, max: u64) -> std::ops::Range<u64> {
        let start = rng.below(self.blocks);
        start..(start + 1 + rng.below(max)).min(self.blocks)
    }

    /// Random requests, one after the other or several on different blocks at once.
    async fn work(&self, model: &RefCell<Model>, rng: &mut Rng, steps: usize) {
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

    async fn store_flush(&self, model: &RefCell<Model>) {
        self.volumes[0].flush().await.expect("flushes");
        model.borrow_mut().flushed();
    }
}

fn group(sim: &Sim, rng: &mut Rng) -> (Group, Shape) {
    let shape = *rng.pick(&every_level(4 * KIB));
    let drives = new_drives(sim, usize::from(shape.members), drive_bytes(&shape), 512);
    (Group::create(sim, shape, drives, 1 + rng.index(2)), shape)
}

/// Drives on which a group of this shape has about 40 small segments.
fn drive_bytes(shape: &Shape) -> u64 {
    let data = u64::from(shape.sets) * shape.data_per_set() as u64;
    let band = 32 * KIB * data;
    let segment = (128 * KIB).div_ceil(band) * band;
    (40 * segment / data + 2 * MIB).next_multiple_of(MIB)
}

/// Blocks of each volume: together more than the pool has.
fn volume_blocks(group: &Group) -> u64 {
    segments(group) * small_grid(group).segment_bytes * 3 / 5 / BLOCK
}

fn reopen(sim: &Sim, drives: Vec<SimDrive>, shards: usize) -> Group {
    Group::open(sim, drives, shards)
}

#[test]
fn a_thin_volume_reads_as_it_was_written() {
    for seed in seeds(30) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let model = RefCell::new(Model::default());
        sim.block_on(async {
            create(&group).await;
            let pool = open(&group, volume_blocks(&group)).await;
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
        sim.block_on(create(&group));
        let mut pool = sim.block_on(open(&group, blocks));
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
            group = reopen(&sim, drives, shards);
            pool = sim.block_on(open(&group, blocks));
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
fn as_many_members_as_the_level_survives_may_be_lost_in_a_power_cut() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let (model, blocks) = (RefCell::new(Model::default()), volume_blocks(&group));
        sim.block_on(create(&group));
        let pool = sim.block_on(open(&group, blocks));
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
        let pool = sim.block_on(open(&group, blocks));
        sim.block_on(pool.observe_all(&model, &format!("seed {seed}, {shape}, members lost")));
    }
}

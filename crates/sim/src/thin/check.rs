//! Programs on thin volumes, and all of their crashes.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use drive::{Block, BlockError, Buf, BufMut, join_all, oneshot};
use format::{ExtentRecord, Uuid};
use volume::thin::{Compression, Grid, Thin, ThinStore, Tuning, VolumeSettings};

use super::backing::{CHUNK_BYTES, Image, ModelGroup, Remains, StopAt};
use super::check_sums;
use super::model::{BLOCK, Model, content};
use crate::{Rng, Sim};

const ARRAY: [u8; 16] = [5; 16];
const KEY: [u8; 16] = [9; 16];

/// Segments of the store.
const SEGMENTS: u64 = 28;

/// Blocks of each of the two volumes: two windows and a bit.
pub(super) const BLOCKS: u64 = 36;

/// A crash in the recovery comes within so many events.
const RECOVERY_EVENTS: u64 = 60;

/// Small limits.
const TUNING: Tuning = Tuning {
    changes_max: 12,
    checkpoint_bytes_max: 128 << 10,
    cached_leaves_max: 1,
    pending_bytes_max: 256 << 10,
    run_bytes_max: 64 << 10,
};

/// A step of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes blocks of a volume, 1 or 2. With FUA or not.
    Write(u32, Range<u64>, bool),
    /// Discards blocks.
    Discard(u32, Range<u64>),
    /// Reads blocks.
    Read(u32, Range<u64>),
    /// Flushes.
    Flush,
    /// Enters all that is pending into the map.
    Land,
    /// Makes a checkpoint.
    Checkpoint,
    /// Collects segments.
    Collect,
    /// Packs the content of both volumes again.
    Repack,
}

/// Groups of steps. The steps of a group run at the same time, and are on different blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    seed: u64,
    is_kill: bool,
    has_slow_frames: bool,
    /// Stripes of a segment.
    units: u64,
    /// Of each volume.
    compression: [Compression; 2],
    groups: Vec<Vec<Step>>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let crash = if self.is_kill { "killed" } else { "power cuts" };
        let Program { seed, units, compression, groups, .. } = self;
        write!(f, "seed {seed}, {crash}, {units} stripes per segment, compression {compression:?}: {groups:?}")
    }
}

impl Program {
    /// A program. `seed` draws how long operations take; `units` are the stripes of a segment.
    pub fn new(seed: u64, is_kill: bool, units: u64, groups: Vec<Vec<Step>>) -> Program {
        let compression = [Compression::Off; 2];
        Program { seed, is_kill, has_slow_frames: false, units, compression, groups }
    }

    /// The same, with frames that are overtaken by everything else.
    pub fn with_slow_frames(self) -> Program {
        Program { has_slow_frames: true, ..self }
    }

    /// The same, with volumes that are compressed.
    pub fn with_compression(self, compression: [Compression; 2]) -> Program {
        Program { compression, ..self }
    }

    /// The end at an event.
    pub(super) fn stop_at(&self, event: u64) -> StopAt {
        StopAt { event, is_kill: self.is_kill, has_slow_frames: self.has_slow_frames }
    }

    /// A random program.
    pub fn random(seed: u64) -> Program {
        let mut rng = Rng::new(seed);
        let is_kill = rng.chance(1, 4);
        let units = 1 << rng.index(2);
        let groups = (0..2 + rng.index(6)).map(|_| group(&mut rng)).collect();
        let has_slow_frames = rng.chance(1, 4);
        let compression = any_compression(&mut rng);
        Program { seed, is_kill, has_slow_frames, units, compression, groups }
    }

    fn grid(&self) -> Grid {
        let unit_bytes = 2 * CHUNK_BYTES as u64;
        Grid { segment_bytes: self.units * unit_bytes, unit_bytes }
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        SEGMENTS * self.grid().segment_bytes
    }

    fn extents(&self) -> [ExtentRecord; 1] {
        [ExtentRecord { start_byte: 0, len_bytes: self.capacity_bytes() }]
    }
}

/// How two volumes may be compressed.
pub fn any_compression(rng: &mut Rng) -> [Compression; 2] {
    let mut any = || *rng.pick(&[Compression::Off, Compression::Lz4, Compression::Zstd(1)]);
    [any(), any()]
}

/// Steps at the same time: each has blocks of its own, and few blocks are used often.
fn group(rng: &mut Rng) -> Vec<Step> {
    let (mut steps, mut block) = (Vec::new(), rng.below(2));
    let most = *rng.pick(&[1, 1, 2, 3, 5]);
    while steps.len() < most && block < BLOCKS {
        let line = 1 + rng.chance(1, 4) as u32;
        let len = *rng.pick(&[1, 1, 2, 16, 32]);
        let blocks = block..(block + len).min(BLOCKS);
        let step = match rng.index(15) {
            0..=5 => Step::Write(line, blocks.clone(), rng.chance(1, 4)),
            6 => Step::Discard(line, blocks.clone()),
            7 => Step::Read(line, blocks.clone()),
            8 => Step::Flush,
            9..=10 => Step::Land,
            11..=12 => Step::Checkpoint,
            13 => Step::Repack,
            _ => Step::Collect,
        };
        if matches!(step, Step::Write(..) | Step::Discard(..) | Step::Read(..)) {
            block = blocks.end + rng.below(2);
        }
        steps.push(step);
    }
    steps
}

/// Numbers of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Points in time at which a program was stopped.
    pub crashes: u64,
    /// Images that were recovered from.
    pub recoveries: u64,
}

/// A store on a model of a group, and its volumes.
pub(super) struct Pool {
    pub store: Rc<ThinStore<ModelGroup>>,
    volumes: [Thin<ModelGroup>; 2],
}

pub(super) async fn open(program: &Program, group: ModelGroup) -> Pool {
    let (grid, extents) = (program.grid(), program.extents());
    let store = ThinStore::open(group, Uuid::from_bytes(ARRAY), grid, &extents, TUNING).await;
    let store = store.unwrap_or_else(|error| panic!("{program}: the store does not open: {error}"));
    (1..).zip(program.compression).for_each(|(line, compression)| {
        store.set_settings(line, VolumeSettings { compression, ..VolumeSettings::default() })
    });
    let volumes = [1, 2].map(|line| Thin::new(store.clone(), line, BLOCKS * BLOCK));
    Pool { store, volumes }
}

impl Pool {
    pub async fn perform(&self, step: &Step, model: &RefCell<Model>, flush_is_alone: bool) {
        match step {
            Step::Write(line, blocks, fua) => {
                let version = model.borrow().version();
                model.borrow_mut().begin(*line, blocks.clone(), version);
                let bytes: Vec<u8> = blocks.clone().flat_map(|block| content(*line, block, version)).collect();
                let volume = &self.volumes[*line as usize - 1];
                match volume.write(blocks.start * BLOCK, Buf::from(bytes), *fua).await {
                    Ok(()) => model.borrow_mut().end(*line, blocks.clone(), version, *fua),
                    Err(BlockError::NoSpace) => {}
                    Err(error) => panic!("a write fails: {error}"),
                }
            }
            Step::Discard(line, blocks) => {
                model.borrow_mut().begin(*line, blocks.clone(), 0);
                let (volume, len) = (&self.volumes[*line as usize - 1], (blocks.end - blocks.start) * BLOCK);
                volume.discard(blocks.start * BLOCK, len).await.expect("discards");
                model.borrow_mut().end(*line, blocks.clone(), 0, false);
            }
            Step::Read(line, blocks) => {
                let (volume, before) = (&self.volumes[*line as usize - 1], model.borrow().clone());
                let buf = BufMut::zeroed(((blocks.end - blocks.start) * BLOCK) as usize);
                let bytes = volume.read(blocks.start * BLOCK, buf).await.expect("readable");
                for (block, bytes) in blocks.clone().zip(bytes.chunks(BLOCK as usize)) {
                    let allowed = before.readable(*line, block);
                    let is_right = allowed.iter().any(|version| *bytes == content(*line, block, *version));
                    assert!(is_right, "line {line}, block {block} is none of {allowed:?}");
                }
            }
            Step::Flush => {
                let before = model.borrow().answered();
                self.volumes[0].flush().await.expect("flushes");
                if flush_is_alone {
                    model.borrow_mut().flushed();
                } else {
                    model.borrow_mut().flushed_until(&before);
                }
            }
            Step::Land => self.store.land_all().await.expect("lands"),
            Step::Checkpoint => self.store.checkpoint().await.expect("makes a checkpoint"),
            Step::Collect => self.store.collect_once().await.expect("collects"),
            Step::Repack => {
                for line in [1, 2] {
                    self.store.repack_once(line).await.expect("packs");
                }
            }
        }
    }

    async fn run(&self, program: &Program, model: &RefCell<Model>) {
        for group in &program.groups {
            join_all(group.iter().map(|step| self.perform(step, model, group.len() == 1))).await;
            check_sums(&self.store, program.capacity_bytes());
        }
    }

    /// Reads everything.
    pub async fn observe(&self, model: &mut Model, context: &dyn fmt::Display) {
        for (line, volume) in (1..).zip(&self.volumes) {
            let bytes = volume.read(0, BufMut::zeroed((BLOCKS * BLOCK) as usize)).await.expect("readable");
            for (block, bytes) in (0..).zip(bytes.chunks(BLOCK as usize)) {
                model.observe(line, block, bytes, context);
            }
        }
    }
}

/// Runs `work` on a group until it ends or the group stops. Returns what is left if the group
/// stopped, and the number of events.
pub(super) fn until_stop<F: Future<Output = ()>>(
    (seed, image): (u64, Image),
    stop_at: StopAt,
    work: impl FnOnce(ModelGroup) -> F,
) -> (Option<Remains>, u64) {
    let sim = Sim::new(seed);
    let (on_stop, stopped) = oneshot();
    let group = ModelGroup::new(sim.env(), image, sim.rng(), stop_at, on_stop);
    let remains = sim.block_on(async {
        let (mut work, mut stopped) = (pin!(work(group.clone())), pin!(stopped));
        poll_fn(|context| match stopped.as_mut().poll(context) {
            Poll::Ready(left) => Poll::Ready(left.ok()),
            Poll::Pending => work.as_mut().poll(context).map(|()| None),
        })
        .await
    });
    (remains, group.events())
}

/// Says where a panic was.
pub(super) struct Context<'a> {
    pub program: &'a Program,
    pub stop_at: u64,
    pub recovery: u64,
}

impl fmt::Display for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, stopped at event {}, recovery {}", self.program, self.stop_at, self.recovery)
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{self}");
        }
    }
}

/// Runs a program without a crash, and reads everything in the end. Returns the number of events.
///
/// # Panics
/// If a volume does not have what it should.
pub fn run(program: &Program) -> u64 {
    let events = Cell::new(0);
    let context = Context { program, stop_at: u64::MAX, recovery: 0 };
    until_stop((program.seed, empty_store(program)), program.stop_at(u64::MAX), |group| {
        let (events, context) = (&events, &context);
        async move {
            let (pool, model) = (open(program, group.clone()).await, RefCell::default());
            pool.run(program, &model).await;
            events.set(group.events());
            // Without a crash, the last version counts.
            let mut model = model.into_inner();
            model.flushed();
            pool.observe(&mut model, context).await;
        }
    });
    events.get()
}

pub(super) fn run_until(
    program: &Program,
    (stop_at, model): (u64, &RefCell<Model>),
    image: Image,
) -> (Option<Remains>, u64) {
    until_stop((program.seed, image), program.stop_at(stop_at), |group| async move {
        open(program, group).await.run(program, model).await;
    })
}

/// Runs a program, stops it at each of its events, and recovers.
///
/// # Panics
/// If a recovered store does not have what it should.
pub fn check(program: &Program) -> Counts {
    let mut rng = Rng::new(program.seed);
    let mut counts = Counts::default();
    let empty = empty_store(program);
    let events = run(program);
    for stop_at in 1..=events {
        let model = RefCell::default();
        let (remains, _) = run_until(program, (stop_at, &model), empty.clone());
        let remains = remains.expect("the group stops before the program ends");
        let mut model = model.into_inner();
        if program.is_kill {
            model.killed();
        }
        counts.crashes += 1;
        for image in remains.images(&mut rng) {
            counts.recoveries += 1;
            let context = Context { program, stop_at, recovery: counts.recoveries };
            recover(&context, image, model.clone(), &mut rng);
        }
    }
    counts
}

/// The group with an empty store.
pub(super) fn empty_store(program: &Program) -> Image {
    let made = Cell::new(None);
    let image = &made;
    until_stop((program.seed, Image::default()), program.stop_at(u64::MAX), |group| async move {
        let array = Uuid::from_bytes(ARRAY);
        let created = ThinStore::create(&group, array, KEY, program.grid(), &program.extents()).await;
        created.expect("a store is made");
        image.set(Some(group.image()));
    });
    made.into_inner().expect("a store was made")
}

/// Recovers from an image, sometimes with another crash meanwhile, and looks whether all is there.
/// Then goes on with it, to see that it is sound.
fn recover(context: &Context, mut image: Image, mut model: Model, rng: &mut Rng) {
    let program = context.program;
    while rng.chance(1, 3) {
        let stop_at = 1 + rng.below(RECOVERY_EVENTS);
        let (remains, _) =
            until_stop((rng.next_u64(), image.clone()), program.stop_at(stop_at).by_power_cut(), |group| async move {
                open(program, group).await;
            });
        let Some(remains) = remains else { break };
        image = rng.pick(&remains.images(&mut Rng::new(stop_at))).clone();
    }
    let (seed, mut left) = (rng.next_u64(), None);
    let blocks = rng.below(BLOCKS);
    until_stop((seed, image), program.stop_at(u64::MAX), |group| {
        let (model, left) = (&mut model, &mut left);
        async move {
            let pool = open(program, group.clone()).await;
            pool.observe(model, context).await;
            check_sums(&pool.store, program.capacity_bytes());
            if seed.is_multiple_of(4) {
                let model = RefCell::new(std::mem::take(model));
                pool.perform(&Step::Write(1, 0..blocks + 1, false), &model, true).await;
                pool.perform(&Step::Flush, &model, true).await;
                pool.perform(&Step::Collect, &model, true).await;
                *left = Some((group.image(), model.into_inner()));
            }
        }
    });
    if let Some((image, mut model)) = left {
        until_stop((seed, image), program.stop_at(u64::MAX), |group| {
            let model = &mut model;
            async move {
                open(program, group).await.observe(model, context).await;
            }
        });
    }
}

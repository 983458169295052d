//! Conversions between direct and thin over a real group, beside a model: through power cuts and
//! kills at any point, with the catalogue on the members.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use array::Array;
use drive::{Block, BlockError, Buf, BufMut, Env, Extent, WriteZeroes, join_all};
use format::{
    Catalogue, ConversionRecord, ExtentRecord, ThinPoolRecord, ThinStoreRecord, ThinVolumeRecord, Uuid, VolumeKind,
    VolumeRecord,
};
use sim::engine::*;
use sim::thin::pool::{ARRAY, KEY, SMALL, Store, drive_bytes, small_grid};
use sim::thin::{BLOCK, Model, content};
use sim::{Rng, Sim, SimEnv};
use volume::Direct;
use volume::convert::{ConvertTuning, Converting, Hold, Progress, Side};
use volume::thin::{ArrayBacking, Thin, ThinStore};

/// The line of the volume.
const LINE: u32 = 1;

/// Small limits, so that a short program has many windows, regions and joined ranges.
const TUNING: ConvertTuning = ConvertTuning { window_bytes: 16 << 10, regions_max: 10, stale_max: 3 };

/// Segments of the pool, and of the direct content.
const POOL_SEGMENTS: u64 = 34;
const VOLUME_SEGMENTS: u64 = 3;

#[derive(Clone)]
enum Plain {
    Direct(Direct<SimEnv>),
    Thin(Thin<ArrayBacking<SimEnv>>),
}

/// Calls a method of either kind.
macro_rules! either {
    ($plain:expr, $volume:ident => $call:expr) => {
        match $plain {
            Plain::Direct($volume) => $call,
            Plain::Thin($volume) => $call,
        }
    };
}

impl Block for Plain {
    fn size_bytes(&self) -> u64 {
        either!(self, volume => volume.size_bytes())
    }

    fn optimal_io_bytes(&self) -> u32 {
        either!(self, volume => volume.optimal_io_bytes())
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        either!(self, volume => volume.read(offset, buf).await)
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        either!(self, volume => volume.write(offset, data, fua).await)
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        either!(self, volume => volume.write_zeroes(offset, len, how).await)
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        either!(self, volume => volume.discard(offset, len).await)
    }

    async fn flush(&self) -> Result<(), BlockError> {
        either!(self, volume => volume.flush().await)
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        either!(self, volume => volume.extents(offset, len).await)
    }
}

type Conversion = Converting<SimEnv, Plain, Plain>;

/// A volume that is converted there and back, again and again.
struct Shuttle {
    env: SimEnv,
    array: Array<SimEnv>,
    store: Store,
    current: RefCell<Conversion>,
    /// Conversions that have ended since the group was opened.
    ended: RefCell<u32>,
    blocks: u64,
}

fn segment_bytes(group: &Group) -> u64 {
    small_grid(group).segment_bytes
}

fn pool(group: &Group) -> Vec<ExtentRecord> {
    vec![ExtentRecord { start_byte: 0, len_bytes: POOL_SEGMENTS * segment_bytes(group) }]
}

/// Where the content is while it is direct.
fn place(group: &Group) -> Vec<ExtentRecord> {
    let (start, segment) = (POOL_SEGMENTS * segment_bytes(group), segment_bytes(group));
    vec![
        ExtentRecord { start_byte: start + 2 * segment, len_bytes: segment },
        ExtentRecord { start_byte: start, len_bytes: (VOLUME_SEGMENTS - 1) * segment },
    ]
}

/// Makes an empty store, and a volume that is to be converted.
async fn create(group: &Group, kind: VolumeKind) {
    assert!(group.leader().add_intent_log().await.is_ok());
    let backing = ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1));
    ThinStore::create(&backing, Uuid::from_bytes(ARRAY), KEY, small_grid(group), &pool(group)).await.expect("a store");
    let volume = VolumeRecord {
        id: LINE.into(),
        name: "v".into(),
        kind,
        size_bytes: VOLUME_SEGMENTS * segment_bytes(group),
        created_unix_s: 0,
        extents: if kind == VolumeKind::Direct { place(group) } else { Vec::new() },
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    let thin = Some(ThinPoolRecord {
        segment_bytes: segment_bytes(group),
        stores: vec![ThinStoreRecord { id: 0, extents: pool(group) }],
    });
    let catalogue = Catalogue { next_id: 2, volumes: vec![volume], thin, ..Catalogue::default() };
    group.leader().set_catalogue(catalogue).await.expect("the catalogue is written");
}

/// Continues as the catalogue says, or begins the next conversion.
async fn open(group: &Group) -> Rc<Shuttle> {
    let (env, array) = (group.env.clone(), group.leader().clone());
    let backing = ArrayBacking::new(env.clone(), array.clone(), (0, 1));
    let opened = ThinStore::open(backing, Uuid::from_bytes(ARRAY), small_grid(group), &pool(group), SMALL).await;
    let store = opened.expect("the store opens");
    let place = place(group);
    if array.catalogue().volumes[0].conversion.is_none() {
        begin(&array, &store, &place).await;
    }
    let blocks = VOLUME_SEGMENTS * segment_bytes(group) / BLOCK;
    let current = RefCell::new(conversion(&env, &array, &store));
    let shuttle = Rc::new(Shuttle { env: env.clone(), array, store, current, ended: RefCell::new(0), blocks });
    start_copy(&shuttle);
    let conductor = shuttle.clone();
    env.spawn(async move { conductor.conduct(&place).await });
    shuttle
}

/// Frees what is in the way, and records the next conversion.
async fn begin(array: &Array<SimEnv>, store: &Store, place: &[ExtentRecord]) {
    let mut catalogue = array.catalogue();
    let to = match catalogue.volumes[0].kind {
        VolumeKind::Direct => {
            if store.lines().contains(&LINE) {
                store.delete(LINE).await.expect("the old line is deleted");
            }
            VolumeKind::Thin
        }
        VolumeKind::Thin => {
            for extent in place {
                array.discard(extent.start_byte, extent.len_bytes).await.expect("the place is freed");
            }
            VolumeKind::Direct
        }
    };
    let extents = if to == VolumeKind::Direct { place.to_vec() } else { Vec::new() };
    let (id, thin) = (catalogue.next_id, ThinVolumeRecord::default());
    catalogue.next_id += 1;
    catalogue.volumes[0].conversion =
        Some(ConversionRecord { id, to, extents, thin, copied_bytes: 0, stale: Vec::new() });
    array.set_catalogue(catalogue).await.expect("the catalogue is written");
}

fn conversion(env: &SimEnv, array: &Array<SimEnv>, store: &Store) -> Conversion {
    let volume = &array.catalogue().volumes[0];
    let record = volume.conversion.as_ref().expect("one is under way");
    let plain = |kind, extents: &[ExtentRecord]| match kind {
        VolumeKind::Direct => Plain::Direct(Direct::new(array.clone(), volume.size_bytes, extents.to_vec())),
        VolumeKind::Thin => Plain::Thin(Thin::new(store.clone(), LINE, volume.size_bytes)),
    };
    let both = (plain(volume.kind, &volume.extents), plain(record.to, &record.extents));
    let progress = Progress { copied_bytes: record.copied_bytes, stale: record.stale.clone() };
    Converting::new(env.clone(), both, &progress, TUNING, Box::new(|| {}))
}

fn start_copy(shuttle: &Rc<Shuttle>) {
    let conversion = shuttle.current.borrow().clone();
    let (env, pace) = (shuttle.env.clone(), Rc::new(RefCell::new(0)));
    env.spawn(async move {
        // Every window finds clients at work, and rests after that.
        let clients = || {
            *pace.borrow_mut() += 1;
            *pace.borrow()
        };
        conversion.copy(clients, || true).await;
    });
}

impl Shuttle {
    fn volume(&self) -> Conversion {
        self.current.borrow().clone()
    }

    async fn save(&self, flush: bool) {
        let conversion = self.volume();
        let progress = conversion.progress(flush).await.expect("both are flushed");
        let mut catalogue = self.array.catalogue();
        let record = catalogue.volumes[0].conversion.as_mut().expect("one is under way");
        (record.copied_bytes, record.stale) = (progress.copied_bytes, progress.stale);
        conversion.saved(self.array.set_catalogue(catalogue).await);
    }

    /// As the daemon does: saves the progress, and ends conversions.
    async fn conduct(self: Rc<Self>, place: &[ExtentRecord]) {
        for turn in 0u64.. {
            self.env.sleep(Duration::from_micros(300)).await;
            let conversion = self.volume();
            if conversion.wants_saving() {
                self.save(false).await;
            }
            if conversion.is_copied() {
                self.clone().end(place).await;
            } else if turn % 8 == 7 {
                self.save(true).await;
            }
        }
    }

    async fn end(self: Rc<Self>, place: &[ExtentRecord]) {
        let conversion = self.volume();
        loop {
            match conversion.hold().await.expect("the target is flushed") {
                Hold::Complete => break,
                Hold::SaveFirst => self.save(false).await,
                Hold::Incomplete => return conversion.resume(),
            }
        }
        let mut catalogue = self.array.catalogue();
        let volume = &mut catalogue.volumes[0];
        let record = volume.conversion.take().expect("one is under way");
        (volume.kind, volume.extents) = (record.to, record.extents);
        self.array.set_catalogue(catalogue).await.expect("the catalogue is written");
        conversion.end(Side::Target);
        conversion.drained().await;
        // While the old content is freed, requests go to the new one.
        begin(&self.array, &self.store, place).await;
        let next = self::conversion(&self.env, &self.array, &self.store);
        self.current.replace(next);
        conversion.close().await;
        *self.ended.borrow_mut() += 1;
        start_copy(&self);
    }

    /// A request to the volume. It may meet the moment in which one conversion follows another.
    async fn request<T, F: Future<Output = Result<T, BlockError>>>(&self, act: impl Fn(Conversion) -> F) -> T {
        loop {
            match act(self.volume()).await {
                Ok(value) => return value,
                Err(BlockError::OutOfRange { size: 0, .. }) => {}
                Err(error) => panic!("a request fails: {error}"),
            }
        }
    }

    async fn write(&self, model: &RefCell<Model>, blocks: Range<u64>, fua: bool) {
        let version = model.borrow().version();
        model.borrow_mut().begin(LINE, blocks.clone(), version);
        let data = Buf::from(blocks.clone().flat_map(|block| content(LINE, block, version)).collect::<Vec<u8>>());
        let offset = blocks.start * BLOCK;
        self.request(|volume| {
            let data = data.clone();
            async move { volume.write(offset, data, fua).await }
        })
        .await;
        model.borrow_mut().end(LINE, blocks, version, fua);
    }

    async fn zero(&self, model: &RefCell<Model>, blocks: Range<u64>, how: Option<WriteZeroes>) {
        model.borrow_mut().begin(LINE, blocks.clone(), 0);
        let (offset, len) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
        self.request(|volume| async move {
            match how {
                Some(how) => volume.write_zeroes(offset, len, how).await,
                None => volume.discard(offset, len).await,
            }
        })
        .await;
        model.borrow_mut().end(LINE, blocks, 0, how.is_some_and(|how| how.fua));
    }

    async fn read(&self, blocks: Range<u64>) -> BufMut {
        let (offset, len) = (blocks.start * BLOCK, ((blocks.end - blocks.start) * BLOCK) as usize);
        self.request(|volume| async move { volume.read(offset, BufMut::zeroed(len)).await }).await
    }

    async fn check(&self, model: &RefCell<Model>, blocks: Range<u64>) {
        let bytes = self.read(blocks.clone()).await;
        for (block, bytes) in blocks.zip(bytes.chunks(BLOCK as usize)) {
            let allowed = model.borrow().readable(LINE, block);
            let fits = allowed.iter().any(|version| *bytes == content(LINE, block, *version));
            assert!(fits, "block {block} is none of {allowed:?}");
        }
    }

    async fn observe_all(&self, model: &RefCell<Model>, context: &dyn std::fmt::Display) {
        let bytes = self.read(0..self.blocks).await;
        for (block, bytes) in (0..self.blocks).zip(bytes.chunks(BLOCK as usize)) {
            model.borrow_mut().observe(LINE, block, bytes, context);
        }
    }

    fn range(&self, rng: &mut Rng, max: u64) -> Range<u64> {
        let start = rng.below(self.blocks);
        start..(start + 1 + rng.below(max)).min(self.blocks)
    }

    /// Random requests, one after the other or several on different blocks at once.
    async fn work(&self, model: &RefCell<Model>, rng: &mut Rng, steps: usize) {
        for _ in 0..steps {
            let fua = rng.chance(1, 6);
            match rng.index(10) {
                0..=3 => {
                    let many = 1 + rng.index(6);
                    let step = self.blocks / many as u64;
                    let ranges: Vec<_> = (0..many as u64)
                        .map(|number| {
                            let start = number * step + rng.below(step);
                            start..(start + 1 + rng.below(4)).min((number + 1) * step)
                        })
                        .collect();
                    join_all(ranges.into_iter().map(|range| self.write(model, range, fua))).await;
                }
                4 => self.write(model, self.range(rng, 20), fua).await,
                5 => {
                    let how = WriteZeroes { fua, keep_allocated: rng.chance(1, 2), only_fast: false };
                    self.zero(model, self.range(rng, 40), Some(how)).await;
                }
                6 => self.zero(model, self.range(rng, 40), None).await,
                7..=8 => self.check(model, self.range(rng, 30)).await,
                _ => {
                    self.request(|volume| async move { volume.flush().await }).await;
                    model.borrow_mut().flushed();
                }
            }
            self.env.sleep(Duration::from_micros(rng.below(400))).await;
        }
    }

    /// Waits until so many conversions have ended.
    async fn until_ended(&self, count: u32) {
        while *self.ended.borrow() < count {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }
}

fn group(sim: &Sim, rng: &mut Rng) -> Group {
    let shape = *rng.pick(&every_level(4 * KIB));
    // A power cut leaves a block of a direct volume as a whole where drives write it as a whole.
    let drives = new_drives(sim, usize::from(shape.members), drive_bytes(&shape), 4096);
    Group::create(sim, shape, drives, 1)
}

fn kind(rng: &mut Rng) -> VolumeKind {
    if rng.chance(1, 2) { VolumeKind::Direct } else { VolumeKind::Thin }
}

#[test]
fn a_volume_reads_as_it_was_written_while_it_is_converted_there_and_back() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let group = group(&sim, &mut rng);
        let model = RefCell::new(Model::default());
        sim.block_on(async {
            create(&group, kind(&mut rng)).await;
            let shuttle = open(&group).await;
            shuttle.work(&model, &mut rng, 120).await;
            let before = *shuttle.ended.borrow();
            for count in 1..=2 {
                shuttle.until_ended(before + count).await;
                shuttle.observe_all(&model, &format!("seed {seed}, conversion {count}")).await;
            }
        });
    }
}

#[test]
fn crashes_during_conversions_lose_nothing_and_change_nothing_later() {
    let mut ended = 0;
    for seed in seeds(80) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let mut group = group(&sim, &mut rng);
        let model = RefCell::new(Model::default());
        sim.block_on(create(&group, kind(&mut rng)));
        let mut shuttle = sim.block_on(open(&group));
        for round in 0..1 + rng.index(5) {
            sim.stop_after(rng.below(4000));
            let (mut fork, steps) = (rng.fork(), 1 + rng.index(120));
            sim.try_block_on(shuttle.work(&model, &mut fork, steps));
            let (is_kill, shards) = (rng.chance(1, 3), group.shards.len());
            if is_kill {
                model.borrow_mut().killed();
            }
            ended += *shuttle.ended.borrow();
            drop(shuttle);
            let drives = if is_kill { group.kill(&sim) } else { group.cut(&sim) };
            group = Group::open(&sim, drives, shards);
            shuttle = sim.block_on(open(&group));
            let context = format!("seed {seed}, round {round}, {}", if is_kill { "kill" } else { "power cut" });
            sim.block_on(shuttle.observe_all(&model, &context));
            if rng.chance(1, 2) {
                // A block that was read once does not change when the other content takes over.
                sim.block_on(shuttle.until_ended(1));
                sim.block_on(shuttle.observe_all(&model, &format!("{context}, converted")));
            }
        }
    }
    assert!(ended > 40, "{ended} conversions have ended");
}

//! Thin volumes are extracted as the store would read them, also after a power cut with members
//! lost.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use drive::{Block, Buf, BufMut};
use format::thin::batch::StoreKey;
use format::{
    BLOCK, Catalogue, ExtentRecord, Shape, ThinPoolRecord, ThinStoreRecord, ThinVolumeRecord, VolumeKind, VolumeRecord,
};
use sim::engine::*;
use sim::thin::any_compression;
use sim::{Rng, Sim, SimEnv};
use volume::thin::{ArrayBacking, Grid, Thin, ThinStore, Tuning, VolumeSettings};

use crate::image::*;

pub type Store = ThinStore<ArrayBacking<SimEnv>>;

pub type Volume = Thin<ArrayBacking<SimEnv>>;

const TUNING: Tuning = Tuning {
    changes_max: 100,
    checkpoint_bytes_max: 256 << 10,
    cached_leaves_max: 4,
    pending_bytes_max: 512 << 10,
    run_bytes_max: 256 << 10,
};

pub const NAMES: [&str; 2] = ["one", "two"];

/// Two thin volumes in a pool of two extents.
fn catalogue(group: &Group, grid: Grid, size_bytes: u64) -> Catalogue {
    let segments = group.size() / grid.segment_bytes;
    let extent = |first: u64, count: u64| ExtentRecord {
        start_byte: first * grid.segment_bytes,
        len_bytes: count * grid.segment_bytes,
    };
    let extents = vec![extent(1, segments / 2), extent(segments / 2 + 2, segments - segments / 2 - 2)];
    let volume = |(id, name): (u64, &str)| VolumeRecord {
        id,
        name: name.to_owned(),
        kind: VolumeKind::Thin,
        size_bytes,
        created_unix_s: 1,
        extents: Vec::new(),
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    let volumes = (1..).zip(NAMES).map(volume).collect();
    let thin =
        Some(ThinPoolRecord { segment_bytes: grid.segment_bytes, stores: vec![ThinStoreRecord { id: 0, extents }] });
    Catalogue { next_id: 3, volumes, thin, ..Catalogue::default() }
}

/// The key of every store here.
pub const KEY: StoreKey = [3; 16];

/// A group for thin volumes.
pub struct ThinGroup {
    pub group: Group,
    pub grid: Grid,
    pub catalogue: Catalogue,
    pub size_bytes: u64,
    tuning: Tuning,
}

impl ThinGroup {
    pub fn new(sim: &Sim, shape: Shape, protection: Protection, rng: &mut Rng) -> ThinGroup {
        let drives = new_drives(sim, usize::from(shape.members), 8 * MIB, 512);
        let group = Group::create_with(sim, shape, protection, drives, 1 + rng.index(2));
        let geometry = &group.leader().shared().geometry;
        let band = geometry.band_bytes();
        let grid = Grid { segment_bytes: (128 * KIB).div_ceil(band) * band, unit_bytes: geometry.whole_write_bytes() };
        let size_bytes = 2 * MIB + 4096 * rng.below(4);
        let catalogue = catalogue(&group, grid, size_bytes);
        ThinGroup { group, grid, catalogue, size_bytes, tuning: TUNING }
    }

    /// Makes segments of four units, so that a run can have as many.
    pub fn with_long_segments(mut self) -> ThinGroup {
        let band = self.group.leader().shared().geometry.band_bytes();
        self.grid.segment_bytes = (4 * self.grid.unit_bytes).div_ceil(band) * band;
        self.tuning.run_bytes_max = self.grid.segment_bytes;
        self.catalogue = catalogue(&self.group, self.grid, self.size_bytes);
        self
    }

    pub fn models(&self) -> [VolumeModel; 2] {
        [VolumeModel::new(self.size_bytes), VolumeModel::new(self.size_bytes)]
    }

    pub fn backing(&self) -> ArrayBacking<SimEnv> {
        ArrayBacking::new(self.group.env.clone(), self.group.leader().clone(), (0, 1))
    }

    pub fn extents(&self) -> &[ExtentRecord] {
        &self.catalogue.thin.as_ref().unwrap().stores[0].extents
    }

    /// Makes the store and the volumes.
    pub async fn create(&self) {
        let leader = self.group.leader();
        assert!(leader.add_intent_log().await.unwrap());
        Store::create(&self.backing(), leader.shared().array, KEY, self.grid, self.extents()).await.unwrap();
        leader.set_catalogue(self.catalogue.clone()).await.unwrap();
    }

    pub async fn open(&self) -> Rc<Store> {
        let array = self.group.leader().shared().array;
        Store::open(self.backing(), array, self.grid, self.extents(), self.tuning).await.unwrap()
    }

    /// Opens the store. Its volumes 1 and 2 are compressed in any way.
    pub async fn open_compressed(&self, rng: &mut Rng) -> Rc<Store> {
        let store = self.open().await;
        for (line, compression) in (1..).zip(any_compression(rng)) {
            store.set_settings(line, VolumeSettings { compression, ..VolumeSettings::default() });
        }
        store
    }

    pub fn volume(&self, store: &Rc<Store>, line: u32) -> Volume {
        Thin::new(store.clone(), line, self.size_bytes)
    }
}

/// The content of a volume, and all contents that its blocks had.
pub struct VolumeModel {
    pub bytes: Vec<u8>,
    old: BTreeMap<usize, Vec<Vec<u8>>>,
}

impl VolumeModel {
    pub fn new(size_bytes: u64) -> VolumeModel {
        VolumeModel { bytes: vec![0; size_bytes as usize], old: BTreeMap::new() }
    }

    /// Notes the content of the blocks of a range, after it was changed.
    pub fn note(&mut self, range: Range<usize>) {
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let content = self.bytes[block * BLOCK..((block + 1) * BLOCK).min(self.bytes.len())].to_vec();
            self.old.entry(block).or_default().push(content);
        }
    }

    /// Whether a block had this content once.
    pub fn had(&self, block: usize, content: &[u8]) -> bool {
        self.old.get(&block).is_some_and(|old| old.iter().any(|old| old == content))
    }
}

/// Writes, checkpoints, collections and content stored anew, and with `discards` discards.
/// Everything is flushed in the end.
pub async fn work(store: &Rc<Store>, volumes: &[Volume], models: &mut [VolumeModel], rng: &mut Rng, discards: bool) {
    for _ in 0..60 {
        let which = rng.index(volumes.len());
        let (volume, model) = (&volumes[which], &mut models[which]);
        let size = model.bytes.len();
        let start = rng.index(size);
        let most = *rng.pick(&[600, 5000, 200_000]);
        let end = (start + 1 + rng.index(most)).min(size);
        let range = &mut model.bytes[start..end];
        match rng.index(10) {
            0 if discards => {
                range.fill(0);
                volume.discard(start as u64, (end - start) as u64).await.unwrap();
            }
            1 => store.checkpoint().await.unwrap(),
            2 => store.collect_once().await.unwrap(),
            3 => store.land_all().await.unwrap(),
            4 => store.repack_once(1 + which as u32).await.unwrap(),
            5 => store.reorder_once(1 + which as u32).await.unwrap(),
            _ => {
                rng.fill(range);
                if rng.chance(1, 2) {
                    // It compresses.
                    let period = range.len().min(1000);
                    for at in period..range.len() {
                        range[at] = range[at - period];
                    }
                }
                volume.write(start as u64, Buf::from(range.to_vec()), rng.chance(1, 4)).await.unwrap();
            }
        }
        model.note(start..end);
    }
    volumes[0].flush().await.unwrap();
}

#[test]
fn thin_volumes_are_extracted_as_they_were_flushed_without_as_many_members_as_the_level_survives() {
    let (mut cuts, mut lost) = (0, 0);
    for seed in seeds(48) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&every_level(4 * KIB));
        let thin = ThinGroup::new(&sim, shape, Protection::DEFAULT, &mut rng);
        let mut models = thin.models();
        let is_cut = rng.chance(2, 3);
        let mut fork = rng.fork();
        sim.block_on(async {
            thin.create().await;
            let store = thin.open_compressed(&mut fork).await;
            let volumes: Vec<_> = (1..=2).map(|line| thin.volume(&store, line)).collect();
            work(&store, &volumes, &mut models, &mut fork, true).await;
            for (volume, model) in volumes.iter().zip(&models) {
                let read = volume.read(0, BufMut::zeroed(model.bytes.len())).await.unwrap();
                assert!(read[..] == model.bytes[..], "seed {seed}: the store itself");
            }
            if !is_cut {
                store.stop().await.unwrap();
            }
        });
        let images = images(&if is_cut { thin.group.cut(&sim) } else { thin.group.kill(&sim) });
        let first = rng.index(usize::from(shape.sets)) * shape.members_per_set();
        let mut slots: Vec<usize> = (first..first + shape.members_per_set()).collect();
        rng.shuffle(&mut slots);
        slots.truncate(rng.index(shape.survives() + 1));
        let left = without(&images, &slots, &mut rng);
        for (name, model) in NAMES.iter().zip(&models) {
            let (read, report) = extract(&left, name, false).unwrap();
            let differs = read.chunks(BLOCK).zip(model.bytes.chunks(BLOCK)).position(|(one, other)| one != other);
            assert_eq!(differs, None, "seed {seed}, {shape}, without {slots:?}: the block of {name} that differs");
            assert_eq!((report.lost_bytes, report.rebuilt_bytes), (0, 0));
        }
        let group = &rescue::list(&survey(&left)).groups[0];
        for (volume, model) in group.volumes.iter().zip(&models) {
            let with_content = model.bytes.chunks(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0)).count();
            // A block that was zeroed in parts has content.
            let written = volume.written_bytes as usize / BLOCK;
            assert!((with_content..with_content + 8).contains(&written), "seed {seed}: {written} of {with_content}");
        }
        let checked = check_all(&left);
        let thin = checked.findings.iter().filter(|finding| finding.structure == rescue::Structure::Thin);
        assert_eq!(thin.collect::<Vec<_>>(), Vec::<&rescue::Finding>::new());
        (cuts, lost) = (cuts + u32::from(is_cut), lost + slots.len());
    }
    assert!(cuts > 0 && lost > 0);
}

//! A group whose first half is a pool, and loads on both halves.

use std::rc::Rc;
use std::time::Duration;

use bench::group::{Group, Protection};
use bench::load::{Pace, Rng, turn};
use bench::rounds::{Rounds, Sample};
use drive::{Block, Buf, BufMut, Env};
use format::{BLOCK, ExtentRecord, Level};
use runtime::ShardEnv;
use volume::thin::{ArrayBacking, Compression, Grid, Thin, ThinStore, Tuning, VolumeSettings};

use crate::{Arguments, BLOCK_BYTES, MIB};

type Store = ThinStore<ArrayBacking<ShardEnv>>;

/// A group with a pool in its first half.
pub struct Bench {
    pub group: Group,
    pub store: Rc<Store>,
    pub volume: Thin<ArrayBacking<ShardEnv>>,
    pub blocks: u64,
    /// The half that is written directly.
    pub direct: std::ops::Range<u64>,
}

/// The contents of writes: many different blocks, of which half compresses well, or nothing does.
pub struct Contents(Vec<Buf>);

impl Contents {
    pub fn new(compress: bool) -> Contents {
        let mut rng = Rng::new(77);
        let contents = (0..256).map(|_| {
            let mut bytes = BufMut::zeroed(BLOCK);
            let noise = if compress { BLOCK / 2 } else { BLOCK };
            for word in bytes[..noise].chunks_mut(8) {
                word.copy_from_slice(&(rng.below(u64::MAX) ^ rng.below(u64::MAX) << 7).to_le_bytes());
            }
            bytes.freeze()
        });
        Contents(contents.collect())
    }

    pub fn any(&self, rng: &mut Rng) -> Buf {
        self.0[rng.below(self.0.len() as u64) as usize].clone()
    }
}

impl Bench {
    /// A pool in which a volume takes all but `spare` of the segments that clients may fill.
    pub async fn make(
        arguments: &Arguments,
        spare: f64,
        compression: Compression,
        tuning: Tuning,
    ) -> Result<Bench, String> {
        let protection = Protection::LOG_AND_CHECKSUMS;
        let group = Group::make("thin", Level::Raid6, 6, arguments.on.drives_mib * MIB, protection).await?;
        let grid = Grid::plan(&group.array.shared().geometry);
        let half = group.array.size_bytes() / 2 / grid.segment_bytes;
        let direct = half * grid.segment_bytes..group.array.size_bytes() / MIB * MIB;
        let extents = [ExtentRecord { start_byte: 0, len_bytes: half * grid.segment_bytes }];
        if !group.array.add_intent_log().await.map_err(|error| error.to_string())? {
            return Err("there is no room for the intent log".to_owned());
        }
        let backing = || ArrayBacking::new(ShardEnv::current(), group.array.clone(), (0, 1));
        let array = group.array.shared().array;
        Store::create(&backing(), array, [7; 16], grid, &extents).await.map_err(|error| error.to_string())?;
        let store = Store::open(backing(), array, grid, &extents, tuning).await.map_err(|error| error.to_string())?;
        store.set_settings(1, VolumeSettings { compression, ..VolumeSettings::default() });
        // The limit is 15/16 of what the segments hold that clients may fill.
        let held = store.space().limit as f64 * 16.0 / 15.0;
        let blocks = (held * (1.0 - spare)) as u64 / BLOCK_BYTES;
        let volume = Thin::new(store.clone(), 1, blocks * BLOCK_BYTES);
        Ok(Bench { group, store, volume, blocks, direct })
    }

    /// Writes the volume once, and then overwrites it `times` times in random order.
    pub async fn settle(&self, arguments: &Arguments, contents: &Rc<Contents>, times: f64, hot: bool) -> Sample {
        let mut rng = Rng::new(5);
        for start in (0..self.blocks).step_by(16) {
            let count = 16.min(self.blocks - start);
            let mut data = BufMut::zeroed((count * BLOCK_BYTES) as usize);
            data.chunks_mut(BLOCK).for_each(|block| block.copy_from_slice(&contents.any(&mut rng)));
            self.volume.write(start * BLOCK_BYTES, data.freeze(), false).await.expect("there is space");
        }
        self.overwrite(arguments, contents, (self.blocks as f64 * times) as u64, hot).await
    }

    /// Overwrites so many random blocks. `hot`: four of five writes go to a fifth of the blocks.
    pub async fn overwrite(&self, arguments: &Arguments, contents: &Rc<Contents>, count: u64, hot: bool) -> Sample {
        let left = Rc::new(std::cell::Cell::new(count));
        let sample = turn(arguments.on.depth, Duration::from_secs(3600), |seed, _: Rc<Pace>| {
            let (volume, contents, blocks, left) = (self.volume.clone(), contents.clone(), self.blocks, left.clone());
            let mut rng = Rng::new(seed + 91 * count);
            async move {
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    let block = match hot {
                        true if rng.below(5) < 4 => rng.below(blocks / 5),
                        true => blocks / 5 + rng.below(blocks - blocks / 5),
                        false => rng.below(blocks),
                    };
                    let data = contents.any(&mut rng);
                    volume.write(block * BLOCK_BYTES, data, false).await.expect("there is space");
                }
            }
        });
        Sample { amount: count as f64, ..sample.await }
    }

    /// Rounds of 4 KiB overwrites or reads: of the volume, and directly.
    pub async fn rounds(&self, arguments: &Arguments, contents: &Rc<Contents>, reads: bool) -> Rounds {
        let mut rounds = Rounds::new(2);
        for round in 0..=usize::from(arguments.on.rounds) {
            for contender in Rounds::order(2, round) {
                let sample = turn(arguments.on.depth, arguments.on.turn(), |seed, pace| {
                    let (volume, array, env) = (self.volume.clone(), self.group.array.clone(), ShardEnv::current());
                    let (contents, direct, blocks) = (contents.clone(), self.direct.clone(), self.blocks);
                    let mut rng = Rng::new(seed + 1000 * round as u64);
                    async move {
                        let places = (direct.end - direct.start) / BLOCK_BYTES;
                        while pace.goes_on() {
                            let data = contents.any(&mut rng);
                            let (thin, place) = (rng.below(blocks), direct.start + rng.below(places) * BLOCK_BYTES);
                            match (contender, reads) {
                                (0, true) => drop(volume.read(thin * BLOCK_BYTES, env.alloc(BLOCK)).await),
                                (0, false) => volume.write(thin * BLOCK_BYTES, data, false).await.expect("space"),
                                (_, true) => drop(array.read(place, env.alloc(BLOCK)).await),
                                (_, false) => array.write(place, data, false).await.expect("memory does not fail"),
                            }
                        }
                    }
                });
                let sample = sample.await;
                if round > 0 {
                    rounds.add(contender, sample);
                }
            }
        }
        rounds
    }

    /// Writes the direct half once.
    pub async fn fill_direct(&self, contents: &Contents) {
        let mut rng = Rng::new(3);
        for at in self.direct.clone().step_by(MIB as usize) {
            let mut data = BufMut::zeroed(MIB as usize);
            data.chunks_mut(BLOCK).for_each(|block| block.copy_from_slice(&contents.any(&mut rng)));
            self.group.array.write(at, data.freeze(), false).await.expect("memory does not fail");
        }
    }

    pub async fn close(self) -> Result<(), String> {
        let Bench { group, store, volume, .. } = self;
        store.stop().await.map_err(|error| error.to_string())?;
        drop((store, volume));
        // Discards reach the drives a little later.
        ShardEnv::current().sleep(Duration::from_millis(500)).await;
        group.close().await
    }
}

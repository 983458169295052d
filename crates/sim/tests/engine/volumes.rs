//! Volumes over a group: with one extent or several, resized and deleted while they are used.

use std::rc::Rc;
use std::time::Duration;

use drive::{Block, BlockError, Buf, BufMut, Env, WriteZeroes, join_all};
use format::{BLOCK, ExtentRecord, Level, Shape};
use sim::{Latency, Rng, Sim, SimEnv};
use volume::{Direct, Space, allocate, extend, shrink};

use crate::group::*;

fn group(sim: &Sim, shape: Shape) -> Group {
    let drives = new_drives(sim, usize::from(shape.members), 1536 * KIB, 4096);
    for drive in &drives {
        drive.set_latency(Latency::USUAL);
    }
    Group::create_with(sim, shape, Protection::DEFAULT, drives, 1)
}

fn extent(start_byte: u64, len_bytes: u64) -> ExtentRecord {
    ExtentRecord { start_byte, len_bytes }
}

fn raid5() -> Shape {
    shape(Level::Raid5, 3, 4 * KIB)
}

#[test]
fn nothing_of_a_volume_that_shrinks_or_goes_arrives_in_the_space_of_another() {
    // Regression: a write to several extents goes to one after the other. The last part arrived
    // when its space already belonged to another volume.
    for seed in seeds(20) {
        for goes in [false, true] {
            let sim = Sim::new(seed);
            let group = group(&sim, raid5());
            let volume =
                Direct::new(group.leader().clone(), 128 * KIB, vec![extent(0, 64 * KIB), extent(256 * KIB, 64 * KIB)]);
            let env = group.env.clone();
            let mut rng = sim.rng();
            sim.block_on(async {
                let late = volume.clone();
                let (done, answered) = drive::oneshot();
                env.spawn(async move {
                    let zeroes = WriteZeroes { fua: false, keep_allocated: true, only_fast: false };
                    let all = (
                        late.write(0, Buf::from(vec![0xEE; 128 * KIB as usize]), false).await,
                        late.write_zeroes(0, 128 * KIB, zeroes).await,
                    );
                    done.send(all);
                });
                env.sleep(Duration::from_nanos(rng.below(600_000))).await;
                match goes {
                    true => volume.close().await,
                    false => volume.resize(64 * KIB, vec![extent(0, 64 * KIB)]).await,
                }
                // This space belongs to another volume now.
                let other = vec![0x11; 64 * KIB as usize];
                group.leader().write(256 * KIB, Buf::from(other.clone()), false).await.expect("writable");
                let (written, zeroed) = answered.await.expect("answered");
                // The request succeeds, or is refused as out of range: it came before or after the
                // change.
                for result in [written, zeroed] {
                    assert!(matches!(result, Ok(()) | Err(BlockError::OutOfRange { .. })), "{result:?}");
                }
                let read = group.leader().read(256 * KIB, BufMut::zeroed(other.len())).await.expect("readable");
                assert!(*read == other[..], "seed {seed}: a request arrived in space that its volume had left");
            });
        }
    }
}

/// A volume, its extents, and its content.
struct Known {
    volume: Direct<SimEnv>,
    extents: Vec<ExtentRecord>,
    bytes: Vec<u8>,
}

impl Known {
    async fn verify(&self) {
        let read = self.volume.read(0, BufMut::zeroed(self.bytes.len())).await.expect("readable");
        assert!(*read == self.bytes[..], "a volume reads back otherwise than it was written");
    }

    /// A few requests at the same time, in ranges that do not overlap.
    async fn work(&mut self, rng: &mut Rng) {
        let size = self.bytes.len() as u64;
        let mut at = rng.below(size / 2 + 1);
        let mut requests = Vec::new();
        while at < size && requests.len() < 4 {
            let len = (1 + rng.below(48 * KIB)).min(size - at);
            let (range, kind) = (at as usize..(at + len) as usize, rng.below(4));
            let mut data = vec![0; len as usize];
            if kind < 2 {
                rng.fill(&mut data);
            }
            let before = self.bytes[range.clone()].to_vec();
            if kind < 3 {
                self.bytes[range].copy_from_slice(&data);
            }
            let (volume, start) = (self.volume.clone(), at);
            requests.push(async move {
                match kind {
                    0 | 1 => volume.write(start, Buf::from(data), kind == 1).await.expect("writable"),
                    2 => volume.discard(start, len).await.expect("can be discarded"),
                    _ => {
                        let read = volume.read(start, BufMut::zeroed(len as usize)).await.expect("readable");
                        assert!(*read == before[..]);
                    }
                }
            });
            at += len + rng.below(8 * KIB);
        }
        join_all(requests).await;
    }
}

#[test]
fn volumes_in_many_pieces_read_back_exactly_while_they_are_resized_beside_each_other() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let group = group(&sim, raid5());
        let mut rng = sim.rng();
        // So little space that volumes soon have several extents.
        let space = Space { capacity_bytes: 512 * KIB, align_bytes: 8 * KIB };
        let mut volumes: Vec<Known> = Vec::new();
        let mut pieces_most = 0;
        sim.block_on(async {
            for _ in 0..60 {
                let used: Vec<ExtentRecord> = volumes.iter().flat_map(|known| known.extents.clone()).collect();
                let size = (1 + rng.below(24)) * BLOCK as u64;
                match rng.below(6) {
                    0 => {
                        if let Some(extents) = allocate(space, &used, size) {
                            for extent in &extents {
                                group.leader().discard(extent.start_byte, extent.len_bytes).await.expect("discards");
                            }
                            let volume = Direct::new(group.leader().clone(), size, extents.clone());
                            volumes.push(Known { volume, extents, bytes: vec![0; size as usize] });
                        }
                    }
                    1 if volumes.len() > 3 => {
                        let gone = volumes.swap_remove(rng.below(volumes.len() as u64) as usize);
                        gone.verify().await;
                        gone.volume.close().await;
                    }
                    2 | 3 if !volumes.is_empty() => {
                        let index = rng.below(volumes.len() as u64) as usize;
                        let known = &mut volumes[index];
                        let extents = match size < known.bytes.len() as u64 {
                            true => Some(shrink(&known.extents, size).0),
                            false => extend(space, &used, &known.extents, size),
                        };
                        let Some(extents) = extents else { continue };
                        if size > known.bytes.len() as u64 {
                            // The new part may still hold data of another volume.
                            for part in beyond(&extents, &known.extents) {
                                group.leader().discard(part.start_byte, part.len_bytes).await.expect("discards");
                            }
                        }
                        known.volume.resize(size, extents.clone()).await;
                        known.bytes.resize(size as usize, 0);
                        known.extents = extents;
                    }
                    _ => {
                        for known in &mut volumes {
                            known.work(&mut rng).await;
                        }
                    }
                }
                pieces_most = pieces_most.max(volumes.iter().map(|known| known.extents.len()).max().unwrap_or(0));
            }
            for known in &volumes {
                known.verify().await;
            }
        });
        assert!(pieces_most > 1, "seed {seed}: no volume was in pieces");
    }
}

/// The parts of `new` that are not in `old`.
fn beyond(new: &[ExtentRecord], old: &[ExtentRecord]) -> Vec<ExtentRecord> {
    let blocks = |extents: &[ExtentRecord]| -> Vec<u64> {
        extents.iter().flat_map(|part| (part.start_byte..part.start_byte + part.len_bytes).step_by(BLOCK)).collect()
    };
    let known = blocks(old);
    blocks(new).into_iter().filter(|block| !known.contains(block)).map(|block| extent(block, BLOCK as u64)).collect()
}

#[test]
fn a_volume_ends_where_it_ends() {
    let sim = Sim::new(1);
    let group = group(&sim, raid5());
    let volume = Rc::new(Direct::new(
        group.leader().clone(),
        12 * KIB,
        vec![extent(8 * KIB, 8 * KIB), extent(64 * KIB, 4 * KIB)],
    ));
    sim.block_on(async {
        let beyond = volume.write(8 * KIB, Buf::from(vec![1; 8 * KIB as usize]), false).await;
        assert_eq!(beyond, Err(BlockError::OutOfRange { offset: 8 * KIB, len: 8 * KIB, size: 12 * KIB }));
        assert!(matches!(volume.discard(u64::MAX, 2).await, Err(BlockError::OutOfRange { .. })));
        let whole = group.leader().read(0, BufMut::zeroed(128 * KIB as usize)).await.expect("readable");
        assert!(whole.iter().all(|&byte| byte == 0), "a request that was refused changed something");
        volume.close().await;
        assert!(matches!(volume.read(0, BufMut::zeroed(512)).await, Err(BlockError::OutOfRange { size: 0, .. })));
    });
}

#[test]
fn fast_zeroes_over_several_pieces_are_refused_as_a_whole() {
    let sim = Sim::new(1);
    let group = group(&sim, raid5());
    let volume =
        Direct::new(group.leader().clone(), 512 * KIB, vec![extent(0, 256 * KIB), extent(512 * KIB, 256 * KIB)]);
    sim.block_on(async {
        let data = vec![0x77; 512 * KIB as usize];
        volume.write(0, Buf::from(data.clone()), false).await.expect("writable");
        let fast = WriteZeroes { fua: false, keep_allocated: false, only_fast: true };
        // The first extent is whole allocation chunks, which are discarded. The request covers only
        // a sector of the second one.
        assert_eq!(volume.write_zeroes(0, 256 * KIB + 4096, fast).await, Err(BlockError::NotFast));
        let read = volume.read(0, BufMut::zeroed(data.len())).await.expect("readable");
        assert!(*read == data[..], "what was refused has changed something");
        assert_eq!(volume.write_zeroes(0, 256 * KIB, fast).await, Ok(()));
        let read = volume.read(0, BufMut::zeroed(256 * KIB as usize)).await.expect("readable");
        assert!(read.iter().all(|&byte| byte == 0));
    });
}

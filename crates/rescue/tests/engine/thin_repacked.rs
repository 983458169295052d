//! Content that was packed again or put in order, as it is read from segments alone.

use drive::{Block, Buf, BufMut};
use format::thin::batch::BatchIndex;
use format::{BLOCK, Level};
use sim::Sim;
use sim::engine::{KIB, Protection, shape};
use volume::thin::{Backing, Compression, VolumeSettings};

use crate::image::{extract, images};
use crate::thin::{KEY, NAMES, ThinGroup};
use crate::thin_segments::{Damage, anchors, assert_same, compare, damage};

/// Whether segments have a fragment with a block of volume 1 and this content.
async fn is_in_segments(thin: &ThinGroup, block: u64, content: &[u8]) -> bool {
    let backing = thin.backing();
    for id in thin.extents().iter().flat_map(|extent| thin.grid.segments(extent)).skip(1) {
        let buf = BufMut::zeroed(thin.grid.segment_bytes as usize);
        let bytes = backing.read(thin.grid.start(id), buf).await.unwrap();
        for at in (0..bytes.len()).step_by(thin.grid.unit_bytes as usize) {
            let Ok(index) = BatchIndex::decode(&bytes[at..], &KEY, thin.grid.start(id) + at as u64, 0) else {
                continue;
            };
            let fragments = index.records.fragments.iter().zip(index.records.contents(0));
            if fragments.into_iter().any(|(record, place)| {
                record.line == 1 && record.block == block && bytes[at + place.start..at + place.end] == *content
            }) {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_fragment_of_several_writes_is_newer_than_all_before_it() {
    let sim = Sim::new(6);
    let mut rng = sim.rng();
    let thin =
        ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng).with_long_segments();
    let mut models = thin.models();
    let segment = thin.grid.segment_bytes as usize;
    sim.block_on(async {
        thin.create().await;
        let store = thin.open().await;
        let volumes = [1, 2].map(|line| thin.volume(&store, line));
        let mut write = async |line: usize, at: usize, content: &[u8]| {
            models[line - 1].bytes[at..at + content.len()].copy_from_slice(content);
            volumes[line - 1].write(at as u64, Buf::from(content.to_vec()), false).await.unwrap();
            store.land_all().await.unwrap();
        };
        let mut filler = vec![0; 3 * segment];
        rng.fill(&mut filler);
        // The fillers close a segment each: of block 1, of the old block 0, and of the new one.
        let old = [7; BLOCK];
        for (number, (block, content)) in [(1, [5; BLOCK]), (0, old), (0, [9; BLOCK])].into_iter().enumerate() {
            write(1, block * BLOCK, &content).await;
            write(2, number * segment, &filler[number * segment..][..segment]).await;
        }
        store.checkpoint().await.unwrap();
        store.repack_once(1).await.unwrap();
        // The segment of the new block 0 gets free. That of the old one has a part of the first
        // filler.
        rng.fill(&mut filler);
        write(2, segment, &filler[..2 * segment]).await;
        store.checkpoint().await.unwrap();
        assert!(store.counts().repacked_to_bytes > 0);
        assert!(is_in_segments(&thin, 0, &old).await, "the old fragment is to be there");
        assert!(!is_in_segments(&thin, 0, &[9; BLOCK]).await, "the new one is only in the packed one");
        volumes[0].flush().await.unwrap();
        damage(&thin, Damage::BothAnchors, &mut rng).await;
    });
    assert_same(&images(&thin.group.kill(&sim)), &models);
}

#[test]
fn a_fragment_of_several_writes_in_a_free_segment_hides_nothing() {
    let sim = Sim::new(7);
    let mut rng = sim.rng();
    let thin =
        ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng).with_long_segments();
    let mut models = thin.models();
    let segment = thin.grid.segment_bytes as usize;
    sim.block_on(async {
        thin.create().await;
        let store = thin.open().await;
        let volumes = [1, 2].map(|line| thin.volume(&store, line));
        let mut filler = vec![0; 2 * segment];
        rng.fill(&mut filler);
        // The fillers close the segments of block 0 and of block 1.
        for (number, content) in [[5; BLOCK], [9; BLOCK]].iter().enumerate() {
            for (line, at, content) in [(0, number * BLOCK, &content[..]), (1, number * segment, &filler[..segment])] {
                models[line].bytes[at..at + content.len()].copy_from_slice(content);
                volumes[line].write(at as u64, Buf::from(content.to_vec()), false).await.unwrap();
                store.land_all().await.unwrap();
            }
        }
        store.checkpoint().await.unwrap();
        let newest = anchors(&thin).await.pop().unwrap().0.generation;
        // No checkpoint knows the new fragment before the crash.
        store.repack_once(1).await.unwrap();
        assert!(store.counts().repacked_to_bytes > 0);
        assert_eq!(anchors(&thin).await.pop().unwrap().0.generation, newest);
        damage(&thin, Damage::Roots, &mut rng).await;
    });
    let images = images(&thin.group.kill(&sim));
    for (name, model) in NAMES.iter().zip(&models) {
        let (read, report) = extract(&images, name, false).unwrap();
        assert_eq!(compare(&read, model, name), 0);
        assert!(report.rebuilt_bytes > 0, "{report:?}");
    }
}

#[test]
fn fragments_that_are_put_in_order_hide_no_later_write() {
    let sim = Sim::new(8);
    let mut rng = sim.rng();
    let thin =
        ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng).with_long_segments();
    let mut models = thin.models();
    sim.block_on(async {
        thin.create().await;
        let store = thin.open().await;
        let compress = |compression| {
            store.set_settings(1, VolumeSettings { compression, ..VolumeSettings::default() });
        };
        compress(Compression::Zstd(3));
        let volumes = [1, 2].map(|line| thin.volume(&store, line));
        for window in 0..16 {
            let [mut filler, mut first, mut newer] = [8, 1, 1].map(|blocks| vec![0; blocks * BLOCK]);
            [&mut filler, &mut first, &mut newer].into_iter().for_each(|bytes| rng.fill(bytes));
            // Zstandard stores two blocks of it in less than LZ4 one of them. So the first fragment
            // is stored as a whole again.
            first.iter_mut().for_each(|byte| *byte %= 6);
            let start = window * 16 * BLOCK;
            let writes = [(0, start, first.repeat(2)), (0, start + BLOCK, newer), (1, start, filler)];
            for (volume, at, content) in writes {
                models[volume].bytes[at..at + content.len()].copy_from_slice(&content);
                volumes[volume].write(at as u64, Buf::from(content), false).await.unwrap();
                // Each write is a fragment, and all three are in one segment.
                store.land_all().await.unwrap();
            }
        }
        store.checkpoint().await.unwrap();
        compress(Compression::Lz4);
        store.reorder_once(1).await.unwrap();
        assert!(store.counts().reordered_bytes > 0);
        store.checkpoint().await.unwrap();
        damage(&thin, Damage::BothAnchors, &mut rng).await;
    });
    assert_same(&images(&thin.group.kill(&sim)), &models);
}

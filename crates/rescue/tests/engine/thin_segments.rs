//! Thin volumes whose anchors or maps are damaged are read from their segments. Blocks with content
//! are right. Blocks without content are zeroes, or have a content that they had before.

use drive::{Block, Buf, BufMut};
use format::thin::anchor::{ANCHOR_BYTES, ANCHOR_DISTANCE_BYTES, Anchor, Root};
use format::thin::batch::{BatchIndex, BatchRecords, ContentCursor, StoreKey, encode_index};
use format::thin::line::{LINES_LINE, SEGMENTS_LINE};
use format::thin::node::{NodeId, decode_inner_node, decode_line_leaf};
use format::thin::record::FragmentRecord;
use format::thin::{Codec, StoredRange};
use format::{BLOCK, CrashSafety, Level};
use rescue::{RescueError, Structure, list};
use sim::engine::{KIB, Protection, every_level, seeds, shape};
use sim::{Rng, Sim, SimEnv};
use volume::thin::{Allocated, ArrayBacking, Backing};

use crate::image::{Image, check_all, extract, extract_from_segments, images, survey};
use crate::thin::{KEY, NAMES, ThinGroup, Volume, VolumeModel, work};

/// The damage that is done through the group: parity and checksums fit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    None,
    BothAnchors,
    NewerAnchor,
    OlderAnchor,
    /// A node of this tree.
    Node(u32),
    /// The leaves of the map of this volume.
    Leaves(u32),
    /// The roots of all volumes' maps.
    Roots,
}

/// A group with two thin volumes, and the images of its drives.
struct Scene {
    images: Vec<Image>,
    models: [VolumeModel; 2],
}

/// The stored bytes of all nodes of all trees, with the roots first.
async fn nodes(backing: &ArrayBacking<SimEnv>, anchor: &Anchor) -> Vec<(NodeId, StoredRange)> {
    let of =
        |line: u32, root: Option<Root>| root.map(|root| (NodeId { line, level: root.level, index: 0 }, root.stored));
    let mut nodes: Vec<_> =
        of(LINES_LINE, anchor.lines).into_iter().chain(of(SEGMENTS_LINE, anchor.segments)).collect();
    let mut next = 0;
    while let Some((id, stored)) = nodes.get(next).copied() {
        next += 1;
        let node = backing.read(stored.address, BufMut::zeroed(stored.bytes as usize)).await.unwrap();
        if id.level > 0 {
            let children = decode_inner_node(&node, id).unwrap();
            nodes.extend(children.into_iter().map(|(slot, child)| (id.child(usize::from(slot)), child.stored)));
        } else if id.line == LINES_LINE {
            for line in decode_line_leaf(&node, id).unwrap() {
                let root = line.root.map(|root| (NodeId { line: line.line, level: line.root_level, index: 0 }, root));
                nodes.extend(root.map(|(id, root)| (id, root.stored)));
            }
        }
    }
    nodes
}

async fn flip(backing: &ArrayBacking<SimEnv>, address: u64) {
    let block = address / BLOCK as u64 * BLOCK as u64;
    let mut bytes = backing.read(block, BufMut::zeroed(BLOCK)).await.unwrap();
    bytes[(address - block) as usize] ^= 0x10;
    backing.write(block, bytes.freeze(), true).await.unwrap();
}

/// The anchors and their places, with the newest at the end.
pub async fn anchors(thin: &ThinGroup) -> Vec<(Anchor, u64)> {
    let (start, array) = (thin.extents()[0].start_byte, thin.group.leader().shared().array);
    let mut anchors = Vec::new();
    for address in [start, start + ANCHOR_DISTANCE_BYTES] {
        let bytes = thin.backing().read(address, BufMut::zeroed(ANCHOR_BYTES)).await.unwrap();
        anchors.extend(Anchor::decode(&bytes, &array).ok().map(|anchor| (anchor, address)));
    }
    anchors.sort_by_key(|(anchor, _)| anchor.generation);
    anchors
}

pub async fn damage(thin: &ThinGroup, damage: Damage, rng: &mut Rng) {
    let (backing, anchors) = (&thin.backing(), anchors(thin).await);
    let (newest, _) = anchors.last().unwrap();
    match damage {
        Damage::None => {}
        Damage::BothAnchors => {
            for (_, address) in &anchors {
                backing.write(*address, Buf::zeroes(ANCHOR_BYTES), true).await.unwrap();
            }
        }
        Damage::OlderAnchor => flip(backing, anchors[0].1 + rng.below(128)).await,
        Damage::NewerAnchor => flip(backing, anchors[1].1 + rng.below(128)).await,
        Damage::Node(line) => {
            let nodes: Vec<_> = nodes(backing, newest).await.into_iter().filter(|(id, _)| id.line == line).collect();
            let (_, stored) = *rng.pick(&nodes);
            flip(backing, stored.address + rng.below(stored.bytes.into())).await;
        }
        Damage::Leaves(line) => {
            let nodes = nodes(backing, newest).await;
            for (_, leaf) in nodes.into_iter().filter(|(id, _)| id.line == line && id.level == 0) {
                flip(backing, leaf.address).await;
            }
        }
        Damage::Roots => {
            let nodes = nodes(backing, newest).await;
            for line in 1..=2 {
                let (_, root) = nodes.iter().find(|(id, _)| id.line == line).unwrap();
                flip(backing, root.address).await;
            }
        }
    }
    backing.flush().await.unwrap();
}

/// Works on two volumes, and on a third one that is deleted; then damages them.
fn scene(seed: u64, how: Damage, is_stopped: bool, discards: bool) -> Scene {
    let sim = Sim::new(seed);
    let mut rng = sim.rng();
    let shape = *rng.pick(&every_level(4 * KIB));
    let thin = ThinGroup::new(&sim, shape, Protection::DEFAULT, &mut rng);
    let mut models = thin.models();
    let mut fork = rng.fork();
    sim.block_on(async {
        thin.create().await;
        let store = thin.open_compressed(&mut fork).await;
        let volumes: Vec<Volume> = (1..=2).map(|line| thin.volume(&store, line)).collect();
        let gone = [thin.volume(&store, 3)];
        work(&store, &volumes, &mut models, &mut fork, discards).await;
        work(&store, &gone, &mut [VolumeModel::new(thin.size_bytes)], &mut fork, false).await;
        work(&store, &volumes, &mut models, &mut fork, discards).await;
        gone[0].close().await;
        store.delete(3).await.unwrap();
        if is_stopped {
            store.stop().await.unwrap();
        }
        damage(&thin, how, &mut fork).await;
    });
    let images = images(&if is_stopped { thin.group.kill(&sim) } else { thin.group.cut(&sim) });
    Scene { images, models }
}

/// The number of blocks without content that have one of before.
pub fn compare(read: &[u8], model: &VolumeModel, context: &str) -> usize {
    let blocks = read.chunks(BLOCK).zip(model.bytes.chunks(BLOCK)).enumerate();
    let mut old = 0;
    for (number, (read, now)) in blocks.filter(|(_, (read, now))| read != now) {
        assert!(now.iter().all(|byte| *byte == 0), "{context}: block {number} has content, and it is wrong");
        assert!(model.had(number, read), "{context}: block {number} never had this content");
        old += 1;
    }
    old
}

pub fn thin_findings(images: &[Image]) -> Vec<String> {
    let report = check_all(images);
    let thin = report.findings.into_iter().filter(|finding| finding.structure == Structure::Thin);
    thin.map(|finding| finding.message).collect()
}

#[test]
fn without_anchors_every_block_with_content_is_found_in_the_segments() {
    let mut old = 0;
    for seed in seeds(14) {
        let scene = scene(seed, Damage::BothAnchors, seed % 2 == 0, true);
        for (name, model) in NAMES.iter().zip(&scene.models) {
            let (read, report) = extract(&scene.images, name, false).unwrap();
            old += compare(&read, model, &format!("seed {seed}, {name}"));
            assert_eq!((report.lost_bytes, report.rebuilt_bytes), (0, report.size_bytes));
            assert!(report.warnings.iter().any(|warning| warning.contains("rebuilt from segments")), "{report:?}");
        }
        let findings = thin_findings(&scene.images);
        let [finding] = &findings[..] else { panic!("seed {seed}: {findings:?}") };
        assert!(finding.contains("no anchor") && finding.contains("old content"), "{finding}");
        let group = &list(&survey(&scene.images)).groups[0];
        assert!(group.warnings.iter().any(|warning| warning.contains("rebuilt from segments")), "{group:?}");
        for volume in &group.volumes {
            assert!(volume.written_bytes > 0 && volume.lost_bytes == 0, "{volume:?}");
        }
    }
    assert!(old > 0, "no discarded block came back: the warning would have no reason");
}

#[test]
fn a_damaged_node_of_a_map_or_table_costs_no_content() {
    let (mut rebuilt, mut exact) = (0, 0);
    for seed in seeds(24) {
        let how = match seed % 4 {
            0 => Damage::Node(1),
            1 => Damage::Node(LINES_LINE),
            2 => Damage::Node(SEGMENTS_LINE),
            _ => Damage::Roots,
        };
        let scene = scene(seed, how, seed % 8 < 4, true);
        let findings = thin_findings(&scene.images);
        assert!(!findings.is_empty(), "seed {seed}");
        for (name, model) in NAMES.iter().zip(&scene.models) {
            let (read, report) = extract(&scene.images, name, false).unwrap();
            let old = compare(&read, model, &format!("seed {seed}, {how:?}, {name}"));
            assert_eq!(report.lost_bytes, 0);
            assert!(old == 0 || report.rebuilt_bytes > 0, "seed {seed}, {how:?}");
            rebuilt += usize::from(report.rebuilt_bytes > 0);
            let is_exact = report.warnings.iter().any(|warning| warning.contains("as many blocks as before"));
            let is_old = report.warnings.iter().any(|warning| warning.contains("old content"));
            assert!(is_exact || is_old == (report.rebuilt_bytes > 0), "seed {seed}, {how:?}: {report:?}");
            if is_exact && !is_old {
                assert_eq!(old, 0, "seed {seed}, {how:?}: {report:?}");
                exact += 1;
            }
            let is_whole = how == Damage::Node(LINES_LINE);
            assert!(!is_whole || report.rebuilt_bytes == report.size_bytes, "seed {seed}");
            let is_untouched = how == Damage::Node(SEGMENTS_LINE) || (how == Damage::Node(1) && *name == NAMES[1]);
            assert!(!is_untouched || report.rebuilt_bytes == 0, "seed {seed}");
        }
    }
    assert!(rebuilt > 0 && exact > 0, "{rebuilt} rebuilt, {exact} of them exactly");
}

#[test]
fn of_two_anchors_one_is_enough_if_it_is_the_newer_one() {
    for seed in seeds(12) {
        let how = if seed % 2 == 0 { Damage::OlderAnchor } else { Damage::NewerAnchor };
        let scene = scene(seed, how, seed % 4 == 0, true);
        assert!(!thin_findings(&scene.images).is_empty(), "seed {seed}");
        for (name, model) in NAMES.iter().zip(&scene.models) {
            let (read, report) = extract(&scene.images, name, false).unwrap();
            let old = compare(&read, model, &format!("seed {seed}, {how:?}, {name}"));
            if how == Damage::OlderAnchor {
                assert_eq!((old, report.rebuilt_bytes), (0, 0), "seed {seed}");
            }
        }
    }
}

#[test]
fn segments_alone_give_the_same_as_the_map_if_nothing_was_discarded() {
    for seed in seeds(12) {
        let scene = scene(seed, Damage::None, seed % 2 == 0, false);
        for (name, model) in NAMES.iter().zip(&scene.models) {
            let (by_map, report) = extract(&scene.images, name, false).unwrap();
            assert_eq!(report.rebuilt_bytes, 0);
            let (read, report) = extract_from_segments(&scene.images, name).unwrap();
            assert!(read == by_map && read == model.bytes, "seed {seed}, {name}");
            assert_eq!(report.rebuilt_bytes, report.size_bytes);
        }
    }
}

/// A plain fragment with one block of these bytes.
fn fragment(line: u32, block: u64, sequence: u64, content: &[u8]) -> FragmentRecord {
    let (blocks, codec, stored_bytes) = (1, Codec::Plain, BLOCK as u32);
    FragmentRecord {
        sequence,
        line,
        block,
        blocks,
        codec,
        stored_bytes,
        crc32c: gf::crc32c(content),
        birth: 1,
        joined: false,
    }
}

/// Bytes at the start of a volume that are written: less than a leaf of the map.
pub const FILLED: usize = 240 * BLOCK;

/// Two volumes that begin with random content, all of it in segments.
pub async fn filled(thin: &ThinGroup, models: &mut [VolumeModel; 2], bytes: usize, rng: &mut Rng) {
    thin.create().await;
    let store = thin.open().await;
    for (line, model) in (1..).zip(models) {
        rng.fill(&mut model.bytes[..bytes]);
        let volume = thin.volume(&store, line);
        volume.write(0, Buf::from(model.bytes[..bytes].to_vec()), false).await.unwrap();
    }
    store.stop().await.unwrap();
}

/// Makes blocks of clients look like runs with another key, where they are in a run at the place of
/// a run. Returns their number, and that of the runs.
async fn forge(thin: &ThinGroup, models: &mut [VolumeModel; 2], key: &StoreKey) -> (usize, usize) {
    let (backing, unit, mut forged, mut runs) = (thin.backing(), thin.grid.unit_bytes, 0, 0);
    for id in thin.extents().iter().flat_map(|extent| thin.grid.segments(extent)).skip(1) {
        let start = thin.grid.start(id);
        let bytes = backing.read(start, BufMut::zeroed(thin.grid.segment_bytes as usize)).await.unwrap();
        let mut at = 0;
        while at < bytes.len() {
            let Ok(index) = BatchIndex::decode(&bytes[at..], &KEY, start + at as u64, 0) else {
                at += unit as usize;
                continue;
            };
            for (record, place) in index.records.fragments.iter().zip(index.records.contents(0)) {
                for block in 0..u64::from(record.blocks) {
                    let place = (at + place.start) as u64 + block * BLOCK as u64;
                    if record.codec != Codec::Plain || !place.is_multiple_of(unit) {
                        continue;
                    }
                    let fragments = vec![fragment(1, 7, 1 << 40, &[0; BLOCK])];
                    let records = BatchRecords { fragments, ..BatchRecords::default() };
                    let mut content = encode_index(key, start + place, unit as usize, &records);
                    content.resize(BLOCK, 0);
                    let from = (record.block + block) as usize * BLOCK;
                    models[record.line as usize - 1].bytes[from..from + BLOCK].copy_from_slice(&content);
                    backing.write(start + place, Buf::from(content), true).await.unwrap();
                    forged += 1;
                }
            }
            (at, runs) = (at + index.batch_bytes, runs + 1);
        }
    }
    (forged, runs)
}

pub fn assert_same(images: &[Image], models: &[VolumeModel; 2]) {
    for (name, model) in NAMES.iter().zip(models) {
        let (read, report) = extract(images, name, false).unwrap();
        let differs = read.chunks(BLOCK).zip(model.bytes.chunks(BLOCK)).position(|(read, now)| read != now);
        assert_eq!(differs, None, "{name}: the block that differs");
        assert_eq!(report.rebuilt_bytes, report.size_bytes);
    }
}

#[test]
fn clients_data_that_looks_like_runs_does_not_decide_the_key() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let thin =
        ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng).with_long_segments();
    let mut models = thin.models();
    let (forged, runs) = sim.block_on(async {
        filled(&thin, &mut models, 2 << 20, &mut rng).await;
        let counts = forge(&thin, &mut models, &[9; 16]).await;
        damage(&thin, Damage::BothAnchors, &mut rng).await;
        counts
    });
    assert!(forged > runs, "{forged} forged ones are not more than {runs} runs");
    assert_same(&images(&thin.group.kill(&sim)), &models);
}

/// The first byte of a segment of which nothing is allocated.
fn free_segment(thin: &ThinGroup) -> u64 {
    let (backing, bytes) = (thin.backing(), thin.grid.segment_bytes);
    let segments = thin.extents().iter().flat_map(|extent| thin.grid.segments(extent));
    let is_free = |start: &u64| backing.allocated(*start, bytes) == Allocated::Nothing;
    segments.map(|id| thin.grid.start(id)).find(is_free).unwrap()
}

#[test]
fn a_fragment_in_a_segment_that_the_table_calls_free_is_as_good_as_a_hole() {
    let sim = Sim::new(5);
    let mut rng = sim.rng();
    let thin = ThinGroup::new(&sim, shape(Level::Raid6, 4, 4 * KIB), Protection::DEFAULT, &mut rng);
    let mut models = thin.models();
    sim.block_on(async {
        filled(&thin, &mut models, FILLED, &mut rng).await;
        let (backing, unit, start) = (thin.backing(), thin.grid.unit_bytes, free_segment(&thin));
        // It was freed, and a power cut came before it was discarded.
        let old = [0x77; BLOCK];
        let fragments = vec![fragment(1, (FILLED / BLOCK) as u64 + 5, 1, &old)];
        let records = BatchRecords { fragments, ..BatchRecords::default() };
        let mut run = encode_index(&KEY, start, unit as usize, &records);
        run.resize(BLOCK, 0);
        run.extend_from_slice(&old);
        run.resize(unit as usize, 0);
        backing.write(start, Buf::from(run), true).await.unwrap();
        damage(&thin, Damage::Roots, &mut rng).await;
    });
    let images = images(&thin.group.kill(&sim));
    for (name, model) in NAMES.iter().zip(&models) {
        let (read, report) = extract(&images, name, false).unwrap();
        assert!(read == model.bytes, "{name}");
        assert!(report.warnings.iter().any(|warning| warning.contains("as many blocks as before")), "{report:?}");
    }
}

#[test]
fn a_run_without_all_of_its_chunks_does_not_count() {
    let sim = Sim::new(2);
    let mut rng = sim.rng();
    let thin =
        ThinGroup::new(&sim, shape(Level::Raid6, 4, 4 * KIB), Protection::DEFAULT, &mut rng).with_long_segments();
    let mut models = thin.models();
    sim.block_on(async {
        filled(&thin, &mut models, FILLED, &mut rng).await;
        let (backing, unit, start) = (thin.backing(), thin.grid.unit_bytes, free_segment(&thin));
        // A power cut came when the first of two units was allocated.
        let blocks = 2 * unit / BLOCK as u64 - 1;
        let fragments = (0..blocks).map(|block| fragment(1, block, (1 << 40) + block, &[0; BLOCK])).collect();
        let records = BatchRecords { fragments, ..BatchRecords::default() };
        let mut run = encode_index(&KEY, start, 2 * unit as usize, &records);
        run.resize(unit as usize, 0);
        backing.write(start, Buf::from(run), true).await.unwrap();
        damage(&thin, Damage::BothAnchors, &mut rng).await;
    });
    assert_same(&images(&thin.group.kill(&sim)), &models);
}

#[test]
fn an_anchor_that_is_not_the_newest_is_not_used() {
    let sim = Sim::new(4);
    let mut rng = sim.rng();
    let thin =
        ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng).with_long_segments();
    let mut models = thin.models();
    sim.block_on(async {
        thin.create().await;
        let store = thin.open().await;
        // The second checkpoint frees segments that the first one needs. Later writes fill them.
        let later = [(1, false), (2, false)].repeat(4);
        for (line, is_covered) in [(1, false), (2, true), (1, true)].into_iter().chain(later) {
            let content = &mut models[line - 1].bytes[..FILLED];
            rng.fill(content);
            let volume = thin.volume(&store, line as u32);
            volume.write(0, Buf::from(content.to_vec()), false).await.unwrap();
            store.land_all().await.unwrap();
            if is_covered {
                store.checkpoint().await.unwrap();
            }
        }
        thin.volume(&store, 1).flush().await.unwrap();
        damage(&thin, Damage::NewerAnchor, &mut rng).await;
    });
    assert_same(&images(&thin.group.kill(&sim)), &models);
}

#[test]
fn frames_of_an_earlier_generation_do_not_count_without_anchors() {
    let sim = Sim::new(3);
    let mut rng = sim.rng();
    let thin = ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng);
    let mut models = thin.models();
    let stale = [0xEE; BLOCK];
    sim.block_on(async {
        thin.create().await;
        let (anchor, _) = anchors(&thin).await.pop().unwrap();
        let backing = thin.backing();
        backing.begin_intents(anchor.intent_generation - 1).unwrap();
        for block in 0..6 {
            let fragments = vec![fragment(1, block, (1 << 40) + block, &stale)];
            let records = BatchRecords { fragments, ..BatchRecords::default() };
            let mut cursor = ContentCursor::new(format::intent_log::INTENT_HEAD_BYTES, records.index_bytes());
            cursor.next(Codec::Plain, BLOCK as u32);
            let meta = encode_index(&KEY, 0, cursor.end(), &records);
            backing.append_intent(meta, vec![Buf::from(stale.to_vec())], true).await.unwrap();
        }
        let store = thin.open().await;
        let volume = thin.volume(&store, 1);
        // The first writes get into a segment, and the last one into a frame.
        for block in [20, 21, 0] {
            let content = &mut models[0].bytes[block * BLOCK..(block + 1) * BLOCK];
            rng.fill(content);
            if block == 0 {
                store.checkpoint().await.unwrap();
            }
            volume.write((block * BLOCK) as u64, Buf::from(content.to_vec()), true).await.unwrap();
            if block > 0 {
                store.land_all().await.unwrap();
            }
        }
        damage(&thin, Damage::BothAnchors, &mut rng).await;
    });
    let images = images(&thin.group.kill(&sim));
    let left = images.iter().flat_map(|image| image.bytes.chunks(BLOCK)).filter(|block| *block == stale).count();
    assert!(left > 0, "every earlier frame was overwritten");
    assert_same(&images, &models);
}

#[test]
fn heads_of_runs_that_cannot_be_read_are_reported() {
    let mut unread = 0;
    for seed in seeds(4) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let thin = ThinGroup::new(&sim, shape(Level::Raid0, 3, 4 * KIB), Protection::DEFAULT, &mut rng);
        let mut models = thin.models();
        sim.block_on(async {
            filled(&thin, &mut models, FILLED, &mut rng).await;
            damage(&thin, Damage::BothAnchors, &mut rng).await;
        });
        let mut images = images(&thin.group.kill(&sim));
        for image in &mut images {
            let heads = image.bytes.chunks(BLOCK).enumerate().filter(|(_, block)| block.starts_with(b"PurlinTB"));
            let bad = heads.filter(|_| rng.chance(1, 4)).map(|(block, _)| (block * BLOCK / 512) as u64);
            image.bad = bad.collect();
        }
        for (name, model) in NAMES.iter().zip(&models) {
            let refused = extract(&images, name, false).map(|(_, report)| report);
            let Err(RescueError::Lost { why, .. }) = refused else { panic!("seed {seed}: {refused:?}") };
            assert!(why.contains("segments"), "{why}");
            let (read, report) = extract(&images, name, true).unwrap();
            assert!(report.unread_bytes > 0, "{report:?}");
            unread += report.unread_bytes;
            for (read, now) in read.chunks(BLOCK).zip(model.bytes.chunks(BLOCK)) {
                assert!(read == now || read.iter().all(|byte| *byte == 0), "seed {seed}");
            }
        }
        assert!(thin_findings(&images).iter().any(|finding| finding.contains("cannot be read")));
    }
    assert!(unread > 0);
}

#[test]
fn damaged_structures_never_end_the_reader() {
    for seed in seeds(6) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let protection = Protection { safety: CrashSafety::On, checksums: false };
        let thin = ThinGroup::new(&sim, shape(Level::Raid0, 2, 4 * KIB), protection, &mut rng);
        let mut models = thin.models();
        sim.block_on(filled(&thin, &mut models, FILLED, &mut rng));
        let images = images(&thin.group.kill(&sim));
        for _ in 0..6 {
            let mut images = images.clone();
            for block in images.iter_mut().flat_map(|image| image.bytes.chunks_mut(BLOCK)) {
                if block.starts_with(b"PurlinT") && rng.chance(1, 3) {
                    block[8 + rng.index(300)] ^= 1 << rng.below(8);
                }
            }
            check_all(&images);
            list(&survey(&images));
            for name in NAMES {
                let _ = extract(&images, name, true);
                let _ = extract_from_segments(&images, name);
            }
        }
    }
}

//! Thin volumes whose anchors or maps are damaged are read from their segments. Blocks with content
//! are right. Blocks without content are zeroes, or have a content that they had before.

use drive::{Buf, BufMut};
use format::BLOCK;
use format::thin::StoredRange;
use format::thin::anchor::{ANCHOR_BYTES, ANCHOR_DISTANCE_BYTES, Anchor, Root};
use format::thin::line::{LINES_LINE, SEGMENTS_LINE};
use format::thin::node::{NodeId, decode_inner_node, decode_line_leaf};
use rescue::{Structure, list};
use sim::engine::{Group, KIB, MIB, every_level, new_drives, seeds};
use sim::thin::any_compression;
use sim::{Rng, Sim, SimEnv};
use volume::thin::{ArrayBacking, Backing, Grid, Thin, VolumeSettings};

use crate::image::{Image, check_all, extract, extract_from_segments, images, survey};
use crate::thin::{NAMES, Store, TUNING, Volume, VolumeModel, catalogue, work};

/// The damage that is done through the group: parity and checksums fit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    None,
    BothAnchors,
    NewerAnchor,
    OlderAnchor,
    /// A node of this tree.
    Node(u32),
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

async fn damage(backing: &ArrayBacking<SimEnv>, array: &format::Uuid, start: u64, damage: Damage, rng: &mut Rng) {
    let mut anchors = Vec::new();
    for address in [start, start + ANCHOR_DISTANCE_BYTES] {
        let bytes = backing.read(address, BufMut::zeroed(ANCHOR_BYTES)).await.unwrap();
        anchors.push((Anchor::decode(&bytes, array).unwrap(), address));
    }
    anchors.sort_by_key(|(anchor, _)| anchor.generation);
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
    let drives = new_drives(&sim, usize::from(shape.members), 8 * MIB, 512);
    let group = Group::create(&sim, shape, drives, 1 + rng.index(2));
    let geometry = &group.leader().shared().geometry;
    let band = geometry.band_bytes();
    let grid = Grid { segment_bytes: (128 * KIB).div_ceil(band) * band, unit_bytes: geometry.whole_write_bytes() };
    let size_bytes = 2 * MIB + 4096 * rng.below(4);
    let catalogue = catalogue(&group, grid, size_bytes);
    let mut models = [VolumeModel::new(size_bytes), VolumeModel::new(size_bytes)];
    let mut fork = rng.fork();
    sim.block_on(async {
        let (leader, array) = (group.leader().clone(), group.leader().shared().array);
        assert!(leader.add_intent_log().await.unwrap());
        let extents = catalogue.thin.as_ref().unwrap().extents.clone();
        let backing = || ArrayBacking::new(group.env.clone(), leader.clone());
        Store::create(&backing(), array, [3; 16], grid, &extents).await.unwrap();
        leader.set_catalogue(catalogue.clone()).await.unwrap();
        let store = Store::open(backing(), array, grid, &extents, TUNING).await.unwrap();
        for (line, compression) in (1..).zip(any_compression(&mut fork)) {
            store.set_settings(line, VolumeSettings { compression, ..VolumeSettings::default() });
        }
        let volume = |line| Thin::new(store.clone(), line, size_bytes);
        let volumes: Vec<Volume> = (1..=2).map(volume).collect();
        let gone = [volume(3)];
        work(&store, &volumes, &mut models, &mut fork, discards).await;
        work(&store, &gone, &mut [VolumeModel::new(size_bytes)], &mut fork, false).await;
        work(&store, &volumes, &mut models, &mut fork, discards).await;
        gone[0].close().await;
        store.delete(3).await.unwrap();
        if is_stopped {
            store.stop().await.unwrap();
        }
        damage(&backing(), &array, extents[0].start_byte, how, &mut fork).await;
    });
    let images = images(&if is_stopped { group.kill(&sim) } else { group.cut(&sim) });
    Scene { images, models }
}

/// The number of blocks without content that have one of before.
fn compare(read: &[u8], model: &VolumeModel, context: &str) -> usize {
    let blocks = read.chunks(BLOCK).zip(model.bytes.chunks(BLOCK)).enumerate();
    let mut old = 0;
    for (number, (read, now)) in blocks.filter(|(_, (read, now))| read != now) {
        assert!(now.iter().all(|byte| *byte == 0), "{context}: block {number} has content, and it is wrong");
        assert!(model.had(number, read), "{context}: block {number} never had this content");
        old += 1;
    }
    old
}

fn thin_findings(images: &[Image]) -> Vec<String> {
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
        let scene = scene(seed, how, seed % 4 < 2, true);
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

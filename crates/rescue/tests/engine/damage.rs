//! A check finds nothing in a healthy group, and names the damage of a damaged one.

use format::{Layout, Level, MapBlock, Shape, Superblock, map_slot_offset, superblock_offsets};
use rescue::{CheckReport, Structure};
use sim::engine::{KIB, Protection, every_level, seeds, shape};
use sim::{Rng, Sim};

use crate::image::*;

fn superblock(image: &Image) -> Superblock {
    Superblock::decode(&image.bytes[..4096]).unwrap()
}

/// Offsets at which the first member's copy of a structure is in use.
fn map_slots(image: &Image, layout: &Layout) -> Vec<u64> {
    let array = superblock(image).array;
    let slots = (0..2).map(|slot| map_slot_offset(layout, 0, slot));
    slots.filter(|&at| MapBlock::decode(&image.bytes[at as usize..], &array, 0).is_ok()).collect()
}

fn found(report: &CheckReport, structure: Structure, name: &str) -> bool {
    report.findings.iter().any(|finding| finding.structure == structure && finding.drive.as_deref() == Some(name))
}

#[test]
fn a_group_that_was_stopped_in_order_has_nothing_wrong_at_any_level() {
    for seed in seeds(4) {
        for shape in every_level(16 * KIB) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let group = stopped(&sim, shape, &mut rng);
            let report = check_all(&group.images);
            assert_eq!(report.findings, [], "{shape}");
            let [checked] = &report.groups[..] else { panic!("one group: {report:?}") };
            let members = u64::from(shape.members);
            assert_eq!((checked.superblock_copy_count, checked.volume_count), (2 * members, 2));
            assert!(checked.catalogue_copy_count >= members && checked.map_copy_count >= members, "{checked:?}");
            let parity = checked.parity.unwrap();
            assert_eq!(parity.compared_bytes > 0, shape.survives() > 0, "{shape}: {parity:?}");
            assert_eq!((parity.mismatch_bytes, parity.lost_bytes), (0, 0));
        }
    }
}

#[test]
fn a_flipped_bit_in_any_structure_is_found_and_its_drive_is_named() {
    let shape = shape(Level::Raid6, 5, 16 * KIB);
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let group = stopped(&sim, shape, &mut rng);
        let victim = rng.index(group.images.len());
        let layout = superblock(&group.images[victim]).layout;
        let [head, tail] = superblock_offsets(group.images[victim].bytes.len() as u64).unwrap();
        let mut places: Vec<(Structure, u64)> = vec![(Structure::Superblock, head), (Structure::Superblock, tail)];
        places.extend(map_slots(&group.images[victim], &layout).into_iter().map(|at| (Structure::Map, at)));
        let catalogue = [layout.catalogue.offset, layout.catalogue.offset + layout.catalogue.len / 2];
        let written = |at: &u64| group.images[victim].bytes[*at as usize..].starts_with(b"PurlinCT");
        places.extend(catalogue.iter().copied().filter(written).map(|at| (Structure::Catalogue, at)));
        for (structure, start) in places {
            let mut images = group.images.clone();
            let at = start + rng.below(4096);
            images[victim].bytes[at as usize] ^= 1 << rng.below(8);
            let report = check_all(&images);
            let name = &images[victim].name;
            assert!(found(&report, structure, name), "seed {seed}: {structure:?}, byte {at}: {:?}", report.findings);
            assert!(report.findings.iter().all(|finding| finding.structure == structure), "{:?}", report.findings);
            let (read, _) = extract(&images, "db", false).unwrap();
            same(&read, &content(&group.catalogue, "db", &group.bytes), "the other copies");
        }
    }
}

/// A written byte of the data region of a member: its place on the member.
fn written_byte(group: &Stopped, shape: &Shape, rng: &mut Rng) -> (usize, u64) {
    let own = superblock(&group.images[0]);
    let layout = own.layout;
    let at = map_slots(&group.images[0], &layout);
    let blocks = at.iter().map(|&at| MapBlock::decode(&group.images[0].bytes[at as usize..], &own.array, 0).unwrap());
    let map = blocks.max_by_key(|block| block.sequence).unwrap();
    loop {
        let chunk = rng.below(layout.chunk_count);
        if map.is_set(chunk) {
            let (set, band) = (chunk % u64::from(shape.sets), chunk / u64::from(shape.sets));
            let slot = set as usize * shape.members_per_set() + rng.index(shape.members_per_set());
            let chunk_bytes = u64::from(layout.chunk_bytes);
            return (slot, layout.data.offset + band * chunk_bytes + rng.below(chunk_bytes));
        }
    }
}

#[test]
fn a_wrong_byte_of_data_or_parity_is_found_and_its_drive_is_named_where_checksums_or_two_parity_strips_tell() {
    for seed in seeds(8) {
        for shape in every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let checksums = seed % 2 == 0;
            let protection = Protection { checksums, ..Protection::DEFAULT };
            let mut group = stopped_with(&sim, shape, protection, &mut rng);
            let (slot, at) = written_byte(&group, &shape, &mut rng);
            group.images[slot].bytes[at as usize] ^= 0x40;
            // One more member is lost, and three parity strips can still locate the damage.
            let lost: Vec<usize> =
                if shape.survives() > 2 { vec![(slot + 1) % shape.members_per_set()] } else { vec![] };
            let report = check_all(&without(&group.images, &lost, &mut rng));
            let stripes: Vec<_> =
                report.findings.iter().filter(|finding| finding.structure == Structure::Stripe).collect();
            let [finding] = stripes[..] else { panic!("{shape}: {:?}", report.findings) };
            let (offset, len) = (finding.offset_bytes.unwrap(), finding.len_bytes.unwrap());
            assert!((offset..offset + len).contains(&at) && len <= 4096, "{shape}: {finding:?} and not {at}");
            let named = (checksums || shape.survives() >= 2).then_some(slot as u16);
            assert_eq!(finding.slot, named, "{shape}: {finding:?}");
            assert_eq!(finding.message.starts_with("damaged: "), checksums, "{finding:?}");
        }
    }
}

#[test]
fn an_unreadable_sector_is_found_and_named() {
    let sim = Sim::new(2);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 5, 16 * KIB);
    let mut group = stopped(&sim, shape, &mut rng);
    let (slot, at) = written_byte(&group, &shape, &mut rng);
    group.images[slot].bad.insert(at / 512);
    let report = check_all(&group.images);
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((finding.structure, finding.slot), (Structure::Stripe, Some(slot as u16)));
    assert_eq!((finding.offset_bytes, finding.len_bytes), (Some(at / 512 * 512), Some(512)));
}

#[test]
fn a_wrong_checksum_is_told_from_wrong_data() {
    for seed in seeds(8) {
        for shape in every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let mut group = stopped(&sim, shape, &mut rng);
            let (slot, at) = written_byte(&group, &shape, &mut rng);
            let layout = superblock(&group.images[0]).layout;
            let block = (at - layout.data.offset) / 4096;
            let sum = layout.checksums.unwrap().offset + block * 4;
            group.images[slot].bytes[(sum + rng.below(4)) as usize] ^= 1;
            let report = check_all(&group.images);
            let [finding] = &report.findings[..] else { panic!("{shape}: {:?}", report.findings) };
            assert_eq!((finding.structure, finding.slot), (Structure::Checksum, Some(slot as u16)), "{finding:?}");
            assert_eq!((finding.offset_bytes, finding.len_bytes), (Some(sum), Some(4)), "{shape}");
            let (read, _) = extract(&group.images, "db", false).unwrap();
            same(&read, &content(&group.catalogue, "db", &group.bytes), &shape.to_string());
        }
    }
}

#[test]
fn a_sector_that_cannot_be_read_beside_a_damaged_block_is_named_with_it() {
    let sim = Sim::new(12);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 5, 16 * KIB);
    let mut group = stopped(&sim, shape, &mut rng);
    let (slot, at) = written_byte(&group, &shape, &mut rng);
    let other = (slot + 1) % 5;
    group.images[slot].bad.insert(at / 512);
    group.images[other].bytes[at as usize] ^= 1;
    let report = check_all(&group.images);
    let mut found: Vec<_> = report
        .findings
        .iter()
        .map(|finding| (finding.slot.unwrap(), finding.offset_bytes, finding.len_bytes))
        .collect();
    found.sort_unstable();
    let mut expected =
        vec![(slot as u16, Some(at / 512 * 512), Some(512)), (other as u16, Some(at / 4096 * 4096), Some(4096))];
    expected.sort_unstable();
    assert_eq!(found, expected, "{:?}", report.findings);
}

#[test]
fn garbage_is_answered_and_never_believed() {
    for seed in seeds(200) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let size = rng.below(65536);
        let mut bytes = vec![0; size as usize];
        rng.fill(&mut bytes);
        let image = Image { name: "garbage".into(), bytes, bad: Default::default() };
        let report = check_all(std::slice::from_ref(&image));
        assert!(!report.complete && report.groups.is_empty() && report.findings.len() == 1, "{report:?}");
        assert!(rescue::list(&survey(&[image])).groups.is_empty());
    }
}

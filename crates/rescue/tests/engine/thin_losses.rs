//! Thin volumes that are lost in part: all commands say how much, and no block that may have had
//! content is taken for a hole.

use format::thin::line::{LINES_LINE, SEGMENTS_LINE};
use format::{BLOCK, Level};
use rescue::{ExtractReport, RescueError, list};
use sim::engine::{KIB, Protection, every_level, seeds, shape};
use sim::{Rng, Sim};

use crate::image::{Image, extract, images, survey, without};
use crate::thin::{NAMES, ThinGroup, VolumeModel};
use crate::thin_segments::{Damage, FILLED, damage, filled, thin_findings};

/// Checks that each block was read as it was written, or that all of it is listed as lost.
fn assert_same_or_lost(read: &[u8], report: &ExtractReport, model: &VolumeModel, context: &str) {
    for (number, (read, now)) in read.chunks(BLOCK).zip(model.bytes.chunks(BLOCK)).enumerate() {
        let (start, end) = ((number * BLOCK) as u64, (number * BLOCK + now.len()) as u64);
        let mut ranges = report.lost.iter().map(|range| range.offset_bytes..range.offset_bytes + range.len_bytes);
        let is_lost = ranges.any(|range| range.start <= start && end <= range.end);
        assert!(is_lost || read == now, "{context}: block {number} is wrong, and not listed as lost");
    }
}

/// Two volumes that are written in part, and the images of the group's drives.
fn scene(thin: ThinGroup, sim: &Sim, how: Damage, rng: &mut Rng) -> ([VolumeModel; 2], Vec<Image>) {
    let mut models = thin.models();
    sim.block_on(async {
        filled(&thin, &mut models, FILLED, rng).await;
        damage(&thin, how, rng).await;
    });
    (models, images(&thin.group.kill(sim)))
}

#[test]
fn the_list_says_how_much_of_a_thin_volume_is_lost_with_too_many_members() {
    let (mut parts, mut by_map) = (0, 0);
    for seed in seeds(6) {
        for shape in every_level(4 * KIB) {
            // All members of a mirror of one set would leave no group.
            if usize::from(shape.members) == shape.survives() + 1 {
                continue;
            }
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let thin = ThinGroup::new(&sim, shape, Protection::DEFAULT, &mut rng);
            let (models, images) = scene(thin, &sim, Damage::None, &mut rng);
            let mut slots: Vec<usize> = (0..shape.members_per_set()).collect();
            rng.shuffle(&mut slots);
            slots.truncate(shape.survives() + 1);
            let left = without(&images, &slots, &mut rng);
            let listed = list(&survey(&left));
            for ((name, model), volume) in NAMES.iter().zip(&models).zip(&listed.groups[0].volumes) {
                let context = format!("seed {seed}, {shape} without {slots:?}, {name}");
                let shown = (volume.lost_bytes, volume.unknown_bytes);
                let refused = extract(&left, name, false).map(|(_, report)| report);
                let Ok((read, report)) = extract(&left, name, true) else {
                    assert_eq!(shown, (volume.size_bytes, volume.size_bytes), "{context}");
                    continue;
                };
                assert_same_or_lost(&read, &report, model, &context);
                assert_eq!(shown, (report.lost_bytes, report.unknown_bytes), "{context}");
                if report.lost_bytes == 0 {
                    assert_eq!(refused.unwrap().lost_bytes, 0, "{context}");
                    continue;
                }
                let (bytes, count) = (report.lost_bytes, report.lost.len());
                let said = format!("{bytes} bytes of tank/{name} are lost in {count} range");
                let Err(RescueError::Lost { why, lost }) = refused else { panic!("{context}: {refused:?}") };
                assert!(why.starts_with(&said), "{context}: {why}");
                assert_eq!(lost, report.lost, "{context}");
                let said = format!("{bytes} bytes of thin volume {name} are lost in {count} range");
                let findings = thin_findings(&left);
                assert!(findings.iter().any(|finding| finding.starts_with(&said)), "{context}: {findings:?}");
                parts += 1;
                by_map += u32::from(report.unknown_bytes == 0);
            }
        }
    }
    assert!(parts > 10 && by_map > 0, "{parts} lost in part, {by_map} of them with all of the map");
}

#[test]
fn blocks_whose_map_is_lost_are_no_holes() {
    for seed in seeds(6) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let thin = ThinGroup::new(&sim, shape(Level::Raid0, 3, 4 * KIB), Protection::DEFAULT, &mut rng);
        let how = *rng.pick(&[Damage::BothAnchors, Damage::Roots]);
        let (models, mut images) = scene(thin, &sim, how, &mut rng);
        // The index of some runs cannot be read either.
        let mut heads = 0;
        for image in &mut images {
            for (block, bytes) in image.bytes.chunks(BLOCK).enumerate() {
                if bytes.starts_with(b"PurlinTB") && (heads == 0 || rng.chance(1, 3)) {
                    image.bad.insert((block * BLOCK / 512) as u64);
                    heads += 1;
                }
            }
        }
        let listed = list(&survey(&images));
        for ((name, model), volume) in NAMES.iter().zip(&models).zip(&listed.groups[0].volumes) {
            let context = format!("seed {seed}, {how:?}, {name}");
            let (read, report) = extract(&images, name, true).unwrap();
            assert_same_or_lost(&read, &report, model, &context);
            // It is not known of any block without content that it was never written. The roots are
            // those of one leaf: behind it are holes.
            let without_map = if how == Damage::Roots { 1 << 20 } else { report.size_bytes };
            let expected = (report.size_bytes - without_map, report.unknown_bytes);
            assert_eq!((report.hole_bytes, report.lost_bytes), expected, "{context}");
            assert!(report.unknown_bytes >= without_map - FILLED as u64, "{context}: {report:?}");
            // With all members there, the list reads no leaf.
            let listed = if how == Damage::Roots { (0, 0) } else { (report.lost_bytes, report.unknown_bytes) };
            assert_eq!((volume.lost_bytes, volume.unknown_bytes), listed, "{context}");
            let refused = extract(&images, name, false).map(|(_, report)| report);
            let Err(RescueError::Lost { why, .. }) = refused else { panic!("{context}: {refused:?}") };
            assert!(why.contains("may never have been written, as their map is lost"), "{context}: {why}");
        }
        let said = "count as lost, but may never have been written: their map is lost";
        let is_said = listed.groups[0].warnings.iter().any(|warning| warning.contains(said));
        assert_eq!(is_said, how == Damage::BothAnchors, "{listed:?}");
    }
}

#[test]
fn each_warning_names_its_store_or_volume() {
    let damages = [Damage::BothAnchors, Damage::NewerAnchor, Damage::OlderAnchor, Damage::Roots];
    let nodes = [1, LINES_LINE, SEGMENTS_LINE].map(Damage::Node);
    for (seed, how) in (0..).zip(damages.into_iter().chain(nodes)) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let thin = ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng);
        let (_, images) = scene(thin, &sim, how, &mut rng);
        let named = |text: &String| text.contains("thin store 0 ") || text.starts_with("thin volume ");
        let (_, report) = extract(&images, NAMES[0], false).unwrap();
        let mut said = report.warnings;
        assert!(!said.is_empty(), "{how:?}");
        said.extend(thin_findings(&images));
        said.extend(list(&survey(&images)).groups[0].warnings.iter().cloned());
        assert!(said.iter().all(named), "{how:?}: {said:#?}");
    }
}

#[test]
fn adjacent_parts_of_a_map_are_one_finding() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let thin = ThinGroup::new(&sim, shape(Level::Raid5, 3, 4 * KIB), Protection::DEFAULT, &mut rng);
    let mut models = thin.models();
    sim.block_on(async {
        filled(&thin, &mut models, 2 << 20, &mut rng).await;
        damage(&thin, Damage::Leaves(1), &mut rng).await;
    });
    let images = images(&thin.group.kill(&sim));
    let said = "thin volume one: the map of bytes 0 to 2097152 cannot be read. It is rebuilt from segments: it has as \
                many blocks as before";
    assert_eq!(thin_findings(&images), [said]);
    let (read, report) = extract(&images, NAMES[0], false).unwrap();
    assert!(read == models[0].bytes);
    assert_eq!((report.warnings, report.rebuilt_bytes), (vec![said.to_owned()], 2 << 20));
}

//! Members and sectors are lost, up to as many as the level survives.

use std::collections::BTreeSet;

use format::{Level, Shape, Superblock};
use rescue::{FileTarget, RescueError};
use sim::engine::{KIB, every_level, seeds, shape, subsets};
use sim::{Rng, Sim};

use crate::image::*;

#[test]
fn every_volume_is_read_exactly_with_any_members_lost_that_the_level_survives() {
    for (number, strip) in [4 * KIB, 64 * KIB, 256 * KIB].into_iter().enumerate() {
        for shape in every_level(strip) {
            let sim = Sim::new(number as u64);
            let mut rng = sim.rng();
            let group = stopped(&sim, shape, &mut rng);
            let width = shape.members_per_set();
            let mut sets: Vec<Vec<usize>> = subsets(usize::from(shape.members), usize::from(shape.members))
                .into_iter()
                .filter(|lost| {
                    (0..usize::from(shape.sets))
                        .all(|set| lost.iter().filter(|&&slot| slot / width == set).count() <= shape.survives())
                })
                .collect();
            rng.shuffle(&mut sets);
            sets.truncate(6);
            for lost in sets {
                let left = without(&group.images, &lost, &mut rng);
                for volume in ["db", "rest"] {
                    let (read, report) = extract(&left, volume, false).unwrap();
                    let what = format!("{shape}, strips of {strip}, {volume} without {lost:?}");
                    same(&read, &content(&group.catalogue, volume, &group.bytes), &what);
                    assert!(report.lost.is_empty() && (report.computed_bytes == 0 || !lost.is_empty()), "{what}");
                }
            }
        }
    }
}

#[test]
fn sectors_that_cannot_be_read_are_computed_as_long_as_each_column_has_enough() {
    for seed in seeds(6) {
        for shape in every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let mut group = stopped(&sim, shape, &mut rng);
            let data = Superblock::decode(&group.images[0].bytes[..4096]).unwrap().layout.data;
            for sector in data.offset / 512..data.end() / 512 {
                for set in group.images.chunks_mut(shape.members_per_set()) {
                    for _ in 0..rng.below(1 + shape.survives() as u64) {
                        let index = rng.index(set.len());
                        set[index].bad.insert(sector);
                    }
                }
            }
            let (read, report) = extract(&group.images, "db", false).unwrap();
            same(&read, &content(&group.catalogue, "db", &group.bytes), &format!("{shape}, seed {seed}"));
            assert!(report.computed_bytes > 0);
        }
    }
}

/// Damages up to `most` blocks of each member offset of a group, each by one bit, on members that
/// are not `lost`. Returns the places.
fn damage(group: &mut Stopped, shape: &Shape, lost: &[usize], most: usize, rng: &mut Rng) -> BTreeSet<(usize, u64)> {
    let data = Superblock::decode(&group.images[0].bytes[..4096]).unwrap().layout.data;
    let width = shape.members_per_set();
    let mut damaged = BTreeSet::new();
    for block in (data.offset..data.end()).step_by(4096) {
        for first in (0..group.images.len()).step_by(width) {
            let mut slots: Vec<usize> = (first..first + width).filter(|slot| !lost.contains(slot)).collect();
            rng.shuffle(&mut slots);
            for slot in slots.into_iter().take(rng.index(most + 1)) {
                group.images[slot].bytes[(block + rng.below(4096)) as usize] ^= 1 << rng.below(8);
                damaged.insert((slot, block));
            }
        }
    }
    damaged
}

#[test]
fn damaged_blocks_are_healed_and_named_as_long_as_each_column_has_enough() {
    for seed in seeds(6) {
        for shape in every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let mut group = stopped(&sim, shape, &mut rng);
            let lost: Vec<usize> = (0..rng.index(shape.survives() + 1)).collect();
            let damaged = damage(&mut group, &shape, &lost, shape.survives() - lost.len(), &mut rng);
            let left = without(&group.images, &lost, &mut rng);
            let (read, report) = extract(&left, "db", false).unwrap();
            let what = format!("{shape} without {lost:?}, seed {seed}");
            same(&read, &content(&group.catalogue, "db", &group.bytes), &what);
            let mut named = 0;
            for range in &report.damaged {
                assert_eq!(range.drive, group.images[usize::from(range.slot)].name);
                for block in (range.offset_bytes..range.offset_bytes + range.len_bytes).step_by(4096) {
                    assert!(damaged.contains(&(usize::from(range.slot), block)), "{what}: {range:?} is as it was");
                    named += 1;
                }
            }
            assert_eq!(report.damaged_count, named, "{what}");
            assert!(named > 0 || lost.len() == shape.survives(), "{what}");
        }
    }
}

#[test]
fn what_is_damaged_beyond_redundancy_is_lost_and_never_given() {
    for seed in seeds(6) {
        for shape in every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let mut group = stopped(&sim, shape, &mut rng);
            damage(&mut group, &shape, &[], shape.survives() + 1, &mut rng);
            let refused = extract(&group.images, "db", false);
            let (read, report) = extract(&group.images, "db", true).unwrap();
            match refused {
                Err(RescueError::Lost { why, .. }) => {
                    assert!(report.lost_bytes > 0 && why.contains("not fit"), "{shape}: {why}");
                    assert!(why.contains(", and the rest was not read"), "{shape}: {why}");
                }
                other => assert!(report.lost.is_empty(), "{shape}: {other:?}"),
            }
            let mut part = content(&group.catalogue, "db", &group.bytes);
            for range in &report.lost {
                part[range.offset_bytes as usize..][..range.len_bytes as usize].fill(0);
            }
            same(&read, &part, &format!("{shape}, seed {seed}"));
        }
    }
}

#[test]
fn more_losses_than_the_level_survives_are_refused_and_a_part_is_exact_but_for_what_it_names() {
    for shape in every_level(16 * KIB) {
        let sim = Sim::new(3);
        let mut rng = sim.rng();
        let group = stopped(&sim, shape, &mut rng);
        // All members of a mirror of one set would leave no group.
        if usize::from(shape.members) == shape.survives() + 1 {
            continue;
        }
        let lost: Vec<usize> = (0..=shape.survives()).collect();
        let left = without(&group.images, &lost, &mut rng);
        let expected = content(&group.catalogue, "db", &group.bytes);
        let refused = extract(&left, "db", false);
        let Err(RescueError::Lost { why, lost: all }) = refused else { panic!("{shape}: {refused:?}") };
        let (read, report) = extract(&left, "db", true).unwrap();
        let (bytes, count) = (report.lost_bytes, report.lost.len());
        assert!(why.starts_with(&format!("{bytes} bytes of tank/db are lost in {count} range")), "{shape}: {why}");
        assert_eq!(all, report.lost, "{shape}");
        assert!(report.lost_bytes > 0 && report.lost_bytes <= report.size_bytes - report.hole_bytes, "{shape}");
        let mut part = expected;
        for range in &report.lost {
            part[range.offset_bytes as usize..][..range.len_bytes as usize].fill(0);
        }
        same(&read, &part, &shape.to_string());
    }
}

#[test]
fn one_sector_too_many_loses_that_sector_and_nothing_else() {
    let sim = Sim::new(5);
    let mut rng = sim.rng();
    let mut group = stopped(&sim, shape(Level::Raid6, 5, 16 * KIB), &mut rng);
    let data = Superblock::decode(&group.images[0].bytes[..4096]).unwrap().layout.data;
    // The first sector of every member: the first 512 bytes of each data strip of the first stripe.
    for image in &mut group.images {
        image.bad.insert(data.offset / 512);
    }
    let (_, report) = extract(&group.images, "db", true).unwrap();
    assert!(report.lost.iter().all(|lost| lost.len_bytes == 512) && report.lost.len() <= 3, "{:?}", report.lost);
    assert_eq!(extract(&group.images, "db", false).is_err(), !report.lost.is_empty());
}

#[test]
fn a_file_is_sparse_and_exact_and_nothing_is_overwritten_unasked() {
    let sim = Sim::new(9);
    let mut rng = sim.rng();
    let group = stopped(&sim, shape(Level::Raid5, 4, 64 * KIB), &mut rng);
    let survey = survey(&group.images);
    let extraction = rescue::Extraction::new(&survey, "tank", "db", false).unwrap();
    let file = Scratch::new("sparse");
    let mut target = FileTarget::open(file.path(), extraction.size_bytes(), false, &survey.drives).unwrap();
    extraction.run(&mut target, &mut |_, _| {}).unwrap();
    target.finish().unwrap();
    let expected = content(&group.catalogue, "db", &group.bytes);
    same(&std::fs::read(file.path()).unwrap(), &expected, "the file");

    let again = FileTarget::open(file.path(), extraction.size_bytes(), false, &survey.drives);
    assert!(matches!(again, Err(RescueError::TargetExists { .. })));
    std::fs::write(file.path(), vec![0xEE; expected.len() + 1]).unwrap();
    let mut target = FileTarget::open(file.path(), extraction.size_bytes(), true, &survey.drives).unwrap();
    extraction.run(&mut target, &mut |_, _| {}).unwrap();
    target.finish().unwrap();
    same(&std::fs::read(file.path()).unwrap(), &expected, "the file that was there before");
}

#[test]
fn a_drive_is_never_a_target_under_any_name() {
    let (image, link) = (Scratch::new("image"), Scratch::new("link"));
    std::fs::write(image.path(), vec![7; 65536]).unwrap();
    std::os::unix::fs::symlink(image.path(), link.path()).unwrap();
    let survey = rescue::Survey::open(&[image.path()]);
    for path in [image.path(), link.path()] {
        let target = FileTarget::open(path, 4096, true, &survey.drives);
        assert!(matches!(target, Err(RescueError::TargetIsDrive { .. })));
    }
    assert_eq!(std::fs::read(image.path()).unwrap(), vec![7; 65536]);
    let twice = rescue::Survey::open(&[image.path(), link.path()]);
    assert_eq!((twice.drives.len(), twice.unopened.len()), (1, 1), "one drive counts once");
}

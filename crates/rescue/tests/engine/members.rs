//! Which drives the reader trusts.

use array::MemberIndex;
use format::{BLOCK, Level, MemberState, Superblock, superblock_offsets};
use rescue::{DriveRole, Health, RescueError, list};
use sim::Sim;
use sim::engine::{Group, KIB, shape, work};

use crate::image::*;

#[test]
fn a_stale_member_is_named_and_not_used() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let (group, catalogue, mut model) = working(&sim, shape(Level::Raid5, 4, 16 * KIB), 2048 * KIB, &mut rng);
    sim.block_on(async {
        group.leader().fail_member(MemberIndex(2)).await.unwrap();
        work(&group, &mut model, &mut rng, 6, 4).await;
    });
    let drives = sim.block_on(group.stop());
    let images = images(&drives);
    let report = list(&survey(&images));
    assert_eq!(report.drives[2].role, DriveRole::Stale, "{report:?}");
    assert_eq!((report.groups[0].health, report.groups[0].losses_left), (Health::Degraded, 0));
    assert!(report.groups[0].warnings.iter().any(|warning| warning.contains("is not used: stale")), "{report:?}");
    let (read, _) = extract(&images, "db", false).unwrap();
    same(&read, &content(&catalogue, "db", &model.bytes), "with the stale member there");
    let lost = extract(&without(&images, &[0], &mut rng), "db", false);
    assert!(matches!(lost, Err(RescueError::Lost { .. })), "the stale member is no replacement: {lost:?}");
}

#[test]
fn a_group_that_was_run_by_halves_is_refused_and_each_half_can_be_read() {
    let sim = Sim::new(4);
    let mut rng = sim.rng();
    let (group, catalogue, model) = working(&sim, shape(Level::Raid1, 2, 64 * KIB), 1024 * KIB, &mut rng);
    let drives = sim.block_on(group.stop());
    let mut bytes = Vec::new();
    for drive in &drives {
        let half = Group::open(&sim, vec![drive.clone()], 1);
        let mut model = sim::engine::Model { bytes: model.bytes.clone(), changed: Vec::new() };
        sim.block_on(work(&half, &mut model, &mut rng, 6, 4));
        sim.block_on(half.stop());
        bytes.push(model.bytes);
    }
    let images = images(&drives);
    let refused = extract(&images, "db", false);
    assert!(matches!(refused, Err(RescueError::Divided { .. })), "{refused:?}");
    assert!(!check_all(&images).findings.is_empty());
    for (image, bytes) in images.iter().zip(bytes) {
        let (read, _) = extract(std::slice::from_ref(image), "db", false).unwrap();
        same(&read, &content(&catalogue, "db", &bytes), &image.name);
    }
}

#[test]
fn drives_that_one_run_left_believing_that_they_go_on_alone_are_one_group() {
    let sim = Sim::new(5);
    let mut rng = sim.rng();
    let (group, catalogue, model) = working(&sim, shape(Level::Raid1, 3, 64 * KIB), 1024 * KIB, &mut rng);
    let drives = sim.block_on(group.stop());
    // Superblocks of a failed change while all drives were disconnected, and one of another run
    // that had only its own drive.
    let mut images = images(&drives);
    for (image, member, ahead) in [(0, 0, 2), (2, 2, 1)] {
        rewrite(&mut images[image], |own| {
            own.epoch += ahead;
            let others = own.members.iter_mut().enumerate().filter(|(other, _)| *other != member);
            others.for_each(|(_, entry)| entry.state = MemberState::Faulty);
        });
    }
    let (read, _) = extract(&images, "db", false).unwrap();
    same(&read, &content(&catalogue, "db", &model.bytes), "one run");
    rewrite(&mut images[2], |own| own.runs.this.members = 1 << 2);
    let refused = extract(&images, "db", false);
    assert!(matches!(refused, Err(RescueError::Divided { .. })), "{refused:?}");
}

/// Changes both superblocks of a drive.
fn rewrite(image: &mut Image, change: impl FnOnce(&mut Superblock)) {
    let mut own = Superblock::decode(&image.bytes[..BLOCK]).unwrap();
    change(&mut own);
    for at in superblock_offsets(image.bytes.len() as u64).unwrap() {
        image.bytes[at as usize..][..BLOCK].copy_from_slice(&own.encode());
    }
}

#[test]
fn two_drives_with_one_identity_are_refused_and_an_older_copy_is_left_out() {
    let sim = Sim::new(6);
    let mut rng = sim.rng();
    let (group, catalogue, mut model) = working(&sim, shape(Level::Raid5, 3, 16 * KIB), 1024 * KIB, &mut rng);
    let old = Image { name: "old".into(), ..Image::of(&group.drives[1]) };
    let drives = sim.block_on(group.stop());
    let group = Group::open(&sim, drives, 1);
    sim.block_on(work(&group, &mut model, &mut rng, 6, 4));
    let mut images = images(&sim.block_on(group.stop()));
    images.push(Image { name: "twin".into(), ..images[1].clone() });
    let refused = extract(&images, "db", false);
    assert!(matches!(refused, Err(RescueError::Duplicate { .. })), "{refused:?}");
    images[3] = old;
    assert_eq!(list(&survey(&images)).drives[3].role, DriveRole::Copy);
    let (read, _) = extract(&images, "db", false).unwrap();
    same(&read, &content(&catalogue, "db", &model.bytes), "the newer of the two");
    // The older copy is in the place of the member.
    images.swap_remove(1);
    let report = list(&survey(&images));
    assert_eq!(report.drives[1].role, DriveRole::Stale, "{report:?}");
    let (read, _) = extract(&images, "db", false).unwrap();
    same(&read, &content(&catalogue, "db", &model.bytes), "the older copy is not used");
}

#[test]
fn a_drive_whose_end_was_cut_off_is_used_as_far_as_it_goes() {
    let sim = Sim::new(8);
    let mut rng = sim.rng();
    let mut group = stopped(&sim, shape(Level::Raid5, 4, 16 * KIB), &mut rng);
    let len = group.images[1].bytes.len();
    group.images[1].bytes.truncate(len * 2 / 3);
    let (read, report) = extract(&group.images, "db", false).unwrap();
    same(&read, &content(&group.catalogue, "db", &group.bytes), "a drive that is cut off");
    assert!(report.computed_bytes > 0);
    let report = check_all(&group.images);
    assert!(report.findings.iter().any(|finding| finding.message.contains("its end is cut off")), "{report:?}");
}

#[test]
fn either_copy_of_a_superblock_is_enough() {
    let sim = Sim::new(10);
    let mut rng = sim.rng();
    let mut group = stopped(&sim, shape(Level::Raid6, 4, 16 * KIB), &mut rng);
    for (index, image) in group.images.iter_mut().enumerate() {
        let at = superblock_offsets(image.bytes.len() as u64).unwrap()[index % 2] as usize;
        rng.fill(&mut image.bytes[at..at + 4096]);
    }
    let report = list(&survey(&group.images));
    assert!(report.drives.iter().all(|drive| drive.role == DriveRole::Member), "{report:?}");
    let (read, _) = extract(&group.images, "db", false).unwrap();
    same(&read, &content(&group.catalogue, "db", &group.bytes), "one copy each");
}

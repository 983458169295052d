//! The power fails and members are lost at the same moment. The reader applies the log in memory.

use std::collections::BTreeSet;

use array::{Geometry, StripeGroup};
use format::{Catalogue, CrashSafety, ExtentRecord, Superblock, ThinVolumeRecord, VolumeKind, VolumeRecord};
use rescue::{ExtractReport, LostRange};
use sim::Sim;
use sim::engine::history::{History, Loss, Violation, work_for_a_crash};
use sim::engine::{Group, KIB, Protection, every_level, new_drives, seeds};

use crate::image::*;

/// One volume over all of the group.
fn whole(size_bytes: u64) -> Catalogue {
    let extents = vec![ExtentRecord { start_byte: 0, len_bytes: size_bytes }];
    let name = "all".to_owned();
    let volume = VolumeRecord {
        id: 1,
        name,
        kind: VolumeKind::Direct,
        size_bytes,
        created_unix_s: 1,
        extents,
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    Catalogue { next_id: 2, volumes: vec![volume], ..Catalogue::default() }
}

/// Checks for each block that was extracted without these slots that it may be read so after the
/// power cut, or may be listed as lost.
fn may_be(history: &History, slots: &[usize], read: &[u8], report: &ExtractReport) -> Result<(), Violation> {
    let losses: Vec<Loss> = slots.iter().map(|&slot| Loss::in_power_cut(slot)).collect();
    let block = history.block_bytes();
    for (at, bytes) in (0..).step_by(block as usize).zip(read.chunks_exact(block as usize)) {
        let is_lost = |range: &LostRange| range.offset_bytes < at + block && at < range.offset_bytes + range.len_bytes;
        if report.lost.iter().any(is_lost) {
            history.check_unreadable(at, &losses)?;
        } else {
            history.check(at, bytes)?;
        }
    }
    Ok(())
}

#[test]
fn after_a_crash_with_members_lost_every_block_is_old_or_new_or_named_as_lost() {
    let (mut live, mut lost_bytes, mut runs) = (0, 0, 0);
    for seed in seeds(120) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let strip = *rng.pick(&[4 * KIB, 16 * KIB, 64 * KIB]);
        let shapes: Vec<_> = every_level(strip).into_iter().filter(|shape| shape.survives() > 0).collect();
        let shape = *rng.pick(&shapes);
        let drives = new_drives(&sim, usize::from(shape.members), 768 * KIB, *rng.pick(&[512, 4096]));
        let safety = *rng.pick(&[CrashSafety::On, CrashSafety::Strict, CrashSafety::Off]);
        let protection = Protection { safety, checksums: rng.index(2) == 0 };
        let group = Group::create_with(&sim, shape, protection, drives, 1 + rng.index(2));
        sim.block_on(group.leader().set_catalogue(whole(group.size()))).unwrap();
        let history = History::shared(&group);
        if safety == CrashSafety::Strict {
            history.borrow_mut().make_strict();
        }
        sim.stop_after(rng.below(500));
        let mut fork = rng.fork();
        sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, 12, 6));
        let drives = group.cut(&sim);
        history.borrow_mut().power_cut();
        let images = images(&drives);

        let first = rng.index(usize::from(shape.sets)) * shape.members_per_set();
        let mut slots: Vec<usize> = (first..first + shape.members_per_set()).collect();
        rng.shuffle(&mut slots);
        // Without a log there is no promise for a crash together with a loss.
        slots.truncate(if safety == CrashSafety::Off { 0 } else { rng.index(shape.survives() + 1) });
        let left = without(&images, &slots, &mut rng);
        live += check_all(&left).groups[0].log.live_record_count;
        let (read, report) = extract(&left, "all", true).unwrap();
        may_be(&history.borrow(), &slots, &read, &report)
            .unwrap_or_else(|violation| panic!("seed {seed}, {shape}, {protection}, without {slots:?}: {violation:?}"));
        lost_bytes += report.lost_bytes;
        runs += 1;
    }
    println!("{runs} crashes, {live} live records, {lost_bytes} bytes lost");
    assert!(live > 0 || runs < 100, "no crash left a record to mind: the log was not tried");
}

/// Blocks that a log record is about to change, by slot and byte on the drive: their checksums are
/// not valid.
fn in_flight(images: &[Image], geometry: &Geometry) -> BTreeSet<(usize, u64)> {
    let mut blocks = BTreeSet::new();
    for (_, _, frame) in frames(images) {
        for part in &frame.parts {
            let stripe_group = StripeGroup(part.stripe_group);
            for entry in &part.entries {
                let changes =
                    |role: &usize| *role >= geometry.data || (entry.overwritten | entry.in_parity).contains(*role);
                for offset in (entry.offset..entry.offset + u64::from(entry.len)).step_by(4096) {
                    let slots =
                        (0..geometry.strips()).filter(changes).map(|role| geometry.member(stripe_group, offset, role));
                    blocks.extend(slots.map(|slot| (usize::from(slot.0), geometry.drive_offset(stripe_group, offset))));
                }
            }
        }
    }
    blocks
}

#[test]
fn damage_beside_what_was_being_written_in_a_crash_is_healed() {
    let (mut live, mut healed) = (0, 0);
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let strip = *rng.pick(&[4 * KIB, 16 * KIB, 64 * KIB]);
        let shapes: Vec<_> = every_level(strip).into_iter().filter(|shape| shape.survives() > 0).collect();
        let shape = *rng.pick(&shapes);
        let drives = new_drives(&sim, usize::from(shape.members), 768 * KIB, *rng.pick(&[512, 4096]));
        let safety = *rng.pick(&[CrashSafety::On, CrashSafety::Strict]);
        let group = Group::create_with(&sim, shape, Protection { safety, checksums: true }, drives, 1 + rng.index(2));
        sim.block_on(group.leader().set_catalogue(whole(group.size()))).unwrap();
        let geometry = group.leader().shared().geometry.clone();
        let history = History::shared(&group);
        if safety == CrashSafety::Strict {
            history.borrow_mut().make_strict();
        }
        sim.stop_after(rng.below(500));
        let mut fork = rng.fork();
        sim.try_block_on(work_for_a_crash(&group, &history, &mut fork, 12, 6));
        let drives = group.cut(&sim);
        history.borrow_mut().power_cut();
        let mut images = images(&drives);

        // All of one member is damaged, except the blocks that a recovery has to believe.
        let first = rng.index(usize::from(shape.sets)) * shape.members_per_set();
        let mut slots: Vec<usize> = (first..first + shape.members_per_set()).collect();
        rng.shuffle(&mut slots);
        let damaged = slots.pop().unwrap();
        slots.truncate(rng.index(shape.survives()));
        let spared = in_flight(&images, &geometry);
        let layout = Superblock::decode(&images[damaged].bytes[..4096]).unwrap().layout;
        for block in (layout.data.offset..layout.data.end()).step_by(4096) {
            if !spared.contains(&(damaged, block)) {
                images[damaged].bytes[(block + rng.below(4096)) as usize] ^= 1 << rng.below(8);
            }
        }
        let left = without(&images, &slots, &mut rng);
        live += check_all(&left).groups[0].log.live_record_count;
        let (read, report) = extract(&left, "all", true).unwrap();
        healed += report.damaged_count;
        let what = format!("seed {seed}, {shape}, {safety:?}, slot {damaged} damaged, without {slots:?}");
        may_be(&history.borrow(), &slots, &read, &report).unwrap_or_else(|violation| panic!("{what}: {violation:?}"));
    }
    println!("{live} live records, {healed} damaged blocks healed");
    assert!(live > 0 && healed > 0, "{live} records, {healed} blocks: nothing was tried");
}

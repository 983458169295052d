//! The power fails, and members are lost in the same moment: the log is read in memory.

use format::{Catalogue, CrashSafety, ExtentRecord, VolumeKind, VolumeRecord};
use sim::Sim;
use sim::engine::history::{History, Loss, work_for_a_crash};
use sim::engine::{Group, KIB, every_level, new_drives, seeds};

use crate::image::*;

/// One volume over all of the group.
fn whole(size_bytes: u64) -> Catalogue {
    let extents = vec![ExtentRecord { start_byte: 0, len_bytes: size_bytes }];
    let name = "all".to_owned();
    let volume = VolumeRecord { id: 1, name, kind: VolumeKind::Direct, size_bytes, created_unix_s: 1, extents };
    Catalogue { next_id: 2, volumes: vec![volume], exports: Vec::new() }
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
        let group = Group::create_with(&sim, shape, safety, drives, 1 + rng.index(2));
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
        // Without a log nothing is promised of a crash together with a loss.
        slots.truncate(if safety == CrashSafety::Off { 0 } else { rng.index(shape.survives() + 1) });
        let left = without(&images, &slots, &mut rng);
        live += check_all(&left).groups[0].log.live_record_count;
        let (read, report) = extract(&left, "all", true).unwrap();
        let losses: Vec<Loss> = slots.iter().map(|&slot| Loss::in_power_cut(slot)).collect();
        let history = history.borrow();
        let block = history.block_bytes();
        for at in (0..read.len() as u64).step_by(block as usize) {
            let is_lost = |range: &rescue::LostRange| {
                range.offset_bytes < at + block && at < range.offset_bytes + range.len_bytes
            };
            let verdict = match report.lost.iter().any(is_lost) {
                true => history.check_unreadable(at, &losses),
                false => history.check(at, &read[at as usize..(at + block) as usize]),
            };
            verdict.unwrap_or_else(|violation| panic!("seed {seed}, {shape} without {slots:?}: {violation:?}"));
        }
        lost_bytes += report.lost_bytes;
        runs += 1;
    }
    println!("{runs} crashes, {live} live records, {lost_bytes} bytes lost");
    assert!(live > 0 || runs < 100, "no crash left a record to mind: the log was not tried");
}

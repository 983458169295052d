//! A scrub is paused, resumed, and continued after a crash: everything is compared, and each
//! finding is counted once.

use std::time::Duration;

use array::{Event, JobState, JobStatus, MemberIndex, ScrubMode, ScrubProgress};
use drive::{Buf, Env};
use format::{Catalogue, Features, Level, SettingsRecord, Shape};
use sim::{Rng, Sim};

use crate::group::*;

const MEMBER: u64 = 2560 * KIB;

/// A group that is full, with `rotten` blocks of one member damaged.
fn filled(sim: &Sim, shape: Shape, rotten: usize) -> (Group, Model) {
    let mut rng = sim.rng();
    let group = Group::create(sim, shape, new_drives(sim, usize::from(shape.members), MEMBER, 512), 2);
    let mut model = Model::new(group.size());
    rng.fill(&mut model.bytes);
    sim.block_on(async {
        group.leader().write(0, Buf::from(model.bytes.clone()), false).await.expect("writable");
        group.leader().flush().await.expect("durable");
    });
    let geometry = group.leader().shared().geometry.clone();
    let blocks = geometry.bands * geometry.stripe_group_bytes / 4096;
    let member = rng.index(group.drives.len());
    for index in 0..rotten as u64 {
        group.drives[member].corrupt(geometry.data_start + index * blocks / rotten as u64 * 4096, 512);
    }
    (group, model)
}

fn job(group: &Group) -> JobStatus {
    group.leader().status().jobs.pop().expect("there was a scrub")
}

async fn a_while(group: &Group, rng: &mut Rng) {
    group.env.sleep(Duration::from_micros(50 + rng.below(300))).await;
}

/// Waits until work that was in flight at the pause has been noted.
async fn settle(group: &Group) {
    group.env.sleep(Duration::from_secs(1)).await;
}

#[test]
fn a_paused_scrub_rests_and_then_compares_the_rest_and_nothing_twice() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, _) = filled(&sim, shape(Level::Raid6, 6, 4 * KIB), 5);
        let whole = sim.block_on(async {
            assert!(group.leader().start_scrub(ScrubMode::Report));
            group.jobs_end().await;
            job(&group)
        });
        assert_eq!((whole.found, &whole.state), (5, &JobState::Done));
        sim.block_on(async {
            assert!(!group.leader().pause_scrub() && !group.leader().resume_scrub(), "there is none");
            assert!(group.leader().start_scrub(ScrubMode::Report));
            let mut rests = 0;
            loop {
                a_while(&group, &mut rng).await;
                if !group.leader().pause_scrub() {
                    break;
                }
                rests += 1;
                assert!(!group.leader().pause_scrub(), "it is paused already");
                if rng.chance(1, 2) {
                    settle(&group).await;
                    if job(&group).ended.is_some() {
                        break; // All that was left was in flight.
                    }
                    let at = (job(&group).done_bytes, group.leader().scrub_progress());
                    group.take_counts();
                    settle(&group).await;
                    assert_eq!((job(&group).done_bytes, group.leader().scrub_progress()), at, "a paused one moved");
                    assert_eq!(group.take_counts().reads, 0, "a paused scrub reads nothing");
                    assert_eq!((job(&group).state, job(&group).bytes_per_s), (JobState::Paused, 0));
                    assert!(!group.leader().start_scrub(ScrubMode::Repair), "the paused one has the place");
                }
                assert!(group.leader().resume_scrub());
                assert!(!group.leader().resume_scrub(), "it is at work");
            }
            group.jobs_end().await;
            assert!(rests > 1, "it was never interrupted");
            let job = job(&group);
            assert_eq!((&job.state, job.found, job.done_bytes), (&JobState::Done, 5, whole.done_bytes));
            assert_eq!(job.findings, whole.findings);
            let ended = Event::ScrubFinished { found: 5, repaired: 0 };
            assert_eq!(group.events.borrow().iter().filter(|event| **event == ended).count(), 2, "once each");
        });
    }
}

#[test]
fn a_paused_scrub_can_be_stopped_and_makes_room_for_another_one() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let (group, _) = filled(&sim, shape(Level::Raid6, 6, 4 * KIB), 1);
    sim.block_on(async {
        for wait in [false, true] {
            assert!(group.leader().start_scrub(ScrubMode::Report));
            a_while(&group, &mut rng).await;
            assert!(group.leader().pause_scrub());
            if wait {
                settle(&group).await;
            }
            assert!(group.leader().stop_scrub());
            group.jobs_end().await;
            assert_eq!(job(&group).state, JobState::Stopped);
            assert_eq!(group.leader().scrub_progress(), None);
        }
        assert!(group.leader().start_scrub(ScrubMode::Repair));
        group.jobs_end().await;
        assert_eq!((job(&group).found, job(&group).repaired), (1, 1));
    });
}

#[test]
fn a_scrub_is_taken_up_after_a_crash_where_it_was_noted() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes =
            [shape(Level::Raid6, 6, 4 * KIB), shape(Level::Raid60, 8, 4 * KIB), shape(Level::Raid6, 5, 16 * KIB)];
        let (group, model) = filled(&sim, *rng.pick(&shapes), 6);
        let paused = rng.chance(1, 2);
        let progress: ScrubProgress = sim.block_on(async {
            assert!(group.leader().start_scrub(ScrubMode::Repair));
            a_while(&group, &mut rng).await;
            if paused {
                group.leader().pause_scrub();
                settle(&group).await;
            }
            let progress = group.leader().scrub_progress().expect("it takes longer than that");
            // The caller that stores the progress flushes earlier repairs first.
            group.leader().flush().await.expect("durable");
            progress
        });
        let group = group.power_cut(&sim);
        sim.block_on(async {
            assert!(group.leader().continue_scrub(&progress));
            assert!(!group.leader().continue_scrub(&progress), "one at a time");
            if paused {
                settle(&group).await;
                assert_eq!(group.leader().scrub_progress(), Some(progress), "it waits to be resumed");
                assert!(group.leader().resume_scrub());
            }
            group.jobs_end().await;
            let job = job(&group);
            assert_eq!(job.state, JobState::Done);
            // Repairs after the progress was noted are not found again. Data before that point is
            // not compared again.
            assert!(job.found >= progress.found && job.found <= 6, "{progress:?} {job:?}");
            if paused {
                assert_eq!((job.found, job.repaired), (6, 6), "nothing was in flight at the note");
            }
            assert_eq!(group.differences().await, 0);
            verify(&group, &model, &mut rng).await;
        });
    }
}

#[test]
fn a_scrub_that_was_through_ends_at_once_when_it_is_taken_up() {
    let sim = Sim::new(3);
    let (group, _) = filled(&sim, shape(Level::Raid60, 8, 4 * KIB), 2);
    let through = ScrubProgress {
        mode: ScrubMode::Report,
        paused: false,
        next_byte: group.size(),
        done_bytes: 77,
        found: 3,
        repaired: 0,
        unchecked: 1,
    };
    sim.block_on(async {
        assert!(group.leader().continue_scrub(&through));
        group.jobs_end().await;
        let job = job(&group);
        assert_eq!((job.state, job.found, job.unchecked, job.done_bytes), (JobState::Done, 3, 1, 77));
    });
}

#[test]
fn a_paused_scrub_does_not_keep_a_resync_waiting() {
    let sim = Sim::new(5);
    let mut rng = sim.rng();
    let (group, _) = filled(&sim, shape(Level::Raid5, 4, 4 * KIB), 0);
    sim.block_on(async {
        assert!(group.leader().start_scrub(ScrubMode::Report));
        a_while(&group, &mut rng).await;
        assert!(group.leader().pause_scrub());
        settle(&group).await;
        assert!(group.leader().start_scrub(ScrubMode::Resync));
        assert!(!group.leader().resume_scrub(), "not beside a resync");
        while group.leader().status().jobs.iter().any(|job| job.state == JobState::Running) {
            settle(&group).await;
        }
        assert!(group.leader().resume_scrub());
        group.jobs_end().await;
    });
}

/// A program that knows only version 1 of the catalogue must not meet version 2: it would take an
/// older copy.
#[test]
fn the_superblocks_announce_a_catalogue_of_version_2_before_it_is_written() {
    for cut_after in 0..40 {
        let sim = Sim::new(cut_after);
        let (group, _) = filled(&sim, shape(Level::Raid1, 2, 64 * KIB), 0);
        let settings = SettingsRecord { retire_slow: true, ..SettingsRecord::default() };
        let catalogue = Catalogue { settings, ..Catalogue::default() };
        let array = group.leader().clone();
        let wanted = catalogue.clone();
        group.env.spawn(async move { array.set_catalogue(wanted).await.expect("writable") });
        sim.block_on(group.env.sleep(Duration::from_micros(cut_after * 20)));
        let group = group.power_cut(&sim);
        let knows = |drive| superblock(drive).features.incompatible & Features::CATALOGUE_2 != 0;
        if group.leader().catalogue() == catalogue {
            assert!(group.drives.iter().all(knows), "cut after {cut_after}");
        } else {
            assert_eq!(group.leader().catalogue(), Catalogue::default());
        }
        sim.block_on(group.leader().fail_member(MemberIndex(1))).expect("one may be lost");
        assert_eq!(knows(&group.drives[0]), group.leader().status().superblock.features.incompatible & 4 != 0);
    }
}

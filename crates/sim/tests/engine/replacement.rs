//! A working member is copied to another drive, and the group has its full redundancy all the time.

use std::cell::Cell;
use std::time::Duration;

use array::{Cause, DriveId, Event, JobKind, JobState, JoinError, MemberIndex};
use drive::{Buf, DriveError, Env};
use format::{CrashSafety, Level, MemberState, Shape};
use sim::program::execute::execute;
use sim::program::{Ask, CrashKind, Pace, Program, Remote, Setup, Step};
use sim::{Latency, OpKind, Phase, Rng, Sim, SimDrive, TraceEntry};

use crate::group::*;
use crate::history::Request;
use crate::rebuild::{until_in_sync, verify_with_others_lost};

const MEMBER: MemberIndex = MemberIndex(1);

/// A group with some data, and a drive for it that takes `nanos` for each operation.
fn group_and_drive(sim: &Sim, rng: &mut Rng, shape: Shape, nanos: u64) -> (Group, Model, DriveId) {
    let bytes =
        196 * KIB + rng.range(3..13) * u64::from(shape.strip_bytes).max(128 * KIB / shape.data_per_set() as u64);
    let bytes = bytes / 4096 * 4096;
    let drives = new_drives(sim, usize::from(shape.members), bytes, 512);
    let mut group = Group::create(sim, shape, drives, 1 + rng.index(3));
    let mut model = Model::new(group.size());
    let new = SimDrive::new(&sim.env(), "new", bytes, 512);
    new.set_latency(Latency::between(nanos / 2, nanos));
    let id = group.install(new);
    let rounds = 1 + rng.index(8);
    sim.block_on(work(&group, &mut model, rng, rounds, 3));
    (group, model, id)
}

async fn begin(group: &Group, id: DriveId, rng: &mut Rng) {
    group.leader().replace(MEMBER, id, uuid(rng)).await.expect("the drive fits");
}

fn is_replaced(group: &Group, id: DriveId) -> bool {
    let slot = group.leader().shared().slot(MEMBER);
    (slot.drive, slot.state) == (id, MemberState::InSync)
}

fn shapes() -> [Shape; 8] {
    [
        shape(Level::Raid0, 3, 4 * KIB),
        shape(Level::Raid5, 3, 4 * KIB),
        shape(Level::Raid6, 4, 4 * KIB),
        shape(Level::Raid1, 2, 64 * KIB),
        shape(Level::Raid10, 4, 4 * KIB),
        shape(Level::Raid5, 4, 128 * KIB),
        valid(Shape::of(Level::Nm, 6).parity(4), 4 * KIB),
        shape(Level::Raid50, 6, 64 * KIB),
    ]
}

#[test]
fn first_writes_discards_and_rewrites_race_a_copy() {
    for seed in seeds(400) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (shape, nanos) = (*rng.pick(&shapes()), *rng.pick(&[2_000, 100_000, 2_000_000]));
        let (group, mut model, id) = group_and_drive(&sim, &mut rng, shape, nanos);
        sim.block_on(async {
            let mut forks = (rng.fork(), rng.fork());
            let rounds = 1 + rng.index(40);
            let replace = async {
                group.env.sleep(Duration::from_nanos(forks.0.below(400_000))).await;
                begin(&group, id, &mut forks.0).await;
                group.jobs_end().await;
            };
            both(replace, work(&group, &mut model, &mut forks.1, rounds, 4)).await;
            assert!(is_replaced(&group, id), "{:?}", group.events.borrow());
            assert!(group.events.borrow().contains(&Event::Replaced { member: MEMBER, drive: id }));
            // The old drive is not needed any more.
            group.drives[1].fail();
            work(&group, &mut model, &mut rng, 3, 4).await;
            assert!(group.all_in_sync());
            verify_with_others_lost(&group, &model, &mut rng, &[1]).await;
        });
    }
}

/// Without a log a write does not wait for the switch. Here most of them are planned with the old
/// drive, read for a while, and write when the new drive has the slot.
#[test]
fn writes_that_were_planned_before_the_switch_reach_the_new_drive() {
    for seed in seeds(25) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let drives = new_drives(&sim, 4, MIB, 512);
        let raid5 = shape(Level::Raid5, 4, 4 * KIB);
        let mut group = Group::create_with(&sim, raid5, Protection::plain(CrashSafety::Off), drives, 2);
        let mut model = Model::new(group.size());
        let new = SimDrive::new(&sim.env(), "new", MIB, 512);
        let id = group.install(new);
        sim.block_on(work(&group, &mut model, &mut rng, 4, 3));
        group.drives.iter().for_each(|drive| drive.set_latency(Latency::between(10_000, 1_000_000)));
        sim.block_on(async {
            let (mut forks, ended) = ((rng.fork(), rng.fork()), Cell::new(false));
            let replace = async {
                begin(&group, id, &mut forks.0).await;
                group.jobs_end().await;
                ended.set(true);
            };
            let load = async {
                while !ended.get() {
                    work(&group, &mut model, &mut forks.1, 1, 12).await;
                }
            };
            both(replace, load).await;
            assert!(is_replaced(&group, id), "{:?}", group.events.borrow());
            verify_with_others_lost(&group, &model, &mut rng, &[1]).await;
        });
    }
}

#[test]
fn as_many_others_may_fail_during_the_copy_as_the_level_survives() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&shapes()[1..]);
        let (group, mut model, id) = group_and_drive(&sim, &mut rng, shape, 20_000_000);
        sim.block_on(async {
            begin(&group, id, &mut rng).await;
            work(&group, &mut model, &mut rng, 1, 2).await;
            verify_with_others_lost(&group, &model, &mut rng, &[1]).await;
            work(&group, &mut model, &mut rng, 3, 2).await;
            group.jobs_end().await;
            assert!(is_replaced(&group, id), "{:?}", group.events.borrow());
            group.drives[1].fail();
            verify(&group, &model, &mut rng).await;
        });
    }
}

#[test]
fn a_new_drive_that_fails_is_dropped_and_costs_nothing() {
    for seed in seeds(120) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&shapes());
        let (group, mut model, id) = group_and_drive(&sim, &mut rng, shape, 100_000);
        let new = &group.drives[usize::from(id.0)];
        sim.block_on(async {
            begin(&group, id, &mut rng).await;
            match rng.below(3) {
                0 => new.fail_after(rng.below(60)),
                1 => new.mute_after(rng.below(60)),
                _ => {
                    group.env.sleep(Duration::from_nanos(rng.below(4_000_000))).await;
                    let kind = *rng.pick(&[OpKind::Write, OpKind::Flush]);
                    let error = DriveError::Os { operation: "simulated", errno: 5 };
                    new.error_next(kind, error.clone());
                    new.error_next(kind, error);
                }
            }
            let rounds = 1 + rng.index(20);
            work(&group, &mut model, &mut rng, rounds, 4).await;
            group.jobs_end().await;
            // Either may come first. On the new drive the fault may have come after the switch.
            until_settled(&group).await;
            let dropped = group.events.borrow().iter().any(|event| matches!(event, Event::ReplaceStopped { .. }));
            if dropped {
                assert!(group.all_in_sync(), "{:?}", group.events.borrow());
                assert_eq!(group.leader().shared().slot(MEMBER).drive, DriveId(1));
                assert_eq!((group.leader().status().spares, group.leader().status().replacement), (Vec::new(), None));
                assert_eq!(group.leader().shared().errors(MEMBER), array::MemberErrors::default());
                verify_with_others_lost(&group, &model, &mut rng, &[]).await;
            } else if shape.survives() > 0 {
                verify(&group, &model, &mut rng).await;
            }
        });
    }
}

/// Waits for an operation on every drive, so that a drive that never answers is noticed.
async fn until_settled(group: &Group) {
    let _ = group.leader().flush().await;
}

#[test]
fn a_member_that_fails_during_the_copy_leaves_only_the_rest_to_be_rebuilt() {
    let mut less = 0;
    for seed in seeds(300) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&shapes()[1..]);
        let (group, mut model, id) = group_and_drive(&sim, &mut rng, shape, 1_000_000);
        sim.block_on(async {
            begin(&group, id, &mut rng).await;
            let total = group.leader().status().jobs.last().expect("a copy is under way").total_bytes;
            let mut forks = (rng.fork(), rng.fork());
            let rounds = rng.index(10);
            let failing = async {
                group.env.sleep(Duration::from_nanos(forks.0.below(30_000_000))).await;
                group.drives[1].fail();
            };
            both(failing, work(&group, &mut model, &mut forks.1, rounds, 3)).await;
            work(&group, &mut model, &mut rng, 2, 3).await;
            group.leader().flush().await.expect("one member may be lost");
            group.jobs_end().await;
            until_in_sync(&group).await;
            assert!(is_replaced(&group, id), "{:?}", group.events.borrow());
            let missed = group.events.borrow().iter().find_map(|event| match event {
                Event::RebuildStarted { dirty_bytes, .. } => Some(dirty_bytes.expect("what it missed is known")),
                _ => None,
            });
            less += u32::from(missed.is_some_and(|missed| missed < total));
            verify_with_others_lost(&group, &model, &mut rng, &[1]).await;
        });
    }
    assert!(less > 0, "what had been copied is never copied again");
}

#[test]
fn a_copy_is_a_job_and_one_at_a_time() {
    let sim = Sim::new(7);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 5, 4 * KIB);
    let (mut group, model, id) = group_and_drive(&sim, &mut rng, shape, 1_000_000);
    let other = group.install(SimDrive::new(&sim.env(), "other", 4 * MIB, 512));
    sim.block_on(async {
        begin(&group, id, &mut rng).await;
        let status = group.leader().status();
        assert_eq!((status.spares, status.replacement), (vec![id], Some((MEMBER, id))));
        let job = status.jobs.last().expect("a job is shown");
        assert_eq!((job.kind, &job.state), (JobKind::Replace(MEMBER), &JobState::Running));
        let second = group.leader().replace(MemberIndex(2), other, uuid(&mut rng)).await;
        assert_eq!(second, Err(JoinError::Replacing(1)));
        group.jobs_end().await;
        let events = group.events.borrow().clone();
        let [started, replaced] =
            [Event::ReplaceStarted { member: MEMBER, drive: id }, Event::Replaced { member: MEMBER, drive: id }];
        assert_eq!(events, [started, replaced]);
        let job = group.leader().status().jobs.pop().expect("the last one is shown");
        assert_eq!((job.kind, job.state), (JobKind::Replace(MEMBER), JobState::Done));
        assert!(job.done_bytes > 0 && job.done_bytes == job.total_bytes);
        assert_eq!((group.leader().status().spares, group.leader().status().replacement), (Vec::new(), None));
        verify_with_others_lost(&group, &model, &mut rng, &[1]).await;
    });
}

#[test]
fn an_operator_stops_a_copy_by_removing_the_new_drive() {
    let sim = Sim::new(8);
    let mut rng = sim.rng();
    let (group, model, id) = group_and_drive(&sim, &mut rng, shape(Level::Raid5, 4, 4 * KIB), 1_000_000);
    sim.block_on(async {
        begin(&group, id, &mut rng).await;
        group.leader().remove_spare(id).await.expect("it is one of the spares");
        group.jobs_end().await;
        assert!(group.all_in_sync() && !is_replaced(&group, id));
        let reason = "the new drive left the group".to_owned();
        let stopped = Event::ReplaceStopped { member: MEMBER, drive: id, reason };
        assert_eq!(group.events.borrow().last(), Some(&stopped));
        verify_with_others_lost(&group, &model, &mut rng, &[]).await;
    });
}

#[test]
fn strips_that_the_member_cannot_give_are_computed_from_the_others() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&shapes()[1..]);
        let (group, model, id) = group_and_drive(&sim, &mut rng, shape, 10_000);
        let geometry = &group.leader().shared().geometry;
        let (start, len) = (geometry.data_start, geometry.bands * geometry.stripe_group_bytes);
        group.drives[1].media_error(start..start + len);
        sim.block_on(async {
            begin(&group, id, &mut rng).await;
            group.jobs_end().await;
            assert!(is_replaced(&group, id), "{:?}", group.events.borrow());
            verify_with_others_lost(&group, &model, &mut rng, &[1]).await;
        });
    }
}

#[test]
fn a_rebuild_goes_before_a_copy() {
    let sim = Sim::new(9);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 5, 4 * KIB);
    let (mut group, model, id) = group_and_drive(&sim, &mut rng, shape, 5_000_000);
    let spare = group.install(SimDrive::new(&sim.env(), "spare", 4 * MIB, 512));
    sim.block_on(async {
        begin(&group, id, &mut rng).await;
        group.leader().fail_member(MemberIndex(3)).await.expect("two may be lost");
        group.leader().add_spare(spare, uuid(&mut rng)).await.expect("the drive fits");
        group.jobs_end().await;
        until_in_sync(&group).await;
        group.jobs_end().await;
        let events = group.events.borrow().clone();
        let place = |wanted: &Event| events.iter().position(|event| event == wanted).expect("it has happened");
        let rebuilt = Event::RebuildFinished { member: MemberIndex(3), drive: spare };
        assert!(place(&rebuilt) < place(&Event::Replaced { member: MEMBER, drive: id }), "{events:?}");
        verify_with_others_lost(&group, &model, &mut rng, &[1, 3]).await;
    });
}

#[test]
fn the_new_drive_of_one_member_is_no_spare_for_another() {
    let sim = Sim::new(10);
    let mut rng = sim.rng();
    let (group, model, id) = group_and_drive(&sim, &mut rng, shape(Level::Raid6, 5, 4 * KIB), 5_000_000);
    sim.block_on(async {
        begin(&group, id, &mut rng).await;
        group.leader().fail_member(MemberIndex(3)).await.expect("two may be lost");
        group.jobs_end().await;
        assert!(is_replaced(&group, id), "{:?}", group.events.borrow());
        assert_eq!(group.state(3), MemberState::Faulty);
        let cause = Cause::Operator;
        let failed = Event::MemberFailed { member: MemberIndex(3), drive: DriveId(3), cause };
        assert!(group.events.borrow().contains(&failed));
        verify(&group, &model, &mut rng).await;
    });
}

/// Writes while member 1 is copied to a new drive: some for the first time, some over existing
/// data, and flushed.
fn copied_under_load(seed: u64, level: (Level, u16), safety: CrashSafety, crash: Step) -> Program {
    let setup = Setup {
        shape: shape(level.0, level.1, 8 * KIB),
        protection: Protection { safety, checksums: seed.is_multiple_of(2) },
        sector_bytes: 512,
        drive_bytes: 512 * KIB,
        shards: 1 + (seed % 2) as usize,
        pace: Pace::Usual,
        buggify: seed % 4 >= 2,
        in_pieces: false,
        remote: Remote::default(),
    };
    let write = |start: u64, len: u64, pause_us| Ask {
        request: Request::Write { fua: start.is_multiple_of(3) },
        start,
        len,
        shard: 0,
        pause_us,
    };
    let flush = |pause_us| Ask { request: Request::Flush, start: 0, len: 0, shard: 1, pause_us };
    let first = Step::Work(vec![write(0, 24 * KIB, 0), write(40 * KIB, 8 * KIB, 0), write(100 * KIB, 50 * KIB, 0)]);
    let load = |shift: u64| {
        let again = vec![write(2 * KIB + shift, 6 * KIB, 0), write(44 * KIB + shift, 512, 20), flush(60 + shift / 512)];
        let new = vec![write(60 * KIB + 2 * shift, 3 * KIB, 10), write(120 * KIB, 24 * KIB, 100), flush(300)];
        Step::Work(again.into_iter().chain(new).collect())
    };
    let mut steps = vec![first, Step::Settle, Step::Exchange { member: 1 }, crash];
    steps.extend((0..8).map(|round| load(round * 512)));
    steps.extend([Step::Settle, Step::Verify]);
    Program { seed, setup, steps }
}

#[test]
fn a_crash_at_any_operation_of_a_copy_costs_nothing_that_was_promised() {
    let levels = [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid1, 2), (Level::Raid0, 3)];
    let (mut seed, mut crashes) = (0, 0);
    for kind in [CrashKind::PowerCut, CrashKind::Kill] {
        for level in levels {
            for safety in [CrashSafety::On, CrashSafety::Strict, CrashSafety::Off] {
                for after in (0..420).step_by(if level.0 == Level::Raid5 { 1 } else { 4 }) {
                    seed += 1;
                    let crash = Step::Crash { kind, after, lost: Vec::new(), again: Vec::new() };
                    crashes += execute(&copied_under_load(seed, level, safety, crash), false).crashes;
                }
            }
        }
    }
    assert!(crashes > 2000, "{crashes} crashes");
}

#[test]
fn a_crash_that_takes_another_member_with_it_finds_the_redundancy_whole() {
    for after in 0..420 {
        let crash = Step::Crash { kind: CrashKind::PowerCut, after, lost: vec![2], again: vec![after / 3] };
        execute(&copied_under_load(after, (Level::Raid5, 4), CrashSafety::On, crash), false);
    }
}

#[test]
fn a_small_write_costs_one_more_operation_while_its_member_is_copied() {
    let sim = Sim::new(11);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 6, 64 * KIB);
    let plain = Protection::plain(CrashSafety::Off);
    let mut group = Group::create_with(&sim, shape, plain, new_drives(&sim, 6, 4 * MIB, 512), 1);
    let new = SimDrive::new(&sim.env(), "new", 4 * MIB, 512);
    new.set_latency(Latency::between(5_000_000, 5_000_000));
    let id = group.install(new);
    sim.block_on(async {
        let array = group.leader();
        let geometry = &array.shared().geometry;
        let place = (0..geometry.data as u64).map(|strip| geometry.place(strip * 64 * KIB));
        let mut mine = place.filter(|place| geometry.member(place.stripe_group, place.offset, place.role) == MEMBER);
        let place = mine.next().expect("member 1 has data in the first stripe");
        let at = geometry.offset(place.stripe_group, place.role, place.offset);
        let offset = geometry.drive_offset(place.stripe_group, place.offset);
        let write = async || array.write(at, Buf::from(vec![1; 4096]), false).await.expect("writable");
        write().await;
        begin(&group, id, &mut rng).await;
        sim.trace_start();
        write().await;
        let is_it = |entry: &TraceEntry| {
            (entry.phase, entry.kind, entry.len) == (Phase::Done, OpKind::Write, 4096) && entry.offset == offset
        };
        let drives: Vec<u32> =
            sim.trace_take().iter().filter(|entry| is_it(entry)).map(|entry| entry.drive_index).collect();
        let index = |id: u16| group.drives[usize::from(id)].index();
        // P and Q are at the same offset of their members.
        assert_eq!(drives.len(), 4, "{drives:?}");
        assert!(drives.contains(&index(MEMBER.0)) && drives.contains(&index(id.0)), "{drives:?}");
        group.jobs_end().await;
    });
}

//! Events tell what happened to which drive, and why: an operator who has to replace a drive needs
//! to know its errors.

use std::time::Duration;

use array::{Cause, DriveId, Event, Failure, Flaw, MemberIndex, Operation, ScrubMode, StripeGroup};
use drive::{Buf, BufMut, Drive, DriveError, Env};
use format::{Level, MemberState, superblock_offsets};
use sim::{OpKind, Sim, SimDrive};

use crate::group::*;

const BLOCK: u64 = 4096;

const EIO: DriveError = DriveError::Os { operation: "it", errno: 5 };

/// A RAID 6 with all of its data written and flushed.
fn filled(sim: &Sim, spares: usize, shards: usize) -> (Group, Vec<u8>) {
    let shape = shape(Level::Raid6, 5, 16 * KIB);
    let group = Group::create(sim, shape, new_drives(sim, 5 + spares, 640 * KIB, 4096), shards);
    let mut bytes = vec![0; group.size() as usize];
    sim.rng().fill(&mut bytes);
    sim.block_on(async {
        group.leader().write(0, Buf::from(bytes.clone()), false).await.expect("writable");
        group.leader().flush().await.expect("flushes");
    });
    group.events.borrow_mut().clear();
    (group, bytes)
}

/// The member of a data strip's first block, and the block's place on its drive: stripe group 0,
/// strip `role`, member offset 0.
fn place(group: &Group, role: usize) -> (MemberIndex, DriveId, u64) {
    let geometry = &group.leader().shared().geometry;
    let member = geometry.member(StripeGroup(0), 0, role);
    (member, DriveId(member.0), geometry.drive_offset(StripeGroup(0), 0))
}

fn at(operation: Operation, offset: u64, error: DriveError) -> Failure {
    Failure { operation, offset: Some(offset), error }
}

/// The events, after all of them have arrived.
fn told(sim: &Sim, group: &Group) -> Vec<Event> {
    sim.run_for(Duration::from_millis(1));
    group.events.take()
}

#[test]
fn a_member_that_fails_an_operation_twice_leaves_with_what_it_was_and_where_and_the_error() {
    for shards in 1..4 {
        // A write, at its byte.
        let sim = Sim::new(shards);
        let (group, _) = filled(&sim, 0, shards as usize);
        let (member, drive, offset) = place(&group, 1);
        (0..2).for_each(|_| group.drives[usize::from(drive.0)].error_next(OpKind::Write, EIO));
        let group_offset = group.leader().shared().geometry.offset(StripeGroup(0), 1, 0);
        sim.block_on(group.leader().write(group_offset, Buf::from(vec![1; 4096]), false)).expect("the others take it");
        let failure = at(Operation::Write, offset, EIO);
        let retried = Event::Retried { member, drive, failure: failure.clone() };
        let failed = Event::MemberFailed { member, drive, cause: Cause::WarmFailing(failure) };
        assert_eq!(told(&sim, &group), [retried, failed]);

        // A read.
        let sim = Sim::new(shards);
        let (group, bytes) = filled(&sim, 0, shards as usize);
        let (member, drive, offset) = place(&group, 1);
        let group_offset = group.leader().shared().geometry.offset(StripeGroup(0), 1, 0);
        (0..3).for_each(|_| group.drives[usize::from(drive.0)].error_next(OpKind::Read, EIO));
        let read = sim.block_on(group.leader().read(group_offset, BufMut::zeroed(4096))).expect("the others have it");
        same(&read, &bytes[group_offset as usize..group_offset as usize + 4096], group_offset);
        let failure = at(Operation::Read, offset, EIO);
        let retried = Event::Retried { member, drive, failure: failure.clone() };
        let failed = Event::MemberFailed { member, drive, cause: Cause::WarmFailing(failure) };
        // Once by the owner, once where the request arrived.
        assert_eq!(told(&sim, &group), [retried.clone(), retried, failed]);

        // A flush.
        let sim = Sim::new(shards);
        let (group, _) = filled(&sim, 0, shards as usize);
        (0..2).for_each(|_| group.drives[3].error_next(OpKind::Flush, EIO));
        sim.block_on(group.leader().flush()).expect("the others flush");
        let (member, drive) = (MemberIndex(3), DriveId(3));
        let failure = Failure { operation: Operation::Flush, offset: None, error: EIO };
        let retried = Event::Retried { member, drive, failure: failure.clone() };
        let failed = Event::MemberFailed { member, drive, cause: Cause::WarmFailing(failure) };
        assert_eq!(told(&sim, &group), [retried, failed]);
    }
}

#[test]
fn a_member_that_does_not_take_its_superblock_leaves_with_the_byte_of_the_copy() {
    let sim = Sim::new(1);
    let (group, _) = filled(&sim, 0, 1);
    let drives = sim.block_on(group.stop());
    let group = Group::open(&sim, drives, 1);
    (0..2).for_each(|_| group.drives[2].error_next(OpKind::Write, EIO));
    // The group marks the superblocks dirty before the first write.
    sim.block_on(group.leader().write(0, Buf::from(vec![1; 4096]), false)).expect("writable");
    let [_, tail] = superblock_offsets(group.drives[2].info().size_bytes).unwrap();
    let cause = Cause::WarmFailing(at(Operation::Write, tail, EIO));
    assert_eq!(told(&sim, &group), [Event::MemberFailed { member: MemberIndex(2), drive: DriveId(2), cause }]);
}

#[test]
fn a_member_that_is_gone_leaves_without_a_retry() {
    let sim = Sim::new(1);
    let (group, _) = filled(&sim, 0, 2);
    group.drives[0].fail();
    sim.block_on(group.leader().flush()).expect("the others flush");
    let failure = Failure { operation: Operation::Flush, offset: None, error: DriveError::Gone };
    let (member, drive) = (MemberIndex(0), DriveId(0));
    assert_eq!(told(&sim, &group), [Event::MemberFailed { member, drive, cause: Cause::Failed(failure) }]);
}

#[test]
fn who_took_a_member_out_is_told() {
    let sim = Sim::new(1);
    let (group, _) = filled(&sim, 0, 1);
    let (zero, one, two) = (MemberIndex(0), MemberIndex(1), MemberIndex(2));
    sim.block_on(async {
        group.leader().fail_member(zero).await.expect("two may be lost");
        group.leader().fail_member_on(one, DriveId(1), Cause::Pulled).await.expect("two may be lost");
        group.leader().fail_member_on(two, DriveId(2), Cause::OutOfReach).await.expect_err("no third");
    });
    let expected = [
        Event::MemberFailed { member: zero, drive: DriveId(0), cause: Cause::Operator },
        Event::MemberFailed { member: one, drive: DriveId(1), cause: Cause::Pulled },
        Event::MemberNeeded { member: two, drive: DriveId(2), cause: Cause::OutOfReach },
    ];
    assert_eq!(told(&sim, &group), expected);
}

#[test]
fn a_silent_member_leaves_as_one_whatever_ends_because_of_that() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let (mut group, _) = filled(&sim, 0, 1 + seed as usize % 3);
        if seed % 2 == 0 {
            // The first operation that it does not answer is on its superblock, with the state of
            // the group locked.
            let drives = sim.block_on(group.stop());
            group = Group::open(&sim, drives, 1 + seed as usize % 3);
        }
        group.drives[1].hang(true);
        let (array, size) = (group.leader().clone(), group.size());
        group.env.spawn(async move {
            let bytes = Buf::from(vec![1; size as usize]);
            array.write(0, bytes, false).await.expect("the others take it");
            array.flush().await.expect("the others flush");
        });
        sim.run_for(Duration::from_secs(100));
        let (member, drive, cause) = (MemberIndex(1), DriveId(1), Cause::Silent { seconds: 30 });
        assert_eq!(told(&sim, &group), [Event::MemberFailed { member, drive, cause }], "seed {seed}");
    }
}

#[test]
fn a_member_that_fails_while_a_crash_is_put_right_leaves_because_of_that() {
    let mut seen = 0;
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let (group, _) = filled(&sim, 0, 1);
        sim.stop_after(seed % 20);
        let stripe = group.leader().shared().geometry.stripe_data_bytes();
        let write = async {
            for at in (0..4 * stripe).step_by(stripe as usize) {
                let _ = group.leader().write(at, Buf::from(vec![1; stripe as usize]), false).await;
            }
        };
        sim.try_block_on(write);
        let drives = group.cut(&sim);
        drives[1].fail_after(8 + seed % 12);
        let Ok(group) = sim.block_on(Group::try_open(sim.env(), drives, 1)) else { continue };
        let events = told(&sim, &group);
        let (member, drive) = (MemberIndex(1), DriveId(1));
        seen += u64::from(events.contains(&Event::MemberFailed { member, drive, cause: Cause::Recovery }));
    }
    assert!(seen > 0, "no drive failed during a recovery: the test is blind");
}

#[test]
fn a_spare_that_fails_is_told_with_what_it_was() {
    let sim = Sim::new(1);
    let (group, _) = filled(&sim, 2, 1);
    group.drives[5].fail();
    sim.block_on(async {
        group.leader().fail_member(MemberIndex(0)).await.expect("two may be lost");
        group.jobs_end().await;
        while !group.all_in_sync() {
            group.env.sleep(Duration::from_millis(1)).await;
        }
    });
    let events = told(&sim, &group);
    let [head, _] = superblock_offsets(group.drives[5].info().size_bytes).unwrap();
    let cause = Cause::Failed(at(Operation::Read, head, DriveError::Gone));
    assert!(events.contains(&Event::SpareFailed { drive: DriveId(5), cause }), "{events:?}");

    // A spare that takes its superblocks, and fails when it is put to use.
    let sim = Sim::new(2);
    let (group, _) = filled(&sim, 1, 1);
    group.drives[5].error_next(OpKind::Zeroes, EIO);
    sim.block_on(group.leader().fail_member(MemberIndex(0))).expect("two may be lost");
    sim.run_for(Duration::from_secs(1));
    let map = superblock(&group.drives[0]).layout.map.offset;
    let cause = Cause::Failed(at(Operation::Write, map, EIO));
    let expected = [
        Event::MemberFailed { member: MemberIndex(0), drive: DriveId(0), cause: Cause::Operator },
        Event::SpareFailed { drive: DriveId(5), cause },
    ];
    assert_eq!(told(&sim, &group), expected);
}

#[test]
fn an_operation_that_works_when_it_is_tried_again_is_told_and_costs_no_member() {
    let sim = Sim::new(1);
    let (group, _) = filled(&sim, 0, 2);
    let (member, drive) = (MemberIndex(3), DriveId(3));
    for (kind, operation) in [(OpKind::Write, Operation::Write), (OpKind::Flush, Operation::Flush)] {
        let failing: &SimDrive = &group.drives[3];
        failing.error_next(kind, EIO);
        sim.block_on(async {
            let everything = Buf::from(vec![3; group.size() as usize]);
            group.leader().write(0, everything, false).await.expect("writable");
            group.leader().flush().await.expect("flushes");
        });
        let events = told(&sim, &group);
        let [Event::Retried { member: who, drive: which, failure }] = &events[..] else {
            panic!("{kind:?}: {events:?}")
        };
        assert_eq!((*who, *which, failure.operation, &failure.error), (member, drive, operation, &EIO));
        assert_eq!(failure.offset.is_some(), kind == OpKind::Write);
    }
    assert!(group.all_in_sync());
}

#[test]
fn bytes_that_were_damaged_or_unreadable_are_told_and_that_they_were_healed() {
    for (how, is_damaged) in [("read", false), ("read", true), ("scrub", false), ("scrub", true), ("write", false)] {
        for shards in 1..4 {
            let sim = Sim::new(shards);
            let (group, bytes) = filled(&sim, 0, shards as usize);
            let geometry = group.leader().shared().geometry.clone();
            let (member, drive, offset) = place(&group, 1);
            let there = geometry.offset(StripeGroup(0), 1, 0);
            let bad = &group.drives[usize::from(drive.0)];
            match is_damaged {
                true => bad.corrupt(offset, BLOCK),
                false => bad.media_error(offset..offset + BLOCK),
            }
            sim.block_on(async {
                match how {
                    "read" => {
                        let array = &group.shards[shards as usize - 1];
                        let read = array.read(there, BufMut::zeroed(BLOCK as usize)).await.expect("readable");
                        same(&read, &bytes[there as usize..(there + BLOCK) as usize], there);
                    }
                    "scrub" => {
                        assert!(group.leader().start_scrub(ScrubMode::Repair), "none is under way");
                        group.jobs_end().await;
                    }
                    // A partial write: the rest of the block has to be read.
                    _ => group.leader().write(there, Buf::from(vec![7; 100]), false).await.expect("writable"),
                }
            });
            let flaw = match is_damaged {
                true => Flaw::Damaged,
                false => Flaw::Unreadable(DriveError::Media { offset, len: BLOCK }),
            };
            let events = told(&sim, &group);
            let flawed = Event::BytesFlawed { member, drive, offset, len: BLOCK, flaw };
            let healed = Event::BytesHealed { member, drive, offset, len: BLOCK };
            let first = |event: &Event| {
                let found = events.iter().position(|other| other == event);
                found.unwrap_or_else(|| {
                    panic!("{how}, damaged: {is_damaged}, {shards} shards: no {event:?} in {events:?}")
                })
            };
            assert!(first(&flawed) < first(&healed), "{events:?}");
            let about = |event: &&Event| matches!(event, Event::BytesFlawed { .. } | Event::BytesHealed { .. });
            assert_eq!(events.iter().filter(about).count(), 2, "{how}, damaged: {is_damaged}: {events:?}");
            assert_eq!(group.state(usize::from(member.0)), MemberState::InSync);
        }
    }
}

#[test]
fn causes_are_said_in_words() {
    let failure = at(Operation::Write, 8192, DriveError::Os { operation: "write", errno: 121 });
    let gone = Failure { operation: Operation::Flush, offset: None, error: DriveError::Gone };
    for (cause, words) in [
        (Cause::WarmFailing(failure), "kept on failing: write at byte 8192: write failed with errno 121"),
        (Cause::Failed(gone), "flush: the drive is gone"),
        (Cause::Operator, "told so by an operator"),
        (Cause::Silent { seconds: 30 }, "did not answer for 30 s"),
        (Cause::Slow, "retired as slow"),
        (Cause::Pulled, "pulled"),
        (Cause::OutOfReach, "out of reach for too long"),
        (Cause::Recovery, "failed while a crash was put right"),
    ] {
        assert_eq!(cause.to_string(), words);
    }
    assert_eq!(Flaw::Damaged.to_string(), "not what was written there");
    let medium = Flaw::Unreadable(DriveError::Media { offset: 4096, len: 512 });
    assert_eq!(medium.to_string(), "media error at offset 4096, length 512");
}

#[test]
fn a_moment_without_any_drive_is_told_as_operations_that_failed_and_not_as_members_that_left() {
    // Regression: superblocks that said which members had left were tried, no drive took them, and
    // no member left. But the events had been sent before the attempt.
    for shape in every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0) {
        let sim = Sim::new(5);
        let drives = new_drives(&sim, usize::from(shape.members), 640 * KIB, 4096);
        let group = Group::create(&sim, shape, drives, 1);
        sim.block_on(group.leader().write(0, Buf::from(vec![1; group.size() as usize]), true)).expect("writable");
        for drive in group.drives.iter().flat_map(|drive| [drive; 200]) {
            drive.error_next(OpKind::Write, DriveError::Os { operation: "simulated", errno: 5 });
        }
        sim.block_on(group.leader().write(0, Buf::from(vec![2; 4096]), true)).expect_err("no drive takes it");
        group.drives.iter().for_each(|drive| drop(drive.revive()));
        sim.block_on(group.leader().write(0, Buf::from(vec![3; 4096]), true)).expect("writable again");
        assert!(group.all_in_sync(), "{shape}: {:?}", group.events.borrow());
        let events = group.events.borrow();
        assert!(!events.iter().any(|event| matches!(event, Event::MemberFailed { .. })), "{shape}: {events:?}");
        assert!(events.iter().any(|event| matches!(event, Event::MemberNeeded { .. })), "{shape}: {events:?}");
    }
}

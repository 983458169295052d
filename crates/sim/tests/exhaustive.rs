//! Every crash of every short program on small groups of every level.

use std::time::Instant;

use format::CrashSafety;
use sim::engine::Protection;
use sim::exhaustive::{Counts, Extent, shapes};

fn extent(level: &str, ops: usize) -> Extent {
    let (_, shape) = shapes().into_iter().find(|(name, _)| *name == level).expect("a level of the table");
    Extent::whole(shape, ops)
}

fn check(level: &str, extent: &Extent) -> Vec<String> {
    let (counts, began) = (Counts::default(), Instant::now());
    let violations = extent.check(&extent.programs(), &counts);
    println!("{level}, programs of up to {} requests: {counts}, {:.1?}", extent.ops, began.elapsed());
    violations
}

fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

#[test]
fn every_crash_of_every_single_request_keeps_what_was_promised_with_up_to_m_members_lost() {
    for level in ["raid5", "raid6", "raid7", "nm", "raid10", "raid50"] {
        assert_none(&check(level, &extent(level, 1)));
    }
}

#[test]
fn every_crash_of_every_two_requests_keeps_what_was_promised_with_up_to_m_members_lost() {
    for level in ["raid5", "raid6", "raid10"] {
        assert_none(&check(level, &extent(level, 2)));
    }
}

#[test]
fn every_crash_in_every_recovery_keeps_what_was_promised() {
    // With two lost members, RAID 6 would take more than a minute.
    for level in ["raid5", "raid6"] {
        assert_none(&check(level, &Extent { crashes: 2, degraded: 1, lost: 1, ..extent(level, 1) }));
    }
}

#[test]
fn without_the_log_the_write_hole_is_found() {
    for level in ["raid5", "raid6"] {
        let off = Extent { protection: Protection::plain(CrashSafety::Off), violations: 1, ..extent(level, 1) };
        let violations = check(level, &off);
        assert!(!violations.is_empty(), "{level}: a crash while degraded has to be seen");
    }
}

#[test]
fn without_the_log_whole_groups_keep_what_was_promised() {
    for level in ["raid5", "raid10"] {
        let off = Extent { protection: Protection::plain(CrashSafety::Off), degraded: 0, lost: 0, ..extent(level, 1) };
        assert_none(&check(level, &off));
    }
}

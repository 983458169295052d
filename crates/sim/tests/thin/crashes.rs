//! Every crash of programs, over a model of a group.

use sim::engine::seeds;
use sim::thin::{Program, Step, check, every, run};

use Step::{Checkpoint, Collect, Discard, Flush, Land, Read, Write};

#[test]
fn every_crash_of_a_program_leaves_what_was_promised() {
    let (mut crashes, mut recoveries) = (0, 0);
    for seed in seeds(40) {
        let counts = check(&Program::random(seed));
        (crashes, recoveries) = (crashes + counts.crashes, recoveries + counts.recoveries);
    }
    assert!(crashes > 25 && recoveries > 5 * crashes, "{crashes} crashes, {recoveries} recoveries");
}

/// Checks the crashes of one program with different durations of its operations.
fn check_all(is_kill: bool, units: u64, groups: &[&[Step]]) {
    for seed in seeds(24) {
        check(&Program::new(seed, is_kill, units, groups.iter().map(|group| group.to_vec()).collect()));
    }
}

#[test]
fn runs_behind_the_filled_part_of_a_segment_are_found() {
    let bulk = |from| Write(1, from..from + 16, false);
    check_all(false, 4, &[&[bulk(0)], &[Land], &[Checkpoint], &[bulk(16)], &[Flush], &[Write(2, 0..1, true)]]);
}

#[test]
fn a_write_is_covered_only_when_no_newer_one_that_is_under_way_has_replaced_it() {
    let first = [Write(1, 3..4, true)];
    let under_way = [Land, Write(1, 3..4, false), Checkpoint, Checkpoint, Checkpoint];
    for seed in seeds(24) {
        let groups = vec![first.to_vec(), under_way.to_vec()];
        check(&Program::new(seed, false, 1, groups).with_slow_frames());
    }
}

#[test]
fn a_segment_with_holes_is_kept_until_they_are_covered() {
    let whole = |line| [Write(line, 0..16, true)];
    let last = [Discard(1, 0..16), Land, Checkpoint, Checkpoint, Checkpoint];
    check_all(true, 1, &[&whole(2), &whole(1), &last]);
}

/// Blocks in segments that are half garbage.
fn with_garbage() -> Vec<Vec<Step>> {
    let write = |range| vec![Write(1, range, true)];
    vec![write(0..15), vec![Land], write(0..8), vec![Land], vec![Checkpoint]]
}

#[test]
fn a_segment_that_is_read_is_not_discarded() {
    for seed in seeds(200) {
        let mut groups = with_garbage();
        groups.push(vec![Read(1, 8..15), Collect, Checkpoint, Checkpoint]);
        run(&Program::new(seed, false, 1, groups));
    }
}

#[test]
fn a_segment_that_the_collector_fills_is_not_freed() {
    for seed in seeds(200) {
        let mut groups = with_garbage();
        groups.push(vec![Collect, Checkpoint, Checkpoint, Checkpoint]);
        groups.push(vec![Write(2, 0..32, false)]);
        run(&Program::new(seed, false, 1, groups));
    }
}

#[test]
fn a_copy_of_the_collector_does_not_replace_a_newer_write() {
    for seed in seeds(200) {
        let mut groups = with_garbage();
        groups.push(vec![Collect, Write(1, 8..15, false), Land]);
        run(&Program::new(seed, false, 1, groups));
    }
}

#[test]
fn every_crash_of_every_two_steps_leaves_what_was_promised() {
    let (counts, violations) = every(2, 1);
    println!("{counts}");
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

//! Ways to drives that fail for a while.

use format::{CrashSafety, Level, Shape};
use sim::engine::history::Request;
use sim::engine::{Protection, every_level, shape};
use sim::program::execute::execute;
use sim::program::{Ask, CrashKind, Pace, Program, Setup, Step};
use sim::{Broken, OpKind};

use crate::program;

/// All ways to the members fail at the same time, for `us`.
fn outage(shape: &Shape, how: Broken, at_start: bool, after: u64, us: u64) -> Step {
    Step::Outage { members: (0..usize::from(shape.members)).collect(), how, at_start, after, us }
}

#[test]
fn a_moment_without_any_drive_in_the_middle_of_a_write_harms_no_block_that_was_not_written() {
    // The story: a write failed with its strips old on some members and new on others, and nothing put the stripe right: the group went on
    // with all of its members. When one of them was lost later, blocks that nobody had written were computed from the mixture.
    let ask = |start, len, fua| Ask { request: Request::Write { fua }, start, len, shard: 0, pause_us: 0 };
    let off = Protection::plain(CrashSafety::Off);
    for protection in
        [Protection::DEFAULT, Protection::plain(CrashSafety::On), Protection::plain(CrashSafety::Strict), off]
    {
        for shape in every_level(4096) {
            for after in 0..14 {
                let steps = vec![
                    Step::Work(vec![ask(0, 64 * 1024, true)]),
                    outage(&shape, Broken::Errors, false, after, 300),
                    Step::Work(vec![ask(4096, 4096, false), ask(20 * 1024, 12 * 1024, true)]),
                    // At the end everything is read without as many members as the level survives.
                    Step::Settle,
                ];
                let program = program(after, shape, protection, 4096, steps);
                execute(&program, false);
                execute(&Program { setup: Setup { pace: Pace::Usual, ..program.setup }, ..program }, false);
            }
        }
    }
}

#[test]
fn a_moment_without_any_drive_takes_no_member_out_of_its_group() {
    // The story: superblocks were written that said who had left, and nobody was heard to have taken them, so nobody left. Some members had them
    // all the same, and the next assembly believed those.
    let ask = |start, len| Ask { request: Request::Write { fua: true }, start, len, shard: 0, pause_us: 0 };
    for shape in every_level(4096).into_iter().filter(|shape| shape.survives() > 0) {
        for after in 0..12 {
            let mut steps = vec![
                outage(&shape, Broken::Errors, false, after, 300),
                Step::Work(vec![ask(0, 8192)]),
                Step::Settle,
                Step::Restart { without: vec![], shards: 1 },
                Step::Work(vec![ask(0, 64 * 1024)]),
            ];
            steps.extend((0..shape.survives()).map(|member| {
                let member = usize::from(shape.members) - 1 - member;
                Step::Die { member, after: 0 }
            }));
            execute(&program(after, shape, Protection::DEFAULT, 4096, steps), false);
        }
    }
}

#[test]
fn a_group_without_any_drive_for_a_moment_is_one_group_when_it_is_assembled_again() {
    // The story (seed 900298): the drives came back one by one while superblocks were tried that said who had left. One had a superblock in
    // which it went on alone, another a newer one likewise, and the group counted as divided between those.
    let ask = |start, len| Ask { request: Request::Write { fua: true }, start, len, shard: 0, pause_us: 150 };
    let work = (0..12).map(|index| ask(index * 64 * 1024, 4096)).collect::<Vec<_>>();
    let mirrors = [
        shape(Level::Raid1, 3, None, None, None, 4096),
        shape(Level::Raid1, 4, None, None, None, 4096),
        shape(Level::Raid10, 6, None, Some(3), None, 4096),
    ];
    for shape in mirrors {
        for seed in 0..60 {
            let steps = vec![
                outage(&shape, Broken::Errors, false, seed % 7, 2000 + 1000 * (seed % 31)),
                Step::Work(work.clone()),
                Step::Restart { without: vec![], shards: 1 },
                Step::Work(work.clone()),
            ];
            let program = program(seed, shape, Protection::plain(CrashSafety::On), 4096, steps);
            execute(&Program { setup: Setup { pace: Pace::Spikes, ..program.setup }, ..program }, false);
        }
    }
}

#[test]
fn a_kill_after_a_moment_without_any_drive_costs_nothing_that_was_acknowledged() {
    // The story (seeds 18471, 22450): superblocks were tried twice that nobody was heard to have taken, and the first of them was on the drives. What
    // is kept over a kill counted for the epochs before and after it, but not for that one.
    let ask = |request, start| Ask { request, start, len: 512, shard: 0, pause_us: 0 };
    let write = || Step::Work(vec![ask(Request::Write { fua: false }, 0)]);
    for (level, members, sets) in [(Level::Raid50, 6, Some(2)), (Level::Raid5, 4, None), (Level::Raid1, 3, None)] {
        let shape = shape(level, members, None, None, sets, 4096);
        for after in 60..100 {
            let steps = vec![
                outage(&shape, Broken::Errors, false, after, 0),
                write(),
                Step::Work(vec![ask(Request::Discard, 18944)]),
                Step::Crash { kind: CrashKind::Kill, after: 0, lost: vec![], again: vec![] },
                write(),
            ];
            execute(&program(0, shape, Protection::DEFAULT, 4096, steps), false);
        }
    }
}

#[test]
fn a_moment_without_any_drive_as_a_spare_takes_its_place_leaves_superblocks_that_can_be_written() {
    // The story (seed 22812): the place of a member that was not there had no drive's identity any more, and was called faulty all the same. No such
    // superblock may be written, and the program ended.
    let shape = shape(Level::Raid7, 7, None, None, None, 4096);
    let write =
        || Step::Work(vec![Ask { request: Request::Write { fua: false }, start: 0, len: 512, shard: 0, pause_us: 0 }]);
    for after in 0..12 {
        let steps = vec![
            write(),
            Step::Errors { member: 3, kind: OpKind::Write, full: true },
            Step::Restart { without: vec![], shards: 1 },
            Step::Replace { member: 3, spare: true },
            Step::Outage { members: vec![0, 1, 2, 4, 5, 6], how: Broken::Errors, at_start: false, after, us: 0 },
            write(),
        ];
        execute(&program(2, shape, Protection::plain(CrashSafety::Off), 4096, steps), false);
    }
}

#[test]
fn a_rebuild_goes_on_after_a_moment_without_any_drive() {
    // The story: it stopped since too little could be read, and was not begun again before the group was.
    let ask = |start, len| Ask { request: Request::Write { fua: false }, start, len, shard: 0, pause_us: 0 };
    for shape in every_level(4096).into_iter().filter(|shape| shape.survives() > 0) {
        for after in [0, 5, 20, 60] {
            let steps = vec![
                Step::Work(vec![ask(0, 512 * 1024)]),
                Step::Restart { without: vec![0], shards: 1 },
                Step::Replace { member: 0, spare: false },
                outage(&shape, Broken::Errors, false, after, 2000),
                Step::Work(vec![ask(4096, 4096)]),
                Step::Settle,
            ];
            let program = program(after, shape, Protection::DEFAULT, 4096, steps);
            execute(&Program { setup: Setup { pace: Pace::Usual, ..program.setup }, ..program }, false);
        }
    }
}

#[test]
fn drives_that_are_away_while_a_group_is_started_cost_nothing_that_was_acknowledged() {
    let ask = |start, len, fua| Ask { request: Request::Write { fua }, start, len, shard: 0, pause_us: 0 };
    let mut unstarted = 0;
    for shape in every_level(4096) {
        for (index, how) in [Broken::Errors, Broken::Pulled, Broken::Power, Broken::Silent].into_iter().enumerate() {
            for after in [0, 7, 29, 61] {
                let steps = vec![
                    Step::Work(vec![ask(0, 96 * 1024, true)]),
                    outage(&shape, how, true, after, 40_000_000),
                    Step::Work(vec![ask(8192, 4096, false), ask(40 * 1024, 20 * 1024, false)]),
                    Step::Crash { kind: CrashKind::PowerCut, after: 11, lost: vec![], again: vec![] },
                    Step::Work(vec![ask(0, 4096, false), ask(16 * 1024, 64 * 1024, false)]),
                ];
                let program = program(index as u64, shape, Protection::DEFAULT, 4096, steps);
                let tally = execute(&Program { setup: Setup { pace: Pace::Usual, ..program.setup }, ..program }, false);
                unstarted += tally.unstarted;
            }
        }
    }
    assert!(unstarted > 50, "no start failed: {unstarted}");
}

//! Shrinking a failing program.
//!
//! Greedy: as long as one of the smaller programs still fails, and is within the promises, it
//! replaces the larger one. It may fail in another way: every failure is a bug.

use std::time::{Duration, Instant};

use format::{Level, Shape};

use super::promise::is_promised;
use super::{Ask, CrashKind, Pace, Program, Remote, Setup, Step};

/// How many programs are tried at most.
const TRIES_MAX: usize = 4000;
/// How long it may take.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Makes `program` as short as it can; `fails` executes a program and says whether it fails.
pub fn shrink(program: &Program, fails: impl Fn(&Program) -> bool) -> Program {
    let began = Instant::now();
    let mut best = program.clone();
    let mut tries = 0;
    loop {
        let mut shorter = None;
        for candidate in candidates(&best) {
            if tries == TRIES_MAX || began.elapsed() > TIME_MAX {
                return best;
            }
            if candidate == best || !is_promised(&candidate) {
                continue;
            }
            tries += 1;
            if fails(&candidate) {
                shorter = Some(candidate);
                break;
            }
        }
        match shorter {
            Some(shorter) => best = shorter,
            None => return best,
        }
    }
}

/// Programs that are a little smaller, the largest reductions first.
fn candidates(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let count = program.steps.len();
    let mut chunk = count / 2;
    while chunk > 0 {
        for start in (0..count).step_by(chunk).rev() {
            let mut steps = program.steps.clone();
            steps.drain(start..(start + chunk).min(count));
            all.push(Program { steps, ..program.clone() });
        }
        chunk /= 2;
    }
    all.extend(setups(&program.setup).into_iter().map(|setup| Program { setup, ..program.clone() }));
    for (index, step) in program.steps.iter().enumerate() {
        for smaller in smaller_steps(step) {
            let mut steps = program.steps.clone();
            steps[index] = smaller;
            all.push(Program { steps, ..program.clone() });
        }
    }
    // Another order of events may need fewer steps.
    all.extend((0..3).filter(|&seed| seed < program.seed).map(|seed| Program { seed, ..program.clone() }));
    all
}

fn setups(setup: &Setup) -> Vec<Setup> {
    let mut all = Vec::new();
    if setup.shards > 1 {
        all.push(Setup { shards: 1, ..*setup });
    }
    if setup.buggify {
        all.push(Setup { buggify: false, ..*setup });
    }
    if setup.in_pieces {
        all.push(Setup { in_pieces: false, ..*setup });
    }
    if setup.pace != Pace::Immediate {
        all.push(Setup { pace: Pace::Immediate, ..*setup });
        if setup.pace == Pace::Spikes {
            all.push(Setup { pace: Pace::Usual, ..*setup });
        }
    }
    if setup.sector_bytes < 4096 {
        all.push(Setup { sector_bytes: 4096, ..*setup });
    }
    let Shape { level, members, sets, parity_count, strip_bytes } = setup.shape;
    if strip_bytes > 4096 {
        all.push(Setup { shape: Shape { strip_bytes: strip_bytes / 2, ..setup.shape }, ..*setup });
    }
    let parity = (!level.is_mirror()).then_some(parity_count);
    let copies = level.is_mirror().then_some(parity_count + 1);
    if level != Level::Raid1
        && let Ok(shape) = Shape::of(level, members - sets.min(members - 1))
            .parity(parity)
            .copies(copies)
            .sets(sets)
            .strip_bytes(strip_bytes)
            .build()
    {
        all.push(Setup { shape, ..*setup });
    }
    if setup.remote.addresses > 1 {
        all.push(Setup { remote: Remote { addresses: 1, ..setup.remote }, ..*setup });
    }
    for member in (0..usize::from(members)).filter(|&member| setup.remote.has(member)) {
        all.push(Setup { remote: Remote { members: setup.remote.members & !(1 << member), ..setup.remote }, ..*setup });
    }
    if setup.drive_bytes > 512 << 10 {
        all.push(Setup { drive_bytes: 512 << 10, ..*setup });
    }
    all
}

fn smaller_steps(step: &Step) -> Vec<Step> {
    match step {
        Step::Work(asks) => smaller_work(asks),
        Step::Crash { kind, after, lost, again } => smaller_crashes(*kind, *after, lost, again),
        Step::Die { member, after } if *after > 0 => {
            smaller_numbers(*after).into_iter().map(|after| Step::Die { member: *member, after }).collect()
        }
        Step::Hang { member, after } if *after > 0 => {
            smaller_numbers(*after).into_iter().map(|after| Step::Hang { member: *member, after }).collect()
        }
        Step::Outage { members, how, at_start, after, us } => {
            let with =
                |members: Vec<usize>, after, us| Step::Outage { members, how: *how, at_start: *at_start, after, us };
            let fewer = without_one(members).into_iter().map(|members| with(members, *after, *us));
            let sooner = smaller_numbers(*after).into_iter().map(|after| with(members.clone(), after, *us));
            let shorter = smaller_numbers(*us).into_iter().map(|us| with(members.clone(), *after, us));
            fewer.chain(sooner).chain(shorter).collect()
        }
        Step::Mishap { member, what, after_us, ms } => {
            let with = |after_us, ms| Step::Mishap { member: *member, what: *what, after_us, ms };
            let sooner = smaller_numbers(*after_us).into_iter().map(|after_us| with(after_us, *ms));
            sooner.chain(smaller_numbers(*ms).into_iter().map(|ms| with(*after_us, ms))).collect()
        }
        Step::Own { first, count, run, after_us } if *after_us > 0 => {
            let with = |after_us| Step::Own { first: *first, count: *count, run: *run, after_us };
            smaller_numbers(*after_us).into_iter().map(with).collect()
        }
        Step::Restart { without, shards } if *shards > 1 || !without.is_empty() => vec![
            Step::Restart { without: Vec::new(), shards: *shards },
            Step::Restart { without: without.clone(), shards: 1 },
        ],
        Step::Media { member, start, len } if *len > 512 => {
            vec![Step::Media { member: *member, start: *start, len: len / 2 }]
        }
        Step::Silent { member, fault, start, len } if *len > 512 => {
            vec![Step::Silent { member: *member, fault: *fault, start: *start, len: len / 2 }]
        }
        _ => Vec::new(),
    }
}

fn smaller_work(asks: &[Ask]) -> Vec<Step> {
    let mut all = Vec::new();
    if asks.len() > 1 {
        all.push(Step::Work(asks[..asks.len() / 2].to_vec()));
        all.push(Step::Work(asks[asks.len() / 2..].to_vec()));
    }
    for index in 0..asks.len() {
        if asks.len() > 1 {
            let mut fewer = asks.to_vec();
            fewer.remove(index);
            all.push(Step::Work(fewer));
        }
        for smaller in smaller_asks(&asks[index]) {
            let mut changed = asks.to_vec();
            changed[index] = smaller;
            all.push(Step::Work(changed));
        }
    }
    all
}

fn smaller_crashes(kind: CrashKind, after: u64, lost: &[usize], again: &[u64]) -> Vec<Step> {
    let with =
        |after, lost: &[usize], again: &[u64]| Step::Crash { kind, after, lost: lost.to_vec(), again: again.to_vec() };
    let mut all = Vec::new();
    if !again.is_empty() {
        all.push(with(after, lost, &[]));
        all.push(with(after, lost, &again[1..]));
    }
    all.extend(without_one(lost).into_iter().map(|fewer| with(after, &fewer, again)));
    all.extend(smaller_numbers(after).into_iter().map(|after| with(after, lost, again)));
    all
}

/// Each list that one of the members is missing from.
fn without_one(members: &[usize]) -> Vec<Vec<usize>> {
    let fewer = |index| [&members[..index], &members[index + 1..]].concat();
    (0..members.len()).map(fewer).collect()
}

fn smaller_asks(ask: &Ask) -> Vec<Ask> {
    let mut all = Vec::new();
    if ask.pause_us > 0 {
        all.push(Ask { pause_us: 0, ..*ask });
    }
    if ask.shard > 0 {
        all.push(Ask { shard: 0, ..*ask });
    }
    if ask.len > 512 {
        all.push(Ask { len: ask.len / 2 / 512 * 512, ..*ask });
    }
    if ask.start > 0 {
        all.push(Ask { start: 0, ..*ask });
        all.push(Ask { start: ask.start / 2 / 4096 * 4096, ..*ask });
    }
    all
}

fn smaller_numbers(number: u64) -> Vec<u64> {
    let mut all = vec![0, number / 2, number * 3 / 4, number.saturating_sub(1)];
    all.retain(|&smaller| smaller < number);
    all.dedup();
    all
}

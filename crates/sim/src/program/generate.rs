//! Drawing a program from a seed.

use format::{CrashSafety, Level, PARITY_MAX, Shape};

use super::promise::{Ledger, PAUSE_US_MAX, fires_cut};
use super::{Ask, CrashKind, Mishap, Pace, Program, Remote, Setup, Silent, Step};
use crate::engine::history::Request;
use crate::engine::{KIB, MIB, Protection, shape, valid};
use crate::trace::OpKind;
use crate::{Broken, Rng, Way};

/// Maximum number of steps of a program.
const STEPS_MAX: u64 = 40;
/// Maximum number of requests at the same time.
const ASKS_MAX: usize = 48;

/// The program of a seed. Always the same one, and always within the promises.
pub fn generate(seed: u64) -> Program {
    let mut rng = Rng::new(seed ^ 0x70_75_72_6c_69_6e);
    let setup = setup(&mut rng);
    program(seed, setup, rng)
}

/// As [`generate`], with members on targets, and network faults.
pub fn generate_remote(seed: u64) -> Program {
    let mut rng = Rng::new(seed ^ 0x73_68_65_6c_66);
    let mut setup = setup(&mut rng);
    let all = (1 << setup.shape.members) - 1;
    let some = rng.below(all) + 1;
    setup.remote = Remote { members: *rng.pick(&[some, some, all]), addresses: 1 + rng.index(2) };
    program(seed, setup, rng)
}

fn program(seed: u64, setup: Setup, mut rng: Rng) -> Program {
    let members = usize::from(setup.shape.members);
    let mut ledger = Ledger::new(&setup);
    let mut steps = Vec::new();
    let count = rng.range(3..STEPS_MAX);
    // Some programs are mostly work, others mostly faults.
    let buggify = *rng.pick(&[1, 4, 8, 14]);
    while (steps.len() as u64) < count {
        // Otherwise a recovery with unreachable drives is rare.
        let is_due = matches!(steps.last(), Some(Step::Crash { .. }));
        let step = if is_due && rng.chance(1, 3) {
            outage(&mut rng, members, &ledger)
        } else if rng.chance(buggify, 20) {
            misfortune(&mut rng, &setup, members, &ledger)
        } else {
            Step::Work(asks(&mut rng, &setup))
        };
        // A pending crash comes before such a step, if the program has one.
        let cuts = matches!(step, Step::Crash { .. }) || fires_cut(&step);
        let was_armed = cuts && ledger.disarm();
        if ledger.enter(&step) {
            steps.push(step);
        } else if was_armed {
            ledger.arm();
        }
    }
    Program { seed, setup, steps }
}

fn setup(rng: &mut Rng) -> Setup {
    let strip = *rng.pick(&[4 * KIB, 4 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB]);
    let shape = any_shape(rng, strip);
    Setup {
        shape,
        protection: Protection {
            safety: *rng.pick(&[
                CrashSafety::On,
                CrashSafety::On,
                CrashSafety::On,
                CrashSafety::Strict,
                CrashSafety::Off,
            ]),
            checksums: rng.chance(3, 4),
        },
        sector_bytes: *rng.pick(&[512, 4096]),
        drive_bytes: *rng.pick(&[512 * KIB, 640 * KIB, MIB]),
        shards: 1 + rng.index(3),
        pace: *rng.pick(&[Pace::Immediate, Pace::Immediate, Pace::Usual, Pace::Usual, Pace::Spikes]),
        buggify: rng.chance(1, 2),
        in_pieces: rng.chance(1, 3),
        remote: Remote::default(),
    }
}

fn any_shape(rng: &mut Rng, strip: u64) -> Shape {
    let more = |rng: &mut Rng, from: u16, to: u16| from + rng.below(u64::from(to - from) + 1) as u16;
    match rng.below(13) {
        0 => shape(Level::Raid0, more(rng, 2, 4), strip),
        1 => shape(Level::Raid1, more(rng, 2, 4), strip),
        2 => shape(Level::Raid10, 4, strip),
        3 => {
            let copies = more(rng, 3, 4);
            valid(Shape::of(Level::Raid10, 2 * copies).copies(copies as u8), strip)
        }
        4..6 => shape(Level::Raid5, more(rng, 3, 6), strip),
        6..8 => shape(Level::Raid6, more(rng, 4, 7), strip),
        8..10 => shape(Level::Raid7, more(rng, 5, 8), strip),
        10 => {
            let parity = more(rng, 2, u16::from(PARITY_MAX));
            valid(Shape::of(Level::Nm, parity + more(rng, 2, 4)).parity(parity as u8), strip)
        }
        11 => shape(Level::Raid50, 6, strip),
        _ => shape(Level::Raid60, 8, strip),
    }
}

/// Most ranges lie in the first stripes, so that requests meet often.
fn range(rng: &mut Rng, setup: &Setup) -> (u64, u64) {
    let strip = u64::from(setup.shape.strip_bytes);
    let stripe = strip * setup.shape.data_per_set() as u64;
    let sector = u64::from(setup.sector_bytes);
    let area = *rng.pick(&[2 * stripe, 4 * stripe, 64 * stripe, 4 * MIB]);
    let grain = *rng.pick(&[sector, sector, 4096, 4096, strip, stripe]);
    let longest = *rng.pick(&[1, 1, 2, 4, 16]);
    let start = rng.below(area) / grain * grain;
    (start, (1 + rng.below(longest)) * grain)
}

fn asks(rng: &mut Rng, setup: &Setup) -> Vec<Ask> {
    let width = *rng.pick(&[1, 1, 2, 4, 12, ASKS_MAX]);
    let spread = *rng.pick(&[0, 0, 50, 500]);
    (0..1 + rng.index(width))
        .map(|_| {
            let (start, len) = range(rng, setup);
            let request = match rng.below(24) {
                0..3 => Request::Write { fua: true },
                3..13 => Request::Write { fua: false },
                13..15 => Request::Discard,
                15 => Request::WriteZeroes { fua: rng.chance(1, 2), keep: rng.chance(1, 2) },
                16..19 => Request::Flush,
                _ => Request::Read,
            };
            Ask { request, start, len, shard: rng.index(setup.shards), pause_us: rng.below(spread + 1) }
        })
        .collect()
}

fn misfortune(rng: &mut Rng, setup: &Setup, members: usize, ledger: &Ledger) -> Step {
    let member = rng.index(members);
    let lost: Vec<usize> = (0..members).filter(|&member| ledger.is_lost(member)).collect();
    if setup.remote.has(member) && rng.chance(1, 2) {
        return mishap(rng, member);
    }
    match rng.below(42) {
        0..8 => {
            let dead = (0..rng.below(1 + setup.shape.survives() as u64)).map(|_| rng.index(members));
            let mut dead: Vec<usize> = dead.filter(|&member| !ledger.is_lost(member)).collect();
            dead.sort_unstable();
            dead.dedup();
            let lost = if rng.chance(1, 2) { dead } else { Vec::new() };
            let again = (0..rng.below(4).saturating_sub(1)).map(|_| rng.below(120)).collect();
            let kind = if rng.chance(1, 3) { CrashKind::Kill } else { CrashKind::PowerCut };
            Step::Crash { kind, after: rng.below(*rng.clone().pick(&[10, 60, 300])), lost, again }
        }
        8..10 => Step::Die { member, after: rng.below(40) / 3 * rng.below(3) },
        10 => Step::Hang { member, after: rng.below(40) / 3 * rng.below(3) },
        11 => {
            let kind = *rng.pick(&[OpKind::Read, OpKind::Write, OpKind::Flush]);
            Step::Errors { member, kind, full: kind == OpKind::Write && rng.chance(1, 2) }
        }
        12 => Step::Hiccup { member, kind: *rng.pick(&[OpKind::Read, OpKind::Write, OpKind::Flush]) },
        13..15 => {
            let (start, len) = range(rng, setup);
            Step::Media { member, start: start / 2, len }
        }
        15..17 => {
            let (start, len) = range(rng, setup);
            let fault = *rng.pick(&[Silent::Rot, Silent::LostWrite, Silent::Misdirected]);
            Step::Silent { member, fault, start, len }
        }
        17 => Step::Outage {
            members: vec![member],
            how: Broken::Silent,
            at_start: rng.chance(1, 4),
            after: 0,
            us: 10 + rng.below(PAUSE_US_MAX - 10),
        },
        18 => Step::Slow { member, factor: *rng.pick(&[1, 10, 300]) },
        19..23 => {
            Step::Replace { member: if lost.is_empty() { member } else { *rng.pick(&lost) }, spare: rng.chance(1, 2) }
        }
        23 => Step::Return { member: if lost.is_empty() { member } else { *rng.pick(&lost) } },
        24..26 => {
            let without = if rng.chance(1, 2) && !ledger.is_lost(member) { vec![member] } else { Vec::new() };
            Step::Restart { without, shards: 1 + rng.index(3) }
        }
        26 => Step::Scrub,
        27..31 => Step::Settle,
        31 => Step::Verify,
        32..36 => own(rng),
        36..38 => Step::Exchange { member },
        _ => outage(rng, members, ledger),
    }
}

fn outage(rng: &mut Rng, members: usize, ledger: &Ledger) -> Step {
    let all: Vec<usize> = (0..members).filter(|&member| !ledger.is_lost(member)).collect();
    let some = all.iter().copied().filter(|_| rng.chance(1, 2)).collect();
    let one = vec![*rng.pick(&all)];
    let at_start = rng.chance(1, 2);
    let how = match at_start {
        true => *rng.pick(&[Broken::Silent, Broken::Errors, Broken::Pulled, Broken::Power]),
        false => *rng.pick(&[Broken::Silent, Broken::Errors, Broken::Errors]),
    };
    let (soon, long) = (*rng.pick(&[4, 40, 200]), *rng.pick(&[100, 3000, PAUSE_US_MAX, 2_000_000, 60_000_000]));
    let members = rng.pick(&[one, some, all.clone(), all]).clone();
    Step::Outage { members, how, at_start, after: rng.below(soon), us: 1 + rng.below(long) }
}

fn own(rng: &mut Rng) -> Step {
    let soon = *rng.pick(&[1, 100, 3000]);
    Step::Own { first: rng.index(3), count: 1 + rng.index(3), run: 1 + rng.below(3), after_us: rng.below(soon) }
}

fn mishap(rng: &mut Rng, member: usize) -> Step {
    let (to_target, to_host) = *rng.pick(&[(true, true), (true, false), (false, true)]);
    let what = match rng.below(10) {
        0..2 => Mishap::Reset,
        2 => Mishap::TimeOut,
        3..5 => Mishap::Stall(*rng.pick(&[Way::ToTarget, Way::ToHost])),
        5..8 => Mishap::Split { to_target, to_host },
        8 => Mishap::TargetPower,
        _ => Mishap::TargetKill,
    };
    let longest = *rng.pick(&[10, 1000, 6000, 20_000, 60_000]);
    let after = *rng.pick(&[1, 300, 3000, 3_000_000]);
    Step::Mishap { member, what, after_us: rng.below(after), ms: 1 + rng.below(longest) }
}

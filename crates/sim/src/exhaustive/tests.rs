//! Tests that the reductions leave out only equivalent states.

use std::collections::BTreeMap;

use format::CrashSafety;

use super::*;

#[test]
fn the_parts_are_the_whole_and_share_nothing() {
    let list: Vec<usize> = (0..103).collect();
    for of in [1, 2, 7, 103, 110] {
        let parts: Vec<usize> = (1..=of).flat_map(|number| Part { number, of }.of_list(list.clone())).collect();
        assert_eq!(parts, list, "in {of} parts");
    }
    assert_eq!("2/5".parse(), Ok(Part { number: 2, of: 5 }));
    for wrong in ["", "2", "0/5", "6/5", "1/0", "a/b", "1/2/3"] {
        assert!(wrong.parse::<Part>().is_err(), "{wrong}");
    }
}

fn extent(level: &str, protection: Protection, ops: usize) -> Extent {
    let (_, shape) = shapes().into_iter().find(|(name, _)| *name == level).expect("a level of the table");
    Extent { protection, ..Extent::whole(shape, ops) }
}

/// Only the points of the last request are gone through, so the earlier ones have to be those of a
/// shorter program.
#[test]
fn a_program_begins_as_the_program_of_its_first_requests() {
    let programs = extent("raid6", Protection::DEFAULT, 2).programs();
    for longer in programs.iter().filter(|case| case.ops.len() == 2).step_by(29) {
        let shorter = Case { ops: longer.ops[..1].to_vec(), ..longer.clone() };
        let (longer, shorter) = (record(longer), record(&shorter));
        assert_eq!(longer.last, shorter.tape.events.len() + 1, "the first point that the shorter one does not have");
        assert!(longer.tape.events.starts_with(&shorter.tape.events));
        let of_first = |recording: &Recording| -> Vec<(usize, u64)> {
            recording.tape.histories[..3].iter().map(|(point, history)| (*point, history.fingerprint())).collect()
        };
        assert_eq!(of_first(&longer), of_first(&shorter));
    }
}

/// How many cases end in a violation, and with an unreadable block that is excused.
#[derive(Debug, PartialEq, Eq, Default)]
struct Verdicts {
    violated: u64,
    excused: u64,
}

impl Verdicts {
    fn add(&mut self, other: Verdicts) {
        self.violated += other.violated;
        self.excused += other.excused;
    }
}

/// Goes through the cases of a program. `apart` recovers each of them, with all choices made
/// beforehand.
fn verdicts(extent: &Extent, case: &Case, apart: bool, memo: Option<&Memo>) -> Verdicts {
    let mut sum = Verdicts::default();
    each_verdict(extent, case, apart, memo, |_, verdicts| sum.add(verdicts));
    sum
}

/// The same, crash by crash.
fn each_verdict(
    extent: &Extent,
    case: &Case,
    apart: bool,
    memo: Option<&Memo>,
    mut look: impl FnMut(&Crash<'_>, Verdicts),
) {
    let _ = extent.each_crash(case, &record(case), |crash| {
        look(crash, verdicts_of(crash, apart, memo.unwrap_or(&Memo::default())));
        ControlFlow::Continue(())
    });
}

fn verdicts_of(crash: &Crash<'_>, apart: bool, memo: &Memo) -> Verdicts {
    let (cut, mut cases) = (crash.cut(), 0);
    let (whole, mut verdicts) = (cut.states(), Verdicts::default());
    let states = crash.explorer(cut);
    let states = Rc::new(RefCell::new(if apart { states.apart() } else { states }));
    while states.borrow_mut().next(memo, |outcome| crash.may_be(outcome)) {
        let counts = Counts::default();
        let recovered = crash.recover(&states, &counts, false);
        let stands_for = states.borrow().stands_for();
        cases += stands_for;
        verdicts.violated += if recovered.is_ok() { 0 } else { stands_for };
        verdicts.excused += stands_for * counts.excused.into_inner();
        if let Some(recovered) = recovered.ok().filter(|_| !apart) {
            states.borrow_mut().ended_well(memo, &recovered.outcome);
        }
    }
    assert!(cases <= whole && (!apart || cases == whole), "{crash}: {cases} of {whole}");
    verdicts
}

#[test]
fn a_recovery_stands_for_cases_that_come_to_the_same() {
    let mut sum = Verdicts::default();
    for protection in [Protection::DEFAULT, Protection::plain(CrashSafety::Off)] {
        for level in ["raid5", "raid6"] {
            let extent = Extent { lost: 1, degraded: 1, every_set: true, ..extent(level, protection, 1) };
            for case in extent.programs().into_iter().step_by(3) {
                let apart = verdicts(&extent, &case, true, None);
                assert_eq!(verdicts(&extent, &case, false, None), apart, "{case}");
                sum.violated += apart.violated;
                sum.excused += apart.excused;
            }
        }
    }
    assert!(sum.violated > 100 && sum.excused > 100, "{sum:?}: there is something to be told apart");
}

/// The tree of other points and programs hides no violation.
#[test]
fn what_ended_well_elsewhere_ends_well() {
    let extent = Extent { every_set: true, ..extent("raid5", Protection::plain(CrashSafety::Off), 2) };
    let (memo, mut sum) = (Memo::default(), 0);
    let programs = extent.programs();
    for case in programs.iter().take_while(|case| case.begins_like(&programs[0])) {
        let apart = verdicts(&extent, case, true, None);
        assert_eq!(verdicts(&extent, case, false, Some(&memo)).violated, apart.violated, "{case}");
        sum += apart.violated;
    }
    assert!(sum > 1000, "{sum}");
}

/// The tree of a place where more may be read hides no violation where less may be read.
#[test]
fn what_ended_well_is_a_violation_where_it_may_not_be_read() {
    let extent = Extent { every_set: true, ..extent("raid5", Protection::DEFAULT, 1) };
    let mut sum = 0;
    for case in extent.programs() {
        let _ = extent.each_crash(&case, &record(&case), |crash| {
            if crash.point.number == crash.of {
                let memo = Memo::default();
                assert_eq!(verdicts_of(crash, false, &memo).violated, 0, "{crash}");
                // As if everything had been flushed.
                let mut flushed = crash.history.clone();
                flushed.stopped();
                let crash = Crash { history: &flushed, ..*crash };
                let violated = verdicts_of(&crash, true, &Memo::default()).violated;
                assert_eq!(verdicts_of(&crash, false, &memo).violated, violated, "{crash}");
                sum += violated;
            }
            ControlFlow::Continue(())
        });
    }
    assert!(sum > 100, "{sum}");
}

/// The result of a loss, and the number of states, depends on the parts of the lost members, and
/// not on which members these are.
#[test]
fn members_that_play_the_same_part_come_to_the_same() {
    let (mut sum, mut left_out) = (Verdicts::default(), 0);
    for protection in [Protection::DEFAULT, Protection::plain(CrashSafety::Off)] {
        for (level, lost) in [("raid6", 2), ("raid7", 1)] {
            let extent = Extent { every_set: true, lost, degraded: lost, ..extent(level, protection, 1) };
            let stripe = first_stripe(&extent.shape, protection);
            let mut ends = BTreeMap::new();
            for case in extent.programs() {
                let alike = case.alike(&stripe);
                let mut by_lost: BTreeMap<Vec<usize>, Verdicts> = BTreeMap::new();
                each_verdict(&extent, &case, false, None, |crash, verdicts| {
                    let sum = by_lost.entry(crash.lost.to_vec()).or_default();
                    // At other points, operations are in flight at the member that happens to come
                    // first.
                    if !crash.point.stood_for {
                        sum.add(verdicts);
                    }
                });
                for (lost, verdicts) in by_lost {
                    let of = |set: &[usize], part: &[usize]| part.iter().filter(|member| set.contains(member)).count();
                    let parts = alike.iter().map(|part| (of(&case.degraded, part), of(&lost, part)));
                    let program = format!("{:?} {:?}", case.before, case.ops);
                    let is = (verdicts.violated, verdicts.excused);
                    left_out += u64::from(!is_first_of_alike(&alike, &[&case.degraded, &lost]));
                    let first = *ends.entry((program, parts.collect::<Vec<_>>())).or_insert(is);
                    assert_eq!(is, first, "{case}, lost {lost:?}: violated and excused");
                    sum.add(verdicts);
                }
            }
        }
    }
    assert!(sum.violated > 100 && sum.excused > 100 && left_out > 100, "{sum:?}, {left_out} left out");
}

/// The choices of a state, and whether it ends in a violation, and with an unreadable block that is
/// excused.
type End = (Vec<Option<usize>>, (bool, bool));

/// Recovers the states that a crash left. `all`: also states that differ from another one only in
/// the content that each member kept.
fn ends(crash: &Crash<'_>, all: bool) -> Vec<End> {
    let states = crash.explorer(crash.cut());
    let states = Rc::new(RefCell::new(if all { states.leave_out_none() } else { states }));
    let (mut ends, memo) = (Vec::new(), Memo::default());
    while states.borrow_mut().next(&memo, |_| true) {
        let counts = Counts::default();
        let is_violated = crash.recover(&states, &counts, false).is_err();
        ends.push((states.borrow().taken(), (is_violated, counts.excused.into_inner() > 0)));
    }
    ends
}

/// All orders of so many elements.
fn orders(len: usize) -> Vec<Vec<usize>> {
    let Some(last) = len.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |order: Vec<usize>| (0..len).map(move |at| [&order[..at], &[last], &order[at..]].concat());
    orders(last).into_iter().flat_map(with_last).collect()
}

/// The state itself, and all states that result when drives that may change places do.
fn exchanges(taken: &[Option<usize>], alike: &[Vec<Vec<usize>>]) -> Vec<Vec<Option<usize>>> {
    let Some((drives, others)) = alike.split_first() else { return vec![taken.to_vec()] };
    let exchange = |order: Vec<usize>| {
        let mut exchanged = taken.to_vec();
        for (from, &to) in order.iter().enumerate() {
            drives[from].iter().zip(&drives[to]).for_each(|(&from, &to)| exchanged[to] = taken[from]);
        }
        exchanges(&exchanged, others)
    };
    orders(drives.len()).into_iter().flat_map(exchange).collect()
}

/// Of several data strips that play the same part, only the number that kept a version matters, not
/// which ones. For every state, one of its exchanged states is recovered, and all of them have the
/// same result.
#[test]
fn data_strips_that_play_the_same_part_may_change_places() {
    let (mut violated, mut excused, mut left_out) = (0, 0, 0);
    for protection in [Protection::DEFAULT, Protection::plain(CrashSafety::Off)] {
        for (level, lost, step) in [("raid6", 2, 2), ("raid7", 1, 3), ("nm", 1, 23)] {
            let extent = Extent { lost, degraded: lost, ..extent(level, protection, 1) };
            for case in extent.programs().iter().step_by(step) {
                let _ = extent.each_crash(case, &record(case), |crash| {
                    let cut = crash.cut();
                    let (recovered, all) = (ends(crash, false), ends(crash, true));
                    for (taken, end) in &all {
                        let mut found = 0;
                        for exchanged in exchanges(taken, cut.alike()) {
                            let agree = |other: &[Option<usize>]| {
                                exchanged
                                    .iter()
                                    .zip(other)
                                    .all(|(one, other)| one.is_none() || other.is_none() || one == other)
                            };
                            for (_, other) in recovered.iter().filter(|(other, _)| agree(other)) {
                                assert_eq!(end, other, "{crash}: violated and excused, of {taken:?} and {exchanged:?}");
                                found += 1;
                            }
                        }
                        assert!(found > 0, "{crash}: nothing stands for {taken:?}");
                        violated += u64::from(end.0);
                        excused += u64::from(end.1);
                    }
                    left_out += all.len() - recovered.len();
                    ControlFlow::Continue(())
                });
            }
        }
    }
    assert!(violated > 100 && excused > 100 && left_out > 500, "{violated}, {excused}, {left_out} left out");
}

/// Points that are only counted leave no state that the others do not leave.
#[test]
fn a_point_that_is_stood_for_adds_nothing() {
    let (mut violated, mut excused) = (0, 0);
    for protection in [Protection::DEFAULT, Protection::plain(CrashSafety::Off)] {
        for level in ["raid5", "raid6"] {
            let extent = Extent { lost: 1, degraded: 1, ..extent(level, protection, 1) };
            for case in extent.programs() {
                let mut by_lost: BTreeMap<Vec<usize>, Vec<(u64, bool, Verdicts)>> = BTreeMap::new();
                each_verdict(&extent, &case, false, None, |crash, verdicts| {
                    let points = by_lost.entry(crash.lost.to_vec()).or_default();
                    points.push((crash.history.fingerprint(), crash.point.stood_for, verdicts));
                });
                // Consecutive points with the same allowed contents.
                for points in by_lost.values().flat_map(|points| points.chunk_by(|one, next| one.0 == next.0)) {
                    let are = |stood_for: bool, of: fn(&Verdicts) -> u64| {
                        points.iter().filter(|point| point.1 == stood_for).map(|point| of(&point.2)).sum::<u64>()
                    };
                    assert!(points.iter().any(|point| !point.1), "{case}: nobody stands for them");
                    for (found, of) in
                        [(&mut violated, (|of| of.violated) as fn(&Verdicts) -> u64), (&mut excused, |of| of.excused)]
                    {
                        assert!(are(true, of) == 0 || are(false, of) > 0, "{case}");
                        *found += are(true, of);
                    }
                }
            }
        }
    }
    assert!(violated > 100 && excused > 50, "{violated} violated, {excused} excused");
}

/// A frame of the log with a missing part has the same result as a missing frame, for any other
/// kept content.
#[test]
fn a_damaged_frame_is_one_that_is_not_there() {
    let (mut damaged, mut excused) = (0, 0);
    for (level, ops, lost, step) in [("raid5", 2, 1, 1), ("nm", 1, 1, 41)] {
        let extent = Extent { lost, degraded: lost, ..extent(level, Protection::DEFAULT, ops) };
        for case in extent.programs().iter().step_by(step) {
            let _ = extent.each_crash(case, &record(case), |crash| {
                let frames = crash.cut().frames(&crash.drives.borrow());
                let mut without: BTreeMap<Vec<Option<usize>>, (bool, bool)> = BTreeMap::new();
                for (mut taken, end) in ends(crash, true) {
                    let parts: Vec<usize> = frames.iter().copied().filter(|frame| taken[*frame] == Some(2)).collect();
                    damaged += u64::from(!parts.is_empty());
                    excused += u64::from(!parts.is_empty() && end.1);
                    parts.iter().for_each(|frame| taken[*frame] = Some(0));
                    let first = *without.entry(taken.clone()).or_insert(end);
                    assert_eq!(end, first, "{crash}: violated and excused, of {taken:?} with frames {parts:?} damaged");
                }
                ControlFlow::Continue(())
            });
        }
    }
    assert!(
        damaged > 1000 && excused > 10,
        "{damaged} states with damaged frames, {excused} of them with unreadable blocks"
    );
}

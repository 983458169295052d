//! Every crash of every short program.
//!
//! For each program the drives' operations are recorded once. Every state that a power cut could
//! leave at every point follows from the tape ([`states`]). Each state that recovery can
//! distinguish ([`explore`]) is assembled and recovered by the real code, without each set of
//! members that the level can do without, and everything is read and compared with the model.
//! level can do without, and everything is read and compared with the model.

mod crash;
mod explore;
mod programs;
mod states;
mod tape;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use format::Shape;

use self::crash::Crash;
use self::explore::{Explorer, Memo};
use self::programs::is_first_of_alike;
pub use self::programs::{Before, Case, Op, alphabet, programs, shapes};
use self::tape::{Recording, Tape, first_stripe, record};
use crate::campaign::{attempt, keep_memory};
use crate::engine::{Protection, lost_sets};

/// The extent of a check so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Programs, each with each set of members missing.
    pub programs: AtomicU64,
    /// Points at which the power failed.
    pub points: AtomicU64,
    /// For each of them, and each set of lost members, the states of the present drives.
    pub cases: AtomicU64,
    /// Recoveries, with everything read and compared. Each stands for all cases that are the same
    /// to it.
    pub recovered: AtomicU64,
    /// Those of them after which a block that was being written cannot be read, as the exception
    /// allows.
    pub excused: AtomicU64,
    /// Violations so far: a run that is aborted has printed none of them.
    pub violations: AtomicU64,
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        write!(
            formatter,
            "{} programs, {} crash points, {} cases, {} recovered, {} with unreadable blocks that may be",
            get(&self.programs),
            get(&self.points),
            get(&self.cases),
            get(&self.recovered),
            get(&self.excused)
        )
    }
}

/// The extent of a check.
#[derive(Debug, Clone)]
pub struct Extent {
    /// The group.
    pub shape: Shape,
    /// Its protection against crashes.
    pub protection: Protection,
    /// Programs have at most this many requests.
    pub ops: usize,
    /// Members that are missing while the program runs: at most this many.
    pub degraded: usize,
    /// Members that are lost while it runs or in the crash, together: at most this many.
    pub lost: usize,
    /// Check each set of lost members, and each state of the present ones, also where one differs
    /// from another only in members that play the same part.
    pub every_set: bool,
    /// Crashes, each in the recovery from the one before: at most this many.
    pub crashes: usize,
    /// Threads.
    pub jobs: usize,
    /// Violations after which it ends.
    pub violations: usize,
    /// Only count the cases, and recover none.
    pub only_count: bool,
    /// The part of the programs to check.
    pub part: Part,
}

/// One of so many parts, about equal, of all programs: a check of days can be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// From 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl Part {
    /// All of it.
    pub const WHOLE: Part = Part { number: 1, of: 1 };

    /// Neighbors stay together, since they begin alike.
    fn of_list<T>(self, list: Vec<T>) -> Vec<T> {
        let at = |number: usize| (list.len() as u128 * number as u128 / self.of as u128) as usize;
        let (start, end) = (at(self.number - 1), at(self.number));
        list.into_iter().take(end).skip(start).collect()
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Part { number, of }),
            _ => Err("a part is written as 2/5, the second of five".into()),
        }
    }
}

impl Extent {
    /// All promises of the level, for programs of up to `ops` requests.
    pub fn whole(shape: Shape, ops: usize) -> Extent {
        let survives = shape.survives();
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Extent {
            shape,
            protection: Protection::DEFAULT,
            ops,
            degraded: survives,
            lost: survives,
            every_set: false,
            crashes: 1,
            jobs,
            violations: 10,
            only_count: false,
            part: Part::WHOLE,
        }
    }

    /// The programs of this part.
    pub fn programs(&self) -> Vec<Case> {
        let alphabet = alphabet(&self.shape);
        let first_stripe = self.first_stripe();
        let mut cases = Vec::new();
        for degraded in lost_sets(&self.shape, self.degraded.min(self.lost)) {
            for before in [Before::Written, Before::Fresh] {
                for ops in (1..=self.ops).flat_map(|len| programs(&alphabet, len)) {
                    let degraded = degraded.clone();
                    let case = Case { shape: self.shape, protection: self.protection, before, degraded, ops };
                    if is_first_of_alike(&alike(&case, first_stripe.as_deref()), &[&case.degraded]) {
                        cases.push(case);
                    }
                }
            }
        }
        self.part.of_list(cases)
    }

    /// Checks these programs. Gives the violations.
    pub fn check(&self, cases: &[Case], counts: &Counts) -> Vec<String> {
        keep_memory();
        let starts: Vec<Start> = cases.chunk_by(Case::begins_like).map(Start::new).collect();
        let start_of: Vec<&Start> = starts.iter().flat_map(|start| std::iter::repeat_n(start, start.cases)).collect();
        let violations = Mutex::new(Vec::new());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < cases.len()) {
                        let full = || violations.lock().expect("violations are caught").len() >= self.violations;
                        if full() {
                            break;
                        }
                        let memo = start_of[number].memo();
                        let found = self.check_program(&cases[number], &memo, counts, &full);
                        start_of[number].done();
                        counts.violations.fetch_add(found.len() as u64, Ordering::Relaxed);
                        violations.lock().expect("violations are caught").extend(found);
                    }
                });
            }
        });
        violations.into_inner().expect("violations are caught")
    }

    fn check_program(&self, case: &Case, memo: &Memo, counts: &Counts, enough: &dyn Fn() -> bool) -> Vec<String> {
        let recording = match attempt(|| record(case)) {
            Ok(recording) => recording,
            Err(why) => return vec![format!("{case}\n  without any crash: {why}")],
        };
        counts.programs.fetch_add(1, Ordering::Relaxed);
        let mut violations = Vec::new();
        let _ = self.each_crash(case, &recording, |crash| {
            self.go_through(crash, self.crashes - 1, memo, counts, &mut violations)?;
            if violations.len() >= VIOLATIONS_OF_PROGRAM || !violations.is_empty() && enough() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        violations
    }

    /// Every point of the program's last request, with every set of lost members. The points of the
    /// earlier requests are those of a shorter program.
    fn each_crash(
        &self,
        case: &Case,
        recording: &Recording,
        mut look: impl FnMut(&Crash<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let drives = Rc::new(RefCell::new(recording.drives(&case.shape, self.every_set)));
        let first_stripe = self.first_stripe();
        let first_stripe = first_stripe.as_deref();
        let alike = alike(case, first_stripe);
        let sets = self.lost_after(case, &alike, &[&case.degraded]);
        // If another crash in the recovery follows, the content that each member kept decides which
        // losses in that crash are equivalent.
        let exchangeable = first_stripe.filter(|_| self.crashes == 1);
        let exchangeable = &exchangeable.map_or(Vec::new(), |first_stripe| case.alike_in_data(first_stripe))[..];
        let of = recording.tape.events.len();
        recording.tape.each_point(&drives, |point, history| {
            if point.number < recording.last {
                return ControlFlow::Continue(());
            }
            let drives = &drives;
            let with = |lost| Crash { case, history, drives, recovering_from: None, point, of, lost, exchangeable };
            sets.iter().try_for_each(|lost| look(&with(lost)))
        })
    }

    /// The data that decide which members play the same part in a program: `None` where each is to
    /// be checked.
    fn first_stripe(&self) -> Option<Vec<usize>> {
        (!self.every_set).then(|| first_stripe(&self.shape, self.protection))
    }

    /// The sets of lost members that may follow the earlier losses, one after the other.
    fn lost_after(&self, case: &Case, alike: &[Vec<usize>], before: &[&[usize]]) -> Vec<Vec<usize>> {
        let mut sets = lost_sets(&case.shape, self.lost);
        sets.retain(|lost| {
            let losses = [before, &[lost]].concat();
            losses.is_sorted_by(|fewer, more| fewer.iter().all(|member| more.contains(member)))
                && is_first_of_alike(alike, &losses)
        });
        sets
    }

    /// Recovers from every state that a crash left, and from all crashes in that recovery if more
    /// are requested.
    fn go_through(
        &self,
        crash: &Crash<'_>,
        more: usize,
        memo: &Memo,
        counts: &Counts,
        violations: &mut Vec<String>,
    ) -> ControlFlow<()> {
        if crash.lost.len() == crash.lost_before().len() {
            counts.points.fetch_add(1, Ordering::Relaxed); // With each set of lost members it comes again.
        }
        let cut = crash.cut();
        counts.cases.fetch_add(cut.states(), Ordering::Relaxed);
        if self.only_count || crash.point.stood_for {
            return ControlFlow::Continue(());
        }
        let states = Rc::new(RefCell::new(crash.explorer(cut)));
        // A block that this recovery does not read may be read by another one after a crash in this
        // one. So no other recovery stands for this one.
        let nothing = Memo::default();
        let known = if more > 0 { &nothing } else { memo };
        while states.borrow_mut().next(known, |outcome| crash.may_be(outcome)) {
            counts.recovered.fetch_add(1, Ordering::Relaxed);
            match crash.recover(&states, counts, more > 0) {
                Ok(recovered) if more == 0 => states.borrow_mut().ended_well(memo, &recovered.outcome),
                Ok(recovered) => {
                    let go_on = |again: &Crash<'_>| self.go_through(again, more - 1, memo, counts, violations);
                    self.each_crash_in_recovery(crash, &states.borrow(), &recovered.tape, go_on)?;
                }
                Err(why) => violations.push(format!("{crash}, kept:{}\n  {why}", states.borrow().text())),
            }
            if violations.len() >= VIOLATIONS_OF_PROGRAM {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Every point of a recovery, with the same members lost and with more.
    fn each_crash_in_recovery(
        &self,
        first: &Crash<'_>,
        state: &Explorer,
        tape: &Tape,
        mut look: impl FnMut(&Crash<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let drives = Rc::new(RefCell::new(first.drives.borrow().over()));
        let alike = alike(first.case, self.first_stripe().as_deref());
        let sets = self.lost_after(first.case, &alike, &first.losses());
        let (recovering_from, of) = (Some((first, state)), tape.events.len());
        tape.each_point(&drives, |point, history| {
            let with = |lost| Crash { history, drives: &drives, recovering_from, point, of, lost, ..*first };
            sets.iter().try_for_each(|lost| look(&with(lost)))
        })
    }
}

/// The members that play the same part in a program: none where each is to be checked.
fn alike(case: &Case, first_stripe: Option<&[usize]>) -> Vec<Vec<usize>> {
    first_stripe.map_or(Vec::new(), |first_stripe| case.alike(first_stripe))
}

/// Violations of a program after which its check ends.
const VIOLATIONS_OF_PROGRAM: usize = 3;

/// Programs that begin on the same drives.
struct Start {
    cases: usize,
    /// How many are not checked yet.
    left: AtomicUsize,
    memo: Mutex<Arc<Memo>>,
}

impl Start {
    fn new(cases: &[Case]) -> Start {
        Start { cases: cases.len(), left: AtomicUsize::new(cases.len()), memo: Mutex::default() }
    }

    fn memo(&self) -> Arc<Memo> {
        self.memo.lock().expect("nobody panics with it").clone()
    }

    /// A program was checked. The last one frees the memory.
    fn done(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.memo.lock().expect("nobody panics with it") = Arc::default();
        }
    }
}

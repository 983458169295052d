//! Every crash of every short program.
//!
//! For each program the drives' operations are recorded once; from the tape follows every state that a power cut could
//! leave at every point ([`states`]); each that can be told apart ([`explore`]) is assembled and recovered by the real code,
//! without each set of members that the level can do without, and everything is read and compared with the model.

mod explore;
mod programs;
mod states;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ::drive::{BlockError, BufMut};
use array::Array;
use format::{CrashSafety, Shape};

use self::explore::{Explorer, Memo};
pub use self::programs::{Before, Case, Op, alphabet, programs, shapes};
use self::states::{BLOCK_BYTES, Cut, Drives, Page};
use crate::campaign::{attempt, keep_memory};
use crate::engine::history::{History, Loss, Request, Shared, Violation, perform};
use crate::engine::{Group, KIB, Protection, lost_sets};
use crate::rng::mix;
use crate::trace::TapeEvent;
use crate::{DriveOptions, Latency, Sim, SimDrive, SimEnv};

/// What was gone through.
#[derive(Debug, Default)]
pub struct Counts {
    /// Programs, each with each set of members missing.
    pub programs: AtomicU64,
    /// Points at which the power failed.
    pub points: AtomicU64,
    /// For each of them, and each set of lost members, the states of the drives that are there.
    pub cases: AtomicU64,
    /// Recoveries, with everything read and compared, each of which stands for all cases that are the same to it.
    pub recovered: AtomicU64,
    /// Those of them after which a block that was being written cannot be read, as the exception allows.
    pub excused: AtomicU64,
    /// Violations so far: a run that is broken off has told none of them.
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

/// How much is gone through.
#[derive(Debug, Clone)]
pub struct Extent {
    /// The group.
    pub shape: Shape,
    /// What it does against crashes.
    pub protection: Protection,
    /// Programs have at most this many requests.
    pub ops: usize,
    /// Members that are missing while the program runs: at most this many.
    pub degraded: usize,
    /// Members that are lost while it runs or in the crash, together: at most this many.
    pub lost: usize,
    /// Threads.
    pub jobs: usize,
    /// Violations after which it ends.
    pub violations: usize,
    /// Only count the cases, and recover none.
    pub only_count: bool,
    /// Which of the programs.
    pub part: Part,
}

/// One of so many parts, about equal, of all programs: what takes days is gone through piece by piece.
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

    /// Neighbours stay together, since they begin alike.
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
    /// Everything the level promises, for programs of up to `ops` requests.
    pub fn whole(shape: Shape, ops: usize) -> Extent {
        let survives = shape.survives();
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Extent {
            shape,
            protection: Protection::DEFAULT,
            ops,
            degraded: survives,
            lost: survives,
            jobs,
            violations: 10,
            only_count: false,
            part: Part::WHOLE,
        }
    }

    /// The programs of this part.
    pub fn programs(&self) -> Vec<Case> {
        let alphabet = alphabet(&self.shape);
        let mut cases = Vec::new();
        for degraded in lost_sets(&self.shape, self.degraded.min(self.lost)) {
            for before in [Before::Written, Before::Fresh] {
                for ops in (1..=self.ops).flat_map(|len| programs(&alphabet, len)) {
                    let degraded = degraded.clone();
                    cases.push(Case { shape: self.shape, protection: self.protection, before, degraded, ops });
                }
            }
        }
        self.part.of_list(cases)
    }

    /// Goes through these programs. Gives the violations.
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
        let mut last_point = None;
        self.each_crash(case, &recording, |crash| {
            if last_point.replace(crash.point) != Some(crash.point) {
                counts.points.fetch_add(1, Ordering::Relaxed);
            }
            let cut = crash.cut();
            counts.cases.fetch_add(cut.states(), Ordering::Relaxed);
            if self.only_count {
                return ControlFlow::Continue(());
            }
            let states = Rc::new(RefCell::new(Explorer::new(&crash.drives.borrow(), cut, crash.root())));
            while states.borrow_mut().next(&crash.drives.borrow(), memo) {
                counts.recovered.fetch_add(1, Ordering::Relaxed);
                match crash.recover(&states, counts) {
                    Ok(()) => states.borrow_mut().ended_well(memo),
                    Err(why) => violations.push(format!("{crash}, kept:{}\n  {why}", crash.text(&states.borrow()))),
                }
                if violations.len() >= 3 || !violations.is_empty() && enough() {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        violations
    }

    /// Every point of the program's last request, since those of the ones before are a shorter program's, with every set of lost
    /// members.
    fn each_crash(&self, case: &Case, recording: &Recording, mut look: impl FnMut(&Crash<'_>) -> ControlFlow<()>) {
        let mut sets = lost_sets(&case.shape, self.lost);
        sets.retain(|lost| case.degraded.iter().all(|member| lost.contains(member)));
        let per_set = case.shape.members_per_set() as u32;
        let drives = Drives::new(recording.images.clone(), recording.data.clone(), per_set);
        let drives = Rc::new(RefCell::new(drives));
        for point in 0..=recording.tape.len() {
            if let Some(event) = point.checked_sub(1).map(|last| &recording.tape[last]) {
                drives.borrow_mut().apply(event);
            }
            if point < recording.last {
                continue;
            }
            for lost in &sets {
                if look(&Crash { case, recording, drives: &drives, point, lost }).is_break() {
                    return;
                }
            }
        }
    }
}

/// Programs that begin on the same drives.
struct Start {
    cases: usize,
    /// How many are not gone through.
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

    /// One is gone through. Memory is let go with the last.
    fn done(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.memo.lock().expect("nobody panics with it") = Arc::default();
        }
    }
}

/// The smallest drive that a group of this shape can have, with two units.
fn drive_bytes(shape: &Shape, protection: Protection) -> u64 {
    let need = match format::Layout::plan(shape, 0, protection.has_checksums()) {
        Err(format::LayoutError::TooSmall { need, .. }) => need,
        other => unreachable!("no drive is large enough to be a member with nothing: {other:?}"),
    };
    need.next_multiple_of(4 * KIB)
}

/// What a run left behind.
struct Recording {
    tape: Vec<TapeEvent>,
    /// Where on the tape the last request begins, if it is not the only one.
    last: usize,
    /// The drives before the program, by page.
    images: Vec<Vec<Page>>,
    /// From which point of the tape on which history holds.
    histories: Vec<(usize, History)>,
    data: std::ops::Range<u64>,
}

fn options(case: &Case, index: usize, latency: Latency) -> DriveOptions {
    let bytes = drive_bytes(&case.shape, case.protection);
    DriveOptions { latency, ..DriveOptions::new(&format!("d{index}"), bytes, BLOCK_BYTES as u32) }
}

/// Runs a program to its end, and records what the drives were asked.
fn record(case: &Case) -> Recording {
    let sim = Sim::new(1);
    let env = sim.env();
    // Every operation takes a turn: those that do not wait for each other are in flight together.
    let drives: Vec<SimDrive> = (0..usize::from(case.shape.members))
        .map(|index| SimDrive::with_options(&env, options(case, index, Latency::between(1, 1))))
        .collect();
    let mut group = Group::create_with(&sim, case.shape, case.protection, drives.clone(), 1);
    let history = History::shared(&group);
    if case.protection.safety == CrashSafety::Strict {
        history.borrow_mut().make_strict();
    }
    if !case.degraded.is_empty() {
        sim.block_on(group.stop());
        let left = (0..drives.len()).filter(|index| !case.degraded.contains(index));
        group = Group::open(&sim, left.map(|index| drives[index].clone()).collect(), 1);
    }
    let size = group.size();
    let range = |op: &Op| if op.len == u64::MAX { (0, size) } else { (op.start, op.len) };
    if case.before == Before::Written {
        sim.block_on(async {
            perform(group.leader(), &history, Request::Write { fua: false }, 0, size).await.expect("writable");
            perform(group.leader(), &history, Request::Flush, 0, 0).await.expect("flushes");
        });
    }
    sim.block_on(async {
        for drive in &group.drives {
            ::drive::Drive::flush(drive).await.expect("flushes");
        }
    });
    let page = |index: usize, number: u64| {
        Page::new(&drives[index].read_raw(number * BLOCK_BYTES, BLOCK_BYTES), (index as u32, number))
    };
    let pages = drive_bytes(&case.shape, case.protection) / BLOCK_BYTES;
    let images = (0..drives.len()).map(|index| (0..pages).map(|number| page(index, number)).collect()).collect();
    let geometry = group.leader().shared().geometry.clone();
    let first = geometry.data_start / BLOCK_BYTES;
    let data = first..first + geometry.bands * geometry.unit / BLOCK_BYTES;
    sim.tape_start();
    let mut histories = vec![(0, history.borrow().clone())];
    let mut last = 0;
    for (index, op) in case.ops.iter().enumerate() {
        let (start, len) = range(op);
        let at = sim.tape_len();
        last = if index == 0 { 0 } else { at + 1 };
        let before: Shared = history.clone();
        sim.block_on(async {
            let request = perform(group.leader(), &before, op.request, start, len);
            let noted = async {
                // The request has begun when this is polled after it.
                histories.push((at, before.borrow().clone()));
            };
            both_in_order(async { request.await.expect("nothing is wrong") }, noted).await;
        });
        histories.push((sim.tape_len(), history.borrow().clone()));
    }
    Recording { tape: sim.tape_take(), last, images, histories, data }
}

async fn both_in_order(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(first), Box::pin(second)];
    ::drive::join_all(futures).await;
}

/// A crash, and the members that are lost with it or before.
struct Crash<'a> {
    case: &'a Case,
    recording: &'a Recording,
    /// As they are at this point of the tape.
    drives: &'a Rc<RefCell<Drives>>,
    point: usize,
    lost: &'a [usize],
}

impl fmt::Display for Crash<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crash { case, recording, point, lost, .. } = self;
        write!(formatter, "{case}\n  crash after {point} of {} drive events, lost {lost:?}", recording.tape.len())
    }
}

impl Crash<'_> {
    fn history(&self) -> &History {
        let begun = self.recording.histories.iter().rfind(|(from, _)| *from <= self.point);
        &begun.expect("it begins at 0").1
    }

    /// What the power cut decides.
    fn cut(&self) -> Cut {
        self.drives.borrow().cut(self.lost)
    }

    /// Stands for what a recovery depends on besides what it reads: who is there, and with what it is compared.
    fn root(&self) -> u128 {
        let lost = self.lost.iter().fold(1_u64, |sum, &member| sum | 2 << member);
        u128::from(self.history().fingerprint()) << 64 | u128::from(mix(lost))
    }

    fn text(&self, states: &Explorer) -> String {
        states.text(&self.drives.borrow())
    }

    /// Recovers, reads everything and compares. Which state it is, is decided as it is read.
    fn recover(&self, states: &Rc<RefCell<Explorer>>, counts: &Counts) -> Result<(), String> {
        let recovered = attempt(|| {
            let sim = Sim::new(1);
            let env = sim.env();
            let members = 0..usize::from(self.case.shape.members);
            let drives = members.filter(|member| !self.lost.contains(member)).map(|member| {
                let (drives, states) = (self.drives.clone(), states.clone());
                let image = move |page| states.borrow_mut().page(&drives.borrow(), (member as u32, page));
                SimDrive::with_image(&env, options(self.case, member, Latency::IMMEDIATE), Rc::new(image))
            });
            let group = Group::open(&sim, drives.collect(), 1);
            sim.block_on(self.compare(&group, counts))
        });
        recovered?.map_err(|Violation(why)| why)
    }

    async fn compare(&self, group: &Group, counts: &Counts) -> Result<(), Violation> {
        // Lost in the crash, and not before.
        let here = self.lost.iter().filter(|member| !self.case.degraded.contains(member));
        let lost: Vec<Loss> = here.map(|&member| Loss::in_power_cut(member)).collect();
        let array = group.leader();
        let mut unreadable = Vec::new();
        self.read_all(array, &lost, &mut unreadable).await?;
        group.jobs_end().await;
        if !unreadable.is_empty() {
            counts.excused.fetch_add(1, Ordering::Relaxed);
        }
        for start in unreadable {
            self.rewrite(array, start).await?;
        }
        if self.lost.is_empty() && group.differences().await != 0 {
            return Err(Violation("data and syndromes disagree after recovery".into()));
        }
        Ok(())
    }

    async fn read_all(&self, array: &Array<SimEnv>, lost: &[Loss], unreadable: &mut Vec<u64>) -> Result<(), Violation> {
        let size = array.size_bytes();
        for at in (0..size).step_by(64 << 10) {
            let len = (64 * KIB).min(size - at);
            if let Ok(read) = array.read(at, BufMut::zeroed(len as usize)).await {
                self.history().check(at, &read)?;
                continue;
            }
            for block in (at..at + len).step_by(BLOCK_BYTES as usize) {
                match array.read(block, BufMut::zeroed(BLOCK_BYTES as usize)).await {
                    Ok(read) => self.history().check(block, &read)?,
                    Err(BlockError::Stopped) => return Err(Violation("the group has stopped".into())),
                    Err(_) => {
                        self.history().check_unreadable(block, lost)?;
                        unreadable.push(block);
                    }
                }
            }
        }
        Ok(())
    }

    /// A block that cannot be read can be written again, and read then.
    async fn rewrite(&self, array: &Array<SimEnv>, start: u64) -> Result<(), Violation> {
        let bytes = vec![0x5A; BLOCK_BYTES as usize];
        let failed = |what: &str, error: BlockError| {
            Violation(format!("block {start} could not be read, as it may be, but cannot be {what} either: {error}"))
        };
        array.write(start, bytes.clone().into(), false).await.map_err(|error| failed("written", error))?;
        let read = array.read(start, BufMut::zeroed(BLOCK_BYTES as usize)).await;
        let read = read.map_err(|error| failed("read after it was written again", error))?;
        if read[..] == bytes[..] {
            Ok(())
        } else {
            Err(Violation(format!("block {start} is not what was written again")))
        }
    }
}

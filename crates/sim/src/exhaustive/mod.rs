//! Every crash of every short program.
//!
//! For each program the drives' operations are recorded once; from the tape follows every state that a power cut could
//! leave at every point ([`states`]); each is assembled and recovered by the real code, without each set of members that
//! the level can do without, and everything is read and compared with the model.

mod programs;
mod states;

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ::drive::{BlockError, BufMut};
use array::Array;
use format::{CrashSafety, Shape};

pub use self::programs::{Before, Case, Op, alphabet, programs, shapes};
use self::states::{BLOCK_BYTES, Drives, Page, Place, State};
use crate::campaign::{attempt, keep_memory};
use crate::engine::history::{History, Loss, Request, Shared, Violation, perform};
use crate::engine::{Group, KIB, Protection, lost_sets};
use crate::rng::mix;
use crate::trace::TapeEvent;
use crate::{DriveOptions, Latency, PageRc, Sim, SimDrive, SimEnv};

/// What was gone through.
#[derive(Debug, Default)]
pub struct Counts {
    /// Programs, each with each set of members missing.
    pub programs: AtomicU64,
    /// Points at which the power failed.
    pub points: AtomicU64,
    /// States of the drives at those, times sets of lost members.
    pub cases: AtomicU64,
    /// Those of the cases that no other one had in common: recovered and read.
    pub distinct: AtomicU64,
    /// Cases in which a block that was being written cannot be read, as the exception allows.
    pub excused: AtomicU64,
    /// Violations so far: a run that is broken off has told none of them.
    pub violations: AtomicU64,
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        write!(
            formatter,
            "{} programs, {} crash points, {} cases, {} of them distinct, {} with unreadable blocks that may be",
            get(&self.programs),
            get(&self.points),
            get(&self.cases),
            get(&self.distinct),
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
    /// Only count the cases, which takes a small part of the time.
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
        // The longer ones first, since they have the shorter ones as their beginnings.
        for degraded in lost_sets(&self.shape, self.degraded.min(self.lost)) {
            for before in [Before::Written, Before::Fresh] {
                for ops in programs(&alphabet, self.ops) {
                    let degraded = degraded.clone();
                    cases.push(Case { shape: self.shape, protection: self.protection, before, degraded, ops });
                }
            }
        }
        self.part.of_list(cases)
    }

    /// Goes through these programs. Gives the violations, none of which is in the counts twice.
    pub fn check(&self, cases: &[Case], counts: &Counts) -> Vec<String> {
        keep_memory();
        let seen: Vec<Mutex<HashSet<u128>>> = (0..64).map(|_| Mutex::default()).collect();
        let violations = Mutex::new(Vec::new());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let full = || violations.lock().expect("violations are caught").len() >= self.violations;
                        if full() {
                            break;
                        }
                        let found = self.check_program(case, &seen, counts, &full);
                        counts.violations.fetch_add(found.len() as u64, Ordering::Relaxed);
                        violations.lock().expect("violations are caught").extend(found);
                    }
                });
            }
        });
        violations.into_inner().expect("violations are caught")
    }

    fn check_program(
        &self,
        case: &Case,
        seen: &[Mutex<HashSet<u128>>],
        counts: &Counts,
        enough: &dyn Fn() -> bool,
    ) -> Vec<String> {
        let recording = match attempt(|| record(case)) {
            Ok(recording) => recording,
            Err(why) => return vec![format!("{case}\n  without any crash: {why}")],
        };
        counts.programs.fetch_add(1, Ordering::Relaxed);
        let sets: Vec<Vec<usize>> = lost_sets(&case.shape, self.lost)
            .into_iter()
            .filter(|lost| case.degraded.iter().all(|member| lost.contains(member)))
            .collect();
        let mut drives = Drives::new(recording.data.clone(), case.shape.members_per_set() as u32);
        // Hashes of what is durable, by drive: the sum over its blocks.
        let mut violations = Vec::new();
        for point in 0..=recording.tape.len() {
            if let Some(event) = point.checked_sub(1).map(|last| &recording.tape[last]) {
                drives.apply(event);
            }
            counts.points.fetch_add(1, Ordering::Relaxed);
            let (_, history) = recording.histories.iter().rfind(|(from, _)| *from <= point).expect("it begins at 0");
            let fingerprint = history.fingerprint();
            for state in drives.states() {
                let hashes = state_hashes(&drives, &state, recording.images.len());
                for lost in &sets {
                    counts.cases.fetch_add(1, Ordering::Relaxed);
                    if !is_new(&hashes, lost, fingerprint, case, seen) {
                        continue;
                    }
                    counts.distinct.fetch_add(1, Ordering::Relaxed);
                    if self.only_count {
                        continue;
                    }
                    let crash = Crash { case, recording: &recording, drives: &drives, state: &state, history, lost };
                    let result = match attempt(|| crash.recover(counts)) {
                        Ok(Ok(())) => continue,
                        Ok(Err(Violation(why))) | Err(why) => why,
                    };
                    violations.push(format!(
                        "{case}\n  crash after {point} of {} drive events, lost {lost:?}, kept:{}\n  {result}",
                        recording.tape.len(),
                        if state.text.is_empty() { " nothing" } else { &state.text }
                    ));
                    if enough() || violations.len() >= 3 {
                        return violations;
                    }
                }
            }
        }
        violations
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
    /// The drives before the program, by page.
    images: Vec<Vec<PageRc>>,
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
    let page = |drive: &SimDrive, page: u64| -> PageRc {
        let bytes = drive.read_raw(page * BLOCK_BYTES, BLOCK_BYTES);
        PageRc::new(bytes.try_into().expect("a page"))
    };
    let pages = drive_bytes(&case.shape, case.protection) / BLOCK_BYTES;
    let images = drives.iter().map(|drive| (0..pages).map(|number| page(drive, number)).collect()).collect();
    let geometry = group.leader().shared().geometry.clone();
    let first = geometry.data_start / BLOCK_BYTES;
    let data = first..first + geometry.bands * geometry.unit / BLOCK_BYTES;
    sim.tape_start();
    let mut histories = vec![(0, history.borrow().clone())];
    for op in &case.ops {
        let (start, len) = range(op);
        let at = sim.tape_len();
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
    Recording { tape: sim.tape_take(), images, histories, data }
}

async fn both_in_order(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(first), Box::pin(second)];
    ::drive::join_all(futures).await;
}

/// A hash of each drive's blocks that are not as before the program.
fn state_hashes(drives: &Drives, state: &State, count: usize) -> Vec<u64> {
    let mut hashes = vec![0_u64; count];
    let is_changed = |place: &Place| state.changed.iter().any(|(changed, _)| changed == place);
    for (place, page) in drives.durable.iter().filter(|(place, _)| !is_changed(place)) {
        hashes[place.0 as usize] = hashes[place.0 as usize].wrapping_add(page.hash);
    }
    for (index, (place, page)) in state.changed.iter().enumerate() {
        // Of several versions of a block the last one counts.
        if state.changed[index + 1..].iter().all(|(later, _)| later != place) {
            hashes[place.0 as usize] = hashes[place.0 as usize].wrapping_add(page.hash);
        }
    }
    hashes
}

/// This image has not been recovered without these members, to be compared with the same model.
fn is_new(hashes: &[u64], lost: &[usize], history: u64, case: &Case, seen: &[Mutex<HashSet<u128>>]) -> bool {
    let mut keys = [mix(history), mix(history ^ 0x5bd1_e995)];
    let degraded = case.degraded.iter().fold(1_u64, |sum, &member| sum | 2 << member);
    let lost_bits = lost.iter().fold(1_u64, |sum, &member| sum | 2 << member);
    for (salt, key) in keys.iter_mut().enumerate() {
        *key = mix(*key ^ mix(degraded ^ lost_bits << 20 ^ (u64::from(case.before == Before::Fresh)) << 40));
        for (index, hash) in hashes.iter().enumerate().filter(|(index, _)| !lost.contains(index)) {
            *key = mix(*key ^ mix(hash.wrapping_add((index + 17 * salt) as u64)));
        }
    }
    let key = u128::from(keys[0]) << 64 | u128::from(keys[1]);
    seen[(keys[0] % seen.len() as u64) as usize].lock().expect("violations are caught").insert(key)
}

/// A crash, and the members that are there afterwards.
struct Crash<'a> {
    case: &'a Case,
    recording: &'a Recording,
    drives: &'a Drives,
    state: &'a State,
    history: &'a History,
    lost: &'a [usize],
}

impl Crash<'_> {
    fn page(&self, place: Place) -> PageRc {
        let changed: Option<&Page> =
            self.state.changed.iter().rfind(|(changed, _)| *changed == place).map(|(_, page)| page);
        let page = changed.or_else(|| self.drives.durable.get(&place));
        page.map_or_else(
            || self.recording.images[place.0 as usize][place.1 as usize].clone(),
            |page| page.bytes.clone(),
        )
    }

    /// Recovers, reads everything and compares.
    fn recover(&self, counts: &Counts) -> Result<(), Violation> {
        let sim = Sim::new(1);
        let env = sim.env();
        let members = 0..usize::from(self.case.shape.members);
        let drives = members.filter(|member| !self.lost.contains(member)).map(|member| {
            let pages = 0..self.recording.images[member].len() as u64;
            let pages = pages.map(|page| self.page((member as u32, page)));
            SimDrive::with_image(&env, options(self.case, member, Latency::IMMEDIATE), pages)
        });
        let group = Group::open(&sim, drives.collect(), 1);
        sim.block_on(self.compare(&group, counts))
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
                self.history.check(at, &read)?;
                continue;
            }
            for block in (at..at + len).step_by(BLOCK_BYTES as usize) {
                match array.read(block, BufMut::zeroed(BLOCK_BYTES as usize)).await {
                    Ok(read) => self.history.check(block, &read)?,
                    Err(BlockError::Stopped) => return Err(Violation("the group has stopped".into())),
                    Err(_) => {
                        self.history.check_unreadable(block, lost)?;
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

#[cfg(test)]
mod tests {
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
}

//! Every crash of every short program, over a model of a group.
//!
//! Segments have one stripe, a volume has 36 blocks, and a checkpoint is due after 12 writes. A
//! program begins with segments that are half garbage, so that the collector has work at once. Then
//! it has up to so many steps, one after the other: writes, a discard, a flush, landing, a
//! checkpoint, a collection, and packing again. Each event of the last step is a crash point; those
//! of the steps before are crash points of shorter programs.
//!
//! The model group leaves each subset of the changes that are not durable ([`Remains`]), and of
//! writes to allocated chunks also a half. A *state* is what a recovery starts from: the content of
//! the group, and the contents that the volumes may have. Each state is recovered from once. A
//! recovery reads everything, goes on with a write, a flush and a collection, is stopped, and
//! everything is read again.
//!
//! Not covered here: several steps at the same time, other durations of operations, and crashes in
//! recoveries. [`super::check`] draws those.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::backing::Image;
use super::check::{BLOCKS, Context, Program, Step, empty_store, open, run, run_until, until_stop};
use super::check_sums;
use super::model::Model;
use crate::campaign::attempt;

/// Numbers of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EveryCounts {
    /// Programs, each with a power cut and with a kill.
    pub programs: u64,
    /// Points in time at which they were stopped.
    pub crashes: u64,
    /// States that these left, at each of them.
    pub left: u64,
    /// Different ones among them.
    pub states: u64,
}

impl fmt::Display for EveryCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EveryCounts { programs, crashes, left, states } = self;
        write!(f, "{programs} programs, {crashes} crashes, {left} states left, {states} different ones recovered from")
    }
}

/// The steps that programs consist of.
fn steps() -> [Step; 9] {
    [
        Step::Write(1, 0..1, false),
        Step::Write(1, 0..1, true),
        Step::Write(1, 2..20, false),
        Step::Discard(1, 0..9),
        Step::Flush,
        Step::Land,
        Step::Checkpoint,
        Step::Collect,
        Step::Repack,
    ]
}

/// Blocks in segments that are half garbage, and covered by a checkpoint.
fn beginning() -> Vec<Vec<Step>> {
    let write = |range| vec![Step::Write(1, range, true)];
    vec![write(0..15), vec![Step::Land], write(0..8), vec![Step::Land], vec![Step::Checkpoint]]
}

/// All programs of up to `most` steps: whether they are killed, and their steps.
fn programs(most: usize) -> Vec<(bool, Vec<Step>)> {
    let mut all: Vec<Vec<Step>> = vec![Vec::new()];
    let mut last = all.clone();
    for _ in 0..most {
        last = last.iter().flat_map(|before| steps().map(|step| [before.clone(), vec![step]].concat())).collect();
        all.extend(last.iter().cloned());
    }
    [false, true].into_iter().flat_map(|is_kill| all.iter().map(move |steps| (is_kill, steps.clone()))).collect()
}

fn program(is_kill: bool, steps: &[Step]) -> Program {
    let steps = steps.iter().map(|step| vec![step.clone()]);
    Program::new(1, is_kill, 1, beginning().into_iter().chain(steps).collect())
}

/// A check that is under way.
#[derive(Default)]
struct Check {
    next: AtomicUsize,
    counts: Mutex<EveryCounts>,
    states: Mutex<HashSet<u64>>,
    violations: Mutex<Vec<String>>,
}

/// Checks every program of up to `most` steps, with so many threads. Returns the violations.
pub fn every(most: usize, jobs: usize) -> (EveryCounts, Vec<String>) {
    let (programs, check) = (programs(most), Check::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let empty = empty_store(&program(false, &[]));
                while let Some((is_kill, steps)) = programs.get(check.next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = attempt(|| check.program(*is_kill, steps, &empty)) {
                        check.violations.lock().expect("violations are caught").push(why);
                    }
                }
            });
        }
    });
    let counts = check.counts.into_inner().expect("violations are caught");
    (counts, check.violations.into_inner().expect("violations are caught"))
}

impl Check {
    /// Stops a program at each event of its last step, and recovers from all that is left.
    fn program(&self, is_kill: bool, steps: &[Step], empty: &Image) {
        let program_of = |steps| program(is_kill, steps);
        let (program, events_before) = match steps.split_last() {
            Some((_, before)) => (program_of(steps), run(&program_of(before))),
            None => (program_of(steps), 0),
        };
        let mut counts = EveryCounts { programs: 1, ..EveryCounts::default() };
        for stop_at in events_before + 1..=run(&program) {
            let model = RefCell::default();
            let (remains, _) = run_until(&program, (stop_at, &model), empty.clone());
            let mut model: Model = model.into_inner();
            if is_kill {
                model.killed();
            }
            counts.crashes += 1;
            for image in remains.expect("the group stops before the program ends").every_image() {
                counts.left += 1;
                if self.is_new(&image, &model) {
                    counts.states += 1;
                    recover(&Context { program: &program, stop_at, recovery: counts.states }, image, model.clone());
                }
            }
        }
        let mut sum = self.counts.lock().expect("violations are caught");
        sum.programs += counts.programs;
        sum.crashes += counts.crashes;
        sum.left += counts.left;
        sum.states += counts.states;
    }

    fn is_new(&self, image: &Image, model: &Model) -> bool {
        let mut hasher = DefaultHasher::new();
        (image, model).hash(&mut hasher);
        self.states.lock().expect("violations are caught").insert(hasher.finish())
    }
}

/// Recovers from a state, looks whether all is there, goes on, and looks again after a restart.
fn recover(context: &Context, image: Image, mut model: Model) {
    let (program, never) = (context.program, context.program.stop_at(u64::MAX));
    let (mut left, blocks) = (None, 0..BLOCKS / 2);
    until_stop((1, image), never, |group| {
        let (model, left) = (&mut model, &mut left);
        async move {
            let pool = open(program, group.clone()).await;
            pool.observe(model, context).await;
            check_sums(&pool.store, program.capacity_bytes());
            let going_on = RefCell::new(std::mem::take(model));
            for step in [Step::Write(1, blocks, false), Step::Flush, Step::Collect] {
                pool.perform(&step, &going_on, true).await;
                check_sums(&pool.store, program.capacity_bytes());
            }
            *left = Some((group.image(), going_on.into_inner()));
        }
    });
    let (image, mut model) = left.expect("it does not stop");
    until_stop((1, image), never, |group| {
        let model = &mut model;
        async move {
            let pool = open(program, group).await;
            pool.observe(model, context).await;
            check_sums(&pool.store, program.capacity_bytes());
        }
    });
}

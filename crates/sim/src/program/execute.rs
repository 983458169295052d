//! Executing a program together with the model.

mod crashes;
mod faults;
mod outages;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ::drive::{DriveError, Env, join_all};
use array::{Array, MemberIndex, Owners, ScrubMode};
use format::{CrashSafety, MemberState};

use self::crashes::Cut;
use super::promise::{Fault, Ledger, fires_cut, is_promised};
use super::{Ask, Pace, Program, Setup, Step};
use crate::engine::history::{self, Asked, History, Loss, Request, perform_on};
use crate::engine::{Group, subsets};
use crate::{DriveOptions, Latency, Outage, PageRc, Rng, Sim, SimDrive, SimEnv, Target, Ways};

/// Polls in one run: far above the need of any program.
const STEPS_MAX: u64 = 50_000_000;

/// The totals of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs.
    pub runs: u64,
    /// Drive operations that were completed.
    pub drive_ops: u64,
    /// Requests of users.
    pub requests: u64,
    /// Power cuts and kills, those during recovery included.
    pub crashes: u64,
    /// Assemblies that succeeded.
    pub recoveries: u64,
    /// Assemblies that failed because the path to the drives did, and were tried again.
    pub unstarted: u64,
    /// Requests that failed while more drives were unreachable than the group survives.
    pub refused: u64,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// Changes of the owners of stripe groups.
    pub moved: u64,
    /// Trouble that the engine took, by place.
    pub buggify: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Adds the totals of another run.
    pub fn add(&mut self, other: &Tally) {
        self.runs += other.runs;
        self.drive_ops += other.drive_ops;
        self.requests += other.requests;
        self.crashes += other.crashes;
        self.recoveries += other.recoveries;
        self.unstarted += other.unstarted;
        self.refused += other.refused;
        self.moved += other.moved;
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        for (place, count) in &other.buggify {
            *self.buggify.entry(place).or_default() += count;
        }
    }
}

/// Members that the group knows to be lost, and when that was noticed.
#[derive(Clone, Default)]
struct Noticed(Rc<RefCell<Vec<Loss>>>);

impl Noticed {
    /// Updates the list. A member whose slot has another drive is lost until that drive is filled.
    fn look(&self, array: &Array<SimEnv>, history: &history::Shared) {
        let (begun, answered) = (history.borrow().begun(), history.borrow().now());
        let mut noticed = self.0.borrow_mut();
        for (MemberIndex(member), slot) in array.shared().slots() {
            let member = usize::from(member);
            let known = noticed.iter().position(|loss| loss.member == member);
            match (slot.state, known) {
                (MemberState::InSync, Some(index)) => drop(noticed.swap_remove(index)),
                (MemberState::InSync, None) | (_, Some(_)) => {}
                (_, None) => noticed.push(Loss { member, begun, answered }),
            }
        }
    }
}

struct Run {
    sim: Sim,
    setup: Setup,
    /// Present except while the power is off.
    group: Option<Group>,
    history: history::Shared,
    rng: Rng,
    ledger: Ledger,
    cut: Option<Cut>,
    ways: Rc<Ways>,
    /// The target and the drive of each member that is on one.
    targets: BTreeMap<usize, (Target, SimDrive)>,
    /// Mishaps that have not ended.
    mishaps: Rc<Cell<usize>>,
    /// Drives that were left out of an assembly, by their former member.
    removed: Vec<(usize, SimDrive)>,
    outages: Vec<outages::Armed>,
    /// Outages that come with the next start.
    due: Vec<outages::Due>,
    /// Drives that were disconnected when the group was started.
    disconnected: Vec<SimDrive>,
    /// Drives were damaged, and only a scrub finds all of the damage.
    damaged: bool,
    /// Members that a rebuild is to fill.
    filling: Vec<usize>,
    /// The drive that a member was last copied to.
    exchanged: Option<u32>,
    noticed: Noticed,
    tally: Rc<RefCell<Tally>>,
}

/// Executes a program to its end.
///
/// # Panics
/// At the first violation of a promise, and if the program is not within the promises.
pub fn execute(program: &Program, verbose: bool) -> Tally {
    assert!(is_promised(program), "the program asks for more than is promised");
    let sim = Sim::new(program.seed);
    sim.set_steps_max(STEPS_MAX);
    let rng = sim.rng();
    let setup = program.setup;
    let drives = (0..usize::from(setup.shape.members)).map(|index| new_drive(&sim, &setup, &format!("d{index}")));
    let drives: Vec<SimDrive> = drives.collect();
    if setup.buggify {
        sim.enable_buggify();
    }
    let (mut ways, mut targets) = (Ways::default(), BTreeMap::new());
    for (member, drive) in drives.iter().enumerate().filter(|(member, _)| setup.remote.has(*member)) {
        let drives = std::slice::from_ref(drive);
        let target = Target::new(&sim, &format!("target{member}"), drives, setup.remote.addresses);
        ways.add(&target, drives);
        targets.insert(member, (target, drive.clone()));
    }
    let ways = Rc::new(ways);
    let group = match targets.is_empty() {
        true => Group::create_with(&sim, setup.shape, setup.protection, drives, setup.shards),
        false => Group::create_over(&sim, setup.shape, setup.protection, drives, ways.clone(), setup.shards),
    };
    let history = History::shared(&group);
    if setup.protection.safety == CrashSafety::Strict {
        history.borrow_mut().make_strict();
    }
    let mut run = Run {
        history,
        ledger: Ledger::new(&setup),
        group: Some(group),
        sim,
        setup,
        rng,
        cut: None,
        ways,
        targets,
        mishaps: Rc::default(),
        removed: Vec::new(),
        outages: Vec::new(),
        due: Vec::new(),
        disconnected: Vec::new(),
        damaged: false,
        filling: Vec::new(),
        exchanged: None,
        noticed: Noticed::default(),
        tally: Rc::default(),
    };
    for (index, step) in program.steps.iter().enumerate() {
        if verbose {
            println!("{:>12} ns {:>8} ops  {:>3} {step}", run.sim.now(), run.sim.ops_done(), index + 1);
        }
        run.step(step);
        run.notice();
    }
    run.finish();
    let mut tally = run.tally.borrow().clone();
    tally.runs = 1;
    tally.drive_ops = run.sim.ops_done();
    tally.buggify = run.sim.buggify();
    tally
}

fn new_drive(sim: &Sim, setup: &Setup, name: &str) -> SimDrive {
    let latency = match setup.pace {
        Pace::Immediate => Latency::IMMEDIATE,
        Pace::Usual => Latency::USUAL,
        Pace::Spikes => Latency::USUAL.with_spikes(30, 20_000_000),
    };
    let options = DriveOptions { latency, ..DriveOptions::new(name, setup.drive_bytes, setup.sector_bytes) };
    if setup.pace != Pace::Immediate {
        return SimDrive::with_options(&sim.env(), options);
    }
    // Computing garbage for every page takes longer than the run: here all pages hold the same.
    thread_local!(static GARBAGE: PageRc = PageRc::new(std::array::from_fn(|index| (index * 7 + index / 256) as u8 | 1)));
    SimDrive::with_image(&sim.env(), options, Rc::new(|_| GARBAGE.with(PageRc::clone)))
}

impl Run {
    fn group(&self) -> &Group {
        self.group.as_ref().expect("there is a group between steps")
    }

    /// The drive in a member's slot. `None` while a spare has not taken the slot yet.
    fn drive(&self, member: usize) -> Option<SimDrive> {
        let slot = self.group().leader().shared().slot(MemberIndex(member as u16));
        self.group().drives.get(usize::from(slot.drive.0)).cloned()
    }

    /// The index in the list of the drive that is or was in a member's slot, if its content is
    /// reliable.
    fn old_drive(&self, member: usize) -> Option<usize> {
        let slot = self.group().leader().shared().slot(MemberIndex(member as u16));
        let there = matches!(slot.state, MemberState::InSync | MemberState::Faulty);
        let drive = self.drive(member).filter(|drive| there && drive.is_undamaged());
        drive.map(|_| usize::from(slot.drive.0))
    }

    fn count(&self, fault: Fault) {
        *self.tally.borrow_mut().faults.entry(fault).or_default() += 1;
    }

    /// Maps a range into the group, rounded to whole sectors.
    fn fit(&self, start: u64, len: u64) -> (u64, u64) {
        let size = self.group().size();
        let block = self.history.borrow().block_bytes();
        let start = start % size / block * block;
        (start, len.next_multiple_of(block).clamp(block, size - start))
    }

    fn step(&mut self, step: &Step) {
        if self.cut.is_some() && (matches!(step, Step::Crash { .. }) || fires_cut(step)) {
            self.crash();
        }
        let is_of_all = matches!(step, Step::Outage { members, .. } if self.ledger.is_too_many(members));
        assert!(self.ledger.enter(step), "the program is within what is promised");
        match step {
            Step::Work(asks) => self.work(asks),
            Step::Crash { kind, after, lost, again } => {
                self.arm_crash(*after, Cut { kind: *kind, lost: lost.clone(), again: again.clone() });
            }
            Step::Die { member, after: 0 } => {
                self.count(Fault::Dead);
                self.drive(*member).iter().for_each(SimDrive::fail);
            }
            Step::Die { member, after } => {
                self.count(Fault::Dead);
                self.drive(*member).iter().for_each(|drive| drive.fail_after(*after));
            }
            Step::Hang { member, after } => {
                self.count(Fault::Hang);
                self.drive(*member).iter().for_each(|drive| drive.mute_after(*after));
            }
            Step::Errors { member, kind, full } => {
                self.count(Fault::Errors);
                for _ in 0..2 {
                    let error =
                        if *full { DriveError::NoSpace } else { DriveError::Os { operation: "simulated", errno: 5 } };
                    self.drive(*member).iter().for_each(|drive| drive.error_next(*kind, error.clone()));
                }
            }
            Step::Hiccup { member, kind } if !self.ledger.is_lost(*member) => {
                self.count(Fault::Hiccup);
                let error = DriveError::Os { operation: "simulated", errno: 5 };
                self.drive(*member).iter().for_each(|drive| drive.error_next(*kind, error.clone()));
            }
            Step::Media { member, start, len } => self.media(*member, *start, *len),
            Step::Silent { member, fault, start, len } => self.silent(*member, *fault, *start, *len),
            Step::Outage { .. } => self.outage(step, is_of_all),
            Step::Slow { member, factor } if !self.ledger.is_lost(*member) => {
                self.count(Fault::Slow);
                self.drive(*member).iter().for_each(|drive| drive.slow(*factor));
            }
            Step::Hiccup { .. } | Step::Slow { .. } => {}
            Step::Mishap { member, what, after_us, ms } => self.mishap(*member, *what, *after_us, *ms),
            Step::Replace { member, spare } => self.replace(*member, *spare),
            Step::Exchange { member } => self.exchange(*member),
            Step::Return { member } => self.bring_back(*member),
            Step::Restart { without, shards } => self.restart(without, *shards),
            Step::Own { first, count, run, after_us } => self.own(*first, *count, *run, *after_us),
            Step::Scrub => self.scrub(),
            Step::Settle => self.settle(),
            Step::Verify => {
                self.interruptible(async |run| {
                    run.outages_end(true).await;
                    let mut rng = run.rng.clone();
                    history::verify_latest(run.group(), &run.history, &mut rng).await;
                });
            }
        }
    }

    /// Runs work that a power cut may interrupt. If it does, recovers.
    fn interruptible(&mut self, work: impl AsyncFnOnce(&Run)) {
        if self.sim.try_block_on(work(self)).is_none() {
            self.crash();
        }
    }

    fn work(&mut self, asks: &[Ask]) {
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut requests = Vec::new();
        let excuse = Rc::new(self.excuse());
        for ask in asks {
            let (start, len) = self.fit(ask.start, ask.len);
            let free = |&(other, other_len): &(u64, u64)| start + len <= other || other + other_len <= start;
            if ask.request != Request::Flush {
                if !taken.iter().all(free) {
                    continue;
                }
                taken.push((start, len));
            }
            let group = self.group();
            let array = group.shards[ask.shard % group.shards.len()].clone();
            let asked = if self.setup.in_pieces { Asked::pieces(&array) } else { Asked::group(&array) };
            let (history, env, tally) = (self.history.clone(), self.sim.env(), self.tally.clone());
            let (noticed, ask, excuse) = (self.noticed.clone(), *ask, excuse.clone());
            requests.push(async move {
                if ask.pause_us > 0 {
                    env.sleep(Duration::from_micros(ask.pause_us)).await;
                }
                noticed.look(&array, &history);
                let excused = !excuse.iter().all(Outage::is_over);
                let result = perform_on(&asked, &history, ask.request, start, len).await;
                noticed.look(&array, &history);
                match result {
                    Ok(()) => tally.borrow_mut().requests += 1,
                    Err(_) if excused => tally.borrow_mut().refused += 1,
                    Err(error) => panic!("the group answers {ask} with an error: {error}"),
                }
            });
        }
        self.interruptible(async move |_| {
            join_all(requests).await;
        });
    }

    fn notice(&self) {
        self.noticed.look(self.group().leader(), &self.history);
    }

    /// Changes the owners of stripe groups after a while, during any later steps. Requests must not
    /// be affected by the result.
    fn own(&self, first: usize, count: usize, run: u64, after_us: u64) {
        let (group, tally) = (self.group(), self.tally.clone());
        let (leader, env, shards) = (group.leader().clone(), group.env.clone(), group.shards.len());
        let owners = Owners { first: first % shards, count: count.min(shards), run };
        env.clone().spawn(async move {
            env.sleep(Duration::from_micros(after_us)).await;
            let before = leader.owners();
            if leader.own(owners).await == Ok(true) && leader.owners() != before {
                tally.borrow_mut().moved += 1;
            }
        });
    }

    fn scrub(&mut self) {
        let group = self.group();
        self.sim.block_on(async {
            group.jobs_end().await;
            if group.leader().start_scrub(ScrubMode::Repair) {
                group.jobs_end().await;
            }
        });
    }

    fn settle(&mut self) {
        self.due.clear();
        let mut looks = 0;
        if !self.outages.is_empty() {
            self.end_outages(false);
            self.outages.clear();
            self.outages_are_noticed();
            // With slow drives, members that failed in an outage leave one after the other, some of
            // them later than this.
            looks = 1;
        }
        const TIMES_MAX: usize = 20;
        for _ in 0..TIMES_MAX {
            let was_one = self.bring_back_remote() | self.reconnect_all();
            self.settle_members();
            if was_one {
                continue;
            }
            if looks == 0 {
                return;
            }
            looks -= 1;
            self.outages_are_noticed();
        }
        panic!("members leave again and again: {:?}", self.group().events.borrow());
    }

    /// Waits for the group's own reaction once the paths to all drives are back.
    fn outages_are_noticed(&mut self) {
        // Failed writes of superblocks are repeated every second. Those of strips are repeated
        // after a second and then after pauses that double, if no request repeats them before.
        let env = self.sim.env();
        self.sim.block_on(env.sleep(outages::LOOKS_AGAIN));
        // A group that sends a drive no operation does not notice that its handle is useless.
        self.sim.block_on(self.group().leader().flush()).expect("the ways to all drives are back");
    }

    fn settle_members(&mut self) {
        let filling = std::mem::take(&mut self.filling);
        let group = self.group();
        let group_settles = async {
            for _ in 0..100_000 {
                group.jobs_end().await;
                let is_faulty = |member| group.state(member) == MemberState::Faulty;
                let spares = group.leader().status().spares.len();
                let spare_idles = spares > 0 && (0..usize::from(self.setup.shape.members)).any(is_faulty);
                let waits = spare_idles
                    || (0..usize::from(self.setup.shape.members)).any(|member| {
                        let state = group.state(member);
                        let to_fill = filling.contains(&member) && !self.ledger.is_lost(member);
                        state == MemberState::Rebuilding || (to_fill && state != MemberState::InSync)
                    });
                if !waits {
                    return;
                }
                self.sim.env().sleep(Duration::from_millis(5)).await;
            }
            let states: Vec<_> = group.leader().shared().slots().map(|(_, slot)| slot.state).collect();
            panic!("members are not filled after 500 s: {states:?}, events {:?}", group.events.borrow());
        };
        self.sim.block_on(group_settles);
    }

    fn finish(&mut self) {
        if self.cut.is_some() {
            self.crash();
        }
        assert!(self.ledger.enter(&Step::Settle), "no power cut is due any more");
        self.settle();
        let mut rng = self.rng.fork();
        self.sim.block_on(history::verify_latest(self.group(), &self.history, &mut rng));
        let lost = (0..usize::from(self.setup.shape.members)).any(|member| self.ledger.is_lost(member));
        if self.setup.shape.survives() > 0 && !lost {
            assert!(self.group().all_in_sync(), "nothing is wrong with any member");
            if self.damaged {
                self.scrub();
            }
            assert_eq!(self.sim.block_on(self.group().differences()), 0, "data and parity disagree");
            self.verify_without_members();
        }
    }

    /// Checks that everything can be read without any members that the level can do without.
    fn verify_without_members(&mut self) {
        let shape = self.setup.shape;
        let group = self.group.take().expect("there is a group between steps");
        let members: Vec<SimDrive> =
            (0..usize::from(shape.members)).map(|member| group.member(member).clone()).collect();
        self.sim.block_on(group.stop());
        self.history.borrow_mut().stopped();
        self.sim.kill_tasks();
        let per_set = shape.members_per_set();
        let mut sets = subsets(per_set, shape.survives());
        sets.retain(|set| set.len() == shape.survives());
        let mut left = Vec::new();
        for members in members.chunks(per_set) {
            let lost = self.rng.pick(&sets).clone();
            let warm = members.iter().enumerate().filter(|(local, _)| !lost.contains(local));
            left.extend(warm.map(|(_, drive)| drive.reopen()));
        }
        let group = Group::open(&self.sim, left, 1);
        let mut rng = self.rng.fork();
        self.sim.block_on(history::verify_latest(&group, &self.history, &mut rng));
    }
}

fn living(drives: &[SimDrive]) -> Vec<SimDrive> {
    drives.iter().filter(|drive| !drive.is_failed()).cloned().collect()
}

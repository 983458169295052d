//! A random run of thin volumes over the real array, with the faults that must be survived.
//!
//! A run has rounds. In a round, requests go to two volumes. Meanwhile members die, at most as many
//! of each set as the level survives, and new drives are filled in the places of lost ones. In most
//! rounds the power fails or the process is killed at some drive operation, often near the end of a
//! rebuild, and further members are lost with that. Then everything is read. At the end all members
//! are in sync, and as many as the level survives are lost again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use array::{DriveId, MemberIndex};
use drive::{Drive, Env};
use format::{MemberState, Shape};
use volume::thin::Compression;

use super::check::any_compression;
use super::model::Model;
use super::pool::{Pool, create, drive_bytes, group_of, open_lines, volume_blocks};
use crate::engine::{Group, KIB, both, every_level, uuid};
use crate::{Latency, Rng, Sim, SimDrive};

/// How often each fault occurred.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(pub BTreeMap<&'static str, u64>);

impl Faults {
    fn count(&mut self, what: &'static str, times: usize) {
        *self.0.entry(what).or_default() += times as u64;
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Faults) {
        other.0.iter().for_each(|(what, times)| *self.0.entry(what).or_default() += times);
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, times)| writeln!(f, "{times:>10} x {what}"))
    }
}

/// The run of a seed. With `is_verbose`, prints each step.
///
/// # Panics
/// If a promise is broken.
pub fn random(seed: u64, is_verbose: bool) -> Faults {
    let sim = Sim::new(seed);
    let mut rng = sim.rng();
    let shape = *rng.pick(&every_level(*rng.clone().pick(&[4 * KIB, 4 * KIB, 16 * KIB])));
    if rng.chance(1, 4) {
        sim.enable_buggify();
    }
    let mut run = Run::new(sim, rng, shape, is_verbose);
    for number in 0..2 + run.rng.index(4) {
        run.round(number);
    }
    run.end();
    run.faults
}

struct Run {
    sim: Sim,
    rng: Rng,
    shape: Shape,
    is_verbose: bool,
    group: Option<Group>,
    pool: Option<Pool>,
    model: RefCell<Model>,
    compression: [Compression; 2],
    blocks: u64,
    lines: [u32; 2],
    new_drives: usize,
    faults: Faults,
}

/// Requests of a round.
#[derive(Debug, Clone, Copy)]
enum Load {
    Mixed { steps: usize },
    Small { steps: usize },
    UntilFull { step: u64 },
}

/// The end of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Quiet,
    Kill,
    PowerCut,
}

impl Run {
    fn new(sim: Sim, mut rng: Rng, shape: Shape, is_verbose: bool) -> Run {
        let group = group_of(&sim, &mut rng, shape);
        let compression = any_compression(&mut rng);
        // Compressed blocks take about half of their size.
        let is_plain = compression.contains(&Compression::Off);
        let blocks = volume_blocks(&group) * if is_plain { 1 } else { 2 };
        let lines = [1, 2];
        sim.block_on(create(&group));
        let pool = sim.block_on(open_lines(&group, blocks, compression, lines));
        let (model, faults) = (RefCell::default(), Faults::default());
        let (group, pool) = (Some(group), Some(pool));
        let run =
            Run { sim, rng, shape, is_verbose, group, pool, model, compression, blocks, lines, new_drives: 0, faults };
        run.tell(&format!("{shape}, compression {compression:?}, {blocks} blocks"));
        run
    }

    fn tell(&self, what: &str) {
        if self.is_verbose {
            println!("{:>12} ns  {what}", self.sim.now());
        }
    }

    fn group(&self) -> &Group {
        self.group.as_ref().expect("the group runs")
    }

    /// Members without all of their content: lost ones, and those that are being rebuilt.
    fn bad(&self) -> BTreeSet<usize> {
        let group = self.group();
        let is_bad = |member: &usize| group.state(*member) != MemberState::InSync || group.member(*member).is_failed();
        (0..usize::from(self.shape.members)).filter(is_bad).collect()
    }

    /// Members that may be lost beside the bad ones: of each set at most as many as the level
    /// survives.
    fn losable(&mut self, all: bool) -> Vec<usize> {
        let (bad, per_set) = (self.bad(), self.shape.members_per_set());
        let mut chosen = Vec::new();
        for set in 0..usize::from(self.shape.sets) {
            let members = set * per_set..(set + 1) * per_set;
            let most = self.shape.survives() - bad.range(members.clone()).count();
            let mut good: Vec<usize> = members.filter(|member| !bad.contains(member)).collect();
            self.rng.shuffle(&mut good);
            good.truncate(if all { most } else { self.rng.index(most + 1) });
            chosen.extend(good);
        }
        chosen
    }

    /// Members whose drives are lost.
    fn without_drive(&self) -> Vec<usize> {
        let group = self.group();
        let is_filled =
            |member: &usize| group.state(*member) == MemberState::Rebuilding && !group.member(*member).is_failed();
        self.bad().into_iter().filter(|member| !is_filled(member)).collect()
    }

    /// Installs new drives for these members.
    fn new_drives(&mut self, members: &[usize]) -> Vec<(MemberIndex, DriveId)> {
        let mut replaced = Vec::new();
        for &member in members {
            self.new_drives += 1;
            let name = format!("new{}", self.new_drives);
            let drive = SimDrive::new(&self.sim.env(), &name, drive_bytes(&self.shape), 512);
            let slowest = *self.rng.pick(&[2_000, 100_000, 2_000_000]);
            drive.set_latency(Latency::between(1_000, slowest));
            let id = self.group.as_mut().expect("the group runs").install(drive);
            replaced.push((MemberIndex(member as u16), id));
        }
        self.tell(&format!("new drives: {replaced:?}"));
        self.faults.count("new drive for a lost member", replaced.len());
        replaced
    }

    /// Deletes a volume. A new one takes its place.
    fn delete_volume(&mut self) {
        let place = self.rng.index(2);
        let (old, new) = (self.lines[place], self.lines[0].max(self.lines[1]) + 1);
        self.tell(&format!("line {old} is deleted, line {new} is new"));
        self.faults.count("volume deleted", 1);
        self.lines[place] = new;
        self.model.borrow_mut().deleted(old);
        let pool = self.pool.as_mut().expect("the pool is open");
        pool.replace_volume(self.group.as_ref().expect("the group runs"), old, new);
    }

    fn round(&mut self, number: usize) {
        let lost = if self.rng.chance(2, 3) { self.without_drive() } else { Vec::new() };
        let mut replaced = self.new_drives(&lost);
        if self.rng.chance(1, 5) {
            self.delete_volume();
        }
        let dying = if self.rng.chance(1, 2) { self.losable(false) } else { Vec::new() };
        for member in &dying {
            let operations = self.rng.below(400);
            self.group().member(*member).fail_after(operations);
            self.tell(&format!("member {member} dies after {operations} operations"));
        }
        let dying_drives: Vec<SimDrive> = dying.iter().map(|member| self.group().member(*member).clone()).collect();
        if self.rng.chance(1, 2) {
            replaced.extend(self.new_drives(&dying));
        }
        let load = match self.rng.index(5) {
            0 => Load::UntilFull { step: 1 + self.rng.below(24) },
            1..=2 => Load::Small { steps: 1 + self.rng.index(20) },
            _ => Load::Mixed { steps: 1 + self.rng.index(60) },
        };
        let end = *self.rng.pick(&[End::Quiet, End::Kill, End::PowerCut, End::PowerCut]);
        let stop_after = if end == End::Quiet { u64::MAX } else { self.rng.below(4000) };
        self.tell(&format!("round {number}: {load:?}, {end:?}, stops after {stop_after} operations"));
        self.sim.stop_after(stop_after);
        self.load(load, &replaced, end != End::Quiet);
        // Those whose time did not come die now.
        dying_drives.iter().for_each(SimDrive::fail);
        self.faults.count("member dies", dying.len());
        if end == End::Quiet {
            self.sim.resume();
            // Without a flush, a power cut could still bring older content back.
            self.sim.block_on(self.pool.as_ref().expect("the pool is open").flush(&self.model));
        } else {
            self.crash(end, false);
        }
        self.check(&format!("{}, round {number}, {end:?}", self.shape));
    }

    /// Requests, until all new drives are in sync. With `can_stop`, the world often stops shortly
    /// before or after that.
    fn load(&mut self, load: Load, replaced: &[(MemberIndex, DriveId)], can_stop: bool) {
        let (mut rng, mut watch_rng) = (self.rng.fork(), self.rng.fork());
        let (group, pool) = (self.group.as_ref().expect("the group runs"), self.pool.as_ref().expect("it is open"));
        let (sim, model, ended) = (&self.sim, &self.model, Cell::new(false));
        let mut identities: Vec<_> = replaced.iter().map(|_| uuid(&mut rng)).collect();
        let stop_soon = |rng: &mut Rng, chances: u64| {
            if can_stop && rng.chance(chances, 4) {
                let most = *rng.pick(&[30, 200]);
                sim.stop_after(rng.below(most));
            }
        };
        let rebuilds = async {
            group.env.sleep(Duration::from_micros(watch_rng.below(10_000))).await;
            for &(member, drive) in replaced {
                // It was to die in this round, if it has not died before.
                if is_in_sync(group, member) {
                    group.member(usize::from(member.0)).fail();
                }
                // It may have left the group already.
                let _ = group.leader().fail_member(member).await;
                let identity = identities.pop().expect("one for each");
                group.leader().replace(member, drive, identity).await.expect("the drive fits");
            }
            let before = pool.drives_filled.get();
            let is_filled = |place: usize| pool.drives_filled.get() > before + place as u32;
            for (place, (member, _)) in replaced.iter().enumerate() {
                while !is_filled(place) && !is_in_sync(group, *member) {
                    group.env.sleep(Duration::from_micros(100)).await;
                }
                stop_soon(&mut watch_rng, 1);
                while !is_in_sync(group, *member) {
                    group.env.sleep(Duration::from_micros(100)).await;
                }
                stop_soon(&mut watch_rng, 2);
            }
            ended.set(true);
        };
        let requests = requests(load, (group, pool, model), &mut rng, &ended);
        sim.try_block_on(both(rebuilds, requests));
        let in_sync = replaced.iter().filter(|(member, _)| is_in_sync(group, *member)).count();
        self.faults.count("rebuild ended under load", in_sync);
        self.faults.count("pool filled until writes are refused", usize::from(matches!(load, Load::UntilFull { .. })));
    }

    /// Stops the group, at times without some members, and starts it again. With `all`, as many
    /// members are lost as the level survives.
    fn crash(&mut self, how: End, all: bool) {
        let all = all || self.rng.chance(1, 3);
        let lost = if all || self.rng.chance(1, 2) { self.losable(all) } else { Vec::new() };
        let mut lost_names: Vec<String> =
            lost.iter().map(|member| self.group().member(*member).info().name.clone()).collect();
        self.tell(&format!("{how:?}, members {lost:?} are lost, bad ones were {:?}", self.bad()));
        self.pool = None;
        let group = self.group.take().expect("the group runs");
        let shards = group.shards.len();
        let mut drives = match how {
            End::PowerCut => {
                self.faults.count("power cut", 1);
                group.cut(&self.sim)
            }
            _ => {
                self.faults.count("process killed", 1);
                self.model.borrow_mut().killed();
                group.kill(&self.sim)
            }
        };
        self.faults.count("member lost in a crash", lost_names.len());
        lost_names.sort_unstable();
        drives.retain(|drive| !drive.is_failed() && lost_names.binary_search(&drive.info().name).is_err());
        let group = Group::open(&self.sim, drives, shards);
        self.pool = Some(self.sim.block_on(open_lines(&group, self.blocks, self.compression, self.lines)));
        self.group = Some(group);
    }

    /// Reads everything.
    fn check(&self, context: &dyn fmt::Display) {
        let pool = self.pool.as_ref().expect("the pool is open");
        self.sim.block_on(pool.observe_all(&self.model, context));
        pool.check_space();
    }

    /// Brings all members back, and loses as many as the level survives.
    fn end(&mut self) {
        let replaced = self.new_drives(&self.without_drive());
        self.load(Load::Mixed { steps: 10 }, &replaced, false);
        while !self.bad().is_empty() {
            self.sim.run_for(Duration::from_millis(5));
        }
        self.load(Load::Mixed { steps: 4 }, &[], false);
        let end = *self.rng.pick(&[End::Kill, End::PowerCut]);
        self.crash(end, true);
        self.check(&format!("{}, at the end, {end:?}", self.shape));
        self.until_deleted();
    }

    /// Waits until the store has the volumes' lines only.
    fn until_deleted(&self) {
        let pool = self.pool.as_ref().expect("the pool is open");
        for _ in 0..10_000 {
            if pool.store.lines().iter().all(|line| self.lines.contains(line)) {
                return pool.check_space();
            }
            self.sim.run_for(Duration::from_millis(1));
        }
        panic!("lines {:?} are there, and {:?} are used", pool.store.lines(), self.lines);
    }
}

/// Requests of a round, and more of them until the rebuilds have ended.
async fn requests(
    load: Load,
    (group, pool, model): (&Group, &Pool, &RefCell<Model>),
    rng: &mut Rng,
    ended: &Cell<bool>,
) {
    match load {
        Load::Mixed { steps } => pool.work(model, rng, steps).await,
        Load::Small { steps } => small_writes(steps, (group, pool, model), rng).await,
        Load::UntilFull { step } => pool.fill(model, step).await,
    }
    while !ended.get() {
        match load {
            Load::Small { .. } => small_writes(2, (group, pool, model), rng).await,
            Load::Mixed { .. } | Load::UntilFull { .. } => pool.work(model, rng, 2).await,
        }
    }
}

async fn small_writes(count: usize, (group, pool, model): (&Group, &Pool, &RefCell<Model>), rng: &mut Rng) {
    for _ in 0..count {
        pool.write_small(model, rng).await;
        group.env.sleep(Duration::from_micros(rng.below(5_000))).await;
    }
}

fn is_in_sync(group: &Group, member: MemberIndex) -> bool {
    group.state(usize::from(member.0)) == MemberState::InSync
}

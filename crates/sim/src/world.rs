//! The world: the run loop, and what may stop it.

mod env;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::drive::{Nanos, WarmState};

pub use self::env::SimEnv;
use crate::clock::{Event, Timeline};
use crate::drive::state::DriveState;
use crate::net::{NetworkLinks, SimNetwork};
use crate::rng::{GOLDEN, Rng, mix};
pub(crate) use crate::task::Owner;
use crate::task::{MAIN, Ready, TaskId, Tasks};
use crate::trace::{TapeEvent, TraceEntry};

/// State shared by [`Sim`], its environments and its drives.
pub(crate) struct World {
    seed: u64,
    now: Cell<Nanos>,
    /// Draws the order of tasks and events.
    pub(crate) rng: RefCell<Rng>,
    ready: Arc<Ready>,
    tasks: RefCell<Tasks>,
    /// Number of the current turn.
    pub(crate) turn: Cell<u64>,
    pub(crate) turn_waiters: RefCell<Vec<Waker>>,
    pub(crate) timeline: RefCell<Timeline>,
    drives: RefCell<Vec<Weak<DriveState>>>,
    /// Indexes of the drives of other machines.
    elsewhere: RefCell<BTreeSet<u32>>,
    /// The paths to other machines.
    pub(crate) links: RefCell<NetworkLinks>,
    targets: Cell<u32>,
    /// A machine that is losing its power: dropping its tasks sends nothing to others.
    vanishing: Cell<Option<Owner>>,
    running: Cell<bool>,
    steps: Cell<u64>,
    steps_max: Cell<u64>,
    /// Drive operations that may still complete before the world stops.
    ops_left: Cell<u64>,
    ops_done: Cell<u64>,
    stopped: Cell<bool>,
    trace: RefCell<Option<Vec<TraceEntry>>>,
    tape: RefCell<Option<Vec<TapeEvent>>>,
    fingerprint: Cell<u64>,
    /// The byte that the next buffer is filled with.
    pub(crate) poison: Cell<u8>,
    /// Which places of trouble are enabled in this world, and how often each was taken. `None`:
    /// trouble is off.
    pub(crate) buggify: RefCell<Option<BTreeMap<&'static str, (bool, u64)>>>,
    /// Memory that outlives a kill, by the name of its user.
    warm: RefCell<BTreeMap<[u8; 16], Arc<WarmWords>>>,
}

/// Memory that outlives a kill.
#[derive(Debug)]
struct WarmWords(Vec<AtomicU64>);

impl WarmState for WarmWords {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

enum Next {
    Run(TaskId),
    Stopped,
    Idle,
}

impl World {
    fn new(seed: u64) -> Rc<World> {
        let ready = Arc::new(Ready::default());
        Rc::new(World {
            seed,
            now: Cell::new(0),
            rng: RefCell::new(Rng::new(seed)),
            tasks: RefCell::new(Tasks::new(ready.clone())),
            ready,
            turn: Cell::new(0),
            turn_waiters: RefCell::default(),
            timeline: RefCell::default(),
            drives: RefCell::default(),
            elsewhere: RefCell::default(),
            links: RefCell::default(),
            targets: Cell::new(0),
            vanishing: Cell::new(None),
            running: Cell::new(false),
            steps: Cell::new(0),
            steps_max: Cell::new(u64::MAX),
            ops_left: Cell::new(u64::MAX),
            ops_done: Cell::new(0),
            stopped: Cell::new(false),
            trace: RefCell::new(None),
            tape: RefCell::new(None),
            fingerprint: Cell::new(seed),
            poison: Cell::new(0xA5),
            buggify: RefCell::default(),
            warm: RefCell::default(),
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        self.now.get()
    }

    /// Registers a drive: gives its index and a generator of its own, which depends on seed and
    /// index only.
    pub(crate) fn add_drive(&self, make: impl FnOnce(u32, Rng) -> Rc<DriveState>) -> Rc<DriveState> {
        let index = self.drives.borrow().len() as u32;
        let rng = Rng::new(mix(self.seed ^ GOLDEN.wrapping_mul(u64::from(index) + 1)));
        let drive = make(index, rng);
        self.drives.borrow_mut().push(Rc::downgrade(&drive));
        drive
    }

    fn living_drives(&self) -> Vec<Rc<DriveState>> {
        self.drives.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Schedules the completion of a drive operation.
    pub(crate) fn schedule(&self, after: Nanos, event: Event) {
        let at = self.now.get().saturating_add(after);
        self.timeline.borrow_mut().push(at, &mut self.rng.borrow_mut(), event);
    }

    /// Asks whether a drive operation may complete. If not, the world stops.
    #[inline]
    pub(crate) fn admit(&self) -> bool {
        if self.stopped.get() {
            return false;
        }
        let left = self.ops_left.get();
        if left == 0 {
            self.stopped.set(true);
            self.freeze_warm();
            return false;
        }
        if left != u64::MAX {
            self.ops_left.set(left - 1);
        }
        self.ops_done.set(self.ops_done.get() + 1);
        true
    }

    #[inline]
    pub(crate) fn note(&self, entry: impl FnOnce() -> TraceEntry) {
        if let Some(trace) = self.trace.borrow_mut().as_mut() {
            trace.push(entry());
        }
    }

    #[inline]
    pub(crate) fn record(&self, event: impl FnOnce() -> Option<TapeEvent>) {
        if let Some(tape) = self.tape.borrow_mut().as_mut() {
            tape.extend(event());
        }
    }

    #[inline]
    pub(crate) fn stir(&self, word: u64) {
        self.fingerprint.set(mix(self.fingerprint.get() ^ word).wrapping_add(GOLDEN));
    }

    /// The drives of the machine that runs the array.
    fn own_drives(&self) -> Vec<Rc<DriveState>> {
        let elsewhere = self.elsewhere.borrow();
        self.living_drives().into_iter().filter(|drive| !elsewhere.contains(&drive.index)).collect()
    }

    /// Registers another machine, which has these drives.
    pub(crate) fn add_target(&self, drives: impl Iterator<Item = u32>) -> Owner {
        self.elsewhere.borrow_mut().extend(drives);
        let number = self.targets.get();
        self.targets.set(number + 1);
        Owner(Owner::FIRST_TARGET + number)
    }

    /// The machine is losing its power.
    pub(crate) fn has_vanished(&self, owner: Owner) -> bool {
        self.vanishing.get() == Some(owner)
    }

    /// Ends the tasks of a machine. If `vanishes`, its power fails. Otherwise a process ends, and
    /// the system closes its sockets.
    pub(crate) fn end_tasks(&self, owner: Owner, vanishes: bool) {
        self.vanishing.set(vanishes.then_some(owner));
        self.kill_tasks(Some(owner));
        self.vanishing.set(None);
    }

    pub(crate) fn spawn(&self, owner: Owner, future: Pin<Box<dyn Future<Output = ()>>>) {
        self.tasks.borrow_mut().insert(owner, future);
    }

    /// Finds the next task to poll; advances time when there is none.
    fn next(&self, until: Nanos) -> Next {
        loop {
            if self.stopped.get() {
                return Next::Stopped;
            }
            if let Some(id) = self.ready.take(&mut self.rng.borrow_mut()) {
                let steps = self.steps.get() + 1;
                self.steps.set(steps);
                assert!(steps <= self.steps_max.get(), "{}", self.stuck("the limit of steps is reached"));
                self.stir(u64::from(id));
                return Next::Run(id);
            }
            if !self.end_turn() && !self.fire(until) {
                return Next::Idle;
            }
        }
    }

    /// Wakes the tasks that wait for the end of the turn. False if there are none.
    fn end_turn(&self) -> bool {
        if self.turn_waiters.borrow().is_empty() {
            return false;
        }
        self.turn.set(self.turn.get() + 1);
        let waiters = mem::take(&mut *self.turn_waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
        true
    }

    /// Advances time to the next event, if it is not after `until`, and executes all events of that
    /// instant. False if there is none.
    fn fire(&self, until: Nanos) -> bool {
        let mut limit = until;
        let mut fired = false;
        while !self.stopped.get() {
            let Some((at, event)) = self.timeline.borrow_mut().pop(limit) else { break };
            self.now.set(at);
            limit = at;
            fired = true;
            match event {
                Event::Sleep { slot, .. } => {
                    let waker = self.timeline.borrow_mut().fire_sleep(slot);
                    self.stir(at);
                    waker.into_iter().for_each(Waker::wake);
                }
                Event::Drive { drive, slot, serial } => {
                    self.stir(at ^ u64::from(drive.index) << 56);
                    drive.complete(slot, serial);
                }
            }
        }
        fired
    }

    fn poll_task(&self, id: TaskId) {
        let Some(mut task) = self.tasks.borrow_mut().take(id) else { return };
        match task.future.as_mut().poll(&mut Context::from_waker(&task.waker)) {
            Poll::Pending => self.tasks.borrow_mut().put_back(id, task),
            Poll::Ready(()) => {
                // Its drop may spawn, so the place is freed only afterwards and no borrow is held.
                drop(task);
                self.tasks.borrow_mut().release(id);
            }
        }
    }

    fn kill_tasks(&self, owner: Option<Owner>) {
        loop {
            let tasks = self.tasks.borrow_mut().take_all(owner);
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        if self.tasks.borrow().count() == 0 {
            self.turn_waiters.borrow_mut().clear();
        }
    }

    /// Tasks that are dropped from now on cannot change the kept memory: a killed process does not
    /// clean up.
    fn freeze_warm(&self) {
        for warm in self.warm.borrow_mut().values_mut() {
            let words = warm.0.iter().map(|word| AtomicU64::new(word.load(Ordering::SeqCst)));
            *warm = Arc::new(WarmWords(words.collect()));
        }
    }

    fn stuck(&self, why: &str) -> String {
        let mut text = format!(
            "simulation with seed {} is stuck after {} steps, at {} ns: {why}; {} spawned tasks have not ended",
            self.seed,
            self.steps.get(),
            self.now.get(),
            self.tasks.borrow().count(),
        );
        for drive in self.living_drives() {
            let held = drive.held_count();
            if held > 0 {
                text += &format!("; drive {} holds back {held} operations", drive.info.name);
            }
        }
        text
    }

    /// Marks the world as running, until the guard is dropped.
    fn enter(&self) -> Running<'_> {
        assert!(!self.running.replace(true), "the simulation is already running: await instead of blocking");
        Running(self)
    }
}

struct Running<'a>(&'a World);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
    }
}

/// A deterministic world. Its handles ([`SimEnv`], [`SimDrive`]) may outlive it, but no task runs
/// any more.
///
/// Dropped in a panic, it prints its seed.
pub struct Sim {
    world: Rc<World>,
}

impl Sim {
    /// A world at time 0 with no tasks and no drives. One seed and the same calls replay a run
    /// exactly.
    pub fn new(seed: u64) -> Self {
        Sim { world: World::new(seed) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// The environment for the engine.
    pub fn env(&self) -> SimEnv {
        SimEnv { world: self.world.clone(), owner: Owner::HOST }
    }

    /// A generator for the test itself: independent of the world's, but determined by its seed and
    /// by how far the world has run.
    pub fn rng(&self) -> Rng {
        self.world.rng.borrow_mut().fork()
    }

    /// The network, for tests that inject faults.
    pub fn network(&self) -> SimNetwork {
        SimNetwork { world: self.world.clone() }
    }

    /// Virtual time now.
    pub fn now(&self) -> Nanos {
        self.world.now()
    }

    /// Runs all tasks until `future` is done. Spawned tasks stop where they are and continue with
    /// the next call.
    ///
    /// # Panics
    /// If no task can ever run again before the future is done (deadlock), at
    /// [`Sim::set_steps_max`], and when the world stops ([`Sim::stop_after`]; use
    /// [`Sim::try_block_on`]). The message names the seed.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.try_block_on(future) {
            Some(output) => output,
            None => panic!("{}", self.world.stuck("the world was stopped by `stop_after`")),
        }
    }

    /// Like [`Sim::block_on`], but `None` if the world stops before the future is done. The future
    /// is dropped then.
    ///
    /// # Panics
    /// On deadlock and at [`Sim::set_steps_max`].
    pub fn try_block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        let _running = self.world.enter();
        let mut future = pin!(future);
        let waker = self.world.tasks.borrow().main_waker();
        waker.wake_by_ref();
        loop {
            match self.world.next(Nanos::MAX) {
                Next::Stopped => return None,
                Next::Idle => panic!("{}", self.world.stuck("deadlock: no task is runnable and no event is due")),
                Next::Run(MAIN) => {
                    // There is no task in the main place, but from now on it can be woken again.
                    self.world.poll_task(MAIN);
                    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return Some(output);
                    }
                }
                Next::Run(id) => self.world.poll_task(id),
            }
        }
    }

    /// Runs until no event is left, or the world stops. Does not return while a task sets one timer
    /// after the other: use [`Sim::run_for`] for those.
    ///
    /// # Panics
    /// At [`Sim::set_steps_max`].
    pub fn run_until_idle(&self) {
        self.run_until(Nanos::MAX);
    }

    /// Runs for `duration` of virtual time. All events of the last instant happen.
    ///
    /// # Panics
    /// At [`Sim::set_steps_max`].
    pub fn run_for(&self, duration: Duration) {
        let until = deadline(self.world.now(), duration);
        self.run_until(until);
        if !self.is_stopped() {
            self.world.now.set(until);
        }
    }

    fn run_until(&self, until: Nanos) {
        let _running = self.world.enter();
        while let Next::Run(id) = self.world.next(until) {
            self.world.poll_task(id);
        }
    }

    /// Ends every task of this machine. Drive operations in flight still run to their end.
    pub fn kill_tasks(&self) {
        self.world.end_tasks(Owner::HOST, false);
    }

    /// Kills the process, as `kill -9` does: ends every task of this machine, lifts a stop, and
    /// waits until its drives have completed their operations: a drive cannot be opened before
    /// that. Other machines continue.
    pub fn kill(&self) {
        if !self.is_stopped() {
            self.world.freeze_warm();
        }
        self.kill_tasks();
        self.resume();
        let has_outage = |drive: &Rc<DriveState>| !drive.inner.borrow().faults.outages.is_empty();
        if self.world.targets.get() == 0 && !self.world.own_drives().iter().any(has_outage) {
            return self.run_until_idle();
        }
        let is_at_work = |drive: &Rc<DriveState>| drive.in_flight() > drive.held_count();
        while self.world.own_drives().iter().any(is_at_work) {
            self.run_for(STEP);
        }
    }

    /// Enables trouble from now on: at some of the places where the engine asks, drawn for each
    /// world, it sometimes takes the branch that it hardly ever takes.
    pub fn enable_buggify(&self) {
        self.world.buggify.borrow_mut().get_or_insert_default();
    }

    /// The places where the engine asked, and how often trouble was taken there.
    pub fn buggify(&self) -> BTreeMap<&'static str, u64> {
        let buggify = self.world.buggify.borrow();
        buggify.iter().flatten().map(|(place, (_, taken))| (*place, *taken)).collect()
    }

    /// Forgets the memory that outlives a kill: for tests that show its purpose.
    pub fn forget_warm(&self) {
        self.world.warm.borrow_mut().clear();
    }

    /// Cuts the power of this machine: ends every task, then cuts the power of every drive that is
    /// not on a target ([`SimDrive::power_cut`]), and lifts a stop. [`SimDrive::reopen`] gives
    /// handles to the surviving drives.
    pub fn power_cut(&self) {
        self.world.end_tasks(Owner::HOST, true);
        self.forget_warm();
        let mut rng = self.rng();
        for drive in self.world.own_drives() {
            drive.power_cut(&mut rng);
        }
        self.resume();
    }

    /// Stops the world at the completion after `op_count` drive operations, over all drives. That
    /// operation stays in flight. For tests that crash at every point: count with [`Sim::ops_done`]
    /// once, then stop after 0, 1, 2, ...
    pub fn stop_after(&self, op_count: u64) {
        self.world.ops_left.set(op_count);
    }

    /// The world is stopped: no task runs until [`Sim::resume`] or [`Sim::power_cut`].
    pub fn is_stopped(&self) -> bool {
        self.world.stopped.get()
    }

    /// Lifts a stop, or a pending one. Stopped operations continue.
    pub fn resume(&self) {
        self.world.ops_left.set(u64::MAX);
        if self.world.stopped.replace(false) {
            for drive in self.world.living_drives() {
                drive.release_held();
            }
        }
    }

    /// Drive operations that were completed since the world began, over all drives.
    pub fn ops_done(&self) -> u64 {
        self.world.ops_done.get()
    }

    /// Polls of tasks since the world began.
    pub fn steps(&self) -> u64 {
        self.world.steps.get()
    }

    /// Makes the world panic after this many polls: a guard against tasks that never come to rest.
    pub fn set_steps_max(&self, steps: u64) {
        self.world.steps_max.set(steps);
    }

    /// Tasks that were spawned and have not ended.
    pub fn task_count(&self) -> usize {
        self.world.tasks.borrow().count()
    }

    /// A number that depends on every poll and every event so far: two runs with the same number
    /// were the same run.
    pub fn fingerprint(&self) -> u64 {
        self.world.fingerprint.get()
    }

    /// Starts to record the drives' operations.
    pub fn trace_start(&self) {
        self.world.trace.borrow_mut().get_or_insert_default();
    }

    /// Starts to record the drives' changes, with the bytes.
    pub fn tape_start(&self) {
        self.world.tape.borrow_mut().get_or_insert_default();
    }

    /// Events on the tape so far.
    pub fn tape_len(&self) -> usize {
        self.world.tape.borrow().as_ref().map_or(0, Vec::len)
    }

    /// Gives the tape, and begins a new one. Empty without [`Sim::tape_start`].
    pub fn tape_take(&self) -> Vec<TapeEvent> {
        self.world.tape.borrow_mut().as_mut().map(mem::take).unwrap_or_default()
    }

    /// Gives the record, and begins a new one. Empty without [`Sim::trace_start`].
    pub fn trace_take(&self) -> Vec<TraceEntry> {
        self.world.trace.borrow_mut().as_mut().map(mem::take).unwrap_or_default()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() && !crate::campaign::is_caught() {
            eprintln!("simulation seed: {}", self.world.seed);
        }
        // Tasks hold environments, which hold the world.
        self.world.kill_tasks(None);
        // Events hold drives, which hold the world too.
        let events = self.world.timeline.borrow_mut().take_events();
        drop(events);
    }
}

/// The time after `duration`, at most the end of time.
pub(crate) fn deadline(now: Nanos, duration: Duration) -> Nanos {
    now.saturating_add(Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX))
}

/// The time step while drives complete their operations.
const STEP: Duration = Duration::from_micros(20);

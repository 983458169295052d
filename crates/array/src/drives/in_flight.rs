//! The operations of one shard that its drives have not answered yet.
//!
//! An operation that is not done when it is first polled enters the in-flight table. While the
//! table is not empty, a task checks it every [`TICK`]. So no operation has a timer of its own, and
//! one that is done at once costs nothing.
//!
//! - A read that a client waits for is *late* after `LATE_FACTOR` times the 95th percentile of
//!   the time of reads of its length. The percentile is that of the drive or of a typical drive of
//!   the group, the lower one of the two. A late read is hedged ([`crate::io::hedge`]) if there is
//!   a token for it: [`READS_PER_HEDGE`] reads earn one.
//! - A drive is *slow* if most of its reads are late. Reads avoid it, without tokens, as far as
//!   redundancy allows. Now and then a probe checks whether it has recovered. Slow is relative:
//!   where all drives are slow, the bound rises.
//! - An operation is *lost* when it has had no answer for the group's time limit, and one of two
//!   conditions holds: its drive has answered nothing at all for as long, or it has answered an
//!   operation that began a time limit later. A drive that is only busy answers in turn, so
//!   operations in its queue are waited for. A member that loses an operation is given up
//!   ([`crate::drives::fail_slow`]). If the group cannot do without the member, reads and flushes
//!   fail, and writes are waited for: a write that reached the drive after its failure was reported
//!   could undo a later one.
//!
//! Invariants:
//! 1. An operation is in the table from its first `Pending` to its end, and so is its waker.
//! 2. Only samples count for distributions, late ones too. Otherwise slow reads would count more
//!    than others.
//! 3. A late operation counts when the check finds it, because its task may be gone when it is
//!    answered.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use drive::Nanos;

use crate::drives::latency::ShardLatencies;
use crate::drives::outstanding::Outstanding;
use crate::drives::slow_detector::{SlowDetector, SlowDetectors};
use crate::state::shared::Shared;
use crate::state::slot::DriveId;

/// How often the table is checked. At 4000 checks per second a shard spends less than 1 % of its
/// time on them.
pub(crate) const TICK: Duration = Duration::from_micros(250);

/// The interval when nothing in the table can become late. Only time limits of seconds are pending
/// then.
pub(crate) const REST_TICK: Duration = Duration::from_millis(50);

/// Reads that are timed, for each check. Bounds the cost of the clock. If there are fewer reads,
/// all are timed.
pub(crate) const SAMPLES: u32 = 8;

/// How often bounds are computed from the distributions.
pub(crate) const MEASURE_EVERY: Nanos = 20_000_000;

/// Reads that earn a hedge: at most a twentieth of the reads are hedged.
const READS_PER_HEDGE: u64 = 20;

/// Hedges that can be saved up for a burst.
const HEDGES_SAVED: u64 = 32;

/// The kind of an operation in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A read that a client waits for, with its length class. It may be hedged.
    Direct(u8),
    /// A read of the engine.
    Read(u8),
    /// A read that no request waits for.
    Probe(u8),
    Flush,
    /// Any operation that changes the drive.
    Change,
}

impl Kind {
    /// The class of a read.
    fn class(self) -> Option<u8> {
        match self {
            Kind::Direct(class) | Kind::Read(class) | Kind::Probe(class) => Some(class),
            Kind::Flush | Kind::Change => None,
        }
    }
}

/// A message to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    None,
    /// Read from the other members too, and take the first answer.
    Late,
    /// There will be no answer.
    Expired,
}

struct Entry {
    drive: DriveId,
    kind: Kind,
    /// Start time. For an operation that is not sampled: time of its first check, or 0 before that.
    since: Nanos,
    sampled: bool,
    /// It has taken longer than it should, and that was counted.
    late: bool,
    notice: Notice,
    /// `None`: the entry is free.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Asleep,
    /// Every [`TICK`].
    Awake,
    /// Every [`REST_TICK`].
    Resting,
}

/// The in-flight table. See the head of this file.
pub(crate) struct InFlightTable {
    pub shared: Arc<Shared>,
    pub shard: usize,
    pub latencies: Arc<[ShardLatencies]>,
    now: Box<dyn Fn() -> Nanos>,
    /// Starts the task that looks at the table.
    start: Box<dyn Fn()>,
    table: RefCell<Table>,
    pub detectors: RefCell<SlowDetectors>,
    pub(crate) pace: Cell<Pace>,
    /// Number of the task that checks the table. Older tasks end.
    pub(crate) generation: Cell<u64>,
    /// An operation was entered since the last check.
    pub(crate) entered: Cell<bool>,
    pub looked: Cell<Nanos>,
    pub(crate) measured: Cell<Nanos>,
    pub(crate) samples: Cell<u32>,
    pub(crate) user_samples: Cell<u32>,
    pub any_avoided: Cell<bool>,
    /// A check is under way whether a member can read the data that it did not return in time.
    pub looking: Cell<bool>,
    /// Operations outstanding at each drive, by the number of the drive.
    outstanding: RefCell<Vec<Rc<Outstanding>>>,
    pub(crate) bounded: Cell<Nanos>,
    shards: usize,
    /// Unit: reads. A hedge costs [`READS_PER_HEDGE`].
    saved: Cell<u64>,
    reads_seen: Cell<u64>,
}

/// An operation that may take long.
pub(crate) struct InFlightRequest<'a> {
    in_flight: &'a InFlightTable,
    drive: DriveId,
    kind: Kind,
    place: Option<u32>,
}

impl InFlightRequest<'_> {
    /// Call this at each poll that finds the operation pending.
    #[inline]
    pub fn look(&mut self, context: &Context<'_>) -> Notice {
        let Some(place) = self.place else {
            self.place = Some(self.in_flight.enter(self.drive, self.kind, context.waker()));
            return Notice::None;
        };
        let mut table = self.in_flight.table.borrow_mut();
        let entry = &mut table.entries[place as usize];
        if let Some(waker) = &mut entry.waker {
            waker.clone_from(context.waker());
        }
        entry.notice
    }

    /// The operation is done.
    #[inline]
    pub fn landed(&mut self) {
        if let Some(place) = self.place.take() {
            self.in_flight.land(place);
        }
    }
}

impl Drop for InFlightRequest<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.in_flight.leave(place);
        }
    }
}

impl InFlightTable {
    /// Creates the in-flight table of a shard. `now` is its clock; `start` starts the task that
    /// looks at the table ([`InFlightTable::begin_task`]).
    pub fn new(
        shared: &Arc<Shared>,
        (shard, shards): (usize, usize),
        now: Box<dyn Fn() -> Nanos>,
        start: Box<dyn Fn()>,
    ) -> Rc<InFlightTable> {
        Rc::new(InFlightTable {
            shared: shared.clone(),
            shard,
            latencies: shared.latencies(shards),
            now,
            start,
            table: RefCell::default(),
            detectors: RefCell::default(),
            pace: Cell::new(Pace::Asleep),
            generation: Cell::new(0),
            entered: Cell::new(false),
            looked: Cell::new(0),
            measured: Cell::new(0),
            samples: Cell::new(SAMPLES),
            user_samples: Cell::new(0),
            any_avoided: Cell::new(false),
            looking: Cell::new(false),
            outstanding: RefCell::default(),
            bounded: Cell::new(0),
            shards,
            saved: Cell::new(HEDGES_SAVED * READS_PER_HEDGE),
            reads_seen: Cell::new(0),
        })
    }

    /// A task begins to look at the table. Returns its generation: an older task ends.
    pub fn begin_task(&self) -> u64 {
        self.pace.set(Pace::Awake);
        self.generation.set(self.generation.get() + 1);
        self.generation.get()
    }

    /// Begins an operation. This costs nothing before the first [`InFlightRequest::look`].
    #[inline]
    pub fn request(&self, drive: DriveId, kind: Kind) -> InFlightRequest<'_> {
        InFlightRequest { in_flight: self, drive, kind, place: None }
    }

    fn enter(&self, drive: DriveId, kind: Kind, waker: &Waker) -> u32 {
        let left = self.samples.get();
        let sampled = match kind {
            Kind::Probe(_) => true,
            Kind::Direct(_) | Kind::Read(_) => left > 0,
            Kind::Flush | Kind::Change => false,
        };
        let since = if sampled { (self.now)() } else { 0 };
        self.samples.set(left - u32::from(sampled && left > 0));
        self.entered.set(true);
        if self.pace.get() != Pace::Awake {
            (self.start)();
        }
        let entry =
            Entry { drive, kind, since, sampled, late: false, notice: Notice::None, waker: Some(waker.clone()) };
        let mut table = self.table.borrow_mut();
        match table.free.pop() {
            Some(place) => {
                table.entries[place as usize] = entry;
                place
            }
            None => {
                table.entries.push(entry);
                table.entries.len() as u32 - 1
            }
        }
    }

    fn leave(&self, place: u32) {
        let mut table = self.table.borrow_mut();
        let waker = table.entries[place as usize].waker.take();
        table.free.push(place);
        drop(table);
        drop(waker);
    }

    fn land(&self, place: u32) {
        let (drive, kind, since, sampled, late) = {
            let entry = &self.table.borrow().entries[place as usize];
            (entry.drive, entry.kind, entry.since, entry.sampled, entry.late)
        };
        self.leave(place);
        self.detector(drive, |detector| detector.note_answer(since));
        let Some(class) = kind.class().filter(|_| !late) else { return };
        if sampled {
            let nanos = (self.now)().saturating_sub(since);
            self.add_sample(drive, class, nanos);
            let is_late = self.detector(drive, |detector| nanos > detector.bounds[usize::from(class)]);
            if is_late {
                return self.detector(drive, |detector| detector.note_late(kind));
            }
        }
        self.detector(drive, |detector| detector.note_in_time(kind));
    }

    fn add_sample(&self, drive: DriveId, class: u8, nanos: Nanos) {
        if let Some(member) = self.shared.member_of(drive) {
            self.latencies[self.shard].add_read(member, drive, class, nanos);
        }
    }

    pub fn detector<T>(&self, drive: DriveId, change: impl FnOnce(&mut SlowDetector) -> T) -> T {
        change(self.detectors.borrow_mut().of(drive))
    }

    /// The operations outstanding at a drive.
    pub fn outstanding(&self, drive: DriveId) -> Rc<Outstanding> {
        let mut all = self.outstanding.borrow_mut();
        while all.len() <= usize::from(drive.0) {
            all.push(Outstanding::new(self.shards));
        }
        all[usize::from(drive.0)].clone()
    }

    /// Bounds the outstanding operations of drives by their recent throughput.
    pub(crate) fn bound_outstanding(&self, now: Nanos) {
        let nanos = now.saturating_sub(self.bounded.replace(now));
        // Admission wakes tasks, and calls nothing in this file.
        self.outstanding.borrow().iter().for_each(|drive| drive.measure(nanos));
    }

    /// Start time of a client's request, if it is sampled.
    #[inline]
    pub fn user_begins(&self) -> Nanos {
        match self.user_samples.get() {
            0 => 0,
            left => {
                self.user_samples.set(left - 1);
                (self.now)()
            }
        }
    }

    /// Cancels a sample: the fast path was not taken. Another request will be sampled.
    pub fn user_was_none(&self) {
        self.user_samples.set(self.user_samples.get() + 1);
    }

    /// A sampled client request ends.
    pub fn user_ends(&self, began: Nanos) {
        self.latencies[self.shard].users.add((self.now)().saturating_sub(began));
    }

    /// Takes a token for a hedge.
    fn pay(&self) -> bool {
        let saved = self.saved.get();
        if saved < READS_PER_HEDGE {
            return false;
        }
        self.saved.set(saved - READS_PER_HEDGE);
        true
    }

    pub(crate) fn earn(&self, reads: u64) {
        let earned = reads - self.reads_seen.replace(reads);
        self.saved.set((self.saved.get() + earned).min(HEDGES_SAVED * READS_PER_HEDGE));
    }
}

/// The result of one check of the table.
#[derive(Default)]
pub(crate) struct CheckResult {
    pub(crate) wakers: Vec<Waker>,
    /// Drives that have not answered within the time limit.
    pub(crate) silent: Vec<DriveId>,
    /// An operation may become late soon, or is late and not hedged yet.
    pub(crate) hurry: bool,
}

impl InFlightTable {
    /// Checks everything in flight for late and lost operations.
    pub(crate) fn look_over(&self, now: Nanos) -> CheckResult {
        let mut found = CheckResult::default();
        let limit = self.shared.settings.time_limit();
        let given_up = self.shared.given_up();
        let mut samples: Vec<(DriveId, u8, Nanos)> = Vec::new();
        let mut table = self.table.borrow_mut();
        let mut detectors = self.detectors.borrow_mut();
        for (drive, detector) in detectors.all() {
            if std::mem::take(&mut detector.answered) {
                self.shared.note_answer(drive, now);
            }
        }
        for entry in &mut table.entries {
            let Some(waker) = &entry.waker else { continue };
            if entry.since == 0 {
                entry.since = now;
            }
            let age = now.saturating_sub(entry.since);
            let detector = detectors.of(entry.drive);
            let is_lost = || {
                let is_overtaken = detector.newest_answered.saturating_sub(entry.since) >= limit;
                is_overtaken || self.shared.is_silent_for(entry.drive, limit, now)
            };
            let is_given_up = given_up.contains(&entry.drive);
            if entry.notice != Notice::Expired && (is_given_up || age >= limit && is_lost()) {
                let is_over = is_given_up || self.shared.held_by(entry.drive).is_none();
                if is_over || (detector.needed && entry.kind != Kind::Change) {
                    entry.notice = Notice::Expired;
                    found.wakers.push(waker.clone());
                } else if detector.asked.is_none_or(|asked| now.saturating_sub(asked) >= limit) {
                    (detector.asked, detector.needed) = (Some(now), false);
                    found.silent.push(entry.drive);
                }
            }
            let Some(class) = entry.kind.class() else { continue };
            if !entry.late && age > detector.bounds[usize::from(class)] {
                entry.late = true;
                detector.note_late(entry.kind);
                if entry.sampled {
                    samples.push((entry.drive, class, age));
                }
            }
            found.hurry |= !entry.late;
        }
        drop((table, detectors));
        for (drive, class, age) in samples {
            self.add_sample(drive, class, age);
        }
        found
    }

    /// Starts hedges for clients' late reads, as far as there are tokens.
    pub(crate) fn hedge(&self, found: &mut CheckResult) -> u64 {
        if !self.may_hedge() {
            return 0;
        }
        let mut hedged = 0;
        let mut detectors = self.detectors.borrow_mut();
        for entry in &mut self.table.borrow_mut().entries {
            let is_due = entry.late && entry.notice == Notice::None && matches!(entry.kind, Kind::Direct(_));
            let Some(waker) = entry.waker.as_ref().filter(|_| is_due) else { continue };
            if detectors.of(entry.drive).avoided || self.pay() {
                entry.notice = Notice::Late;
                hedged += 1;
                found.wakers.push(waker.clone());
            } else {
                found.hurry = true;
            }
        }
        hedged
    }

    /// Whether other strips can stand in for a late one.
    pub fn may_hedge(&self) -> bool {
        let shared = &self.shared;
        shared.geometry.parity_count > 0 && shared.settings.hedging() && !shared.is_resync_due()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let table = self.table.borrow();
        table.free.len() == table.entries.len()
    }
}

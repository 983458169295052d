//! Tracks the running commands of a namespace, on all shards and at all addresses, for tasks that
//! have to wait for them.
//!
//! A command costs a load and two stores that no other core sees: each queue counts its own
//! commands, by epoch: two counters take turns. A task that has to know when all earlier commands
//! have ended begins the next epoch. Each queue's shard then confirms that it has seen it, and the
//! task waits for a grace period: until no command of the old epoch runs. So the cost is with the
//! tasks that wait, which are few.
//!
//! A task that needs a range for itself first adds the range to a list, and then waits. Commands
//! that were let in before have ended then. Later commands find the range in the list and wait.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use drive::Env;
use nvme::target::Range;

/// Bit of the word: which of the two counters the epoch uses.
const COUNTER: u64 = 1;

/// Bit of the word: a task waits until commands have ended.
const DRAINING: u64 = 1 << 1;

/// Bit of the word: ranges are held.
const HELD: u64 = 1 << 2;

/// The bits from here on are the version of the data that queues may keep a copy of.
const VERSION_SHIFT: u32 = 8;

/// The commands of one namespace.
#[derive(Debug, Default)]
pub(super) struct Gate {
    word: AtomicU64,
    /// Number of the epoch. It is stored after the word, so that a shard that has seen it
    /// has seen the word, too.
    epoch: AtomicU64,
    inner: Mutex<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    lanes: Vec<Arc<Lane>>,
    /// Number of drains that were requested, that the current or last epoch serves, and that are
    /// done.
    asked: u64,
    served: u64,
    done: u64,
    waiting: Vec<Waker>,
    /// Held ranges, each with its own number. Tasks that wait for one are in `waiting_for_range`.
    held: Vec<(u64, Range)>,
    next_hold: u64,
    waiting_for_range: Vec<Waker>,
}

/// A range that only the holder may change, until this is dropped.
#[derive(Debug)]
pub(super) struct Hold<'a> {
    gate: &'a Gate,
    number: u64,
}

/// The commands of one queue. Only its shard writes, so plain loads and stores are enough.
#[derive(Debug, Default)]
struct Lane {
    /// Running commands, by counter: epochs use them in turn.
    running: [AtomicU32; 2],
    /// [`Gate::epoch`], as the shard has last seen it.
    seen: AtomicU64,
    closed: AtomicBool,
    /// Waker of the task that watches for epochs.
    waker: Mutex<Option<Waker>>,
}

/// A queue's access to a namespace. Belongs to one shard.
#[derive(Debug)]
pub(super) struct Way {
    gate: Arc<Gate>,
    lane: Arc<Lane>,
}

/// A command that was let in. Dropping it ends the command.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    way: &'a Way,
    /// The gate's word when the command was let in.
    word: u64,
}

/// Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Only the owning shard writes, so nothing is lost between the load and the store.
#[inline]
fn step(counter: &AtomicU32, by: i32) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add_signed(by), Ordering::Relaxed);
}

impl GateState {
    fn is_held(&self, ranges: &[Range]) -> bool {
        let overlaps =
            |one: &Range, other: &Range| one.offset < other.offset + other.len && other.offset < one.offset + one.len;
        self.held.iter().any(|(_, held)| ranges.iter().any(|range| overlaps(held, range)))
    }

    fn poll_released(&mut self, ranges: &[Range], context: &Context<'_>) -> Poll<()> {
        if !self.is_held(ranges) {
            return Poll::Ready(());
        }
        if !self.waiting_for_range.iter().any(|waker| waker.will_wake(context.waker())) {
            self.waiting_for_range.push(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Gate {
    /// Opens the gate to a queue of the calling shard.
    pub fn open<E: Env>(self: &Arc<Self>, env: &E) -> Way {
        let lane = Arc::new(Lane::default());
        {
            let mut inner = lock(&self.inner);
            lane.seen.store(self.epoch.load(Ordering::Relaxed), Ordering::Relaxed);
            inner.lanes.push(lane.clone());
        }
        env.spawn(look(self.clone(), lane.clone()));
        Way { gate: self.clone(), lane }
    }

    /// The version of the data that queues may keep a copy of.
    #[inline]
    pub fn version(&self) -> u64 {
        self.word.load(Ordering::Relaxed) >> VERSION_SHIFT
    }

    /// Marks the copies that queues have as out of date.
    pub fn renew(&self) {
        self.word.fetch_add(1 << VERSION_SHIFT, Ordering::SeqCst);
    }

    /// Returns when every command has ended that was let in before this call.
    pub async fn drained(&self) {
        let ticket = {
            let mut inner = lock(&self.inner);
            inner.asked += 1;
            inner.asked
        };
        self.advance();
        poll_fn(|context| {
            let mut inner = lock(&self.inner);
            if inner.done >= ticket {
                return Poll::Ready(());
            }
            if !inner.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                inner.waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether any part of these ranges is held.
    pub fn is_held(&self, ranges: &[Range]) -> bool {
        lock(&self.inner).is_held(ranges)
    }

    /// Returns when no part of these ranges is held.
    pub async fn released(&self, ranges: &[Range]) {
        poll_fn(|context| lock(&self.inner).poll_released(ranges, context)).await;
    }

    /// Holds a range. Returns when every command has ended that was let in before.
    pub async fn hold(&self, range: Range) -> Hold<'_> {
        let hold = poll_fn(|context| {
            let mut inner = lock(&self.inner);
            inner.poll_released(&[range], context).map(|()| {
                let number = inner.next_hold;
                inner.next_hold += 1;
                inner.held.push((number, range));
                self.word.fetch_or(HELD, Ordering::SeqCst);
                Hold { gate: self, number }
            })
        })
        .await;
        self.drained().await;
        hold
    }

    /// Ends drains whose commands have ended, and begins drains that were requested meanwhile.
    fn advance(&self) {
        let mut wake = Vec::new();
        let mut inner = lock(&self.inner);
        loop {
            if inner.served > inner.done {
                let epoch = self.epoch.load(Ordering::Relaxed);
                // The epoch before has left this counter empty, so commands that run there are
                // older than this epoch.
                let old = (self.word.load(Ordering::Relaxed) & COUNTER ^ COUNTER) as usize;
                let is_over = |lane: &Arc<Lane>| {
                    lane.seen.load(Ordering::Acquire) == epoch && lane.running[old].load(Ordering::Relaxed) == 0
                };
                if !inner.lanes.iter().all(is_over) {
                    break;
                }
                inner.done = inner.served;
                wake.append(&mut inner.waiting);
            }
            if inner.asked == inner.done {
                self.word.fetch_and(!DRAINING, Ordering::SeqCst);
                break;
            }
            inner.served = inner.asked;
            self.word.fetch_or(DRAINING, Ordering::SeqCst);
            self.word.fetch_xor(COUNTER, Ordering::SeqCst);
            self.epoch.fetch_add(1, Ordering::SeqCst);
            wake.extend(inner.lanes.iter().filter_map(|lane| lock(&lane.waker).take()));
        }
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Confirms, on the queue's shard, that it has seen an epoch.
async fn look(gate: Arc<Gate>, lane: Arc<Lane>) {
    poll_fn(|context| {
        // Before the check, so that no epoch is missed.
        *lock(&lane.waker) = Some(context.waker().clone());
        if lane.closed.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        let epoch = gate.epoch.load(Ordering::SeqCst);
        if lane.seen.load(Ordering::Relaxed) != epoch {
            // From here on the shard's commands are of the new epoch, and all earlier ones are
            // counted.
            lane.seen.store(epoch, Ordering::Release);
            gate.advance();
        }
        Poll::Pending
    })
    .await;
}

impl Way {
    /// Lets a command in.
    #[inline]
    pub fn enter(&self) -> Inside<'_> {
        let word = self.gate.word.load(Ordering::Relaxed);
        step(&self.lane.running[(word & COUNTER) as usize], 1);
        Inside { way: self, word }
    }
}

impl Inside<'_> {
    /// Whether ranges may be held. If none was when the command was let in, a later holder waits
    /// for it.
    #[inline]
    pub fn may_be_held(&self) -> bool {
        self.word & HELD != 0
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut inner = lock(&self.gate.inner);
            inner.held.retain(|(number, _)| *number != self.number);
            if inner.held.is_empty() {
                self.gate.word.fetch_and(!HELD, Ordering::SeqCst);
            }
            std::mem::take(&mut inner.waiting_for_range)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        lock(&self.gate.inner).lanes.retain(|lane| !Arc::ptr_eq(lane, &self.lane));
        self.lane.closed.store(true, Ordering::SeqCst);
        let waker = lock(&self.lane.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
        self.gate.advance();
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        step(&self.way.lane.running[(self.word & COUNTER) as usize], -1);
        if self.way.gate.word.load(Ordering::Relaxed) & DRAINING != 0 {
            self.way.gate.advance();
        }
    }
}

//! Rate limiters: how fast a volume, or a host, may be used.
//!
//! - [`Limit`] is the rate. A [`Limiter`] enforces it, for any number of connections on any shards.
//! - A request that is over the limit waits in the limiter's wait queue. Requests that the limiter
//!   does not apply to do not wait there.
//! - An [`Owner`] stands for the waiting requests of one connection. When the connection ends,
//!   either all of them go on at once or all are dropped.
//!
//! Invariants:
//! 1. Requests pass in the order in which they came to the limiter.
//! 2. Without a limit, a request costs one load of a flag.

mod bucket;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use drive::{Env, Nanos};

use bucket::Bucket;

/// How fast something may be used. Reads, writes, zeroing, discarding, comparing and copying are
/// counted; flushes are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Requests per second, not 0. `None`: no limit.
    pub iops: Option<u64>,
    /// Bytes of data per second, not 0. `None`: no limit.
    pub bytes_per_s: Option<u64>,
    /// Burst: after a pause, the amount that this many milliseconds allow may be used at once.
    pub burst_ms: u64,
}

/// Enforces a limit. Shared by all threads.
#[derive(Debug, Default)]
pub struct Limiter {
    is_on: AtomicBool,
    inner: Mutex<LimiterState>,
}

/// How long requests have waited for a [`Limiter`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests that have waited.
    pub waited: u64,
    /// Sum of their waiting times in nanoseconds.
    pub waited_ns: u64,
}

/// The cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    pub requests: u64,
    pub bytes: u64,
}

/// Decides what happens to the waiting requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Owner(AtomicU8);

/// Requests wait.
const WAITS: u8 = 0;
/// Requests go on at once: the connection, or what it uses, is about to end in order.
const HURRIES: u8 = 1;
/// Requests are not served any more: there is no client left to answer.
const GONE: u8 = 2;

impl Owner {
    fn set(&self, how: u8) {
        // `GONE` is final, so the value only grows.
        self.0.fetch_max(how, Ordering::SeqCst);
    }

    /// The decision about a request that does not wait: `Some(true)` if it goes on, `Some(false)`
    /// if it is dropped. `None` if it has to wait.
    fn decision(&self) -> Option<bool> {
        match self.0.load(Ordering::SeqCst) {
            WAITS => None,
            how => Some(how == HURRIES),
        }
    }
}

#[derive(Debug, Default)]
struct LimiterState {
    limit: Option<Limit>,
    /// The limit is new. It takes effect at the next [`LimiterState::fill`], which knows the time.
    is_new: bool,
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    /// When the buckets were filled.
    filled_at: Nanos,
    line: VecDeque<Arc<Ticket>>,
    waited: u64,
    waited_ns: u64,
}

/// A request that waits, or has waited.
#[derive(Debug)]
struct Ticket {
    cost: Cost,
    owner: Arc<Owner>,
    since: Nanos,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    /// The request goes on (true), or is not served (false).
    passes: Option<bool>,
    waker: Option<Waker>,
}

type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// The shortest pause before the head of the wait queue looks again. Requests that are due within
/// it pass together, so a high limit does not cost a timer and another shard's turn for every
/// request. It is far below the shortest burst, so the rate does not suffer.
const LOOK_MIN: Nanos = 500_000;

/// Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
    /// Sets the outcome. Returns the task to wake once no lock is held.
    fn end(&self, passes: bool) -> Option<Waker> {
        let mut end = lock(&self.end);
        end.passes = Some(passes);
        end.waker.take()
    }

    fn waker(&self) -> Option<Waker> {
        lock(&self.end).waker.clone()
    }
}

impl LimiterState {
    fn fill(&mut self, now: Nanos) {
        let nanos = now.saturating_sub(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        // Until the head of the wait queue is due, no request wants anything from a bucket that the
        // head does not wait for.
        let early = self.line.front().map_or(nanos, |head| self.due_in(head.cost).min(nanos));
        for bucket in self.requests.iter_mut().chain(&mut self.bytes) {
            bucket.fill(early, false);
            bucket.fill(nanos - early, true);
        }
        if std::mem::take(&mut self.is_new) {
            let burst_ms = self.limit.map_or(0, |limit| limit.burst_ms);
            let renew = |bucket: &mut Option<Bucket>, rate: Option<u64>| match (bucket.as_mut(), rate) {
                (Some(bucket), Some(rate)) => bucket.change(rate, burst_ms),
                (_, rate) => *bucket = rate.map(|rate| Bucket::new(rate, burst_ms)),
            };
            renew(&mut self.requests, self.limit.and_then(|limit| limit.iops));
            renew(&mut self.bytes, self.limit.and_then(|limit| limit.bytes_per_s));
        }
    }

    fn due_in(&self, cost: Cost) -> Nanos {
        let requests = self.requests.as_ref().map_or(0, |bucket| bucket.due_in(cost.requests));
        requests.max(self.bytes.as_ref().map_or(0, |bucket| bucket.due_in(cost.bytes)))
    }

    fn take(&mut self, cost: Cost) {
        for (bucket, cost) in [(&mut self.requests, cost.requests), (&mut self.bytes, cost.bytes)] {
            bucket.iter_mut().for_each(|bucket| bucket.take(cost));
        }
    }

    /// Lets requests pass whose turn it is. Returns the tasks to wake, the new head among them.
    fn advance(&mut self, now: Nanos) -> Vec<Waker> {
        self.fill(now);
        let mut wake = Vec::new();
        let mut moved = false;
        while let Some(cost) = self.line.front().map(|head| head.cost)
            && self.due_in(cost) == 0
        {
            self.take(cost);
            let head = self.line.pop_front().expect("it was looked at");
            self.waited += 1;
            self.waited_ns += now.saturating_sub(head.since);
            wake.extend(head.end(true));
            moved = true;
        }
        if moved {
            wake.extend(self.line.front().and_then(|head| head.waker()));
        }
        wake
    }
}

impl Limiter {
    /// Whether there is a limit.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The limit in effect.
    pub fn limit(&self) -> Option<Limit> {
        lock(&self.inner).limit
    }

    /// How long requests have waited.
    pub fn waits(&self) -> Waits {
        let inner = lock(&self.inner);
        Waits { waiting: inner.line.len() as u64, waited: inner.waited, waited_ns: inner.waited_ns }
    }

    /// Sets another limit from now on, also for waiting requests. `None` lets all of them pass.
    pub fn set(&self, limit: Option<Limit>) {
        let wake: Vec<Waker> = {
            let mut inner = lock(&self.inner);
            inner.limit = limit;
            match limit {
                Some(_) => {
                    inner.is_new = true;
                    inner.line.front().and_then(|head| head.waker()).into_iter().collect()
                }
                None => {
                    (inner.is_new, inner.requests, inner.bytes) = (false, None, None);
                    inner.line.drain(..).filter_map(|ticket| ticket.end(true)).collect()
                }
            }
        };
        self.is_on.store(limit.is_some(), Ordering::Relaxed);
        wake.into_iter().for_each(Waker::wake);
    }

    /// Lets the waiting requests of an owner pass or end, as its [`Owner`] says.
    fn release(&self, owner: &Arc<Owner>) {
        let wake: Vec<Waker> = {
            let mut inner = lock(&self.inner);
            let mut wake = Vec::new();
            inner.line.retain(|ticket| {
                let decision = if Arc::ptr_eq(&ticket.owner, owner) { owner.decision() } else { None };
                wake.extend(decision.and_then(|passes| ticket.end(passes)));
                decision.is_none()
            });
            // The request that is at the head now may not know it yet.
            wake.extend(inner.line.front().and_then(|head| head.waker()));
            wake
        };
        wake.into_iter().for_each(Waker::wake);
    }

    /// Counts a cost that was not known when the request passed. Later requests wait for it.
    fn charge(&self, cost: Cost) {
        lock(&self.inner).take(cost);
    }

    /// A request arrives: it passes or is refused at once, or gets a place in the wait queue.
    fn enter(&self, now: Nanos, cost: Cost, owner: &Arc<Owner>) -> Result<bool, Arc<Ticket>> {
        let mut inner = lock(&self.inner);
        // Under the lock: `release` either finds the ticket in the wait queue, or its effect is
        // seen here.
        if let Some(passes) = owner.decision() {
            return Ok(passes);
        }
        inner.fill(now);
        if inner.line.is_empty() && inner.due_in(cost) == 0 {
            inner.take(cost);
            return Ok(true);
        }
        let ticket = Arc::new(Ticket { cost, owner: owner.clone(), since: now, end: Mutex::default() });
        inner.line.push_back(ticket.clone());
        Err(ticket)
    }

    /// Checks a request: it passes, is refused, or still waits. At the head of the wait queue, it
    /// also returns when to look again.
    fn look(&self, ticket: &Arc<Ticket>, now: Nanos, waker: &Waker) -> Result<bool, Option<Nanos>> {
        let mut inner = lock(&self.inner);
        if let Some(passes) = lock(&ticket.end).passes {
            return Ok(passes);
        }
        if !inner.line.front().is_some_and(|head| Arc::ptr_eq(head, ticket)) {
            lock(&ticket.end).waker = Some(waker.clone());
            return Err(None);
        }
        let wake = inner.advance(now);
        let passes = lock(&ticket.end).passes;
        let due = now.saturating_add(inner.due_in(ticket.cost).max(LOOK_MIN));
        if passes.is_none() {
            lock(&ticket.end).waker = Some(waker.clone());
        }
        drop(inner);
        wake.into_iter().for_each(Waker::wake);
        passes.ok_or(Some(due))
    }

    /// Returns true when it is the request's turn, or false if it is not to be served.
    async fn pass<E: Env>(&self, env: &E, cost: Cost, owner: &Arc<Owner>) -> bool {
        let ticket = match self.enter(env.now(), cost, owner) {
            Ok(passes) => return passes,
            Err(ticket) => ticket,
        };
        let _place = LimiterPlace { limiter: self, ticket: &ticket };
        let mut timer: Option<(Nanos, Sleep)> = None;
        poll_fn(|context| {
            loop {
                let now = env.now();
                match self.look(&ticket, now, context.waker()) {
                    Ok(passes) => return Poll::Ready(passes),
                    Err(None) => {
                        timer = None;
                        return Poll::Pending;
                    }
                    Err(Some(due)) => {
                        // A timer that ends earlier, and is set already, does as well.
                        let is_set = timer.as_ref().is_some_and(|(at, _)| *at > now && *at <= due);
                        if !is_set {
                            timer = Some((due, Box::pin(env.sleep(Duration::from_nanos(due - now)))));
                        }
                        let sleeping = timer.as_mut().map(|(_, sleep)| sleep.as_mut().poll(context));
                        if sleeping.is_some_and(|sleep| sleep.is_pending()) {
                            return Poll::Pending;
                        }
                        timer = None;
                    }
                }
            }
        })
        .await
    }
}

/// A request's place in the wait queue, which it leaves when its task ends.
struct LimiterPlace<'a> {
    limiter: &'a Limiter,
    ticket: &'a Arc<Ticket>,
}

impl Drop for LimiterPlace<'_> {
    fn drop(&mut self) {
        if lock(&self.ticket.end).passes.is_some() {
            return;
        }
        let next = {
            let mut inner = lock(&self.limiter.inner);
            inner.line.retain(|ticket| !Arc::ptr_eq(ticket, self.ticket));
            inner.line.front().and_then(|head| head.waker())
        };
        next.into_iter().for_each(Waker::wake);
    }
}

/// The limits of one connection: those of its host and of its volume.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub volume: Arc<Limiter>,
    pub host: Arc<Limiter>,
    pub owner: Arc<Owner>,
}

impl Limits {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.host.is_on() | self.volume.is_on()
    }

    /// Returns true when a request may go on, or false if its connection has ended and it is not to
    /// be served.
    pub async fn pass<E: Env>(&self, env: &E, cost: Cost) -> bool {
        // While a request waits for the host's limit, it takes nothing from the volume's other
        // users.
        self.host.pass(env, cost, &self.owner).await && self.volume.pass(env, cost, &self.owner).await
    }

    /// Counts bytes whose number was not known when the request came.
    pub fn charge(&self, bytes: u64) {
        for limiter in [&self.host, &self.volume] {
            if limiter.is_on() {
                limiter.charge(Cost { requests: 0, bytes });
            }
        }
    }

    /// From now on requests pass at once.
    pub fn hurry(&self) {
        self.end(HURRIES);
    }

    /// Requests that wait are not served, and neither are later ones.
    pub fn drop_waiting(&self) {
        self.end(GONE);
    }

    fn end(&self, how: u8) {
        self.owner.set(how);
        self.host.release(&self.owner);
        self.volume.release(&self.owner);
    }
}

#[cfg(test)]
mod tests;

//! Timers of one shard.

use std::collections::BTreeMap;
use std::task::Waker;

use ::drive::Nanos;

/// Wakers by deadline. Equal deadlines are in the order of their registration.
#[derive(Default)]
pub(crate) struct Timers {
    wakers: BTreeMap<TimerKey, Waker>,
    next: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    deadline: Nanos,
    /// Distinguishes timers with the same deadline.
    number: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline: Nanos, waker: Waker) -> TimerKey {
        let key = TimerKey { deadline, number: self.next };
        self.next += 1;
        self.wakers.insert(key, waker);
        key
    }

    /// Replaces the waker of a timer that has not fired.
    pub(crate) fn update(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.wakers.get_mut(&key) {
            Some(old) => {
                old.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.wakers.remove(&key)
    }

    /// Time when the loop must be awake again.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.wakers.first_key_value().map(|(key, _)| key.deadline)
    }

    /// Takes the first timer that is due.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let first = self.wakers.first_entry()?;
        (first.key().deadline <= now).then(|| first.remove())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
    }
}

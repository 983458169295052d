//! A token bucket: a rate per second, and after a pause a burst at once.
//!
//! Invariants, if every request is taken as soon as [`Bucket::due_in`] is 0:
//! 1. The amount taken over any time is at most `rate * time + burst`. If one request is larger
//!    than the burst, its size replaces the burst.
//! 2. If requests wait all the time, the amount taken over that time is at least `rate * time` less
//!    one request: no tokens are lost.
//!
//! Levels are in billionths of a token, so that the tokens of one nanosecond are a whole number:
//! nothing is rounded.

use drive::Nanos;

/// While requests wait, the bucket may overfill by the tokens of this time, so a late timer loses
/// none: timers are late by less.
const LATE_MAX: Nanos = 10_000_000;

const BILLION: i128 = 1_000_000_000;

#[derive(Debug, Clone)]
pub(super) struct Bucket {
    /// Billionths of a token added per nanosecond.
    rate: i128,
    /// The level, in billionths, at which filling stops unless requests wait that are due.
    capacity: i128,
    /// Billionths of a token that may be taken; below 0 after a request that was larger than the
    /// burst.
    level: i128,
}

impl Bucket {
    /// A full bucket with `rate` tokens per second, not 0.
    pub fn new(rate: u64, burst_ms: u64) -> Bucket {
        // One request of the smallest cost always fits.
        let capacity = (i128::from(rate) * i128::from(burst_ms) * 1_000_000).max(BILLION);
        Bucket { rate: rate.into(), capacity, level: capacity }
    }

    /// Sets another rate and burst from now on. The level stays, up to the new capacity.
    pub fn change(&mut self, rate: u64, burst_ms: u64) {
        let level = self.level;
        *self = Bucket::new(rate, burst_ms);
        self.level = level.min(self.capacity);
    }

    /// `nanos` have passed. `wanted`: requests that were due waited all the while.
    pub fn fill(&mut self, nanos: Nanos, wanted: bool) {
        let late = if wanted { self.rate * i128::from(LATE_MAX) } else { 0 };
        let full = (self.capacity + late).max(self.level);
        self.level = (self.level + self.rate * i128::from(nanos)).min(full);
    }

    /// Nanoseconds until a request of this cost may be taken; 0 if it may now. A request that is
    /// larger than the burst may be taken when the bucket is full.
    pub fn due_in(&self, cost: u64) -> Nanos {
        let needed = (i128::from(cost) * BILLION).min(self.capacity);
        let missing = (needed - self.level).max(0);
        Nanos::try_from((missing + self.rate - 1) / self.rate).unwrap_or(Nanos::MAX)
    }

    /// Takes the cost of a request, even if the level is lower.
    pub fn take(&mut self, cost: u64) {
        self.level -= i128::from(cost) * BILLION;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_the_rate_holds() {
        let mut bucket = Bucket::new(1000, 2000);
        for _ in 0..2000 {
            assert_eq!(bucket.due_in(1), 0);
            bucket.take(1);
        }
        assert_eq!(bucket.due_in(1), 1_000_000, "one in a millisecond");
        bucket.fill(999_999, true);
        assert_eq!(bucket.due_in(1), 1);
        bucket.fill(1, true);
        assert_eq!(bucket.due_in(1), 0);
        bucket.fill(Nanos::MAX, false);
        assert_eq!((bucket.due_in(2000), bucket.level), (0, bucket.capacity));
    }

    #[test]
    fn a_request_larger_than_the_burst_goes_and_is_paid_for_afterwards() {
        let mut bucket = Bucket::new(1 << 20, 100);
        assert_eq!(bucket.due_in(32 << 20), 0, "a full bucket lets it go");
        bucket.take(32 << 20);
        let wait = bucket.due_in(1);
        assert!(
            (31_900_000_000..32_000_000_000).contains(&wait),
            "{wait} ns for 32 MiB at 1 MiB/s with 0.1 s of burst"
        );
    }

    #[test]
    fn what_comes_late_is_not_lost_to_those_who_wait() {
        let mut bucket = Bucket::new(10, 100);
        bucket.take(1);
        // Due after 100 ms, and looked at 5 ms late.
        bucket.fill(100_000_000, false);
        bucket.fill(5_000_000, true);
        bucket.take(1);
        assert_eq!(bucket.due_in(1), 95_000_000);
    }
}

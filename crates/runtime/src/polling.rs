//! The decision whether a shard that waits for a client polls for its next request before it
//! sleeps.
//!
//! A client that sends the next request as soon as it gets an answer returns sooner than a thread
//! can go to sleep and be woken. So if the last wait was that short, the next may be too: the shard
//! polls, and sleeps only if no request comes. Only the result of a poll counts, not the cause of a
//! failure (the client left, or it needs the core that polls). Each failure in a row doubles the
//! number of waits without polling before the next attempt. Idle connections cost no processor
//! time.

use ::drive::Nanos;

/// How long the shard polls: about the cost of going to sleep and being woken on both sides, since
/// a client that waits for its answer may sleep too. A virtual machine needs 20 us or more to wake
/// a core.
pub(crate) const WINDOW: Nanos = 50_000;

/// Time that the shard's own wake-up adds to a wait in which it slept.
const WAKING: Nanos = 25_000;

/// Most waits without polling before polling is tried again.
const SKIP_MAX: u32 = 1023;

/// The history of the last waits.
#[derive(Debug, Default)]
pub(crate) struct AdaptivePolling {
    was_short: bool,
    /// Waits that are still to be spent without polling.
    skip: u32,
    /// Waits without polling after the last failed attempt.
    penalty: u32,
}

impl AdaptivePolling {
    /// Called when a wait begins. Returns whether to poll before sleeping.
    pub(crate) fn tries(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.was_short
    }

    /// Called when a wait has ended after `took`. `looked`: it began with polling.
    pub(crate) fn waited(&mut self, took: Nanos, looked: bool) {
        self.was_short = took < if looked { WINDOW } else { WINDOW + WAKING };
        if !looked {
            return;
        }
        if self.was_short {
            self.penalty = 0;
        } else {
            self.penalty = (self.penalty * 2 + 1).min(SKIP_MAX);
            self.skip = self.penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of waits in which the shard polled first, of waits with these lengths.
    fn looks(polling: &mut AdaptivePolling, waits: impl IntoIterator<Item = Nanos>) -> usize {
        let waits = waits.into_iter();
        let look = |took| {
            let looked = polling.tries();
            polling.waited(took, looked);
            looked
        };
        waits.map(look).filter(|looked| *looked).count()
    }

    #[test]
    fn who_asks_again_at_once_is_looked_for() {
        let mut polling = AdaptivePolling::default();
        assert_eq!(looks(&mut polling, [8_000; 100]), 99, "all but the first, of which nothing was known");
    }

    #[test]
    fn a_client_that_is_woken_itself_is_looked_for() {
        let mut polling = AdaptivePolling::default();
        // It answers 30 us after the shard does, and a shard that slept is back another 25 us
        // later.
        let mut looks = 0;
        for _ in 0..100 {
            let looked = polling.tries();
            looks += usize::from(looked);
            polling.waited(if looked { 30_000 } else { 55_000 }, looked);
        }
        assert_eq!(looks, 99);
    }

    #[test]
    fn connections_that_are_idle_cost_nothing() {
        let mut polling = AdaptivePolling::default();
        assert_eq!(looks(&mut polling, [1_000_000; 100]), 0);
        assert_eq!(looks(&mut polling, [8_000; 10]), 9);
        assert_eq!(looks(&mut polling, [1_000_000; 100]), 1, "the end of a run is noticed by one look");
    }

    #[test]
    fn a_client_that_needs_the_core_that_looks_is_left_to_it() {
        let mut polling = AdaptivePolling::default();
        // It comes back soon after the shard has gone to sleep, and never earlier.
        let mut looks = 0;
        for _ in 0..10_000 {
            let looked = polling.tries();
            looks += usize::from(looked);
            polling.waited(if looked { WINDOW + 8_000 } else { 8_000 }, looked);
        }
        assert!(looks < 25, "{looks} looks");
    }

    #[test]
    fn one_success_ends_the_penalty() {
        let mut polling = AdaptivePolling::default();
        for _ in 0..200 {
            let looked = polling.tries();
            polling.waited(if looked { WINDOW } else { 0 }, looked);
        }
        assert!(looks(&mut polling, [8_000; 2_000]) > 900, "the penalty is over, whenever that is");
        assert_eq!(looks(&mut polling, [8_000; 100]), 100);
    }
}

//! Whether a shard that waits for a client looks for its next request for a moment before it
//! sleeps.
//!
//! A client that waits for each answer and asks again at once comes back sooner than a thread goes
//! to sleep and is woken. So where the last wait was that short, the next may be: the shard looks,
//! and sleeps only if nothing comes. What tells that it was in vain is the result, whatever the
//! cause (the client went, or it needs the core that looks): each time in a row doubles how many
//! waits go by before the next attempt. Connections that are idle cost nothing.

use ::drive::Nanos;

/// How long the shard looks: about what going to sleep and being woken costs on both sides, since a
/// client that waits for its answer may sleep too. A virtual machine needs 20 us and more to wake a
/// core.
pub(crate) const WINDOW: Nanos = 50_000;

/// What the shard's own waking adds to a wait in which it slept.
const WAKING: Nanos = 25_000;

/// Waits that go by at most before looking is tried again.
const SKIP_MAX: u32 = 1023;

/// What the last waits were like.
#[derive(Debug, Default)]
pub(crate) struct Spinner {
    was_short: bool,
    /// Waits that are still to go by.
    skip: u32,
    /// The same, after the next look in vain.
    penalty: u32,
}

impl Spinner {
    /// A wait begins: whether to look before sleeping.
    pub(crate) fn tries(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.was_short
    }

    /// It has ended after `took`. `looked`: it began with a look.
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

    /// Waits of such lengths, and for how many of them the shard looked first.
    fn looks(spinner: &mut Spinner, waits: impl IntoIterator<Item = Nanos>) -> usize {
        let waits = waits.into_iter();
        let look = |took| {
            let looked = spinner.tries();
            spinner.waited(took, looked);
            looked
        };
        waits.map(look).filter(|looked| *looked).count()
    }

    #[test]
    fn who_asks_again_at_once_is_looked_for() {
        let mut spinner = Spinner::default();
        assert_eq!(looks(&mut spinner, [8_000; 100]), 99, "all but the first, of which nothing was known");
    }

    #[test]
    fn a_client_that_is_woken_itself_is_looked_for() {
        let mut spinner = Spinner::default();
        // It answers 30 us after the shard does, and a shard that slept is back another 25 us
        // later.
        let mut looks = 0;
        for _ in 0..100 {
            let looked = spinner.tries();
            looks += usize::from(looked);
            spinner.waited(if looked { 30_000 } else { 55_000 }, looked);
        }
        assert_eq!(looks, 99);
    }

    #[test]
    fn connections_that_are_idle_cost_nothing() {
        let mut spinner = Spinner::default();
        assert_eq!(looks(&mut spinner, [1_000_000; 100]), 0);
        assert_eq!(looks(&mut spinner, [8_000; 10]), 9);
        assert_eq!(looks(&mut spinner, [1_000_000; 100]), 1, "the end of a run is noticed by one look");
    }

    #[test]
    fn a_client_that_needs_the_core_that_looks_is_left_to_it() {
        let mut spinner = Spinner::default();
        // It comes back soon after the shard has gone to sleep, and never before.
        let mut looks = 0;
        for _ in 0..10_000 {
            let looked = spinner.tries();
            looks += usize::from(looked);
            spinner.waited(if looked { WINDOW + 8_000 } else { 8_000 }, looked);
        }
        assert!(looks < 25, "{looks} looks");
    }

    #[test]
    fn one_success_ends_the_penalty() {
        let mut spinner = Spinner::default();
        for _ in 0..200 {
            let looked = spinner.tries();
            spinner.waited(if looked { WINDOW } else { 0 }, looked);
        }
        assert!(looks(&mut spinner, [8_000; 2_000]) > 900, "the penalty is over, whenever that is");
        assert_eq!(looks(&mut spinner, [8_000; 100]), 100);
    }
}

//! Whether a shard that waits for a short time sleeps or stays awake.
//!
//! To sleep for some microseconds a thread has the kernel set a timer, and that may take more of
//! the processor than it spares: a hypervisor that has to be asked takes 20 us for it. What it
//! takes here is measured now and then, and a wait that is shorter is spent looking for completions
//! instead, which takes no more than the wait itself.

use ::drive::Nanos;

/// The longest wait that may be spent awake, whatever a sleep takes.
const SHORT: Nanos = 100_000;

/// Short waits from one measurement to the next.
const MEASURE_EVERY: u32 = 64;

/// How a wait is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nap {
    /// Looking for completions.
    Awake,
    Asleep,
    /// Asleep, and [`Naps::measured`] is to be told how much processor time that took.
    Measured,
}

/// What short sleeps have taken so far.
#[derive(Debug, Default)]
pub(crate) struct Naps {
    /// Processor time of a short sleep: a moving mean.
    cost: Nanos,
    /// Short waits that are still to come before the next measurement.
    rest: u32,
}

impl Naps {
    /// How to spend a wait of `left`.
    pub(crate) fn choose(&mut self, left: Nanos) -> Nap {
        if left > SHORT {
            return Nap::Asleep;
        }
        let Some(rest) = self.rest.checked_sub(1) else {
            self.rest = MEASURE_EVERY;
            return Nap::Measured;
        };
        self.rest = rest;
        if left < self.cost { Nap::Awake } else { Nap::Asleep }
    }

    /// A short sleep took that much of the processor.
    pub(crate) fn measured(&mut self, cost: Nanos) {
        self.cost = if self.cost == 0 { cost } else { (self.cost * 7 + cost) / 8 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a thousand waits of `left`, where a sleep takes `cost`: how many were spent awake.
    fn awake(naps: &mut Naps, left: Nanos, cost: Nanos) -> usize {
        let mut awake = 0;
        for _ in 0..1000 {
            match naps.choose(left) {
                Nap::Awake => awake += 1,
                Nap::Asleep => {}
                Nap::Measured => naps.measured(cost),
            }
        }
        awake
    }

    #[test]
    fn a_wait_is_spent_in_the_way_that_takes_less() {
        assert!(awake(&mut Naps::default(), 10_000, 24_000) > 980);
        assert_eq!(awake(&mut Naps::default(), 50_000, 24_000), 0);
        assert_eq!(awake(&mut Naps::default(), 10_000, 2_000), 0);
    }

    #[test]
    fn long_waits_are_slept_through_whatever_a_sleep_takes() {
        let mut naps = Naps::default();
        assert!(awake(&mut naps, SHORT, 500_000) > 980);
        assert_eq!(awake(&mut naps, SHORT + 1, 500_000), 0);
    }

    #[test]
    fn a_sleep_that_has_become_cheap_is_noticed() {
        let mut naps = Naps::default();
        assert!(awake(&mut naps, 10_000, 24_000) > 980);
        assert!(awake(&mut naps, 10_000, 1_000) < 700);
        assert_eq!(awake(&mut naps, 10_000, 1_000), 0);
    }
}

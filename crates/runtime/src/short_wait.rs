//! The decision whether a shard with a short wait sleeps or polls.
//!
//! To sleep for some microseconds a thread makes the kernel set a timer. That may take more
//! processor time than the sleep saves: in a virtual machine the hypervisor may need 20 us for it.
//! The cost is measured now and then. If a wait is shorter than this cost, the shard polls for
//! completions instead, which takes no more time than the wait itself.

use ::drive::Nanos;

/// The longest wait that may be spent polling, independent of the cost of a sleep.
const SHORT: Nanos = 100_000;

/// Short waits between two measurements.
const MEASURE_EVERY: u32 = 64;

/// How a shard spends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShortWait {
    /// Awake: polls for completions.
    Awake,
    Asleep,
    /// Asleep, and the caller reports the processor time of the sleep to
    /// [`ShortWaitCost::measured`].
    Measured,
}

/// The measured cost of short sleeps.
#[derive(Debug, Default)]
pub(crate) struct ShortWaitCost {
    /// Processor time of a short sleep: a moving average.
    cost: Nanos,
    /// Short waits before the next measurement.
    rest: u32,
}

impl ShortWaitCost {
    /// Decides how to spend a wait of `left`.
    pub(crate) fn choose(&mut self, left: Nanos) -> ShortWait {
        if left > SHORT {
            return ShortWait::Asleep;
        }
        let Some(rest) = self.rest.checked_sub(1) else {
            self.rest = MEASURE_EVERY;
            return ShortWait::Measured;
        };
        self.rest = rest;
        if left < self.cost { ShortWait::Awake } else { ShortWait::Asleep }
    }

    /// Records the processor time of a short sleep.
    pub(crate) fn measured(&mut self, cost: Nanos) {
        self.cost = if self.cost == 0 { cost } else { (self.cost * 7 + cost) / 8 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of waits spent awake, of a thousand waits of `left`, if a sleep takes `cost`.
    fn awake(costs: &mut ShortWaitCost, left: Nanos, cost: Nanos) -> usize {
        let mut awake = 0;
        for _ in 0..1000 {
            match costs.choose(left) {
                ShortWait::Awake => awake += 1,
                ShortWait::Asleep => {}
                ShortWait::Measured => costs.measured(cost),
            }
        }
        awake
    }

    #[test]
    fn a_wait_is_spent_in_the_way_that_takes_less() {
        assert!(awake(&mut ShortWaitCost::default(), 10_000, 24_000) > 980);
        assert_eq!(awake(&mut ShortWaitCost::default(), 50_000, 24_000), 0);
        assert_eq!(awake(&mut ShortWaitCost::default(), 10_000, 2_000), 0);
    }

    #[test]
    fn long_waits_are_slept_through_whatever_a_sleep_takes() {
        let mut costs = ShortWaitCost::default();
        assert!(awake(&mut costs, SHORT, 500_000) > 980);
        assert_eq!(awake(&mut costs, SHORT + 1, 500_000), 0);
    }

    #[test]
    fn a_sleep_that_has_become_cheap_is_noticed() {
        let mut costs = ShortWaitCost::default();
        assert!(awake(&mut costs, 10_000, 24_000) > 980);
        assert!(awake(&mut costs, 10_000, 1_000) < 700);
        assert_eq!(awake(&mut costs, 10_000, 1_000), 0);
    }
}

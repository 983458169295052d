//! The share of time that background work has beside clients.

use std::cell::{Cell, RefCell};

use drive::Nanos;

use crate::drives::latency::Figures;

/// All of the time, in the unit of shares.
pub(crate) const WHOLE: u64 = 1000;

/// The share without a target, and the first with one: a fifth.
pub(crate) const SHARE_USUAL: u64 = 200;

/// The smallest share: a rebuild that never ends is a risk of its own.
pub(crate) const SHARE_MIN: u64 = 5;

/// How much the share grows in one step.
pub(crate) const SHARE_STEP: u64 = 20;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Governor {
    /// 0: not decided yet.
    share: Cell<u64>,
    /// Clients were active at the last look of a job.
    pub(crate) contended: Cell<bool>,
    pub(crate) stepped: Cell<Nanos>,
    pub(crate) seen: RefCell<Figures>,
}

impl Governor {
    pub(crate) fn share(&self) -> u64 {
        match self.share.get() {
            0 => SHARE_USUAL,
            share => share,
        }
    }

    /// Adjusts the share: client requests of the last step took this long.
    pub(crate) fn step(&self, target: Nanos, p99: Nanos) {
        let share = self.share();
        let next = if p99 > target / 5 * 4 {
            share / 2
        } else if p99 < target / 5 * 3 {
            share + SHARE_STEP
        } else {
            share
        };
        self.share.set(next.clamp(SHARE_MIN, WHOLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_gives_way_at_once_and_comes_back_slowly() {
        let governor = Governor::default();
        let target = 5_000_000;
        (0..100).for_each(|_| governor.step(target, 1_000_000));
        assert_eq!(governor.share(), WHOLE, "users who are well served leave everything");
        governor.step(target, 4_900_000);
        assert_eq!(governor.share(), WHOLE / 2, "below the target, but not by enough");
        governor.step(target, 3_500_000);
        assert_eq!(governor.share(), WHOLE / 2);
        governor.step(target, 2_000_000);
        assert_eq!(governor.share(), WHOLE / 2 + SHARE_STEP);
        (0..100).for_each(|_| governor.step(target, 50_000_000));
        assert_eq!(governor.share(), SHARE_MIN, "it never ends");
    }
}

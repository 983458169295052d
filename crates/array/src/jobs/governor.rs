//! Limits how much of the drives' time background work takes while clients are active. Each
//! shard has a governor: that of shard 0 is for jobs, and all are for layers above.
//!
//! Without a latency target its share is a fifth. With one, the share follows what clients see:
//! every [`STEP`] the 99th percentile of their requests' times, on all shards, is compared with the
//! target. Above four fifths of the target the share is halved. Below three fifths it grows by a
//! fiftieth of the whole time. So the latency stays below the target instead of moving around it,
//! and the share falls faster than it grows. The share is both the part of the time that a job
//! works and the part of its stripe groups in flight: a burst of them makes a queue, however long
//! the rest after it is.

use std::time::Duration;

use drive::{Env, Nanos};

use crate::array::{Array, ArrayShard};
use crate::jobs::job::STRIPE_GROUPS_IN_FLIGHT;
use crate::state::share::{SHARE_USUAL, WHOLE};

/// Between two looks at client latency. The share grows from a fifth to all in a second.
const STEP: Nanos = 25_000_000;

/// Fewest requests for a look: the 99th percentile of fewer is their maximum.
const REQUESTS_MIN: u64 = 100;

/// After this time, fewer requests will do.
const STEP_MAX: Nanos = 1_000_000_000;

/// Longest rest: past this a job would look as if it hung.
const REST_MAX: Duration = Duration::from_millis(500);

impl<E: Env> Array<E> {
    /// How long background work should rest beside clients, in thousandths of the time that it
    /// works: 4000 for a share of a fifth.
    pub fn rest_per_mille(&self) -> u64 {
        let share = self.0.background_share();
        (WHOLE - share) * WHOLE / share
    }
}

impl<E: Env> ArrayShard<E> {
    /// Requests that clients have begun on any shard.
    pub fn users_begun(&self) -> u64 {
        let counts = self.shared.counts();
        counts.reads + counts.writes
    }

    /// Stripe groups that a job may have in flight now.
    pub fn stripe_groups_in_flight(&self) -> usize {
        let governor = &self.governor;
        if self.shared.settings.get().client_p99.is_none() || !governor.contended.get() {
            return STRIPE_GROUPS_IN_FLIGHT;
        }
        (STRIPE_GROUPS_IN_FLIGHT * governor.share() as usize / WHOLE as usize).max(1)
    }

    /// Rests after work that began at `began`, if clients were active meanwhile.
    pub async fn make_room(&self, began: Nanos, users_begun: u64) {
        let governor = &self.governor;
        let contended = self.users.get() > 0 || self.users_begun() != users_begun;
        governor.contended.set(contended);
        if !contended {
            return;
        }
        let share = self.background_share();
        let worked = self.env.now().saturating_sub(began);
        let rest = Duration::from_nanos(worked.saturating_mul(WHOLE - share) / share).min(REST_MAX);
        self.env.sleep(rest).await;
    }

    /// The part of the time that background work of this shard may take beside clients.
    fn background_share(&self) -> u64 {
        match self.shared.settings.get().client_p99 {
            Some(target) => {
                self.look_at_users(target);
                self.governor.share()
            }
            None => SHARE_USUAL,
        }
    }

    fn look_at_users(&self, target: Nanos) {
        let governor = &self.governor;
        let now = self.env.now();
        let waited = now.saturating_sub(governor.stepped.get());
        if waited < STEP {
            return;
        }
        let figures = self.shared.user_figures();
        let lately = figures.since(&governor.seen.borrow());
        if waited > 2 * STEP_MAX {
            // Older requests say nothing about now: start again with the next ones.
            governor.stepped.set(now);
            governor.seen.replace(figures);
            return;
        }
        if lately.count() >= REQUESTS_MIN || waited >= STEP_MAX {
            if let Some(p99) = lately.quantile(990) {
                governor.step(target, p99);
            }
            governor.stepped.set(now);
            governor.seen.replace(figures);
        }
    }
}

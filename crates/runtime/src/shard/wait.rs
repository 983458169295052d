//! The end of a turn: what was asked for is submitted, and the thread waits, awake or asleep.

use std::time::Duration;

use ::drive::Nanos;

use super::{Shard, count};
use crate::clock;
use crate::nap::Nap;
use crate::ring::Ring;
use crate::spin;
use crate::system;

impl Shard {
    /// Submits what the turn asked for, and waits where nothing is left to do.
    pub(super) fn enter(&self) {
        let mut ring = self.ring.borrow_mut();
        let busy = !self.ready.borrow().is_empty() || self.remote.has_items() || self.stopping.get();
        if busy {
            if ring.wants_enter() {
                self.entered(ring.enter());
            }
            return;
        }
        let deadline = self.timers.borrow().next_deadline();
        if !self.spin.is_zero() && self.drive_ops.get() > 0 {
            let window = self.spin.as_nanos() as u64;
            if self.spin_for_completion(&mut ring, deadline, window) {
                return;
            }
        }
        // What drives complete says nothing about the client, and they may need the core that would look.
        if self.prompt_receives.get() == 0 || self.drive_ops.get() > 0 {
            return self.rest(&mut ring, deadline);
        }
        let mut spinner = self.spinner.borrow_mut();
        let looks = spinner.tries();
        let begin = clock::now();
        if !(looks && self.spin_for_completion(&mut ring, deadline, spin::WINDOW)) {
            self.rest(&mut ring, deadline);
        }
        spinner.waited(clock::now().saturating_sub(begin), looks);
    }

    /// Submits, and waits for a completion, a message, or `deadline`, in the way that takes the least of the processor.
    fn rest(&self, ring: &mut Ring, deadline: Option<Nanos>) {
        let Some(deadline) = deadline else { return self.sleep(ring, None) };
        let left = deadline.saturating_sub(clock::now());
        if left == 0 {
            return self.entered(ring.enter());
        }
        let nap = self.naps.borrow_mut().choose(left);
        match nap {
            Nap::Awake => {
                self.spin_for_completion(ring, Some(deadline), left);
            }
            Nap::Asleep => self.sleep(ring, Some(left)),
            Nap::Measured => {
                // What is submitted is not the sleep's.
                self.entered(ring.enter());
                let before = system::thread_cpu_time();
                self.sleep(ring, Some(left));
                self.naps.borrow_mut().measured(system::thread_cpu_time().saturating_sub(before));
            }
        }
    }

    /// Submits, and sleeps until a completion or a message comes or `limit` has passed.
    fn sleep(&self, ring: &mut Ring, limit: Option<Nanos>) {
        if self.remote.may_sleep() {
            count(&self.remote.counters.sleeps, 1);
            let result = ring.enter_and_wait(limit.map(Duration::from_nanos));
            self.remote.awake();
            self.entered(result);
        }
    }

    /// Submits, and looks for completions for a while before the shard sleeps. Returns whether there is work.
    fn spin_for_completion(&self, ring: &mut Ring, deadline: Option<Nanos>, window: Nanos) -> bool {
        if ring.wants_enter() {
            self.entered(ring.enter());
        }
        let begin = clock::now();
        let mut end = begin + window;
        if let Some(deadline) = deadline {
            end = end.min(deadline);
        }
        let (found, now) = loop {
            let (found, now) = (ring.has_completions() || self.remote.has_items(), clock::now());
            if found || now >= end {
                break (found, now);
            }
            std::hint::spin_loop();
        };
        count(&self.remote.counters.looked_ns, now.saturating_sub(begin));
        if found && ring.wants_enter() {
            self.entered(ring.enter());
        }
        found
    }
}

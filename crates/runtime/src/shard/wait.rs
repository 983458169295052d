//! The end of a turn: what was asked for is submitted, and the thread waits, awake or asleep.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use ::drive::Nanos;
use io_uring::squeue;

use super::{Shard, count};
use crate::clock;
use crate::nap::Nap;
use crate::op::{Op, OpKey, Payload};
use crate::ring::Ring;
use crate::spin;
use crate::system;

/// A receive that is kept back from the kernel. As long as the shard looks for something to do it
/// tries it itself: between a client's request and its answer there is no poll to be armed, none
/// that wakes, and one system call less. Before the shard does anything else the kernel gets it.
pub(super) struct Held {
    key: OpKey,
    entry: squeue::Entry,
    receive: Receive,
}

/// What a receive does: fills this memory from this socket.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) socket: RawFd,
    pub(crate) start: *mut u8,
    pub(crate) len: u32,
}

impl Receive {
    /// Takes what is there. `None` if nothing is; otherwise what the kernel would say: a count or a
    /// negated errno.
    ///
    /// # Safety
    /// The memory is there, and nobody else uses it.
    unsafe fn try_now(self) -> Option<i32> {
        // SAFETY: the caller's promise.
        let count = unsafe { libc::recv(self.socket, self.start.cast(), self.len as usize, libc::MSG_DONTWAIT) };
        if count >= 0 {
            return Some(count as i32);
        }
        let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        (error != libc::EAGAIN).then_some(-error)
    }
}

impl Shard {
    /// As [`Shard::start`], for a receive that waits before it looks; dropping the future cancels
    /// it. It is [`Held`], instead of the one that was before.
    ///
    /// # Safety
    /// As for [`Shard::start`]: `entry` does what `receive` does. The socket is there as long as
    /// the future.
    pub(crate) unsafe fn start_held(&self, entry: squeue::Entry, payload: Payload, receive: Receive) -> Op<'_> {
        let key = self.ops.borrow_mut().insert(payload);
        self.release(&mut self.ring.borrow_mut());
        *self.held.borrow_mut() = Some(Held { key, entry: entry.user_data(key.user_data()), receive });
        Op::new(self, key).cancelable()
    }

    /// Gives the kernel the receive that was kept back from it.
    pub(super) fn release(&self, ring: &mut Ring) {
        if let Some(held) = self.held.take() {
            // SAFETY: the payload lies in its slot until the completion was reaped.
            unsafe { ring.push(held.entry) };
        }
    }

    /// Tries the receive that was kept back, if there is one. Returns whether it is complete.
    fn try_held(&self) -> bool {
        let tried = self.held.borrow().as_ref().and_then(|held| {
            // SAFETY: the payload lies in its slot, and the future is there: dropping it would have
            // given the kernel the receive.
            unsafe { held.receive.try_now() }.map(|result| (held.key, result))
        });
        let Some((key, result)) = tried else { return false };
        self.held.take();
        self.complete(key, result);
        true
    }

    /// Submits what the turn asked for, and waits where nothing is left to do.
    pub(super) fn enter(&self) {
        let mut ring = self.ring.borrow_mut();
        let busy = !self.ready.borrow().is_empty() || self.remote.has_items() || self.stopping.get();
        // What drives complete says nothing about the client, and they may need the core that would
        // look.
        let waits_for_client = !busy && self.prompt_receives.get() > 0 && self.drive_ops.get() == 0;
        let looks = waits_for_client && self.spinner.borrow_mut().tries();
        if !looks {
            self.release(&mut ring);
        }
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
        if !waits_for_client {
            return self.rest(&mut ring, deadline);
        }
        let begin = clock::now();
        if !(looks && self.spin_for_completion(&mut ring, deadline, spin::WINDOW)) {
            self.rest(&mut ring, deadline);
        }
        self.spinner.borrow_mut().waited(clock::now().saturating_sub(begin), looks);
    }

    /// Submits, and waits for a completion, a message, or `deadline`, in the way that takes the
    /// least of the processor.
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

    /// Submits, and looks for completions for a while before the shard sleeps. Returns whether
    /// there is work.
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
            let found = ring.has_completions() || self.remote.has_items() || self.try_held();
            let now = clock::now();
            if found || now >= end {
                break (found, now);
            }
            std::hint::spin_loop();
        };
        count(&self.remote.counters.looked_ns, now.saturating_sub(begin));
        // If something else was found: there may always be something else.
        self.release(ring);
        if found && ring.wants_enter() {
            self.entered(ring.enter());
        }
        found
    }
}

//! The end of a turn: the operations of the turn are submitted, and the thread polls or sleeps.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use ::drive::Nanos;
use io_uring::squeue;

use super::{Shard, count};
use crate::clock;
use crate::op::{Op, OpKey, Payload};
use crate::polling;
use crate::ring::Ring;
use crate::short_wait::ShortWait;
use crate::system;

/// A receive that was not yet given to the kernel. While the shard polls, it tries the receive
/// itself. Between a client's request and its answer, no poll in the kernel is armed or wakes the
/// thread, and one system call is saved. Before the shard does other work, the kernel gets the
/// receive.
pub(super) struct Held {
    key: OpKey,
    entry: squeue::Entry,
    receive: Receive,
}

/// A receive: fills this memory from this socket.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) socket: RawFd,
    pub(crate) start: *mut u8,
    pub(crate) len: u32,
}

impl Receive {
    /// Receives available data. `None` if there is none; otherwise the result as the kernel would
    /// return it: a count or a negated errno.
    ///
    /// # Safety
    /// The memory is valid, and no other code uses it.
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
    /// Like [`Shard::start`], for a receive that waits before it tries to receive. Dropping the
    /// future cancels it. It becomes the [`Held`] receive, and the previous one goes to the kernel.
    ///
    /// # Safety
    /// As for [`Shard::start`]: `entry` does the same as `receive`. The socket lives as long as the
    /// future.
    pub(crate) unsafe fn start_held(&self, entry: squeue::Entry, payload: Payload, receive: Receive) -> Op<'_> {
        let key = self.ops.borrow_mut().insert(payload);
        self.release(&mut self.ring.borrow_mut());
        *self.held.borrow_mut() = Some(Held { key, entry: entry.user_data(key.user_data()), receive });
        Op::new(self, key).cancelable()
    }

    /// Gives the held receive to the kernel.
    pub(super) fn release(&self, ring: &mut Ring) {
        if let Some(held) = self.held.take() {
            // SAFETY: the payload stays in its slot until the completion is reaped.
            unsafe { ring.push(held.entry) };
        }
    }

    /// Tries the held receive, if there is one. Returns whether it is complete.
    fn try_held(&self) -> bool {
        let tried = self.held.borrow().as_ref().and_then(|held| {
            // SAFETY: the payload is in its slot, and the future exists: dropping it would have
            // given the receive to the kernel.
            unsafe { held.receive.try_now() }.map(|result| (held.key, result))
        });
        let Some((key, result)) = tried else { return false };
        self.held.take();
        self.complete(key, result);
        true
    }

    /// Submits the operations of the turn, and waits if no work is left.
    pub(super) fn enter(&self) {
        let mut ring = self.ring.borrow_mut();
        let busy = !self.ready.borrow().is_empty() || self.remote.has_items() || self.stopping.get();
        // Completions of drives say nothing about the client, and the drives may need the core that
        // would poll.
        let waits_for_client = !busy && self.prompt_receives.get() > 0 && self.drive_ops.get() == 0;
        let looks = waits_for_client && self.client_polling.borrow_mut().tries();
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
        if !self.drive_polling.is_zero() && self.drive_ops.get() > 0 {
            let window = self.drive_polling.as_nanos() as u64;
            if self.poll_for_completion(&mut ring, deadline, window) {
                return;
            }
        }
        if !waits_for_client {
            return self.rest(&mut ring, deadline);
        }
        let begin = clock::now();
        if !(looks && self.poll_for_completion(&mut ring, deadline, polling::WINDOW)) {
            self.rest(&mut ring, deadline);
        }
        self.client_polling.borrow_mut().waited(clock::now().saturating_sub(begin), looks);
    }

    /// Submits, and waits for a completion, a message, or `deadline`, in the way that uses the
    /// least processor time.
    fn rest(&self, ring: &mut Ring, deadline: Option<Nanos>) {
        let Some(deadline) = deadline else { return self.sleep(ring, None) };
        let left = deadline.saturating_sub(clock::now());
        if left == 0 {
            return self.entered(ring.enter());
        }
        let how = self.short_wait_cost.borrow_mut().choose(left);
        match how {
            ShortWait::Awake => {
                self.poll_for_completion(ring, Some(deadline), left);
            }
            ShortWait::Asleep => self.sleep(ring, Some(left)),
            ShortWait::Measured => {
                // Submit first, so that its time is not counted as that of the sleep.
                self.entered(ring.enter());
                let before = system::thread_cpu_time();
                self.sleep(ring, Some(left));
                self.short_wait_cost.borrow_mut().measured(system::thread_cpu_time().saturating_sub(before));
            }
        }
    }

    /// Submits, and sleeps until there is a completion or a message or `limit` has passed.
    fn sleep(&self, ring: &mut Ring, limit: Option<Nanos>) {
        if self.remote.may_sleep() {
            count(&self.remote.counters.sleeps, 1);
            let result = ring.enter_and_wait(limit.map(Duration::from_nanos));
            self.remote.awake();
            self.entered(result);
        }
    }

    /// Submits, and polls for completions for a while before the shard sleeps. Returns whether
    /// there is work.
    fn poll_for_completion(&self, ring: &mut Ring, deadline: Option<Nanos>, window: Nanos) -> bool {
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
        // Also after other work was found: otherwise the receive could wait forever, as there may
        // always be other work.
        self.release(ring);
        if found && ring.wants_enter() {
            self.entered(ring.enter());
        }
        found
    }
}

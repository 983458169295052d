//! A shard for other threads: its inbox and its doorbell.
//!
//! # No wake-up is lost
//!
//! Two flags, all accesses sequentially consistent:
//!
//! ```text
//! sender                              shard
//! S1  inbox.push(item)                H1  sleeping = true
//! S2  pending.swap(true)              H2  if pending { sleeping = false; go on }
//! S3  if it was false and             H3  sleep in the kernel until a completion comes
//!     sleeping.swap(false): ring      ..  sleeping = false
//!     the doorbell                    H4  if pending.swap(false): take the inbox
//! ```
//! S2 and H1 are writes. S3 and H2 each read the value that the other side wrote. All four are in
//! one total order. If H2 does not see S2, then H2 is before S2, hence H1 is before S3, and S3 sees
//! `sleeping`: the doorbell rings. The doorbell is an eventfd that the ring polls, so it makes no
//! difference whether it rings before or after H3. A sender that finds `pending` already set leaves
//! the doorbell to the sender that set it: H4 has not happened since, or `pending` would be false.
//! A running shard is never rung.

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::answer::{Call, Reply, Stopped, answer};
use crate::env::ShardEnv;
use crate::system;
use crate::task::TaskHeader;

/// An entry that other threads put in the inbox.
pub(crate) enum Item {
    /// Runs on the shard, outside of any task.
    Run(Box<dyn FnOnce(&ShardEnv) + Send>),
    /// A task of this shard was woken by another thread.
    Wake(Arc<TaskHeader>),
    /// The loop must end.
    Stop,
}

struct Inbox {
    items: Vec<Item>,
    open: bool,
}

pub(crate) struct Remote {
    index: usize,
    core: usize,
    inbox: Mutex<Inbox>,
    pending: AtomicBool,
    sleeping: AtomicBool,
    doorbell: OwnedFd,
    pub(crate) counters: LoopCounters,
}

/// The shard writes them, except `rung`, which senders write. Any thread reads them.
#[derive(Default)]
pub(crate) struct LoopCounters {
    pub(crate) turns: AtomicU64,
    pub(crate) polls: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    pub(crate) submitted: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) rung: AtomicU64,
    pub(crate) looked_ns: AtomicU64,
}

/// Counters of a shard's loop since it started. They only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Turns of the loop.
    pub turns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// How often the shard blocked in the kernel.
    pub sleeps: u64,
    /// Operations handed to the kernel.
    pub submitted: u64,
    /// Completions taken from the kernel.
    pub completed: u64,
    /// How often another thread had to wake the shard with a system call.
    pub rung: u64,
    /// Nanoseconds in which the shard had no work and polled for more on its core.
    pub looked_ns: u64,
}

impl Remote {
    pub(crate) fn new(index: usize, core: usize) -> std::io::Result<Remote> {
        Ok(Remote {
            index,
            core,
            inbox: Mutex::new(Inbox { items: Vec::new(), open: true }),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            doorbell: system::eventfd()?,
            counters: LoopCounters::default(),
        })
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn core(&self) -> usize {
        self.core
    }

    pub(crate) fn doorbell_fd(&self) -> RawFd {
        self.doorbell.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing panics while the lock is held.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// S1 to S3.
    ///
    /// # Errors
    /// Returns the item if the shard has stopped.
    pub(crate) fn push(&self, item: Item) -> Result<(), Item> {
        {
            let mut inbox = self.lock();
            if !inbox.open {
                return Err(item);
            }
            inbox.items.push(item);
        }
        if !self.pending.swap(true, Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.counters.rung.fetch_add(1, Ordering::Relaxed);
            system::eventfd_add_one(&self.doorbell);
        }
        Ok(())
    }

    /// H1 and H2: returns whether the shard may sleep. If so, [`Remote::awake`] must follow.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.awake();
            return false;
        }
        true
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Whether the inbox has an item, or will have one at once.
    #[inline]
    pub(crate) fn has_items(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// H4: swaps the items that have arrived with `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<Item>) {
        debug_assert!(into.is_empty());
        if self.has_items() && self.pending.swap(false, Ordering::SeqCst) {
            std::mem::swap(into, &mut self.lock().items);
        }
    }

    /// Refuses all items from now on and returns those that were left.
    pub(crate) fn close(&self) -> Vec<Item> {
        let mut inbox = self.lock();
        inbox.open = false;
        std::mem::take(&mut inbox.items)
    }
}

/// A handle to one shard for any thread.
#[derive(Clone)]
pub struct ShardHandle {
    remote: Arc<Remote>,
}

impl ShardHandle {
    pub(crate) fn new(remote: Arc<Remote>) -> ShardHandle {
        ShardHandle { remote }
    }

    /// Number of the shard in its runtime, from 0.
    pub fn index(&self) -> usize {
        self.remote.index()
    }

    /// The core of the shard. Its thread is pinned to it unless
    /// [`Config::pinned`](crate::Config::pinned) is false.
    pub fn core(&self) -> usize {
        self.remote.core()
    }

    /// Counters of the shard's loop.
    pub fn stats(&self) -> ShardStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.remote.counters;
        ShardStats {
            turns: read(&counters.turns),
            polls: read(&counters.polls),
            sleeps: read(&counters.sleeps),
            submitted: read(&counters.submitted),
            completed: read(&counters.completed),
            rung: read(&counters.rung),
            looked_ns: read(&counters.looked_ns),
        }
    }

    /// Sends `make` to the shard. The future that it returns runs there as a task until it ends.
    /// The future need not be `Send`. On the shard, [`ShardEnv::current`] returns the environment.
    ///
    /// # Errors
    /// [`Stopped`] if the shard has stopped. A shard that stops later drops the task.
    pub fn spawn<F>(&self, make: impl FnOnce() -> F + Send + 'static) -> Result<(), Stopped>
    where
        F: Future<Output = ()> + 'static,
    {
        let run = move |env: &ShardEnv| ::drive::Env::spawn(env, make());
        self.remote.push(Item::Run(Box::new(run))).map_err(|_| Stopped)
    }

    /// Like [`ShardHandle::spawn`], and returns the result of the future to the caller, on any
    /// executor. [`Call::wait`] blocks a plain thread for it.
    pub fn call<T, F>(&self, make: impl FnOnce() -> F + Send + 'static) -> Call<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (reply, call): (Reply<T>, Call<T>) = answer();
        // If the shard has stopped, the closure is dropped here and its reply answers `Stopped`.
        let _ = self.spawn(move || {
            let future = make();
            async move { reply.send(future.await) }
        });
        call
    }

    pub(crate) fn stop(&self) {
        // An error means that the shard has already stopped.
        let _ = self.remote.push(Item::Stop);
    }
}

impl std::fmt::Debug for ShardHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ShardHandle({} on core {})", self.index(), self.core())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    /// Blocks until the doorbell rings. Returns false after five seconds without a ring.
    fn wait_for_doorbell(remote: &Remote) -> bool {
        let mut poll = libc::pollfd { fd: remote.doorbell_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is passed, and it is valid for writes.
        let rang = unsafe { libc::poll(&mut poll, 1, 5000) } == 1;
        let mut count = [0u8; 8];
        // SAFETY: the buffer holds the 8 bytes whose length is passed.
        unsafe { libc::read(remote.doorbell_fd(), count.as_mut_ptr().cast(), count.len()) };
        rang
    }

    /// Only the two halves of the protocol, so that a push meets every instruction of falling
    /// asleep: both sides wait a little after the shard has taken the last item, with each pair of
    /// wait times in turn.
    #[test]
    fn an_item_pushed_while_the_shard_falls_asleep_is_taken() {
        const ITEMS: u32 = 100_000;
        let remote = Arc::new(Remote::new(0, 0).expect("an eventfd"));
        let taken = Arc::new(AtomicU32::new(0));
        let (pushing, seen) = (remote.clone(), taken.clone());
        let sender = thread::spawn(move || {
            for number in 0..ITEMS {
                while seen.load(Ordering::Acquire) < number {
                    std::hint::spin_loop();
                }
                (0..number % 64).for_each(|_| std::hint::spin_loop());
                assert!(pushing.push(Item::Stop).is_ok());
            }
        });
        let mut items = Vec::new();
        let mut done = 0;
        while done < ITEMS {
            remote.take(&mut items);
            done += items.drain(..).count() as u32;
            taken.store(done, Ordering::Release);
            (0..done % 61).for_each(|_| std::hint::spin_loop());
            if done < ITEMS && remote.may_sleep() {
                assert!(wait_for_doorbell(&remote), "asleep, and item {done} of {ITEMS} lies in the inbox");
                remote.awake();
            }
        }
        sender.join().expect("every push was taken");
        assert!(remote.close().is_empty());
    }
}

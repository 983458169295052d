//! Time, tasks and buffers of the shard that the engine runs on.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::buf::BufMut;
use crate::device::Drive;

/// Nanoseconds of a clock that never goes back. Its zero means nothing; in simulation time is
/// virtual.
pub type Nanos = u64;

/// The surroundings of one shard. A handle: cheap to clone, never sent to another thread.
pub trait Env: Clone + 'static {
    /// The drives of this environment. Also a handle.
    type Drive: Drive + Clone + 'static;

    /// The time now.
    fn now(&self) -> Nanos;

    /// Returns after `duration` has passed.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static;

    /// Returns once every task of this shard that could run now has run, and before the shard
    /// submits its drive operations or waits. What arrives together can so be gathered, and nothing
    /// that is alone waits for company.
    fn turn_end(&self) -> impl Future<Output = ()> + 'static;

    /// Runs `task` on this shard until it ends. Nobody can cancel it.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// As [`Env::spawn`], and begins at once, before this returns: a task that waits for nothing
    /// costs no more than a call. Its first poll has no waker of its own; it is polled once more if
    /// it does not end there.
    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        let mut task = Box::pin(task);
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(task);
        }
    }

    /// A buffer of `len` bytes with an address aligned to [`crate::BUF_ALIGN`], from the shard's
    /// registered pool where that has room and from the heap otherwise. Its content is unspecified
    /// (initialised, but maybe another request's bytes): fill it before it leaves the engine.
    fn alloc(&self, len: usize) -> BufMut;

    /// Asked where the engine could take a turn that it hardly ever takes, or be slow where it
    /// hardly ever is: whether it is to do so now. Never, so that a compiler leaves out what
    /// follows; but in a simulation, which looks for trouble (as BUGGIFY does in FoundationDB: Zhou
    /// et al., SIGMOD 2021, section 4). `place` says what happens then.
    #[inline(always)]
    fn trouble(&self, place: &'static str) -> bool {
        let _ = place;
        false
    }
}

/// Time, tasks and buffers without drives, for what needs no more: protocols of clients, which also
/// run where there is no shard. Every [`Env`] is one; its methods are described there.
pub trait Tasks: Clone + 'static {
    /// The time now.
    fn now(&self) -> Nanos;

    /// Returns after `duration` has passed.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static;

    /// Returns once every task that could run now has run.
    fn turn_end(&self) -> impl Future<Output = ()> + 'static;

    /// Runs `task` on this thread until it ends.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// A buffer of `len` bytes of unspecified content.
    fn alloc(&self, len: usize) -> BufMut;
}

impl<E: Env> Tasks for E {
    #[inline]
    fn now(&self) -> Nanos {
        Env::now(self)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        Env::sleep(self, duration)
    }

    fn turn_end(&self) -> impl Future<Output = ()> + 'static {
        Env::turn_end(self)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        Env::spawn(self, task);
    }

    fn alloc(&self, len: usize) -> BufMut {
        Env::alloc(self, len)
    }
}

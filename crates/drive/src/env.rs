//! Time, tasks and buffers of the shard that the engine runs on.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::buf::BufMut;
use crate::device::Drive;

/// Nanoseconds of a clock that never goes back. Its zero has no meaning. In simulation the time is
/// virtual.
pub type Nanos = u64;

/// The environment of one shard. It is a handle: cheap to clone, never sent to another thread.
pub trait Env: Clone + 'static {
    /// The drives of this environment. It is a handle, too.
    type Drive: Drive + Clone + 'static;

    /// The current time.
    fn now(&self) -> Nanos;

    /// Returns after `duration` has passed.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static;

    /// Returns after every task of this shard that is ready has run, and before the shard submits
    /// its drive operations or waits. Operations that arrive together can be gathered, and a single
    /// operation does not wait for others.
    fn turn_end(&self) -> impl Future<Output = ()> + 'static;

    /// Runs `task` on this shard until it ends. It cannot be canceled.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Like [`Env::spawn`], but begins at once, before the call returns: a task that does not wait
    /// costs no more than a call. Its first poll has no waker of its own. If the task does not end
    /// there, it is polled once more.
    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        let mut task = Box::pin(task);
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(task);
        }
    }

    /// A buffer of `len` bytes with an address aligned to [`crate::BUF_ALIGN`]. It comes from the
    /// shard's registered pool if that has room, and from the heap otherwise. Its content is
    /// unspecified (initialized, but maybe bytes of another request): fill it before it leaves the
    /// engine.
    fn alloc(&self, len: usize) -> BufMut;

    /// Whether to take a rare path or a rare delay at this place now. By default it is always
    /// false, so a compiler removes the code that follows. A simulation returns true at times, to
    /// find faults (like BUGGIFY in FoundationDB: Zhou et al., SIGMOD 2021, section 4). `place`
    /// names the rare event.
    #[inline(always)]
    fn buggify(&self, place: &'static str) -> bool {
        let _ = place;
        false
    }
}

/// Time, tasks and buffers without drives, for code that needs no more: client protocols, which
/// also run without a shard. Every [`Env`] is one; its methods are described there.
pub trait Tasks: Clone + 'static {
    /// The current time.
    fn now(&self) -> Nanos;

    /// Returns after `duration` has passed.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static;

    /// Returns after every task that is ready has run.
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

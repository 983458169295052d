//! The environment of a shard for the code that runs on it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::drive::{BufMut, Env, Nanos};

use crate::clock;
use crate::drives::{Drive, OpenDrive};
use crate::remote::ShardHandle;
use crate::shard::{Shard, with_current};
use crate::task::LocalFuture;
use crate::timer::TimerKey;

/// The environment of one shard. It is a handle: clone it freely. It never leaves its thread.
#[derive(Clone)]
pub struct ShardEnv {
    shard: Rc<Shard>,
}

impl ShardEnv {
    pub(crate) fn new(shard: Rc<Shard>) -> ShardEnv {
        ShardEnv { shard }
    }

    pub(crate) fn shard(&self) -> &Rc<Shard> {
        &self.shard
    }

    /// The shard of the calling thread.
    ///
    /// # Panics
    /// On a thread that is not a shard. [`ShardEnv::try_current`] does not panic.
    pub fn current() -> ShardEnv {
        ShardEnv::try_current().expect("called on the thread of a shard")
    }

    /// The shard of the calling thread, or `None` if the thread is not a shard.
    pub fn try_current() -> Option<ShardEnv> {
        with_current(|shard| ShardEnv { shard: shard.clone() })
    }

    /// Number of this shard in its runtime, from 0.
    pub fn index(&self) -> usize {
        self.shard.index()
    }

    /// A handle to this shard for other threads.
    pub fn handle(&self) -> ShardHandle {
        self.shard.handle()
    }

    /// Makes a drive of this process usable on this shard. Every shard that uses the drive attaches
    /// it. Operations of the returned handle run on this shard's ring.
    pub fn attach(&self, drive: &OpenDrive) -> Drive {
        Drive::attach(&self.shard, drive)
    }
}

impl Env for ShardEnv {
    type Drive = Drive;

    fn now(&self) -> Nanos {
        clock::now()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        // 2^64 ns are 584 years: a longer sleep does not end in either case.
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Sleep { shard: self.shard.clone(), deadline: clock::now().saturating_add(nanos), timer: None }
    }

    fn turn_end(&self) -> impl Future<Output = ()> + 'static {
        let shard = self.shard.clone();
        let mut since = None;
        poll_fn(move |context| shard.poll_turn_end(&mut since, context))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.shard.spawn(Box::pin(task));
    }

    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        let mut task: LocalFuture = Box::pin(task);
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.shard.spawn(task);
        }
    }

    fn alloc(&self, len: usize) -> BufMut {
        self.shard.arena().alloc(len)
    }
}

struct Sleep {
    shard: Rc<Shard>,
    deadline: Nanos,
    timer: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if clock::now() >= self.deadline {
            return Poll::Ready(());
        }
        let mut timers = self.shard.timers();
        let set = self.timer.is_some_and(|timer| timers.update(timer, context.waker()));
        if !set {
            let timer = timers.insert(self.deadline, context.waker().clone());
            drop(timers);
            self.timer = Some(timer);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            // The borrow ends before the waker is dropped.
            let waker = self.shard.timers().remove(timer);
            drop(waker);
        }
    }
}

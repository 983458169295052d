//! The answer of a shard to a caller on another thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use thiserror::Error;

/// The shard has stopped, or stopped before it could answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the shard has stopped")]
pub struct Stopped;

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
}

/// The sending end, on the shard. If it is dropped without a value, the caller gets [`Stopped`].
pub(crate) struct Reply<T>(Arc<Mutex<State<T>>>);

/// The future that [`ShardHandle::call`](crate::ShardHandle::call) returns. It runs on any
/// executor.
///
/// Dropping it does not stop the work that was started on the shard.
#[must_use = "futures do nothing unless awaited"]
pub struct Call<T>(Arc<Mutex<State<T>>>);

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    // Nothing panics while the lock is held.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn answer<T>() -> (Reply<T>, Call<T>) {
    let state = Arc::new(Mutex::new(State { value: None, waker: None, sender_gone: false }));
    (Reply(state.clone()), Call(state))
}

impl<T> Reply<T> {
    pub(crate) fn send(self, value: T) {
        lock(&self.0).value = Some(value);
        // Drop wakes the caller.
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = lock(&self.0);
            state.sender_gone = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T, Stopped>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if state.sender_gone {
            return Poll::Ready(Err(Stopped));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Wakes a blocked thread.
struct Doorbell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

impl<T> Call<T> {
    /// Blocks the calling thread until the answer is there. It must not be called on a shard: the
    /// shard would wait for itself.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn wait(mut self) -> Result<T, Stopped> {
        let doorbell = Arc::new(Doorbell { rung: Mutex::new(false), changed: Condvar::new() });
        let waker = Waker::from(doorbell.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(result) = Pin::new(&mut self).poll(&mut context) {
                return result;
            }
            let mut rung = doorbell.rung.lock().unwrap_or_else(PoisonError::into_inner);
            while !*rung {
                rung = doorbell.changed.wait(rung).unwrap_or_else(PoisonError::into_inner);
            }
            *rung = false;
        }
    }
}

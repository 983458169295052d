//! Passing a value from one task to another on the same shard.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
}

/// The sending end.
pub struct Sender<T>(Rc<RefCell<State<T>>>);

/// The receiving end: a future.
#[must_use = "futures do nothing unless awaited"]
pub struct Receiver<T>(Rc<RefCell<State<T>>>);

/// The sending end was dropped without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Canceled;

/// Creates a pair.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let state = Rc::new(RefCell::new(State { value: None, waker: None, sender_gone: false }));
    (Sender(state.clone()), Receiver(state))
}

impl<T> Sender<T> {
    /// Sends the value. If the receiver was dropped, the value is dropped too.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
        // Drop wakes the receiver.
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.sender_gone = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Canceled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.borrow_mut();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if state.sender_gone {
            return Poll::Ready(Err(Canceled));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

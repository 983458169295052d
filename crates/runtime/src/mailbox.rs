//! Messages from any thread to one task.
//!
//! A mailbox is a vector behind a lock that is held for one push or one swap, never across anything
//! that waits. The receiver takes all messages at once, so at load one lock and one wake-up serve a
//! whole batch.
//!
//! No wake-up is lost: the receiver leaves its waker under the lock under which it found the vector
//! empty, and a sender takes the waker under the lock under which it pushed.

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

struct State<M> {
    messages: Vec<M>,
    waker: Option<Waker>,
    receiver_gone: bool,
}

struct Shared<M> {
    state: Mutex<State<M>>,
    senders: AtomicUsize,
}

impl<M> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        // Nothing panics while the lock is held, except for a failing allocation, which ends the
        // process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a mailbox. The receiving end may be moved to the shard that will use it; the sending end
/// may be cloned.
///
/// Messages of one sender arrive in order. The queue is unbounded: whoever sends requests bounds
/// them by what is in flight.
pub fn mailbox<M: Send>() -> (MailboxSender<M>, Mailbox<M>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State { messages: Vec::new(), waker: None, receiver_gone: false }),
        senders: AtomicUsize::new(1),
    });
    (MailboxSender { shared: shared.clone() }, Mailbox { shared })
}

/// The sending end of a mailbox.
pub struct MailboxSender<M> {
    shared: Arc<Shared<M>>,
}

/// The receiving end of a mailbox.
pub struct Mailbox<M> {
    shared: Arc<Shared<M>>,
}

impl<M: Send> MailboxSender<M> {
    /// Puts a message in. Never waits for the receiver.
    ///
    /// # Errors
    /// Gives the message back if the mailbox is gone.
    pub fn send(&self, message: M) -> Result<(), M> {
        let waker = {
            let mut state = self.shared.lock();
            if state.receiver_gone {
                return Err(message);
            }
            state.messages.push(message);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Moves all of `messages` in, under one lock and with one wake-up. Keeps the vector's memory.
    ///
    /// # Errors
    /// Leaves the messages where they are if the mailbox is gone.
    pub fn send_all(&self, messages: &mut Vec<M>) -> Result<(), MailboxGone> {
        let waker = {
            let mut state = self.shared.lock();
            if state.receiver_gone {
                return Err(MailboxGone);
            }
            state.messages.append(messages);
            if state.messages.is_empty() { None } else { state.waker.take() }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// The receiving end was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox is gone")]
pub struct MailboxGone;

impl<M> Clone for MailboxSender<M> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        MailboxSender { shared: self.shared.clone() }
    }
}

impl<M> Drop for MailboxSender<M> {
    fn drop(&mut self) {
        // AcqRel as for a reference count: what other senders pushed is seen before the end is
        // announced.
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            let waker = self.shared.lock().waker.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<M: Send> Mailbox<M> {
    /// Waits until there is a message, then appends everything that has arrived to `batch`. An
    /// empty `batch` is swapped with the queue: nothing is copied and no memory is allocated in the
    /// long run.
    ///
    /// Returns false when every sender is gone and nothing is left: `while mailbox.recv_batch(&mut
    /// batch).await`.
    pub async fn recv_batch(&mut self, batch: &mut Vec<M>) -> bool {
        poll_fn(|context| {
            let mut state = self.shared.lock();
            if !state.messages.is_empty() {
                if batch.is_empty() {
                    mem::swap(batch, &mut state.messages);
                } else {
                    batch.append(&mut state.messages);
                }
                return Poll::Ready(true);
            }
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return Poll::Ready(false);
            }
            let old = state.waker.replace(context.waker().clone());
            drop(state);
            drop(old);
            Poll::Pending
        })
        .await
    }

    /// Takes what is there now, without waiting. Returns whether there was something.
    pub fn try_recv_batch(&mut self, batch: &mut Vec<M>) -> bool {
        let mut state = self.shared.lock();
        let some = !state.messages.is_empty();
        if batch.is_empty() {
            mem::swap(batch, &mut state.messages);
        } else {
            batch.append(&mut state.messages);
        }
        some
    }
}

impl<M> Drop for Mailbox<M> {
    fn drop(&mut self) {
        let (messages, waker) = {
            let mut state = self.shared.lock();
            state.receiver_gone = true;
            (mem::take(&mut state.messages), state.waker.take())
        };
        // Outside of the lock: dropping a message may run anything.
        drop((messages, waker));
    }
}

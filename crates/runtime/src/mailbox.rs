//! Messages from any thread to one task.
//!
//! A mailbox is a vector behind a lock. The lock is held for one push or one swap, never while the
//! holder waits. The receiver takes all messages at once, so under load one lock and one wake-up
//! serve a whole batch.
//!
//! No wake-up is lost: the receiver stores its waker under the same lock under which it found the
//! vector empty, and a sender takes the waker under the same lock under which it pushed.

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
        // Only a failing allocation can panic while the lock is held, and that ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a mailbox. The receiving end may be moved to the shard that will use it. The sending end
/// may be cloned.
///
/// Messages of one sender arrive in order. The queue is unbounded: the sender must limit its
/// requests in flight.
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
    /// Adds a message. It never waits for the receiver.
    ///
    /// # Errors
    /// Returns the message if the mailbox is gone.
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

    /// Adds all of `messages` under one lock and with one wake-up. The vector keeps its memory.
    ///
    /// # Errors
    /// If the mailbox is gone, the messages stay in the vector.
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
        // AcqRel as for a reference count: messages of other senders are visible before the end is
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
    /// Waits until there is a message, then appends all messages that have arrived to `batch`. An
    /// empty `batch` is swapped with the queue. Then nothing is copied, and in the long run no
    /// memory is allocated.
    ///
    /// Returns false when all senders are gone and no message is left:
    /// `while mailbox.recv_batch(&mut batch).await`.
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

    /// Takes the messages that are there now, without waiting. Returns whether there were any.
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
        // Outside of the lock: dropping a message may run any code.
        drop((messages, waker));
    }
}

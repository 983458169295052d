//! Aborting commands of I/O queues: NVMe Base 2.0, clause 5.1.
//!
//! An Abort comes on the admin queue, and the command that it names belongs to another queue, maybe
//! of another shard. That one gets a [`Request`]. It is answered "aborted" when the command has
//! been answered so, and "not aborted" where it is dropped: by a queue that has no such command
//! waiting, and by one that has ended.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A queue is asked to abort a command.
#[derive(Debug)]
pub(super) struct Request {
    /// CID of the command.
    pub cid: u16,
    shared: Arc<Mutex<Shared>>,
}

/// Whether the command was aborted, when that is known.
#[derive(Debug)]
pub(super) struct Outcome(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    aborted: Option<bool>,
    waker: Option<Waker>,
}

/// Nothing panics while the lock is held.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Request {
    /// For the command of this identifier.
    pub fn new(cid: u16) -> (Request, Outcome) {
        let shared = Arc::default();
        (Request { cid, shared: Arc::clone(&shared) }, Outcome(shared))
    }

    /// The command was answered "Command Abort Requested".
    pub fn done(self) {
        lock(&self.shared).aborted = Some(true);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let waker = {
            let mut shared = lock(&self.shared);
            shared.aborted.get_or_insert(false);
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Outcome {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let mut shared = lock(&self.0);
        match shared.aborted {
            Some(aborted) => Poll::Ready(aborted),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Commands of a queue that are tasks already, and have not begun.
#[derive(Default)]
pub(super) struct Waiting(RefCell<Vec<Rc<Place>>>);

struct Place {
    cid: u16,
    request: Cell<Option<Request>>,
    waker: RefCell<Option<Waker>>,
}

/// Leaves its place when it is dropped.
struct Seat<'a> {
    waiting: &'a Waiting,
    place: Rc<Place>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.waiting.0.borrow_mut().retain(|place| !Rc::ptr_eq(place, &self.place));
    }
}

impl Waiting {
    /// Has the command that waits under this identifier end. Without one the request is dropped.
    pub fn abort(&self, request: Request) {
        let found = self.0.borrow().iter().find(|place| place.cid == request.cid).cloned();
        let Some(place) = found else { return };
        // One of several is the one that aborts it: the first.
        let first = place.request.take().unwrap_or(request);
        place.request.set(Some(first));
        let waker = place.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits, unless the command is to be aborted: gives the request then.
    pub async fn unless_aborted<T>(&self, cid: u16, waiting: impl Future<Output = T>) -> Result<T, Request> {
        let place = Rc::new(Place { cid, request: Cell::new(None), waker: RefCell::default() });
        self.0.borrow_mut().push(place.clone());
        let seat = Seat { waiting: self, place };
        let mut waiting = pin!(waiting);
        poll_fn(|context| {
            if let Some(request) = seat.place.request.take() {
                return Poll::Ready(Err(request));
            }
            let polled = waiting.as_mut().poll(context).map(Ok);
            if polled.is_pending() {
                *seat.place.waker.borrow_mut() = Some(context.waker().clone());
            }
            polled
        })
        .await
    }
}

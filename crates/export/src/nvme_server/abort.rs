//! Aborting commands of I/O queues: NVMe Base 2.0, clause 5.1.
//!
//! An Abort arrives on the admin queue. The command that it names belongs to another queue, maybe
//! on another shard. That queue gets a [`Request`]. The Abort is answered "aborted" once the
//! command has been answered as aborted. It is answered "not aborted" if the request is dropped: by
//! a queue that has no such command waiting, or by one that has ended.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A request to a queue to abort a command.
#[derive(Debug)]
pub(super) struct Request {
    /// CID of the command.
    pub cid: u16,
    shared: Arc<Mutex<Shared>>,
}

/// The future that tells whether the command was aborted.
#[derive(Debug)]
pub(super) struct AbortOutcome(Arc<Mutex<Shared>>);

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
    /// A request for the command with this identifier, and its outcome.
    pub fn new(cid: u16) -> (Request, AbortOutcome) {
        let shared = Arc::default();
        (Request { cid, shared: Arc::clone(&shared) }, AbortOutcome(shared))
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

impl Future for AbortOutcome {
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

/// Commands of a queue that have a task and have not begun.
#[derive(Default)]
pub(super) struct Waiting(RefCell<Vec<Rc<WaitingCommand>>>);

struct WaitingCommand {
    cid: u16,
    request: Cell<Option<Request>>,
    waker: RefCell<Option<Waker>>,
}

/// A command among those that wait, until this is dropped.
struct Seat<'a> {
    waiting: &'a Waiting,
    command: Rc<WaitingCommand>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.waiting.0.borrow_mut().retain(|command| !Rc::ptr_eq(command, &self.command));
    }
}

impl Waiting {
    /// Ends the command that waits under this identifier. If there is none, the request is dropped.
    pub fn abort(&self, request: Request) {
        let found = self.0.borrow().iter().find(|command| command.cid == request.cid).cloned();
        let Some(command) = found else { return };
        // Of several requests for one command, only the first aborts it.
        let first = command.request.take().unwrap_or(request);
        command.request.set(Some(first));
        let waker = command.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits, unless the command is aborted meanwhile: then returns the request.
    pub async fn unless_aborted<T>(&self, cid: u16, waiting: impl Future<Output = T>) -> Result<T, Request> {
        let command = Rc::new(WaitingCommand { cid, request: Cell::new(None), waker: RefCell::default() });
        self.0.borrow_mut().push(command.clone());
        let seat = Seat { waiting: self, command };
        let mut waiting = pin!(waiting);
        poll_fn(|context| {
            if let Some(request) = seat.command.request.take() {
                return Poll::Ready(Err(request));
            }
            let polled = waiting.as_mut().poll(context).map(Ok);
            if polled.is_pending() {
                *seat.command.waker.borrow_mut() = Some(context.waker().clone());
            }
            polled
        })
        .await
    }
}

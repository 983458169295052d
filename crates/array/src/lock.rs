//! A mutual exclusion of tasks on one shard, fair and held across awaits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use drive::{Sender, oneshot};

/// Lets one task in at a time, in order of arrival.
#[derive(Default)]
pub struct Turnstile {
    taken: Cell<bool>,
    waiting: RefCell<VecDeque<Sender<()>>>,
}

/// Lets the next task in when it is dropped.
pub struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    /// Waits for the turn.
    pub async fn enter(&self) -> Turn<'_> {
        if self.taken.replace(true) {
            let (sender, receiver) = oneshot();
            self.waiting.borrow_mut().push_back(sender);
            receiver.await.expect("a turn is handed on, never dropped");
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match self.0.waiting.borrow_mut().pop_front() {
            Some(next) => next.send(()),
            None => self.0.taken.set(false),
        }
    }
}

//! A mutual exclusion of tasks on one shard, fair and held across awaits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use drive::{Sender, oneshot};

/// Lets one task in at a time, in order of arrival.
#[derive(Default)]
pub struct Turnstile(Rc<State>);

#[derive(Default)]
struct State {
    taken: Cell<bool>,
    waiting: RefCell<VecDeque<Sender<Turn>>>,
}

/// Lets the next task in when it is dropped. It is handed over as a value: a task that went away while it waited drops
/// it unseen, and the turn goes on to the next.
pub struct Turn(Rc<State>);

impl Turnstile {
    /// Waits for the turn.
    pub async fn enter(&self) -> Turn {
        if !self.0.taken.replace(true) {
            return Turn(self.0.clone());
        }
        let (sender, receiver) = oneshot();
        self.0.waiting.borrow_mut().push_back(sender);
        receiver.await.expect("a turn is handed on, never dropped")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.0.waiting.borrow_mut().pop_front();
        match next {
            Some(next) => next.send(Turn(self.0.clone())),
            None => self.0.taken.set(false),
        }
    }
}

//! A fair async semaphore for the tasks of one shard. A permit is held across awaits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use drive::{Sender, oneshot};

/// Lets one task in at a time, or a number of them, in order of arrival.
pub struct FairSemaphore(Rc<State>);

struct State {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Sender<Turn>>>,
}

/// A permit. When it is dropped, the next task is let in. It is handed over as a value: if the next
/// task went away while it waited, the permit is dropped unseen, and goes on to the task after it.
pub struct Turn(Rc<State>);

impl Default for FairSemaphore {
    fn default() -> FairSemaphore {
        FairSemaphore::for_tasks(1)
    }
}

impl FairSemaphore {
    /// Lets `count` tasks in at a time.
    pub fn for_tasks(count: usize) -> FairSemaphore {
        FairSemaphore(Rc::new(State { free: Cell::new(count), waiting: RefCell::default() }))
    }

    /// Takes a permit if one is free.
    pub fn try_enter(&self) -> Option<Turn> {
        // A task that leaves while others wait hands its permit to one of them, so no task
        // overtakes.
        let left = self.0.free.get().checked_sub(1)?;
        self.0.free.set(left);
        Some(Turn(self.0.clone()))
    }

    /// Waits for a permit.
    pub async fn enter(&self) -> Turn {
        if let Some(turn) = self.try_enter() {
            return turn;
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
            None => self.0.free.set(self.0.free.get() + 1),
        }
    }
}

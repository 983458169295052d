//! A limit for the commands in flight on a queue.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use drive::{Canceled, Sender, oneshot};

/// A fair async semaphore: gives out this many passes, in the order of the requests.
pub(crate) struct Gate {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Sender<Pass>>>,
    closed: Cell<bool>,
}

/// A place in flight, which is freed when the pass is dropped.
pub(crate) struct Pass(Option<Rc<Gate>>);

impl Gate {
    pub fn new(passes: usize) -> Rc<Gate> {
        Rc::new(Gate { free: Cell::new(passes), waiting: RefCell::default(), closed: Cell::new(false) })
    }

    /// Waits for a pass. A caller that stops waiting takes no pass from other callers.
    ///
    /// # Errors
    /// The gate was closed.
    pub async fn pass(self: &Rc<Self>) -> Result<Pass, Canceled> {
        if self.closed.get() {
            return Err(Canceled);
        }
        if self.free.get() > 0 {
            self.free.set(self.free.get() - 1);
            return Ok(Pass(Some(self.clone())));
        }
        let (sender, receiver) = oneshot();
        self.waiting.borrow_mut().push_back(sender);
        receiver.await
    }

    /// Gives out no more passes.
    pub fn close(&self) {
        self.closed.set(true);
        // Dropping the senders wakes the waiting callers.
        drop(self.waiting.take());
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(gate) = self.0.take() else { return };
        let next = gate.waiting.borrow_mut().pop_front();
        match next {
            // If that caller has stopped waiting, the pass is dropped with the pair and goes to the
            // next caller.
            Some(next) => next.send(Pass(Some(gate))),
            None => gate.free.set(gate.free.get() + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn passes_go_round_in_order_and_past_those_who_left() {
        let gate = Gate::new(1);
        let Poll::Ready(Ok(first)) = poll(pin!(gate.pass())) else { panic!("one is free") };
        let mut left = Box::pin(gate.pass());
        let mut second = Box::pin(gate.pass());
        assert!(poll(left.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        drop(left);
        drop(first);
        let Poll::Ready(Ok(second)) = poll(second.as_mut()) else { panic!("the one who waits gets it") };
        drop(second);
        assert!(matches!(poll(pin!(gate.pass())), Poll::Ready(Ok(_))), "and then it is free");
    }

    #[test]
    fn a_pass_that_was_given_and_not_taken_goes_on() {
        let gate = Gate::new(1);
        let Poll::Ready(Ok(first)) = poll(pin!(gate.pass())) else { panic!("one is free") };
        let mut given = Box::pin(gate.pass());
        assert!(poll(given.as_mut()).is_pending());
        drop(first);
        drop(given);
        assert!(matches!(poll(pin!(gate.pass())), Poll::Ready(Ok(_))));
    }

    #[test]
    fn a_closed_gate_tells_who_waits() {
        let gate = Gate::new(0);
        let mut waiting = Box::pin(gate.pass());
        assert!(poll(waiting.as_mut()).is_pending());
        gate.close();
        assert!(matches!(poll(waiting.as_mut()), Poll::Ready(Err(Canceled))));
        assert!(matches!(poll(pin!(gate.pass())), Poll::Ready(Err(Canceled))));
    }
}

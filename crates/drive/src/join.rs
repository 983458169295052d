//! Waiting for several futures of one kind.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs all futures together and returns their results in the same order.
///
/// Every wake-up polls every future that is not done. So it is meant for the few drive operations
/// of one stripe.
pub fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> JoinAll<F> {
    JoinAll { slots: Box::into_pin(futures.into_iter().map(Slot::Running).collect()) }
}

enum Slot<F: Future> {
    Running(F),
    Done(Option<F::Output>),
}

/// The future of [`join_all`].
#[must_use = "futures do nothing unless awaited"]
pub struct JoinAll<F: Future> {
    /// One allocation, in which the futures stay in place. Outputs are not pinned.
    slots: Pin<Box<[Slot<F>]>>,
}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the slice stays in place, and so does each slot. Below, a future in a slot is
        // only polled as pinned, or dropped in place.
        let slots = unsafe { self.slots.as_mut().get_unchecked_mut() };
        let mut pending = false;
        for slot in slots.iter_mut() {
            if let Slot::Running(future) = slot {
                // SAFETY: as above.
                match unsafe { Pin::new_unchecked(future) }.poll(context) {
                    Poll::Ready(output) => *slot = Slot::Done(Some(output)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        let take = |slot: &mut Slot<F>| match slot {
            Slot::Done(output) => output.take().expect("polled again after it was ready"),
            Slot::Running(_) => unreachable!("no slot is pending"),
        };
        Poll::Ready(slots.iter_mut().map(take).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::task::Waker;

    use super::*;
    use crate::{Canceled, oneshot};

    #[test]
    fn results_have_the_order_of_the_futures_and_each_future_is_dropped_when_it_is_done() {
        struct Dropped<'a>(&'a RefCell<Vec<usize>>, usize);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.borrow_mut().push(self.1);
            }
        }

        let dropped = RefCell::new(Vec::new());
        let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::<usize>()).unzip();
        let mut all = join_all(receivers.into_iter().enumerate().map(|(index, receiver)| {
            let mark = Dropped(&dropped, index);
            async move {
                let _mark = mark;
                // A reference is held across the wait, so the future must not move.
                let answer = [Err(Canceled), receiver.await];
                let last = &answer[1];
                std::future::ready(()).await;
                last.as_ref().map_or(0, |value| *value)
            }
        }));
        let mut context = Context::from_waker(Waker::noop());
        for (index, pending) in [(1, true), (0, true), (2, false)] {
            assert!(Pin::new(&mut all).poll(&mut context).is_pending());
            senders.remove(if index == 2 { 0 } else { index }).send(10 + index);
            match Pin::new(&mut all).poll(&mut context) {
                Poll::Pending => assert!(pending),
                Poll::Ready(results) => assert_eq!(results, [10, 11, 12]),
            }
            assert_eq!(dropped.borrow().last(), Some(&index));
        }
        assert_eq!(*dropped.borrow(), [1, 0, 2]);
    }

    #[test]
    fn futures_that_are_not_waited_for_to_the_end_are_dropped() {
        let (sender, receiver) = oneshot::<u8>();
        let mut all = join_all([receiver]);
        assert!(Pin::new(&mut all).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(all);
        sender.send(1);
        assert_eq!(
            Pin::new(&mut join_all(Vec::<std::future::Ready<u8>>::new())).poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(Vec::new())
        );
    }
}

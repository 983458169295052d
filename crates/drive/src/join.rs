//! Waiting for several futures of one kind.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;

/// Runs all futures together and gives their results in the same order.
///
/// Every wake-up polls every future that is not done: meant for the handful of drive operations of one stripe.
pub fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> JoinAll<F> {
    JoinAll { slots: futures.into_iter().map(|future| Slot::Running(Box::pin(future))).collect() }
}

enum Slot<F: Future> {
    Running(Pin<Box<F>>),
    Done(Option<F::Output>),
}

/// The future of [`join_all`].
#[must_use = "futures do nothing unless awaited"]
pub struct JoinAll<F: Future> {
    slots: SmallVec<[Slot<F>; 8]>,
}

// The futures are boxed, hence never move; outputs are not pinned.
impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut pending = false;
        for slot in &mut self.slots {
            if let Slot::Running(future) = slot {
                match future.as_mut().poll(context) {
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
        Poll::Ready(self.slots.iter_mut().map(take).collect())
    }
}

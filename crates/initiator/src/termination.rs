//! The end of an object that several tasks share, and the reason for it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::Lost;

/// Set once: the reason why an object has ended.
#[derive(Default)]
pub(crate) struct Termination {
    lost: RefCell<Option<Lost>>,
    waiting: RefCell<Waiting>,
}

/// The waiting tasks. Each has a place of its own, which is freed with its future.
#[derive(Default)]
struct Waiting {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// The future of [`Termination::ended`].
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct Ended<'a> {
    termination: &'a Termination,
    place: Option<usize>,
}

impl Future for Ended<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.termination.is_sealed() {
            return Poll::Ready(());
        }
        let mut waiting = self.termination.waiting.borrow_mut();
        let Waiting { wakers, free } = &mut *waiting;
        let place = self.place.unwrap_or_else(|| {
            free.pop().unwrap_or_else(|| {
                wakers.push(None);
                wakers.len() - 1
            })
        });
        if !wakers[place].as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            wakers[place] = Some(context.waker().clone());
        }
        drop(waiting);
        self.place = Some(place);
        Poll::Pending
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mut waiting = self.termination.waiting.borrow_mut();
            waiting.wakers[place] = None;
            waiting.free.push(place);
        }
    }
}

impl Termination {
    /// Ends the object. The first reason stays.
    pub fn end(&self, lost: Lost) {
        {
            let mut known = self.lost.borrow_mut();
            if known.is_some() {
                return;
            }
            *known = Some(lost);
        }
        let wakers: Vec<Waker> = self.waiting.borrow_mut().wakers.iter_mut().filter_map(Option::take).collect();
        for waker in wakers {
            waker.wake();
        }
    }

    /// Why it has ended, or `None`.
    pub fn lost(&self) -> Option<Lost> {
        self.lost.borrow().clone()
    }

    /// Whether it has ended.
    pub fn is_sealed(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// Returns when it has ended.
    pub fn ended(&self) -> Ended<'_> {
        Ended { termination: self, place: None }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn is_pending(future: Pin<&mut Ended<'_>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn whoever_waits_is_told_and_whoever_left_takes_no_room() {
        let termination = Termination::default();
        for _ in 0..1000 {
            assert!(is_pending(pin!(termination.ended())));
        }
        assert_eq!(termination.waiting.borrow().wakers.len(), 1);
        let mut waiting = pin!(termination.ended());
        assert!(is_pending(waiting.as_mut()));
        termination.end(Lost::Closed);
        termination.end(Lost::Disconnected);
        assert!(!is_pending(waiting.as_mut()) && !is_pending(pin!(termination.ended())));
        assert_eq!(termination.lost(), Some(Lost::Closed), "the first reason stays");
    }
}

//! The end of an object that several tasks share, and notifications for waiting tasks.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use drive::{Receiver, Sender, oneshot};

use crate::Lost;

/// Set once: the reason why a controller has ended.
#[derive(Default)]
pub(crate) struct Fate {
    lost: RefCell<Option<Lost>>,
    waiting: RefCell<Waiting>,
}

/// The waiting tasks. Each has a place of its own, which is freed with its future.
#[derive(Default)]
struct Waiting {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// The future of [`Fate::ended`].
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct Ended<'a> {
    fate: &'a Fate,
    place: Option<usize>,
}

impl Future for Ended<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.fate.is_sealed() {
            return Poll::Ready(());
        }
        let mut waiting = self.fate.waiting.borrow_mut();
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
            let mut waiting = self.fate.waiting.borrow_mut();
            waiting.wakers[place] = None;
            waiting.free.push(place);
        }
    }
}

impl Fate {
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
        Ended { fate: self, place: None }
    }
}

/// Notification of a change: waiting tasks check again.
#[derive(Default)]
pub(crate) struct News {
    waiting: RefCell<Vec<Sender<()>>>,
}

impl News {
    /// Wakes all waiting tasks.
    pub fn tell(&self) {
        for waiting in self.waiting.take() {
            waiting.send(());
        }
    }

    /// Returns with the next [`News::tell`] after this call, even before the future is polled.
    pub fn next(&self) -> Receiver<()> {
        let (sender, receiver) = oneshot();
        self.waiting.borrow_mut().push(sender);
        receiver
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
        let fate = Fate::default();
        for _ in 0..1000 {
            assert!(is_pending(pin!(fate.ended())));
        }
        assert_eq!(fate.waiting.borrow().wakers.len(), 1);
        let mut waiting = pin!(fate.ended());
        assert!(is_pending(waiting.as_mut()));
        fate.end(Lost::Closed);
        fate.end(Lost::Disconnected);
        assert!(!is_pending(waiting.as_mut()) && !is_pending(pin!(fate.ended())));
        assert_eq!(fate.lost(), Some(Lost::Closed), "the first reason stays");
    }
}

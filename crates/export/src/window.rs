//! The service window: how many bytes of one host's requests a shard works on at a time.
//!
//! A volume serves requests in the order in which it gets them. Without a window, a host with a
//! deep queue of long requests makes all others wait until its queue is done. With a window, the
//! rest of its queue waits here, so another host's request waits for one window at most.
//!
//! - While only one host is active, its window is large enough for any drive.
//! - While several are active, the window of each is small. A request of any size fits into an
//!   empty window.
//! - Requests of a host enter in the order in which they came. Requests that wait end with their
//!   connection: they were not handed to the volume.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use drive::Nanos;

use crate::budget::{Budget, Share};

/// Bytes of a host's window while no other host is active: the amount that a shard moves in more
/// than 3 ms at 10 GB/s.
const ALONE_BYTES: u64 = 32 << 20;

/// Bytes of a host's window while other hosts are active: the longest command of NVMe/TCP.
const CONTENDED_BYTES: u64 = 1 << 20;

/// A request that has waited sleeps this long before it begins. Timers fire between the turns of a
/// shard, so requests that arrived from other hosts meanwhile are received first. Otherwise a shard
/// with drives in memory, which answer at once, would work through the whole wait queue in one
/// turn.
pub(crate) const NEXT_TURN: Duration = Duration::from_micros(1);

/// How often a shard tells the budget that a host is active.
const TOLD_EVERY: Nanos = Duration::from_millis(20).as_nanos() as Nanos;

thread_local! {
    /// The windows of this shard, by the budget and the number of the host.
    static WINDOWS: RefCell<BTreeMap<(usize, u64), Weak<HostWindow>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A connection's access to its host's window. Belongs to the shard of the connection.
#[derive(Debug)]
pub(crate) struct Window {
    host: Rc<HostWindow>,
    /// The connection has ended.
    ended: Rc<Cell<bool>>,
}

#[derive(Debug)]
struct HostWindow {
    budget: Arc<Budget>,
    number: u64,
    inside_bytes: Cell<u64>,
    size_bytes: Cell<u64>,
    /// When the budget was last told that the host is active.
    told: Cell<Nanos>,
    line: RefCell<VecDeque<Rc<Waiting>>>,
}

#[derive(Debug)]
struct Waiting {
    bytes: u64,
    /// The connection has ended.
    ended: Rc<Cell<bool>>,
    /// The request is in the window.
    entered: Cell<bool>,
    /// The request's task is gone.
    left: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A request in the window. Dropping it leaves the window.
#[derive(Debug)]
pub(crate) struct Inside {
    host: Rc<HostWindow>,
    bytes: u64,
}

impl Window {
    /// The window of a connection of this shard.
    pub fn of(share: &Share) -> Window {
        let (budget, number) = share.host();
        let key = (Arc::as_ptr(budget) as usize, number);
        let host = WINDOWS.with_borrow_mut(|windows| {
            if let Some(host) = windows.get(&key).and_then(Weak::upgrade) {
                return host;
            }
            windows.retain(|_, host| host.strong_count() > 0);
            let host = Rc::new(HostWindow {
                budget: budget.clone(),
                number,
                inside_bytes: Cell::new(0),
                size_bytes: Cell::new(ALONE_BYTES),
                told: Cell::new(0),
                line: RefCell::default(),
            });
            windows.insert(key, Rc::downgrade(&host));
            host
        });
        Window { host, ended: Rc::default() }
    }

    /// A request came. Every [`TOLD_EVERY`] at most, tells the budget that the host is active, and
    /// sets the size of the window.
    #[inline]
    pub fn arrived(&self, now: Nanos) {
        if now.saturating_sub(self.host.told.get()) >= TOLD_EVERY {
            self.host.tell(now);
        }
    }

    /// Lets a request in if it fits and no other waits.
    #[inline]
    pub fn try_enter(&self, bytes: u64) -> Option<Inside> {
        let host = &self.host;
        let enters = !self.ended.get() && host.line.borrow().is_empty() && host.fits(bytes);
        enters.then(|| host.enter(bytes))
    }

    /// Waits until a request may enter. `None` if the connection ends first.
    pub async fn enter(&self, bytes: u64) -> Option<Inside> {
        if let Some(inside) = self.try_enter(bytes) {
            return Some(inside);
        }
        if self.ended.get() {
            return None;
        }
        let (ended, entered, left, waker) = (self.ended.clone(), Cell::default(), Cell::default(), None.into());
        let waiting = Rc::new(Waiting { bytes, ended, entered, left, waker });
        self.host.line.borrow_mut().push_back(waiting.clone());
        let place = WindowPlace { host: &self.host, waiting };
        poll_fn(|context| {
            let waiting = &place.waiting;
            if waiting.entered.get() {
                waiting.left.set(true);
                return Poll::Ready(Some(Inside { host: self.host.clone(), bytes }));
            }
            if waiting.ended.get() {
                return Poll::Ready(None);
            }
            *waiting.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the connection has ended.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// The connection has ended: requests that wait are not served, and neither are later ones.
    pub fn end(&self) {
        self.ended.set(true);
        let mut wake = Vec::new();
        self.host.line.borrow_mut().retain(|waiting| {
            let ends = Rc::ptr_eq(&waiting.ended, &self.ended);
            wake.extend(if ends { waiting.waker.take() } else { None });
            !ends
        });
        wake.into_iter().for_each(Waker::wake);
        self.host.serve();
    }
}

/// A request's place in the wait queue, which it leaves when its task ends.
struct WindowPlace<'a> {
    host: &'a HostWindow,
    waiting: Rc<Waiting>,
}

impl Drop for WindowPlace<'_> {
    fn drop(&mut self) {
        if self.waiting.left.replace(true) {
            return;
        }
        if self.waiting.entered.get() {
            return self.host.leave(self.waiting.bytes);
        }
        self.host.line.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, &self.waiting));
        self.host.serve();
    }
}

impl HostWindow {
    #[cold]
    fn tell(&self, now: Nanos) {
        self.told.set(now);
        let is_contended = self.budget.seen(self.number, now);
        self.size_bytes.set(if is_contended { CONTENDED_BYTES } else { ALONE_BYTES });
        self.serve();
    }

    fn fits(&self, bytes: u64) -> bool {
        let inside = self.inside_bytes.get();
        inside == 0 || inside + bytes <= self.size_bytes.get()
    }

    fn enter(self: &Rc<Self>, bytes: u64) -> Inside {
        self.inside_bytes.set(self.inside_bytes.get() + bytes);
        Inside { host: self.clone(), bytes }
    }

    fn leave(&self, bytes: u64) {
        self.inside_bytes.set(self.inside_bytes.get() - bytes);
        self.serve();
    }

    /// Lets waiting requests in, as far as they fit.
    fn serve(&self) {
        loop {
            let next = self.line.borrow().front().filter(|waiting| self.fits(waiting.bytes)).cloned();
            let Some(waiting) = next else { return };
            self.line.borrow_mut().pop_front();
            self.inside_bytes.set(self.inside_bytes.get() + waiting.bytes);
            waiting.entered.set(true);
            let waker = waiting.waker.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        self.host.leave(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_window_is_small_while_another_host_is_active() {
        let budget = Budget::new(64 * MIB);
        let (greedy, other) = (budget.enter("greedy"), budget.enter("other"));
        let (greedy, other) = (Window::of(&greedy), Window::of(&other));
        greedy.arrived(TOLD_EVERY);
        let alone: Vec<Inside> = std::iter::from_fn(|| greedy.try_enter(MIB)).collect();
        assert_eq!(alone.len() as u64, ALONE_BYTES / MIB);
        drop(alone);
        other.arrived(TOLD_EVERY);
        greedy.arrived(2 * TOLD_EVERY);
        let contended: Vec<Inside> = std::iter::from_fn(|| greedy.try_enter(MIB)).collect();
        assert_eq!(contended.len() as u64, CONTENDED_BYTES / MIB);
        // The other host has its own window, into which one request of any length fits.
        assert!(other.try_enter(32 * MIB).is_some());
    }

    #[test]
    fn requests_enter_in_order_and_those_of_an_ended_connection_do_not() {
        let budget = Budget::new(64 * MIB);
        let share = budget.enter("host");
        let (one, other) = (Window::of(&share), Window::of(&share));
        let inside = one.try_enter(ALONE_BYTES).expect("the window is empty");
        let mut first = pin!(one.enter(MIB));
        let mut second = pin!(other.enter(MIB));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        assert!(other.try_enter(0).is_none(), "others wait");
        one.end();
        assert!(matches!(poll(first.as_mut()), Poll::Ready(None)));
        assert!(poll(second.as_mut()).is_pending());
        drop(inside);
        let Poll::Ready(Some(entered)) = poll(second.as_mut()) else { panic!("there is room") };
        assert_eq!(one.host.inside_bytes.get(), MIB);
        drop(entered);
        assert_eq!(one.host.inside_bytes.get(), 0);
        assert!(one.try_enter(MIB).is_none(), "it has ended");
    }

    #[test]
    fn a_task_that_is_dropped_leaves_the_window() {
        let budget = Budget::new(64 * MIB);
        let share = budget.enter("host");
        let window = Window::of(&share);
        let inside = window.try_enter(ALONE_BYTES).expect("the window is empty");
        {
            let mut gone = Box::pin(window.enter(MIB));
            assert!(poll(gone.as_mut()).is_pending());
            let mut entered = Box::pin(window.enter(2 * MIB));
            assert!(poll(entered.as_mut()).is_pending());
            drop(gone);
            drop(inside);
            assert_eq!(window.host.inside_bytes.get(), 2 * MIB);
        }
        assert_eq!(window.host.inside_bytes.get(), 0);
        assert!(window.host.line.borrow().is_empty());
    }
}

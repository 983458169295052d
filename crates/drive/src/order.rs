//! Overlapping changes, executed in the order in which they were requested.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Makes overlapping changes of a drive happen one after the other, from any thread. All others
/// happen at the same time. A drive itself guarantees no order of operations in flight at the same
/// time.
#[derive(Debug, Default)]
pub struct Order(Mutex<PendingChanges>);

#[derive(Debug, Default)]
struct PendingChanges {
    next: u64,
    /// Start and end in bytes, in the order of the requests.
    changes: BTreeMap<u64, (u64, u64)>,
    /// By the number of the waiting change.
    waiting: BTreeMap<u64, Waker>,
}

/// The place of a change in the order. Dropping it ends the change.
#[derive(Debug)]
pub struct Turn {
    order: Arc<Order>,
    number: u64,
}

impl PendingChanges {
    /// Whether an older change overlaps with the range of this one.
    fn is_behind(&self, number: u64) -> bool {
        let (start, end) = self.changes[&number];
        self.changes.range(..number).any(|(_, &(from, to))| from < end && start < to)
    }
}

impl Order {
    /// An order without changes.
    pub fn new() -> Arc<Order> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, PendingChanges> {
        // Code under the lock does not panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place after all earlier requests. `offset` and `len` are in bytes.
    pub fn enter(self: &Arc<Self>, offset: u64, len: u64) -> Turn {
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        inner.changes.insert(number, (offset, offset.saturating_add(len)));
        drop(inner);
        Turn { order: self.clone(), number }
    }
}

impl Turn {
    /// Returns when every older change that overlaps has ended.
    pub async fn come(&self) {
        poll_fn(|context| {
            let mut inner = self.order.lock();
            if !inner.is_behind(self.number) {
                return Poll::Ready(());
            }
            inner.waiting.insert(self.number, context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut inner = self.order.lock();
        inner.waiting.remove(&self.number);
        let Some((start, end)) = inner.changes.remove(&self.number) else { return };
        let freed = |number: &u64| inner.changes.get(number).is_some_and(|&(from, to)| from < end && start < to);
        let numbers: Vec<u64> = inner.waiting.keys().copied().filter(freed).collect();
        let wakers: Vec<Waker> = numbers.iter().filter_map(|number| inner.waiting.remove(number)).collect();
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn has_come(turn: &Turn) -> bool {
        pin!(turn.come()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn what_overlaps_waits_for_what_is_older_and_nothing_else_does() {
        let order = Order::new();
        let first = order.enter(0, 8);
        let second = order.enter(4, 8);
        let third = order.enter(8, 8);
        let apart = order.enter(16, 8);
        assert!(has_come(&first) && !has_come(&second) && !has_come(&third) && has_come(&apart));
        drop(first);
        assert!(has_come(&second) && !has_come(&third));
        drop(second);
        assert!(has_come(&third));
    }

    #[test]
    fn whoever_waits_is_woken_and_whoever_leaves_is_not_waited_for() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count(Default::default()));
        let (order, waker) = (Order::new(), Waker::from(count.clone()));
        let (first, left, last) = (order.enter(0, 8), order.enter(0, 8), order.enter(0, 8));
        assert!(pin!(last.come()).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(left);
        assert!(pin!(last.come()).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(first);
        assert!(count.0.load(std::sync::atomic::Ordering::SeqCst) > 0 && has_come(&last));
    }
}

//! Notifications of changes, for tasks that wait for one.

use std::cell::RefCell;

use drive::{Receiver, Sender, oneshot};

/// Notification of a change: waiting tasks check again.
#[derive(Default)]
pub(crate) struct ChangeNotifications {
    waiting: RefCell<Vec<Sender<()>>>,
}

impl ChangeNotifications {
    /// Wakes all waiting tasks.
    pub fn tell(&self) {
        for waiting in self.waiting.take() {
            waiting.send(());
        }
    }

    /// Returns with the next [`ChangeNotifications::tell`] after this call, even before the future
    /// is polled.
    pub fn next(&self) -> Receiver<()> {
        let (sender, receiver) = oneshot();
        self.waiting.borrow_mut().push(sender);
        receiver
    }
}

//! Waiting for a change of state on one shard.

use std::cell::RefCell;

use drive::{Sender, oneshot};

/// Wakes all tasks that wait, once something changed. They look themselves whether it is theirs.
#[derive(Default)]
pub(crate) struct Signal(RefCell<Vec<Sender<()>>>);

impl Signal {
    /// Returns after the next [`Signal::raise`].
    pub async fn changed(&self) {
        self.next().await;
    }

    /// As [`Signal::changed`], from this call on. Also returns when the signal is dropped.
    pub fn next(&self) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = oneshot();
        self.0.borrow_mut().push(sender);
        // The sender never sends; it is dropped when the signal is raised.
        async move {
            let _ = receiver.await;
        }
    }

    /// Wakes the tasks that wait now.
    pub fn raise(&self) {
        drop(self.0.take());
    }
}

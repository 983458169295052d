//! Requests of clients as background work sees them: how many are in flight, how long they take.

use std::cell::Cell;

use drive::{Env, Nanos};

use crate::array::{Array, ArrayShard, Requester};
use crate::drives::in_flight::InFlightTable;

/// Counts a client request as long as it lives.
pub(crate) struct User<'a> {
    users: &'a Cell<usize>,
    in_flight: &'a InFlightTable,
    /// 0: not measured.
    began: Nanos,
}

impl User<'_> {
    /// Cancels the accounting: the fast path was not taken.
    #[inline]
    pub fn was_none(mut self) {
        if std::mem::take(&mut self.began) > 0 {
            self.in_flight.user_was_none();
        }
    }
}

impl Drop for User<'_> {
    #[inline]
    fn drop(&mut self) {
        self.users.set(self.users.get() - 1);
        if self.began > 0 {
            self.in_flight.user_ends(self.began);
        }
    }
}

impl<E: Env> Array<E> {
    /// A handle for a layer that serves clients by requests of its own. Their times say nothing
    /// about those of its clients: background work follows [`Array::client_request`] instead.
    pub fn for_layer(&self) -> Array<E> {
        Array(self.0.clone(), Requester::Layer)
    }

    /// Counts a request of a layer's client, as long as the result lives.
    #[inline]
    pub fn client_request(&self) -> impl Sized + use<'_, E> {
        self.0.enter_user(Requester::Clients)
    }
}

impl<E: Env> ArrayShard<E> {
    /// A request begins on this shard.
    #[inline]
    pub fn enter_user(&self, requester: Requester) -> User<'_> {
        self.users.set(self.users.get() + 1);
        let began = match requester {
            Requester::Clients => self.in_flight.user_begins(),
            Requester::Layer => 0,
        };
        User { users: &self.users, in_flight: &self.in_flight, began }
    }
}

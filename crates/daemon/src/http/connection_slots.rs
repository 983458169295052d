//! Connection slots of a listener, and the choice of the connection that is closed for a new one.
//!
//! Invariants:
//! - A new connection waits only while every slot serves a request.
//! - A connection is closed for a new one only while it waits for its client: for a handshake, a
//!   header, a body, or the reading of an answer.
//! - Among those, clients that have not presented a token are closed first. They cannot keep out
//!   clients that have one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The connection slots of one listener.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    max: usize,
    table: Mutex<Table>,
    /// A slot became free, or a connection waits for its client again.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    taken: BTreeMap<u64, Taken>,
    /// The next number, for a connection or for the time when one starts to wait.
    next: u64,
}

#[derive(Debug)]
struct Taken {
    peer: Option<Peer>,
    is_known: bool,
    state: State,
    leave: Arc<Notify>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It waits for its client, since this tick.
    Waits(u64),
    /// A request is being served.
    Serves,
    /// It has to be closed.
    Leaves,
}

/// The network of a client: an IPv4 address, or the first 64 bits of an IPv6 address, because one
/// client can have every address below them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer([u8; 8]);

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Peer {
        let IpAddr::V6(address) = address.to_canonical() else {
            let IpAddr::V4(address) = address.to_canonical() else { unreachable!("an address has one of two kinds") };
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&address.octets());
            return Peer(bytes);
        };
        Peer(*address.octets().first_chunk().expect("an address has 16 bytes"))
    }
}

/// The slot of a connection. It is freed when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    leave: Arc<Notify>,
}

impl ConnectionSlots {
    /// Makes `max` slots.
    pub fn new(max: usize) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots { max, table: Mutex::default(), changed: Notify::new() })
    }

    /// A slot for a connection from `peer`, as soon as one is free. Only one task may wait at a
    /// time.
    pub async fn acquire(self: &Arc<ConnectionSlots>, peer: Option<Peer>) -> ConnectionSlot {
        loop {
            if let Some(slot) = self.try_acquire(peer) {
                return slot;
            }
            // A change since the attempt above has left a permit.
            self.changed.notified().await;
        }
    }

    /// A slot, if one is free. Otherwise asks a connection to close, if one may.
    fn try_acquire(self: &Arc<ConnectionSlots>, peer: Option<Peer>) -> Option<ConnectionSlot> {
        let mut table = self.table();
        if table.taken.len() < self.max {
            let number = table.tick();
            let leave = Arc::new(Notify::new());
            let taken = Taken { peer, is_known: false, state: State::Waits(number), leave: leave.clone() };
            table.taken.insert(number, taken);
            return Some(ConnectionSlot { slots: self.clone(), number, leave });
        }
        table.make_room();
        None
    }

    /// No code panics while it holds the lock.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Asks one connection that waits for its client to close, unless one is closing already. It
    /// prefers connections without a token, then the peer with the most connections, then the one
    /// that has waited longest.
    fn make_room(&mut self) {
        if self.taken.values().any(|taken| taken.state == State::Leaves) {
            return;
        }
        let of_peer = |peer: Option<Peer>| self.taken.values().filter(|taken| taken.peer == peer).count();
        let waiting = self.taken.iter().filter_map(|(number, taken)| match taken.state {
            State::Waits(since) => Some((taken.is_known, Reverse(of_peer(taken.peer)), since, *number)),
            State::Serves | State::Leaves => None,
        });
        let Some((.., number)) = waiting.min() else { return };
        let taken = self.taken.get_mut(&number).expect("it was found there");
        taken.state = State::Leaves;
        taken.leave.notify_one();
    }
}

impl ConnectionSlot {
    /// Returns when the connection has to close.
    pub async fn is_needed(&self) {
        self.leave.notified().await;
    }

    /// Records that the client has presented a token.
    pub fn is_known(&self) {
        self.change(|taken, _| taken.is_known = true);
    }

    /// Records that a complete request has arrived. Returns false if the connection has to close,
    /// and the request must not be started.
    pub fn serves(&self) -> bool {
        self.change(|taken, _| {
            let goes = taken.state == State::Leaves;
            if !goes {
                taken.state = State::Serves;
            }
            !goes
        })
    }

    /// Records that the request was answered.
    pub fn waits(&self) {
        self.change(|taken, now| taken.state = State::Waits(now));
        self.slots.changed.notify_one();
    }

    fn change<T>(&self, change: impl FnOnce(&mut Taken, u64) -> T) -> T {
        let mut table = self.slots.table();
        let now = table.tick();
        change(table.taken.get_mut(&self.number).expect("a place is taken until it is dropped"), now)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table().taken.remove(&self.number);
        self.slots.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the `slots` that have to close.
    fn leaving(slots: &Arc<ConnectionSlots>) -> Vec<u64> {
        let table = slots.table();
        table.taken.iter().filter(|(_, taken)| taken.state == State::Leaves).map(|(number, _)| *number).collect()
    }

    fn peer(address: &str) -> Option<Peer> {
        Some(address.parse::<IpAddr>().unwrap().into())
    }

    #[test]
    fn a_new_connection_replaces_one_that_waits_for_its_client() {
        let slots = ConnectionSlots::new(5);
        let acquire = |address| slots.try_acquire(peer(address)).unwrap();
        let known = acquire("10.0.0.1");
        let lonely = acquire("10.0.0.2");
        let crowd = ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:3"].map(acquire);
        known.is_known();
        assert!(crowd[0].serves());
        let mut gone = Vec::new();
        let mut goes = |slot: ConnectionSlot| {
            assert!(slots.try_acquire(peer("10.0.0.9")).is_none() && slots.try_acquire(None).is_none());
            assert_eq!(leaving(&slots), [slot.number], "one at a time");
            assert!(!slot.serves(), "its request is not begun");
            drop(slot);
            let new = slots.try_acquire(peer("10.0.0.9")).unwrap();
            new.is_known();
            assert!(new.serves());
            gone.push(new);
        };
        let [first, second, third] = crowd;
        goes(second);
        goes(third);
        first.waits();
        goes(lonely);
        goes(first);
        goes(known);
        assert!(slots.try_acquire(None).is_none() && leaving(&slots).is_empty(), "all others are being served");
    }
}

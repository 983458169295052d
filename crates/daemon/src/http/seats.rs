//! Places for connections at a listener, and which connection ends when a new one needs a place.
//!
//! Invariants:
//! - A newcomer is kept out only while every place is taken by a request that is being carried out.
//! - A connection is ended for a newcomer only while it waits for its client: for a handshake, a
//!   header, a body, or for taking an answer.
//! - Of those, clients that have shown no token go first: they cannot keep out clients that have
//!   one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The places at one listener.
#[derive(Debug)]
pub(super) struct Seats {
    max: usize,
    table: Mutex<Table>,
    /// A place has become free, or a connection waits for its client again.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    taken: BTreeMap<u64, Taken>,
    /// Number of the next connection, and of the next time that one begins to wait.
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
    /// For its client, since so many others began to.
    Waits(u64),
    /// A request is being carried out.
    Serves,
    /// It has to go.
    Leaves,
}

/// The network that a client connects from: an IPv4 address, or the first 64 bits of an IPv6
/// address, because one client can have every address below them.
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

/// The place of a connection; free when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    leave: Arc<Notify>,
}

impl Seats {
    /// So many places.
    pub fn new(max: usize) -> Arc<Seats> {
        Arc::new(Seats { max, table: Mutex::default(), changed: Notify::new() })
    }

    /// A place for a connection from `peer`, as soon as there is one. To be waited for by one task
    /// at a time.
    pub async fn seat(self: &Arc<Seats>, peer: Option<Peer>) -> Seat {
        loop {
            if let Some(seat) = self.try_seat(peer) {
                return seat;
            }
            // A change since the look above has left a permit.
            self.changed.notified().await;
        }
    }

    /// A place, if one is free; otherwise has a connection go, if one may.
    fn try_seat(self: &Arc<Seats>, peer: Option<Peer>) -> Option<Seat> {
        let mut table = self.table();
        if table.taken.len() < self.max {
            let number = table.tick();
            let leave = Arc::new(Notify::new());
            let taken = Taken { peer, is_known: false, state: State::Waits(number), leave: leave.clone() };
            table.taken.insert(number, taken);
            return Some(Seat { seats: self.clone(), number, leave });
        }
        table.make_room();
        None
    }

    /// Nothing panics while the lock is held.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Has one connection go that waits for its client, unless one is going already: a stranger
    /// rather than one that has shown a token, of the peer with most of them, the one that has
    /// waited longest.
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

impl Seat {
    /// Returns when the connection has to go.
    pub async fn is_needed(&self) {
        self.leave.notified().await;
    }

    /// The client has shown a token.
    pub fn is_known(&self) {
        self.change(|taken, _| taken.is_known = true);
    }

    /// A whole request has come. False if the connection has to go, and the request must not be
    /// begun.
    pub fn serves(&self) -> bool {
        self.change(|taken, _| {
            let goes = taken.state == State::Leaves;
            if !goes {
                taken.state = State::Serves;
            }
            !goes
        })
    }

    /// The request has its answer.
    pub fn waits(&self) {
        self.change(|taken, now| taken.state = State::Waits(now));
        self.seats.changed.notify_one();
    }

    fn change<T>(&self, change: impl FnOnce(&mut Taken, u64) -> T) -> T {
        let mut table = self.seats.table();
        let now = table.tick();
        change(table.taken.get_mut(&self.number).expect("a place is taken until it is dropped"), now)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table().taken.remove(&self.number);
        self.seats.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of those of `seats` that have to go.
    fn leaving(seats: &Arc<Seats>) -> Vec<u64> {
        let table = seats.table();
        table.taken.iter().filter(|(_, taken)| taken.state == State::Leaves).map(|(number, _)| *number).collect()
    }

    fn peer(address: &str) -> Option<Peer> {
        Some(address.parse::<IpAddr>().unwrap().into())
    }

    #[test]
    fn who_goes_for_a_newcomer() {
        let seats = Seats::new(5);
        let sit = |address| seats.try_seat(peer(address)).unwrap();
        let known = sit("10.0.0.1");
        let lonely = sit("10.0.0.2");
        let crowd = ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:3"].map(sit);
        known.is_known();
        assert!(crowd[0].serves());
        let mut gone = Vec::new();
        let mut goes = |seat: Seat| {
            assert!(seats.try_seat(peer("10.0.0.9")).is_none() && seats.try_seat(None).is_none());
            assert_eq!(leaving(&seats), [seat.number], "one at a time");
            assert!(!seat.serves(), "its request is not begun");
            drop(seat);
            let newcomer = seats.try_seat(peer("10.0.0.9")).unwrap();
            newcomer.is_known();
            assert!(newcomer.serves());
            gone.push(newcomer);
        };
        let [first, second, third] = crowd;
        goes(second);
        goes(third);
        first.waits();
        goes(lonely);
        goes(first);
        goes(known);
        assert!(seats.try_seat(None).is_none() && leaving(&seats).is_empty(), "all others are being served");
    }
}

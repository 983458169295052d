//! Memory for requests in flight: one budget for all connections of a daemon.
//!
//! - A [`Budget`] has a size in bytes. A [`Share`] is one connection's part of it.
//! - A connection takes memory for a request before it receives the request's data or reads for it.
//!   It gives the memory back when the answer was sent.
//! - If there is no memory for a connection, it waits in the wait queue of its host. The server
//!   does not read from it meanwhile.
//!
//! # Rules
//! 1. The first 64 KiB of each connection are not counted, so a queue of small requests takes
//!    nothing from the budget.
//! 2. A host may hold as much as is free (the dynamic threshold of Choudhury and Hahne, "Dynamic
//!    Queue Length Thresholds for Shared-Memory Packet Switches", 1998). One host alone gets a
//!    half, two get a third each. So some memory is always free for a host that comes later.
//! 3. A host that holds nothing is served before others, so no host starves.
//! 4. A request that is larger than the budget is admitted when nothing else is held.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use drive::Nanos;

/// Bytes of each connection that are not counted.
const UNCOUNTED_BYTES: u64 = 64 << 10;

/// A share takes and returns multiples of this many bytes, so that most requests need no lock.
const CHUNK_BYTES: u64 = 64 << 10;

/// A host counts as active for this long after its last request.
const ACTIVE: Nanos = Duration::from_millis(200).as_nanos() as Nanos;

/// Memory that the requests of all connections may hold together.
#[derive(Debug)]
pub struct Budget {
    size_bytes: u64,
    ledger: Mutex<Ledger>,
}

/// How much of a [`Budget`] is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetStats {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes that connections hold, without the first 64 KiB of each.
    pub held_bytes: u64,
    /// Connections that wait for memory.
    pub waiting: u64,
}

#[derive(Debug, Default)]
struct Ledger {
    held_bytes: u64,
    hosts: BTreeMap<u64, HostLedger>,
    numbers: BTreeMap<String, u64>,
    next_number: u64,
    /// Tickets in the wait queues of all hosts.
    waiting: u64,
    /// The host that was served last. The host after it has the next turn.
    served: u64,
}

#[derive(Debug)]
struct HostLedger {
    name: String,
    connections: u64,
    held_bytes: u64,
    seen: Nanos,
    line: VecDeque<Arc<Ticket>>,
}

/// A connection that waits for memory.
#[derive(Debug)]
struct Ticket {
    bytes: u64,
    state: Mutex<TicketState>,
}

#[derive(Debug, Default)]
struct TicketState {
    granted: bool,
    wakers: Vec<Waker>,
}

/// A connection's part of a [`Budget`]. Belongs to the shard of the connection.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    host: u64,
    /// Bytes that the connection's requests hold.
    held_bytes: Cell<u64>,
    /// Bytes that the budget has granted: at least the bytes held above [`UNCOUNTED_BYTES`].
    granted_bytes: Cell<u64>,
    ticket: RefCell<Option<Arc<Ticket>>>,
    /// `ticket` is set.
    waits: Cell<bool>,
}

/// Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ticket {
    fn grant(&self) -> Vec<Waker> {
        let mut state = lock(&self.state);
        state.granted = true;
        std::mem::take(&mut state.wakers)
    }

    fn is_granted(&self) -> bool {
        lock(&self.state).granted
    }

    fn listen(&self, waker: &Waker) {
        let mut state = lock(&self.state);
        if state.granted {
            drop(state);
            waker.wake_by_ref();
        } else if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }
}

impl Ledger {
    fn fits(&self, size_bytes: u64, host: u64, bytes: u64) -> bool {
        let free = size_bytes.saturating_sub(self.held_bytes);
        let held = self.hosts[&host].held_bytes;
        self.held_bytes == 0 || bytes <= free && (held == 0 || held + bytes <= free)
    }

    fn add(&mut self, host: u64, bytes: u64) {
        self.held_bytes += bytes;
        self.hosts.get_mut(&host).expect("a share has its host").held_bytes += bytes;
    }

    /// Whether a host that holds nothing waits.
    fn has_starving(&self) -> bool {
        self.waiting > 0 && self.hosts.values().any(|host| host.held_bytes == 0 && !host.line.is_empty())
    }

    /// Grants memory to waiting connections. Returns the tasks to wake once the lock is released.
    fn serve(&mut self, size_bytes: u64) -> Vec<Waker> {
        let mut wake = Vec::new();
        if self.waiting == 0 {
            return wake;
        }
        let waits = |(_, host): &(&u64, &HostLedger)| !host.line.is_empty();
        let after = self.hosts.range(self.served.saturating_add(1)..).filter(waits);
        let order = after.chain(self.hosts.range(..=self.served).filter(waits));
        let mut order: Vec<(bool, u64)> = order.map(|(number, host)| (host.held_bytes > 0, *number)).collect();
        // A stable sort: hosts that hold nothing come first, and both parts stay in round-robin
        // order.
        order.sort_by_key(|(holds, _)| *holds);
        for (holds, number) in order {
            while let Some(bytes) = self.hosts[&number].line.front().map(|ticket| ticket.bytes) {
                if !self.fits(size_bytes, number, bytes) {
                    if !holds && self.hosts[&number].held_bytes == 0 {
                        return wake;
                    }
                    break;
                }
                self.add(number, bytes);
                let host = self.hosts.get_mut(&number).expect("it was looked at");
                let ticket = host.line.pop_front().expect("it was looked at");
                self.waiting -= 1;
                self.served = number;
                wake.append(&mut ticket.grant());
            }
        }
        wake
    }
}

impl Budget {
    /// A budget of `size_bytes` bytes.
    pub fn new(size_bytes: u64) -> Arc<Budget> {
        Arc::new(Budget { size_bytes, ledger: Mutex::default() })
    }

    /// How much is used.
    pub fn stats(&self) -> BudgetStats {
        let ledger = lock(&self.ledger);
        BudgetStats { size_bytes: self.size_bytes, held_bytes: ledger.held_bytes, waiting: ledger.waiting }
    }

    /// The share of a new connection of a host.
    pub(crate) fn enter(self: &Arc<Self>, name: &str) -> Share {
        let mut ledger = lock(&self.ledger);
        let host = match ledger.numbers.get(name) {
            Some(number) => *number,
            None => {
                let number = ledger.next_number;
                ledger.next_number += 1;
                ledger.numbers.insert(name.to_owned(), number);
                let name = name.to_owned();
                let host = HostLedger { name, connections: 0, held_bytes: 0, seen: 0, line: VecDeque::new() };
                ledger.hosts.insert(number, host);
                number
            }
        };
        ledger.hosts.get_mut(&host).expect("it was found or added").connections += 1;
        let (held_bytes, granted_bytes, ticket, waits) = Default::default();
        Share { budget: self.clone(), host, held_bytes, granted_bytes, ticket, waits }
    }

    fn leave(&self, host: u64) {
        let mut ledger = lock(&self.ledger);
        let known = ledger.hosts.get_mut(&host).expect("a share has its host");
        known.connections -= 1;
        if known.connections == 0 {
            let gone = ledger.hosts.remove(&host).expect("it was looked at");
            ledger.numbers.remove(&gone.name);
        }
    }

    /// Notes that a host is active. Returns whether another host is active, too.
    pub(crate) fn seen(&self, host: u64, now: Nanos) -> bool {
        let mut ledger = lock(&self.ledger);
        if let Some(known) = ledger.hosts.get_mut(&host) {
            known.seen = now;
        }
        let mut others = ledger.hosts.iter().filter(|(number, _)| **number != host);
        others.any(|(_, other)| other.seen > 0 && now.saturating_sub(other.seen) < ACTIVE)
    }

    /// Takes memory for a host, or returns a ticket in the host's wait queue.
    fn take(&self, host: u64, bytes: u64) -> Result<(), Arc<Ticket>> {
        let mut ledger = lock(&self.ledger);
        let known = &ledger.hosts[&host];
        let is_first = known.line.is_empty() && (known.held_bytes == 0 || !ledger.has_starving());
        if is_first && ledger.fits(self.size_bytes, host, bytes) {
            ledger.add(host, bytes);
            return Ok(());
        }
        let ticket = Arc::new(Ticket { bytes, state: Mutex::default() });
        ledger.hosts.get_mut(&host).expect("it was looked at").line.push_back(ticket.clone());
        ledger.waiting += 1;
        Err(ticket)
    }

    /// Takes memory even if none is free.
    fn take_anyway(&self, host: u64, bytes: u64) {
        lock(&self.ledger).add(host, bytes);
    }

    fn give(&self, host: u64, bytes: u64) {
        let wake = {
            let mut ledger = lock(&self.ledger);
            ledger.held_bytes -= bytes;
            ledger.hosts.get_mut(&host).expect("a share has its host").held_bytes -= bytes;
            ledger.serve(self.size_bytes)
        };
        wake.into_iter().for_each(Waker::wake);
    }

    /// A connection stops waiting. Returns the bytes that it was granted meanwhile.
    fn cancel(&self, host: u64, ticket: &Arc<Ticket>) -> u64 {
        let mut ledger = lock(&self.ledger);
        if ticket.is_granted() {
            return ticket.bytes;
        }
        ledger.hosts.get_mut(&host).expect("a share has its host").line.retain(|one| !Arc::ptr_eq(one, ticket));
        ledger.waiting -= 1;
        // The ticket behind it may fit.
        let wake = ledger.serve(self.size_bytes);
        drop(ledger);
        wake.into_iter().for_each(Waker::wake);
        0
    }
}

impl Share {
    /// The budget, and the host's number in it.
    pub fn host(&self) -> (&Arc<Budget>, u64) {
        (&self.budget, self.host)
    }

    /// Whether the connection may hold `bytes` more. If not, the connection joins its host's wait
    /// queue; [`Share::listen`] registers the task to wake.
    #[inline]
    pub fn has_room(&self, bytes: u64) -> bool {
        if self.counted(bytes) > self.granted_bytes.get() {
            return self.is_given(bytes);
        }
        if self.waits.get() {
            self.end_waiting();
        }
        true
    }

    /// The memory that was given back meanwhile is enough, so the connection leaves the wait queue.
    /// Tasks that waited with this one ask again.
    #[cold]
    fn end_waiting(&self) {
        self.waits.set(false);
        if let Some(ticket) = self.ticket.take() {
            let late = self.budget.cancel(self.host, &ticket);
            if late > 0 {
                self.budget.give(self.host, late);
            }
            ticket.grant().into_iter().for_each(Waker::wake);
        }
    }

    /// Counted bytes of the connection if it held `bytes` more.
    fn counted(&self, bytes: u64) -> u64 {
        (self.held_bytes.get() + bytes).saturating_sub(UNCOUNTED_BYTES)
    }

    fn is_given(&self, bytes: u64) -> bool {
        let mut ticket = self.ticket.borrow_mut();
        if ticket.as_ref().is_some_and(|ticket| !ticket.is_granted()) {
            return false;
        }
        if let Some(granted) = ticket.take() {
            self.waits.set(false);
            self.granted_bytes.set(self.granted_bytes.get() + granted.bytes);
        }
        let Some(missing) = self.counted(bytes).checked_sub(self.granted_bytes.get()).filter(|bytes| *bytes > 0) else {
            return true;
        };
        let missing = missing.next_multiple_of(CHUNK_BYTES);
        match self.budget.take(self.host, missing) {
            Ok(()) => {
                self.granted_bytes.set(self.granted_bytes.get() + missing);
                true
            }
            Err(waiting) => {
                *ticket = Some(waiting);
                self.waits.set(true);
                false
            }
        }
    }

    /// Wakes a task when the connection may hold the bytes that [`Share::has_room`] has refused.
    pub fn listen(&self, waker: &Waker) {
        if let Some(ticket) = &*self.ticket.borrow() {
            ticket.listen(waker);
        }
    }

    /// The connection holds `bytes` more, even if there was no room.
    #[inline]
    pub fn grow(&self, bytes: u64) {
        let missing = self.counted(bytes).saturating_sub(self.granted_bytes.get());
        if missing > 0 {
            self.budget.take_anyway(self.host, missing);
            self.granted_bytes.set(self.granted_bytes.get() + missing);
        }
        self.held_bytes.set(self.held_bytes.get() + bytes);
    }

    /// The connection holds `bytes` less.
    #[inline]
    pub fn shrink(&self, bytes: u64) {
        let held = self.held_bytes.get() - bytes;
        self.held_bytes.set(held);
        let (granted, needed) = (self.granted_bytes.get(), held.saturating_sub(UNCOUNTED_BYTES));
        // A connection keeps a chunk for its next request, but an idle connection keeps none.
        if granted > 0 && (granted - needed > 2 * CHUNK_BYTES || held == 0) {
            let kept = if held == 0 { 0 } else { needed.next_multiple_of(CHUNK_BYTES).min(granted) };
            self.granted_bytes.set(kept);
            self.budget.give(self.host, granted - kept);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let late = self.ticket.take().map_or(0, |ticket| self.budget.cancel(self.host, &ticket));
        let all = self.granted_bytes.get() + late;
        if all > 0 {
            self.budget.give(self.host, all);
        }
        self.budget.leave(self.host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Admits requests of `bytes` bytes until there is no room. Returns how many were admitted.
    fn fill(share: &Share, bytes: u64) -> u64 {
        let mut count = 0;
        while share.has_room(bytes) {
            share.grow(bytes);
            count += 1;
            assert!(count < 10_000);
        }
        count
    }

    #[test]
    fn one_host_gets_a_half_and_leaves_room_for_others() {
        let budget = Budget::new(64 * MIB);
        let queues: Vec<Share> = (0..128).map(|_| budget.enter("greedy")).collect();
        let held: u64 = queues.iter().map(|queue| fill(queue, MIB)).sum();
        assert!((28..=40).contains(&held), "{held} MiB");
        let others: Vec<Share> = (0..8).map(|number| budget.enter(&format!("host {number}"))).collect();
        for other in &others {
            assert!(other.has_room(MIB));
            other.grow(MIB);
        }
        assert!(budget.stats().held_bytes <= budget.stats().size_bytes);
        drop((queues, others));
        assert_eq!(budget.stats(), BudgetStats { size_bytes: 64 * MIB, held_bytes: 0, waiting: 0 });
    }

    #[test]
    fn a_host_with_nothing_is_served_before_those_that_hold_much() {
        let budget = Budget::new(8 * MIB);
        let greedy: Vec<Share> = (0..3).map(|number| budget.enter(&format!("greedy {number}"))).collect();
        greedy.iter().for_each(|share| {
            fill(share, MIB);
        });
        let victim = budget.enter("victim");
        assert!(!victim.has_room(6 * MIB), "{:?}", budget.stats());
        // Memory that the others give back goes to the victim, although its request does not fit
        // yet.
        for share in &greedy {
            let held = share.held_bytes.get();
            share.shrink(held);
            let refused = !share.has_room(MIB);
            assert!(refused || victim.has_room(6 * MIB));
        }
        assert!(victim.has_room(6 * MIB), "{:?}", budget.stats());
    }

    #[test]
    fn a_request_larger_than_the_budget_is_let_in_alone() {
        let budget = Budget::new(MIB);
        let (one, other) = (budget.enter("one"), budget.enter("other"));
        assert!(one.has_room(32 * MIB));
        one.grow(32 * MIB);
        assert!(!other.has_room(MIB));
        one.shrink(32 * MIB);
        assert!(other.has_room(MIB));
    }

    #[test]
    fn a_queue_of_small_requests_takes_nothing() {
        let budget = Budget::new(MIB);
        let shares: Vec<Share> = (0..100).map(|_| budget.enter("host")).collect();
        for share in &shares {
            assert!(share.has_room(UNCOUNTED_BYTES));
            share.grow(UNCOUNTED_BYTES);
        }
        assert_eq!(budget.stats().held_bytes, 0);
    }

    #[test]
    fn a_connection_that_goes_while_it_waits_leaves_nothing_behind() {
        let budget = Budget::new(4 * MIB);
        let holder = budget.enter("holder");
        fill(&holder, MIB);
        let (first, second) = (budget.enter("waits"), budget.enter("waits"));
        assert!(!first.has_room(4 * MIB) && !second.has_room(MIB));
        // The holder waits as well.
        assert_eq!(budget.stats().waiting, 3);
        drop(first);
        assert!(second.has_room(MIB), "{:?}", budget.stats());
        drop(holder);
        drop(second);
        assert_eq!(budget.stats(), BudgetStats { size_bytes: 4 * MIB, held_bytes: 0, waiting: 0 });
        assert!(lock(&budget.ledger).hosts.is_empty());
    }

    #[test]
    fn a_connection_that_needs_no_more_leaves_the_line() {
        let budget = Budget::new(2 * MIB);
        let (holder, share) = (budget.enter("holder"), budget.enter("host"));
        assert!(holder.has_room(MIB) && share.has_room(MIB / 2));
        holder.grow(MIB);
        share.grow(MIB / 2);
        assert!(!share.has_room(MIB));
        assert_eq!(budget.stats().waiting, 1);
        // Its own requests give enough back.
        share.shrink(MIB / 2);
        assert!(share.has_room(UNCOUNTED_BYTES));
        assert_eq!(budget.stats().waiting, 0);
        drop(holder);
        assert_eq!(budget.stats().held_bytes, 0);
    }

    #[test]
    fn hosts_are_active_for_a_while() {
        let budget = Budget::new(MIB);
        let (one, other) = (budget.enter("one"), budget.enter("other"));
        assert!(!budget.seen(one.host, ACTIVE));
        assert!(budget.seen(other.host, ACTIVE + 1));
        assert!(!budget.seen(other.host, 3 * ACTIVE));
    }
}
